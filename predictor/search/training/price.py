"""What plans take: all of them screened by the pieces that they share, the best then forecast as `predict` does it.

Thousands of plans are made of few pieces. Screening (`predictor.search.training.screen`) forecasts each piece once
and adds them up for all plans; the best by that are forecast one by one, exactly as `predict` of the same words, and
ranked anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from predictor.errors import RequestError
from predictor.files.collector import no_collector
from predictor.forecast.forecast import Forecast, forecasts
from predictor.graph import OPTIMIZER
from predictor.kernels.artifact import ArtifactSet, RooflineOnly
from predictor.request.request import Request
from predictor.request.run import Run
from predictor.search.training.priced import Priced, run_of
from predictor.search.training.screen import screen
from predictor.search.training.space import ParallelPlan
from predictor.simulate.plan import plan_of

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


def price(
    plans: Sequence[ParallelPlan], asked: Request, selector: ArtifactSet | RooflineOnly, layers: int,
    most: int = EXACT, rank: Callable[[Priced], Rank] = fastest,
) -> tuple[Priced, ...]:  # fmt: skip
    """Every plan with its answer, and those with cuts that are faster, the first by ``rank`` first; of these at least
    ``most`` that fit, where so many do, forecast exactly."""
    with no_collector():
        screened = sorted(screen(plans, asked, selector, layers, len(plans) <= SIMULATED), key=rank)
    if len(plans) <= most:
        return tuple(
            sorted(exactly(dict.fromkeys((*plans, *(priced.plan for priced in screened))), asked, selector), key=rank)
        )
    done: dict[ParallelPlan, Priced] = {}
    candidates = [priced.plan for priced in screened if priced.memory_bytes <= ROOM * priced.usable_bytes]
    while candidates and (missing := most - sum(priced.fits for priced in done.values())) > 0:
        some, candidates = candidates[:missing], candidates[missing:]
        done |= {priced.plan: priced for priced in exactly(some, asked, selector)}
    return tuple(sorted((done.get(priced.plan, priced) for priced in screened), key=rank))


def exactly(plans: Iterable[ParallelPlan], asked: Request, selector: ArtifactSet | RooflineOnly) -> tuple[Priced, ...]:
    """The plans with the forecasts of `predict`; one that has none is left out."""
    runs: list[tuple[ParallelPlan, Run]] = []
    for plan in plans:
        try:
            run = run_of(asked, plan, selector)
            plan_of(run)
        except RequestError:
            continue
        runs.append((plan, run))
    return tuple(
        _answer(plan, forecast) for (plan, _), forecast in zip(runs, forecasts([run for _, run in runs]), strict=True)
    )


def _answer(plan: ParallelPlan, forecast: Forecast) -> Priced:
    step, memory = forecast.step, forecast.memory
    exposed = {} if step is None else dict(step.exposed_s)
    bubble = 0.0 if step is None else step.bubble_s
    parts = _parts(forecast.phases_s, exposed, bubble)
    mfu = forecast.model_flops / forecast.latency_s / forecast.run.gpu.peak_flops(forecast.run.numbers.gemm)
    return Priced(plan, forecast.latency_s, mfu, memory.total, memory.usable, bubble, sum(exposed.values()), parts)


def _parts(phases: Mapping[str, float], exposed: Mapping[str, float], bubble: float) -> dict[str, float]:
    """Seconds of a step by what there is to change: what collectives add, by whose they are; the bubble; the update;
    and compute, all the rest."""
    parts = {f"{name} exchanged": seconds for name, seconds in exposed.items()}
    parts |= {"bubble": bubble, OPTIMIZER: phases.get(OPTIMIZER, 0.0)}
    return {"compute": max(0.0, sum(phases.values()) - sum(parts.values())), **parts}
