"""Which kernel really ran: a call under torch.profiler, read from its trace.

The trace is Chrome's format, in which CUPTI's kernel events carry grid, block, registers and shared memory; the longest
kernel names the row, and a copy or a fill of memory only where no kernel ran. On a processor the same trace holds the
ATen operators; the longest one by own time is the kernel.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from microbench.devices.base import BenchDevice, Launch

_LAUNCH_ARGUMENTS = {"registers per thread": "registers", "shared memory": "shared_memory_bytes"}
_NAME_LIMIT = 400  # characters; CUTLASS names run to kilobytes. Chosen by hand, not from data
_CALLS = 3  # that are looked at, at most: chosen by hand, not from data


def profile(device: BenchDevice, launch: Launch) -> dict[str, Any]:
    """kernel_name, kernel_count, grid_x.., block_x.., registers, shared_memory_bytes of a call; {} where unknown.

    A processor can be taken away in the midst of any operator, which is then the longest: two calls have to agree on
    it, and where none do the first one counts. On a GPU the first call counts of which the profiler says anything.
    """
    agreeing = 1 if device.kind == "cuda" else 2
    seen: list[dict[str, Any]] = []
    for _ in range(_CALLS):
        seen.append(_profile_one(device, launch))
        if seen[-1] and seen.count(seen[-1]) == agreeing:
            return seen[-1]
    return next(filter(None, seen), {})


def _profile_one(device: BenchDevice, launch: Launch) -> dict[str, Any]:
    """What the trace of one call says."""
    try:
        with _profiler(device.kind) as profiler:
            launch()
            device.synchronize()
        return from_trace(_events(profiler), device.kind)
    except (RuntimeError, OSError, ValueError, AttributeError, LookupError, TypeError):
        return {}  # no CUPTI, no room for the trace, one of another form: the timing does not depend on it


def _profiler(kind: str) -> Any:
    """`torch.profiler` for a GPU. For a processor the profiler beneath it, which records the same operators: the one
    above imports the compiler at first, 2 s on a quiet machine and half a minute on a busy one."""
    if kind == "cuda":
        return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    return torch.autograd.profiler.profile(use_kineto=True)


def _events(profiler: Any) -> list[dict[str, Any]]:
    handle, name = tempfile.mkstemp(suffix=".json", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    os.close(handle)
    path = Path(name)
    try:
        profiler.export_chrome_trace(name)
        document = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        events: list[dict[str, Any]] = document.get("traceEvents", [])
        return events
    finally:
        path.unlink()


def from_trace(events: Iterable[dict[str, Any]], kind: str) -> dict[str, Any]:
    """What the trace of one call says of its kernels: those of the GPU, or the operators of the processor."""
    if kind == "cpu":
        return _from_operators([e for e in events if e.get("cat") == "cpu_op" and e.get("ph") == "X"])
    kernels = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and e.get("ph") == "X"]
    if not kernels:
        return {}
    longest = max(kernels, key=lambda event: (event["cat"] == "kernel", float(event.get("dur", 0))))
    columns: dict[str, Any] = {"kernel_name": str(longest["name"])[:_NAME_LIMIT], "kernel_count": len(kernels)}
    arguments = longest.get("args", {})
    for ours in ("grid", "block"):
        sizes = arguments.get(ours)
        if isinstance(sizes, list) and len(sizes) == 3:
            columns |= {f"{ours}_{axis}": int(size) for axis, size in zip("xyz", sizes, strict=True)}
    for theirs, ours in _LAUNCH_ARGUMENTS.items():
        if theirs in arguments:
            columns[ours] = int(arguments[theirs])
    return columns


def _from_operators(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The operator with the longest time of its own (without the operators that it called)."""
    if not events:
        return {}
    own_times = _own_times(events)
    # A span of the autograd engine (its dispatch, its node) computes nothing, though on a busy processor it can last
    # longer than the operator within; it names the row only where no operator was seen.
    longest = max(range(len(events)), key=lambda i: (_is_operator(str(events[i]["name"])), own_times[i]))
    return {"kernel_name": str(events[longest]["name"])[:_NAME_LIMIT], "kernel_count": 1}


def _own_times(events: list[dict[str, Any]]) -> list[float]:
    """The time of every span less that of the spans within it, which are of the same thread."""
    spans = [(float(event["ts"]), float(event.get("dur", 0))) for event in events]
    remaining = [duration for _, duration in spans]
    for thread in {str(event.get("tid")) for event in events}:
        mine = [i for i, event in enumerate(events) if str(event.get("tid")) == thread]
        around: list[int] = []
        for i in sorted(mine, key=lambda i: (spans[i][0], -spans[i][1])):
            while around and sum(spans[around[-1]]) <= spans[i][0]:
                around.pop()
            if around:
                remaining[around[-1]] -= spans[i][1]
            around.append(i)
    return remaining


def _is_operator(name: str) -> bool:
    """Whether a span is an operator's (`aten::mm`), not the autograd engine's (`autograd::..`, `MmBackward0`)."""
    return "::" in name and not name.startswith("autograd::")
