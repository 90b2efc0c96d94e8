"""Times of plans: each distinct operator is estimated once, whatever holds it, and a timeline made of every stage.

One plan or a thousand, it is the same: the operators of all plans together are one vectorised call a family; what
earlier plans had costs a look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, chain
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor.engines import CALLS, CAPTURED, DECODE, PIECES, PREFILL, Engine
from predictor.files.records import dataclass, replace
from predictor.graph import Block, Graph
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.base import KernelTable, Selector, predict_kernels
from predictor.kernels.power import held_s
from predictor.ops.attention import Attention
from predictor.ops.base import COMPUTE, HOST, Op
from predictor.ops.gemm import Gemm
from predictor.ops.roofline import FloatArray
from predictor.passes.recompute import runs_again
from predictor.simulate.capture import launches_of_pieces
from predictor.simulate.columns import largest, plain
from predictor.simulate.stage import PIPELINE, Plan, Stage, collectives_beside
from predictor.simulate.sustained import Sustained, stretched, sustained
from predictor.simulate.timeline import (
    NO_GAPS,
    Gaps,
    Segment,
    Timeline,
    TwoTimelines,
    eager,
    in_a_row,
    joined,
    kernels_by_gap,
)

IntArray = npt.NDArray[np.int64]

#: What there is between kernels beside an engine's host: the gaps of a stream, and a CPU that launches too late.
GAPS, LAUNCHING = "gaps between kernels", "launches"


@dataclass(frozen=True, slots=True)
class OpTime:
    """One node of a stage: its operator, how often it ran in all, and the operator's row of the table."""

    op: Op
    name: str
    phase: str
    times: float
    index: int


class TimedBlock:
    """A block whose nodes' rows are known: ``rows`` of `Operators`, node by node. ``plain``: every node is one whole
    kernel.

    ``gpu_s``: GPU time of its kernels in one repetition, of shape (kernels,). What `place` takes is by node.
    ``slower``: collectives run beside compute, which is slower by that part then, and count with what is exposed of
    them (`predictor.simulate.timeline`); None where nothing runs beside compute.
    """

    __slots__ = (
        "_asked_s", "_gpu_s", "_sum_s", "block", "by_gap", "flops", "index", "kernels", "plain", "rows", "runs",
        "slower",
    )  # fmt: skip

    def __init__(self, block: Block, rows: list[int] | IntArray, plain: bool, slower: float | None = None) -> None:
        self.block = block
        self.rows = rows
        self.plain = plain
        self.slower = slower

    def gaps_s(self, gaps: Gaps) -> FloatArray:
        """What passes behind each kernel of one repetition, of shape (kernels,)."""
        behind_s: FloatArray = self.by_gap[..., 0] * gaps.alone + self.by_gap[..., 1] * gaps.held
        return behind_s if self.plain else np.repeat(behind_s, [node.count for node in self.block.nodes], axis=-1)

    def gap_s(self, gaps: Gaps) -> Any:
        """Their sum."""
        return self.kernels[0] * gaps.alone + self.kernels[1] * gaps.held

    @property
    def times(self) -> list[float]:
        """How often each node runs in all."""
        counts: list[float] = self.runs.tolist()
        return counts

    def place(self, index: IntArray, runs: FloatArray, flops: Any, by_gap: FloatArray, kernels: Any) -> None:
        """Take ``rows`` as an array, how often each node runs in all, the FLOPs of all its runs, (nodes,) each; the
        kernels of one run by how they were timed, (nodes, 2), and those of one repetition of the block."""
        self.index, self.runs, self.flops = index, runs, flops
        silent = [i for i, node in enumerate(self.block.nodes) if not node.host_calls]  # a part of another's kernel
        if silent:
            by_gap[..., silent, :] = 0.0
        if silent or not self.plain:
            counts = np.array([node.count for node in self.block.nodes]) @ by_gap
            kernels = counts.tolist() if counts.ndim == 1 else counts.T
        self.by_gap, self.kernels = by_gap, kernels

    def fill(self, gpu_s: FloatArray) -> None:
        """Take the times of the nodes' operators, which are those of the kernels where a node is one kernel."""
        self._asked_s = gpu_s
        self._gpu_s: FloatArray | None = None
        self._sum_s: Any = None

    @property
    def operators_s(self) -> FloatArray:
        """Seconds of one call of each node's operator, of shape (nodes,)."""
        return self._asked_s

    @property
    def gpu_s(self) -> FloatArray:
        """GPU time of the kernels of one repetition, of shape (kernels,); worked out when it is asked for: a long run
        asks for other times."""
        if self._gpu_s is None:
            self._gpu_s = self._of_kernels(self._asked_s)
        return self._gpu_s

    def _of_kernels(self, gpu_s: FloatArray) -> FloatArray:
        if not self.plain:
            part_s = gpu_s * np.array([node.share for node in self.block.nodes])
            gpu_s = np.repeat(part_s, [node.count for node in self.block.nodes], axis=-1)
        elif self.slower is not None or any(node.op.stream == HOST for node in self.block.nodes):
            from predictor.simulate.timeline import exposed  # one GPU starts without it

            gpu_s = exposed(self.block, gpu_s.tolist(), self.slower)
        return gpu_s

    def filled(self, gpu_s: FloatArray) -> TimedBlock:
        """This block with other times of the nodes' operators."""
        block = TimedBlock(self.block, self.rows, self.plain, self.slower)
        block.place(self.index, self.runs, self.flops, self.by_gap, self.kernels)
        block.fill(gpu_s)
        return block

    @property
    def sum_s(self) -> Any:
        """GPU time of one repetition."""
        if self._sum_s is None:
            self._sum_s = plain(np.add.reduce(self.gpu_s, axis=-1))
        return self._sum_s

    def segment(self, stage: Stage, first: bool = False) -> Segment:
        """The block on the timelines of ``stage``; ``first``: nothing runs before it."""
        nodes = self.block.nodes
        gaps_s = self.gaps_s(stage.gaps)
        if stage.host == CAPTURED:
            return Segment(self.gpu_s + gaps_s, np.zeros(self.gpu_s.shape[-1]), self.block.repeat, gaps_s)
        if stage.host == PIECES:
            cpu_s = np.array(launches_of_pieces(self.block, first)) * stage.launch_s
        elif stage.layers_captured and self.block.layers:
            cpu_s = np.zeros(len(nodes))
            cpu_s[0] = stage.launch_s
        elif stage.host == CALLS:
            cpu_s = np.array([node.host_calls * stage.launch_s for node in nodes])
        else:  # one launch a kernel; nodes that are one kernel together have one node that calls
            cpu_s = np.array([node.op.kernels() if node.host_calls else 0 for node in nodes]) * stage.launch_s
        if not self.plain:
            cpu_s = np.repeat(cpu_s, [node.count for node in nodes])
        return Segment(self.gpu_s + gaps_s, cpu_s, self.block.repeat, gaps_s)


class TimedStage:
    """A stage of a plan with its times. ``blocks``: those of its graph, in order; ``operators``: what they ran;
    ``counted``: FLOPs of ``stage.counted``, where they are known."""

    def __init__(
        self, stage: Stage, blocks: list[TimedBlock], operators: Operators | Sustained, counted: Any = None
    ) -> None:
        self.stage = stage
        self.counted = counted
        self.blocks = blocks
        self.operators = operators

    @cached_property
    def timeline(self) -> Timeline:
        """One pass, from its first launch to its last kernel; worked out when it is asked for: a search asks for parts
        of the most stages."""
        return self.up_to(len(self.blocks)) if not self.stage.ends else joined(self.pipeline)

    @property
    def table(self) -> KernelTable:
        """What was forecast of every operator, by row."""
        return self.operators.table

    @cached_property
    def segments(self) -> list[Segment]:
        """The blocks as the timeline runs them, kinds of layers in turns."""
        segments = [block.segment(self.stage, not place) for place, block in enumerate(self.blocks)]
        if sum(bool(at.block.layers) for at in self.blocks) < 2:
            return segments
        return [
            replace(segment, turns=self._turns(at.block)) for segment, at in zip(segments, self.blocks, strict=True)
        ]

    def _turns(self, block: Block) -> tuple[int, ...]:
        """When each run of a block comes, by the numbers of its layers: forward from the first on, backward from the
        last. () where it has none, or stands for more than its own runs (a pipeline's)."""
        back = block.backward_of
        layers = block.layers if back is None else self.blocks[back].block.layers
        if len(layers) != block.repeat:
            return ()
        return layers if back is None else tuple(~layer for layer in layers)

    @cached_property
    def timelines(self) -> TwoTimelines:
        """The kernels of all blocks as the timeline runs them."""
        return TwoTimelines(self.segments)

    def up_to(self, blocks: int, after: int = 0) -> Timeline:
        """One pass as far as the first ``blocks`` go, those ``after`` the first so many alone."""
        if self.stage.host == CAPTURED:
            gaps = self.stage.gaps
            if gaps == NO_GAPS:
                return in_a_row([(block.sum_s, block.block.repeat) for block in self.blocks[after:blocks]])
            return in_a_row(
                [(block.sum_s + block.gap_s(gaps), block.block.repeat) for block in self.blocks[after:blocks]]
            )
        return (
            self.timelines.timeline()
            if (after, blocks) == (0, len(self.blocks))
            else eager(self.segments[after:blocks])
        )

    @cached_property
    def pipeline(self) -> list[Timeline]:
        """One pass through each stage of a pipeline, which has a host of its own."""
        ends = self.stage.ends
        return [self.up_to(end, after) for after, end in zip((0, *ends[:-1]), ends, strict=True)]

    @property
    def part(self) -> float:
        """What of a pass's kernels one GPU runs in the time of all passes: 1 where no pipeline shares them."""
        return 1.0 if not self.stage.ends else self.stage.in_flight / len(self.stage.ends)

    @cached_property
    def passed_s(self) -> Any:
        """Seconds until all batches in flight are through: prompts once, each behind the other; decodes again and
        again, where the slowest stage is what they wait for, or their own way through all of them."""
        if not self.stage.ends:
            return self.timeline.total_s
        slowest = largest(*(timeline.total_s for timeline in self.pipeline))
        if self.stage.phase == "decode":
            return largest(self.timeline.total_s, self.stage.in_flight * slowest)
        return self.timeline.total_s + (self.stage.in_flight - 1) * slowest

    @property
    def busy_s(self) -> dict[str, float]:
        """Seconds of one pass in which each stream of the GPU is busy: compute, and every network by its links."""
        busy: dict[str, float] = {COMPUTE: 0.0}
        for at in self.blocks:
            for node, times, row in zip(at.block.nodes, at.times, at.rows, strict=True):
                stream = node.op.stream
                busy[stream] = busy.get(stream, 0.0) + float(self.operators.seconds[row]) * times * self.part
        return busy

    @property
    def kernels_s(self) -> Any:
        """Seconds of one pass in which kernels run."""
        return plain(sum(at.sum_s * at.block.repeat for at in self.blocks)) * self.part

    @property
    def between_s(self) -> dict[str, Any]:
        """Seconds of one pass in which no kernel runs, by what there is in their place; with the kernels' own seconds
        they add up to `each_s`."""
        gaps = sum(at.gap_s(self.stage.gaps) * at.block.repeat for at in self.blocks) * self.part
        launches = (self.timeline.total_s - self.timeline.gpu_s) * self.part
        parts = {GAPS: gaps, LAUNCHING: launches, **dict(self.stage.waits)}
        return parts if not self.stage.ends else parts | {PIPELINE: self.passed_s - self.timeline.total_s * self.part}

    @property
    def each_s(self) -> Any:
        """Seconds of one pass, the engine's overhead with it."""
        return self.passed_s + self.stage.overhead_s

    @property
    def total_s(self) -> Any:
        """Seconds of all passes that the stage stands for."""
        return self.stage.weight * self.each_s

    @property
    def flops(self) -> Any:
        """FLOPs of one pass, of a pipeline's those of one of its GPUs."""
        if self.counted is not None:
            return self.counted * self.part
        if self.stage.counted is not None:
            return self.stage.counted.flops() * self.part
        if any(isinstance(block.flops, np.ndarray) for block in self.blocks):
            return sum(block.flops.sum(axis=-1) for block in self.blocks) * self.part
        return sum(chain.from_iterable(block.flops for block in self.blocks)) * self.part

    @property
    def model_flops(self) -> Any:
        """`flops` without what runs a second time for the backward pass: the nodes that recomputation adds to it, and
        the scores within fused attention."""
        if all(at.block.backward_of is None for at in self.blocks):
            return self.flops
        total = 0.0
        for at in self.blocks:
            if at.block.backward_of is None:
                total += sum(at.flops)
                continue
            for node, times, flops in zip(at.block.nodes, at.times, at.flops, strict=True):
                if not runs_again(node):
                    total += node.op.model_flops() * times if isinstance(node.op, Attention) else flops
        return total * self.part

    @property
    def model_bytes(self) -> float:
        """Weights and cache that one pass reads from memory at least, as L2 may hold some of the pass before; of a
        pipeline, those of one of its GPUs. The backward pass is left out."""
        forward = (at for at in self.blocks if at.block.backward_of is None)
        cold = (
            node.op.cold_bytes() * times for at in forward for node, times in zip(at.block.nodes, at.times, strict=True)
        )
        held = self.operators.gpu.l2_bytes * max(1, len(self.stage.ends))
        return max(0.0, sum(cold) - held) * self.part

    def op_times(self) -> list[OpTime]:
        """Every node with how often it runs in all passes."""
        weight = self.stage.weight * self.part
        return [
            OpTime(node.op, node.name, node.phase, times * weight, row)
            for at in self.blocks
            for node, times, row in zip(at.block.nodes, at.times, at.rows, strict=True)
        ]


#: Of the time that reading and writing the fp32 gradient takes at the data sheet's bandwidth, what a product that adds
#: to it takes longer than the forward product of as many FLOPs: the median of the 61 shapes that SimuMax measured in
#: both layouts on A100 PCIe (source: MooreThreads/SimuMax@4dcaae5, configs/system/a100_pcie.json; 1.05 times as long
#: there, and a share of the bytes explains them better than a share of the product: 1.7 against 2.2 %, medians).
ADDING = 0.43
#: Bytes of an element of that gradient, read and written, by definition.
_ADDED_BYTES = 8.0


def _longer_s(op: Op, seconds: float, engine: Engine, gpu: GPUSpec) -> float:
    """What an operator takes beyond the ``seconds`` of the measured kernel: an older one, or one that does more."""
    if isinstance(op, Gemm):
        training = engine.training
        adds = training is not None and training.adds_in_product and op.layout == "nt" and op.kind == "linear"
        return ADDING * _ADDED_BYTES * op.m * op.n * op.batch / gpu.memory_bandwidth if adds else 0.0
    if not isinstance(op, Attention):
        return 0.0
    return (engine.slower.get(DECODE if op.is_decode else PREFILL, 1.0) - 1.0) * seconds


def _of_library(ops: Sequence[Op], gpu: GPUSpec, table: KernelTable, library: str) -> KernelTable:
    """The table with fused attention as a ``library`` has it; an older one is never faster than what was measured."""
    from predictor.engines.attention_ages import OLDER, library_s  # what was measured starts without it

    taken = np.array([library_s(library, op, gpu) if isinstance(op, Attention) else 0.0 for op in ops])
    ratio = np.where(taken > 0.0, np.maximum(taken, table.lower_bound_s) / table.latency_s, 1.0)
    return stretched(np.maximum(ratio, 1.0) if library in OLDER else ratio, table)


class RowSpread(NamedTuple):
    """How far operators may be off, by row (rows,): the ends of their intervals over their seconds, NaN where none is
    known, the code of the class that errs together, and how far from what was measured (`OperatorIntervals`)."""

    low: FloatArray
    high: FloatArray
    classes: IntArray
    distance: IntArray


class Operators:
    """Every operator that one engine ran on one GPU, by row: its seconds and FLOPs, those of one call.

    ``held_s``: seconds of products in a long run, as power holds them; 0 of others. ``above``: where those are more;
    ``least_s``: the lesser of both. ``spread``: how far they may be off; None without intervals.
    """

    def __init__(self, gpu: GPUSpec, engine: Engine, selector: Selector) -> None:
        self.gpu = gpu
        self.engine = engine
        self.selector = selector
        self.rows: dict[Op, int] = {}
        self.seconds: FloatArray = np.zeros(0)
        self.held_s: FloatArray = np.zeros(0)
        self.above: npt.NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self.least_s: FloatArray = np.zeros(0)
        self.flops: FloatArray = np.zeros(0)
        self.spread: RowSpread | None = None
        self._kinds: dict[tuple[str, str], int] = {}
        self.by_gap: FloatArray = np.zeros((0, 2))
        self._tables: list[KernelTable] = []
        self._missing: list[Op] = []
        # By id, while graphs are asked for: they share operators and blocks, and hashing operators takes longer.
        self._ops: dict[int, int] = {}
        self._blocks: dict[int, TimedBlock] = {}
        self._columns: list[TimedBlock] = []

    @property
    def kinds(self) -> tuple[tuple[str, str], ...]:
        """(estimator, class) by the codes of ``spread``; the first is the roofline's."""
        return (("", ""), *self._kinds)

    @property
    def table(self) -> KernelTable:
        """What was forecast of every operator, where one call did it."""
        (table,) = self._tables
        return table

    def time(self, plans: Sequence[Plan]) -> list[tuple[TimedStage, ...]]:
        """The stages of every plan, timed."""
        asked = [[self._blocks_of(stage.graph) for stage in plan.stages] for plan in plans]
        self._answer()
        timed = []
        for plan, whole in zip(plans, asked, strict=True):
            run, held = sustained(
                self, [(stage.weight, blocks) for stage, blocks in zip(plan.stages, whole, strict=True)]
            )
            timed.append(tuple(TimedStage(*each, run) for each in zip(plan.stages, held, strict=True)))
        return timed

    def time_columns(self, plans: Sequence[tuple[Plan, int]]) -> list[tuple[TimedStage, ...]]:
        """The stages of plans of so many points each, timed."""
        asked = [[self._columns_of(stage.graph, count) for stage in plan.stages] for plan, count in plans]
        counted = [
            [None if stage.counted is None else flops_of(stage.counted, count) for stage in plan.stages]
            for plan, count in plans
        ]
        self._answer()
        timed = []
        for (plan, _), whole, flops in zip(plans, asked, counted, strict=True):
            run, held = sustained(
                self, [(stage.weight, blocks) for stage, blocks in zip(plan.stages, whole, strict=True)]
            )
            stages = zip(plan.stages, held, flops, strict=True)
            timed.append(tuple(TimedStage(stage, blocks, run, known) for stage, blocks, known in stages))
        return timed

    def _blocks_of(self, graph: Graph) -> list[TimedBlock]:
        """The blocks of a graph, which have no times before `_answer`."""
        blocks = []
        for block in graph.blocks:
            timed = self._blocks.get(id(block))
            if timed is None:
                timed = self._blocks[id(block)] = self._timed(block)
            blocks.append(timed)
        return blocks

    def _columns_of(self, graph: Graph, count: int) -> list[TimedBlock]:
        """As `_blocks_of`, of a graph whose operators have columns of ``count`` points."""
        blocks, points = [], _ColumnOps()
        known: dict[int, IntArray] = {}  # by id of an operator, which the stages of a pipeline share
        for block in graph.blocks:
            rows = np.empty((count, len(block.nodes)), dtype=np.int64)
            for place, node in enumerate(block.nodes):
                row = known.get(id(node.op))
                if row is None:
                    ops, places = points.of(node.op)
                    row = known[id(node.op)] = np.array([self._row(op) for op in ops])[places]
                rows[:, place] = row
            whole = all(node.count == 1 and node.share == 1.0 for node in block.nodes)
            timed = TimedBlock(block, rows, whole)
            self._columns.append(timed)
            blocks.append(timed)
        return blocks

    def _row(self, op: Op) -> int:
        row = self.rows.get(op)
        if row is None:
            row = self.rows[op] = len(self.rows)
            self._missing.append(op)
        return row

    def _timed(self, block: Block) -> TimedBlock:
        rows, known = self.rows, self._ops
        index, plain = [], True
        for node in block.nodes:
            op = node.op
            row = known.get(id(op))
            if row is None:
                row = rows.get(op)
                if row is None:
                    row = rows[op] = len(rows)
                    self._missing.append(op)
                known[id(op)] = row
            index.append(row)
            if node.count != 1 or node.share != 1.0:
                plain = False
        if not collectives_beside(block, self.engine):
            return TimedBlock(block, index, plain)
        from predictor.simulate.timeline import slowdown  # one GPU starts without it

        return TimedBlock(block, index, plain, slowdown(self.gpu))

    def _answer(self) -> None:
        """Forecast what is missing, then fill in the blocks."""
        if self._missing:
            engine, gpu, ops = self.engine, self.gpu, self._missing
            chosen_of = engine.library_of(gpu)
            if any(op.family == "collective" for op in ops):
                from predictor.engines.defaults import library_of  # one GPU asks nobody who reduces

                chosen_of = library_of(engine, gpu)
            table = predict_kernels(ops, gpu, self.selector, engine.kernels, chosen_of, engine.serves)
            if engine.slower or (engine.trains and any(isinstance(op, Gemm) and op.layout == "nt" for op in ops)):
                more_s = [_longer_s(op, s, engine, gpu) for op, s in zip(ops, table.latency_s.tolist(), strict=True)]
                table = stretched(1.0 + np.array(more_s) / table.latency_s, table)
            if (engine.aged or engine.trains) and engine.training is not None and engine.training.attention:
                table = _of_library(ops, gpu, table, engine.training.attention)
            self._tables.append(table)
            self._spread(table)
            self.seconds = np.concatenate((self.seconds, table.latency_s))
            measured = np.array([name != "" for name in table.estimators])  # the roofline alone stays what it is
            self.held_s = np.concatenate((self.held_s, np.where(measured, held_s(ops, gpu, table.latency_s), 0.0)))
            self.above = self.held_s > self.seconds
            self.least_s = np.minimum(self.held_s, self.seconds)
            self.flops = np.concatenate((self.flops, [op.flops() for op in ops]))
            self.by_gap = np.concatenate((self.by_gap, [kernels_by_gap(op) for op in ops]))
        self._fill()
        self._missing, self._ops, self._blocks, self._columns = [], {}, {}, []

    def _spread(self, table: KernelTable) -> None:
        """Take how far the new rows may be off; codes of classes are those of all tables."""
        known = table.spread
        if known is None:
            return
        codes = np.array([0, *(self._kinds.setdefault(kind, len(self._kinds) + 1) for kind in known.kinds)])
        ends = known.low_s / table.latency_s, known.high_s / table.latency_s
        new = RowSpread(*ends, codes[known.classes], known.distance)
        old = self.spread
        if old is not None:
            low, high = np.concatenate((old.low, new.low)), np.concatenate((old.high, new.high))
            distance = np.concatenate((old.distance, new.distance))
            new = RowSpread(low, high, np.concatenate((old.classes, new.classes)), distance)
        self.spread = new

    def _fill(self) -> None:
        for block in self._columns:
            index, of = np.asarray(block.rows), block.block
            runs = np.array([float(node.count * of.repeat * node.share) for node in of.nodes])
            by_gap = self.by_gap[index]
            block.place(index, runs, self.flops[index] * runs, by_gap, by_gap.sum(axis=1).T)
            block.fill(self.seconds[index])
        blocks = list(self._blocks.values())
        sizes = [len(block.rows) for block in blocks]
        index = np.fromiter(chain.from_iterable(block.rows for block in blocks), np.int64, sum(sizes))
        times = np.repeat([float(block.block.repeat) for block in blocks], sizes)
        ends = list(accumulate(sizes))
        for block, end in zip(blocks, ends, strict=True):
            if not block.plain:
                of = block.block
                times[end - len(of.nodes) : end] = [node.count * of.repeat * node.share for node in of.nodes]
        seconds, flops = self.seconds[index], (self.flops[index] * times).tolist()
        by_gap = self.by_gap[index]
        before = np.concatenate((np.zeros((1, 2)), np.cumsum(by_gap, axis=0)))
        totals = (before[ends] - before[[0, *ends[:-1]]]).tolist()
        for block, size, end, total in zip(blocks, sizes, ends, totals, strict=True):
            part = slice(end - size, end)
            block.place(index[part], times[part], flops[part], by_gap[part], total)
            block.fill(seconds[part])


def flops_of(graph: Graph, count: int) -> FloatArray:
    """FLOPs of one run of a graph with columns, (points,)."""
    total, points = np.zeros(count), _ColumnOps()
    for node, times in graph.nodes():
        total += points.number(node.op, methodcaller("flops")) * times
    return total


def largest_moment(graph: Graph) -> Any:
    """Largest traffic of activations that one operator of a graph with columns needs at once, (points,)."""
    most, points = 0.0, _ColumnOps()
    for block in graph.blocks:
        for node in block.nodes:
            most = np.maximum(most, points.number(node.op, methodcaller("activation_bytes")) * node.share)
    return most


class _ColumnOps:
    """The points of operators with columns; what several have a column of is looked at once."""

    def __init__(self) -> None:
        self._codes: dict[int, tuple[npt.NDArray[Any], IntArray, IntArray]] = {}
        self._known: dict[int, tuple[list[Op], IntArray]] = {}
        self._numbers: dict[int, Any] = {}

    def of(self, op: Op) -> tuple[list[Op], IntArray]:
        """The distinct operators of one with columns, and which of them each point has; of one without, itself."""
        if id(op) not in self._known:
            self._known[id(op)] = self._distinct(op)
        return self._known[id(op)]

    def number(self, op: Op, of: Callable[[Op], float]) -> Any:
        """What a method says of one with columns, (points,); a number of one without."""
        if id(op) not in self._numbers:
            try:
                number: Any = of(op)  # most formulas hold for columns as they stand
            except (TypeError, ValueError):  # the way goes by a size
                ops, places = self.of(op)
                number = np.array([of(each) for each in ops])[places]
            self._numbers[id(op)] = number.astype(np.float64) if isinstance(number, np.ndarray) else number
        return self._numbers[id(op)]

    def _distinct(self, op: Op) -> tuple[list[Op], IntArray]:
        plan = type(op).__plan__  # type: ignore[attr-defined]
        values = list(plan.values(op))
        columns = [place for place, value in enumerate(values) if isinstance(value, np.ndarray)]
        if not columns:
            return [op], np.zeros(1, dtype=np.int64)
        _, where, places = self._coded(values[columns[0]])
        for place in columns[1:]:
            others, _, code = self._coded(values[place])
            _, where, places = np.unique(places * len(others) + code, return_index=True, return_inverse=True)
        parts = [values[place][where].tolist() for place in columns]
        ops = []
        for each in zip(*parts, strict=True):
            for place, value in zip(columns, each, strict=True):
                values[place] = value
            ops.append(type(op)(*values))
        return ops, places

    def _coded(self, column: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], IntArray, IntArray]:
        """The distinct numbers of a column, where each of them is first, and which of them each point has."""
        if id(column) not in self._codes:
            numbers = np.array(column.tolist())
            self._codes[id(column)] = np.unique(numbers, return_index=True, return_inverse=True)
        return self._codes[id(column)]
