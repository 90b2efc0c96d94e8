"""MoE layers and decode steps against the batch: a larger batch never costs less, and skew orders the costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

import predictor
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.kernels.moe.estimator import KNOTS, between, never_falling
from predictor.models.built import Step, build, load_config
from predictor.ops import MoE
from tests.catalogue import MODELS

GPUS = ("h100-sxm", "l40s")
FRAMEWORKS = ("vllm", "sglang", "trtllm")
ROUTINGS = ("balanced", "random", "zipf:1.2")
BATCHES = range(1, 257)
#: Of a whole step: its linear layers and attention are those of dense models, whose measured times fall here and there
#: from one measured size to the next; what of it the experts cause is nothing (below).
STEP_SLACK = 0.005


def experts_of(model: str) -> MoE | None:
    """The expert layer of a decode step of one sequence, None for a model without one."""
    config = load_config(model)
    if not config.experts or not config.causal:
        return None
    graph = build(config, Step("decode", 1, 1, 512, act_dtype="bf16"))
    return next((node.op for node, _ in graph.nodes() if isinstance(node.op, MoE)), None)


def falls(seconds: npt.NDArray[np.float64]) -> float:
    """The largest share by which a value lies below one before it."""
    return float((1.0 - seconds / np.maximum.accumulate(seconds)).max())


def test_an_expert_layer_never_costs_less_with_more_tokens() -> None:
    """Every MoE model of the catalogue, in bf16 and fp8; tokens to beyond the measured ones."""
    tokens = [*BATCHES, *range(300, 20000, 777), 30000, 65536, 65537, 100_000, 10**6]
    selector = load_artifacts()
    models = {name: op for name in MODELS if (op := experts_of(name)) is not None}
    assert {"mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3"} <= set(models)
    for name, layer in models.items():
        for gpu in map(load_gpu, GPUS):
            for framework in FRAMEWORKS:
                for routing in (*ROUTINGS, "power_law_1.2"):
                    for dtype, quant in (("bf16", ""), ("fp8", "fp8_block")):
                        op = replace(layer, dtype=dtype, quant=quant, distribution=routing)
                        ops = [replace(op, tokens=t) for t in tokens]
                        seconds = predict_kernels(ops, gpu, selector, framework).latency_s
                        assert falls(seconds) < 1e-12, (name, gpu.id, framework, routing, dtype)


def test_the_roofline_of_an_expert_layer_never_falls_either() -> None:
    layer = experts_of("qwen3-30b-a3b")
    assert layer is not None
    for routing in ROUTINGS:
        ops = [replace(layer, tokens=t, distribution=routing) for t in BATCHES]
        assert falls(np.array([op.bytes_moved() for op in ops])) == 0.0
        assert falls(np.array([op.flops() for op in ops])) == 0.0


def test_a_decode_step_hardly_ever_costs_less_with_a_larger_batch() -> None:
    """On the GPU: its host launches the batches that are not of an engine's captured sizes, and those take longer."""
    for model in ("mixtral-8x7b", "qwen3-30b-a3b"):
        for gpu in GPUS:
            for execution in ("eager", "vllm", "sglang", "tensorrt_llm"):
                for routing in ROUTINGS:
                    about = {"mode": "decode", "context_len": 512, "execution": execution, "routing": routing}
                    runs = [{"model": model, "gpu": gpu, "batch": b, **about} for b in (*range(1, 257, 3), 256)]
                    seconds = np.array([a.gpu_busy_s for a in predictor.predict_many(runs)])
                    assert falls(seconds) < STEP_SLACK, (model, gpu, execution, routing)


def test_few_tokens_cost_what_the_routing_makes_of_them() -> None:
    """Up to as many rows as experts a balanced table touches the most, and a skewed one the fewest."""
    for model, batches in (("mixtral-8x7b", (2, 4)), ("qwen3-30b-a3b", (4, 8, 16)), ("deepseek-v3", (8, 16, 32))):
        for batch in batches:
            about = {"mode": "decode", "batch": batch, "context_len": 512, "execution": "vllm"}
            even, drawn, skewed = (
                predictor.predict(model, "h200", routing=routing, **about).latency_s for routing in ROUTINGS
            )
            assert even > 1.001 * drawn > 1.001**2 * skewed, (model, batch)
    about = {"mode": "decode", "batch": 16, "context_len": 512, "execution": "vllm"}
    even, drawn, skewed = (predictor.predict("qwen3-30b-a3b", "h200", routing=r, **about).latency_s for r in ROUTINGS)
    assert even > 1.25 * drawn > 1.25 * 1.1 * skewed  # 128, 82 and 52 experts of 128
    # One token picks top_k experts, whatever the routing.
    one = [
        predictor.predict("qwen3-30b-a3b", "h200", mode="decode", execution="vllm", routing=routing).latency_s
        for routing in ROUTINGS
    ]
    assert max(one) < 1.001 * min(one)


def test_default_routing_is_random() -> None:
    about = {"mode": "decode", "batch": 4, "context_len": 512, "execution": "vllm"}
    default = predictor.predict("mixtral-8x7b", "h100", **about)
    assert str(default.workload.routing) == "random"
    assert default.latency_s == predictor.predict("mixtral-8x7b", "h100", routing="random", **about).latency_s
    assert predictor.predict("llama-3.1-8b", "h100", **about).workload.routing is None


def test_dense_models_do_not_know_the_routing() -> None:
    about = {"mode": "decode", "batch": 4, "execution": "vllm"}
    times = {predictor.predict("llama-3.1-8b", "h100", routing=routing, **about).latency_s for routing in ROUTINGS}
    assert len(times) == 1


def test_curves() -> None:
    noisy = np.array([[1.0, 3.0, 2.0, 4.0], [1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 1.0, 1.0]])
    smooth = never_falling(noisy)
    np.testing.assert_allclose(smooth, [[1.0, 2.5, 2.5, 4.0], [1.0, 2.0, 3.0, 4.0], [2.5, 2.5, 2.5, 2.5]])
    logs = np.log(KNOTS) * 0.5
    np.testing.assert_allclose(between(logs, KNOTS), KNOTS**0.5)
    np.testing.assert_allclose(between(logs, np.array([3.0, 100.0, 2e6])), [3**0.5, 10.0, 256 * 2e6 / 65536])
