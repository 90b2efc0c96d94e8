"""Forward passes: whole sequences (forward, prefill), one decode step, and generation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache

from predictor.aggregate.breakdown import classes, context_notes, longest_nodes, notes
from predictor.aggregate.capacity import advised
from predictor.aggregate.interval import range_notes, total_interval
from predictor.aggregate.memory import Memory, inference_memory
from predictor.aggregate.passes import OpTime, Pass, time_graphs
from predictor.aggregate.plan import Passes, Sums, add_up, plan_passes
from predictor.estimators.artifact import ArtifactSet, RooflineOnly
from predictor.graph import Graph
from predictor.hardware.gpu import GPUSpec
from predictor.networks import ModelConfig, kv_cache_bytes, parameters, weight_bytes
from predictor.parallel import rank_config
from predictor.precision import Precision
from predictor.prediction import Prediction
from predictor.workload import Workload


def _cache_bytes(rank: ModelConfig, work: Workload, numbers: Precision) -> float:
    """Bytes of one GPU's KV cache at the end of a run; 0 in mode forward, which keeps none."""
    if work.mode == "forward":
        return 0.0
    makes = {"prefill": 0, "decode": 1, "generate": work.output_len - 1}[work.mode]
    prompt = work.context_len if work.mode == "decode" else work.seq_len
    lens = work.prompt_lens
    if not lens:
        return kv_cache_bytes(rank, work.batch, prompt + makes, numbers.kv)
    return sum(kv_cache_bytes(rank, times, n + makes, numbers.kv) for n, times in Counter(lens).items())


#: Asked for every point of a sweep.
_parameters, _weight_bytes = lru_cache(maxsize=1024)(parameters), lru_cache(maxsize=1024)(weight_bytes)


def memory_of(config: ModelConfig, gpu: GPUSpec, work: Workload, numbers: Precision, first: Graph) -> Memory:
    """What one GPU keeps; ``first`` is the pass with the largest activations."""
    rank = rank_config(config, work.parallelism.tp)
    cache = _cache_bytes(rank, work, numbers)
    weights = _weight_bytes(rank, numbers.formats)
    return inference_memory(weights, cache, first, gpu, work)


def run_inference(
    config: ModelConfig,
    gpu: GPUSpec,
    work: Workload,
    numbers: Precision,
    selector: ArtifactSet | RooflineOnly,
    top: int = 0,
) -> Prediction:
    """Modes forward, prefill, decode and generate."""
    passes = plan_passes(config, work, numbers)
    timed = time_graphs(
        passes.graphs, gpu, selector, engine=work.engine, eager_host=passes.hosts,
        launch_overhead_s=work.launch_overhead_s,
    )  # fmt: skip
    sums = add_up(work, passes, [one.timeline for one in timed], [graph.flops() for graph in passes.graphs])
    weighted = list(zip(passes.weights, timed, strict=True))
    by_pass = [one.op_times(weight) for weight, one in weighted]
    op_times = [item for items in by_pass for item in items]
    breakdown = classes(op_times, timed[0].table)

    def memory_at(other: Workload) -> Memory:
        return memory_of(config, gpu, other, numbers, plan_passes(config, other, numbers).graphs[0])

    answer = without_operators(config, gpu, work, numbers, passes, sums, selector.name)
    return replace(
        answer,
        memory=advised(answer.memory, gpu, work, memory_at),
        interval_s=total_interval(sums.total_s, weighted, work),
        breakdown=breakdown,
        nodes=longest_nodes(by_pass, timed[0].table, top),
        provenance=provenance(op_times, timed[0]),
        notes=numbers.notes + context_notes(config, work) + notes(breakdown, gpu.id, selector) + range_notes(timed[0]),
    )


def without_operators(
    config: ModelConfig, gpu: GPUSpec, work: Workload, numbers: Precision, passes: Passes, sums: Sums, artifacts: str
) -> Prediction:
    """The forecast as a whole: no interval, breakdown, provenance and notes."""
    gpus = work.parallelism.num_gpus
    return Prediction(
        model=config.name,
        gpu=gpu.id,
        workload=work,
        latency_s=sums.total_s,
        interval_s=None,
        phases_s=sums.phases,
        gpu_busy_s=sums.gpu_s,
        cpu_busy_s=sums.cpu_s,
        flops=sums.flops * gpus,
        mfu=sums.flops / sums.total_s / gpu.peak_flops(numbers.gemm),
        tokens=sums.tokens,
        sequences=float(work.batch),
        parameters=_parameters(config),
        memory=memory_of(config, gpu, work, numbers, passes.graphs[0]),
        breakdown=(),
        nodes=(),
        provenance={},
        artifacts=artifacts,
        assumed=config.assumed,
    )


def provenance(op_times: list[OpTime], timed: Pass) -> dict[str, int]:
    """Distinct operators by where their number came from."""
    rows = {item.index for item in op_times}
    known = sum(1 for i in rows if timed.table.estimators[i])
    return {"estimator": known, "roofline": len(rows) - known}
