"""Traffic through servers: the loop over arrivals and steps, and what came of every request."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence as Listed

import numpy as np

from predictor.engines.scheduling import Batching, Sequence
from predictor.errors import RequestError
from predictor.files.records import dataclass
from predictor.ops.roofline import FloatArray
from predictor.request.run import Run
from predictor.serving.costs import StepCosts
from predictor.serving.deployment import Deployment, Options, deploy
from predictor.serving.one_rank import OneRank
from predictor.serving.server import Moment, RequestTimes, Server, ServerRank
from predictor.serving.step_tables import Sizes
from predictor.serving.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Served:
    """What came of ``traffic`` on ``deployment``: per request, in its order, seconds from the first arrival on, each of
    shape (n,); how often each lost its pages, and tokens of its prompt that the cache had; ``moments`` of every server.
    ``tpot_s`` is nan where a request makes one token.

    Where other servers read the prompts: ``prompts``, their deployment, their moments, and ``moved_s``, what a cache
    took to come over on average.
    """

    deployment: Deployment
    traffic: Traffic
    arrival_s: FloatArray
    scheduled_s: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    preempted_times: tuple[int, ...]
    found_tokens: tuple[int, ...]
    moments: tuple[tuple[Moment, ...], ...]
    prompts: Deployment | None = None
    prompt_moments: tuple[tuple[Moment, ...], ...] = ()
    moved_s: float = 0.0

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


@dataclass(frozen=True, slots=True)
class ServerPool:
    """Servers alike: a scheduler a rank of each."""

    deployment: Deployment
    costs: StepCosts
    schedulers: Listed[Listed[Batching]]


class _Loop:
    """The arrivals that are to come, and who gets them.

    Of two pools the first reads prompts, and a request comes to the second ``moved_s`` after that, by request.
    """

    def __init__(self, traffic: Traffic, pools: Listed[ServerPool], moved_s: FloatArray) -> None:
        self.traffic, self.moved_s = traffic, moved_s
        self.prompts, self.outputs = traffic.input_tokens.tolist(), traffic.output_tokens.tolist()
        self.shared = traffic.shared.tolist()
        self.times: dict[int, RequestTimes] = {}
        self.pools = [[self._server(pool, ranks) for ranks in pool.schedulers] for pool in pools]
        self.servers = [server for pool in self.pools for server in pool]
        self.coming: list[tuple[float, int, int]] = []  # when, which request, to which pool
        self.next = 0
        if traffic.concurrency:
            for _ in range(min(traffic.concurrency, len(traffic))):
                self.ask(0.0)
        else:
            self.coming = [(float(at), i, 0) for i, at in enumerate(traffic.arrival_s)]
            self.next = len(traffic)
        self.handed: set[int] = set()

    def _server(self, pool: ServerPool, ranks: Listed[Batching]) -> Server:
        ahead, each = pool.deployment.ahead, pool.deployment.options.tokens_a_step
        lanes = pool.deployment.run.work.parallelism.pp
        return Server(
            [ServerRank(batching) for batching in ranks], pool.costs, ahead, self.done, self.times, each, lanes
        )

    def ask(self, at_s: float) -> None:
        """A client of a closed loop sends its next request, if there are any."""
        if self.next < len(self.traffic):
            heapq.heappush(self.coming, (at_s, self.next, 0))
            self.next += 1

    def done(self, index: int, at_s: float) -> None:
        """A request has ended, or its prompt has been read."""
        if len(self.pools) > 1 and index not in self.handed and self.outputs[index] > 1:
            self.handed.add(index)
            there = self.times[index].first_s = at_s + float(self.moved_s[index])
            heapq.heappush(self.coming, (there, index, 1))
        elif self.traffic.concurrency:
            self.ask(at_s)

    def run(self) -> None:
        """Until every request is done."""
        while True:
            first: Server | None = None  # whose clock is behind those of the others
            others = math.inf
            for server in self.servers:
                if not server.idle and (first is None or server.now < first.now):
                    others = others if first is None else first.now
                    first = server
                elif not server.idle:
                    others = min(others, server.now)
            upcoming = self.coming[0][0] if self.coming else math.inf
            if first is None and not self.coming:
                return
            if first is None or upcoming <= first.now:
                self._arrive()
                continue
            # In a closed loop the end of another server's request is an arrival, and so is a prompt that was read.
            bound = self.traffic.concurrency or len(self.pools) > 1
            first.step(min(upcoming, others) if bound else upcoming)

    def _arrive(self) -> None:
        at_s, index, place = heapq.heappop(self.coming)
        traffic = self.traffic
        whole = place == len(self.pools) - 1
        sequence = Sequence(
            index, self.prompts[index], self.outputs[index] if whole else 1, self.shared[index],
            blocks=traffic.blocks[index] if traffic.blocks else (),
        )  # fmt: skip
        if not place:
            self.times[index] = RequestTimes(at_s)
        seen = at_s if place else at_s + traffic.on_its_way_s(index)
        pool = self.pools[place]
        (pool[0] if len(pool) == 1 else min(pool, key=lambda server: server.load)).offer(sequence, seen)


def serve(run: Run, traffic: Traffic, options: Options | None = None, costs: StepCosts | None = None) -> Served:
    """``traffic`` served by a run in mode generate, whose lengths are not read.

    ``costs``: of an earlier call for the same run, options and sizes. RequestError where the server cannot serve it.
    """
    chosen = options or Options()
    deployment = deployed(run, traffic, chosen)
    made = costs or costs_of(deployment, traffic)
    schedulers = [[deployment.batching() for _ in range(deployment.ranks)] for _ in range(chosen.replicas)]
    return through(ServerPool(deployment, made, schedulers), traffic)


def deployed(run: Run, traffic: Traffic, options: Options) -> Deployment:
    """The server of ``run`` for ``traffic``; RequestError where it cannot serve it."""
    deployment = deploy(run, options, int((traffic.input_tokens + traffic.output_tokens).max()))
    _check(deployment, traffic)
    return deployment


def through(
    pool: ServerPool, traffic: Traffic, prompts: ServerPool | None = None, moved_s: FloatArray | None = None
) -> Served:
    """``traffic`` through the servers of a pool, after those of ``prompts``, if there are any, from where each request
    takes ``moved_s`` (n,)."""
    moved = np.zeros(len(traffic)) if moved_s is None else moved_s
    if prompts is None and (only := _only(pool)) is not None:
        alone = OneRank(only, pool.costs, pool.deployment.ahead, traffic)
        alone.run()
        return Served(
            pool.deployment, traffic, np.array(alone.arrival_s), np.array(alone.scheduled_s), np.array(alone.first_s),
            np.array(alone.last_s), tuple(alone.preempted), tuple(alone.cached), (alone.moments,),
            moved_s=float(moved.mean()),
        )  # fmt: skip
    loop = _Loop(traffic, [pool] if prompts is None else [prompts, pool], moved)
    loop.run()
    rows = [loop.times[i] for i in range(len(traffic))]

    def column(name: str) -> FloatArray:
        return np.array([getattr(row, name) for row in rows], dtype=np.float64)

    *before, moments = (tuple(tuple(server.moments) for server in servers) for servers in loop.pools)
    return Served(
        pool.deployment, traffic, column("arrival_s"), column("scheduled_s"), column("first_s"), column("last_s"),
        tuple(row.preempted for row in rows), tuple(row.cached for row in rows), moments,
        prompts.deployment if prompts else None, before[0] if before else (), float(moved.mean()),
    )  # fmt: skip


def _only(pool: ServerPool) -> Batching | None:
    """The scheduler of a pool that has one, of a server without drafts, which looks for requests in every step."""
    options = pool.deployment.options
    if len(pool.schedulers) > 1 or len(pool.schedulers[0]) > 1 or options.drafts or options.receive_every > 1:
        return None
    return pool.schedulers[0][0]


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
