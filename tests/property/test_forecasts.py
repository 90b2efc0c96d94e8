"""What must hold for every forecast, whatever the estimators say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import predictor
from predictor.engines import EAGER, HOSTS, Engine
from predictor.engines.pytorch.engine import COMPILE
from predictor.hardware.generation import generation
from predictor.hardware.gpu import list_gpus, load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.models.built import Step, build, load_config, parameter_split
from predictor.ops import (
    Attention,
    Copy,
    CrossEntropy,
    Dropout,
    Elementwise,
    Embedding,
    Gemm,
    MoE,
    Norm,
    Op,
    OptimizerStep,
    Reduce,
    Rotary,
    Routing,
    Softmax,
)  # fmt: skip
from predictor.passes.autograd import joint
from predictor.passes.fuse import fuse
from predictor.simulate.stage import Plan, Stage
from predictor.simulate.times import Operators
from tests.catalogue import MODELS

ARTIFACTS = load_artifacts()
size = st.integers(1, 4096)
small = st.integers(1, 64)
FUNCTIONS = st.sampled_from(["add", "gelu", "mul", "copy", "swiglu"])
PHASES = st.sampled_from(["forward", "backward"])
DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8")


def operators(dtype: str) -> st.SearchStrategy[Op]:
    act = "bf16" if dtype == "fp8" else "fp32" if dtype == "tf32" else dtype
    return st.one_of(
        st.builds(Gemm, st.just(dtype), size, size, size),
        st.builds(Gemm, st.just(dtype), size, small, size, small, st.just("bmm")),
        st.builds(
            lambda b, g, kv, q, past, d, c: Attention(act, b, g * kv, kv, q, q + past, d, causal=c),
            small, st.integers(1, 8), st.integers(1, 8), st.sampled_from([1, 16, 128, 1000]), st.integers(0, 5000),
            st.sampled_from([64, 128, 256]), st.booleans(),
        ),
        st.builds(Elementwise, st.just(act), FUNCTIONS, st.integers(1, 10**9)),
        st.builds(Dropout, st.just(act), st.integers(1, 10**8)),
        st.builds(Norm, st.just(act), size, size, st.sampled_from(["layer", "rms"]), PHASES),
        st.builds(Softmax, st.just(act), size, size, st.sampled_from(["forward", "backward"])),
        st.builds(Embedding, st.just(act), size, size, st.integers(2, 200_000), PHASES),
        st.builds(CrossEntropy, st.just(act), size, st.integers(2, 200_000)),
        st.builds(OptimizerStep, st.just("fp32"), st.integers(1, 10**9), st.sampled_from(["adam", "sgd"])),
        st.builds(Reduce, st.just(act), size, size),
        st.builds(Rotary, st.just(act), size, small, st.sampled_from([64, 128])),
        st.builds(Copy, st.just(act), st.integers(1, 10**9)),
        st.builds(Routing, st.just(act), size, st.sampled_from([8, 64, 256]), st.integers(1, 8)),
        st.builds(
            lambda t, h, i, e, k: MoE(dtype if dtype != "tf32" else "bf16", t, 128 * h, 128 * i, e, min(k, e)),
            size, st.integers(1, 56), st.integers(1, 56), st.sampled_from([4, 8, 64, 256]), st.integers(1, 8),
        ),
    )  # fmt: skip


#: One board of each generation with each type of memory.
KINDS = {(generation(load_gpu(name)), load_gpu(name).memory_type): name for name in list_gpus()}


@pytest.mark.parametrize("gpu", KINDS.values())
@settings(max_examples=6, deadline=None)  # of each of forty GPUs
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_no_kernel_beats_the_roofline(gpu: str, data: st.DataObject, dtype: str) -> None:
    spec = load_gpu(gpu)
    ops = [op for op in data.draw(st.lists(operators(dtype), min_size=1, max_size=8)) if supported(op, gpu)]
    if not ops:
        return
    framework = data.draw(st.sampled_from(["pytorch", "vllm", "sglang", "trtllm"]))
    table = predict_kernels(ops, spec, ARTIFACTS, framework)
    assert np.isfinite(table.latency_s).all()
    for i, op in enumerate(ops):
        peak = spec.peak_flops(op.dtype) if op.unit == "matrix" else spec.vector_flops(op.dtype)
        moved = op.bytes_read() + op.bytes_written()
        through_l2, beyond_l2 = moved / spec.l2_bandwidth, (moved - spec.l2_bytes) / spec.memory_bandwidth
        least = max(op.flops() / peak, through_l2, beyond_l2)  # by hand: that what clips has the ceilings right
        assert table.row(i).latency_s >= least * (1 - 1e-9), op
        assert table.row(i).utilization == pytest.approx(max(least, 1e-12) / table.row(i).latency_s)


def supported(op: Op, gpu: str) -> bool:
    return op.unit == "vector" or load_gpu(gpu).supports(op.dtype)


@pytest.mark.parametrize("gpu", ["h100", "a100", "v100", "l4", "b200", "mi300x"])
@pytest.mark.parametrize("model", ["gpt3", "llama-3.1-8b", "bert-large"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_latency_grows_with_the_batch(gpu: str, model: str, dtype: str) -> None:
    """Compute-bound shapes: more sequences never take less time."""
    config = load_config(model)
    for execution in ("eager", "cuda_graph"):
        times = [
            predictor.predict(config, gpu, batch=batch, seq_len=512, dtype=dtype, execution=execution).latency_s
            for batch in (2, 4, 8, 16, 32, 64)
        ]
        assert times == sorted(times)


#: The model with the fewest layers of every model type: unrolled, the others say nothing more.
SMALLEST = {load_config(name).model_type: name for name in sorted(MODELS, key=lambda n: -load_config(n).layers)}


@pytest.mark.parametrize("model", sorted(SMALLEST.values()))
def test_repeats_cost_what_the_unrolled_graph_costs(model: str) -> None:
    config = load_config(model)
    gpu = load_gpu("h100")
    forward = build(config, Step("train", 1, 64, act_dtype="bf16", training=True))
    for graph in (forward, joint(forward)):
        long = graph.unrolled()
        assert long.flops() == pytest.approx(graph.flops())
        for host in HOSTS:
            plan = Plan((Stage(graph, "train", host=host), Stage(long, "train", host=host)))
            (both,) = Operators(gpu, EAGER, ARTIFACTS).time([plan])
            assert both[1].timeline.total_s == pytest.approx(both[0].timeline.total_s, rel=1e-9)
            assert both[1].timeline.gpu_s == pytest.approx(both[0].timeline.gpu_s, rel=1e-9)


DENSE = [name for name in MODELS if load_config(name).causal and not load_config(name).experts
         and not load_config(name).is_encoder_decoder]  # fmt: skip


@pytest.mark.parametrize("model", DENSE)
@pytest.mark.parametrize("engine", [EAGER, COMPILE])
def test_flops_of_a_dense_decoder_are_two_per_parameter_and_token(model: str, engine: Engine) -> None:
    config = load_config(model)
    tokens = 512
    graph = fuse(build(config, Step("forward", 1, tokens, act_dtype="bf16", attention="flash")), engine)
    attention = sum(node.op.flops() * times for node, times in graph.nodes() if isinstance(node.op, Attention))
    split = parameter_split(config)
    logits = config.hidden * config.vocab if not config.embed_width else config.embed_width * config.vocab
    weights = split.layers + logits
    products = sum(n.op.flops() * t for n, t in graph.nodes() if isinstance(n.op, Gemm))
    assert products == pytest.approx(2 * weights * tokens, rel=0.02)
    assert graph.flops() == pytest.approx(2 * weights * tokens + attention, rel=0.02)


def test_training_flops_are_three_forwards() -> None:
    config = load_config("gpt3-6.7b")
    forward = build(config, Step("train", 1, 512, act_dtype="bf16", attention="math", training=True))
    assert joint(forward).flops() == pytest.approx(3 * forward.flops(), rel=0.02)


def test_unknown_gpu_from_a_file(tmp_path: object) -> None:
    """A what-if GPU: twice the bandwidth never hurts."""
    from dataclasses import replace

    spec = load_gpu("h100")
    faster = replace(spec, id="what-if", memory_bandwidth=2 * spec.memory_bandwidth)
    config = load_config("llama-3.1-8b")
    slow = predictor.predict(config, spec, mode="decode", context_len=1024, execution="cuda_graph")
    fast = predictor.predict(config, faster, mode="decode", context_len=1024, execution="cuda_graph")
    assert fast.latency_s < slow.latency_s


def test_generate_is_prefill_and_decode_steps() -> None:
    """Of prompts so short that power holds no product: a long run is held, its parts alone may not be."""
    words = {"batch": 2, "execution": "cuda_graph"}
    whole = predictor.predict("llama-3.1-8b", "h100", mode="generate", seq_len=16, output_len=5, **words)  # type: ignore[arg-type]
    prefill = predictor.predict("llama-3.1-8b", "h100", mode="prefill", seq_len=16, **words)  # type: ignore[arg-type]
    steps = [
        predictor.predict("llama-3.1-8b", "h100", mode="decode", context_len=16 + i, **words).latency_s  # type: ignore[arg-type]
        for i in range(4)
    ]
    assert whole.latency_s == pytest.approx(prefill.latency_s + sum(steps))
    long = predictor.predict("llama-3.1-8b", "h100", mode="generate", seq_len=16, output_len=200, **words)  # type: ignore[arg-type]
    assert long.phases_s["tpot"] == pytest.approx(steps[0], rel=0.1)


def test_gradient_accumulation_repeats_the_passes() -> None:
    once = predictor.predict("gpt2", "a100", mode="train", batch=4, seq_len=256)
    twice = predictor.predict("gpt2", "a100", mode="train", batch=8, micro_batch=4, seq_len=256)
    assert twice.phases_s["forward"] == pytest.approx(2 * once.phases_s["forward"])
    assert twice.phases_s["optimizer"] == pytest.approx(once.phases_s["optimizer"])
