"""What a service promises, and how far a forecast of it can be off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from predictor.files.records import dataclass, replace
from predictor.forecast.forecast import forecast
from predictor.ops.roofline import FloatArray
from predictor.serving.simulator import Served

Range = tuple[float, float]
Statistic = Callable[[FloatArray], float]

#: log(measured / forecast) of the means, [10 %, 90 %], beyond what kernels are off: of 717 measured services on H100
#: and RTX PRO 6000, four suites alike in weight. Fitted by `benchmarks/accuracy_served.py --data $TILECAST_DATA`
#: (2026-11-23), which also prints what intervals with the others' quantiles hold of each (every fourth row): 71, 80, 82
#: and 100 % of TPOT, 86, 64, 66 and 100 % of TTFT. Latency is mostly decode steps and takes TPOT's.
BEYOND_KERNELS: dict[str, Range] = {"ttft": (-0.096, 0.548), "tpot": (-0.058, 0.124), "latency": (-0.058, 0.124)}


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
    work = run.work.changed(mode="decode", batch=batch, seq_len=1, output_len=0, context_len=context)
    interval = forecast(replace(run, work=work)).prediction.interval_s
    if interval is None:
        return 1.0, 1.0
    mean = forecast(replace(run, work=work), intervals=False).latency_s
    return interval[0] / mean, interval[1] / mean


def mean_of(values: FloatArray) -> float:
    """The mean of those that are numbers."""
    return float(np.nanmean(values))


def median_of(values: FloatArray) -> float:
    """The median of those that are numbers."""
    return float(np.nanmedian(values))


def ranges_of(served: Served, rerun: Callable[[float], Served], statistic: Statistic = mean_of) -> dict[str, Range]:
    """80 % intervals of the means (or another ``statistic``) of ttft, tpot and latency, seconds: the traffic served
    ``rerun`` with every step as fast, and as slow, as its kernels may be (times a factor), of which queues make more
    than a step does; and `BEYOND_KERNELS`, whose logs are added as those of errors that know nothing of each other.
    Empty where kernels have no intervals."""
    low, high = step_range(served)
    if low == high:
        return {}
    runs = [served, rerun(low), rerun(high)]
    return {name: _span(runs, name, statistic) for name in ("ttft", "tpot", "latency")}


def _span(runs: Sequence[Served], name: str, statistic: Statistic) -> Range:
    means = []
    for run in runs:
        values: FloatArray = getattr(run, f"{name}_s")
        means.append(statistic(values) if not np.isnan(values).all() else 0.0)
    mean, (low, high) = means[0], BEYOND_KERNELS[name]
    if mean <= 0.0:
        return min(means), max(means)
    down, up = math.log(mean / max(min(means), 1e-12)), math.log(max(means) / mean)
    return mean * math.exp(-math.hypot(down, low)), mean * math.exp(math.hypot(up, high))
