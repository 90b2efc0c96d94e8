"""latency = max(bound, seconds): what a forecast may do with an estimator's answer, and what that answer has to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.fit.recipes import RECIPES
from predictor.hardware.gpu import GPUSpec, list_gpus, load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import Batch, Estimator, make_batch, predict_kernels
from predictor.ops import (
    Attention,
    CausalConv1d,
    Collective,
    Copy,
    CrossEntropy,
    DeltaRule,
    Dropout,
    Elementwise,
    Embedding,
    Gemm,
    MoE,
    Norm,
    Op,
    OptimizerStep,
    Quantize,
    Reduce,
    Rotary,
    Routing,
    Softmax,
)  # fmt: skip
from predictor.ops.roofline import roofline

ARTIFACTS = load_artifacts()
FRAMEWORKS = ("pytorch", "vllm", "sglang", "trtllm")
size, small = st.integers(1, 4096), st.integers(1, 64)
head = st.sampled_from([64, 128, 256])
dtype = st.sampled_from(["fp32", "bf16", "fp16"])
matrix = st.sampled_from(["fp32", "tf32", "bf16", "fp16", "fp8"])
serving = st.sampled_from(["bf16", "fp8"])

#: An operator of every family that the shipped set answers for, from one element up to far more than a model has.
FAMILIES: dict[str, st.SearchStrategy[Op]] = {
    "gemm": st.builds(Gemm, matrix, size, size, size, small, st.just("bmm")),
    "attention": st.builds(
        lambda t, b, g, kv, q, past, d: Attention(t, b, g * kv, kv, q, q + past, d),
        serving, small, st.integers(1, 8), st.integers(1, 8), st.sampled_from([1, 16, 1000]), st.integers(0, 5000),
        head,
    ),
    "moe": st.builds(
        lambda t, n, h, i, e, k: MoE(t, n, 128 * h, 128 * i, e, min(k, e)),
        serving, size, st.integers(1, 56), st.integers(1, 56), st.sampled_from([4, 8, 256]), st.integers(1, 8),
    ),
    "collective": st.builds(
        Collective, dtype, st.sampled_from(["all_reduce", "all_gather"]), st.integers(1, 10**9), st.integers(2, 8)
    ),
    "elementwise": st.one_of(
        st.builds(Elementwise, dtype, st.sampled_from(["add", "fill", "swiglu"]), st.integers(1, 10**10)),
        st.builds(Dropout, dtype, st.integers(1, 10**8)),
        st.builds(Reduce, dtype, size, size),
    ),
    "norm": st.builds(Norm, dtype, size, size, st.sampled_from(["layer", "rms"])),
    "softmax": st.builds(Softmax, dtype, size, size),
    "embedding": st.builds(Embedding, dtype, size, size, st.integers(2, 200_000)),
    "cross_entropy": st.builds(CrossEntropy, dtype, size, st.integers(2, 200_000)),
    "rotary": st.builds(Rotary, dtype, size, small, head),
    "optimizer": st.builds(OptimizerStep, st.just("fp32"), st.integers(1, 10**9), st.sampled_from(["adam", "sgd"])),
    "copy": st.builds(Copy, dtype, st.integers(1, 10**9)),
    "routing": st.builds(Routing, dtype, size, st.sampled_from([8, 256]), st.integers(1, 8)),
    "quantize": st.builds(
        Quantize, st.sampled_from(["fp8", "int8", "nvfp4"]), size, size, st.sampled_from(["scale", "cast", "dynamic"]),
        st.sampled_from(["bf16", "fp32"]), st.sampled_from([0, 128, 2**24]),
    ),
    "causal_conv1d": st.builds(CausalConv1d, st.just("bf16"), small, size, size, st.just(4), st.booleans()),
    "delta_rule": st.builds(
        lambda b, q, h, g, c: DeltaRule("bf16", b, q, h, h * g, 128, 128, c),
        small, st.one_of(st.just(1), size), st.integers(1, 16), st.integers(1, 8), st.booleans(),
    ),
}  # fmt: skip


def test_every_family_is_drawn() -> None:
    assert {family for recipe in RECIPES for family in recipe.families} == set(FAMILIES)
    assert {family for member in ARTIFACTS.manifest["estimators"] for family in member["families"]} <= set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_a_forecast_is_the_larger_of_bound_and_seconds(family: str, data: st.DataObject) -> None:
    op = data.draw(FAMILIES[family])
    gpu = load_gpu(data.draw(st.sampled_from(list_gpus())))
    framework = data.draw(st.sampled_from(FRAMEWORKS))
    estimator = ARTIFACTS.select(op.family, op.dtype)
    assert op.family == family
    if estimator is None or (op.unit == "matrix" and not gpu.supports(op.dtype)):
        return
    if family == "collective" and gpu.pcie_bandwidth is None:  # on a chip with its CPU, and joined to no other
        return
    seconds = estimator.seconds(make_batch(family, [op], framework), gpu)
    assert seconds.shape == (1,)
    assert np.isfinite(seconds[0]) and seconds[0] > 0.0
    bound = roofline([op], gpu).lower_bound_s[0]
    assert predict_kernels([op], gpu, ARTIFACTS, framework).latency_s[0] == max(bound, seconds[0])


class Says:
    """An estimator that answers with the same seconds for whatever it is asked."""

    name = "says"

    def __init__(self, answer_s: float) -> None:
        self.answer_s = answer_s

    def seconds(self, batch: Batch, gpu: GPUSpec) -> Any:
        return np.full(len(batch.ops), self.answer_s)

    def select(self, family: str, dtype: str) -> Estimator:
        return self


@pytest.mark.parametrize("answer_s", [1e-15, 1e-9, 1e-6, 2e-6, 1.0, 3.6e6])
def test_no_answer_is_clipped_but_by_the_bound(answer_s: float) -> None:
    gpu = load_gpu("h100")
    ops: list[Op] = [Elementwise("fp32", "fill", 1), Gemm("bf16", 4096, 4096, 4096)]
    table = predict_kernels(ops, gpu, Says(answer_s))
    bound = roofline(ops, gpu).lower_bound_s
    assert table.latency_s.tolist() == [max(low, answer_s) for low in bound.tolist()]
    assert [table.row(i).utilization for i in range(2)] == pytest.approx(bound / np.maximum(bound, answer_s), rel=1e-12)


def test_a_fill_of_one_element_takes_what_its_estimator_says() -> None:
    gpu, op = load_gpu("h100"), Elementwise("fp32", "fill", 1)
    estimator = ARTIFACTS.select("elementwise", "fp32")
    assert estimator is not None
    (seconds,) = estimator.seconds(make_batch("elementwise", [op]), gpu)
    assert predict_kernels([op], gpu, ARTIFACTS).row(0).latency_s == seconds > 1.9e-6
