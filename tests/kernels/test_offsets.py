"""Element-wise kernels that work out where each element lies: slower than the bytes that they move."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import predictor
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.models.step import Step
from predictor.ops import Elementwise

ARTIFACTS = load_artifacts(Path(__file__).parents[2] / "models" / "default")
N = 16 * 559 * 1024
#: Kernels of the traces h100- and mi300x-qwen1.5-0.5b of AMD-AGI/TraceLens (MIT): us on H100 SXM and MI300X.
UNLIKE = {
    "a copy head by head": (Elementwise("bf16", "copy", N, offsets=True), 29.3, 15.1),
    "a sum of two layouts": (Elementwise("bf16", "add", N, offsets=True), 34.8, 20.5),
    "a product with one weight a column": (Elementwise("bf16", "mul", N, 1, 2048.0, offsets=True), 25.2, 16.3),
    "a product with one number a row": (Elementwise("fp32", "mul", N, 1, 8944 * 4.0, offsets=True), 32.8, 23.6),
    "a cast to fp32": (Elementwise("fp32", "cast", N, in_dtype="bf16", offsets=True), 29.2, 21.5),
    "half of every head": (Elementwise("bf16", "neg", N // 2, offsets=True), 12.2, 10.8),
}
ALIKE = {
    "a sum": (Elementwise("bf16", "add", N), 17.8, 14.4),
    "a cast to bf16": (Elementwise("bf16", "cast", N, in_dtype="fp32"), 18.3, 13.9),
    "a power": (Elementwise("fp32", "pow_scalar", N), 26.5, 18.9),
}


def us(op: Elementwise, gpu: str) -> float:
    return float(predict_kernels([op], load_gpu(gpu), ARTIFACTS).latency_s[0]) * 1e6


@pytest.mark.parametrize("what", [*UNLIKE, *ALIKE])
def test_traced_kernels(what: str) -> None:
    """Within a third of each; what has to find its elements took 1.2 to 2.4 times as long as its bytes."""
    op, h100, mi300x = {**UNLIKE, **ALIKE}[what]
    assert us(op, "h100-sxm") == pytest.approx(h100, rel=0.25)
    assert us(op, "mi300x") == pytest.approx(mi300x, rel=0.33)
    if what in UNLIKE:
        assert us(replace(op, offsets=False), "h100-sxm") < h100 / 1.2


def test_the_smallest_kernels_of_a_board_with_wide_warps_take_longer() -> None:
    """Norms and casts of 32 tokens in SGLang's replayed decode steps, trace mi300x-sglang-decode of AMD-AGI/TraceLens:
    4.5 to 4.8 us each. On H100 such kernels take 1.5 to 1.7 us (h100-qwen1.5-0.5b)."""
    small = Elementwise("bf16", "cast", 32 * 4096, in_dtype="fp32")
    assert us(small, "mi300x") == pytest.approx(4.7, rel=0.1)
    assert us(small, "h100-sxm") == pytest.approx(1.7, rel=0.3)


def test_the_time_is_the_sms_and_not_the_memorys() -> None:
    op, _, _ = UNLIKE["a copy head by head"]
    h100 = load_gpu("h100-sxm")
    faster = replace(h100, memory_bandwidth=4.0 * h100.memory_bandwidth)
    fewer = replace(h100, sm_count=h100.sm_count // 2)
    times = [float(predict_kernels([op], gpu, ARTIFACTS).latency_s[0]) for gpu in (h100, faster, fewer)]
    assert times[1] > 0.9 * times[0]
    assert times[2] > 1.7 * times[0]


torch = pytest.importorskip("torch", reason="the extra torch is not installed")


class Layouts(torch.nn.Module):  # type: ignore[misc, name-defined]
    """One kernel of every kind."""

    def forward(self, x: object, y: object, weight: object) -> object:
        import torch as t

        x = t.neg(x)  # alike
        x = x + t.sigmoid(y)  # both alike
        x = x * weight  # one number a column
        x = x * x.float().mean(-1, keepdim=True).to(x.dtype)  # a cast to fp32; one number a row; a cast to bf16
        x = x + x.transpose(1, 2).abs().transpose(1, 2)  # the same order both times: alike
        x = x + y.transpose(1, 2)  # unlike
        return t.cat((x, x.transpose(1, 2)), -1)  # one of them in another order


def offsets(execution: str) -> list[tuple[str, bool]]:
    traced = predictor.trace(Layouts, "x:bf16[4,64,64] y:bf16[4,64,64] weight:bf16[64]")
    if execution == "eager":
        graph = traced.source.record(Step("forward", 4, 1, act_dtype="bf16"), None).graph
        nodes = [node for block in graph.blocks for node in block.nodes]
    else:
        from predictor.forecast.forecast import forecast
        from predictor.request.request import Request

        run = Request(traced, "h100", mode="forward", batch=4, dtype="bf16", execution=execution).run()
        nodes = [node for node, _ in forecast(run, intervals=False).plan.stages[0].graph.nodes()]
    return [(node.op.fn, node.op.offsets) for node in nodes if isinstance(node.op, Elementwise)]


def test_a_trace_says_which_kernels_work_places_out() -> None:
    assert offsets("eager") == [
        ("fused", False), ("sigmoid", False), ("add", False), ("mul", True), ("cast", True), ("cast", False),
        ("mul", True), ("fused", False), ("add", False), ("add", True), ("copy", True),
    ]  # fmt: skip


def test_compiled_loops_know_the_places() -> None:
    loops = offsets("compile")
    assert loops
    assert not any(places for _, places in loops)
