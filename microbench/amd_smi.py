"""AMD's boards: clocks, temperature, power. By the `amdsmi` package where it is installed, else by `rocm-smi --json`.

The same readers as `microbench.nvml.Nvml` has; each returns None where the board does not tell. It only reads. Names
and units of the package: amdsmi 7.0.2, amdsmi_interface.py. A reading of rocm-smi takes a process and up to half a
second: it is made anew beside the measuring, and what is read meanwhile is the last one.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

#: What holds the clock down: fields of `amdsmi_get_violation_status` -> the names that NVML's reasons have.
_REASONS = {
    "active_ppt_pwr": "power_cap", "active_prochot_thrm": "hardware_slowdown", "active_socket_thrm": "thermal",
    "active_vr_thrm": "hardware_thermal", "active_hbm_thrm": "hardware_thermal",
}  # fmt: skip
#: Microjoules to joules, microwatts to watts, MHz to Hz: by definition.
_MICRO, _MEGA = 1e-6, 1e6
#: From this age on a reading of rocm-smi is made anew, and the longest that one may take: chosen by hand, not from
#: data.
_OLD_S, _LONGEST_S = 1.0, 20.0
_COMMAND = (
    "rocm-smi", "--showclocks", "--showpower", "--showmaxpower", "--showtemp", "--showuniqueid", "--showbus",
    "--showdriverversion", "--json",
)  # fmt: skip


class AmdBoard:
    """One board. What a way does not tell stays None; nothing is ever set."""

    def clock_hz(self, memory: bool = False) -> float | None:
        return None

    def max_clock_hz(self) -> float | None:
        return None

    def bandwidth(self) -> float | None:
        return None

    def setting(self, name: str) -> int | None:
        """Nothing on these boards answers to NVML's settings."""
        return None

    def processes(self) -> int | None:
        return None

    def temperature_c(self) -> float | None:
        return None

    def power_w(self) -> tuple[float | None, str]:
        return None, ""

    def energy_j(self) -> float | None:
        return None

    def uuid(self) -> str | None:
        return None

    def power_limit_w(self) -> float | None:
        return None

    def throttled(self) -> tuple[str, ...]:
        return ()

    def driver(self) -> str | None:
        return None

    def lock_clocks(self, hz: float) -> bool:
        """Not by this harness: `rocm-smi --setperfdeterminism` is the administrator's."""
        return False

    def unlock_clocks(self) -> bool:
        return False

    def linked(self, other: Any) -> bool | None:
        return None

    def on_switch(self) -> bool:
        """Infinity Fabric has no switches in a node."""
        return False

    def bus(self) -> str:
        """Its PCI address, "0000:05:00.0"."""
        return ""


class PackageBoard(AmdBoard):
    """By the `amdsmi` package."""

    def __init__(self, library: Any, handle: Any) -> None:
        self.library, self.handle = library, handle

    def _asked(self, function: str, *more: Any) -> Any:
        """What the package answers; None where this release, driver or board does not tell."""
        try:
            return getattr(self.library, function)(self.handle, *more)
        except (self.library.AmdSmiException, AttributeError):
            return None

    def _field(self, function: str, name: str, *more: Any) -> float | None:
        answer = self._asked(function, *more)
        value = answer.get(name) if isinstance(answer, Mapping) else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def _clock(self, memory: bool, name: str) -> float | None:
        kinds = self.library.AmdSmiClkType
        value = self._field("amdsmi_get_clock_info", name, kinds.MEM if memory else kinds.GFX)
        return None if value is None else value * _MEGA

    def clock_hz(self, memory: bool = False) -> float | None:
        return self._clock(memory, "clk")

    def max_clock_hz(self) -> float | None:
        return self._clock(False, "max_clk")

    def processes(self) -> int | None:
        listed = self._asked("amdsmi_get_gpu_process_list")
        return len(listed) if isinstance(listed, list) else None

    def temperature_c(self) -> float | None:
        kinds, metrics = self.library.AmdSmiTemperatureType, self.library.AmdSmiTemperatureMetric
        value = self._asked("amdsmi_get_temp_metric", kinds.HOTSPOT, metrics.CURRENT)
        return float(value) if isinstance(value, int | float) else None

    def power_w(self) -> tuple[float | None, str]:
        """Watts of the socket: of the moment where the board tells, else an average."""
        for name, source in (("current_socket_power", "instant"), ("average_socket_power", "average")):
            watts = self._field("amdsmi_get_power_info", name)
            if watts:
                return watts, source
        return None, ""

    def energy_j(self) -> float | None:
        """Energy since the driver was loaded: counts of so many microjoules."""
        count = self._field("amdsmi_get_energy_count", "energy_accumulator")
        each = self._field("amdsmi_get_energy_count", "counter_resolution")
        return None if count is None or each is None else count * each * _MICRO

    def uuid(self) -> str | None:
        answer = self._asked("amdsmi_get_gpu_device_uuid")
        return str(answer) if answer else None

    def bus(self) -> str:
        return str(self._asked("amdsmi_get_gpu_device_bdf") or "").lower()

    def power_limit_w(self) -> float | None:
        value = self._field("amdsmi_get_power_cap_info", "power_cap")
        return None if value is None else value * _MICRO

    def throttled(self) -> tuple[str, ...]:
        """Reasons that are active now; a driver without them tells none."""
        answer = self._asked("amdsmi_get_violation_status")
        if not isinstance(answer, Mapping):
            return ()
        return tuple(dict.fromkeys(reason for name, reason in _REASONS.items() if answer.get(name) is True))

    def driver(self) -> str | None:
        answer = self._asked("amdsmi_get_gpu_driver_info")
        return str(answer["driver_version"]) if isinstance(answer, Mapping) and "driver_version" in answer else None

    def linked(self, other: Any) -> bool | None:
        answer = self._asked("amdsmi_topo_get_link_type", other.handle)
        return None if answer is None else bool(answer["type"] == self.library.AmdSmiLinkType.AMDSMI_LINK_TYPE_XGMI)


class CommandBoard(AmdBoard):
    """By `rocm-smi --json`: a card's entry of the last reading."""

    def __init__(self, readings: Readings, card: str) -> None:
        self.readings, self.card = readings, card

    def _number(self, *named: str) -> float | None:
        """The first number of the first field whose name holds all of a name's words."""
        entry = self.readings.last().get(self.card, {})
        for name in named:
            for field, value in entry.items():
                number = re.search(r"-?\d+(?:\.\d+)?", str(value))
                if number and all(word in field.lower() for word in name.split()):
                    return float(number[0])
        return None

    def clock_hz(self, memory: bool = False) -> float | None:
        value = self._number("mclk clock speed" if memory else "sclk clock speed")
        return None if value is None else value * _MEGA

    def temperature_c(self) -> float | None:
        return self._number("temperature junction", "temperature edge")

    def power_w(self) -> tuple[float | None, str]:
        watts = self._number("current socket power", "average package power")
        return watts, "" if watts is None else "average"

    def power_limit_w(self) -> float | None:
        return self._number("max package power")

    def uuid(self) -> str | None:
        return self._text("Unique ID")

    def bus(self) -> str:
        return (self._text("PCI Bus") or "").lower()

    def driver(self) -> str | None:
        return self.readings.last().get("system", {}).get("Driver version")

    def _text(self, field: str) -> str | None:
        return self.readings.last().get(self.card, {}).get(field)


class Readings:
    """What `rocm-smi --json` said last, made anew in a thread of its own."""

    def __init__(self, read: Callable[[], dict[str, dict[str, str]]]) -> None:
        self._read = read
        self._said, self._at = read(), time.monotonic()
        self._thread: threading.Thread | None = None

    def last(self) -> dict[str, dict[str, str]]:
        """Card -> field -> text."""
        if time.monotonic() - self._at > _OLD_S and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._renew, daemon=True)
            self._thread.start()
        return self._said

    def _renew(self) -> None:
        self._said = self._read() or self._said
        self._at = time.monotonic()

    def cards(self) -> list[str]:
        return sorted((name for name in self._said if name.startswith("card")), key=lambda name: int(name[4:]))


def _rocm_smi() -> dict[str, dict[str, str]]:
    """One reading; empty where there is no such command, or it fails."""
    if shutil.which(_COMMAND[0]) is None:
        return {}
    try:
        done = subprocess.run(_COMMAND, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
        said = json.loads(done.stdout[done.stdout.find("{") :])
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
    return {name: entry for name, entry in said.items() if isinstance(entry, dict)}


def load_library() -> Any | None:
    """The initialised `amdsmi` package; None where it or its driver is not there."""
    try:
        library = importlib.import_module("amdsmi")
    except Exception:  # it raises what it likes where its shared library is absent: KeyError, OSError, its own
        return None
    try:
        library.amdsmi_init()
    except library.AmdSmiException:
        return None
    return library


def boards() -> list[AmdBoard]:
    """Every board that the driver lists, in its order; none without a driver of AMD."""
    library = load_library()
    if library is not None:
        return [PackageBoard(library, handle) for handle in library.amdsmi_get_processor_handles()]
    readings = Readings(_rocm_smi)
    return [CommandBoard(readings, card) for card in readings.cards()]


def open_board(pci_bus_id: str = "", uuid: str = "", index: int | None = None) -> AmdBoard | None:
    """The board at that PCI address, else with that UUID, else the driver's so manieth."""
    there = boards()
    address = pci_bus_id.lower()[-len("0000:05:00.0") :]
    for entry in there:
        if (address and entry.bus() == address) or (uuid and entry.uuid() == uuid):
            return entry
    return there[index] if index is not None and index < len(there) else None
