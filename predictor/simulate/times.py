"""Times of plans: each distinct operator is estimated once, whatever holds it, and a timeline made of every stage.

One plan or a thousand, it is the same: the operators of all plans together are one vectorised call a family; what
earlier plans had costs a look-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, chain

import numpy as np
import numpy.typing as npt

from predictor.engines import CALLS, CAPTURED, DECODE, PIECES, PREFILL, Engine
from predictor.files.records import dataclass
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
from predictor.simulate.stage import PIPELINE, Plan, Stage, collectives_beside
from predictor.simulate.sustained import Sustained, stretched, sustained
from predictor.simulate.timeline import NO_GAPS, Gaps, Segment, Timeline, eager, in_a_row, joined, kernels_by_gap

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

    def __init__(self, block: Block, rows: list[int], plain: bool, slower: float | None = None) -> None:
        self.block = block
        self.rows = rows
        self.plain = plain
        self.slower = slower

    def gaps_s(self, gaps: Gaps) -> FloatArray:
        """What passes behind each kernel of one repetition, of shape (kernels,)."""
        behind_s: FloatArray = self.by_gap[:, 0] * gaps.alone + self.by_gap[:, 1] * gaps.held
        return behind_s if self.plain else np.repeat(behind_s, [node.count for node in self.block.nodes])

    def gap_s(self, gaps: Gaps) -> float:
        """Their sum."""
        return self.kernels[0] * gaps.alone + self.kernels[1] * gaps.held

    @property
    def times(self) -> list[float]:
        """How often each node runs in all."""
        counts: list[float] = self.runs.tolist()
        return counts

    def place(
        self, index: IntArray, runs: FloatArray, flops: list[float], by_gap: FloatArray, kernels: list[float]
    ) -> None:
        """Take ``rows`` as an array, how often each node runs in all, the FLOPs of all its runs, (nodes,) each; the
        kernels of one run by how they were timed, (nodes, 2), and those of one repetition of the block."""
        self.index, self.runs, self.flops = index, runs, flops
        silent = [i for i, node in enumerate(self.block.nodes) if not node.host_calls]  # a part of another's kernel
        if silent:
            by_gap[silent] = 0.0
        if silent or not self.plain:
            kernels = (np.array([node.count for node in self.block.nodes]) @ by_gap).tolist()
        self.by_gap, self.kernels = by_gap, kernels

    def fill(self, gpu_s: FloatArray) -> None:
        """Take the times of the nodes' operators, which are those of the kernels where a node is one kernel."""
        self._asked_s = gpu_s
        self._gpu_s: FloatArray | None = None
        self._sum_s: float | None = None

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
            gpu_s = np.repeat(part_s, [node.count for node in self.block.nodes])
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
    def sum_s(self) -> float:
        """GPU time of one repetition."""
        if self._sum_s is None:
            self._sum_s = float(np.add.reduce(self.gpu_s))
        return self._sum_s

    def segment(self, stage: Stage, first: bool = False) -> Segment:
        """The block on the timelines of ``stage``; ``first``: nothing runs before it."""
        nodes = self.block.nodes
        gaps_s = self.gaps_s(stage.gaps)
        if stage.host == CAPTURED:
            return Segment(self.gpu_s + gaps_s, np.zeros(len(self.gpu_s)), self.block.repeat, gaps_s)
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
    """A stage of a plan with its times. ``blocks``: those of its graph, in order; ``operators``: what they ran."""

    def __init__(self, stage: Stage, blocks: list[TimedBlock], operators: Operators | Sustained) -> None:
        self.stage = stage
        self.blocks = blocks
        self.operators = operators
        self.timeline = self.up_to(len(blocks)) if not stage.ends else joined(self.pipeline)

    @property
    def table(self) -> KernelTable:
        """What was forecast of every operator, by row."""
        return self.operators.table

    @cached_property
    def segments(self) -> list[Segment]:
        """The blocks as the timeline runs them."""
        return [block.segment(self.stage, not place) for place, block in enumerate(self.blocks)]

    def up_to(self, blocks: int, after: int = 0) -> Timeline:
        """One pass as far as the first ``blocks`` go, those ``after`` the first so many alone."""
        if self.stage.host == CAPTURED:
            gaps = self.stage.gaps
            if gaps == NO_GAPS:
                return in_a_row([(block.sum_s, block.block.repeat) for block in self.blocks[after:blocks]])
            return in_a_row(
                [(block.sum_s + block.gap_s(gaps), block.block.repeat) for block in self.blocks[after:blocks]]
            )
        return eager(self.segments[after:blocks])

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
    def passed_s(self) -> float:
        """Seconds until all batches in flight are through: prompts once, each behind the other; decodes again and
        again, where the slowest stage is what they wait for, or their own way through all of them."""
        if not self.stage.ends:
            return self.timeline.total_s
        slowest = max(timeline.total_s for timeline in self.pipeline)
        if self.stage.phase == "decode":
            return max(self.timeline.total_s, self.stage.in_flight * slowest)
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
    def kernels_s(self) -> float:
        """Seconds of one pass in which kernels run."""
        return float(sum(at.sum_s * at.block.repeat for at in self.blocks)) * self.part

    @property
    def between_s(self) -> dict[str, float]:
        """Seconds of one pass in which no kernel runs, by what there is in their place; with the kernels' own seconds
        they add up to `each_s`."""
        gaps = sum(at.gap_s(self.stage.gaps) * at.block.repeat for at in self.blocks) * self.part
        launches = (self.timeline.total_s - self.timeline.gpu_s) * self.part
        parts = {GAPS: gaps, LAUNCHING: launches, **dict(self.stage.waits)}
        return parts if not self.stage.ends else parts | {PIPELINE: self.passed_s - self.timeline.total_s * self.part}

    @property
    def each_s(self) -> float:
        """Seconds of one pass, the engine's overhead with it."""
        return self.passed_s + self.stage.overhead_s

    @property
    def total_s(self) -> float:
        """Seconds of all passes that the stage stands for."""
        return self.stage.weight * self.each_s

    @property
    def flops(self) -> float:
        """FLOPs of one pass, of a pipeline's those of one of its GPUs."""
        if self.stage.counted is not None:
            return self.stage.counted.flops() * self.part
        return sum(chain.from_iterable(block.flops for block in self.blocks)) * self.part

    @property
    def model_flops(self) -> float:
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


class Operators:
    """Every operator that one engine ran on one GPU, by row: its seconds and FLOPs, those of one call.

    ``held_s``: seconds of products in a long run, as power holds them; 0 of others.
    """

    def __init__(self, gpu: GPUSpec, engine: Engine, selector: Selector) -> None:
        self.gpu = gpu
        self.engine = engine
        self.selector = selector
        self.rows: dict[Op, int] = {}
        self.seconds: FloatArray = np.zeros(0)
        self.held_s: FloatArray = np.zeros(0)
        self.flops: FloatArray = np.zeros(0)
        self.by_gap: FloatArray = np.zeros((0, 2))
        self._tables: list[KernelTable] = []
        self._missing: list[Op] = []
        # By id, while graphs are asked for: they share operators and blocks, and hashing operators takes longer.
        self._ops: dict[int, int] = {}
        self._blocks: dict[int, TimedBlock] = {}

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

    def _blocks_of(self, graph: Graph) -> list[TimedBlock]:
        """The blocks of a graph, which have no times before `_answer`."""
        blocks = []
        for block in graph.blocks:
            timed = self._blocks.get(id(block))
            if timed is None:
                timed = self._blocks[id(block)] = self._timed(block)
            blocks.append(timed)
        return blocks

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
            self.seconds = np.concatenate((self.seconds, table.latency_s))
            measured = np.array([name != "" for name in table.estimators])  # the roofline alone stays what it is
            self.held_s = np.concatenate((self.held_s, np.where(measured, held_s(ops, gpu, table.latency_s), 0.0)))
            self.flops = np.concatenate((self.flops, [op.flops() for op in ops]))
            self.by_gap = np.concatenate((self.by_gap, [kernels_by_gap(op) for op in ops]))
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
        self._missing, self._ops, self._blocks = [], {}, {}
