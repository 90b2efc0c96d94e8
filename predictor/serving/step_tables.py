"""What `predictor.serving.costs` knows of the steps of one server: tables that the estimators fill when they are asked
for. A server that reads prompts alone needs none of decodes, and the other way round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from predictor.engines import CAPTURED, PIECES, Engine
from predictor.engines import library as library_of_kernels
from predictor.engines.library import AttentionCalls, JointCall
from predictor.engines.vintage import Graphs
from predictor.errors import UnsupportedError
from predictor.files.records import dataclass, replace
from predictor.forecast.forecast import WithoutIntervals
from predictor.graph import Block, Graph, Node
from predictor.ops.attention import Attention
from predictor.ops.roofline import FloatArray
from predictor.passes.pipeline import staged
from predictor.request.run import Run
from predictor.serving.cost_tables import CHUNKS, RATIOS, Body, Chunks, Decodes, doublings
from predictor.serving.joint_call import JointDecodes
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
_LONG_PROMPT, _LONG_CACHE = 2048, 7
#: Lengths of prompts that become points of the tables, if there are no more. Chosen by hand, not from data: a trace of
#: random lengths has none.
_LISTED = 24


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


class StepTables:
    """Tables of the steps of a run, which is in mode generate, of up to ``sizes``."""

    def __init__(self, run: Run, sizes: Sizes, graphs: Graphs) -> None:
        self.run, self.sizes, self.graphs = run, sizes, graphs
        self.engine: Engine = run.work.engine
        self.width = 1 + sizes.drafts
        self.operators = Operators(run.gpu, self.engine, WithoutIntervals(run.selector))
        self._captures = self.engine.decode_host == CAPTURED

    @cached_property
    def _steps(self) -> list[int]:
        """Sequences of decode steps that are forecast."""
        most = self.sizes.sequences * self.width
        each = 1 if self.graphs.of_tokens else self.width
        inside = [size * each for size in self.graphs.sizes if size * each < 2 * most] if self._captures else []
        return sorted({*doublings(1, most), *inside})

    @cached_property
    def _largest(self) -> int:
        """Tokens of the largest step with prompts that runs in pieces of graphs; 0 where none does."""
        return min(self.graphs.prompt_tokens, self.sizes.tokens) if self._captures else 0

    @cached_property
    def _tokens(self) -> list[int]:
        """Tokens of steps with prompts that are forecast."""
        most = self.sizes.tokens
        return sorted({*doublings(1, most), *self._listed(most), max(1, self._largest)})

    @cached_property
    def _heads(self) -> list[Graph]:
        return self._decode_graphs(self._steps)

    @cached_property
    def _prompts(self) -> list[Graph]:
        return self._prompt_graphs(self._tokens)

    def _body(self, tokens: Sequence[int], graphs: Sequence[Graph], phase: str, host: str) -> Body:
        stages = [self._stage(graph, n, phase, host) for n, graph in zip(tokens, graphs, strict=True)]
        return Body(tokens, [timed for (timed,) in self.operators.time([Plan((stage,)) for stage in stages])])

    @cached_property
    def captured(self) -> Body:
        """Decode steps in a graph."""
        return self._body(self._steps, self._heads, "decode", CAPTURED)

    @cached_property
    def launched(self) -> Body:
        """Decode steps kernel by kernel."""
        return self._body(self._steps, self._heads, "decode", self.engine.host)

    @cached_property
    def mixed(self) -> Body:
        """Steps with prompts."""
        return self._body(self._tokens, self._prompts, "prefill", self.engine.host)

    @cached_property
    def pieces(self) -> Body | None:
        """Steps with prompts in pieces of graphs, if any are."""
        inside = [(n, graph) for n, graph in zip(self._tokens, self._prompts, strict=True) if n <= self._largest]
        return self._body([n for n, _ in inside], [graph for _, graph in inside], "prefill", PIECES) if inside else None

    @cached_property
    def draft(self) -> Body:
        """Passes of the model's own layer for drafts, without attention, by sequences."""
        host = CAPTURED if self._captures else self.engine.host
        gaps, launch_s = gaps_of(host == CAPTURED, self.run.work.kernel_gap_s), self.run.work.launch_overhead_s
        graphs = (drafting(reducing(graph, self.run)) for graph in self._heads)
        stages = [Stage(graph, DRAFT, _LONG, host, launch_s, gaps=gaps) for graph in graphs]
        return Body(self._steps, [timed for (timed,) in self.operators.time([Plan((stage,)) for stage in stages])])

    def _listed(self, most: int) -> tuple[int, ...]:
        listed = tuple(n for n in set(self.sizes.prompts) if n <= most)
        return listed if len(listed) <= _LISTED else ()

    def _stage(self, graph: Graph, tokens: int, phase: str, host: str) -> Stage:
        gaps = gaps_of(host in (CAPTURED, PIECES), self.run.work.kernel_gap_s)
        stage = Stage(reducing(graph, self.run), phase, _LONG, host, self.run.work.launch_overhead_s, gaps=gaps)
        stack, mesh = self.run.config.stack(), mesh_of(self.run.work)
        if self.run.work.parallelism.pp == 1 or mesh is None:
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

    @cached_property
    def decodes(self) -> Decodes:
        """Attention of decodes."""
        counts = doublings(1, max(2, self.sizes.sequences))
        contexts = doublings(16, max(32, self.sizes.longest))
        calls = _attention(self._heads[0])
        seconds = self._seconds(
            [[(replace(op, batch=n, q_len=1, kv_len=c + 1), times) for op, times in calls]
             for n in counts for c in contexts]
        )  # fmt: skip
        return Decodes(counts, contexts, seconds.reshape(len(counts), len(contexts)))

    @cached_property
    def _queries(self) -> list[int]:
        return sorted({*doublings(16, self.sizes.tokens), *self._listed(self.sizes.tokens)})

    @cached_property
    def chunks(self) -> Chunks:
        """Attention over chunks of prompts."""
        sizes, queries = self.sizes, self._queries
        keys = [
            (chunks, q, ratio)
            for q in queries for chunks in CHUNKS for ratio in RATIOS
            if (chunks == 1 or chunks * q <= 2 * sizes.tokens)
            and (ratio <= _LEAST_RATIOS or q * ratio <= _BEYOND * sizes.longest)
        ]  # fmt: skip
        calls = _attention(self._prompts[0])
        seconds = self._seconds(
            [[(replace(op, batch=b, q_len=q, kv_len=round(q * ratio)), times) for op, times in calls]
             for b, q, ratio in keys]
        )  # fmt: skip
        return Chunks(queries, dict(zip(keys, seconds.tolist(), strict=True)))

    @cached_property
    def _call(self) -> JointCall | None:
        """The call in which decodes are with the prompts of their step, if they are."""
        if _attention(self._heads[0])[0][0].shared_kv:
            return None
        return library_of_kernels(self.engine.kernels).joins(self.run.gpu)

    @cached_property
    def joint(self) -> JointDecodes | None:
        """Decodes in the call of their step's prompts, where that has a grid of all sequences."""
        call = self._call
        if call is None or not call.split_bytes:
            return None
        library = library_of_kernels(self.engine.kernels)
        return JointDecodes(_attention(self._heads[0]), call, library, self.run.gpu, self._seconds)

    @cached_property
    def joined_s(self) -> float:
        """What a joint call without such a grid takes for each token in the cache of a decode, whose query has a tile
        of its own; 0 where decodes have a call of their own.

        A tile is as much work with one query as with all: as much as that of a long prompt.
        """
        call = self._call
        if call is None:
            return 0.0
        op = _attention(self._heads[0])[0][0]
        queries = max(q for q in self._queries if q <= max(_LONG_PROMPT, self._queries[0]))
        group = np.array([op.heads / op.kv_heads])
        calls = AttentionCalls(group, np.array([float(op.window)]), np.array([2.0]), np.zeros(1))
        packed = library_of_kernels(self.engine.kernels).share_attention(calls, self.run.gpu).packed
        before = round(_LONG_CACHE * queries)
        each = self.chunks.at(1.0, queries, before) / (queries * (before + queries / 2.0))
        return each * call.rows / float(packed[0])

    def _seconds(self, calls: Sequence[Sequence[tuple[Attention, float]]]) -> FloatArray:
        """Seconds of the attention of all layers, call by call."""
        block = Block("attention", tuple(Node(op) for each in calls for op, _ in each))
        ((timed,),) = self.operators.time([Plan((Stage(Graph((block,)), "prefill", _LONG, gaps=NO_GAPS),))])
        seconds = timed.operators.seconds[timed.blocks[0].rows]
        weights = np.array([times for each in calls for _, times in each])
        return np.add.reduceat(seconds * weights, np.cumsum([0, *map(len, calls[:-1])]))


def _attention(graph: Graph) -> list[tuple[Attention, float]]:
    """The attention calls of a pass, each with how often it runs; UnsupportedError where attention is not one call."""
    seconds: dict[Attention, float] = {}
    for node, times in graph.nodes():
        if isinstance(node.op, Attention):
            seconds[node.op] = seconds.get(node.op, 0.0) + times
    if not seconds:
        raise UnsupportedError("serving: this model or GPU runs attention in several kernels; expected flash attention")
    return list(seconds.items())
