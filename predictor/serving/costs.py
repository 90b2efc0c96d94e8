"""Seconds of an engine's steps, from tables (`predictor.serving.step_tables`).

A step is n decodes with a sum of contexts beside chunks of prompts. All but attention depends on the tokens alone (the
head and the sampler on the sequences that make one), so a step is

    body(tokens) + head(sequences) + attention of decodes(n, context) + attention of chunks(how many, tokens, before)

of which every stage of a pipeline has its part.

Each part is a table of operators of the graphs that a forecast of one batch has, and between its points a line, of
attention over chunks in logarithms. Prompts of lengths that are listed are points of the tables. Products run at the
rate that power leaves in a long run (`predictor.simulate.sustained`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import lru_cache

import numpy as np

from predictor.engines import CAPTURED, Engine
from predictor.engines.vintage import Graphs
from predictor.files.records import replace
from predictor.ops.roofline import FloatArray
from predictor.passes.pipeline import check_stages, layers_of
from predictor.request.run import Run
from predictor.serving.step_tables import Sizes, StepTables

#: Attention calls over chunks that are kept: prompts alike come again and again. Chosen by hand, not from data; no
#: figure depends on it.
_CALLS = 4096


class StepCosts:
    """Seconds of the steps of one server of a run, which is in mode generate."""

    def __init__(self, run: Run, sizes: Sizes, graphs: Graphs | None) -> None:
        self.run, self.sizes = run, sizes
        self.engine: Engine = run.work.engine
        self.graphs = Graphs((), "") if graphs is None else graphs
        self.factor = 1.0
        self.width = 1 + sizes.drafts
        pp = run.work.parallelism.pp
        stack = run.config.stack()
        check_stages(stack, pp)
        layers = [layers_of(stage, stack.layers, pp) for stage in range(pp)]
        self._share = np.array([(end - first) / stack.layers for first, end in layers])  # of the attention
        self._shares: list[float] = self._share.tolist()
        self._waits_s = run.work.waits_s
        self._waits_of: dict[int, float] = {}
        self.tables = StepTables(run, sizes, self.graphs)
        self._decode_s: dict[int, tuple[FloatArray, FloatArray]] = {}
        self._lines: dict[int, tuple[float, float, float, list[float], list[float]]] = {}
        self._uneven: dict[int, float] = {}
        self._beside: dict[tuple[int, int], tuple[float, float, float]] = {}
        self.attention_of = lru_cache(_CALLS)(self._attention_of)
        self.drafter: StepCosts | None = None  # of the model that makes drafts
        if sizes.drafts and run.draft is not None:
            self.drafter = StepCosts(run.draft, replace(sizes, drafts=0), graphs)
            self.drafter._waits_s = {}  # which a step has once

    def scaled(self, factor: float) -> StepCosts:
        """The same steps, each ``factor`` times as long."""
        scaled = copy(self)
        scaled.factor = self.factor * factor
        return scaled

    def waits_s(self, sequences: int) -> float:
        """What the GPU waits for after a step of so many sequences."""
        if not self._waits_s:
            return 0.0
        wait_s = self._waits_of.get(sequences)
        if wait_s is None:
            work = self.run.work  # which has the sequences of all ranks
            waits = replace(work, batch=max(1, sequences) * work.parallelism.dp).waits_s
            wait_s = self._waits_of[sequences] = sum(waits.values())
        return wait_s

    def decode(
        self, sequences: int, contexts: FloatArray, uneven_s: float | FloatArray = 0.0
    ) -> tuple[FloatArray, FloatArray]:
        """Steps of decodes alone, each of shape (steps,), and for how long they hold up the slowest stage of a pipeline
        (without one, all the time); ``contexts``, the tokens in the cache of all ``sequences``; ``uneven_s``: what
        their unequal lengths add."""
        body, cpu = self._decode_body(sequences)
        attention = self.tables.decodes.at(sequences, contexts / sequences) + uneven_s
        wait = self.waits_s(sequences)
        drafted = self._drafted_s(sequences, contexts) if self.sizes.drafts else 0.0
        if len(self._share) == 1:
            whole: FloatArray = (np.maximum(body[0] + attention, cpu[0]) + drafted + wait) * self.factor
            return whole, whole
        stages = np.maximum(body[:, None] + self._share[:, None] * attention, cpu[:, None])
        stages[-1] += drafted
        return (stages.sum(axis=0) + wait) * self.factor, (stages.max(axis=0) + wait) * self.factor

    def decode_step(self, sequences: int, context: float, uneven_s: float = 0.0) -> float:
        """One step of `decode` without a pipeline."""
        gpu_s, cpu_s, wait_s, *_ = self.line(sequences)
        if self.sizes.drafts:
            wait_s += float(self._drafted_s(sequences, np.array([context]))[0])
        attention_s = self.tables.decodes.of(sequences, context / sequences) + uneven_s
        return (max(gpu_s + attention_s, cpu_s) + wait_s) * self.factor

    def uneven_s(self, sequences: int) -> float:
        """Seconds that attention of so many decodes without chunks takes longer for each token of the standard
        deviation of their lengths; 0 where it is not known to, drafts among that."""
        known = self._uneven.get(sequences)
        if known is None:
            joint = self.tables.joint if self.width == 1 else None
            known = self._uneven[sequences] = joint.uneven_s(sequences) if joint is not None else 0.0
        return known

    @property
    def points(self) -> list[float]:
        """Mean contexts at which attention of decodes was forecast."""
        return self.tables.decodes.points

    def line(self, sequences: int) -> tuple[float, float, float, list[float], list[float]]:
        """What steps of so many sequences have in common, without a pipeline and before `factor`: seconds of the GPU
        without attention, of the CPU, and waits; attention at `points`, and its slope after each of them."""
        known = self._lines.get(sequences)
        if known is None:
            gpu, cpu = self._decode_body(sequences)
            waits_s = self.waits_s(sequences)
            known = self._lines[sequences] = float(gpu[0]), float(cpu[0]), waits_s, *self.tables.decodes.line(sequences)
        return known

    def _decode_body(self, sequences: int) -> tuple[FloatArray, FloatArray]:
        gpu_and_cpu_s = self._decode_s.get(sequences)
        if gpu_and_cpu_s is None:
            tokens = sequences * self.width
            size = self.graphs.tokens_of(sequences, self.width)
            if self.engine.decode_host == CAPTURED and size is not None:
                gpu, cpu = self.tables.captured.at(size)[0], [0.0] * len(self._share)
            else:
                gpu, cpu = self.tables.launched.at(tokens)
            gpu_and_cpu_s = self._decode_s[sequences] = np.array(gpu), np.array(cpu)
        return gpu_and_cpu_s

    def _drafted_s(self, sequences: int, contexts: FloatArray) -> FloatArray:
        """What makes the drafts of a step, of shape (steps,), as `decode`: passes of the model's layer for it and the
        head (multi-token prediction), or steps of the model that makes them."""
        drafts = self.sizes.drafts
        if self.drafter is not None:
            return drafts * self.drafter.decode(sequences, contexts)[0]
        gpu, cpu = self.tables.draft.at(sequences)
        attention = self.tables.decodes.at(sequences, contexts / sequences) / self.run.config.stack().layers
        return drafts * np.maximum(gpu[0] + attention, cpu[0])

    def _drafted_beside_s(
        self, chunks: Sequence[tuple[int, int]], sequences: int, context: int, heads: int, step_s: float
    ) -> float:
        """The same of a step with chunks of prompts, which the drafter reads, too; ``step_s``: without it."""
        drafts = self.sizes.drafts
        after = float(self._drafted_s(sequences, np.array([float(context)]))[0]) if sequences else 0.0
        if self.drafter is None:
            return after + step_s / self.run.config.stack().layers
        return self.drafter.mixed(chunks, sequences, context, heads)[0] + after * (drafts - 1) / drafts

    def mixed(
        self, chunks: Sequence[tuple[int, int]], sequences: int, context: int, heads: int, widest: int = 0,
        mean: float = 0.0, spread: float = 0.0,
    ) -> tuple[float, float]:  # fmt: skip
        """A step of ``chunks`` (tokens, tokens before them) beside ``sequences`` decodes with ``context`` tokens in the
        cache in all, and for how long it holds up the slowest stage of a pipeline; ``heads`` prompts are read to their
        end. ``widest``: tokens of the rank with the most, if more; ``mean``: of all ranks that share the experts, 0 for
        as many; ``spread``: standard deviation of the tokens that each decode has in the cache."""
        tokens = max(widest, sum(q for q, _ in chunks) + sequences * self.width)
        gpu, cpu = self._mixed_body(tokens)
        if 0.0 < mean < tokens:
            gpu = [g - less for g, less in zip(gpu, self.tables.mixed.saved(tokens, mean), strict=True)]
        gpu[-1] += self._mixed_head(heads + sequences * self.width)
        attention = self.attention_of(tuple(chunks)) if chunks else 0.0
        if sequences:
            longest = max((q for q, _ in chunks), default=0)
            attention += self.attention_beside(sequences, context, longest, attention, spread)
        stages = [max(g + share * attention, c) for g, share, c in zip(gpu, self._shares, cpu, strict=True)]
        if self.sizes.drafts:
            stages[-1] += self._drafted_beside_s(chunks, sequences, context, heads, sum(stages))
        wait = self.waits_s(sequences + len(chunks))
        return (sum(stages) + wait) * self.factor, (max(stages) + wait) * self.factor

    def _mixed_body(self, tokens: int) -> tuple[list[float], list[float]]:
        pieces = self.tables.pieces
        size = self.graphs.pieces(tokens) if pieces is not None else None
        return self.tables.mixed.at(tokens) if size is None or pieces is None else pieces.at(size)

    def beside(self, tokens: int, sequences: int) -> tuple[float, float, float]:
        """What steps of `mixed` with as many tokens have in common, of decodes and whole prompts that are so many
        together, without a pipeline or drafts and before `factor`: seconds of the GPU without attention, of the CPU,
        and waits."""
        known = self._beside.get((tokens, sequences))
        if known is None:
            (gpu_s,), (cpu_s,) = self._mixed_body(tokens)
            gpu_s += self._mixed_head(sequences)
            known = self._beside[tokens, sequences] = gpu_s, cpu_s, self.waits_s(sequences)
        return known

    def attention_beside(
        self, sequences: int, context: int, longest: int, chunks_s: float, spread: float = 0.0
    ) -> float:
        """What decodes add to the ``chunks_s`` of attention of a step's chunks, of at most ``longest`` tokens;
        ``spread`` as in `mixed`."""
        mean = context / sequences
        if not longest:  # their step's prompts are another rank's: a call of decodes
            return self.tables.decodes.of(sequences, mean) + self.uneven_s(sequences) * spread
        if self.tables.joint is not None:
            return self.tables.joint.beside(sequences, mean, longest, chunks_s, spread)
        return max(self.tables.decodes.of(sequences, mean), context * self.tables.joined_s)

    def _mixed_head(self, made: int) -> float:
        """What head and sampler take beyond one sequence, which a prompt's pass has; less, where none ends here."""
        return self.tables.launched.head(made) - self.tables.launched.head(1) if made else -self.tables.launched.head(1)

    def _attention_of(self, chunks: tuple[tuple[int, int], ...]) -> float:
        """Attention of a step's chunks in one call, each as a part of a call of chunks like it that is as much work."""
        if len(chunks) == 1:
            return self.tables.chunks.at(1.0, *chunks[0])
        work = [q * (before + (q + 1) / 2.0) for q, before in chunks]
        total = sum(work)
        return sum(
            self.tables.chunks.at(total / tokens, q, before) * tokens / total
            for tokens, (q, before) in zip(work, chunks, strict=True)
        )  # fmt: skip
