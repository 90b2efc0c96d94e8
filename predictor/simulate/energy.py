"""What a run draws: the watts of its kernels (`predictor.kernels.energy`) over its timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from predictor.files.records import dataclass
from predictor.kernels.energy import PARTS, Rates, held_j, rates, work_j
from predictor.simulate.times import GAPS, OpTime, TimedStage

if TYPE_CHECKING:
    from predictor.forecast.forecast import Forecast

#: What takes energy whatever kernels do: clocks while they run, and the board while it waits for a CPU.
CLOCKS, WAITING = "clocks", "waiting"


@dataclass(frozen=True, slots=True)
class ClassEnergy:
    """One operator class of a run: joules of one GPU, the clocks in its time with them, and its mean watts."""

    op: str
    phase: str
    energy_j: float
    power_w: float


@dataclass(frozen=True, slots=True)
class Energy:
    """What a run takes, of boards alone: neither hosts nor what cools them.

    ``power_w``: mean watts of all its GPUs; ``energy_j``: of all GPUs, power x time; ``gpus`` of them.
    ``parts_j``: joules of one GPU, by what takes them. ``idle_w``, ``limit_w``: of one GPU; ``held``: share of the
    time in which kernels draw the limit. ``classes``: the operators' part, the largest first. ``assumed``: what no
    source tells of the board.
    """

    power_w: float
    energy_j: float
    gpus: int
    parts_j: Mapping[str, float]
    idle_w: float
    limit_w: float
    held: float
    classes: tuple[ClassEnergy, ...]
    assumed: tuple[str, ...] = ()

    @property
    def power_w_per_gpu(self) -> float:
        """Mean watts of one GPU."""
        return self.power_w / self.gpus


def energy_of(forecast: Forecast) -> Energy:
    """The energy of a run. Where streams work side by side, clocks count once; a pipeline's GPU is the mean of those of
    its stages."""
    run, stages = forecast.run, _of_a_mean_gpu(forecast)
    gpu, known = run.gpu, rates(run.gpu)
    items = [item for timed in stages for item in timed.op_times()]
    at, seconds, joules = _by_row(stages[0], items)
    work = held_j(joules, seconds, gpu)
    parts = dict.fromkeys((CLOCKS, *PARTS, WAITING), 0.0)
    sums: dict[tuple[str, str], list[float]] = {}
    held_s = total_s = 0.0
    for item in items:
        i = at[item.index]
        taken = seconds[i] * item.times
        entry = sums.setdefault((item.op.label, item.phase), [0.0, 0.0])
        entry[0] += (work[i].sum() + known.running_w * seconds[i]) * item.times
        entry[1] += taken
        total_s += taken
        held_s += taken if work[i].sum() < joules[i].sum() else 0.0
        for name, value in zip(PARTS, work[i].tolist(), strict=True):
            parts[name] += value * item.times
    between = forecast.between_s
    waits_s = sum(between.values()) - between.get(GAPS, 0.0)
    parts[CLOCKS] = known.running_w * (forecast.latency_s - waits_s)
    parts[WAITING] = known.waiting_w * waits_s
    _hold(parts, known, forecast.latency_s)
    gpus = run.work.parallelism.num_gpus
    energy_j = sum(parts.values()) * gpus
    classes = sorted(
        (ClassEnergy(op, phase, j, j / s if s else 0.0) for (op, phase), (j, s) in sums.items()),
        key=lambda row: -row.energy_j,
    )
    return Energy(
        energy_j / forecast.latency_s, energy_j, gpus, parts, known.idle_w, known.limit_w,
        held_s / total_s if total_s else 0.0, tuple(classes), known.assumed,
    )  # fmt: skip


def _of_a_mean_gpu(forecast: Forecast) -> Sequence[TimedStage]:
    """What the mean GPU of a run runs: of a training pipeline every chunk, as often as a GPU has one."""
    parallel, step = forecast.plan.parallel, forecast.step
    if parallel is None or step is None or forecast.run.work.parallelism.pp == 1:
        return forecast.stages
    chunks = {place for kind in parallel.kinds for place in kind.chunks}
    weights = {place: weight for place, weight in step.weights.items() if place not in chunks}
    each = forecast.run.work.micro_batches / len(parallel.ranks)
    for kind in parallel.ranks:
        for place in parallel.kinds[kind].chunks:
            weights[place] = weights.get(place, 0.0) + each
    return [
        TimedStage(timed.stage._replace(weight=weight), timed.blocks, timed.operators)
        for place, weight in sorted(weights.items())
        for timed in (forecast.timed[place],)
    ]


def _by_row(timed: TimedStage, items: Sequence[OpTime]) -> tuple[dict[int, int], np.ndarray, np.ndarray]:
    """Each distinct operator once: the place of its row, the seconds of a call (n,), and its joules (n, parts)."""
    ops = {item.index: item.op for item in items}
    at = {index: i for i, index in enumerate(ops)}
    seconds = np.asarray(timed.operators.seconds)[list(ops)] if ops else np.zeros(0)
    return at, seconds, work_j(list(ops.values()), timed.operators.gpu)


def _hold(parts: dict[str, float], known: Rates, latency_s: float) -> None:
    """Streams that work side by side share the limit, too: what is above it is taken from their work."""
    over = sum(parts.values()) - known.limit_w * latency_s
    work = sum(parts[name] for name in PARTS)
    if over > 0.0 and work > 0.0:
        for name in PARTS:
            parts[name] *= max(0.0, 1.0 - over / work)
