"""Boards that nobody measured: whose rows answer for them, and how far off they may be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from predictor import predict
from predictor.hardware.generation import generation
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.hardware.what_if import with_values
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.gemm.estimator import TensorCoreGemm


def test_a_board_with_the_chip_of_a_measured_one_takes_its_kernels() -> None:
    """AMD and Intel have no compute capability; their generation tells the chip."""
    estimator = load_artifacts().select("gemm", "bf16")
    assert isinstance(estimator, TensorCoreGemm)
    corrections = estimator._corrections
    assert corrections.siblings(load_gpu("mi325x")) == ("mi300x",)
    assert corrections.siblings(load_gpu("b580")) == ("b60",)
    assert corrections.siblings(load_gpu("mi250")) == () == corrections.siblings(load_gpu("mi355x"))
    words: dict[str, Any] = {"mode": "prefill", "batch": 1, "seq_len": 2048, "execution": "cuda_graph"}
    new, known = (predict("llama-3.1-8b", name, **words).latency_s for name in ("mi325x", "mi300x"))
    assert 0.8 * known < new <= known


def test_memory_that_a_chip_shares_with_its_cpu_is_of_no_measured_generation() -> None:
    assert generation(load_gpu("jetson-agx-orin")) == "ampere 8 lpddr" != generation(load_gpu("a100"))
    assert generation(load_gpu("gb10")) == "blackwell 12 lpddr" and generation(load_gpu("rtx-5080")) == "blackwell 12"


def spread(gpu: GPUSpec) -> float:
    """High over low end of the interval of a decode step."""
    answer = predict("llama-3.2-1b", gpu, mode="decode", batch=1, context_len=512, execution="cuda_graph")
    assert answer.interval_s is not None
    return answer.interval_s[1] / answer.interval_s[0]


def test_intervals_of_assumed_and_announced_values_are_wider() -> None:
    known = load_gpu("rtx-4080")
    assumed = replace(known, id="mine", sources={**known.sources, "boost_clock": "assumed: as another's"})
    stated = with_values(assumed, f"boost_clock={known.boost_clock_hz / 1e6}MHz")
    assert spread(assumed) > 1.2 * spread(known) and spread(stated) == pytest.approx(spread(known), rel=0.02)
    assert spread(replace(known, id="mine", sources={**known.sources, "l2": "announced: by its vendor"})) > spread(
        known
    )
    assert spread(load_gpu("vr200")) > spread(load_gpu("b200"))
    links = replace(known, id="mine", sources={**known.sources, "pcie_bandwidth": "assumed: as another's"})
    assert spread(links) == pytest.approx(spread(known), rel=0.02)
