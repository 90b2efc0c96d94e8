"""The tables behind seconds of steps: points that were forecast, and lines between them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from predictor.ops.attention import Attention
from predictor.ops.roofline import FloatArray
from predictor.passes.expert_parallel import COMBINE, DISPATCH
from predictor.simulate.times import TimedStage

#: Points a doubling of tokens in the tables. Chosen by looking at how far tables are from forecasts of single steps
#: (tests/integration/test_serving_costs.py: 2 % on average).
A_DOUBLING = 2
#: Ratios of keys to queries of a chunk, and chunks of a step, at which attention over prompts is forecast. Chosen by
#: looking at the same.
RATIOS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 128.0, 512.0, 2048.0)
#: Chosen by looking at the same.
CHUNKS = (1, 2, 4, 8, 16, 32)


class Body:
    """Passes without attention by tokens: ``gpu_s`` with gaps and ``cpu_s`` of launches, each of shape (points, stages
    of the pipeline), of which ``shared_s`` is of experts that all ranks of data-parallel attention share, with what
    brings tokens there and back, and ``head_s`` of head and sampler (points,), which the last stage runs."""

    def __init__(self, tokens: Sequence[int], timed: Sequence[TimedStage]) -> None:
        self.tokens = np.array(tokens, dtype=np.float64)
        parts = [_parts(stage) for stage in timed]
        self.gpu_s, self.cpu_s, self.head_s, self.shared_s = map(np.array, zip(*parts, strict=True))
        self._at: dict[float, tuple[list[float], list[float]]] = {}
        self._heads: dict[float, float] = {}

    def at(self, tokens: float) -> tuple[list[float], list[float]]:
        """Seconds of the GPU and of the CPU, by stage; a step of as many tokens comes again and again."""
        known = self._at.get(tokens)
        if known is None:
            known = self._at[tokens] = self._line(tokens, self.gpu_s), self._line(tokens, self.cpu_s)
        return [*known[0]], [*known[1]]

    def saved(self, tokens: float, mean: float) -> list[float]:
        """Seconds of the GPU, by stage, that a step of ``tokens`` on this rank takes less where the ranks that share
        the experts have a ``mean`` of fewer: the rows of all ranks are the experts' work, and no more.

        Source: engines gather what each rank has (TensorRT-LLM: allgather with all_rank_num_tokens; vLLM:
        all_gatherv; SGLang: the sum of lengths in steps with prompts; as recalled, unverified). Decode steps in CUDA
        graphs are padded to the widest rank, so that this is for steps with prompts alone.
        """
        stages = zip(self._line(tokens, self.shared_s), self._line(mean, self.shared_s), strict=True)
        return [max(0.0, most - least) for most, least in stages]

    def _line(self, tokens: float, seconds: FloatArray) -> list[float]:
        return [float(np.interp(tokens, self.tokens, column)) for column in seconds.T]

    def head(self, sequences: float) -> float:
        """Seconds of head and sampler."""
        known = self._heads.get(sequences)
        if known is None:
            known = self._heads[sequences] = float(np.interp(sequences, self.tokens, self.head_s))
        return known


def _parts(stage: TimedStage) -> tuple[list[float], list[float], float, list[float]]:
    """Of a pass, by stage of its pipeline, GPU seconds without attention and CPU seconds; GPU seconds of the blocks
    behind the layers; and, by stage, those from the exchange that brings tokens to experts to the one back."""
    ends = stage.stage.ends or (len(stage.blocks),)
    timelines = stage.pipeline if stage.stage.ends else [stage.timeline]
    attention, shared, last = [0.0] * len(ends), [0.0] * len(ends), 0
    for place, at in enumerate(stage.blocks):
        away = False
        for node, row, times in zip(at.block.nodes, at.rows, at.times, strict=True):
            if away := away or node.name == DISPATCH:
                shared[bisect_right(ends, place)] += float(stage.operators.seconds[row]) * times
                away = node.name != COMBINE
            if isinstance(node.op, Attention):
                attention[bisect_right(ends, place)] += float(stage.operators.seconds[row]) * times
                last = place
    head = sum(at.sum_s * at.block.repeat for at in stage.blocks[last + 1 :])
    gpu = [timeline.gpu_s - attention_s for timeline, attention_s in zip(timelines, attention, strict=True)]
    return gpu, [timeline.cpu_s for timeline in timelines], head, shared


class Decodes:
    """Attention of n decodes of a mean context: a table over both, and lines between its points."""

    def __init__(self, counts: Sequence[int], contexts: Sequence[int], seconds: FloatArray) -> None:
        self.counts, self.contexts = np.array(counts, dtype=np.float64), np.array(contexts, dtype=np.float64)
        self.seconds = seconds  # (counts, contexts)
        self._rows: dict[int, FloatArray] = {}
        self._lines: dict[int, tuple[list[float], list[float]]] = {}
        self.points: list[float] = self.contexts.tolist()

    def at(self, n: int, context: FloatArray) -> FloatArray:
        """Seconds at contexts of any shape."""
        row = self._row(n)
        seconds: FloatArray = np.interp(context, self.contexts, row)
        if context.max() <= self.points[-1]:
            return seconds
        return np.where(context > self.contexts[-1], row[-1] * context / self.contexts[-1], seconds)

    def of(self, n: int, context: float) -> float:
        """Seconds at one context, as `at` gives them."""
        row, slopes = self.line(n)
        points = self.points
        if context >= points[-1]:
            return row[-1] * context / points[-1] if context > points[-1] else row[-1]
        i = bisect_right(points, context) - 1
        return slopes[i] * (context - points[i]) + row[i] if i >= 0 else row[0]

    def line(self, n: int) -> tuple[list[float], list[float]]:
        """Seconds at each of ``points``, and what a token more takes after it."""
        known = self._lines.get(n)
        if known is None:
            row = self._row(n).tolist()
            ends = zip(pairwise(row), pairwise(self.points), strict=True)
            known = self._lines[n] = row, [(b - a) / (y - x) for (a, b), (x, y) in ends]
        return known

    def _row(self, n: int) -> FloatArray:
        row = self._rows.get(n)
        if row is None:
            i = min(max(int(np.searchsorted(self.counts, n)), 1), len(self.counts) - 1)
            low, high = self.counts[i - 1], self.counts[i]
            share = (n - low) / (high - low)
            row = self._rows[n] = self.seconds[i - 1] * (1 - share) + self.seconds[i] * share
        return row


class Chunks:
    """Attention of one call over chunks alike: logarithms of seconds over (chunks, queries, keys a query)."""

    def __init__(self, queries: Sequence[int], seconds: dict[tuple[int, int, float], float]) -> None:
        self.queries = list(queries)
        self._logs = {key: math.log(value) for key, value in seconds.items()}
        self._most = {q: max(c for c, each, _ in seconds if each == q) for q in self.queries}
        self._ratios = list(RATIOS)

    def at(self, chunks: float, queries: int, before: int) -> float:
        """Seconds of one call over so many chunks of ``queries`` tokens after ``before`` in the cache."""
        queries = max(queries, self.queries[0])  # what is smaller has a tile of as many rows
        ratio = (queries + before) / queries
        i, part = _place(self.queries, float(queries))
        j, other = _place(self._ratios, ratio)
        log_s = 0.0
        for q, share in ((self.queries[i], 1 - part), (self.queries[min(i + 1, len(self.queries) - 1)], part)):
            if share:
                for r, across in ((self._ratios[j], 1 - other), (self._ratios[j + 1], other)):
                    if across:
                        log_s += share * across * self._log(chunks, q, r)
        return math.exp(log_s)

    def _log(self, chunks: float, queries: int, ratio: float) -> float:
        most = self._most[queries]
        if chunks >= most:
            return self._logs[most, queries, ratio] + math.log(chunks / most)
        i = bisect_right(CHUNKS, chunks) - 1
        low, high = CHUNKS[i], CHUNKS[i + 1]
        a, b = math.exp(self._logs[low, queries, ratio]), math.exp(self._logs[high, queries, ratio])
        return math.log(a + (b - a) * (chunks - low) / (high - low))


def _place(points: Sequence[float], value: float) -> tuple[int, float]:
    """The point at or below a value, and how far the value is on the way to the next, in logarithms."""
    i = min(max(bisect_right(points, value) - 1, 0), len(points) - 2) if len(points) > 1 else 0
    if len(points) == 1:
        return 0, 0.0
    low, high = points[i], points[i + 1]
    return i, min(max(math.log(value / low) / math.log(high / low), 0.0), 1.0)


def doublings(first: int, last: int) -> list[int]:
    """From ``first`` to ``last``, so many points a doubling, both ends included."""
    last = max(last, first)
    count = max(1, math.ceil(math.log2(last / first) * A_DOUBLING))
    return sorted({round(first * (last / first) ** (i / count)) for i in range(count + 1)})
