"""Times of graphs: one estimate for every distinct operator of all graphs together, then a timeline for each graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictor.aggregate.timeline import Segment, Timeline, captured, eager
from predictor.engines import CALLS, CAPTURED, Engine
from predictor.estimators.base import KernelTable, Selector, predict_kernels
from predictor.estimators.cold import cold_weights_s
from predictor.graph.graph import Graph
from predictor.hardware.gpu import GPUSpec
from predictor.ops.base import Op
from predictor.roofline import FloatArray
from predictor.workload import DEFAULT_LAUNCH_OVERHEAD_S


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
    segments: tuple[Segment, ...] = ()  # the blocks as the timeline ran them

    def op_times(self, weight: float = 1.0) -> list[OpTime]:
        """Every node with how often it runs, times ``weight`` (a pass that stands for several)."""
        return [
            OpTime(node.op, node.name, node.phase, node.count * block.repeat * node.share * weight, row)
            for block, rows in zip(self.graph.blocks, self.index, strict=True)
            for node, row in zip(block.nodes, rows, strict=True)
        ]


def time_graphs(
    graphs: Sequence[Graph],
    gpu: GPUSpec,
    selector: Selector,
    *,
    engine: Engine,
    eager_host: bool | Sequence[str],
    launch_overhead_s: float = DEFAULT_LAUNCH_OVERHEAD_S,
) -> list[Pass]:
    """Time every graph as ``engine`` runs it. Each distinct operator is estimated once, whatever holds it.

    ``eager_host``: what the CPU does while the GPU runs, for every graph one of `predictor.engines.HOSTS`, or for all
    of them True (CALLS) or False (CAPTURED). ``launch_overhead_s``: CPU time of one framework call, forward or
    backward, or of one launch.
    """
    if isinstance(eager_host, bool):
        eager_host = [CALLS if eager_host else CAPTURED] * len(graphs)
    rows: dict[Op, int] = {}
    index: list[tuple[tuple[int, ...], ...]] = []
    for graph in graphs:
        index.append(
            tuple(tuple(rows.setdefault(node.op, len(rows)) for node in block.nodes) for block in graph.blocks)
        )
    ops = list(rows)
    floor_s = cold_weights_s(ops, gpu) if engine.serves else None
    table = predict_kernels(ops, gpu, selector, engine.kernels, engine.library_of(gpu), floor_s)
    passes = []
    for graph, blocks, host in zip(graphs, index, eager_host, strict=True):
        seconds = [table.latency_s[list(rows_of)] for rows_of in blocks]
        segments = segments_of(graph, seconds, host, launch_overhead_s)
        timeline = captured(segments) if host == CAPTURED else eager(segments)
        passes.append(Pass(graph, table, blocks, timeline, tuple(segments)))
    return passes


def segments_of(graph: Graph, seconds: Sequence[FloatArray], host: str, launch_overhead_s: float) -> list[Segment]:
    """The blocks of a graph on the two timelines; ``seconds`` holds for each block what one call of its nodes takes."""
    segments = []
    for block, gpu_s in zip(graph.blocks, seconds, strict=True):
        nodes = block.nodes
        if any(node.share != 1.0 for node in nodes):
            gpu_s = gpu_s * np.array([node.share for node in nodes])
        if host == CALLS:
            cpu_s = np.array([node.host_calls * launch_overhead_s for node in nodes])
        elif host == CAPTURED:
            cpu_s = np.zeros(len(nodes))
        else:  # one launch a kernel; nodes that are one kernel together have one node that calls
            cpu_s = np.array([node.op.kernels() if node.host_calls else 0 for node in nodes]) * launch_overhead_s
        if any(node.count > 1 for node in nodes):
            counts = [node.count for node in nodes]
            gpu_s, cpu_s = np.repeat(gpu_s, counts), np.repeat(cpu_s, counts)
        segments.append(Segment(gpu_s, cpu_s, block.repeat))
    return segments
