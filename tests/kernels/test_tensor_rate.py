"""Boards whose tensor cores run at half of their generation's rate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.kernels.device import Device, describe_device, tensor_rate
from predictor.kernels.gemm.core import Constants
from predictor.kernels.residual import Corrections
from predictor.ops import Attention, Gemm, MoE, Op


@pytest.mark.parametrize(
    ("gpu", "dtype", "rate"),
    [
        ("rtx-4090", "bf16", 0.5),
        ("rtx-4090", "fp8", 0.5),
        ("rtx-4090", "int8", 1.0),
        ("rtx-5090", "nvfp4", 1.0),
        ("rtx-3090", "fp8", 0.5),  # computed as bf16
        ("l20", "bf16", 0.503),
        ("l40s", "bf16", 1.0),
        ("a40", "fp8", 1.0),
        ("rtx-4090", "fp32", 1.0),
        ("h100", "bf16", 1.0),
        ("h100-nvl", "bf16", 1.0),  # quoted at a lower clock
        ("h20", "bf16", 0.234),
        ("b300", "int8", 0.033),
        ("b200", "nvfp4", 1.0),
        ("v100", "fp16", 1.0),
        ("mi300x", "bf16", 1.0),
    ],
)
def test_which_boards_run_below_the_rate_of_their_generation(gpu: str, dtype: str, rate: float) -> None:
    assert tensor_rate(load_gpu(gpu), dtype) == pytest.approx(rate, abs=1e-3)


@pytest.mark.parametrize("gpu", ["rtx-4090", "l40s"])
def test_a_measured_board_is_kept_with_its_rate(gpu: str) -> None:
    board = load_gpu(gpu)
    keys = ("cores", "boosters", "adapted", "calibrated", "probes", "core_rows")
    about = {**{key: {} for key in keys}, "devices": {gpu: describe_device(board, ["bf16"])}}
    kept = Corrections(about, {}, [Constants])
    assert kept.device(gpu, "bf16") == Device.of(board, "bf16")


def test_what_keeps_tensor_cores_waiting_takes_its_cycles_at_any_rate() -> None:
    full = Device(1e14, 1e12, 1e7, 100.0, 1e9)
    half = replace(full, peak_flops=5e13, tensor_rate=0.5)
    at_full, at_half = (float(device.slowed(1.25)) / device.peak_flops for device in (full, half))
    assert at_full == pytest.approx(1.25e-14)
    assert at_half == pytest.approx(at_full + 1e-14)  # the products' second half, and nothing else


@pytest.mark.parametrize(
    "op",
    [
        Gemm("bf16", 8192, 8192, 8192),
        Attention("bf16", 4, 32, 8, 8192, 8192, 128),
        MoE("bf16", 8192, 4096, 14336, 8, 2),
    ],
)
@pytest.mark.parametrize("gpu", ["l40s", "rtx-pro-6000", "a40"])
def test_half_the_rate_is_more_than_half_as_fast(op: Op, gpu: str) -> None:
    """Power apart (the board has plenty), a kernel bound by tensor cores takes longer, and less than twice as long."""
    board = replace(load_gpu(gpu), id="board", power_limit_w=2000.0)
    slow = replace(board, id="slow", peaks={key: v / 2 if key[0] == "matrix" else v for key, v in board.peaks.items()})
    fast, half = (predict_kernels([op], one, load_artifacts(), "vllm").row(0).latency_s for one in (board, slow))
    assert 1.2 * fast < half < 1.99 * fast
