"""Many runs of inference at once: what they have in common is forecast once, and all kernels of a GPU in one call.

A point of a sweep costs the building of its graphs and its share of a vectorised call; an operator that any earlier
point had (the linear layers of a decode step depend on the batch alone) costs a look-up.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from predictor.aggregate.inference import without_operators
from predictor.aggregate.passes import segments_of
from predictor.aggregate.plan import Passes, Point, add_up, plan_passes
from predictor.aggregate.timeline import Timeline, eager
from predictor.engines import CAPTURED, Engine
from predictor.estimators.artifact import ArtifactSet, RooflineOnly
from predictor.estimators.base import predict_kernels
from predictor.estimators.cold import cold_weights_s
from predictor.graph import Graph
from predictor.hardware.gpu import GPUSpec
from predictor.ops.base import Op
from predictor.prediction import Prediction

#: Points whose kernels are forecast in one call, and the operators that are remembered of all of them.
CHUNK = 1000
REMEMBERED = 200_000

Rows = list[list[int]]


class _NoIntervals:
    """A set of estimators without its intervals, which cost as much as the forecasts."""

    def __init__(self, selector: ArtifactSet | RooflineOnly) -> None:
        self.select = selector.select


class _Kernels:
    """Every operator that one engine ran on one GPU, by row: seconds and FLOPs of one call."""

    def __init__(self, gpu: GPUSpec, engine: Engine) -> None:
        self.gpu = gpu
        self.engine = engine
        self.rows: dict[Op, int] = {}
        # By id of a node or a block of this chunk's graphs, which decode steps share: hashing operators takes longer.
        self.seen: dict[int, int] = {}
        self.shared: dict[int, list[int]] = {}
        self.missing: list[Op] = []
        self.seconds: list[float] = []
        self.flops: list[float] = []

    def ask(self, graph: Graph) -> Rows:
        """Rows of a graph's nodes, block by block; they have no time before `answer`."""
        rows, missing, seen, shared = self.rows, self.missing, self.seen, self.shared
        found = []
        for block in graph.blocks:
            index = shared.get(id(block))
            if index is None:
                index = shared[id(block)] = []
                for node in block.nodes:
                    row = seen.get(id(node))
                    if row is None:
                        row = rows.get(node.op)
                        if row is None:
                            row = rows[node.op] = len(rows)
                            missing.append(node.op)
                        seen[id(node)] = row
                    index.append(row)
            found.append(index)
        return found

    def answer(self, selector: ArtifactSet | RooflineOnly) -> None:
        """Forecast what is missing."""
        if self.missing:
            engine, gpu = self.engine, self.gpu
            floor_s = cold_weights_s(self.missing, gpu) if engine.serves else None
            library_of = engine.library_of(gpu)
            table = predict_kernels(self.missing, gpu, _NoIntervals(selector), engine.kernels, library_of, floor_s)
            self.seconds += table.latency_s.tolist()
            self.flops += [op.flops() for op in self.missing]
            self.missing = []
        self.seen, self.shared = {}, {}


@contextmanager
def no_collector() -> Iterator[None]:
    """Python's cycle collector waits: nothing here makes cycles, and it would walk all answers again and again."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def run_many(points: Sequence[Point], selector: ArtifactSet | RooflineOnly) -> list[Prediction]:
    """The forecast of every point, in order, without operators: no breakdown, interval, provenance and notes."""
    known: dict[tuple[GPUSpec, Engine], _Kernels] = {}
    found: list[Prediction] = []
    for start in range(0, len(points), CHUNK):
        asked = []
        for point in points[start : start + CHUNK]:
            key = (point.gpu, point.work.engine)
            entry = known.get(key)
            if entry is None:
                entry = known[key] = _Kernels(*key)
            passes = plan_passes(point.config, point.work, point.numbers)
            asked.append((point, passes, entry, [entry.ask(graph) for graph in passes.graphs]))
        for entry in known.values():
            entry.answer(selector)
        found += [_answer(*item, selector.name) for item in asked]
        known = {key: entry for key, entry in known.items() if len(entry.rows) <= REMEMBERED}
    return found


def _answer(point: Point, passes: Passes, known: _Kernels, rows: list[Rows], artifacts: str) -> Prediction:
    work = point.work
    lines, flops = [], []
    for graph, index, host in zip(passes.graphs, rows, passes.hosts, strict=True):
        line, work_done = _timeline(graph, index, known, host, work.launch_overhead_s)
        lines.append(line)
        flops.append(work_done)
    sums = add_up(work, passes, lines, flops)
    return without_operators(point.config, point.gpu, work, point.numbers, passes, sums, artifacts)


def _timeline(graph: Graph, rows: Rows, known: _Kernels, host: str, launch_overhead_s: float) -> tuple[Timeline, float]:
    """What `predictor.aggregate.passes.time_graphs` says of a graph, and its FLOPs; a captured one is a plain sum."""
    seconds, flops = known.seconds, known.flops
    total = done = 0.0
    for block, index in zip(graph.blocks, rows, strict=True):
        for node, row in zip(block.nodes, index, strict=True):
            times = node.count * node.share * block.repeat
            total += seconds[row] * times
            done += flops[row] * times
    if host == CAPTURED:
        return Timeline(total, total, 0.0), done
    parts = [np.array([seconds[row] for row in index]) for index in rows]
    return eager(segments_of(graph, parts, host, launch_overhead_s)), done
