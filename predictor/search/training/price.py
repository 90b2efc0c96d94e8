"""What plans take: all of them screened by the pieces that they share, the best then forecast as `predict` does it.

Thousands of plans are made of few pieces. Screening (`predictor.search.training.screen`) forecasts each piece once
and adds them up for all plans; the best by that are forecast one by one, exactly as `predict` of the same words, and
ranked anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from predictor.errors import RequestError
from predictor.files.collector import no_collector
from predictor.forecast.forecast import Forecast, forecasts
from predictor.graph import OPTIMIZER
from predictor.kernels.artifact import ArtifactSet, RooflineOnly
from predictor.request.request import Request
from predictor.request.run import Run
from predictor.search.training.priced import Priced, run_of
from predictor.search.training.screen import Ints, Screening
from predictor.search.training.space import ParallelPlan
from predictor.simulate.plan import plan_of
from predictor.simulate.stage import Plan

#: Plans that are forecast one by one at least, and all of them where there are no more than so many: chosen by looking
#: at gpt3 on 64 and 1,024 GPUs, where the best ten were among the first 15 of the screening.
EXACT = 40
#: Plans whose pipelines are simulated at most; of more, the screening takes closed forms. Chosen by hand, not from
#: data: what a person waits for.
SIMULATED = 20_000
#: Part by which a plan may exceed the memory in the screening, as that rounds. Chosen by looking at the same plans.
ROOM = 1.03


Rank = tuple[float, float, float, ParallelPlan]


def fastest(priced: Priced) -> Rank:
    """By step time, then memory."""
    return priced.latency_s, priced.memory_bytes, 0.0, priced.plan


def cheapest(priced: Priced) -> Rank:
    """By what a step costs, which goes with the GPUs' time; then by step time."""
    return priced.latency_s * priced.plan.num_gpus, priced.latency_s, priced.memory_bytes, priced.plan


def thriftiest(priced: Priced) -> Rank:
    """By a step's joules; those without a forecast of their own come after, by the GPUs' time, which most of the energy
    goes with."""
    energy_j = math.inf if priced.energy_j is None else priced.energy_j
    return energy_j, priced.latency_s * priced.plan.num_gpus, priced.latency_s, priced.plan


class RankedPlans:
    """The plans of a search: those that are ``known``, with their answers, exact ones and cuts, and the ``rest``, rows
    of a screening, which gives an answer of those that are asked for."""

    def __init__(
        self, known: Sequence[Priced], rank: Callable[[Priced], Rank], screening: Screening | None = None,
        rest: Ints | None = None,
    ) -> None:  # fmt: skip
        self.known, self._rank = known, rank
        self._screening, self._rest = screening, np.zeros(0, dtype=np.int64) if rest is None else rest

    def __len__(self) -> int:
        return len(self.known) + len(self._rest)

    @cached_property
    def all(self) -> tuple[Priced, ...]:
        """Every plan, the first by rank first."""
        rest = [] if self._screening is None else self._screening.priced(self._rest)
        return tuple(sorted((*self.known, *rest), key=self._rank))

    @cached_property
    def fits(self) -> int:
        """How many fit in memory."""
        return sum(priced.fits for priced in self.known) + len(self._fitting)

    def best(self, count: int) -> tuple[Priced, ...]:
        """The first ``count`` of those that fit."""
        some = [priced for priced in self.known if priced.fits]
        if self._screening is not None:
            some += first(self._screening, self._fitting, count, self._rank)
        return tuple(sorted(some, key=self._rank)[:count])

    @cached_property
    def _fitting(self) -> Ints:
        return self._rest if self._screening is None else self._rest[self._screening.fits[self._rest]]


def first(screening: Screening, rows: Ints, count: int, rank: Callable[[Priced], Rank]) -> list[Priced]:
    """Of the plans of ``rows`` the first ``count`` by ``rank``."""
    weight = screening.gpus if rank in (cheapest, thriftiest) and rows.size else None
    return sorted(screening.priced(screening.fastest(rows, count, weight)), key=rank)[:count]


def price(
    plans: Sequence[ParallelPlan], asked: Request, selector: ArtifactSet | RooflineOnly, layers: int,
    most: int = EXACT, rank: Callable[[Priced], Rank] = fastest,
) -> RankedPlans:  # fmt: skip
    """Every plan with its answer, and those with cuts that are faster; of the first by ``rank`` at least ``most`` that
    fit, where so many do, forecast exactly."""
    with no_collector():
        screening = Screening(plans, asked, selector, layers, len(plans) <= SIMULATED)
        cuts = screening.cuts
    if len(plans) <= most:
        every = dict.fromkeys((*plans, *screening.kept, *(priced.plan for priced in cuts)))
        return RankedPlans(exactly(every, asked, selector), rank)
    roomy = np.flatnonzero(screening.held <= ROOM * screening.usable)
    more = [priced for priced in cuts if priced.memory_bytes <= ROOM * priced.usable_bytes]
    done: dict[ParallelPlan, Priced] = {}
    taken = 0
    while (missing := most - sum(priced.fits for priced in done.values())) > 0:
        candidates = sorted([*first(screening, roomy, taken + missing, rank), *more], key=rank)
        some = [priced.plan for priced in candidates[taken : taken + missing]]
        if not some:
            break
        taken += missing
        done |= {priced.plan: priced for priced in exactly(some, asked, selector)}
    known = [done[plan] for plan in screening.kept if plan in done]
    known += [done.get(priced.plan, priced) for priced in cuts]
    rest = np.array([i for i, plan in enumerate(screening.kept) if plan not in done], dtype=np.int64)
    return RankedPlans(known, rank, screening, rest)


def exactly(plans: Iterable[ParallelPlan], asked: Request, selector: ArtifactSet | RooflineOnly) -> tuple[Priced, ...]:
    """The plans with the forecasts of `predict`; one that has none is left out."""
    runs: list[tuple[ParallelPlan, Run]] = []
    planned: dict[int, Plan] = {}
    for plan in plans:
        try:
            run = run_of(asked, plan, selector)
            planned[len(runs)] = plan_of(run)
        except RequestError:
            continue
        runs.append((plan, run))
    made = forecasts([run for _, run in runs], known_plans=planned)
    return tuple(_answer(plan, forecast) for (plan, _), forecast in zip(runs, made, strict=True))


def _answer(plan: ParallelPlan, forecast: Forecast) -> Priced:
    step, memory = forecast.step, forecast.memory
    exposed = {} if step is None else dict(step.exposed_s)
    bubble = 0.0 if step is None else step.bubble_s
    parts = _parts(forecast.phases_s, exposed, bubble)
    mfu = forecast.model_flops / forecast.latency_s / forecast.run.gpu.peak_flops(forecast.run.numbers.gemm)
    energy_j = None
    if forecast.run.power:
        from predictor.simulate.energy import energy_of  # most searches do without it

        energy_j = energy_of(forecast).energy_j
    return Priced(
        plan, forecast.latency_s, mfu, memory.total, memory.usable, bubble, sum(exposed.values()), parts,
        energy_j=energy_j,
    )  # fmt: skip


def _parts(phases: Mapping[str, float], exposed: Mapping[str, float], bubble: float) -> dict[str, float]:
    """Seconds of a step by what there is to change: what collectives add, by whose they are; the bubble; the update;
    and compute, all the rest."""
    parts = {f"{name} exchanged": seconds for name, seconds in exposed.items()}
    parts |= {"bubble": bubble, OPTIMIZER: phases.get(OPTIMIZER, 0.0)}
    return {"compute": max(0.0, sum(phases.values()) - sum(parts.values())), **parts}
