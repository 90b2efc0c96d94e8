"""How likely a forecast keeps to a limit, and how likely one run is faster than another.

The logarithm of measured / forecast has a median and two ends, which hold 80 % (`predictor.simulate.error_model`). On
either side of the median it is spread as Student's t with two degrees of freedom, of which 10 % lie beyond the end:

    F(x) = 1/2 + x / (2 sqrt(2 + x^2))

Of two runs on one board or one engine a part of the errors is the same, and changes nothing about which is faster. The
logarithm of the ratio of their times is spread so that its end is sqrt(apart x (a^2 + b^2)) from its median, with a
and b from the median of each run to its end on the side of the other, and ``apart`` the part of the squares that the
two do not share. `benchmarks/accuracy_intervals.py` learns it from pairs of measured runs, and says what such
probabilities are worth on suites that were left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from predictor.kernels.interval import LEVEL
from predictor.simulate.error_model import BOARD, ENGINE, ErrorModel, error_model

#: Where that distribution has (1 + level) / 2 below it: (2 p - 1) / sqrt(2 p (1 - p)) for p. Source: the inverse of
#: the formula above (W. T. Shaw, "Sampling Student's T distribution", 2006, n = 2).
END = LEVEL / math.sqrt((1.0 + LEVEL) * (1.0 - LEVEL) / 2.0)


class Outlook(NamedTuple):
    """What is expected of a time, in seconds: the ends that hold 80 % and the median; and whose errors it has, those of
    a board and of an engine."""

    low_s: float
    median_s: float
    high_s: float
    board: str
    engine: str

    def within(self, limit_s: float) -> float:
        """How likely the time is at most ``limit_s``."""
        away = math.log(limit_s / self.median_s) if limit_s > 0.0 else -math.inf
        end = math.log(self.high_s / self.median_s) if away > 0.0 else math.log(self.median_s / self.low_s)
        return below(away, end)

    def times(self, factor: float) -> Outlook:
        """That of a time so many times as long, with the same errors."""
        return self._replace(low_s=self.low_s * factor, median_s=self.median_s * factor, high_s=self.high_s * factor)


def below(away: float, end: float) -> float:
    """How much of the distribution lies below ``away`` from its median, if 10 % lie beyond ``end``."""
    if math.isinf(away) or end <= 0.0:
        return 1.0 if away > 0.0 else 0.5 if away == 0.0 else 0.0
    return float(share_below(END * away / end))


def share_below(x: Any) -> Any:
    """How much of the distribution lies below ``x``, a number or an array: Student's t with two degrees of freedom."""
    return 0.5 + x / (2.0 * (2.0 + x * x) ** 0.5)


def faster(first: Outlook, other: Outlook, model: ErrorModel | None = None) -> float:
    """How likely ``first`` takes less time than ``other``."""
    apart = (model or error_model()).apart
    away = math.log(other.median_s / first.median_s)
    if away < 0.0:
        return 1.0 - faster(other, first, model)
    up, down = math.log(first.high_s / first.median_s), math.log(other.median_s / other.low_s)
    shared = (apart[BOARD] if first.board == other.board else 1.0) * (
        apart[ENGINE] if first.engine == other.engine else 1.0
    )
    return below(away, math.sqrt(shared * (up * up + down * down)))


def percent(chance: float) -> str:
    """A probability in words: never more sure than the measured pairs can show."""
    if chance > 0.99:
        return "over 99 %"
    return "under 1 %" if chance < 0.01 else f"{chance:.0%}".replace("%", " %")


def chances(named: Iterable[tuple[str, float]]) -> str:
    """ "h100 78 %, a100 over 99 %"."""
    return ", ".join(f"{name} {percent(chance)}" for name, chance in named)
