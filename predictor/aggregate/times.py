"""Times of plans: each distinct operator is estimated once, whatever holds it, and a timeline made of every stage.

One plan or a thousand, it is the same: the operators of all plans together are one vectorised call a family; what
earlier plans had costs a look-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from predictor.aggregate.plan import Plan, Stage
from predictor.aggregate.timeline import Segment, Timeline, eager, in_a_row
from predictor.engines import CALLS, Engine
from predictor.estimators.base import KernelTable, Selector, predict_kernels
from predictor.estimators.cold import cold_weights_s
from predictor.graph import Block, Graph, Node
from predictor.hardware.gpu import GPUSpec
from predictor.ops.base import Op
from predictor.roofline import FloatArray


@dataclass(frozen=True, slots=True)
class OpTime:
    """One node of a stage: its operator, how often it ran in all, and the operator's row of the table."""

    op: Op
    name: str
    phase: str
    times: float
    index: int


class TimedBlock:
    """A block whose nodes' rows are known: ``rows`` of `Operators`, node by node.

    ``gpu_s``: GPU time of each node's kernel, of shape (nodes,), ``sum_s`` of one repetition; ``flops`` of all runs of
    each node.
    """

    __slots__ = ("block", "flops", "gpu_s", "rows", "sum_s")

    def __init__(self, block: Block, rows: tuple[int, ...]) -> None:
        self.block = block
        self.rows = rows
        self.flops: list[float] = []
        self.gpu_s: FloatArray = np.zeros(0)
        self.sum_s = 0.0

    def answer(self, seconds: Sequence[float], flops: Sequence[float]) -> None:
        """Fill in the times, from those of all operators."""
        block, rows = self.block, self.rows
        gpu_s = np.array([seconds[row] for row in rows])
        self.flops = []
        shared = many = False
        for node, row in zip(block.nodes, rows, strict=True):
            self.flops.append(flops[row] * (node.count * block.repeat * node.share))
            shared = shared or node.share != 1.0
            many = many or node.count > 1
        if shared:
            gpu_s = gpu_s * np.array([node.share for node in block.nodes])
        if many:
            gpu_s = np.repeat(gpu_s, [node.count for node in block.nodes])
        self.gpu_s, self.sum_s = gpu_s, float(gpu_s.sum())

    def segment(self, stage: Stage) -> Segment:
        """The block on the timelines of ``stage``."""
        nodes = self.block.nodes
        if stage.captured:
            return Segment(self.gpu_s, np.zeros(len(self.gpu_s)), self.block.repeat)
        if stage.host == CALLS:
            cpu_s = np.array([node.host_calls * stage.launch_s for node in nodes])
        else:  # one launch a kernel; nodes that are one kernel together have one node that calls
            cpu_s = np.array([node.op.kernels() if node.host_calls else 0 for node in nodes]) * stage.launch_s
        if len(self.gpu_s) > len(nodes):
            cpu_s = np.repeat(cpu_s, [node.count for node in nodes])
        return Segment(self.gpu_s, cpu_s, self.block.repeat)


class TimedStage:
    """A stage of a plan with its times. ``blocks``: those of its graph, in order; ``operators``: what they ran."""

    def __init__(self, stage: Stage, blocks: list[TimedBlock], operators: Operators) -> None:
        self.stage = stage
        self.blocks = blocks
        self.operators = operators
        self.timeline = self.up_to(len(blocks))

    @property
    def table(self) -> KernelTable:
        """What was forecast of every operator, by row."""
        return self.operators.table

    @cached_property
    def segments(self) -> list[Segment]:
        """The blocks as the timeline runs them."""
        return [block.segment(self.stage) for block in self.blocks]

    def up_to(self, blocks: int) -> Timeline:
        """One pass as far as the first ``blocks`` go."""
        if self.stage.captured:
            return in_a_row((block.sum_s, block.block.repeat) for block in self.blocks[:blocks])
        return eager(self.segments[:blocks])

    @property
    def each_s(self) -> float:
        """Seconds of one pass, the engine's overhead with it."""
        return self.timeline.total_s + self.stage.overhead_s

    @property
    def total_s(self) -> float:
        """Seconds of all passes that the stage stands for."""
        return self.stage.weight * self.each_s

    @property
    def flops(self) -> float:
        """FLOPs of one pass."""
        return sum(flops for block in self.blocks for flops in block.flops)

    def op_times(self) -> list[OpTime]:
        """Every node with how often it runs in all passes."""
        weight = self.stage.weight
        return [
            OpTime(node.op, node.name, node.phase, node.count * at.block.repeat * node.share * weight, row)
            for at in self.blocks
            for node, row in zip(at.block.nodes, at.rows, strict=True)
        ]


class Operators:
    """Every operator that one engine ran on one GPU, by row: its seconds and FLOPs, those of one call."""

    def __init__(self, gpu: GPUSpec, engine: Engine, selector: Selector) -> None:
        self.gpu = gpu
        self.engine = engine
        self.selector = selector
        self.rows: dict[Op, int] = {}
        self.seconds: list[float] = []
        self.flops: list[float] = []
        self._tables: list[KernelTable] = []
        self._missing: list[Op] = []
        # By id, while graphs are asked for: decode steps share nodes and blocks, and hashing operators takes longer.
        self._nodes: dict[int, int] = {}
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
        return [
            tuple(TimedStage(stage, blocks, self) for stage, blocks in zip(plan.stages, whole, strict=True))
            for plan, whole in zip(plans, asked, strict=True)
        ]

    def _blocks_of(self, graph: Graph) -> list[TimedBlock]:
        """The blocks of a graph, which have no times before `_answer`."""
        found = []
        for block in graph.blocks:
            timed = self._blocks.get(id(block))
            if timed is None:
                timed = self._blocks[id(block)] = TimedBlock(block, tuple(map(self._row, block.nodes)))
            found.append(timed)
        return found

    def _row(self, node: Node) -> int:
        row = self._nodes.get(id(node))
        if row is None:
            row = self.rows.get(node.op)
            if row is None:
                row = self.rows[node.op] = len(self.rows)
                self._missing.append(node.op)
            self._nodes[id(node)] = row
        return row

    def _answer(self) -> None:
        """Forecast what is missing, then fill in the blocks."""
        if self._missing:
            engine, gpu, ops = self.engine, self.gpu, self._missing
            floor_s = cold_weights_s(ops, gpu) if engine.serves else None
            table = predict_kernels(ops, gpu, self.selector, engine.kernels, engine.library_of(gpu), floor_s)
            self._tables.append(table)
            self.seconds += table.latency_s.tolist()
            self.flops += [op.flops() for op in ops]
        for block in self._blocks.values():
            block.answer(self.seconds, self.flops)
        self._missing, self._nodes, self._blocks = [], {}, {}
