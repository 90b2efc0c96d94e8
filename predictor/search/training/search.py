"""Plans priced and ranked: every legal one of a request, what it takes and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from predictor.errors import RequestError
from predictor.files.records import dataclass, replace
from predictor.forecast.forecast import summaries
from predictor.hardware.system import SystemSpec, default_system, load_system
from predictor.kernels.artifact import load_artifacts
from predictor.models.forms import model_of
from predictor.request.options import (
    BREADTH_FIRST,
    COST,
    DOLLARS,
    ENERGY,
    GPIPE,
    HSDP,
    INTERLEAVED,
    NO_SHARD,
    ONE_F_ONE_B,
    SCHEDULES,
    TIME,
)
from predictor.request.parse import RECOMPUTES
from predictor.request.request import Request
from predictor.request.run import Run
from predictor.search.training.price import RankedPlans, cheapest, fastest, price, thriftiest
from predictor.search.training.priced import Priced, run_of
from predictor.search.training.space import ParallelPlan, Space
from predictor.simulate.lower import placed
from predictor.simulate.odds import Outlook
from predictor.simulate.plan import plan_of

#: How far beside a number of GPUs without a plan one is sought that has some. Chosen by hand, not from data.
NEAR = 64


@dataclass(frozen=True)
class PricedPlans:
    """What a search found: a run of the request on one GPU, the GPUs' ``system``, and the plans in their order."""

    run: Run
    system: SystemSpec
    num_gpus: tuple[int, ...]
    batch: int
    legal: int
    ranked: RankedPlans
    price: float | None
    asked: Request

    @property
    def priced(self) -> tuple[Priced, ...]:
        """Every plan priced, the best first."""
        return self.ranked.all

    @property
    def fitting(self) -> tuple[Priced, ...]:
        """Those that fit in memory, the best first."""
        return tuple(candidate for candidate in self.priced if candidate.fits)

    @property
    def fits(self) -> int:
        """How many fit in memory."""
        return self.ranked.fits

    def best(self, count: int) -> tuple[Priced, ...]:
        """The first ``count`` of those that fit, without the rest being priced."""
        return self.ranked.best(count)

    def outlooks(self, count: int) -> list[Outlook | None]:
        """What is expected of the steps of the first ``count``; None without intervals."""
        runs = [run_of(self.asked, candidate.plan, self.run.selector) for candidate in self.best(count)]
        return [answer.outlook for answer in summaries(runs, intervals=True)]

    def joule_per_token(self, candidate: Priced) -> float | None:
        """Joules of all GPUs for a token; None where no forecast of its own says it."""
        tokens = self.batch * self.run.work.seq_len
        return None if candidate.energy_j is None else candidate.energy_j / tokens

    def cost_per_million_tokens(self, candidate: Priced) -> float | None:
        """Dollars for a million tokens; None where there is no price."""
        each = self.tokens_per_dollar(candidate)
        return None if each is None else 1e6 / each

    def tokens_per_dollar(self, candidate: Priced) -> float | None:
        """Tokens trained for a dollar; None where there is no price."""
        if self.price is None:
            return None
        return (
            self.batch * self.run.work.seq_len / candidate.latency_s * 3600.0 / (candidate.plan.num_gpus * self.price)
        )


def search(
    asked: Request, num_gpus: Sequence[int], batch: int, only: Mapping[str, tuple[Any, ...]], *,
    objective: str = TIME, dollars: float | None = None,
) -> PricedPlans:  # fmt: skip
    """Every legal plan of ``asked`` (mode train, without degrees) on each of ``num_gpus``, priced and ranked.

    ``dollars``: an hour of one GPU. Raises RequestError where nothing is legal.
    """
    selector = load_artifacts(asked.artifacts)
    single = replace(asked, mode="train", batch=batch, micro_batch=1).run(selector)
    spaces = [space_of(asked, single, count, batch, only) for count in num_gpus]
    plans = [plan for space in spaces for plan in space.plans()]
    if not plans:
        raise RequestError(_nothing(asked, single, num_gpus, batch, only))
    rank = {COST: cheapest, DOLLARS: cheapest, ENERGY: thriftiest}.get(objective, fastest)
    model = model_of(asked.model, asked.input) if isinstance(asked.model, str | Path) else asked.model  # read once
    of_all = replace(asked, mode="train", batch=batch, model=model)
    ranked = price(plans, of_all, selector, single.config.stack().layers, rank=rank)
    if not len(ranked):  # what refuses them all says why
        plan_of(run_of(of_all, plans[0], selector))
    legal = len({*plans, *(each.plan for each in ranked.known)})  # cuts that are faster among them
    return PricedPlans(single, spaces[0].system, tuple(num_gpus), batch, legal, ranked, dollars, of_all)


def space_of(asked: Request, single: Run, count: int, batch: int, only: Mapping[str, tuple[Any, ...]]) -> Space:
    """Where plans of ``count`` GPUs are sought for a request, of which ``single`` is the run on one GPU."""
    system = _system(asked, single)
    if count > system.gpus_per_node and system.network is None:
        raise RequestError(f"--num-gpus {count}: {system.id} has no network; expected at most {system.gpus_per_node}")
    if "etp" in only and not single.config.experts:
        raise RequestError(f"--only etp={_values(only['etp'])}: {single.config.name} has no experts; leave it out")
    trains = single.work.engine.trains
    shards = (NO_SHARD, "zero1") if trains else (NO_SHARD, "zero2", "zero3", HSDP)
    schedules = (ONE_F_ONE_B, INTERLEAVED) if trains else (GPIPE, ONE_F_ONE_B, INTERLEAVED, BREADTH_FIRST)
    of_order = {value for value in only.get("schedule", ()) if value in SCHEDULES}
    # flash attention keeps no scores: where these alone run again, there is nothing that selective recomputation does
    framework = single.work.engine.training
    some = single.work.attention == "math" or (framework is not None and framework.keeps_products)
    recomputes = tuple(kind for kind in RECOMPUTES if kind != "selective" or some)
    return Space(
        single.config, system, count, batch, single.work.seq_len, tuple(only.get("shard", shards)),
        tuple(dict.fromkeys((*schedules, *of_order))), tuple(only.get("recompute", recomputes)), placed, only,
    )  # fmt: skip


def _system(asked: Request, single: Run) -> SystemSpec:
    if asked.system is None:
        return default_system(single.gpu)
    return asked.system if isinstance(asked.system, SystemSpec) else load_system(asked.system)


def _nothing(
    asked: Request, single: Run, num_gpus: Sequence[int], batch: int, only: Mapping[str, tuple[Any, ...]]
) -> str:
    """The one line for a request without a legal plan: the word that is held to what none has, or the nearest number of
    GPUs that has one."""
    held = ", ".join(f"{name} {' or '.join(map(str, values))}" for name, values in only.items())
    line = f"--num-gpus {' or '.join(map(str, num_gpus))} cannot split --global-batch {batch}"
    line += f" with {held}" if held else ""
    for name in only:
        rest = {other: values for other, values in only.items() if other != name}
        plans = [plan for count in num_gpus for plan in space_of(asked, single, count, batch, rest).plans()]
        if plans:
            has = sorted({plan.value(name) for plan in plans})
            return f"{line}; expected {name} {', '.join(_shown(value) for value in has)}"
    first = num_gpus[0]
    for count in sorted(range(max(1, first - NEAR), first + NEAR), key=lambda count: (abs(count - first), count)):
        try:
            near = next(space_of(asked, single, count, batch, only).plans(), None)
        except RequestError:  # more than the system has
            continue
        if near is not None:
            return f"{line}; nearest valid: --num-gpus {count}"
    return f"{line}; expected sizes that divide each other"


def neighbours(searched: PricedPlans, plan: ParallelPlan) -> tuple[tuple[str, Priced], ...]:
    """Plans that differ from ``plan`` in one word (and in dp, where a degree takes GPUs from it), with what changes,
    the best first."""
    near: list[tuple[str, Priced]] = []
    for candidate in searched.priced:
        other = candidate.plan
        if other == plan or other.num_gpus != plan.num_gpus:
            continue
        names = [name for name in plan.words if plan.words[name] != other.words[name]]
        moved = [name for name in names if name != "dp"]
        if len(moved) == 1:
            name = moved[0]
            near.append((f"{name} {_shown(plan.value(name))} -> {_shown(other.value(name))}", candidate))
    return tuple(near)


def _values(some: Sequence[object]) -> str:
    return ",".join(map(str, some))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) or "default"


def frontier(priced: Sequence[Priced]) -> tuple[Priced, ...]:
    """Of plans, those that no other beats in both step time and memory, the fastest first."""
    best: list[Priced] = []
    for candidate in sorted(priced, key=lambda each: (each.latency_s, each.memory_bytes)):
        if not best or candidate.memory_bytes < best[-1].memory_bytes:
            best.append(candidate)
    return tuple(best)
