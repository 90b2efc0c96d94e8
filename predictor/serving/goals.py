"""What a service promises, and how far a forecast of it can be off."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from predictor.files.records import dataclass, replace
from predictor.forecast.forecast import Forecast, forecast
from predictor.ops.roofline import FloatArray
from predictor.serving.simulator import Served
from predictor.simulate.error_model import (
    EXPERTS,
    HOST,
    KERNELS,
    KINDS,
    LATE,
    QUEUE,
    TPOT,
    TTFT,
    Facts,
    Pair,
    error_model,
)
from predictor.simulate.interval import facts_of

Range = tuple[float, float]
Statistic = Callable[[FloatArray], float]

#: Log factors by which the steps of a second simulation are slower, at least and at most: so much that queues answer,
#: and not so much that another service comes of it. Chosen by hand, not from data.
SLOWER = (0.05, 0.4)
#: The least and the most that a figure may grow with its steps: all of it is steps, to queues that never end. Chosen by
#: hand, not from data.
GROWTH = (0.2, 6.0)


@dataclass(frozen=True, slots=True)
class Goals:
    """The most that a request's time to first token and time per output token may be, seconds; None: no matter."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    @property
    def any(self) -> bool:
        """Whether something is promised."""
        return self.ttft_s is not None or self.tpot_s is not None

    def met(self, served: Served) -> npt.NDArray[np.bool_]:
        """The requests that keep to it, of shape (n,); one token has no time per token."""
        good = np.ones(len(served.traffic), dtype=np.bool_)
        if self.ttft_s is not None:
            good &= served.ttft_s <= self.ttft_s
        if self.tpot_s is not None:
            good &= ~(served.tpot_s > self.tpot_s)
        return good


def step_of(served: Served) -> Forecast:
    """The mean decode step."""
    moments = [moment for each in served.moments for moment in each if moment.decoding]
    run, ranks = served.deployment.run, served.deployment.ranks
    steps = sum(moment.steps for moment in moments)
    batch = max(1, round(sum(moment.decoding * moment.steps for moment in moments) / max(steps, 1) / ranks)) * ranks
    traffic = served.traffic
    context = max(1, int((traffic.input_tokens + traffic.output_tokens / 2).mean()))
    work = run.work.changed(mode="decode", batch=batch, seq_len=1, output_len=0, context_len=context)
    return forecast(replace(run, work=work))


def service_facts(step: Facts, name: str, growth: float, experts: bool) -> Facts:
    """What is known of the mean of ``name`` (ttft, tpot or latency) whose logarithm grows by ``growth`` times that of
    the service's steps."""
    kind = TTFT if name == "ttft" else TPOT
    sizes: dict[str, Pair] = {
        part: (low * growth, high * growth) if part in (KERNELS, HOST, LATE) else (low, high)
        for part, (low, high) in step.sizes.items()
        if part not in KINDS
    }
    if kind == TTFT and growth > 1.0:
        sizes[QUEUE] = (0.0, math.log(growth))
    return Facts(kind, sizes | {kind: (1.0, 1.0)} | ({EXPERTS: (1.0, 1.0)} if experts else {}))


def mean_of(values: FloatArray) -> float:
    """The mean of those that are numbers."""
    return float(np.nanmean(values))


def median_of(values: FloatArray) -> float:
    """The median of those that are numbers."""
    return float(np.nanmedian(values))


def ranges_of(served: Served, rerun: Callable[[float], Served], statistic: Statistic = mean_of) -> dict[str, Range]:
    """80 % intervals of the means (or another ``statistic``) of ttft, tpot and latency, seconds, by
    `predictor.simulate.error_model`. The traffic is served once more, ``rerun`` with every step slower by a factor: how
    much later requests are then says what queues make of a step's error. Empty where kernels have no intervals."""
    return ranges_by(service_errors(served, rerun, statistic), served, statistic)


def ranges_by(facts: Mapping[str, Facts], served: Served, statistic: Statistic = mean_of) -> dict[str, Range]:
    """The intervals that follow from what is known of each figure, seconds."""
    model, means = error_model(), _means(served, statistic)
    ranges = {}
    for name, known in facts.items():
        low, high = model.ends(known)
        ranges[name] = means[name] * math.exp(low), means[name] * math.exp(high)
    return ranges


def service_errors(
    served: Served, rerun: Callable[[float], Served], statistic: Statistic = mean_of
) -> dict[str, Facts]:  # fmt: skip
    """What is known of the mean of ttft, tpot and latency, as `ranges_of` takes it."""
    mean_step = step_of(served)
    if mean_step.spread is None:
        return {}
    step = facts_of(mean_step.spread, mean_step.run)
    slower = min(max(step.sizes[KERNELS][1], SLOWER[0]), SLOWER[1])
    means, later = _means(served, statistic), _means(rerun(math.exp(slower)), statistic)
    experts = served.deployment.run.work.routing is not None
    facts = {}
    for name, mean in means.items():
        grown = math.log(later[name] / mean) / slower if mean > 0.0 and later[name] > 0.0 else 1.0
        facts[name] = service_facts(step, name, min(max(grown, GROWTH[0]), GROWTH[1]), experts)
    return facts


def _means(served: Served, statistic: Statistic) -> dict[str, float]:
    """The statistic by figure, 0 where no request has one."""
    figures: dict[str, FloatArray] = {name: getattr(served, f"{name}_s") for name in ("ttft", "tpot", "latency")}
    return {name: 0.0 if np.isnan(values).all() else statistic(values) for name, values in figures.items()}
