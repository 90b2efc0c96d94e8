"""The words of `tilecast serve plan` become an answer: the best plans with their intervals, costs and simulations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from predictor.errors import RequestError
from predictor.files.records import dataclass, replace
from predictor.request.options import ALSO, ENERGY, MOST_BATCH, MOST_GPUS, NEVER, ONLY, SERVE_PLANS
from predictor.request.request import Request
from predictor.search.serving.energy import LOOKED_AT, DeploymentPower, power_of, ranking
from predictor.search.serving.enough import NothingMeets, enough_gpus, missed, shown
from predictor.search.serving.search import (
    SearchedDeployments,
    ServingPlan,
    Sla,
    concurrencies,
    search,
    waiting,
    with_rate,
)
from predictor.search.serving.simulation import Simulated, Simulation
from predictor.search.serving.space import Group, runs_of_groups, serving_engines
from predictor.search.serving.steady import FULL, closed_loop, prefill_rate
from predictor.search.serving.tables import GroupTimes, decode_run, prefill_run, step_facts, times_of
from predictor.serving.goals import GROWTH, SLOWER, service_facts
from predictor.simulate.breakdown import context_notes
from predictor.simulate.error_model import HOST, KERNELS, LATE, error_model
from predictor.simulate.odds import Outlook, faster


@dataclass(frozen=True, slots=True)
class ServingQuestion:
    """What is to be served, on what, how well. Seconds, tokens, requests/s; ``rate`` 0: as many as there can be.
    ``objective``: what plans are sorted by, "" as the search does it; ``power``: with what they draw."""

    request: Request
    num_gpus: int
    isl: int
    osl: int
    sla: Sla
    rate: float = 0.0
    min_gpus: bool = False
    executions: tuple[str, ...] = ()
    max_batch: int = MOST_BATCH
    disaggregated: str = ALSO
    top: int = 5  # chosen by hand, not from data: what fits a screen
    simulate: int = 0
    objective: str = ""
    power: bool = False

    def __post_init__(self) -> None:
        for name in ("num_gpus", "isl", "osl", "max_batch", "top", "simulate", "rate", "disaggregated"):
            SERVE_PLANS[name].check(getattr(self, name))
        if self.min_gpus and not self.rate:
            raise RequestError("--min-gpus: needs a load; expected --rate, in requests a second")
        known = serving_engines()
        for name in self.executions:
            if name not in known:
                raise RequestError(f"--execution {name} serves no requests; expected some of {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class Interval:
    """What is expected of the mean TTFT, and of the mean TPOT."""

    ttft: Outlook
    tpot: Outlook

    @property
    def ttft_s(self) -> tuple[float, float]:
        """Seconds that hold 80 % of what is measured."""
        return self.ttft.low_s, self.ttft.high_s

    @property
    def tpot_s(self) -> tuple[float, float]:
        """As ``ttft_s``."""
        return self.tpot.low_s, self.tpot.high_s


@dataclass(frozen=True, slots=True)
class RankedPlan:
    """A plan that meets the SLA, its interval (None without intervals), its simulation (None: not simulated), and what
    it draws, where that is asked for."""

    plan: ServingPlan
    interval: Interval | None = None
    simulated: Simulated | None = None
    power: DeploymentPower | None = None


@dataclass(frozen=True, slots=True)
class ServingAnswer:
    """``entries`` best first, none where nothing meets the SLA; ``found`` all that the search gave; ``refused``: groups
    in words that cannot be, and why; ``candidates`` groups that were looked at, ``held`` of which hold the model."""

    asked: ServingQuestion
    entries: tuple[RankedPlan, ...]
    found: SearchedDeployments
    refused: dict[str, str]
    candidates: int
    held: int

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of the requests beside their times."""
        run = self.entries[0].plan.times.run
        work = run.work.changed(mode="generate", seq_len=self.asked.isl, output_len=self.asked.osl, context_len=0)
        return context_notes(run.config, work)


def plan_serving(asked: ServingQuestion) -> ServingAnswer:
    """The plans for what is asked. NothingMeets, one line, where no group holds the model, or nothing meets the SLA."""
    tables = _GroupTables(asked)
    several = tables.up_to(asked.num_gpus)
    searched = _found(asked, several, asked.num_gpus)
    if searched is None or not searched.best:
        raise _nothing(asked, searched, tables)
    best = [with_rate(plan, asked.rate) for plan in searched.best]
    if asked.objective:
        first = LOOKED_AT if asked.objective == ENERGY else len(best)
        key = ranking(asked.objective, asked.rate, asked.min_gpus)
        best = [*sorted(best[:first], key=key), *best[first:]]
    drawn = asked.power or asked.objective == ENERGY
    entries = tuple(
        RankedPlan(plan, interval(plan), said, power_of(plan) if drawn else None)
        for plan, said in _simulated(asked, best)[: asked.top]
    )
    if not entries:
        raise RequestError("no plan can be simulated, as an SLA on a percentile has to be; expected one on the mean")
    return ServingAnswer(asked, entries, searched, tables.refused, tables.candidates, len(several))


class _GroupTables:
    """The steps of groups, each forecast once, whatever number of GPUs is looked at."""

    def __init__(self, asked: ServingQuestion) -> None:
        self.asked = asked
        self.refused: dict[str, str] = {}
        self.candidates = 0
        self._known: dict[Group, GroupTimes | None] = {}

    def up_to(self, gpus: int) -> list[GroupTimes]:
        """Of the groups of at most so many GPUs, those that hold the model and a request."""
        asked = self.asked
        request = replace(asked.request, context_len=asked.isl + asked.osl // 2)
        executions = asked.executions or serving_engines()
        groups, self.refused = runs_of_groups(request, executions, min(gpus, MOST_GPUS))
        self.candidates = len(groups) + len(self.refused)
        new = [(group, run) for group, run in groups if group not in self._known]
        self._known |= dict.fromkeys(group for group, _ in new)
        self._known |= {times.group: times for times in times_of(new, asked.isl, asked.osl, asked.max_batch)}
        return [times for group, _ in groups if (times := self._known[group]) is not None]


def _found(asked: ServingQuestion, several: Sequence[GroupTimes], gpus: int) -> SearchedDeployments | None:
    """What a search on so many GPUs finds; None where no group, or no pair of groups, has room there."""
    split, alone = asked.disaggregated != NEVER, asked.disaggregated == ONLY
    if not several:
        return None
    try:
        return search(several, gpus, asked.sla, asked.rate, asked.min_gpus, split, not alone)
    except RequestError:
        return None


def _nothing(asked: ServingQuestion, searched: SearchedDeployments | None, tables: _GroupTables) -> NothingMeets:
    """Why there is no plan, and what would do."""
    enough = enough_gpus(
        asked.num_gpus, MOST_GPUS, tables.up_to, lambda several, gpus: _found(asked, several, gpus), asked.sla,
        asked.rate,
    )  # fmt: skip
    if searched is None:
        line = _too_large(asked) if not tables.up_to(asked.num_gpus) else (
            f"--num-gpus {asked.num_gpus}: prefill and decode groups need more GPUs"
        )  # fmt: skip
        return NothingMeets(line, None, (), enough)
    limits = missed(searched.nearest, asked.sla, asked.rate)
    return NothingMeets(nothing_meets(asked, searched.nearest), searched.nearest, limits, enough)


def _simulated(asked: ServingQuestion, best: list[ServingPlan]) -> list[tuple[ServingPlan, Simulated | None]]:
    """The plans, the first few that can be with their simulation: those that it leaves within the SLA first, in the
    order of the search with the requests/s that they have then. Percentiles are of simulations alone: as many plans as
    are asked for have one then, and others are none."""
    done: list[tuple[ServingPlan, Simulated | None]] = []
    simulation = Simulation(asked.sla)
    strict = asked.sla.has_percentiles
    for plan in best[: max(asked.simulate, asked.top) if strict else asked.simulate]:
        done.append((plan, simulation.of(plan)) if asked.rate else simulation.settled(plan))
    rest: list[tuple[ServingPlan, Simulated | None]] = [
        (plan, None) for plan in best if not strict and not any(plan.same_layout(other) for other, _ in done)
    ]
    if strict:
        done = [checked for checked in done if checked[1] is not None]
    key = ranking(asked.objective, asked.rate, asked.min_gpus)
    late = [checked for checked in done if checked[1] is not None and not checked[1].meets(asked.sla)]
    fine = sorted(
        (checked for checked in done if checked not in late),
        key=lambda checked: key(checked[0]),
    )
    return [*fine, *rest, *late]


def interval(plan: ServingPlan) -> Interval | None:
    """How far its TTFT and TPOT may be off: TTFT as a step with a prompt, TPOT as decode steps and the steps of others'
    prompts among them, in a service (`predictor.serving.goals`)."""
    times, prompts = plan.times, plan.prefill or plan.times
    decode = step_facts(decode_run(times.run, times.isl, times.osl, plan.concurrency))
    read = step_facts(prefill_run(prompts.run, times.isl, 1))
    if decode is None or read is None:
        return None
    share = 0.0 if plan.prefill is not None else share_of_prompts(plan)
    mixed = {
        part: tuple((1.0 - share) * step + share * prompt for step, prompt in zip(pair, read.sizes[part], strict=True))
        for part, pair in decode.sizes.items()
        if part in (KERNELS, HOST, LATE)
    }
    experts = times.run.work.routing is not None
    known = (("ttft", read, plan.ttft_s), ("tpot", decode.without(**mixed), plan.tpot_s))
    ends = []
    for (name, step, seconds), grown in zip(known, growth(plan), strict=True):
        logs = error_model().ends_and_median(service_facts(step, name, grown, experts))
        low, median, high = (seconds * math.exp(end) for end in logs)
        ends.append(Outlook(low, median, high, times.run.gpu.id, times.run.work.execution))
    return Interval(*ends)


def growth(plan: ServingPlan) -> tuple[float, float]:
    """How many times as fast as its steps TTFT and TPOT grow: 1 where requests follow each other, more where so many
    come a second, since slower steps have more of them at a time: in a queue for prompts, where others decode."""
    if not plan.comes:
        return 1.0, 1.0
    slower = SLOWER[1]
    if plan.prefill is not None:
        reached, prompt_s = prefill_rate(plan.prefill)
        load = plan.comes / (reached * plan.prefill_replicas)
        if load * math.exp(slower) >= FULL:
            return GROWTH[1], 1.0
        now, then = (
            math.log(read_s + plan.hand_over_s + waiting(read_s, busy))
            for read_s, busy in ((prompt_s, load), (prompt_s * math.exp(slower), load * math.exp(slower)))
        )
        return float(np.clip((then - now) / slower, GROWTH[0], GROWTH[1])), 1.0
    steady = closed_loop(plan.times, concurrencies(plan.times.most))
    each = plan.comes / plan.replicas
    if each * math.exp(slower) > steady.rate.max():
        return GROWTH[1], GROWTH[1]
    rising = np.maximum.accumulate(steady.rate)
    times_s = steady.tpot_s if steady.tpot_s.all() else steady.ttft_s  # one token has no TPOT
    now, then = np.interp([each, each * math.exp(slower)], rising, np.log(times_s))
    grown = float(np.clip(1.0 + (then - now) / slower, GROWTH[0], GROWTH[1]))
    return grown, grown


def chances(asked: ServingQuestion, entry: RankedPlan) -> dict[str, float | None]:
    """How likely each limit is kept, None without one or without an interval, and ``sla``, how likely all are.

    A limit on a percentile is held against that of the simulation. TTFT and TPOT count as independent: on 320 measured
    rows the rank correlation of their errors, over their intervals, was 0.10 (`benchmarks/accuracy_intervals.py`).
    """
    chance_of: dict[str, float | None] = dict.fromkeys(("ttft", "tpot"))
    chance_of |= {
        name: None if outlook is None or value <= 0.0 else outlook.within(limit)
        for name, value, limit, outlook in _limits(asked, entry)
    }
    every = [chance for chance in chance_of.values() if chance is not None]
    return chance_of | {"sla": math.prod(every) if every else None}


def first_better(entries: Sequence[RankedPlan]) -> list[float | None]:
    """How likely the first plan makes more tokens a second a GPU than each: as likely as its TPOT is so much shorter.
    None of itself, and without intervals."""
    outlooks = [
        None if entry.interval is None or not entry.plan.tpot_s
        else entry.interval.tpot.times(1.0 / (entry.plan.tpot_s * entry.plan.tokens_per_s_per_gpu))
        for entry in entries
    ]  # fmt: skip
    first = next(iter(outlooks), None)
    if first is None:
        return [None] * len(outlooks)
    return [None, *(None if outlook is None else faster(first, outlook) for outlook in outlooks[1:])]


def share_of_prompts(plan: ServingPlan) -> float:
    """The part of a plan's TPOT that prompts of others take: what is above a decode step."""
    alone = float(plan.times.decode(np.array([plan.decoding]))[0])
    return max(0.0, 1.0 - alone / plan.tpot_s) if plan.tpot_s else 1.0


def nothing_meets(asked: ServingQuestion, nearest: ServingPlan) -> str:
    """The line that says how near one comes."""
    limits = [f"TTFT {shown(asked.sla.ttft_s)}", f"TPOT {shown(asked.sla.tpot_s)}"]
    if asked.rate:
        limits.append(f"{asked.rate:g} requests/s")
    at = f", {nearest.rate:.3g} requests/s" if asked.rate else ""
    return (
        f"no plan on {asked.num_gpus} {nearest.times.run.gpu.id} meets {' and '.join(limits)} with {asked.isl} +"
        f" {asked.osl} tokens; nearest: {nearest}: TTFT {shown(nearest.ttft_s)}, TPOT {shown(nearest.tpot_s)}{at}"
        f"; misses {' and '.join(map(str, missed(nearest, asked.sla, asked.rate)))}"
    )


def _too_large(asked: ServingQuestion) -> str:
    return (
        f"--num-gpus {asked.num_gpus}: {asked.request.model} and a request of {asked.isl + asked.osl} tokens do not"
        " fit; expected more GPUs, or a narrower --dtype"
    )


def cost_per_million(plan: ServingPlan, price: float) -> float:
    """Dollars for a million output tokens of the requests that come, at ``price`` dollars an hour of a GPU."""
    return price * plan.gpus / 3600.0 / (plan.served * plan.times.osl) * 1e6


def margins(asked: ServingQuestion, entry: RankedPlan) -> dict[str, tuple[float, float, float] | None]:
    """What is left of each limit, as a share of it: of the forecast, and of the ends of its interval (least, most).
    A limit on a percentile is held against that of the simulation."""
    margin_of: dict[str, tuple[float, float, float] | None] = dict.fromkeys(("ttft", "tpot"))
    for name, value, limit, outlook in _limits(asked, entry):
        low, high = (value, value) if outlook is None else (outlook.low_s, outlook.high_s)
        margin_of[name] = (1.0 - value / limit, 1.0 - high / limit, 1.0 - low / limit)
    return margin_of


def _limits(asked: ServingQuestion, entry: RankedPlan) -> Iterator[tuple[str, float, float, Outlook | None]]:
    """Of each limit that is asked for: its name, what is held against it, the limit, and the outlook of what is."""
    plan, simulated, sla = entry.plan, entry.simulated, asked.sla
    for place, (name, seconds, limit) in enumerate(
        (("ttft", plan.ttft_s, sla.ttft_s), ("tpot", plan.tpot_s, sla.tpot_s))
    ):
        if limit == math.inf:
            continue
        of_percentile = simulated is not None and getattr(sla, f"{name}_percentile")
        value = simulated.held_s[place] if simulated is not None and of_percentile else seconds
        outlook = None if entry.interval is None else getattr(entry.interval, name)
        yield name, value, limit, outlook.times(value / seconds) if outlook is not None and seconds else outlook


def best_of_each(entries: Sequence[ServingPlan]) -> tuple[ServingPlan | None, ServingPlan | None]:
    """The best plan whose groups do both, and the best disaggregated one."""
    both = next((plan for plan in entries if plan.prefill is None), None)
    return both, next((plan for plan in entries if plan.prefill is not None), None)
