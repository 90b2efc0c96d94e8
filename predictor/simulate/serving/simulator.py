"""Traffic through servers: the loop over arrivals and steps, and what came of every request."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence as Listed
from dataclasses import dataclass

import numpy as np

from predictor.engines.scheduling import Batching, Sequence
from predictor.errors import RequestError
from predictor.roofline import FloatArray
from predictor.run import Run
from predictor.simulate.serving.costs import Sizes, StepCosts
from predictor.simulate.serving.deployment import Deployment, Options, deploy
from predictor.simulate.serving.server import Moment, Rank, Server, Times
from predictor.simulate.serving.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Served:
    """What came of ``traffic`` on ``deployment``: per request, in its order, seconds from the first arrival on, each of
    shape (n,); how often each lost its pages, and tokens of its prompt that the cache had; ``moments`` of every server.
    ``tpot_s`` is nan where a request makes one token."""

    deployment: Deployment
    traffic: Traffic
    arrival_s: FloatArray
    scheduled_s: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    preempted_times: tuple[int, ...]
    found_tokens: tuple[int, ...]
    moments: tuple[tuple[Moment, ...], ...]

    @property
    def preempted(self) -> int:
        """How often a request lost its pages."""
        return sum(self.preempted_times)

    @property
    def ttft_s(self) -> FloatArray:
        """From arrival to the first token."""
        return self.first_s - self.arrival_s

    @property
    def latency_s(self) -> FloatArray:
        """From arrival to the last token."""
        return self.last_s - self.arrival_s

    @property
    def tpot_s(self) -> FloatArray:
        """Between tokens, on average over those after the first."""
        more = self.traffic.output_tokens - 1
        return np.where(more > 0, (self.last_s - self.first_s) / np.maximum(more, 1), np.nan)

    @property
    def span_s(self) -> float:
        """From the first arrival to the last token."""
        return float(self.last_s.max() - self.arrival_s.min())


class _Loop:
    """The arrivals that are to come, and who gets them."""

    def __init__(self, traffic: Traffic, servers: Listed[Server], times: dict[int, Times]) -> None:
        self.traffic, self.servers, self.times = traffic, servers, times
        self.coming: list[tuple[float, int]] = []
        self.next = 0
        if traffic.concurrency:
            for _ in range(min(traffic.concurrency, len(traffic))):
                self.ask(0.0)
        else:
            self.coming = [(float(at), i) for i, at in enumerate(traffic.arrival_s)]
            self.next = len(traffic)

    def ask(self, at_s: float) -> None:
        """A client of a closed loop sends its next request, if there are any."""
        if self.next < len(self.traffic):
            heapq.heappush(self.coming, (at_s, self.next))
            self.next += 1

    def done(self, at_s: float) -> None:
        """A request has ended."""
        if self.traffic.concurrency:
            self.ask(at_s)

    def run(self) -> None:
        """Until every request is done."""
        while True:
            working = [server for server in self.servers if not server.idle]
            first = min(working, key=lambda server: server.now, default=None)
            upcoming = self.coming[0][0] if self.coming else math.inf
            if first is None and not self.coming:
                return
            if first is None or upcoming <= first.now:
                self._arrive()
                continue
            others = min((server.now for server in working if server is not first), default=math.inf)
            # In a closed loop the end of another server's request is an arrival, too.
            first.step(min(upcoming, others) if self.traffic.concurrency else upcoming)

    def _arrive(self) -> None:
        at_s, index = heapq.heappop(self.coming)
        traffic = self.traffic
        one = Sequence(
            index, int(traffic.input_tokens[index]), int(traffic.output_tokens[index]), int(traffic.shared[index])
        )
        self.times[index] = Times(at_s)
        min(self.servers, key=lambda server: server.load).offer(one, at_s + traffic.turnaround_s)


def serve(run: Run, traffic: Traffic, options: Options | None = None, costs: StepCosts | None = None) -> Served:
    """``traffic`` served by a run in mode generate, whose lengths are not read.

    ``costs``: of an earlier call for the same run, options and sizes. RequestError where the server cannot serve it.
    """
    chosen = options or Options()
    longest = int((traffic.input_tokens + traffic.output_tokens).max())
    deployment = deploy(run, chosen, longest)
    _check(deployment, traffic)
    made = costs or costs_of(deployment, traffic)
    schedulers = [[deployment.batching() for _ in range(deployment.ranks)] for _ in range(chosen.replicas)]
    return through(schedulers, deployment, traffic, made)


def through(schedulers: Listed[Listed[Batching]], deployment: Deployment, traffic: Traffic, costs: StepCosts) -> Served:
    """``traffic`` through servers whose ranks have these schedulers, all of the kind of ``deployment``."""
    times: dict[int, Times] = {}
    servers = [
        Server(
            [Rank(batching) for batching in ranks], costs, deployment.ahead, lambda at_s: loop.done(at_s), times,
            deployment.options.tokens_a_step,
        )
        for ranks in schedulers
    ]  # fmt: skip
    loop = _Loop(traffic, servers, times)
    loop.run()
    rows = [times[i] for i in range(len(traffic))]

    def column(name: str) -> FloatArray:
        return np.array([getattr(row, name) for row in rows], dtype=np.float64)

    return Served(
        deployment, traffic, column("arrival_s"), column("scheduled_s"), column("first_s"), column("last_s"),
        tuple(row.preempted for row in rows), tuple(row.found for row in rows),
        tuple(tuple(server.moments) for server in servers),
    )  # fmt: skip


def costs_of(deployment: Deployment, traffic: Traffic) -> StepCosts:
    """The table of steps that ``traffic`` may meet there."""
    return StepCosts(deployment.run, sizes_of(deployment, traffic), deployment.captured)


def sizes_of(deployment: Deployment, traffic: Traffic) -> Sizes:
    """What ``traffic`` may make of a step there."""
    rules = deployment.rules
    longest = int((traffic.input_tokens + traffic.output_tokens).max())
    sequences = min(rules.sequences, len(traffic), deployment.pages, traffic.concurrency or len(traffic))
    width = 1 + deployment.options.drafts
    prompt = int(traffic.input_tokens.max())
    least = max(rules.tokens, prompt) if rules.chunks else max(min(rules.tokens, rules.prefill_tokens), prompt)
    tokens = max(2, least) + sequences * width
    prompts = tuple(np.unique(traffic.input_tokens).tolist())
    return Sizes(tokens, sequences, longest, prompts, deployment.options.drafts)


def _check(deployment: Deployment, traffic: Traffic) -> None:
    """RequestError for a prompt that its scheduler would never begin."""
    rules = deployment.rules
    longest = int(traffic.input_tokens.max())
    if not rules.chunks and longest > min(rules.tokens, rules.prefill_tokens):
        raise RequestError(
            f"a prompt of {longest:,} tokens: {deployment.run.work.engine.name} reads prompts whole and at most"
            f" {rules.tokens:,} tokens a step; expected --max-num-batched-tokens {longest} or more"
        )
