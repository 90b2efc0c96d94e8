"""NVIDIA's management library through ctypes: clocks, temperature, power, throttle reasons. It only reads.

`lock_clocks` is the one exception, and only `--lock-clocks` calls it. Where the library or a value is missing the
answer is None, and the rows say nothing about it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Bits of nvmlClocksThrottleReasons (nvml.h). GpuIdle (1) and ApplicationsClocksSetting (2) throttle no measurement.
REASONS: dict[int, str] = {
    0x4: "power_cap", 0x8: "hardware_slowdown", 0x10: "sync_boost", 0x20: "thermal", 0x40: "hardware_thermal",
    0x80: "power_brake",
}  # fmt: skip
_SM, _MEMORY = 1, 2
_TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE: the count is told all the same
_POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT
# nvml.h: NVML_P2P_CAPS_INDEX_NVLINK, NVML_NVLINK_MAX_LINKS, NVML_NVLINK_DEVICE_TYPE_SWITCH
_P2P_NVLINK, _MOST_LINKS, _SWITCH = 2, 18, 2
_LIBRARIES = ("libnvidia-ml.so.1", "libnvidia-ml.so")


def decode_reasons(bits: int) -> tuple[str, ...]:
    """The names of the throttle reasons among ``bits``."""
    return tuple(name for bit, name in REASONS.items() if bits & bit)


class _Value(ctypes.Union):
    """nvmlValue_t."""

    _fields_ = (
        ("dVal", ctypes.c_double), ("siVal", ctypes.c_int), ("uiVal", ctypes.c_uint), ("ulVal", ctypes.c_ulong),
        ("ullVal", ctypes.c_ulonglong), ("sllVal", ctypes.c_longlong),
    )  # fmt: skip


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t (nvml.h)."""

    _fields_ = (
        ("fieldId", ctypes.c_uint), ("scopeId", ctypes.c_uint), ("timestamp", ctypes.c_longlong),
        ("latencyUsec", ctypes.c_longlong), ("valueType", ctypes.c_int), ("nvmlReturn", ctypes.c_int),
        ("value", _Value),
    )  # fmt: skip


@dataclass(slots=True)
class Nvml:
    """One board. `open_board` makes it; every reader returns None where the board does not tell."""

    library: Any
    board: ctypes.c_void_p

    def _number(self, function: str, *before: int) -> int | None:
        out = ctypes.c_uint()
        try:
            status = getattr(self.library, function)(self.board, *before, ctypes.byref(out))
        except AttributeError:
            return None
        return out.value if status == 0 else None

    def clock_hz(self, memory: bool = False) -> float | None:
        value = self._number("nvmlDeviceGetClockInfo", _MEMORY if memory else _SM)
        return None if value is None else value * 1e6

    def max_clock_hz(self) -> float | None:
        value = self._number("nvmlDeviceGetMaxClockInfo", _SM)
        return None if value is None else value * 1e6

    def bandwidth(self) -> float | None:
        """Bytes/s of its memory: two transfers a clock, as NVML counts clocks, over the width of its bus."""
        width, mhz = self._number("nvmlDeviceGetMemoryBusWidth"), self._number("nvmlDeviceGetMaxClockInfo", _MEMORY)
        return None if not width or not mhz else 2e6 * mhz * width / 8

    def setting(self, name: str) -> int | None:
        """0 (off), 1 (on) of "PersistenceMode", "EccMode" or "MigMode" as they are now; None where it does not tell."""
        if name == "PersistenceMode":
            return self._number("nvmlDeviceGetPersistenceMode")
        present, pending = ctypes.c_uint(), ctypes.c_uint()
        function = getattr(self.library, f"nvmlDeviceGet{name}", None)
        if function is None or function(self.board, ctypes.byref(present), ctypes.byref(pending)) != 0:
            return None
        return present.value

    def processes(self) -> int | None:
        """Processes that compute on the board; None where it does not tell."""
        count = ctypes.c_uint(0)
        function = getattr(self.library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        if function is None or function(self.board, ctypes.byref(count), None) not in (0, _TOO_SMALL):
            return None
        return count.value

    def temperature_c(self) -> float | None:
        value = self._number("nvmlDeviceGetTemperature", 0)
        return None if value is None else float(value)

    def power_w(self) -> tuple[float | None, str]:
        """Watts and what they are: "instant" where the board tells (from driver 530 on), else "average" of a second."""
        value = FieldValue(_POWER_INSTANT)
        function = getattr(self.library, "nvmlDeviceGetFieldValues", None)
        if function is not None and function(self.board, 1, ctypes.byref(value)) == 0 and value.nvmlReturn == 0:
            return value.value.uiVal / 1e3, "instant"
        average = self._number("nvmlDeviceGetPowerUsage")
        return (None, "") if average is None else (average / 1e3, "average")

    def energy_j(self) -> float | None:
        """Energy since the driver was loaded (from Volta on)."""
        out = ctypes.c_ulonglong()
        function = getattr(self.library, "nvmlDeviceGetTotalEnergyConsumption", None)
        return out.value / 1e3 if function is not None and function(self.board, ctypes.byref(out)) == 0 else None

    def _text(self, function: str) -> str | None:
        text = ctypes.create_string_buffer(96)
        call = getattr(self.library, function, None)
        return text.value.decode() if call is not None and call(self.board, text, 96) == 0 else None

    def uuid(self) -> str | None:
        return self._text("nvmlDeviceGetUUID")

    def power_limit_w(self) -> float | None:
        value = self._number("nvmlDeviceGetEnforcedPowerLimit")
        return None if value is None else value / 1e3

    def throttled(self) -> tuple[str, ...]:
        """Active reasons for a lower clock; empty where there is none or the board does not tell."""
        bits = ctypes.c_ulonglong()
        for name in ("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetCurrentClocksEventReasons"):
            function = getattr(self.library, name, None)  # the newer name of the same
            if function is not None and function(self.board, ctypes.byref(bits)) == 0:
                return decode_reasons(bits.value)
        return ()

    def driver(self) -> str | None:
        text = ctypes.create_string_buffer(80)
        status = self.library.nvmlSystemGetDriverVersion(text, 80)
        return text.value.decode() if status == 0 else None

    def lock_clocks(self, hz: float) -> bool:
        """Locks the SM clock (needs administrator's rights); whether the driver did it."""
        mhz = ctypes.c_uint(round(hz / 1e6))
        function = getattr(self.library, "nvmlDeviceSetGpuLockedClocks", None)
        return function is not None and function(self.board, mhz, mhz) == 0

    def linked(self, other: Nvml) -> bool | None:
        """Whether NVLinks join this board and another, straight or through switches; None where it does not tell."""
        status = ctypes.c_int()
        function = getattr(self.library, "nvmlDeviceGetP2PStatus", None)
        if function is None or function(self.board, other.board, _P2P_NVLINK, ctypes.byref(status)) != 0:
            return None
        return status.value == 0

    def on_switch(self) -> bool:
        """Whether one of its NVLinks ends at a switch."""
        kind = ctypes.c_int()
        function = getattr(self.library, "nvmlDeviceGetNvLinkRemoteDeviceType", None)
        return function is not None and any(
            function(self.board, link, ctypes.byref(kind)) == 0 and kind.value == _SWITCH for link in range(_MOST_LINKS)
        )

    def unlock_clocks(self) -> bool:
        function = getattr(self.library, "nvmlDeviceResetGpuLockedClocks", None)
        return function is not None and function(self.board) == 0


def load_library() -> Any | None:
    """The initialised library, or None where this machine has none."""
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        return library if library.nvmlInit_v2() == 0 else None
    return None


def count(devices: Path = Path("/dev")) -> int:
    """GPUs that the driver lists, or has device files for where its library does not load; 0 without a driver."""
    library = load_library()
    out = ctypes.c_uint()
    if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(out)) != 0:
        return sum(path.name.removeprefix("nvidia").isdigit() for path in devices.glob("nvidia*"))
    return out.value


def open_board(pci_bus_id: str = "", uuid: str = "", index: int | None = None) -> Nvml | None:
    """The board with that PCI bus id, UUID or driver index (which CUDA_VISIBLE_DEVICES does not renumber)."""
    library = load_library()
    if library is None:
        return None
    board = ctypes.c_void_p()
    out = ctypes.byref(board)
    if uuid and library.nvmlDeviceGetHandleByUUID(uuid.encode(), out) == 0:
        return Nvml(library, board)
    if pci_bus_id and library.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), out) == 0:
        return Nvml(library, board)
    if index is not None and library.nvmlDeviceGetHandleByIndex_v2(index, out) == 0:
        return Nvml(library, board)
    return None
