"""An MI300X in the board's place: HIP's side of `torch.cuda`, and the `amdsmi` package as release 7.0.2 has it."""

from __future__ import annotations

import enum
import json
import types
from typing import Any

from simulated_cuda.board import GIB, Board, Power

GCN_ARCH = "gfx942:sramecc+:xnack-"
#: Data sheet of the MI300X: dense FLOP/s of its matrix cores over the H100's, whose rates the simulation is written in.
RATE = 1307.4 / 989.4
#: What PyTorch calls its L2 cache: that of one of eight dies. The Infinity Cache behind has 64 times as much.
TOLD_L2 = 4 * 2**20


def mi300x(**more: Any) -> Board:
    """The board, with 256 MiB before its memory."""
    facts: dict[str, Any] = {
        "name": "AMD Instinct MI300X", "gfx": GCN_ARCH, "capability": (9, 4), "sms": 304, "memory_bytes": 192 * GIB,
        "l2_bytes": 256 * 2**20, "told_l2_bytes": TOLD_L2, "bandwidth": 5.3e12, "l2_bandwidth": 1.7e13,
        "clock_hz": 2.1e9, "spin_hz": 1e8, "memory_clock_hz": 1.3e9, "rate": RATE, "shared_bytes": 64 * 2**10,
        "power": Power(limit_w=750.0, idle_w=140.0, full_w=1300.0, average_w=140.0),
    }  # fmt: skip
    return Board(**facts | more)


class SmiError(Exception):
    """`AmdSmiException`."""


class ClkType(enum.IntEnum):
    SYS, GFX, DF, DCEF, SOC, MEM = range(6)


class TemperatureType(enum.IntEnum):
    EDGE, HOTSPOT, VRAM = 0, 1, 2


class TemperatureMetric(enum.IntEnum):
    CURRENT, MAX = 0, 1


class LinkType(enum.IntEnum):
    AMDSMI_LINK_TYPE_INTERNAL, AMDSMI_LINK_TYPE_XGMI, AMDSMI_LINK_TYPE_PCIE = 0, 1, 2


def package(boards: list[Board], lacks: tuple[str, ...] = ()) -> types.ModuleType:
    """`amdsmi` for the boards of one machine: strict about handles, types and order. ``lacks``: functions that this
    release does not have."""
    module = types.ModuleType("amdsmi")
    begun: list[bool] = []
    handles = [object() for _ in boards]

    def board(handle: object) -> Board:
        assert begun, "asked before amdsmi_init"
        if handle not in handles:
            raise SmiError("a handle of another library")
        return boards[handles.index(handle)]

    def clock(handle: object, kind: ClkType) -> dict[str, Any]:
        assert isinstance(kind, ClkType)
        of = board(handle)
        of.wait(of.sensor_s)
        now, most = (of.memory_clock_hz, of.memory_clock_hz) if kind is ClkType.MEM else (
            of.clock_hz * of.clock_share, of.clock_hz)  # fmt: skip
        return {"clk": round(now / 1e6), "min_clk": 132, "max_clk": round(most / 1e6), "clk_locked": "N/A",
                "clk_deep_sleep": 0}  # fmt: skip

    def power(handle: object) -> dict[str, Any]:
        watts = round(board(handle).power.average_w)
        return {"socket_power": watts, "current_socket_power": watts, "average_socket_power": "N/A",
                "gfx_voltage": "N/A", "power_limit": 750_000_000}  # fmt: skip

    def temperature(handle: object, kind: TemperatureType, metric: TemperatureMetric) -> int:
        board(handle)
        if kind is TemperatureType.EDGE:
            raise SmiError("AMDSMI_STATUS_NOT_SUPPORTED")  # as on MI300
        return 48

    def handles_of() -> list[object]:
        assert begun, "asked before amdsmi_init"
        return list(handles)

    said = {
        "AmdSmiException": SmiError, "AmdSmiClkType": ClkType, "AmdSmiTemperatureType": TemperatureType,
        "AmdSmiTemperatureMetric": TemperatureMetric, "AmdSmiLinkType": LinkType,
        "amdsmi_init": lambda: begun.append(True), "amdsmi_get_processor_handles": handles_of,
        "amdsmi_get_clock_info": clock, "amdsmi_get_power_info": power, "amdsmi_get_temp_metric": temperature,
        "amdsmi_get_energy_count": lambda handle: {
            "energy_accumulator": round(board(handle).power.energy_j / 15.259e-6), "counter_resolution": 15.259,
            "timestamp": 1},
        "amdsmi_get_power_cap_info": lambda handle: {"power_cap": round(board(handle).power.limit_w * 1e6)},
        "amdsmi_get_violation_status": lambda handle: {
            "active_ppt_pwr": board(handle).capped, "active_prochot_thrm": False, "active_socket_thrm": "N/A"},
        "amdsmi_get_gpu_device_uuid": lambda handle: board(handle).uuid,
        "amdsmi_get_gpu_device_bdf": lambda handle: f"0000:{boards.index(board(handle)) + 1:02X}:00.0",
        "amdsmi_get_gpu_driver_info": lambda handle: {"driver_name": "amdgpu", "driver_version": "6.14.14"},
        "amdsmi_get_gpu_process_list": lambda handle: [],
        "amdsmi_topo_get_link_type": lambda one, other: {"hops": 1, "type": int(LinkType.AMDSMI_LINK_TYPE_XGMI)},
    }  # fmt: skip
    module.__dict__.update({name: value for name, value in said.items() if name not in lacks})
    return module


def command(board: Board) -> str:
    """What `rocm-smi --json` prints of one card, a warning before it."""
    card = {
        "Unique ID": "0x5117ab1e", "PCI Bus": "0000:01:00.0", "Temperature (Sensor junction) (C)": "48.0",
        "Temperature (Sensor memory) (C)": "39.0", "mclk clock speed:": f"({board.memory_clock_hz / 1e6:.0f}Mhz)",
        "mclk clock level:": "3", "sclk clock speed:": f"({board.clock_hz * board.clock_share / 1e6:.0f}Mhz)",
        "sclk clock level:": "1", "Current Socket Graphics Package Power (W)": f"{board.power.average_w:.1f}",
        "Max Graphics Package Power (W)": f"{board.power.limit_w:.1f}",
    }  # fmt: skip
    return "WARNING: AMD GPU device(s) is/are in a low-power state.\n" + json.dumps(
        {"card0": card, "system": {"Driver version": "6.14.14"}}
    )
