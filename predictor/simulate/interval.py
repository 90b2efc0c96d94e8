"""The interval of a whole forecast, from those of its kernels and of the CPU's launches.

Errors of one operator class are taken as fully correlated (the same estimator errs on the same GPU in the same
direction), those of different classes and of the CPU as independent: the half-widths of a class add up, and the classes
join as the root of the sum of squares, above and below the forecast apart.

Where the CPU is slower than the GPU, kernels that take longer hide behind it. The timeline is run again with every
kernel at its upper (lower) end, and with every call at the host's; each class counts with the part of its seconds that
the total felt.

Kernels that were all forecast exactly would not make an exact run: where an engine's host launches them one by one they
come late. That is a term of its own (`LATE_S` a kernel), above the forecast alone and independent of the others,
learned from whole runs. A host that makes framework calls has its own range, and a captured graph no host.

How the passes of a step of training on many GPUs go together (what hides behind what, in whose time collectives run,
clocks of a long step) may be off by a share of the step (`STEP_SHARE`), learned from whole steps, independent, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.engines import CAPTURED, LAUNCHES, PIECES
from predictor.files.records import dataclass
from predictor.kernels.base import KernelTable
from predictor.ops.collective import Collective
from predictor.ops.roofline import FloatArray
from predictor.request.workload import Workload
from predictor.simulate.columns import by_point, largest, plain
from predictor.simulate.times import TimedStage

#: Seconds by which a kernel that an engine's host launches may come later than forecast. Its value was fitted by
#: `benchmarks/composition.py` on the suites of $TILECAST_DATA/ground_truth: widths alone, no latency.
LATE_S = 10.8e-6
#: Share of a step of training on many GPUs by which it may be off beyond its kernels. Its value was fitted by
#: `benchmarks/composition.py --training` on the suites of $TILECAST_DATA/ground_truth: widths alone, no latency.
STEP_SHARE = 0.002


@dataclass(frozen=True, slots=True)
class StageSpread:
    """By how many seconds a pass may be off below and above, by class (classes,), and for the host's sake; and how many
    kernels a host launches in it."""

    below: FloatArray
    above: FloatArray
    host_below: Any
    host_above: Any
    launched: float


@dataclass(frozen=True, slots=True)
class RunSpread:
    """A run's latency, the number of kernels that a host launches, and the half widths in seconds, below and above, of
    kernels and host. ``step_s``: of a step of training on many GPUs, its seconds; 0 of other runs."""

    total_s: Any
    launched: Any
    kernels: tuple[Any, Any]
    host: tuple[Any, Any]
    step_s: float = 0.0

    def interval(self, late_s: float = LATE_S, step_share: float = STEP_SHARE) -> tuple[Any, Any]:
        """[low, high] in seconds, which holds the forecast."""
        composed = self.step_s * step_share
        hypot = np.hypot if isinstance(self.total_s, np.ndarray) else math.hypot
        below = hypot(hypot(self.kernels[0], self.host[0]), composed)
        above = hypot(hypot(hypot(self.kernels[1], self.host[1]), composed), self.launched * late_s)
        return plain(self.total_s - np.minimum(below, self.total_s)), plain(self.total_s + above)


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
    return StageSpread(by_class[0], by_class[1], host[0] + waits[0], host[1] + waits[1] + _late_ranks(timed), launched)


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
    for weight, spread in spreads:
        if spread is None:
            return None
        below, above = below + by_point(weight) * spread.below, above + by_point(weight) * spread.above
        host_below, host_above = host_below + weight * spread.host_below, host_above + weight * spread.host_above
        launched += weight * spread.launched
    kernels = plain(np.sqrt((below**2).sum(axis=-1))), plain(np.sqrt((above**2).sum(axis=-1)))
    step_s = total_s if work.training is not None and work.parallelism.num_gpus > 1 else 0.0
    return RunSpread(total_s, launched, kernels, (host_below, host_above), step_s)


def _longer(timed: TimedStage) -> Any:
    """What a pipeline takes over one pass through it; 1 without one."""
    return timed.passed_s / timed.timeline.total_s if timed.stage.ends else 1.0


def total_interval(total_s: Any, stages: Sequence[TimedStage], work: Workload) -> tuple[Any, Any] | None:
    """[low, high] in seconds around ``total_s``, the sum of the stages of one plan for ``work``.

    It always holds the forecast; None where the estimators have no intervals.
    """
    spread = run_spread(total_s, stages, work)
    return None if spread is None else spread.interval()


def range_notes(table: KernelTable) -> tuple[str, ...]:
    """A line that names the operator classes outside what was measured."""
    known = table.spread
    if known is None:
        return ()
    return (f"The interval is wider outside the measured range: {'; '.join(known.notes)}.",) if known.notes else ()
