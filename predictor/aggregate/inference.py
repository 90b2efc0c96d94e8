"""Forward passes: whole sequences (forward, prefill), one decode step, and generation."""

from __future__ import annotations

import numpy as np

from predictor.aggregate.breakdown import classes, longest_nodes, notes
from predictor.aggregate.memory import inference_memory
from predictor.aggregate.passes import OpTime, Pass, time_graphs
from predictor.estimators.artifact import ArtifactSet, RooflineOnly
from predictor.hardware.gpu import GPUSpec
from predictor.networks import ModelConfig, Step, build, kv_cache_bytes, parameter_split
from predictor.precision import Precision
from predictor.prediction import Prediction
from predictor.workload import Workload

#: Context lengths at which a decode step is forecast; steps between them are interpolated. A step's time is close to
#: linear in the context, with bends where attention's tiles fill another wave.
DECODE_SAMPLES = 6


def make_step(work: Workload, numbers: Precision, mode: str, seq_len: int, context_len: int, batch: int) -> Step:
    """The pass of a workload that a network builds a graph for."""
    serving = mode in ("prefill", "decode")
    return Step(
        mode=mode,
        batch=batch,
        seq_len=seq_len,
        context_len=context_len,
        act_dtype=numbers.activation,
        gemm_dtype=numbers.gemm,
        kv_dtype=numbers.kv,
        attention=work.attention,
        fused=work.fused,
        logits="last" if serving else "all",
        training=mode == "train",
    )


def _answer(
    config: ModelConfig,
    gpu: GPUSpec,
    work: Workload,
    numbers: Precision,
    selector: ArtifactSet | RooflineOnly,
    timed: Pass,
    cache_tokens: int,
    op_times: list[OpTime],
    totals: tuple[float, float, float],
    phases: dict[str, float],
    flops: float,
    tokens: float,
    top: int,
) -> Prediction:
    """A Prediction from a timed pass (the one whose activations are largest) and the sums over all passes."""
    table = timed.table
    total_s, gpu_s, cpu_s = totals
    split = parameter_split(config)
    cache = kv_cache_bytes(config, work.batch, cache_tokens, numbers.kv) if cache_tokens else 0.0
    linear = split.layers + split.experts
    breakdown = classes(op_times, table)
    memory = inference_memory(linear, split.embedding + split.head, cache, timed.graph, numbers, gpu)
    return Prediction(
        model=config.name,
        gpu=gpu.id,
        workload=work,
        latency_s=total_s,
        interval_s=None,
        phases_s=phases,
        gpu_busy_s=gpu_s,
        cpu_busy_s=cpu_s,
        flops=flops,
        mfu=flops / total_s / gpu.peak_flops(numbers.gemm),
        tokens=tokens,
        sequences=float(work.batch),
        parameters=split.total,
        memory=memory,
        breakdown=breakdown,
        nodes=longest_nodes(op_times, table, top),
        provenance=provenance(op_times, timed),
        artifacts=selector.name,
        assumed=config.assumed,
        notes=notes(breakdown, gpu.id, selector),
    )


def provenance(op_times: list[OpTime], timed: Pass) -> dict[str, int]:
    """Distinct operators by where their number came from."""
    rows = {item.index for item in op_times}
    known = sum(1 for i in rows if timed.table.estimators[i])
    return {"estimator": known, "roofline": len(rows) - known}


def run_forward(
    config: ModelConfig,
    gpu: GPUSpec,
    work: Workload,
    numbers: Precision,
    selector: ArtifactSet | RooflineOnly,
    top: int = 0,
) -> Prediction:
    """Modes forward, prefill and decode: one pass."""
    decoding = work.mode == "decode"
    query = 1 if decoding else work.seq_len
    graph = build(config, make_step(work, numbers, work.mode, query, work.context_len, work.batch))
    eager = work.execution == "eager"
    timed = time_graphs([graph], gpu, selector, kernels=work.kernels, eager_host=eager)[0]
    line = timed.timeline
    cached = {"forward": 0, "prefill": work.seq_len, "decode": work.context_len + 1}[work.mode]
    return _answer(
        config, gpu, work, numbers, selector, timed, cached, timed.op_times(),
        (line.total_s, line.gpu_s, line.cpu_s), {work.mode: line.total_s}, graph.flops(),
        float(work.batch * query), top,
    )  # fmt: skip


def decode_steps(
    config: ModelConfig,
    gpu: GPUSpec,
    work: Workload,
    numbers: Precision,
    selector: ArtifactSet | RooflineOnly,
    top: int = 0,
) -> Prediction:
    """Mode generate: a prefill, which gives the first token, then ``output_len - 1`` steps with a growing cache."""
    graphs = [build(config, make_step(work, numbers, "prefill", work.seq_len, 0, work.batch))]
    steps = work.output_len - 1
    contexts, weights = sample_contexts(work.seq_len, steps)
    graphs += [build(config, make_step(work, numbers, "decode", 1, int(c), work.batch)) for c in contexts]
    eager = work.execution == "eager"
    passes = time_graphs(graphs, gpu, selector, kernels=work.kernels, eager_host=eager)
    prefill = passes[0].timeline
    decode_s = sum(w * p.timeline.total_s for w, p in zip(weights, passes[1:], strict=True))
    gpu_s = prefill.gpu_s + sum(w * p.timeline.gpu_s for w, p in zip(weights, passes[1:], strict=True))
    cpu_s = prefill.cpu_s + sum(w * p.timeline.cpu_s for w, p in zip(weights, passes[1:], strict=True))
    phases = {"prefill": prefill.total_s, "decode": decode_s, "ttft": prefill.total_s}
    if steps:
        phases["tpot"] = decode_s / steps
    op_times = passes[0].op_times()
    for weight, step in zip(weights, passes[1:], strict=True):
        op_times += step.op_times(weight)
    flops = sum(w * g.flops() for w, g in zip((1.0, *weights), graphs, strict=True))
    return _answer(
        config, gpu, work, numbers, selector, passes[0], work.seq_len + steps, op_times,
        (prefill.total_s + decode_s, gpu_s, cpu_s), phases, flops, float(work.batch * work.output_len), top,
    )  # fmt: skip


def sample_contexts(prompt: int, steps: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Context lengths to forecast, and how many steps each stands for (trapezoidal weights that sum to ``steps``).

    Step i of ``steps`` finds ``prompt + i`` tokens in the cache.
    """
    if steps < 1:
        return (), ()
    picked = np.unique(np.linspace(0, steps - 1, min(steps, DECODE_SAMPLES)).round().astype(int))
    share = np.zeros(len(picked))
    for i in range(steps if steps <= DECODE_SAMPLES else 0):
        share[i] = 1.0
    if steps > DECODE_SAMPLES:
        every = np.arange(steps, dtype=np.float64)
        for i in range(len(picked)):
            hat = np.interp(every, picked, np.eye(len(picked))[i])
            share[i] = float(hat.sum())
    return tuple(prompt + int(p) for p in picked), tuple(float(s) for s in share)
