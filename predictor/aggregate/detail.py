"""A forecast taken apart, for reports: its passes, its operators on the roofline, its layers.

Nothing here is on the way of a plain forecast: `parts` times the passes once more, when a report asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from predictor.aggregate.breakdown import shape_text
from predictor.aggregate.inference import run_inference
from predictor.aggregate.passes import Pass, time_graphs
from predictor.aggregate.plan import plan_passes, sample_contexts
from predictor.aggregate.training import run_training, training_graphs
from predictor.engines import CALLS, CAPTURED
from predictor.estimators.artifact import ArtifactSet, RooflineOnly, load_artifacts
from predictor.estimators.base import ESTIMATOR, ROOFLINE
from predictor.graph import OPTIMIZER
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.networks import ModelConfig, load_config
from predictor.number_formats import same_numbers
from predictor.ops.base import Op
from predictor.precision import Precision
from predictor.prediction import Prediction
from predictor.roofline import bound_name, peak_for
from predictor.workload import Workload


@dataclass(frozen=True, slots=True)
class Run:
    """What was asked, all of it resolved; `forecast` answers it (again, or with a part of it replaced)."""

    config: ModelConfig
    gpu: GPUSpec
    work: Workload
    numbers: Precision
    selector: ArtifactSet | RooflineOnly

    def forecast(self) -> Prediction:
        """The forecast; RequestError where the run cannot be answered."""
        run = run_training if self.work.mode == "train" else run_inference
        return run(self.config, self.gpu, self.work, self.numbers, self.selector)


def run_of(
    model: str | Path | ModelConfig, gpu: str | Path | GPUSpec, work: Workload, artifacts: str | Path | None = None
) -> Run:
    """The run behind a `Prediction` (``work`` is its workload), from the same words that `predictor.predict` took."""
    config = model if isinstance(model, ModelConfig) else load_config(model)
    spec = gpu if isinstance(gpu, GPUSpec) else load_gpu(gpu)
    return Run(config, spec, work, same_numbers(config.checkpoint, spec, work), load_artifacts(artifacts))


@dataclass(frozen=True, slots=True)
class Part:
    """A pass of the run that stands for ``weight`` passes; ``overhead_s`` is the engine's time after each of them.

    ``captured``: no launches, the CPU is free while the GPU runs.
    """

    phase: str
    label: str
    weight: float
    timed: Pass
    overhead_s: float
    captured: bool

    @property
    def each_s(self) -> float:
        """Seconds of one such pass."""
        return self.timed.timeline.total_s + self.overhead_s

    @property
    def total_s(self) -> float:
        """Seconds of all passes that it stands for."""
        return self.weight * self.each_s


def parts(run: Run) -> tuple[Part, ...]:
    """The passes of a run in order; their ``total_s`` add up to the forecast. One table of kernels holds for all."""
    work = run.work
    if work.mode == "train":
        return _training_parts(run)
    passes = plan_passes(run.config, work, run.numbers)
    timed = time_graphs(
        passes.graphs, run.gpu, run.selector, engine=work.engine, eager_host=passes.hosts,
        launch_overhead_s=work.launch_overhead_s,
    )  # fmt: skip
    named = [(work.mode, work.mode)]
    if work.mode == "generate":
        contexts = [work.seq_len + grown for grown in sample_contexts(work.output_len - 1)[0]]
        named = [("prefill", "prefill"), *(("decode", f"decode step, {n:,} tokens in the cache") for n in contexts)]
    return tuple(
        Part(phase, label, weight, one, work.step_overhead_s, host == CAPTURED)
        for (phase, label), weight, one, host in zip(named, passes.weights, timed, passes.hosts, strict=True)
    )


def _training_parts(run: Run) -> tuple[Part, ...]:
    work = run.work
    graphs = training_graphs(run.config, work, run.numbers)
    eager = work.engine.host == CALLS
    _, _, step, whole = time_graphs(
        graphs, run.gpu, run.selector, engine=work.engine, eager_host=eager, launch_overhead_s=work.launch_overhead_s
    )
    times = work.batch // (work.micro_batch or work.batch)
    both = Part("train", "forward and backward", float(times), whole, 0.0, not eager)
    if not step.graph.blocks:
        return (both,)
    return both, Part(OPTIMIZER, "optimizer step", 1.0, step, 0.0, not eager)


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


def points(of: Sequence[Part], gpu: GPUSpec) -> tuple[OperatorPoint, ...]:
    """Every distinct operator of a run, the one that takes longest in all first."""
    table = of[0].timed.table
    seen: dict[int, tuple[Op, str, dict[str, None], float]] = {}
    for part in of:
        for item in part.timed.op_times(part.weight):
            op, phase, names, count = seen.get(item.index, (item.op, item.phase, {}, 0.0))
            names[item.name or item.op.label] = None
            seen[item.index] = (op, phase, names, count + item.times)
    busy = sum(float(table.latency_s[i]) * count for i, (_, _, _, count) in seen.items()) or 1.0
    cold = table.cold_s
    found = []
    for i, (op, phase, names, count) in seen.items():
        latency, link = float(table.latency_s[i]), float(table.link_s[i])
        total = latency * count
        found.append(
            OperatorPoint(
                op.label, tuple(names), shape_text(op), phase, op.dtype, op.unit, count, op.flops(), op.bytes_moved(),
                latency, total, total / busy, min(1.0, float(cold[i]) / latency),
                bound_name(float(table.compute_s[i]), float(table.dram_s[i]), latency, link),
                ESTIMATOR if table.estimators[i] else ROOFLINE, peak_for(op, gpu),
                table.spread is None or bool(table.spread.inside[i]),
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda point: -point.total_s))


@dataclass(frozen=True, slots=True)
class Layer:
    """A block of the model: GPU seconds of all its ``runs``, and of its operator classes, the longest first."""

    phase: str
    name: str
    runs: float
    kernels: int
    total_s: float
    classes: tuple[tuple[str, float], ...]


def layers(of: Sequence[Part]) -> tuple[Layer, ...]:
    """The blocks of a run in order, each with its GPU time; decode steps are gathered."""
    found: dict[tuple[str, str], tuple[float, int, dict[str, float]]] = {}
    for part in of:
        latency = part.timed.table.latency_s
        for block, rows in zip(part.timed.graph.blocks, part.timed.index, strict=True):
            runs = block.repeat * part.weight
            kernels = sum(node.count * node.op.kernels() for node in block.nodes)
            before, _, classes = found.get((part.phase, block.name), (0.0, 0, {}))
            for node, row in zip(block.nodes, rows, strict=True):
                seconds = float(latency[row]) * node.count * node.share * runs
                classes[node.op.label] = classes.get(node.op.label, 0.0) + seconds
            found[(part.phase, block.name)] = (before + runs, kernels, classes)
    return tuple(
        Layer(phase, name, runs, kernels, sum(classes.values()), tuple(sorted(classes.items(), key=lambda kv: -kv[1])))
        for (phase, name), (runs, kernels, classes) in found.items()
    )
