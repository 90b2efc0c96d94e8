"""What a service promises, and how far a forecast of it can be off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from predictor.forecast import forecast
from predictor.roofline import FloatArray
from predictor.simulate.serving.costs import StepCosts
from predictor.simulate.serving.simulator import Served, serve

Range = tuple[float, float]


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


def step_range(served: Served) -> Range:
    """How far the mean step can be off: low and high over the forecast, of decode steps of the mean batch."""
    moments = [moment for each in served.moments for moment in each if moment.decoding]
    run, ranks = served.deployment.run, served.deployment.ranks
    steps = sum(moment.steps for moment in moments)
    batch = max(1, round(sum(moment.decoding * moment.steps for moment in moments) / max(steps, 1) / ranks)) * ranks
    traffic = served.traffic
    context = max(1, int((traffic.input_tokens + traffic.output_tokens / 2).mean()))
    work = replace(
        run.work, mode="decode", batch=batch * run.work.parallelism.dp, seq_len=1, output_len=0, context_len=context
    )
    interval = forecast(replace(run, work=work)).prediction.interval_s
    if interval is None:
        return 1.0, 1.0
    mean = forecast(replace(run, work=work), intervals=False).latency_s
    return interval[0] / mean, interval[1] / mean


def ranges_of(served: Served, costs: StepCosts) -> dict[str, Range]:
    """80 % intervals of the means of ttft, tpot and latency, seconds: the traffic served again with every step as fast,
    and as slow, as it may be. Queues make more of it than a step does."""
    low, high = step_range(served)
    if low == high:
        return {}
    ends = [
        serve(served.deployment.run, served.traffic, served.deployment.options, costs.scaled(factor))
        for factor in (low, high)
    ]
    return {name: _span([served, *ends], name) for name in ("ttft", "tpot", "latency")}


def _span(runs: Sequence[Served], name: str) -> Range:
    means = []
    for run in runs:
        values: FloatArray = getattr(run, f"{name}_s")
        means.append(float(np.nanmean(values)) if not np.isnan(values).all() else 0.0)
    return min(means), max(means)
