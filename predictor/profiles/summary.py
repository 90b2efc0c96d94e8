"""What a trace says of its job, in numbers with units: the object that `tilecast trace show --json` prints."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from predictor.errors import TilecastError
from predictor.hardware.gpu import load_gpu
from predictor.profiles.linked import Linked
from predictor.profiles.steps import ProfiledStep

_GIB = 2.0**30  # bytes of a GiB, by definition (IEC 80000-13)
#: Entries of the longest lists: chosen by looking at them.
_LONGEST = 40


def board_id(name: str) -> str | None:
    """The id of the catalogue's board of that name; None where it has none."""
    try:
        return load_gpu(name).id if name and "/" not in name else None
    except TilecastError:
        return None


def summary(linked: Linked, steps: Sequence[ProfiledStep]) -> dict[str, Any]:
    """The numbers of `tilecast trace show`; docs/how-to/traces.md describes them."""
    trace = linked.trace
    lengths = trace.kernels.length
    rows = [row for step in steps for row in step.rows.tolist()]
    total = float(lengths[rows].sum()) if rows else 0.0
    mapped = sum(float(lengths[row]) for row in rows if linked.work[row].ops)
    wall = sum(step.length_us for step in steps)
    launches = launch_lengths(linked, rows)
    left = np.setdiff1d(np.arange(len(lengths)), rows).tolist()
    return {
        "gpu": board_id(trace.board), "board": trace.board,
        "steps": [_step(step) for step in steps],
        "step_ms": float(np.median([step.length_us for step in steps])) / 1e3 if steps else None,
        "mapped_share": mapped / total if total else 0.0,
        "busy_share": sum(step.busy_us for step in steps) / wall if wall else 0.0,
        "bound": Counter(step.bound for step in steps).most_common(1)[0][0] if total else "host",
        "launch_overhead_us": float(np.median(launches)) if launches else None,
        "launches": len(launches),
        "peak_memory_gib": trace.peak_memory_bytes / _GIB or None,
        "classes": _classes(linked, rows, total),
        "modules": _modules(linked, rows, total),
        "operators": _operators(linked, rows, total),
        "unmapped": _unmapped(linked, rows, total),
        "notes": _notes(linked, left),
    }  # fmt: skip


def launch_lengths(linked: Linked, rows: Sequence[int]) -> list[float]:
    """Microseconds that the host spent in each call that launched one of the kernels ``rows``."""
    calls = {int(linked.launch[row]) for row in rows} - {-1}
    return [float(linked.trace.calls.length[call]) for call in sorted(calls)]


def _step(step: ProfiledStep) -> dict[str, Any]:
    return {
        "name": step.name, "ms": step.length_us / 1e3, "busy_ms": step.busy_us / 1e3,
        "busy_share": step.busy_us / step.length_us if step.length_us else 0.0,
        "kernels": len(step.rows), "idle_ms": (step.length_us - step.busy_us) / 1e3,
        "waits_for_host_ms": step.waits_us / 1e3, "largest_gap_us": step.largest_gap_us,
        "host_ms": step.host_us / 1e3, "exposed_communication_ms": step.exposed_us / 1e3, "bound": step.bound,
    }  # fmt: skip


def _classes(linked: Linked, rows: Sequence[int], total: float) -> list[dict[str, Any]]:
    return [
        {"class": kind, "ms": us / 1e3, "share": us / total, "kernels": count}
        for kind, us, count in _by(linked, rows, [linked.work[row].kind for row in rows])
    ]


def _operators(linked: Linked, rows: Sequence[int], total: float) -> list[dict[str, Any]]:
    """The operators that took longest: one entry for all calls of one shape."""
    keys = [linked.work[row].ops or (linked.work[row].kind,) for row in rows]
    names = {key: linked.work[row].name for key, row in zip(keys, rows, strict=True)}
    calls = defaultdict(set)
    for key, row in zip(keys, rows, strict=True):
        calls[key].add(linked.work[row].call if linked.work[row].call >= 0 else -row - 2)
    return [
        {
            "operator": names[key], "shape": "; ".join(shape(op) for op in key), "ms": us / 1e3, "share": us / total,
            "calls": len(calls[key]),
        }
        for key, us, _ in _by(linked, rows, keys)[:_LONGEST]
    ]  # fmt: skip


def shape(op: Any) -> str:
    """An operator's sizes in a few words."""
    if isinstance(op, str):
        return op
    import dataclasses

    said = [
        f"{f.name}={getattr(op, f.name)}" for f in dataclasses.fields(op)
        if f.name != "dtype" and getattr(op, f.name) != f.default and getattr(op, f.name) not in ("", True, False)
    ]  # fmt: skip
    return f"{op.label} {op.dtype} {' '.join(said)}".strip()


def _modules(linked: Linked, rows: Sequence[int], total: float) -> list[dict[str, Any]]:
    """Time by the innermost module whose code launched a kernel; empty where no stacks were recorded."""
    trace = linked.trace
    if not len(trace.modules) or not len(trace.calls) or not rows:
        return []
    names = []
    order = np.argsort(trace.calls.start[linked.launch[rows]], kind="stable")
    sorted_rows = [rows[i] for i in order]
    stack: list[tuple[float, str]] = []
    at = 0
    start, end = trace.modules.start.tolist(), trace.modules.end.tolist()
    for row in sorted_rows:
        launch = int(linked.launch[row])
        now = float(trace.calls.start[launch]) if launch >= 0 else -math.inf
        while at < len(start) and start[at] <= now:
            while stack and stack[-1][0] <= start[at]:
                stack.pop()
            stack.append((end[at], trace.names.all[trace.modules.name[at]]))
            at += 1
        while stack and stack[-1][0] <= now:
            stack.pop()
        names.append(stack[-1][1] if stack and launch >= 0 else "outside of modules")
    return [
        {"module": name, "ms": us / 1e3, "share": us / total, "kernels": count}
        for name, us, count in _by(linked, sorted_rows, names)[:_LONGEST]
    ]


def _unmapped(linked: Linked, rows: Sequence[int], total: float) -> list[dict[str, Any]]:
    left = [row for row in rows if not linked.work[row].ops]
    keys = [
        (linked.work[row].name, linked.trace.names.all[linked.trace.kernels.name[row]][:120]) for row in left
    ]  # fmt: skip
    return [
        {"operator": name or None, "kernel": kernel, "ms": us / 1e3, "share": us / total}
        for (name, kernel), us, _ in _by(linked, left, keys)[:_LONGEST]
    ]


def _by(linked: Linked, rows: Sequence[int], keys: Sequence[Any]) -> list[tuple[Any, float, int]]:
    """(key, microseconds, kernels), the longest first."""
    time: dict[Any, float] = defaultdict(float)
    count: Counter[Any] = Counter(keys)
    for row, key in zip(rows, keys, strict=True):
        time[key] += float(linked.trace.kernels.length[row])
    return sorted(((key, us, count[key]) for key, us in time.items()), key=lambda entry: -entry[1])


def _notes(linked: Linked, left: Sequence[int]) -> list[str]:
    trace = linked.trace
    notes = []
    if linked.of_cpu:
        notes.append("no kernel of a GPU was recorded: the trace is of a CPU alone, whose calls stand for kernels")
    if left:
        ms = float(trace.kernels.length[list(left)].sum()) / 1e3
        notes.append(
            f"{len(left):,} kernels ({ms:.3g} ms) belong to no step: nothing says when they were launched, as of those"
            " that were under way when the trace began"
        )
    replays = linked.replays()
    if len(replays) > linked.replayed:
        notes.append(
            f"{len(replays) - linked.replayed} replays of a graph have names alone; --capture FILE, the trace of the"
            " graph's capture, tells their shapes"
        )
    if len(trace.operators) and not any(signature.tensors for signature in trace.signatures):
        notes.append("no shapes were recorded: record with record_shapes=True (`tilecast trace record` does)")
    if trace.left_out:
        notes.append(f"{trace.left_out:,} events have no time that can be read; they are left out")
    return notes
