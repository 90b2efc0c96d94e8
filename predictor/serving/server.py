"""An engine that takes steps: its schedulers make a batch, the step takes its time, tokens come out.

Steps of decodes alone are taken many at once, up to the next event: a request is done, one that waits is looked at
again, pages run out, or the clock of the traffic is reached. An engine that schedules ahead makes the batch of a step
while the one before it runs, so that it knows of the requests that had come when that one began. Ranks of attention
data parallelism have requests and pages of their own and take every step together, as wide as the widest of them.

A pipeline has as many lanes as stages, each with a part of the requests and of the pages, whose batches follow each
other through the stages: a round of all takes the slowest stage once for each, or the way of one through all of them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import NamedTuple

import numpy as np

from predictor.engines import scheduling
from predictor.engines.scheduling import Batching, StepBatch
from predictor.engines.vintage import PROMPTS_COUNT
from predictor.files.records import dataclass
from predictor.ops.roofline import FloatArray
from predictor.serving.costs import StepCosts

#: Steps that are taken at once at most: chosen by hand, not from data, a guard for memory.
AT_ONCE = 4096
#: Of these, steps whose times are worked out one by one where a request comes soon; then as many in arrays as its
#: square, and times as many again: chosen by hand, not from data; no figure depends on it. NumPy adds up to 7 numbers
#: in their order, as that loop does.
FIRST = 7
#: What a scheduler with nothing to choose makes, of which nobody changes anything.
_DECODES = StepBatch(decodes=True)
#: What a request that waits counts for a router, over one that runs. Source: vLLM 0.14 v1/engine/core_client.py
#: (unverified), which sends a request to the rank with the least of it.
_WAITING_COUNTS = 4


class Moment(NamedTuple):
    """A server's ``steps`` steps alike, from ``start_s`` to ``end_s``: what ran on all ranks, waited, and was held."""

    start_s: float
    end_s: float
    steps: int
    decoding: int
    chunk_tokens: int
    waiting: int
    pages: int


@dataclass(slots=True)
class RequestTimes:
    """When what happened to a request, in seconds, nan where it did not; how often it lost its pages, and tokens of its
    prompt that the cache had."""

    arrival_s: float
    scheduled_s: float = math.nan
    first_s: float = math.nan
    last_s: float = math.nan
    preempted: int = 0
    cached: int = 0


@dataclass(slots=True)
class ServerRank:
    """A scheduler with its pages, and requests that it has not seen yet."""

    batching: Batching
    inbox: deque[tuple[float, scheduling.Sequence]] = field(default_factory=deque)

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self.inbox) + len(self.batching.waiting)

    @property
    def idle(self) -> bool:
        """Nothing to do."""
        return not (self.waiting or self.batching.running)

    @property
    def load(self) -> int:
        """What a router goes by."""
        return _WAITING_COUNTS * self.waiting + self.batching.running


@dataclass(slots=True)
class Server:
    """One engine: its ``ranks``, so many ``lanes`` of a pipeline after each other, ``costs`` of its steps.

    ``ahead``: it schedules a step ahead; ``tokens_a_step``: what a decode step gives a sequence on average. ``done`` is
    told of every request that ends. ``unread``: decode steps since it last looked for requests.
    """

    ranks: Sequence[ServerRank]
    costs: StepCosts
    ahead: bool
    done: Callable[[int, float], None]
    times: dict[int, RequestTimes]
    tokens_a_step: float = 1.0
    lanes: int = 1
    now: float = 0.0
    before: float = -math.inf
    steps: int = 0
    busy_s: float = 0.0
    unread: int = PROMPTS_COUNT
    moments: list[Moment] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        """Nothing to do."""
        return self.ranks[0].idle if len(self.ranks) == 1 else all(rank.idle for rank in self.ranks)

    @property
    def load(self) -> int:
        """What a router goes by."""
        return sum(rank.load for rank in self.ranks)

    def offer(self, sequence: scheduling.Sequence, arrival_s: float) -> None:
        """A request has come."""
        if self.idle and arrival_s > self.now:
            self.now, self.before = arrival_s, -math.inf
        least, load = self.ranks[0], math.inf
        for rank in self.ranks if len(self.ranks) > 1 else ():
            its_load = rank.load
            if its_load < load:
                least, load = rank, its_load
        least.inbox.append((arrival_s, sequence))

    def step(self, until_s: float) -> None:
        """Take one step, or several of decodes alone that all begin before ``until_s``."""
        held = (rank.batching for rank in self.ranks)
        resting = not any(each.waiting or each.begun or each.decoding for each in held)
        seen = self.now if resting or not self.ahead else self.before
        if not resting and self.unread < self._receive_every:
            seen = -math.inf
        else:
            self.unread = 0
        batches = [self._batch(rank, seen) for rank in self.ranks]
        asked = [batch for batch in batches if batch is not _DECODES]
        if any(batch.chunks for batch in asked):
            self._mixed(batches)
        elif len(asked) < len(batches) or any(batch.decodes for batch in asked):
            self._decodes(until_s)
        else:
            self._wait()

    @property
    def _receive_every(self) -> int:
        return self.ranks[0].batching.rules.receive_every

    def _batch(self, rank: ServerRank, seen_s: float) -> StepBatch:
        batching, inbox = rank.batching, rank.inbox
        while inbox and inbox[0][0] <= seen_s:
            batching.waiting.append(inbox.popleft()[1])
        if batching.settled:
            return _DECODES
        batch = batching.batch()
        for sequence in batch.preempted:
            self.times[sequence.index].preempted += 1
        for sequence, tokens in batch.chunks:
            entry = self.times[sequence.index]
            if math.isnan(entry.scheduled_s):
                entry.scheduled_s = self.now
                entry.cached = sequence.computed - tokens
        return batch

    def _wait(self) -> None:
        """Nothing can run before the next request is seen."""
        coming = [rank.inbox[0][0] for rank in self.ranks if rank.inbox]
        if not coming:
            raise RuntimeError("the scheduler runs nothing though requests wait")
        self.now = self.before = max(self.now, min(coming))

    def _mixed(self, batches: Sequence[StepBatch]) -> None:
        """A step in which a rank reads prompts."""
        work = []
        for rank, batch in zip(self.ranks, batches, strict=True):
            n = len(rank.batching.decoding) if batch.decodes else 0
            chunks = [(tokens, sequence.computed - tokens) for sequence, tokens in batch.chunks]
            work.append(
                (chunks, n, rank.batching.context if n else 0, sum(not sequence.left for sequence, _ in batch.chunks))
            )
        read = [sum(tokens for tokens, _ in chunks) for chunks, *_ in work]
        width = self.costs.width
        tokens = [count + n * width for count, (_, n, *_) in zip(read, work, strict=True)]
        widest = max(tokens)
        means = [sum(tokens[lane :: self.lanes]) * self.lanes / len(tokens) for lane in range(self.lanes)]
        steps = [
            self.costs.mixed(*each, widest, means[place % self.lanes], self.ranks[place].batching.spread)
            if each[0] or each[1]
            else (0.0, 0.0)
            for place, each in enumerate(work)
        ]
        seconds = max(through for through, _ in steps)
        for first in range(0, len(steps), self.lanes) if self.lanes > 1 else ():
            seconds = max(seconds, sum(held for _, held in steps[first : first + self.lanes]))
        self.unread += PROMPTS_COUNT
        self._passed(seconds, 1, sum(n for _, n, *_ in work), sum(read))
        self._tick(1, [bool(n) for _, n, *_ in work])
        for rank, batch in zip(self.ranks, batches, strict=True):
            for sequence, _ in batch.chunks:
                if sequence.left:
                    continue
                entry = self.times[sequence.index]
                if math.isnan(entry.first_s):
                    entry.first_s = self.now
                if not rank.batching.finish_prompt(sequence):
                    self._finished(sequence)

    def _decodes(self, until_s: float) -> None:
        """Steps of decodes alone, of all ranks that have some."""
        running = [rank.batching for rank in self.ranks if rank.batching.decoding]
        most = self._lasting_of(running)
        if len(self.ranks) == 1 and self.lanes == 1 and until_s < math.inf and self._few(running[0], most, until_s):
            return
        counts = [len(each.decoding) for each in running]
        steps = most if until_s == math.inf else min(most, FIRST * FIRST)
        while True:  # as many steps as may begin before ``until_s``: a few, where requests come all the time
            seconds = self._seconds_of(running, counts, steps)
            begins = self.now + np.cumsum(seconds) - seconds
            if steps == most or begins[-1] >= until_s:
                break
            steps = min(most, FIRST * steps)
        count = max(1, int(begins.searchsorted(until_s)))
        self._unread(count)
        self._passed(float(np.add.reduce(seconds[:count])), count, sum(counts), 0, float(begins[count - 1]))
        self._tick(count, [True] * len(self.ranks))

    def _unread(self, steps: int) -> None:
        """So many decode steps later; whenever it looked in between, nobody had come."""
        every = self._receive_every
        self.unread = (self.unread + steps - 1) % every + 1

    def _few(self, batching: Batching, most: int, until_s: float) -> bool:
        """At most `FIRST` steps, each by itself: arrays cost more than so few. Whether ``until_s`` came in them."""
        n, context, total, last = len(batching.decoding), batching.context, 0.0, self.now
        uneven_s = self._uneven_s(batching)
        for count in range(most):
            seconds = self.costs.decode_step(n, context + n * self._ticks_in(count), uneven_s)
            begins = self.now + (total + seconds) - seconds
            if count and begins >= until_s:
                self._unread(count)
                self._passed(total, count, n, 0, last)
                self._tick(count, [True])
                return True
            if count == FIRST:
                return False
            total, last = total + seconds, begins
        self._unread(most)
        self._passed(total, most, n, 0, last)
        self._tick(most, [True])
        return True

    def _seconds_of(self, running: Sequence[Batching], counts: Sequence[int], steps: int) -> FloatArray:
        """What each of the next ``steps`` steps of decodes alone takes, of shape (steps,); ``counts``: of sequences
        that decode on each rank."""
        ticks = self._ticks(np.arange(float(steps)))
        if len(self.ranks) == 1:
            contexts = running[0].context + counts[0] * ticks
            return self.costs.decode(counts[0], contexts, self._uneven_s(running[0]))[0]
        return self._round(running, *self._steps_of_ranks(running, max(counts), ticks))

    def _steps_of_ranks(
        self, running: Sequence[Batching], widest: int, ticks: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Of the ranks that decode, what their steps take, and hold up the slowest stage; each of shape
        (running, steps), from one call for all of them."""
        counts = [len(each.decoding) for each in running]
        first = np.array([each.bases + n * each.clock for each, n in zip(running, counts, strict=True)], dtype=float)
        contexts = first[:, None] + np.array(counts, dtype=float)[:, None] * ticks
        uneven_s = np.repeat([self._uneven_s(each) for each in running], len(ticks))
        through, held = self.costs.decode(widest, contexts.ravel(), uneven_s)
        return through.reshape(contexts.shape), held.reshape(contexts.shape)

    def _uneven_s(self, batching: Batching) -> float:
        """What unequal lengths add to a call of the decodes of a rank alone."""
        each_s = self.costs.uneven_s(len(batching.decoding))
        return each_s * batching.spread if each_s else 0.0

    def _round(self, running: Sequence[Batching], through: FloatArray, held: FloatArray) -> FloatArray:
        """Seconds in which every rank takes a step, of shape (steps,), of (running, steps): the lanes of a pipeline one
        behind the other, others together."""
        longest: FloatArray = np.maximum.reduce(through)
        if self.lanes > 1:
            by_rank = np.zeros((len(self.ranks), held.shape[1]))  # those that do not decode hold nobody up
            by_rank[[bool(rank.batching.decoding) for rank in self.ranks]] = held
            for first in range(0, len(by_rank), self.lanes):
                longest = np.maximum(longest, np.add.reduce(by_rank[first : first + self.lanes]))
        return longest

    def _lasting_of(self, running: Sequence[Batching]) -> int:
        """Decode steps up to the next event of any rank."""
        most = AT_ONCE
        for rank in self.ranks:
            if rank.inbox:
                most = max(1, self._receive_every - self.unread)
                if most == 1:
                    return 1
        for each in running:
            most = min(most, self._lasting(each, most))
            if most == 1:
                break
        return most

    def _lasting(self, batching: Batching, most: int) -> int:
        """Decode steps up to the next event of a rank, at most so many."""
        soonest = batching.soonest()
        assert soonest is not None  # it decodes
        most = min(self._steps_to(soonest.ends - batching.clock), batching.patience(), most)
        if most > 1 and not batching.sets_aside:  # ticks that the free pages last
            ticks = self._ticks_in(most)
            if batching.pages.grown(batching.clock, ticks) > batching.pages.free:
                growth = batching.pages.growth(batching.clock, ticks)
                lasting = int(np.searchsorted(growth, batching.pages.free, side="right"))
                most = max(1, min(most, int(lasting / self.tokens_a_step) - batching.width + 1))
        return most

    def _steps_to(self, ticks: int) -> int:
        """Steps in which the clock goes on by ``ticks``."""
        base = math.floor(self.tokens_a_step * self.steps + 1e-9)
        return max(1, math.ceil((ticks + base) / self.tokens_a_step - self.steps - 1e-9))

    def _ticks(self, steps: FloatArray) -> FloatArray:
        """What the clock goes on in so many steps."""
        each = self.tokens_a_step
        if each == 1.0:
            return steps
        ticks: FloatArray = np.floor(each * (self.steps + steps) + 1e-9) - math.floor(each * self.steps + 1e-9)
        return ticks

    def _ticks_in(self, steps: int) -> int:
        """`_ticks` of one number of steps."""
        each = self.tokens_a_step
        return math.floor(each * (self.steps + steps) + 1e-9) - math.floor(each * self.steps + 1e-9)

    def _passed(self, seconds: float, steps: int, decoding: int, tokens: int, last_s: float | None = None) -> None:
        """Time of steps; the last of them began at ``last_s``."""
        held = waiting = 0
        for rank in self.ranks:
            batching = rank.batching
            held += batching.pages.total - batching.pages.free
            waiting += len(rank.inbox) + len(batching.waiting)
        self.moments.append(Moment(self.now, self.now + seconds, steps, decoding, tokens, waiting, held))
        self.before = self.now if last_s is None else last_s
        self.now += seconds
        self.busy_s += seconds

    def _tick(self, steps: int, decoded: Sequence[bool]) -> None:
        """The tokens of ``steps`` steps on the ranks that ``decoded``; who has made all of them leaves."""
        ticks = self._ticks_in(steps)
        self.steps += steps
        for rank, did in zip(self.ranks, decoded, strict=True):
            batching = rank.batching
            if not did or not batching.decoding:
                continue
            batching.tick(ticks)
            batching.steps += steps
            if batching.ends[0][0] > batching.clock:
                continue  # nobody is done; asking each of many ranks takes longer
            while (sequence := batching.due()) is not None:
                batching.leave(sequence)
                self._finished(sequence)

    def _finished(self, sequence: scheduling.Sequence) -> None:
        self.times[sequence.index].last_s = self.now
        self.done(sequence.index, self.now)
