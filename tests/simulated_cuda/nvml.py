"""NVIDIA's management library as an object that takes what ctypes would: strict about types, handles and order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from simulated_cuda.board import Board

_HANDLE = 0x7F12_3456_7890
_NOT_FOUND, _INVALID, _NO_PERMISSION, _UNSUPPORTED = 6, 2, 4, 3
_SUCCESS = 0
POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT, nvml.h
_UINT = 1  # NVML_VALUE_TYPE_UNSIGNED_INT


def _into(pointer: Any, kind: type, value: Any) -> None:
    target = pointer._obj
    assert type(target) is kind, f"{type(target).__name__} where nvml.h says {kind.__name__}"
    target.value = value


class Library:
    """`libnvidia-ml.so.1` for the boards of one machine. ``missing``: functions that this driver does not have."""

    def __init__(self, boards: list[Board], missing: tuple[str, ...] = (), root: bool = False) -> None:
        self.boards, self.root = boards, root
        self.initialised = False
        self.locked: list[tuple[int, int]] = []
        self.asked: list[str] = []
        self.persistence, self.ecc, self.mig, self.processes = 1, 1, 0, 0
        self.joined: list[set[int]] = []  # pairs of boards that NVLinks join without a switch
        self.switches = False
        self._missing = missing

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            if name in object.__getattribute__(self, "_missing"):
                raise AttributeError(name)
            object.__getattribute__(self, "asked").append(name)
            if name != "nvmlInit_v2":
                assert object.__getattribute__(self, "initialised"), f"{name} before nvmlInit_v2"
        return object.__getattribute__(self, name)

    def nvmlInit_v2(self) -> int:
        self.initialised = True
        return _SUCCESS

    def nvmlDeviceGetCount_v2(self, out: Any) -> int:
        _into(out, ctypes.c_uint, len(self.boards))
        return _SUCCESS

    def _find(self, out: Any, which: Callable[[int, Board], bool]) -> int:
        for index, board in enumerate(self.boards):
            if which(index, board):
                _into(out, ctypes.c_void_p, _HANDLE + index)
                return _SUCCESS
        return _NOT_FOUND

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, out: Any) -> int:
        return self._find(out, lambda index, board: board.uuid.encode() == uuid)

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus: bytes, out: Any) -> int:
        return self._find(out, lambda index, board: f"00000000:{index + 1:02x}:00.0".encode() == bus)

    def nvmlDeviceGetHandleByIndex_v2(self, wanted: int, out: Any) -> int:
        assert isinstance(wanted, int)
        return self._find(out, lambda index, board: index == wanted)

    def _board(self, handle: Any) -> Board:
        assert isinstance(handle, ctypes.c_void_p), "a handle has to be a c_void_p: an int would be cut to 32 bits"
        assert handle.value is not None
        return self.boards[handle.value - _HANDLE]

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int, out: Any) -> int:
        board = self._board(handle)
        board.wait(board.sensor_s)
        if kind not in (1, 2):
            return _INVALID
        _into(
            out,
            ctypes.c_uint,
            round((board.clock_hz * board.clock_share if kind == 1 else board.memory_clock_hz) / 1e6),
        )
        return _SUCCESS

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: int, out: Any) -> int:
        board = self._board(handle)
        _into(out, ctypes.c_uint, round((board.clock_hz if kind == 1 else board.memory_clock_hz) / 1e6))
        return _SUCCESS

    def nvmlDeviceGetMemoryBusWidth(self, handle: Any, out: Any) -> int:
        _into(out, ctypes.c_uint, round(8 * self._board(handle).bandwidth / 2 / self._board(handle).memory_clock_hz))
        return _SUCCESS

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int, out: Any) -> int:
        self._board(handle)
        _into(out, ctypes.c_uint, 55)
        return _SUCCESS if sensor == 0 else _INVALID

    def nvmlDeviceGetPowerUsage(self, handle: Any, out: Any) -> int:
        """A second's average, which lags: what the harness is not to take for the power of a case."""
        _into(out, ctypes.c_uint, round(self._board(handle).power.idle_w * 1e3))
        return _SUCCESS

    def nvmlDeviceGetFieldValues(self, handle: Any, count: int, values: Any) -> int:
        board = self._board(handle)
        for value in values[:count] if count > 1 else [values._obj if hasattr(values, "_obj") else values[0]]:
            if value.fieldId == POWER_INSTANT:
                value.nvmlReturn, value.valueType = _SUCCESS, _UINT
                value.value.uiVal = round(board.power.average_w * 1e3)
            else:
                value.nvmlReturn = _UNSUPPORTED
        return _SUCCESS

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, out: Any) -> int:
        _into(out, ctypes.c_ulonglong, round(self._board(handle).power.energy_j * 1e3))
        return _SUCCESS

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, out: Any) -> int:
        _into(out, ctypes.c_uint, round(self._board(handle).power.limit_w * 1e3))
        return _SUCCESS

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, out: Any) -> int:
        _into(out, ctypes.c_ulonglong, self._board(handle).reasons())
        return _SUCCESS

    def nvmlSystemGetDriverVersion(self, text: Any, length: int) -> int:
        text.value = b"575.57.08"
        return _SUCCESS

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, length: int) -> int:
        text.value = self._board(handle).uuid.encode()
        return _SUCCESS

    def nvmlDeviceGetName(self, handle: Any, text: Any, length: int) -> int:
        text.value = self._board(handle).name.encode()
        return _SUCCESS

    def nvmlDeviceGetPersistenceMode(self, handle: Any, out: Any) -> int:
        _into(out, ctypes.c_uint, self.persistence)
        return _SUCCESS

    def nvmlDeviceGetEccMode(self, handle: Any, now: Any, later: Any) -> int:
        _into(now, ctypes.c_uint, self.ecc)
        _into(later, ctypes.c_uint, self.ecc)
        return _SUCCESS

    def nvmlDeviceGetMigMode(self, handle: Any, now: Any, later: Any) -> int:
        _into(now, ctypes.c_uint, self.mig)
        _into(later, ctypes.c_uint, self.mig)
        return _SUCCESS

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, infos: Any) -> int:
        _into(count, ctypes.c_uint, self.processes)
        return 7 if self.processes and infos is None else _SUCCESS  # 7: the room is too small

    def nvmlDeviceGetP2PStatus(self, handle: Any, other: Any, index: int, out: Any) -> int:
        self._board(handle)
        assert self._board(handle) is not self._board(other), "a board and itself"
        joined = {handle.value - _HANDLE, other.value - _HANDLE} in self.joined or self.switches
        _into(out, ctypes.c_int, 0 if index == 2 and joined else 5)  # NVML_P2P_STATUS_NOT_SUPPORTED
        return _SUCCESS

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: int, out: Any) -> int:
        self._board(handle)
        if not self.switches and not self.joined:
            return _UNSUPPORTED
        _into(out, ctypes.c_int, 2 if self.switches else 0)
        return _SUCCESS if link < 18 else _INVALID

    def nvmlDeviceSetGpuLockedClocks(self, handle: Any, low: Any, high: Any) -> int:
        self._board(handle)
        if not self.root:
            return _NO_PERMISSION
        self.locked.append((low.value, high.value))
        return _SUCCESS

    def nvmlDeviceResetGpuLockedClocks(self, handle: Any) -> int:
        self._board(handle)
        self.locked.clear()
        return _SUCCESS if self.root else _NO_PERMISSION
