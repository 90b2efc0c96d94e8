"""One iteration of training on one GPU: forward, loss, backward, optimizer."""

from __future__ import annotations

from predictor.aggregate.breakdown import classes, context_notes, longest_nodes, notes
from predictor.aggregate.capacity import advised
from predictor.aggregate.inference import provenance
from predictor.aggregate.interval import range_notes, total_interval
from predictor.aggregate.memory import training_memory
from predictor.aggregate.passes import Pass, time_graphs
from predictor.aggregate.plan import make_step
from predictor.engines import CALLS
from predictor.estimators.artifact import ArtifactSet, RooflineOnly
from predictor.graph import Graph
from predictor.hardware.gpu import GPUSpec
from predictor.networks import ModelConfig, parameters
from predictor.parallel import apply
from predictor.passes.autograd import backward_graph, optimizer_graph
from predictor.precision import Precision
from predictor.prediction import Prediction
from predictor.workload import Workload


def run_training(
    config: ModelConfig,
    gpu: GPUSpec,
    work: Workload,
    numbers: Precision,
    selector: ArtifactSet | RooflineOnly,
    top: int = 0,
) -> Prediction:
    """Mode train: ``batch / micro_batch`` forward and backward passes, then one step of the optimizer.

    MFU counts the model's FLOPs (forward and backward), as PaLM does, against the peak of the matrix dtype.
    Gradients add up over the passes of a step; optimizer "none" never clears them, so every pass adds to the last one.
    """
    passes_per_step = work.batch // (work.micro_batch or work.batch)
    count = parameters(config)
    graphs = training_graphs(config, work, numbers)
    eager = work.engine.host == CALLS
    forward, _, step, both = time_graphs(
        graphs, gpu, selector, engine=work.engine, eager_host=eager, launch_overhead_s=work.launch_overhead_s
    )
    memory = training_memory(count, graphs[0], numbers, work, passes_per_step, gpu)
    total = both.timeline.total_s * passes_per_step + step.timeline.total_s
    op_times = both.op_times(float(passes_per_step)) + step.op_times()
    flops = graphs[3].flops() * passes_per_step
    breakdown = classes(op_times, both.table)
    return Prediction(
        model=config.name,
        gpu=gpu.id,
        workload=work,
        latency_s=total,
        interval_s=total_interval(total, ((float(passes_per_step), both), (1.0, step)), work),
        phases_s=_phases(forward, both, step, passes_per_step),
        gpu_busy_s=both.timeline.gpu_s * passes_per_step + step.timeline.gpu_s,
        cpu_busy_s=both.timeline.cpu_s * passes_per_step + step.timeline.cpu_s,
        flops=flops,
        mfu=flops / total / gpu.peak_flops(numbers.gemm),
        tokens=float(work.batch * work.seq_len),
        sequences=float(work.batch),
        parameters=count,
        memory=advised(memory, gpu, work, lambda _: memory),
        breakdown=breakdown,
        nodes=longest_nodes([op_times], both.table, top),
        provenance=provenance(op_times, both),
        artifacts=selector.name,
        assumed=config.assumed,
        notes=numbers.notes + context_notes(config, work) + notes(breakdown, gpu.id, selector) + range_notes(both),
    )


def _phases(forward: Pass, both: Pass, step: Pass, passes_per_step: int) -> dict[str, float]:
    """Seconds of a step's phases; the backward pass takes what ``both``, timed as one, take beyond ``forward``."""
    forward_s = forward.timeline.total_s
    return {
        "forward": forward_s * passes_per_step,
        "backward": (both.timeline.total_s - forward_s) * passes_per_step,
        "optimizer": step.timeline.total_s,
    }


def training_graphs(config: ModelConfig, work: Workload, numbers: Precision) -> tuple[Graph, Graph, Graph, Graph]:
    """Of one micro-batch: the forward pass, the backward pass, the optimizer's step, and both passes as one graph."""
    micro = work.micro_batch or work.batch
    forward = apply(config, make_step(work, numbers, "train", work.seq_len, 0, micro), 1, None)
    backward = backward_graph(forward, accumulate=work.batch > micro or work.optimizer == "none")
    mixed = numbers.activation in ("bf16", "fp16")
    step = optimizer_graph(parameters(config), work.optimizer, mixed)
    return forward, backward, step, Graph(forward.blocks + backward.blocks)
