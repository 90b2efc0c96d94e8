"""The best few plans through the event simulation of `serve simulate`, one group of each.

Requests come as the plan has them: ``concurrency`` at a time, each followed by the next. Those that start it off are at
all points of their output, as they are in a steady state; means are of those that come after them, while as many are
still at work. Of a disaggregated plan, prompts come at random to one of their groups, and those that decode find theirs
in the cache.
"""

from __future__ import annotations

import numpy as np

from predictor.errors import TilecastError
from predictor.files.records import dataclass, replace
from predictor.ops.roofline import FloatArray
from predictor.request.run import Run
from predictor.search.serving.search import ServingPlan, Sla, at_concurrency
from predictor.search.serving.tables import GroupTimes
from predictor.serving.costs import StepCosts
from predictor.serving.deployment import Options, deploy
from predictor.serving.disaggregated import handed_ranks
from predictor.serving.simulator import Served, ServerPool, costs_of, serve, through
from predictor.serving.traffic import Traffic, arrivals

#: Requests that follow each of those that start a simulation, and prompts of one that has nothing else. Chosen by hand,
#: not from data: means of four rounds are within 1 % of those of sixteen.
ROUNDS, PROMPTS = 4, 400
#: Times that a plan which misses the SLA is simulated again with fewer requests. Chosen by hand, not from data.
RETRIES = 3


@dataclass(frozen=True, slots=True)
class Simulated:
    """What the event simulation says of a plan: means in seconds, output tokens/s of all GPUs, requests simulated; and
    the percentiles that the SLA names, None where it is of the mean."""

    ttft_s: float
    tpot_s: float
    tokens_per_s: float
    requests: int
    ttft_at_s: float | None = None
    tpot_at_s: float | None = None

    @property
    def held_s(self) -> tuple[float, float]:
        """Seconds of TTFT and TPOT that the SLA is for."""
        ttft_s, tpot_s = self.ttft_at_s, self.tpot_at_s
        return self.ttft_s if ttft_s is None else ttft_s, self.tpot_s if tpot_s is None else tpot_s

    def meets(self, sla: Sla) -> bool:
        """Whether they are within the SLA."""
        return not sla.missed(*self.held_s)


def percentile(values: FloatArray, percent: float) -> float | None:
    """That of the values which are numbers; None of 0 percent, or of none."""
    known = values[~np.isnan(values)]
    return float(np.percentile(known, percent)) if percent and len(known) else None


class Simulation:
    """One layout of groups, whose steps are forecast once, for several concurrencies."""

    def __init__(self, sla: Sla) -> None:
        self.sla = sla
        self._costs: dict[int, StepCosts] = {}

    def of(self, plan: ServingPlan) -> Simulated | None:
        """The simulation of one group of each kind; None where it cannot be run (a request that the engine would never
        begin, or that a lane of a pipeline cannot hold)."""
        try:
            return self._together(plan) if plan.prefill is None else self._apart(plan, plan.prefill)
        except TilecastError:
            return None

    def settled(self, plan: ServingPlan) -> tuple[ServingPlan, Simulated | None]:
        """The plan with its simulation; with fewer requests at a time where that misses the SLA by a little."""
        simulated = self.of(plan)
        for _ in range(RETRIES):
            if simulated is None or simulated.meets(self.sla) or plan.concurrency <= plan.group.dp:
                break
            ttft_s, tpot_s = simulated.held_s
            over = max(ttft_s / self.sla.ttft_s, tpot_s / self.sla.tpot_s)
            fewer = min(plan.concurrency - 1, int(plan.concurrency * max(0.7, 0.995 / over)))
            plan = at_concurrency(plan, fewer)
            simulated = self.of(plan)
        return plan, simulated

    def _together(self, plan: ServingPlan) -> Simulated:
        each = plan.concurrency
        served = self._served(plan.times, _closed(plan.times, each))
        settled = slice(each, len(served.traffic) - each)
        tpot = float(np.nanmean(served.tpot_s[settled])) if plan.times.osl > 1 else 0.0
        rate = each / float(served.latency_s[settled].mean()) * plan.replicas
        ttft = served.ttft_s[settled]
        return Simulated(
            float(ttft.mean()), tpot, rate * plan.times.osl, len(served.traffic),
            percentile(ttft, self.sla.ttft_percentile), percentile(served.tpot_s[settled], self.sla.tpot_percentile),
        )  # fmt: skip

    def _apart(self, plan: ServingPlan, prompts: GroupTimes) -> Simulated:
        each, osl = plan.concurrency, plan.times.osl
        decoded = self._served(plan.times, _closed(plan.times, each), handed=True)
        settled = slice(each, len(decoded.traffic) - each)
        tpot = float(decoded.latency_s[settled].mean()) / (osl - 1)
        at = arrivals(PROMPTS, plan.rate / plan.prefill_replicas)
        read = self._served(prompts, _traffic(prompts, PROMPTS, 1, at))
        rate = min(each / (tpot * (osl - 1)) * plan.replicas, plan.rate)
        ttft = float(read.ttft_s.mean()) + plan.hand_over_s
        ttft_at = percentile(read.ttft_s + plan.hand_over_s, self.sla.ttft_percentile)
        tpot_at = percentile(decoded.latency_s[settled] / (osl - 1), self.sla.tpot_percentile)
        return Simulated(ttft, tpot, rate * osl, len(decoded.traffic) + PROMPTS, ttft_at, tpot_at)

    def _served(self, times: GroupTimes, traffic: Traffic, handed: bool = False) -> Served:
        """``traffic`` on one group; ``handed``: what it reads is in its cache when it comes."""
        run = _run(times)
        deployment = deploy(run, Options(prefix_cache=False), times.isl + times.osl)
        costs = self._costs.get(id(times))
        if costs is None:
            costs = self._costs[id(times)] = costs_of(deployment, traffic)
        if not handed:
            return serve(run, traffic, deployment.options, costs)
        return through(ServerPool(deployment, costs, [handed_ranks(deployment)]), traffic)


def _run(times: GroupTimes) -> Run:
    work = times.run.work.changed(
        mode="generate", seq_len=times.isl, output_len=times.osl, context_len=0,
        batch=times.run.work.parallelism.dp,
    )  # fmt: skip
    return replace(times.run, work=work)


def _closed(times: GroupTimes, each: int) -> Traffic:
    """``each`` requests at a time; the first of them at all points of their output."""
    traffic = _traffic(times, each * (1 + ROUNDS), times.osl, np.zeros(0), each)
    share = (np.arange(each) + 0.5) / each
    traffic.output_tokens[:each] = np.maximum(min(2, times.osl), np.round(share * times.osl)).astype(np.int64)
    return traffic


def _traffic(times: GroupTimes, count: int, osl: int, at_s: FloatArray, concurrency: int = 0) -> Traffic:
    inputs = np.full(count, times.isl, dtype=np.int64)
    return Traffic(at_s, inputs, np.full(count, osl, dtype=np.int64), np.zeros_like(inputs), concurrency)
