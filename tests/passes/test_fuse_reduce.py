"""Norms that an all_reduce does in its kernel: which engines and sizes, what is left of their bytes, what it saves."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.forecast.forecast import Forecast, forecast
from predictor.ops.norm import Norm
from predictor.passes.fuse_modules import norms_in_reductions
from predictor.request.request import Request


def decode(model: str = "llama-3.1-70b", gpu: str = "h100", batch: int = 16, tp: int = 8, **words: Any) -> Forecast:
    asked = {"mode": "decode", "context_len": 512, "execution": "vllm", **words}
    return forecast(Request(model, gpu, batch=batch, tp=tp, **asked).run())


def joined(found: Forecast) -> tuple[float, float]:
    """How often a norm runs within an all_reduce, and by itself."""
    norms = [(item.op, item.times) for item in found.stages[0].op_times() if isinstance(item.op, Norm)]
    inside = sum(times for op, times in norms if op.in_reduction)
    return inside, sum(times for _, times in norms) - inside


def test_vllm_joins_two_a_layer_from_0_19_on() -> None:
    older, newest = decode(software="0.14"), decode()
    # The first layer's norm, which follows the embedding's, stands for the last one, behind the last layer's.
    assert joined(older) == (0.0, 161.0) and joined(newest) == (160.0, 1.0)
    saved = older.latency_s - newest.latency_s
    assert 160 * 1e-6 < saved < 160 * 5e-6  # a launch of some microseconds each
    gaps = [found.prediction.between_s["gaps between kernels"] for found in (older, newest)]
    assert gaps[0] > gaps[1]


@pytest.mark.parametrize(
    ("gpu", "words", "inside"),
    [
        ("h100", {"batch": 128}, False),  # 2 MiB; tp 8 takes half a MiB
        ("h100", {"batch": 128, "tp": 4}, True),
        ("h100", {"batch": 16, "tp": 1}, False),
        ("a100", {}, False),
        ("l40s", {"tp": 4}, False),
        ("h100", {"execution": "sglang"}, False),  # of a few models alone
        ("h100", {"model": "qwen3-30b-a3b", "execution": "sglang", "tp": 4}, True),
        ("h100", {"execution": "tensorrt_llm"}, True),
        ("h100", {"execution": "cuda_graph"}, False),
    ],
)
def test_engines_and_sizes(gpu: str, words: dict[str, Any], inside: bool) -> None:
    assert (joined(decode(gpu=gpu, **words))[0] > 0) is inside


def test_what_is_left_is_the_residual_and_the_result() -> None:
    """Hand count: 16 rows of 8,192 in bf16; a weight; statistics of 4 bytes a row as of every norm."""
    apart, inside = (Norm("bf16", 16, 8192, "rms", residual=True, in_reduction=joins) for joins in (False, True))
    row = 16 * 8192 * 2
    assert apart.bytes_moved() - inside.bytes_moved() == 2 * row
    assert inside.bytes_read() == row + 8192 * 2 and inside.bytes_written() == row + 16 * 4
    assert (apart.kernels(), inside.kernels()) == (1, 0)


def test_where_nothing_is_taken_the_graph_is_the_same() -> None:
    graph = decode(software="0.14").plan.stages[0].graph
    assert norms_in_reductions(graph, lambda op, tokens: False) is graph
    once = norms_in_reductions(graph, lambda op, tokens: True)
    assert once is not graph and norms_in_reductions(once, lambda op, tokens: True) is once
