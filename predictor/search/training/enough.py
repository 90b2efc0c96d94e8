"""Where no plan of a training step fits: the plan that needs least, and a number of GPUs that holds one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from predictor.errors import RequestError
from predictor.files.records import dataclass
from predictor.request.parse import RECOMPUTES
from predictor.request.request import Request
from predictor.search.training.priced import Priced
from predictor.search.training.search import PricedPlans, search

#: How often the GPUs are doubled, and seconds after which they are doubled no more. Chosen by hand, not from data.
DOUBLINGS, LONGEST_S = 6, 20.0


@dataclass(frozen=True, slots=True)
class FewestGpusToTrain:
    """``plan``: the fastest that fits on the first number of GPUs that holds one, of those looked at (twice as many at
    each step) with the words that keep least; None where none up to ``looked_at`` does."""

    plan: Priced | None
    looked_at: int

    def __str__(self) -> str:
        if self.plan is None:
            return f"no plan fits on any number of GPUs up to {self.looked_at:,}"
        return f"{self.plan.plan.num_gpus:,} GPUs are enough: {self.plan.plan.label}"


def least(priced_plans: PricedPlans) -> Priced:
    """The plan that needs least memory."""
    return min(priced_plans.priced, key=lambda candidate: candidate.memory_bytes - candidate.usable_bytes)


def enough_gpus(asked: Request, priced_plans: PricedPlans, only: Mapping[str, tuple[Any, ...]]) -> FewestGpusToTrain:
    """More GPUs for a request none of whose plans fits: on each number the plans that run everything again and take one
    sequence at a time, unless ``only`` holds these words to others."""
    begun, looked_at = time.monotonic(), max(priced_plans.num_gpus)
    lean = {"recompute": (RECOMPUTES[-1],), "micro_batch": (1,)} | dict(only)
    for doubling in range(1, DOUBLINGS + 1):
        if time.monotonic() - begun > LONGEST_S:
            break
        count = max(priced_plans.num_gpus) << doubling
        try:
            more = search(asked, [count], priced_plans.batch, lean)
        except RequestError:  # sizes that do not divide, or more than the system joins
            continue
        looked_at = count
        if more.fits:
            return FewestGpusToTrain(more.best(1)[0], looked_at)
    return FewestGpusToTrain(None, looked_at)
