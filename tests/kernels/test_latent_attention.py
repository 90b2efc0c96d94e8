"""Latent attention of the set that ships: what its tables of the host may not teach."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from predictor import predict
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import make_batch
from predictor.ops import Attention
from predictor.ops.roofline import roofline


@cache
def attention() -> Any:
    return load_artifacts().select("attention", "bf16")


def call(decode: bool, batch: int = 1, heads: int = 16, keys: int = 4096) -> Attention:
    """Absorbed decode, or expanded prefill, of DeepSeek-V3."""
    if decode:
        return Attention("bf16", batch, heads, 1, 1, keys, 576, v_head_dim=512, shared_kv=True)
    return Attention("bf16", batch, heads, heads, keys, keys, 192, v_head_dim=128)


def milliseconds(gpu: str, engine: str, *calls: Attention) -> list[float]:
    return [1e3 * s for s in attention().seconds(make_batch("attention", list(calls), engine), load_gpu(gpu)).tolist()]


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h100-sxm", "h200-sxm", "l40s"])
def test_vllm_has_no_host_in_its_kernels(gpu: str) -> None:
    """vLLM's tables take 100 to 300 us however small the call; the other engines', of the same calls, 9 to 60."""
    calls = [call(True), call(True, batch=8, keys=1024), call(False, keys=128), call(False, heads=2, keys=512)]
    assert max(milliseconds(gpu, "vllm", *calls)) < 0.08


def test_prefill_is_near_what_the_board_can_do() -> None:
    """8,192 tokens, 128 heads: 275 to 700 TFLOP/s on H100 and H200, also where SGLang's table ran the absorbed form."""
    for gpu in ("h100-sxm", "h200-sxm"):
        least = 1e3 * float(roofline([call(False, heads=128, keys=8192)], load_gpu(gpu)).cold_s[0])
        for engine in ("sglang", "trtllm", "vllm"):
            assert 1.2 * least < milliseconds(gpu, engine, call(False, heads=128, keys=8192))[0] < 3.0 * least


def test_a_step_of_deepseek_v3_takes_about_as_long_in_vllm_as_in_sglang() -> None:
    vllm, sglang = (
        predict("deepseek-v3", "h200", mode="decode", batch=1, context_len=4096, tp=8, execution=name).latency_ms
        for name in ("vllm", "sglang")
    )
    assert 0.8 * sglang < vllm < 1.35 * sglang
