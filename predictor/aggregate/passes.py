"""Times of graphs: one estimate for every distinct operator of all graphs together, then a timeline for each graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictor.aggregate.timeline import BACKWARD_DISPATCH_S, DISPATCH_S, Segment, Timeline, captured, eager
from predictor.estimators.base import KernelTable, Selector, predict_kernels
from predictor.graph.graph import Graph
from predictor.hardware.gpu import GPUSpec
from predictor.ops.base import BACKWARD, Op
from predictor.roofline import FloatArray


@dataclass(frozen=True, slots=True)
class OpTime:
    """Time of one distinct operator of a pass: how often it ran, in all graphs that it was counted in."""

    op: Op
    name: str
    phase: str
    times: float
    index: int  # row of the pass's KernelTable


@dataclass(frozen=True, slots=True)
class Pass:
    """One graph, timed. ``index`` holds for every block the rows of ``table`` that its nodes are."""

    graph: Graph
    table: KernelTable
    index: tuple[tuple[int, ...], ...]
    timeline: Timeline

    def op_times(self, weight: float = 1.0) -> list[OpTime]:
        """Every node with how often it runs, times ``weight`` (a pass that stands for several)."""
        return [
            OpTime(node.op, node.name, node.phase, node.count * block.repeat * weight, row)
            for block, rows in zip(self.graph.blocks, self.index, strict=True)
            for node, row in zip(block.nodes, rows, strict=True)
        ]


def time_graphs(
    graphs: Sequence[Graph],
    gpu: GPUSpec,
    selector: Selector,
    *,
    kernels: str,
    eager_host: bool,
    dispatch_s: float = DISPATCH_S,
) -> list[Pass]:
    """Time every graph. Each distinct operator is estimated once, however many graphs and blocks hold it."""
    rows: dict[Op, int] = {}
    index: list[tuple[tuple[int, ...], ...]] = []
    for graph in graphs:
        index.append(
            tuple(tuple(rows.setdefault(node.op, len(rows)) for node in block.nodes) for block in graph.blocks)
        )
    table = predict_kernels(list(rows), gpu, selector, kernels)
    passes = []
    for graph, blocks in zip(graphs, index, strict=True):
        segments = _segments(graph, blocks, table.latency_s, dispatch_s)
        timeline = eager(segments) if eager_host else captured(segments)
        passes.append(Pass(graph, table, blocks, timeline))
    return passes


def _segments(
    graph: Graph, index: tuple[tuple[int, ...], ...], latency: FloatArray, dispatch_s: float
) -> list[Segment]:
    segments = []
    for block, rows in zip(graph.blocks, index, strict=True):
        gpu_s = latency[list(rows)]
        cpu_s = np.array([node.host_calls * _dispatch(node.phase, dispatch_s) for node in block.nodes])
        if any(node.count > 1 for node in block.nodes):
            counts = [node.count for node in block.nodes]
            gpu_s, cpu_s = np.repeat(gpu_s, counts), np.repeat(cpu_s, counts)
        segments.append(Segment(gpu_s, cpu_s, block.repeat))
    return segments


def _dispatch(phase: str, dispatch_s: float) -> float:
    return dispatch_s * BACKWARD_DISPATCH_S / DISPATCH_S if phase == BACKWARD else dispatch_s
