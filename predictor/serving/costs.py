"""Seconds of an engine's steps, from tables that one call of the estimators fills.

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

from predictor.engines import CAPTURED, PIECES, Engine
from predictor.engines import library as library_of_kernels
from predictor.engines.library import AttentionCalls
from predictor.engines.vintage import Graphs
from predictor.errors import UnsupportedError
from predictor.files.records import dataclass, replace
from predictor.forecast.forecast import WithoutIntervals
from predictor.graph import Block, Graph, Node
from predictor.kernels.attention.core import QUERIES
from predictor.ops.attention import Attention
from predictor.ops.roofline import FloatArray
from predictor.passes.pipeline import check_stages, layers_of, staged
from predictor.request.run import Run
from predictor.serving.cost_tables import CHUNKS, RATIOS, Body, Chunks, Decodes, doublings
from predictor.simulate.lower import Lowering, lower, mesh_of
from predictor.simulate.plan import drafting, make_step, reducing
from predictor.simulate.stage import DRAFT, Plan, Stage
from predictor.simulate.templates import lower_alike
from predictor.simulate.timeline import NO_GAPS, gaps_of
from predictor.simulate.times import Operators

#: Runs of every pass, so that its products count as those of a long run: chosen by hand, not from data.
_LONG = 1e6
#: Ratios up to the first are always there, those beyond where keys are not more than so many times the longest request.
#: Chosen by hand, not from data: neighbours of every size that is asked for are there.
_LEAST_RATIOS, _BEYOND = 8.0, 8
#: The prompt, in tokens, and the tokens before it in prompts, whose tiles are all full: chosen by hand, not from data.
LONG_PROMPT, LONG_CACHE = 2048, 7
#: Lengths of prompts that become points of the tables, if there are no more. Chosen by hand, not from data: a trace of
#: random lengths has none.
_LISTED = 24
#: Attention calls over chunks that are kept: prompts alike come again and again. Chosen by hand, not from data; no
#: figure depends on it.
_CALLS = 4096


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a server may meet: most tokens and decoding sequences of a step, tokens of the longest sequence, and lengths
    of prompts that come often."""

    tokens: int
    sequences: int
    longest: int
    prompts: tuple[int, ...] = ()
    drafts: int = 0

    @classmethod
    def together(cls, sizes: Sequence[Sizes]) -> Sizes:
        """What is enough for all of them."""
        return cls(
            max(size.tokens for size in sizes), max(size.sequences for size in sizes),
            max(size.longest for size in sizes),
            tuple(sorted({n for size in sizes for n in size.prompts})), max(size.drafts for size in sizes),
        )  # fmt: skip


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
        self.operators = Operators(run.gpu, self.engine, WithoutIntervals(run.selector))
        self.drafter: StepCosts | None = None  # of the model that makes drafts
        if sizes.drafts and run.draft is not None:
            self.drafter = StepCosts(run.draft, replace(sizes, drafts=0), graphs)
            self.drafter._waits_s = {}  # which a step has once
        self._fill()

    # -------------------------------------------------------------------------------------------------------- filling

    def _fill(self) -> None:
        sizes, captured = self.sizes, self.engine.decode_host == CAPTURED
        most = sizes.sequences * self.width
        each = 1 if self.graphs.of_tokens else self.width
        inside = [size * each for size in self.graphs.sizes if size * each < 2 * most] if captured else []
        steps = sorted({*doublings(1, most), *inside})
        largest = min(self.graphs.prompt_tokens, sizes.tokens) if captured else 0
        tokens = sorted({*doublings(1, sizes.tokens), *self._listed(sizes.tokens), max(1, largest)})
        heads = self._decode_graphs(steps)
        prompts = self._prompt_graphs(tokens)
        self._kinds = [_attention(heads[0]), _attention(prompts[0])]
        inside_pieces = [(n, graph) for n, graph in zip(tokens, prompts, strict=True) if n <= largest]
        stages = [
            *(self._stage(graph, n, "decode", CAPTURED) for n, graph in zip(steps, heads, strict=True)),
            *(self._stage(graph, n, "decode", self.engine.host) for n, graph in zip(steps, heads, strict=True)),
            *(self._stage(graph, n, "prefill", self.engine.host) for n, graph in zip(tokens, prompts, strict=True)),
            *(self._stage(graph, n, "prefill", PIECES) for n, graph in inside_pieces),
        ]
        timed = [stages for (stages,) in self.operators.time([Plan((stage,)) for stage in stages])]
        n = len(heads)
        self._captured, self._launched = Body(steps, timed[:n]), Body(steps, timed[n : 2 * n])
        self._mixed = Body(tokens, timed[2 * n : 2 * n + len(tokens)])
        self._pieces = Body([n for n, _ in inside_pieces], timed[2 * n + len(tokens) :]) if inside_pieces else None
        self._draft = self._draft_body(steps, heads) if sizes.drafts and self.drafter is None else None
        self._fill_attention(tokens)
        self._decode_s: dict[int, tuple[FloatArray, FloatArray]] = {}
        self._lines: dict[int, tuple[float, float, float, list[float], list[float]]] = {}
        self._beside: dict[tuple[int, int], tuple[float, float, float]] = {}
        self.attention_of = lru_cache(_CALLS)(self._attention_of)

    def _draft_body(self, steps: Sequence[int], decodes: Sequence[Graph]) -> Body:
        """Passes of the model's own layer for drafts, without attention, by sequences."""
        host = CAPTURED if self.engine.decode_host == CAPTURED else self.engine.host
        gaps, launch_s = gaps_of(host == CAPTURED, self.run.work.kernel_gap_s), self.run.work.launch_overhead_s
        graphs = (drafting(reducing(graph, self.run)) for graph in decodes)
        stages = [Stage(graph, DRAFT, _LONG, host, launch_s, gaps=gaps) for graph in graphs]
        return Body(steps, [timed for (timed,) in self.operators.time([Plan((stage,)) for stage in stages])])

    def _listed(self, most: int) -> tuple[int, ...]:
        listed = tuple(n for n in set(self.sizes.prompts) if n <= most)
        return listed if len(listed) <= _LISTED else ()

    def _stage(self, graph: Graph, tokens: int, phase: str, host: str) -> Stage:
        gaps = gaps_of(host in (CAPTURED, PIECES), self.run.work.kernel_gap_s)
        stage = Stage(reducing(graph, self.run), phase, _LONG, host, self.run.work.launch_overhead_s, gaps=gaps)
        stack, mesh = self.run.config.stack(), mesh_of(self.run.work)
        if len(self._share) == 1 or mesh is None:
            return stage
        cut = staged(graph, mesh, stack.layers, tokens, stack.hidden, self.run.numbers.activation)
        return stage._replace(graph=cut.graph, ends=cut.ends)

    def _decode_graphs(self, batches: Sequence[int]) -> list[Graph]:
        run, mesh = self.run, mesh_of(self.run.work)
        graphs = []
        for batch in batches:
            step = make_step(run.work, run.numbers, "decode", 1, 1, batch)
            alike = lower_alike(run.config, step, [1], mesh, run.numbers.formats, self.engine)
            how = Lowering(run.config, step, mesh, run.numbers.formats, self.engine)
            graphs.append(alike[0] if alike else lower(how))
        return graphs

    def _prompt_graphs(self, tokens: Sequence[int]) -> list[Graph]:
        run, mesh = self.run, mesh_of(self.run.work)
        graphs = []
        for count in tokens:
            step = make_step(run.work, run.numbers, "prefill", count, 0, 1)
            alike = lower_alike(run.config, step, [count], mesh, run.numbers.formats, self.engine)
            how = Lowering(run.config, step, mesh, run.numbers.formats, self.engine)
            graphs.append(alike[0] if alike else lower(how))
        return graphs

    def _fill_attention(self, tokens: Sequence[int]) -> None:
        sizes = self.sizes
        counts = doublings(1, max(2, sizes.sequences))
        contexts = doublings(16, max(32, sizes.longest))
        queries = sorted({*doublings(16, sizes.tokens), *self._listed(sizes.tokens)})
        keys = [
            (chunks, q, ratio)
            for q in queries for chunks in CHUNKS for ratio in RATIOS
            if (chunks == 1 or chunks * q <= 2 * sizes.tokens)
            and (ratio <= _LEAST_RATIOS or q * ratio <= _BEYOND * sizes.longest)
        ]  # fmt: skip
        decode, prompt = self._kinds
        decodes = self._seconds(
            [[(replace(op, batch=n, q_len=1, kv_len=c + 1), times) for op, times in decode]
             for n in counts for c in contexts]
        )  # fmt: skip
        self._decodes = Decodes(counts, contexts, decodes.reshape(len(counts), len(contexts)))
        chunks = self._seconds(
            [[(replace(op, batch=b, q_len=q, kv_len=round(q * ratio)), times) for op, times in prompt]
             for b, q, ratio in keys]
        )  # fmt: skip
        self._chunks = Chunks(queries, dict(zip(keys, chunks.tolist(), strict=True)))
        self._joined_s = self._of_a_row(max(q for q in queries if q <= max(LONG_PROMPT, queries[0])))

    def _of_a_row(self, queries: int) -> float:
        """Seconds that a joint call takes for each token in the cache of a decode, whose query has a tile of its own;
        0 where decodes have a call of their own.

        A tile is as much work with one query as with all: as much as that of a long prompt.
        """
        op = self._kinds[0][0][0]
        library = library_of_kernels(self.engine.kernels)
        if not library.joins(self.run.gpu) or op.shared_kv:
            return 0.0
        group = np.array([op.heads / op.kv_heads])
        calls = AttentionCalls(group, np.array([float(op.window)]), np.array([2.0]), np.zeros(1))
        packed = float(library.share_attention(calls, self.run.gpu).packed[0])
        before = round(LONG_CACHE * queries)
        each = self._chunks.at(1.0, queries, before) / (queries * (before + queries / 2.0))
        return each * QUERIES / packed

    def _seconds(self, calls: Sequence[Sequence[tuple[Attention, float]]]) -> FloatArray:
        """Seconds of the attention of all layers, call by call."""
        block = Block("attention", tuple(Node(op) for each in calls for op, _ in each))
        ((timed,),) = self.operators.time([Plan((Stage(Graph((block,)), "prefill", _LONG, gaps=NO_GAPS),))])
        seconds = timed.operators.seconds[timed.blocks[0].rows]
        weights = np.array([times for each in calls for _, times in each])
        return np.add.reduceat(seconds * weights, np.cumsum([0, *map(len, calls[:-1])]))

    # --------------------------------------------------------------------------------------------------------- asking

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

    def decode(self, sequences: int, contexts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Steps of decodes alone, each of shape (steps,), and for how long they hold up the slowest stage of a pipeline
        (without one, all the time); ``contexts``, the tokens in the cache of all ``sequences``."""
        body, cpu = self._decode_body(sequences)
        attention = self._decodes.at(sequences, contexts / sequences)
        wait = self.waits_s(sequences)
        drafted = self._drafted_s(sequences, contexts) if self.sizes.drafts else 0.0
        if len(self._share) == 1:
            whole: FloatArray = (np.maximum(body[0] + attention, cpu[0]) + drafted + wait) * self.factor
            return whole, whole
        stages = np.maximum(body[:, None] + self._share[:, None] * attention, cpu[:, None])
        stages[-1] += drafted
        return (stages.sum(axis=0) + wait) * self.factor, (stages.max(axis=0) + wait) * self.factor

    def decode_step(self, sequences: int, context: float) -> float:
        """One step of `decode` without a pipeline."""
        gpu_s, cpu_s, wait_s, *_ = self.line(sequences)
        if self.sizes.drafts:
            wait_s += float(self._drafted_s(sequences, np.array([context]))[0])
        return (max(gpu_s + self._decodes.of(sequences, context / sequences), cpu_s) + wait_s) * self.factor

    @property
    def points(self) -> list[float]:
        """Mean contexts at which attention of decodes was forecast."""
        return self._decodes.points

    def line(self, sequences: int) -> tuple[float, float, float, list[float], list[float]]:
        """What steps of so many sequences have in common, without a pipeline and before `factor`: seconds of the GPU
        without attention, of the CPU, and waits; attention at `points`, and its slope after each of them."""
        known = self._lines.get(sequences)
        if known is None:
            gpu, cpu = self._decode_body(sequences)
            waits_s = self.waits_s(sequences)
            known = self._lines[sequences] = float(gpu[0]), float(cpu[0]), waits_s, *self._decodes.line(sequences)
        return known

    def _decode_body(self, sequences: int) -> tuple[FloatArray, FloatArray]:
        gpu_and_cpu_s = self._decode_s.get(sequences)
        if gpu_and_cpu_s is None:
            tokens = sequences * self.width
            size = self.graphs.tokens_of(sequences, self.width)
            if self.engine.decode_host == CAPTURED and size is not None:
                gpu, cpu = self._captured.at(size)[0], [0.0] * len(self._share)
            else:
                gpu, cpu = self._launched.at(tokens)
            gpu_and_cpu_s = self._decode_s[sequences] = np.array(gpu), np.array(cpu)
        return gpu_and_cpu_s

    def _drafted_s(self, sequences: int, contexts: FloatArray) -> FloatArray:
        """What makes the drafts of a step, of shape (steps,), as `decode`: passes of the model's layer for it and the
        head (multi-token prediction), or steps of the model that makes them."""
        drafts = self.sizes.drafts
        if self.drafter is not None:
            return drafts * self.drafter.decode(sequences, contexts)[0]
        assert self._draft is not None
        gpu, cpu = self._draft.at(sequences)
        attention = self._decodes.at(sequences, contexts / sequences) / self.run.config.stack().layers
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
        self, chunks: Sequence[tuple[int, int]], sequences: int, context: int, heads: int, widest: int = 0
    ) -> tuple[float, float]:
        """A step of ``chunks`` (tokens, tokens before them) beside ``sequences`` decodes with ``context`` tokens in the
        cache in all, and for how long it holds up the slowest stage of a pipeline; ``heads`` prompts are read to their
        end. ``widest``: tokens of the rank with the most, if more."""
        tokens = max(widest, sum(q for q, _ in chunks) + sequences * self.width)
        gpu, cpu = self._mixed_body(tokens)
        gpu[-1] += self._mixed_head(heads + sequences * self.width)
        attention = self.attention_of(tuple(chunks)) if chunks else 0.0
        if sequences:
            attention += self.attention_beside(sequences, context)
        stages = [max(g + share * attention, c) for g, share, c in zip(gpu, self._shares, cpu, strict=True)]
        if self.sizes.drafts:
            stages[-1] += self._drafted_beside_s(chunks, sequences, context, heads, sum(stages))
        wait = self.waits_s(sequences + len(chunks))
        return (sum(stages) + wait) * self.factor, (max(stages) + wait) * self.factor

    def _mixed_body(self, tokens: int) -> tuple[list[float], list[float]]:
        size = self.graphs.pieces(tokens) if self._pieces is not None else None
        return self._mixed.at(tokens) if size is None or self._pieces is None else self._pieces.at(size)

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

    def attention_beside(self, sequences: int, context: int) -> float:
        """Attention of the decodes of a step with chunks."""
        return max(self._decodes.of(sequences, context / sequences), context * self._joined_s)

    def _mixed_head(self, made: int) -> float:
        """What head and sampler take beyond one sequence, which a prompt's pass has; less, where none ends here."""
        return self._launched.head(made) - self._launched.head(1) if made else -self._launched.head(1)

    def _attention_of(self, chunks: tuple[tuple[int, int], ...]) -> float:
        """Attention of a step's chunks in one call, each as a part of a call of chunks like it that is as much work."""
        if len(chunks) == 1:
            return self._chunks.at(1.0, *chunks[0])
        work = [q * (before + (q + 1) / 2.0) for q, before in chunks]
        total = sum(work)
        return sum(
            self._chunks.at(total / tokens, q, before) * tokens / total
            for tokens, (q, before) in zip(work, chunks, strict=True)
        )  # fmt: skip


def _attention(graph: Graph) -> list[tuple[Attention, float]]:
    """The attention calls of a pass, each with how often it runs; UnsupportedError where attention is not one call."""
    seconds: dict[Attention, float] = {}
    for node, times in graph.nodes():
        if isinstance(node.op, Attention):
            seconds[node.op] = seconds.get(node.op, 0.0) + times
    if not seconds:
        raise UnsupportedError("serving: this model or GPU runs attention in several kernels; expected flash attention")
    return list(seconds.items())
