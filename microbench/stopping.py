"""When to stop measuring: the rule is an object of its own, apart from any clock or device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

#: Quantile of the normal distribution for a two-sided interval of 95 %, by definition.
_Z = 1.959964


def median_half_width(samples: list[float]) -> float:
    """Half the width of the 95 % interval of the median, over the median (no unit).

    The interval is that of order statistics: ranks n/2 -+ z sqrt(n)/2 (Conover, Practical Nonparametric Statistics,
    3.2), which asks nothing of the distribution; latencies have long tails. Infinite below 6 samples, where no pair of
    order statistics covers 95 %.
    """
    n = len(samples)
    if n < 6:
        return math.inf
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    reach = _Z * math.sqrt(n) / 2.0
    low = max(0, math.floor(n / 2.0 - reach))
    high = min(n - 1, math.ceil(n / 2.0 + reach))
    middle = float(np.median(ordered))
    return float(ordered[high] - ordered[low]) / 2.0 / middle if middle > 0 else math.inf


@dataclass(slots=True)
class StoppingRule:
    """Stop when the median is known to ``noise`` (relative half-width), between ``min_samples`` and a time-out.

    ``timeout_s`` is the time spent measuring, discarded samples included; ``max_samples`` guards against a kernel of a
    few nanoseconds. ``reason`` is "" until `done`, then "precise", "timeout" or "max_samples".
    """

    #: As those of `microbench.timing.Settings`, which every case brings: chosen by hand, not from data.
    noise: float = 0.01
    min_samples: int = 10
    max_samples: int = 1000
    timeout_s: float = 0.5
    samples: list[float] = field(default_factory=list)
    reason: str = ""

    def add(self, samples: list[float]) -> None:
        """Takes samples in seconds."""
        self.samples.extend(samples)

    def done(self, elapsed_s: float) -> bool:
        """Whether to stop, ``elapsed_s`` after measuring began. At least one sample is always asked for."""
        n = len(self.samples)
        if n >= self.max_samples:
            self.reason = "max_samples"
        elif n >= self.min_samples and median_half_width(self.samples) <= self.noise:
            self.reason = "precise"
        elif n > 0 and elapsed_s >= self.timeout_s:
            self.reason = "timeout"
        return bool(self.reason)
