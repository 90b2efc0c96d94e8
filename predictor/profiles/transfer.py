"""The steps of a trace on another board.

An operator takes what it took, times forecast(new) / forecast(old): what a family's forecasts have in common cancels.
A kernel without an operator scales with the roofline of its class. The host does what it did; who waits for whom is
found anew (`predictor.profiles.replay`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from predictor.errors import RequestError, UnsupportedError
from predictor.files.records import replace
from predictor.hardware.gpu import GPUSpec
from predictor.hardware.system import default_system
from predictor.kernels.base import KernelTable, Selector, predict_kernels
from predictor.ops.base import Op
from predictor.ops.collective import Collective, over
from predictor.profiles import kernel_names
from predictor.profiles.kernel_names import class_of, dtype_of, is_matrix
from predictor.profiles.linked import Linked, Work
from predictor.profiles.replay import Replay
from predictor.profiles.steps import ProfiledStep

#: How the logarithms of a forecast's errors on two boards go together, over operators. Source:
#: benchmarks/results/profile-pairs-2026-11-28.md, operators of 20 us and more that both boards of a public pair ran:
#: 0.42. On the board of the trace itself they are the same.
TOGETHER = 0.4
#: Log half-width of a kernel without an operator, beside what its class's rooflines leave open: by hand, not from data.
_UNKNOWN = math.log(1.5)


class Moved(NamedTuple):
    """A trace on another board: milliseconds of its median step, with an 80 % interval, and of each step; the share of
    the kernels' time that scaled by its class alone; times by class before and after; what to know."""

    gpu: str
    latency_ms: float
    interval_ms: tuple[float, float]
    steps_ms: tuple[float, ...]
    kernel_ms: float
    measured_ms: float
    measured_kernel_ms: float
    unmapped_share: float
    classes: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]


class Forecasts:
    """Forecasts of a trace's operators on one board: seconds, and log widths below and above, by operators."""

    def __init__(self, works: Sequence[Work], gpu: GPUSpec, selector: Selector) -> None:
        self.gpu = gpu
        distinct = list(dict.fromkeys(work.ops for work in works if work.ops))
        flat = [linked_op(op, gpu) for ops in distinct for op in ops]
        table = predict_kernels(flat, gpu, selector, cold=True) if flat else None
        self.known: dict[tuple[Op, ...], tuple[float, float, float]] = {}
        at = 0
        for ops in distinct:
            assert table is not None
            rows = slice(at, at + len(ops))
            at += len(ops)
            self.known[ops] = _summed(table, rows)


def linked_op(op: Op, gpu: GPUSpec) -> Op:
    """A collective over the links of the board's usual system; any other operator as it is."""
    if not isinstance(op, Collective):
        return op
    system = default_system(gpu)
    local = min(op.ranks, system.gpus_per_node)
    local = local if op.ranks % local == 0 else 1
    return replace(over(system, op.kind, op.dtype, op.size, op.ranks, local), in_pieces=op.in_pieces)


def _summed(table: KernelTable, rows: slice) -> tuple[float, float, float]:
    seconds = float(table.latency_s[rows].sum())
    if table.spread is None:
        return seconds, _UNKNOWN, _UNKNOWN
    low, high = float(table.spread.low_s[rows].sum()), float(table.spread.high_s[rows].sum())
    if not (math.isfinite(high) and low > 0.0):
        return seconds, _UNKNOWN, _UNKNOWN
    return seconds, math.log(seconds / low), math.log(high / seconds)


def moved(
    linked: Linked, steps: Sequence[ProfiledStep], old: GPUSpec | None, new: GPUSpec, selector: Selector
) -> Moved:
    """The trace's steps on the board ``new``; ``old`` is the trace's own, None for a CPU without a file: then operators
    take what is forecast from nothing. UnsupportedError, one line, where ``new`` cannot compute in a dtype."""
    rows = np.concatenate([step.rows for step in steps]) if steps else np.zeros(0, dtype=np.int64)
    works = [linked.work[row] for row in rows.tolist()]
    if not works:
        raise RequestError(f"{linked.trace.path}: no step has a kernel or an operator; expected one that computes")
    there = Forecasts(works, new, selector)
    here = Forecasts(works, old, selector) if old is not None else None
    names = linked.trace.names.all
    length = linked.trace.kernels.length
    factor, low, high = (np.ones(len(length)) for _ in range(3))
    known: dict[tuple[Any, str], tuple[float, float, float]] = {}
    for row, work in zip(rows.tolist(), works, strict=True):
        name = names[linked.trace.kernels.name[row]]
        key = (work.ops or work.kind, "" if work.ops and old is not None else name)
        if old is None:
            seconds, below, above = there.known.get(work.ops, (0.0, 0.0, 0.0))
            factor[row], low[row], high[row] = seconds * 1e6 / max(float(length[row]), 1e-6), below, above
            continue
        if key not in known:
            assert here is not None
            known[key] = (
                _scaled(here.known[work.ops], there.known[work.ops], 1.0 if old == new else TOGETHER)
                if work.ops
                else _by_class(name, old, new)
            )
        factor[row], low[row], high[row] = known[key]
    after = length * factor
    replays = [Replay(linked, step) for step in steps]
    times = [replay.run(after[step.rows]) for replay, step in zip(replays, steps, strict=True)]
    middle = int(np.argsort(times)[len(times) // 2])
    half = _half_widths(rows, works, after, low, high)
    ends = [replays[middle].run(after[steps[middle].rows] * math.exp(w)) for w in (-half[0], half[1])]
    total = float(length[rows].sum())
    unmapped = float(length[[row for row, work in zip(rows.tolist(), works, strict=True) if not work.ops]].sum())
    return Moved(
        new.id, times[middle] / 1e3, (ends[0] / 1e3, ends[1] / 1e3), tuple(t / 1e3 for t in times),
        float(after[rows].sum()) / 1e3 / len(steps), float(np.median([step.length_us for step in steps])) / 1e3,
        total / 1e3 / len(steps), unmapped / total if total else 0.0, _classes(rows, works, length, after),
        tuple(_notes(linked, works, steps, old, new)),
    )  # fmt: skip


def _scaled(
    here: tuple[float, float, float], there: tuple[float, float, float], common: float
) -> tuple[float, float, float]:  # fmt: skip
    """New over old, and its log widths: those of a difference of two errors that go together by ``common``, and never
    wider than a forecast from nothing."""
    widths = [
        min(n, math.sqrt(max(0.0, n * n + o * o - 2.0 * common * n * o)))
        for n, o in zip(there[1:], here[1:], strict=True)
    ]  # fmt: skip
    return there[0] / here[0], widths[0], widths[1]


def _by_class(name: str, old: GPUSpec, new: GPUSpec) -> tuple[float, float, float]:
    """Of a kernel without an operator: the ratio of its class's roofline. Whether matrix work is bound by compute or
    memory its name does not say: the mean of both, and both inside the width."""
    kind = class_of(name)
    if kind == kernel_names.HOST_COPY:
        rates = [(gpu.pcie_bandwidth or 0.0) for gpu in (old, new)]
        return (rates[0] / rates[1] if all(rates) else 1.0), _UNKNOWN, _UNKNOWN
    if kind == kernel_names.COLLECTIVE:
        links = [default_system(gpu).within(2).bandwidth for gpu in (old, new)]
        return links[0] / links[1], _UNKNOWN, _UNKNOWN
    memory = math.log(old.memory_bandwidth / new.memory_bandwidth)
    if not is_matrix(kind):
        return math.exp(memory), _UNKNOWN, _UNKNOWN
    dtype = dtype_of(name) or "bf16"
    try:
        compute = math.log(old.peak_flops(dtype) / new.peak_flops(dtype))
    except UnsupportedError:
        compute = memory
    apart = abs(compute - memory) / 2.0
    return math.exp((compute + memory) / 2.0), _UNKNOWN + apart, _UNKNOWN + apart


def _half_widths(rows: Any, works: Sequence[Work], after: Any, low: Any, high: Any) -> tuple[float, float]:
    """Log widths of the sum: kernels of a class err together, classes by themselves."""
    below: dict[str, float] = defaultdict(float)
    above: dict[str, float] = defaultdict(float)
    for row, work in zip(rows.tolist(), works, strict=True):
        below[work.kind] += after[row] * low[row]
        above[work.kind] += after[row] * high[row]
    total = float(after[rows].sum()) or 1.0
    return math.hypot(*below.values()) / total, math.hypot(*above.values()) / total


def _classes(rows: Any, works: Sequence[Work], length: Any, after: Any) -> tuple[dict[str, Any], ...]:
    before: dict[str, float] = defaultdict(float)
    then: dict[str, float] = defaultdict(float)
    for row, work in zip(rows.tolist(), works, strict=True):
        before[work.kind] += float(length[row])
        then[work.kind] += float(after[row])
    order = sorted(before, key=lambda kind: -then[kind])
    return tuple({"class": kind, "measured_ms": before[kind] / 1e3, "ms": then[kind] / 1e3} for kind in order)


def _notes(
    linked: Linked, works: Sequence[Work], steps: Sequence[ProfiledStep], old: GPUSpec | None, new: GPUSpec
) -> list[str]:
    notes = []
    if old is None:
        notes.append("the trace is of no board that is known: operators take what is forecast from nothing; the host is"
                     " the trace's between its calls, and launches nothing yet")  # fmt: skip
    if any(isinstance(op, Collective) for work in works for op in work.ops):
        system = default_system(new).id
        notes.append(f"collectives run over {system}; of their measured time, waiting for other ranks scales with them")
    if any(step.bound == "host" for step in steps):
        notes.append("the host bounds steps of the trace: it is taken as it was, the profiler's own cost included")
    unmapped = {work.kind for work in works if not work.ops}
    if unmapped:
        notes.append(f"scaled by the roofline of their class alone: {', '.join(sorted(unmapped))[:300]}")
    return notes
