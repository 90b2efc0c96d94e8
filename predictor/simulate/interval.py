"""The interval of a whole forecast: what its kernels and its host may be off, and what is known of the request.

Errors of one operator class are taken as fully correlated (the same estimator errs on the same GPU in the same
direction), those of different classes as independent: the half-widths of a class add up, and the classes join as the
root of the sum of squares, above and below the forecast apart.

Where the CPU is slower than the GPU, kernels that take longer hide behind it. The timeline is run again with every
kernel at its upper (lower) end, and with every call at the host's; each class counts with the part of its seconds that
the total felt.

Whole runs are off by more than that, and kernels of one run by less than all at their ends. `predictor.simulate.
error_model` says how these and the other parts of an error join. Its scales were learned from whole runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.engines import CAPTURED, LAUNCHES, PIECES
from predictor.files.records import dataclass
from predictor.graph.samples import TOKENS
from predictor.kernels.base import KernelTable
from predictor.kernels.interval import ALONE
from predictor.ops.collective import Collective
from predictor.ops.roofline import FloatArray
from predictor.request.run import Run
from predictor.request.workload import Workload
from predictor.simulate.columns import by_point, largest, plain
from predictor.simulate.error_model import (
    COMPILED,
    DECODE,
    HOST,
    KERNELS,
    LATE,
    MODULES,
    PASS,
    RELEASE,
    SHORT,
    TRAIN,
    UNSEEN,
    Facts,
    error_model,
)
from predictor.simulate.times import TimedStage

#: Seconds of one kernel that a host launches, and of a call of a module, that count as one in the sizes of their parts
#: (`facts_of`). Units, by definition: what they come to is the parts' scale.
LATE_S, SHORT_S = 10e-6, 50e-6
#: The most that kernels may be too slow by, of a run: logarithms end there. Chosen by hand, not from data.
MOST_BELOW = 0.98


@dataclass(frozen=True, slots=True)
class StageSpread:
    """By how many seconds a pass may be off below and above, by class (classes,), and for the host's sake; how many
    kernels a host launches in it; its kernels' seconds by distance from what was measured (distances,) and by class."""

    below: FloatArray
    above: FloatArray
    host_below: Any
    host_above: Any
    launched: float
    by_distance: FloatArray
    by_class: FloatArray


@dataclass(frozen=True, slots=True)
class RunSpread:
    """A run's latency, the number of kernels that a host launches, and the half-widths in seconds, below and above, of
    kernels and host. ``by_distance`` (..., distances) and ``by_class`` (..., classes): its kernels' seconds;
    ``classes``: (estimator, class) by code, "" for the roofline alone."""

    total_s: Any
    launched: Any
    kernels: tuple[Any, Any]
    host: tuple[Any, Any]
    by_distance: FloatArray
    by_class: FloatArray
    classes: tuple[tuple[str, str], ...] = ()


def facts_of(spread: RunSpread, run: Run) -> Facts:
    """What is known of a run whose kernels and host may be off by ``spread``."""
    work, total = run.work, spread.total_s
    sizes: dict[str, Any] = {
        KERNELS: _logarithms(spread.kernels, total), HOST: _logarithms(spread.host, total),
        LATE: (0.0, np.log1p(spread.launched * LATE_S / total)),
    }  # fmt: skip
    engine = work.engine
    kind = MODULES if run.config.unit != TOKENS else _KINDS[work.mode]
    sizes[kind] = (1.0, 1.0)
    seconds = spread.by_distance.sum(axis=-1)
    unseen = spread.by_distance[..., 2:ALONE].sum(axis=-1) / np.where(seconds > 0.0, seconds, 1.0)
    if np.any(unseen):
        sizes[UNSEEN] = (plain(unseen), plain(unseen))
    if not work.software and len(engine.vintages()) > 1:
        sizes[RELEASE] = (1.0, 1.0)
    if engine.fuses and not engine.serves and not engine.trains:
        sizes[COMPILED] = (1.0, 1.0)
    if kind == MODULES:
        sizes[SHORT] = (0.0, np.log1p(SHORT_S / total))
    return Facts(kind, sizes)


#: The kind of error of each mode.
_KINDS = {"forward": PASS, "prefill": PASS, "train": TRAIN, "decode": DECODE, "generate": DECODE}


def _logarithms(ends_s: tuple[Any, Any], total_s: Any) -> tuple[Any, Any]:
    """Seconds below and above a total as positive logarithms."""
    return plain(-np.log1p(-np.minimum(ends_s[0] / total_s, MOST_BELOW))), plain(np.log1p(ends_s[1] / total_s))


def spread_of(timed: TimedStage, work: Workload) -> StageSpread | None:
    """How far one pass of a stage of ``work`` may be off; None where a kernel has no interval.

    A host whose launch overhead was given has no error of it; one that was assumed may be any in its range.
    """
    known = timed.operators.spread
    if known is None:
        return None
    index, both = _rows(timed), timed.timelines
    high = known.high[index]
    if not np.isfinite(high).all():
        return None
    launches, waited, span = np.any(timed.timeline.cpu_s > 0.0), timed.stage.overhead_s, work.waits_range_s
    waits = (0.0, 0.0) if span is None else (largest(waited - span[0], 0.0), largest(span[1] - waited, 0.0))
    own_s, runs, kinds, size = (
        both.gpu_s - both.gaps_s,
        both.runs,
        known.classes[index],
        int(known.classes.max()) + 1,
    )
    moved = [both.gpu_s + own_s * (ratio - 1.0) for ratio in (known.low[index], high)]
    by_class: list[Any] = [_sums(kinds, np.abs(other - both.gpu_s) * runs, size) for other in moved]
    host = [0.0, 0.0]
    if launches:
        ends = () if work.launch_range_s is None else [end_s / work.launch_overhead_s for end_s in work.launch_range_s]
        felt, host = _felt(timed, moved, [change.sum(axis=-1) for change in by_class], ends)
        by_class = [change * by_point(part) for change, part in zip(by_class, felt, strict=True)]
    launched = 0.0
    if timed.stage.host in (LAUNCHES, PIECES):
        cut = timed.stage.host == PIECES  # of which many kernels have no launch of their own
        launched = float(runs[both.cpu_s > 0.0].sum() if cut else runs.sum())
    late = _late_ranks(timed)
    by_distance = _sums(known.distance[index], own_s * runs, ALONE + 1)
    of_class = _sums(kinds, own_s * runs, size)
    sides = host[0] + waits[0], host[1] + waits[1] + late
    return StageSpread(by_class[0], by_class[1], *sides, launched, by_distance, of_class)


def _sums(kinds: npt.NDArray[np.int64], weights: FloatArray, size: int) -> FloatArray:
    """Sums of ``weights`` by kind, (size,); of columns (points, n), (points, size)."""
    if weights.ndim == 1:
        sums: FloatArray = np.bincount(kinds, weights, size).astype(np.float64, copy=False)
        return sums
    places = kinds + np.arange(0, len(kinds) * size, size)[:, None]
    flat: FloatArray = np.bincount(places.ravel(), weights.ravel(), len(kinds) * size).astype(np.float64, copy=False)
    return flat.reshape(-1, size)


def _late_ranks(timed: TimedStage) -> float:
    """Seconds that collectives may wait for the last rank, each of which has a host of its own; no graph's do."""
    if timed.stage.host == CAPTURED:
        return 0.0
    waits = [
        (node.op.ranks, times) for at in timed.blocks for node, times in zip(at.block.nodes, at.times, strict=True)
        if isinstance(node.op, Collective)
    ]  # fmt: skip
    if not waits:
        return 0.0
    from predictor.kernels.collective.core import late_rank_s  # a forecast of one GPU starts without it

    return float(sum(late_rank_s(ranks) * times for ranks, times in waits))


def _rows(timed: TimedStage) -> npt.NDArray[np.int64]:
    """Rows of the table that two timelines' kernels are; a node that runs n times stands n times."""
    result = []
    for at in timed.blocks:
        index, nodes = at.index, at.block.nodes
        result.append(index if at.plain else np.repeat(index, [node.count for node in nodes], axis=-1))
    return np.concatenate(result, axis=-1) if result else np.zeros(0, dtype=np.int64)


def _felt(
    timed: TimedStage, moved: Sequence[FloatArray], change_s: Sequence[Any], calls: Sequence[float]
) -> tuple[list[Any], list[Any]]:
    """Shares of the kernels' ``change_s`` that the total of the two timelines changes by with the kernels ``moved``;
    and seconds by which it changes where every call costs the CPU so many times as much, 0 without any ``calls``."""
    both = timed.timelines
    gpu_s = np.stack([*moved, *(both.gpu_s for _ in calls)])
    factors = np.array([*(1.0 for _ in moved), *calls]).reshape(-1, *(1 for _ in both.gpu_s.shape))
    moved_s = np.abs(both.timeline(gpu_s, both.cpu_s * factors).total_s - timed.timeline.total_s)
    felt = [
        np.minimum(by_s / np.where(all_s > 0.0, all_s, np.inf), 1.0)
        for by_s, all_s in zip(moved_s, change_s, strict=False)
    ]
    return felt, [plain(by_s) for by_s in moved_s[len(moved) :]] if calls else [0.0, 0.0]


def run_spread(total_s: Any, stages: Sequence[TimedStage], work: Workload) -> RunSpread | None:
    """How far ``total_s`` may be off, the sum of the stages of one plan for ``work``; None without intervals."""
    spreads = [(timed.stage.weight * _longer(timed), spread_of(timed, work)) for timed in stages]
    below: Any = np.zeros(1)
    above: Any = below
    host_below: Any = 0.0
    host_above: Any = 0.0
    launched: Any = 0.0
    by_distance: Any = 0.0
    of_class: Any = 0.0
    for weight, spread in spreads:
        if spread is None:
            return None
        below, above = below + by_point(weight) * spread.below, above + by_point(weight) * spread.above
        host_below, host_above = host_below + weight * spread.host_below, host_above + weight * spread.host_above
        launched += weight * spread.launched
        by_distance = by_distance + by_point(weight) * spread.by_distance
        of_class = of_class + by_point(weight) * spread.by_class
    kernels = plain(np.sqrt((below**2).sum(axis=-1))), plain(np.sqrt((above**2).sum(axis=-1)))
    host, kinds = (host_below, host_above), stages[0].operators.kinds
    return RunSpread(total_s, launched, kernels, host, by_distance, of_class, kinds)


def _longer(timed: TimedStage) -> Any:
    """What a pipeline takes over one pass through it; 1 without one."""
    return timed.passed_s / timed.timeline.total_s if timed.stage.ends else 1.0


def interval_of(spread: RunSpread, run: Run) -> tuple[Any, Any]:
    """[low, high] in seconds, which holds the forecast; of a column of runs, of each."""
    low, _, high = range_of(spread, run)
    return low, high


def range_of(spread: RunSpread, run: Run) -> tuple[Any, Any, Any]:
    """The same ends with the median between them, which need not be the forecast, in seconds."""
    low, middle, high = error_model().ends_and_median(facts_of(spread, run))
    total = spread.total_s
    return plain(total * np.exp(low)), plain(total * np.exp(middle)), plain(total * np.exp(high))


def total_interval(total_s: Any, stages: Sequence[TimedStage], run: Run) -> tuple[Any, Any] | None:
    """The interval of ``total_s``, the sum of the stages of one plan for ``run``; None where the estimators have
    none."""
    spread = run_spread(total_s, stages, run.work)
    return None if spread is None else interval_of(spread, run)


def range_notes(table: KernelTable) -> tuple[str, ...]:
    """A line that names the operator classes outside what was measured."""
    known = table.spread
    if known is None:
        return ()
    return (f"The interval is wider outside the measured range: {'; '.join(known.notes)}.",) if known.notes else ()
