"""A forecast taken apart, for reports: its operators on the roofline, its layers."""

from __future__ import annotations

from predictor.files.records import dataclass
from predictor.forecast.forecast import Forecast
from predictor.kernels.base import ESTIMATOR, ROOFLINE
from predictor.ops.base import Op
from predictor.ops.roofline import bound_name, peak_for
from predictor.simulate.breakdown import shape_text


@dataclass(frozen=True, slots=True)
class OperatorPoint:
    """One distinct operator on the roofline. ``names`` are the places of the model that run it, ``count`` how often in
    all; ``flops``, ``bytes`` and ``latency_s`` are of one call; ``peak_flops`` bounds it on the GPU's ``unit``."""

    op: str
    names: tuple[str, ...]
    shape: str
    phase: str
    dtype: str
    unit: str
    count: float
    flops: float
    bytes: float
    latency_s: float
    total_s: float
    share: float
    utilization: float
    bound: str
    source: str
    peak_flops: float
    inside: bool

    @property
    def intensity(self) -> float:
        """FLOP a byte; 0 for what does no arithmetic."""
        return self.flops / self.bytes if self.bytes > 0 else 0.0

    @property
    def achieved_flops(self) -> float:
        """FLOP/s reached."""
        return self.flops / self.latency_s


def points(of: Forecast) -> tuple[OperatorPoint, ...]:
    """Every distinct operator of a run, the one that takes longest in all first."""
    table, gpu = of.stages[0].table, of.run.gpu
    seen: dict[int, tuple[Op, str, dict[str, None], float]] = {}
    for timed in of.stages:
        for item in timed.op_times():
            op, phase, names, count = seen.get(item.index, (item.op, item.phase, {}, 0.0))
            names[item.name or item.op.label] = None
            seen[item.index] = (op, phase, names, count + item.times)
    busy = sum(float(table.latency_s[i]) * count for i, (_, _, _, count) in seen.items()) or 1.0
    cold = table.cold_s
    operators = []
    for i, (op, phase, names, count) in seen.items():
        latency, link = float(table.latency_s[i]), float(table.link_s[i])
        total = latency * count
        operators.append(
            OperatorPoint(
                op.label, tuple(names), shape_text(op), phase, op.dtype, op.unit, count, op.flops(), op.bytes_moved(),
                latency, total, total / busy, min(1.0, float(cold[i]) / latency),
                bound_name(float(table.compute_s[i]), float(table.dram_s[i]), latency, link),
                ESTIMATOR if table.estimators[i] else ROOFLINE, peak_for(op, gpu),
                table.spread is None or bool(table.spread.inside[i]),
            )
        )  # fmt: skip
    return tuple(sorted(operators, key=lambda point: -point.total_s))


@dataclass(frozen=True, slots=True)
class Layer:
    """A block of the model: GPU seconds of all its ``runs``, and of its operator classes, the longest first."""

    phase: str
    name: str
    runs: float
    kernels: int
    total_s: float
    classes: tuple[tuple[str, float], ...]


def layers(of: Forecast) -> tuple[Layer, ...]:
    """The blocks of a run in order, each with its GPU time; decode steps are gathered."""
    sums: dict[tuple[str, str], tuple[float, int, dict[str, float]]] = {}
    for timed in of.stages:
        phase, latency = timed.stage.phase, timed.table.latency_s
        for at in timed.blocks:
            block, runs = at.block, at.block.repeat * timed.stage.weight
            kernels = sum(node.count * node.op.kernels() for node in block.nodes)
            before, _, classes = sums.get((phase, block.name), (0.0, 0, {}))
            for node, row in zip(block.nodes, at.rows, strict=True):
                seconds = float(latency[row]) * node.count * node.share * runs
                classes[node.op.label] = classes.get(node.op.label, 0.0) + seconds
            sums[(phase, block.name)] = (before + runs, kernels, classes)
    return tuple(
        Layer(phase, name, runs, kernels, sum(classes.values()), tuple(sorted(classes.items(), key=lambda kv: -kv[1])))
        for (phase, name), (runs, kernels, classes) in sums.items()
    )
