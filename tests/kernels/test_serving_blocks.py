"""Quantization, causal convolutions and the delta rule: what their core says, and which kernels answer."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from predictor import engines
from predictor.hardware.generation import generation
from predictor.hardware.gpu import list_gpus, load_gpu
from predictor.kernels.base import make_batch, predict_kernels
from predictor.kernels.blocks.core import (
    CAST,
    CHUNKS,
    DYNAMIC,
    KINDS,
    SCALE,
    STAND_INS,
    Constants,
    core_time,
    kind_of,
    shapes_of,
)
from predictor.kernels.blocks.estimator import ALONE, ServingBlocks
from predictor.kernels.device import Device
from predictor.kernels.residual import ANY_GPU, Corrections
from predictor.ops import CausalConv1d, DeltaRule, Op, Quantize
from predictor.ops.roofline import roofline

START = Constants(0.8, 16.0, 0.6, 4e3, 500.0, 500.0, 8.0, 1.0, 3.0)
H100, B200, L40S = load_gpu("h100-sxm"), load_gpu("b200-sxm"), load_gpu("l40s")


def an_op(kind: str, size: int = 4) -> Op:
    """One operator of each kind; ``size`` is its number of rows or sequences."""
    return {
        "scale": Quantize("fp8", size, 512, "scale"),
        "cast": Quantize("fp8", size, 512, "cast"),
        "dynamic": Quantize("fp8", size, 512, "dynamic"),
        "convolution": CausalConv1d("bf16", size, 64, 1024),
        "convolution_step": CausalConv1d("bf16", size, 1, 1024, 4, cached=True),
        "chunks": DeltaRule("bf16", size, 256, 4, 8, 128, 128),
        "step": DeltaRule("bf16", size, 1, 4, 8, 128, 128, cached=True),
    }[kind]


def an_estimator(constants: dict[str, Constants]) -> ServingBlocks:
    """Cores by key, no trees."""
    manifest: dict[str, Any] = {
        "cores": {key: found.to_manifest() for key, found in constants.items()}, "boosters": {}, "devices": {},
        "adapted": {}, "calibrated": {}, "probes": {}, "core_rows": {}, "rows": 1,
    }  # fmt: skip
    return ServingBlocks("blocks", Corrections(manifest, {}, (Constants,)))


def seconds(estimator: ServingBlocks, op: Op, gpu: Any = H100, kernels: str = "vllm") -> float:
    return float(estimator.seconds(make_batch(op.family, [op], kernels), gpu)[0])


EVERYWHERE = an_estimator({f"{ANY_GPU}|vllm|{kind}|bf16": START for kind in KINDS})


def test_every_kind_is_one_operators() -> None:
    assert [kind_of(an_op(kind)) for kind in KINDS] == list(KINDS)
    assert set(STAND_INS) == set(KINDS)
    assert kind_of(DeltaRule("bf16", 1, 1, 1, 1, 128, 128)) == CHUNKS  # a prompt of one token


@pytest.mark.parametrize("gpu", list_gpus())
def test_more_work_never_takes_less_and_none_beats_the_roofline(gpu: str) -> None:
    spec = load_gpu(gpu)
    for kind in KINDS:
        ops = [an_op(kind, size) for size in (1, 2, 7, 64, 1000, 40_000)]
        batch = make_batch(ops[0].family, ops, "vllm")
        times = EVERYWHERE.seconds(batch, spec)
        assert np.isfinite(times).all() and all(a <= b * (1 + 1e-12) for a, b in pairwise(times)), kind
        if ops[0].unit == "matrix" and not spec.supports("bf16"):
            continue
        bound = roofline(ops, spec).lower_bound_s
        assert (predict_kernels(ops, spec, Lone(), "vllm").latency_s == np.maximum(bound, times)).all(), kind


class Lone:
    name = "lone"

    def select(self, family: str, dtype: str) -> ServingBlocks:
        return EVERYWHERE


def test_a_chain_by_hand() -> None:
    # One sequence of 640 tokens: ten chunks of 1,000 cycles behind 100 of the block, and 2,000 of the call; no bytes.
    c = replace(START, overhead_cycles=2e3, block_cycles=100.0, step_cycles=1e3, dram_efficiency=1.0, join=50.0)
    device = replace(Device.of(H100, "bf16"), bandwidth=1e30)
    vllm = engines.library("vllm")
    (total,) = core_time(shapes_of([DeltaRule("bf16", 1, 640, 2, 4, 128, 128)], vllm, H100), device, c).total
    assert total * device.clock_hz == pytest.approx(100 + 10 * 1e3 + 2e3, rel=1e-6)


def test_one_kernel_has_a_head_on_an_sm_where_several_share_it() -> None:
    def turns(gpu: Any, batch: int) -> float:
        op = DeltaRule("bf16", batch, 640, 16, 64, 128, 128)
        core = core_time(shapes_of([op], engines.library("vllm"), gpu), Device.of(gpu, "bf16"), START)
        return float(core.turns[0])

    assert [turns(H100, n) for n in (1, 2, 3)] == [1, 1, 2]  # 132 SMs: 64, 128, 192 heads, whole turns
    assert turns(L40S, 11) == 1  # 142 SMs of eight blocks: 704 heads
    assert turns(L40S, 2 * 142) == pytest.approx(64 * 2 * 142 / (8 * 142))


def test_what_kernels_hand_on_passes_through_memory() -> None:
    several, one = (shapes_of([an_op(CHUNKS)], engines.library("vllm"), gpu) for gpu in (L40S, H100))
    # 4 sequences x 8 heads x 4 chunks, written and read: 64 x 64 x (4 + 2), 64 x (128 + 256) x 2, 128 x 128 x 2 bytes.
    assert several.passed[0] == 2 * 128 * (64 * 64 * 6 + 64 * 384 * 2 + 128 * 128 * 2)
    assert one.passed[0] == 0.0


def test_gpus_share_constants_by_kernel() -> None:
    slow, fast = replace(START, overhead_cycles=1e6), replace(START, overhead_cycles=1e3)
    newest = f"{ANY_GPU}|{ALONE}{generation(B200)}|chunks|bf16"
    found = an_estimator({f"{ANY_GPU}|vllm|chunks|bf16": slow, newest: fast})
    op = an_op(CHUNKS)
    assert seconds(found, op, B200) * B200.boost_clock_hz < 1e6
    assert seconds(found, op, H100) * H100.boost_clock_hz < 1e6  # no Hopper was measured: the kernels of its kind
    assert seconds(found, op, L40S) * L40S.boost_clock_hz > 1e6
    assert seconds(found, op, H100, "sglang") * H100.boost_clock_hz > 1e6


def test_a_tensors_scale_takes_a_kernel_of_its_own() -> None:
    tensor = Quantize("fp8", 64, 512, "dynamic", group=64 * 512)
    first, second = (seconds(EVERYWHERE, replace(tensor, kind=kind)) for kind in (SCALE, CAST))
    assert seconds(EVERYWHERE, tensor) == pytest.approx(first + second)
    assert seconds(EVERYWHERE, replace(tensor, group=0)) < first + second


def test_a_set_without_rows_of_a_kind_answers_with_the_nearest() -> None:
    found = an_estimator({f"{ANY_GPU}|vllm|{CAST}|bf16": START, f"{ANY_GPU}|vllm|chunks|bf16": START})
    assert seconds(found, an_op(DYNAMIC)) > 0.0
    assert seconds(found, an_op("step")) > 0.0


def test_an_explanation_names_core_and_constants() -> None:
    said = EVERYWHERE.explain(make_batch("delta_rule", [an_op(CHUNKS)], "sglang"), L40S)
    assert {term.name for term in said.terms} >= {"core", "factor", "kernel", "step_cycles", "overhead_cycles"}
    assert "rows" in said.rests_on


def test_a_block_for_every_channel_or_for_a_few_tokens() -> None:
    op = CausalConv1d("bf16", 3, 2050, 600)
    many, channels = (shapes_of([op], engines.library(name), H100) for name in ("vllm", "trtllm"))
    assert (many.blocks[0], many.steps[0]) == (3 * 257 * 3, 8)  # 8 tokens of 256 channels
    assert (channels.blocks[0], channels.steps[0]) == (3 * 600, 3)  # 1,024 tokens at a time
