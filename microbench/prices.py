"""What a case takes, told beforehand from how it is timed, and a plan as deep as a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from microbench import calibration, sweep
from microbench.capability import Target, copies, held_bytes
from microbench.case import Case
from microbench.timing_settings import LONG_SAMPLES, MOST_LAUNCHES, Settings
from predictor.data.schema import CUDA_GRAPH, ROTATING, SUSTAINED

#: Seconds of a case beside its timing: allocation, random data, a look at the kernels' names, the check. Measured by
#: collections on a processor; `collect` says how long is really left.
AROUND_S = 0.06
#: Of the host, a call through PyTorch, and a look at a board's sensors. Chosen by hand, not from data.
_CALL_S, _HEAD_START_S = 5e-6, 1e-4
#: Samples of a round, and calls before it (capture, first replay, its time). Source: microbench.timing, `_rounds` and
#: `_graph` of Timer.
_ROUND, _BEFORE = 5, 4
#: Cases of a plan at most: a guard against plans that take longer to make than a machine is held. Chosen by hand, not
#: from data.
MOST_CASES = 300_000


def timed_s(case: Case, target: Target, settings: Settings) -> float:
    """Seconds that `microbench.timing` takes for ``case``, where its samples are quiet."""
    call = target.seconds(case)
    once = call + _CALL_S
    warm = max(settings.warm_up_s, 2 * once)
    samples = settings.min_samples
    if case.cache == "cold":
        flush = 2 * target.cache_bytes / target.bandwidth * 2  # read and written
        return warm + samples * (once + flush + _HEAD_START_S)
    if case.protocol == SUSTAINED:
        sample = max(settings.min_gpu_s / LONG_SAMPLES, call)
        return warm + settings.load_s + max(settings.min_gpu_s, samples * sample) + 2 * sample
    batch = max(settings.sample_s, call)
    if case.protocol != CUDA_GRAPH:
        return warm + max(samples, _ROUND) * batch
    launches = min(MOST_LAUNCHES, max(_BEFORE, 2 * settings.sample_s / once))
    if case.cache == ROTATING:  # whole rounds, and copies that are filled
        turns = copies(held_bytes(case.op), target.cache_bytes)
        launches = max(launches, turns)
        warm += 2 * turns * held_bytes(case.op) / target.bandwidth
    sample = max(batch, launches * call)
    return warm + launches * _CALL_S + (_BEFORE + samples) * (sample + _HEAD_START_S)


def case_seconds(case: Case, target: Target, settings: Settings) -> float:
    """A rough time for one case."""
    return AROUND_S + timed_s(case, target, settings)


def deepened(
    target: Target, ops: Sequence[str] | None, dtypes: Sequence[str] | None, folder: Path, budget_s: float | None,
    settings: Settings,
) -> sweep.CasePlan:  # fmt: skip
    """The sweeps' cases, and of the same sequences as many more as ``budget_s`` is expected to take, `READ_SHARE` of
    them such as a calibration reads. Without a budget, and of a user's sweeps, which say how many shapes they want: the
    sweeps as they are."""
    plan = sweep.build(target, ops, dtypes, folder)
    if budget_s is None or folder.resolve() != sweep.SWEEPS.resolve() or not plan.cases:
        return plan
    read = [calibration.reads(case, target) for case in plan.cases]
    seconds = [case_seconds(case, target, settings) for case in plan.cases]
    reads, mean = sum(read), sum(seconds) / len(seconds)
    rows = min(budget_s / mean, MOST_CASES)
    depths = [
        math.ceil(share * rows / count) if count else 1
        for share, count in ((1 - sweep.READ_SHARE, len(read) - reads), (sweep.READ_SHARE, reads))
    ]
    if max(depths) <= 1:
        return plan
    return sweep.build_deep(target, ops, dtypes, folder, (max(1, depths[0]), max(1, depths[1])))
