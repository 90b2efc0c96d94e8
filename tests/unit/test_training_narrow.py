"""Training in 8 bits: what is cast, when, and that nothing is counted twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from each import each

from predictor.estimators.artifact import default_artifacts, load_artifacts
from predictor.estimators.base import predict_kernels
from predictor.forecast import Forecast, forecast
from predictor.hardware.gpu import load_gpu
from predictor.ops.gemm import Gemm
from predictor.ops.quantize import Quantize
from predictor.request import Request
from predictor.roofline import roofline


def products(found: Forecast) -> list[Gemm]:
    """The linear layers' products of the first stage in 8 bits."""
    nodes = (node.op for block in found.plan.stages[0].graph.blocks for node in block.nodes)
    return [op for op in nodes if isinstance(op, Gemm) and op.dtype == "fp8"]


@each("gpu", ("h100-sxm", "b200", "l40s"))
def test_a_product_whose_input_is_there_takes_less_by_the_kernel_that_makes_it(gpu: str) -> None:
    board, artifacts = load_gpu(gpu), load_artifacts(default_artifacts())
    whole = Gemm("fp8", 4096, 14336, 8192)
    given = replace(whole, quantized=True)
    ops = [whole, given, Quantize("fp8", 4096, 8192)]
    both, alone, before = predict_kernels(ops, board, artifacts, "vllm").latency_s
    assert alone == pytest.approx(both - before)
    few = replace(given, m=1)
    assert (predict_kernels([few], board, artifacts, "vllm").latency_s >= roofline([few], board).lower_bound_s).all()
    plain = Gemm("bf16", 4096, 14336, 8192)
    first, second = predict_kernels([plain, replace(plain, quantized=True)], board, artifacts, "vllm").latency_s
    assert first == second


def test_kernels_that_were_measured_without_have_nothing_taken_off() -> None:
    board, artifacts = load_gpu("mi300x"), load_artifacts(default_artifacts())
    whole = Gemm("fp8", 4096, 14336, 8192)
    first, second = predict_kernels([whole, replace(whole, quantized=True)], board, artifacts, "aiter").latency_s
    assert first == second


def test_a_node_casts_or_the_product_does_never_both() -> None:
    for execution, given in (("eager", True), ("compile", False)):
        found = forecast(Request("gpt2", "h100", mode="forward", dtype="fp8", execution=execution).run())
        assert {op.quantized for op in products(found)} == {given}, execution
    step = forecast(Request("gpt2", "h100", mode="train", dtype="fp8", execution="megatron").run())
    assert {op.quantized for op in products(step)} == {True}
    served = forecast(Request("gpt2", "h100", mode="prefill", dtype="fp8", execution="vllm").run())
    assert {op.quantized for op in products(served)} == {False}
