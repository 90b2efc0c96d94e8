"""An engine that takes steps: its scheduler makes a batch, the step takes its time, tokens come out.

Steps of decodes alone are taken many at once, up to the next event: a request is done, one that waits is looked at
again, pages run out, or the clock of the traffic is reached. An engine that schedules ahead makes the batch of a step
while the one before it runs, so that it knows of the requests that had come when that one began.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from predictor.engines.scheduling import Batching, Sequence
from predictor.simulate.serving.costs import StepCosts

#: Steps that are taken at once at most: chosen by hand, not from data, a guard for memory.
_AT_ONCE = 4096


@dataclass(slots=True)
class Moment:
    """The state of a server from ``start_s`` on, over ``steps`` steps alike: what ran, what waited, what was held."""

    start_s: float
    end_s: float
    steps: int
    decoding: int
    chunk_tokens: int
    waiting: int
    pages: int


@dataclass(slots=True)
class Times:
    """When what happened to a request, in seconds, nan where it did not; how often it lost its pages, and tokens of its
    prompt that the cache had."""

    arrival_s: float
    scheduled_s: float = math.nan
    first_s: float = math.nan
    last_s: float = math.nan
    preempted: int = 0
    found: int = 0


@dataclass(slots=True)
class Server:
    """One engine: ``batching`` with its pages, ``costs`` of its steps. ``ahead``: it schedules a step ahead;
    ``tokens_a_step``: what a decode step gives a sequence on average. ``done`` is told of every request that ends."""

    batching: Batching
    costs: StepCosts
    ahead: bool
    done: Callable[[Sequence, float], None]
    times: dict[int, Times]
    tokens_a_step: float = 1.0
    now: float = 0.0
    before: float = -math.inf
    steps: int = 0
    busy_s: float = 0.0
    inbox: deque[tuple[float, Sequence]] = field(default_factory=deque)
    moments: list[Moment] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        """Nothing to do."""
        return not (self.inbox or self.batching.waiting or self.batching.running)

    @property
    def load(self) -> int:
        """What a router goes by: those who wait count four times, as vLLM's does (v1/engine/core_client.py, 0.14;
        unverified)."""
        return 4 * (len(self.inbox) + len(self.batching.waiting)) + self.batching.running

    def offer(self, one: Sequence, arrival_s: float) -> None:
        """A request has come."""
        if self.idle and arrival_s > self.now:
            self.now, self.before = arrival_s, -math.inf
        self.inbox.append((arrival_s, one))

    def step(self, until_s: float) -> None:
        """Take one step, or several of decodes alone that all begin before ``until_s``."""
        batching = self.batching
        resting = not (batching.waiting or batching.running)
        seen = self.now if resting or not self.ahead else self.before
        while self.inbox and self.inbox[0][0] <= seen:
            batching.waiting.append(self.inbox.popleft()[1])
        batch = batching.batch()
        for one in batch.preempted:
            self.times[one.index].preempted += 1
        if not batch.chunks and not batch.decodes:
            self._wait()
            return
        for one, tokens in batch.chunks:
            entry = self.times[one.index]
            if math.isnan(entry.scheduled_s):
                entry.scheduled_s = self.now
                entry.found = one.computed - tokens
        if batch.chunks:
            self._mixed(batch.chunks, batch.decodes)
        else:
            self._decodes(until_s)

    def _wait(self) -> None:
        """Nothing can run before the next request is seen."""
        if not self.inbox:
            raise RuntimeError("the scheduler runs nothing though requests wait")
        self.now = max(self.now, self.inbox[0][0])
        self.before = self.now

    def _mixed(self, chunks: list[tuple[Sequence, int]], decodes: bool) -> None:
        batching = self.batching
        n = len(batching.decoding) if decodes else 0
        ended = [one for one, _ in chunks if not one.left]
        seconds = self.costs.mixed(
            [(tokens, one.computed - tokens) for one, tokens in chunks], n, batching.context if n else 0, len(ended)
        )
        self._passed(seconds, 1, n, sum(tokens for _, tokens in chunks))
        if n:
            self._tick(1)
        for one in ended:
            entry = self.times[one.index]
            if math.isnan(entry.first_s):
                entry.first_s = self.now
            if not batching.finish_prompt(one):
                self._finished(one)

    def _decodes(self, until_s: float) -> None:
        batching = self.batching
        n, soonest = len(batching.decoding), batching.soonest()
        assert soonest is not None
        most = min(self._steps_to(soonest.ends - batching.clock), batching.patience(), _AT_ONCE)
        if self.inbox:
            most = 1
        if most > 1 and not batching.sets_aside:  # ticks that the free pages last
            growth = batching.pages.growth(batching.clock, self._ticks(most))
            lasting = int(np.searchsorted(growth, batching.pages.free, side="right"))
            if lasting < len(growth):
                most = max(1, min(most, int(lasting / self.tokens_a_step) - batching.width + 1))
        ticks = np.floor(self.tokens_a_step * (self.steps + np.arange(most))) - math.floor(
            self.tokens_a_step * self.steps
        )
        seconds = self.costs.decode(n, batching.context + n * ticks)
        begins = self.now + np.cumsum(seconds) - seconds
        count = max(1, int(np.searchsorted(begins, until_s)))
        if count > 1:
            self.before = float(begins[count - 1])
            self._passed(float(seconds[:count].sum()), count, n, 0, self.before)
        else:
            self._passed(float(seconds[0]), 1, n, 0)
        self._tick(count)

    def _steps_to(self, ticks: int) -> int:
        """Steps in which the clock goes on by ``ticks``."""
        each, base = self.tokens_a_step, math.floor(self.tokens_a_step * self.steps)
        steps = max(1, math.ceil((ticks + base) / each - self.steps - 1e-9))
        return steps

    def _ticks(self, steps: int) -> int:
        """What the clock goes on in so many steps."""
        each = self.tokens_a_step
        return math.floor(each * (self.steps + steps) + 1e-9) - math.floor(each * self.steps + 1e-9)

    def _passed(self, seconds: float, steps: int, decoding: int, tokens: int, before: float | None = None) -> None:
        batching = self.batching
        held = batching.pages.total - batching.pages.free
        waiting = len(batching.waiting) + len(self.inbox)
        self.moments.append(Moment(self.now, self.now + seconds, steps, decoding, tokens, waiting, held))
        self.before = self.now if before is None else before
        self.now += seconds
        self.busy_s += seconds

    def _tick(self, steps: int) -> None:
        """The tokens of ``steps`` decode steps; who has made all of them leaves."""
        batching = self.batching
        batching.tick(self._ticks(steps))
        batching.steps += steps
        self.steps += steps
        while (one := batching.soonest()) is not None and one.ends <= batching.clock:
            batching.leave(one)
            self._finished(one)

    def _finished(self, one: Sequence) -> None:
        self.times[one.index].last_s = self.now
        self.done(one, self.now)
