"""Where nothing meets an SLA: how far the nearest plan is from it, and how many GPUs would do."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from predictor.errors import RequestError
from predictor.files.records import dataclass
from predictor.search.serving.search import SearchedDeployments, ServingPlan, Sla
from predictor.search.serving.tables import GroupTimes

#: Seconds after which a search for enough GPUs tries no larger number. Chosen by hand, not from data: groups with
#: experts over 64 and more GPUs take a minute on two slow cores.
LONGEST_S = 20.0


@dataclass(frozen=True, slots=True)
class FewestGpusToServe:
    """The fewest ``gpus`` that meet the SLA and the best plan on them, both None where no number up to ``looked_at``
    does; then ``reason`` says why. ``least``: seconds of the fastest group of all, by limit (ttft, tpot): one request
    alone on it."""

    gpus: int | None
    plan: ServingPlan | None
    looked_at: int
    least: dict[str, float]
    reason: str

    def __str__(self) -> str:
        if self.plan is not None:
            return f"{self.gpus:,} GPUs are enough: {self.plan}"
        return f"no number of GPUs up to {self.looked_at:,} is enough: {self.reason}"


@dataclass(frozen=True, slots=True)
class Missed:
    """A limit that a plan misses: its ``name`` (ttft, tpot, rate), the ``limit`` and the ``value`` in seconds or
    requests/s, and the share ``by`` which the value is beyond."""

    name: str
    limit: float
    value: float
    by: float

    def __str__(self) -> str:
        name = "requests/s" if self.name == "rate" else self.name.upper()
        return f"{name} by {self.by:.1%}" if self.by < 1.0 else f"{name} by {self.by:,.0%}"


def missed(plan: ServingPlan, sla: Sla, rate: float = 0.0) -> tuple[Missed, ...]:
    """The limits that a plan misses, and by how much."""
    limits = {"ttft": (sla.ttft_s, plan.ttft_s), "tpot": (sla.tpot_s, plan.tpot_s)}
    misses = [Missed(name, *limits[name], limits[name][1] / limits[name][0] - 1.0)
             for name in sla.missed(plan.ttft_s, plan.tpot_s)]  # fmt: skip
    if plan.rate < rate * (1.0 - 1e-9):
        misses.append(Missed("rate", rate, plan.rate, 1.0 - plan.rate / rate))
    return tuple(misses)


class NothingMeets(RequestError):
    """Nothing meets an SLA, in one line: ``nearest`` and what it misses (None and () where no group holds the model),
    and how many GPUs would be ``enough``."""

    def __init__(
        self, line: str, nearest: ServingPlan | None, limits: tuple[Missed, ...], enough: FewestGpusToServe | None
    ) -> None:
        super().__init__(line if enough is None else f"{line}; {enough}")
        self.nearest, self.missed, self.enough = nearest, limits, enough


def enough_gpus(
    num_gpus: int, most: int, tables: Callable[[int], Sequence[GroupTimes]],
    found_on: Callable[[Sequence[GroupTimes], int], SearchedDeployments | None], sla: Sla, rate: float,
) -> FewestGpusToServe | None:  # fmt: skip
    """The fewest GPUs beyond ``num_gpus``, up to ``most``, on which a search finds a plan: twice as many at each step,
    then by halves (what runs on some GPUs runs on more).

    ``tables``: the steps of the groups of up to so many GPUs; ``found_on``: the search with them. None where
    ``num_gpus`` is the most already and no group holds the model.
    """
    begun, below, count = time.monotonic(), num_gpus, num_gpus
    several = tables(count)
    while count < most and time.monotonic() - begun < LONGEST_S:
        below, count = count, min(2 * count, most)
        several = tables(count)
        searched = found_on(several, count) if several else None
        if searched is None or not searched.best:
            continue
        while count - below > 1:
            middle = (below + count) // 2
            half = found_on(several, middle)
            if half is not None and half.best:
                count, searched = middle, half
            else:
                below = middle
        return FewestGpusToServe(count, searched.best[0], count, least_of(several), "")
    if not several:
        if count == num_gpus:
            return None
        return FewestGpusToServe(None, None, count, {}, "the model does not fit on any group")
    return FewestGpusToServe(None, None, count, least_of(several), _why(several, sla, rate))


def least_of(several: Sequence[GroupTimes]) -> dict[str, float]:
    """Seconds of one request alone on the fastest group: to its first token, and of each further one."""
    return {"ttft": min(float(t.prefill_s[0]) for t in several), "tpot": min(_step(t) for t in several)}


def _step(times: GroupTimes) -> float:
    return float(times.decode_s[0])


def _why(several: Sequence[GroupTimes], sla: Sla, rate: float) -> str:
    """Why no number of GPUs is enough: the limit that a request alone on the fastest group misses."""
    least, why = least_of(several), []
    if least["ttft"] > sla.ttft_s:
        times = min(several, key=lambda t: float(t.prefill_s[0]))
        why.append(f"a prompt alone takes {shown(least['ttft'])} on the fastest group, {times.group}")
    if least["tpot"] > sla.tpot_s:
        times = min(several, key=_step)
        reads = times.memory.weights / times.run.gpu.memory_bandwidth
        dense = "" if times.run.config.experts else (
            f", whose GPUs need {shown(reads)} each to read their weights"
        )  # fmt: skip
        why.append(f"a decode step takes {shown(least['tpot'])} on the fastest group, {times.group}{dense}")
    if why:
        return "; ".join(why)
    return "no group meets both limits at once" if not rate else "plans that meet the limits serve fewer requests/s"


def shown(seconds: float) -> str:
    """Seconds as an SLA says them."""
    if seconds == math.inf:
        return "any"
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"
