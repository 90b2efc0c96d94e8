"""Traffic through one server with one scheduler that looks for requests in every step, without pipeline or drafts.

The loop of `predictor.serving.server` asks every rank, lane and draft for what it needs. Here there is one of each, so
that a step reads and writes plain variables: the same events, with the same sums in the same order, in a fourth of the
time (tests/serving/test_one_rank.py compares them bit by bit). The scheduler's own class is asked wherever it may
choose: it begins a part of those who wait, somebody gives way, or prompts have steps of their own. Two cases need no
question: nobody waits, or all who wait fit into the next step of a scheduler that `joins`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from heapq import heappop, heappush

import numpy as np

from predictor.engines.scheduling import Batching, Sequence, StepBatch
from predictor.serving.costs import StepCosts
from predictor.serving.server import AT_ONCE, FIRST, Moment
from predictor.serving.traffic import Traffic


class OneRank:
    """The requests of ``traffic``, and what came of each: seconds by request, nan where it did not happen, as
    `predictor.serving.server.RequestTimes` names them."""

    def __init__(self, batching: Batching, costs: StepCosts, ahead: bool, traffic: Traffic) -> None:
        n = len(traffic)
        self.batching, self.costs, self.ahead, self.traffic = batching, costs, ahead, traffic
        self.closed = bool(traffic.concurrency)
        self.prompts, self.outputs = traffic.input_tokens.tolist(), traffic.output_tokens.tolist()
        self.way_s = (traffic.turnaround_s + traffic.tokenizer_s * traffic.input_tokens.astype(np.float64)).tolist()
        self.arrival_s: list[float] = [0.0] * min(n, traffic.concurrency) if self.closed else traffic.arrival_s.tolist()
        self.scheduled_s, self.first_s, self.last_s = [math.nan] * n, [math.nan] * n, [math.nan] * n
        self.preempted, self.cached = [0] * n, [0] * n
        self._rows: list[tuple[float, float, int, int, int, int, int]] = []
        self._alike = not (traffic.blocks or traffic.shared.any())  # no prompt is in the cache when it comes

    @property
    def moments(self) -> tuple[Moment, ...]:
        """What the server did."""
        return tuple(map(Moment._make, self._rows))

    def run(self) -> None:
        """Until every request is done."""
        batching, costs, ahead, n_all = self.batching, self.costs, self.ahead, len(self.traffic)
        arrival_s, way_s, last_s = self.arrival_s, self.way_s, self.last_s
        scheduled_s, first_s = self.scheduled_s, self.first_s
        waiting, begun, decoding, ends = batching.waiting, batching.begun, batching.decoding, batching.ends
        rules, pages, aside, closed = batching.rules, batching.pages, batching.sets_aside, self.closed
        size, places, joins, rows = pages.size, pages.places, batching.joins and self._alike, self._rows
        most_sequences, budget, total = rules.sequences, rules.tokens, pages.total
        spared = int(rules.watermark * total)
        points, last_point, factor = costs.points, costs.points[-1], costs.factor
        now, before = 0.0, -math.inf
        came = seen = 0  # requests whose clients sent them, and those that the scheduler saw
        known = len(arrival_s)
        clock, free = batching.clock, pages.free
        while True:
            # ------------------------------------------------------------------------------------------- who has come
            rests = not (waiting or begun or decoding)
            if came < known and (arrival_s[came] <= now or (rests and seen == came)):
                at_s = arrival_s[came] + way_s[came]
                if rests and seen == came and at_s > now:
                    now, before = at_s, -math.inf
                came += 1
                while came < known and arrival_s[came] <= now:
                    came += 1
            elif rests and seen == came:
                return
            if seen < came:
                limit_s = now if rests or not ahead else before
                while seen < came and arrival_s[seen] + way_s[seen] <= limit_s:
                    waiting.append(self._request(seen))
                    seen += 1
            # ------------------------------------------------------------------------------------- what the step runs
            n = len(decoding)
            next_page = (places[-clock % size] if size > 1 else pages.growing) if n and not aside else 0
            read = 0
            if begun or free < next_page:
                asks = True
            elif not waiting:
                asks = not n
            else:
                asks = not joins or n + len(waiting) > most_sequences
                if not asks:
                    needs = 0
                    for sequence in waiting:
                        read += sequence.prompt
                        needs -= -(sequence.prompt + sequence.output - 1 if aside else sequence.prompt) // size
                    asks = read > budget - n or needs > free - next_page - spared
            if asks:
                pages.free, batching.clock = free, clock
                batch = batching.batch()
                for sequence in batch.preempted:
                    self.preempted[sequence.index] += 1
                if batch.chunks:
                    self._begin(batch, now)
                    seconds, n, read = self._mixed(batch)
                    rows.append((now, now + seconds, 1, n, read, came - seen + len(waiting), total - pages.free))
                    before, now = now, now + seconds
                    self._after(batch, now)
                    known, clock, free = len(arrival_s), batching.clock, pages.free
                    continue
                clock, free, n = batching.clock, pages.free, len(decoding)
                next_page = 0 if aside else pages.grown(clock, 1)
                if not batch.decodes:
                    if seen == came:
                        raise RuntimeError("the scheduler runs nothing though requests wait")
                    now = before = max(now, arrival_s[seen] + way_s[seen])
                    continue
            elif read:
                # ----------------------------------------------------------------------- all who wait, beside decodes
                if len(waiting) == 1:
                    longest, attention_s = read, costs.attention_of(((read, 0),))
                else:
                    longest = max([sequence.prompt for sequence in waiting])
                    attention_s = costs.attention_of(tuple([(sequence.prompt, 0) for sequence in waiting]))
                gpu_s, cpu_s, wait_s = costs.beside(read + n, len(waiting) + n)
                if n:
                    context, spread = batching.context_at(clock), batching.spread
                    attention_s += costs.attention_beside(n, context, longest, attention_s, spread)
                gpu_s += attention_s
                seconds = ((gpu_s if gpu_s > cpu_s else cpu_s) + wait_s) * factor
                for sequence in waiting:
                    index = sequence.index
                    if scheduled_s[index] != scheduled_s[index]:  # nan
                        scheduled_s[index] = now
                    prompt = sequence.prompt
                    sequence.computed = prompt
                    sequence.held = -(-(prompt + sequence.output - 1 if aside else prompt) // size)
                    free -= sequence.held
                rows.append((now, now + seconds, 1, n, read, came - seen, total - free))
                before, now = now, now + seconds
                if n:
                    free -= next_page
                    clock += 1
                    batching.steps += 1
                    if ends[0][0] <= clock:
                        pages.free, batching.clock = free, clock
                        self._leave(now)
                        free = pages.free
                for sequence in waiting:
                    index, prompt = sequence.index, sequence.prompt
                    if first_s[index] != first_s[index]:
                        first_s[index] = now
                    if sequence.output == 1:
                        free += sequence.held
                        last_s[index] = now
                        if closed and len(arrival_s) < n_all:
                            arrival_s.append(now)
                        continue
                    sequence.began, sequence.ends = clock, clock + sequence.output - 1
                    decoding[index] = sequence
                    batching.ending += sequence.ends
                    base = prompt - clock
                    batching.bases += base
                    batching.squares += base * base
                    heappush(ends, (sequence.ends, index))
                    if not aside:
                        places[base % size] += 1
                        pages.growing += 1
                waiting.clear()
                known = len(arrival_s)
                continue
            # ------------------------------------------------------------------------------------------- decodes alone
            end, index = ends[0]
            soonest = decoding.get(index)
            while soonest is None or soonest.ends != end:  # who gave way stands there still
                heappop(ends)
                end, index = ends[0]
                soonest = decoding.get(index)
            most = 1
            if seen == came:
                most = min(max(1, end - clock), AT_ONCE)
                if waiting:
                    most = min(most, batching.patience())
                if most > 1 and not aside and (most // size + 1) * n > free and pages.grown(clock, most) > free:
                    most = max(1, min(most, int(np.searchsorted(pages.growth(clock, most), free, side="right"))))
            until_s = arrival_s[came] if came < known else math.inf
            context = batching.context_at(clock)
            steps, total_s, began_s = 0, 0.0, now
            uneven_s = costs.uneven_s(n)
            if uneven_s:
                uneven_s *= batching.spread
            if until_s < math.inf:
                gpu_s, cpu_s, wait_s, row, slopes = costs.line(n)
                while steps < most:
                    each = (context + n * steps) / n
                    if each >= last_point:
                        attention_s = row[-1] * each / last_point if each > last_point else row[-1]
                    else:
                        i = bisect_right(points, each) - 1
                        attention_s = slopes[i] * (each - points[i]) + row[i] if i >= 0 else row[0]
                    seconds = gpu_s + (attention_s + uneven_s)
                    seconds = ((seconds if seconds > cpu_s else cpu_s) + wait_s) * factor
                    begins_s = now + (total_s + seconds) - seconds
                    if steps and (begins_s >= until_s or steps == FIRST):
                        if begins_s < until_s:
                            steps = 0  # arrays cost less than so many one by one
                        break
                    total_s, began_s = total_s + seconds, begins_s
                    steps += 1
            if not steps:
                steps, total_s, began_s = self._in_arrays(n, context, uneven_s, most, now, until_s)
            rows.append((now, now + total_s, steps, n, 0, came - seen + len(waiting), total - free))
            before, now = began_s, now + total_s
            if not aside:
                free -= next_page if steps == 1 else pages.grown(clock, steps)
            clock += steps
            batching.steps += steps
            if end <= clock:
                pages.free, batching.clock = free, clock
                self._leave(now)
                known, free = len(arrival_s), pages.free

    def _request(self, index: int) -> Sequence:
        if self._alike:
            return Sequence(index, self.prompts[index], self.outputs[index])
        traffic = self.traffic
        blocks = traffic.blocks[index] if traffic.blocks else ()
        return Sequence(index, self.prompts[index], self.outputs[index], int(traffic.shared[index]), blocks=blocks)

    def _leave(self, now: float) -> None:
        """Who has made all tokens by the clock is done."""
        batching = self.batching
        while (sequence := batching.due()) is not None:
            batching.leave(sequence)
            self._done(sequence.index, now)

    def _done(self, index: int, now: float) -> None:
        self.last_s[index] = now
        if self.closed and len(self.arrival_s) < len(self.traffic):
            self.arrival_s.append(now)

    def _begin(self, batch: StepBatch, now: float) -> None:
        """When each prompt of a step was first looked at, and what the cache had of it."""
        for sequence, tokens in batch.chunks:
            if math.isnan(self.scheduled_s[sequence.index]):
                self.scheduled_s[sequence.index] = now
                self.cached[sequence.index] = sequence.computed - tokens

    def _mixed(self, batch: StepBatch) -> tuple[float, int, int]:
        """Seconds of a step that the scheduler put together, those who decode in it, and tokens of prompts."""
        batching = self.batching
        n = len(batching.decoding) if batch.decodes else 0
        chunks = [(tokens, sequence.computed - tokens) for sequence, tokens in batch.chunks]
        ended = sum(not sequence.left for sequence, _ in batch.chunks)
        seconds, _ = self.costs.mixed(chunks, n, batching.context if n else 0, ended, spread=batching.spread)
        return seconds, n, sum(tokens for tokens, _ in chunks)

    def _after(self, batch: StepBatch, now: float) -> None:
        """What comes of such a step."""
        batching = self.batching
        if batch.decodes and batching.decoding:
            batching.tick(1)
            batching.steps += 1
            self._leave(now)
        for sequence, _ in batch.chunks:
            if sequence.left:
                continue
            if math.isnan(self.first_s[sequence.index]):
                self.first_s[sequence.index] = now
            if not batching.finish_prompt(sequence):
                self._done(sequence.index, now)

    def _in_arrays(
        self, n: int, context: int, uneven_s: float, most: int, now: float, until_s: float
    ) -> tuple[int, float, float]:
        """Of up to ``most`` steps of decodes alone, those that begin before ``until_s``: how many, their seconds, and
        when the last of them began."""
        steps = most if until_s == math.inf else min(most, FIRST * FIRST)
        while True:
            seconds = self.costs.decode(n, context + n * np.arange(float(steps)), uneven_s)[0]
            begins = now + np.cumsum(seconds) - seconds
            if steps == most or begins[-1] >= until_s:
                break
            steps = min(most, FIRST * steps)
        count = max(1, int(begins.searchsorted(until_s)))
        return count, float(np.add.reduce(seconds[:count])), float(begins[count - 1])
