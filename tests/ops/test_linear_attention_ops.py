"""Quantization and linear attention: FLOPs and bytes against counts by hand, and the bound beside published times."""

from __future__ import annotations

import pytest

from predictor.hardware.gpu import load_gpu
from predictor.ops import CausalConv1d, DeltaRule, Quantize
from predictor.ops.roofline import roofline


def test_quantize_by_hand() -> None:
    # 8 rows of 16: bf16 in (2 bytes), fp8 out (1 byte), one fp32 scale a row.
    scale, cast, both = (Quantize("fp8", 8, 16, kind) for kind in ("scale", "cast", "dynamic"))
    assert (scale.bytes_read(), scale.bytes_written()) == (256, 32)
    assert (cast.bytes_read(), cast.bytes_written()) == (256 + 32, 128)
    assert (both.bytes_read(), both.bytes_written()) == (256, 128 + 32)
    assert [op.flops() for op in (scale, cast, both)] == [256, 256, 512]
    assert Quantize("fp8", 8, 16, "cast", "fp32").bytes_read() == 512 + 32


def test_scales_of_rows_blocks_and_tensors() -> None:
    def found(kind: str, group: int, cols: int = 320) -> tuple[int, float, int]:
        op = Quantize("fp8", 8, cols, kind, "bf16", group)
        return op.scales, op.bytes_written(), op.kernels()

    assert found("scale", 0) == (8, 32, 1)
    assert found("scale", 128) == (24, 96, 1)  # 320 columns are two blocks and a half
    assert found("dynamic", 128) == (24, 2560 + 96, 1)
    assert found("dynamic", 8 * 320) == (1, 2560 + 4, 2)  # a tensor's scale is known when all rows were seen
    assert found("cast", 8 * 320) == (1, 2560, 1)


def test_causal_convolution_by_hand() -> None:
    # 2 sequences of 10 tokens, 6 channels, 4 taps, 2 bytes: tokens 240 in and out, taps 48.
    prefill = CausalConv1d("bf16", 2, 10, 6, 4)
    assert (prefill.bytes_read(), prefill.bytes_written()) == (240 + 48, 240)
    assert prefill.flops() == 2 * 4 * 2 * 10 * 6
    assert prefill.weights() == 24
    decode = CausalConv1d("bf16", 2, 1, 6, 4, cached=True)  # three inputs a sequence and channel are kept: 72 bytes
    assert (decode.bytes_read(), decode.bytes_written()) == (24 + 72 + 48, 24 + 72)


def test_delta_rule_by_hand() -> None:
    # 3 sequences of 5 tokens, 2 key heads of 8, 4 value heads of 16: 15 tokens, states of 3 x 4 x 8 x 16 fp32.
    op = DeltaRule("bf16", 3, 5, 2, 4, 8, 16)
    assert op.flops() == 15 * 4 * 3 * (2 * 8 * 16)
    state, keys, values, gates = 3 * 4 * 8 * 16 * 4, 2 * 15 * 2 * 8 * 2, 15 * 4 * 16 * 2, 2 * 15 * 4 * 2
    assert op.bytes_read() == keys + values + gates
    assert op.bytes_written() == values + state
    by_channel = DeltaRule(
        "bf16", 3, 5, 2, 4, 8, 16, channel_decays=True
    )  # 8 decays a head in 4 bytes, where 1 was in 2
    assert by_channel.bytes_read() - op.bytes_read() == 15 * 4 * (8 * 4 - 2) and by_channel.flops() == op.flops()
    cached = DeltaRule("bf16", 3, 5, 2, 4, 8, 16, cached=True)
    assert cached.bytes_read() - op.bytes_read() == state
    assert cached.bytes_written() == op.bytes_written()


@pytest.mark.parametrize(
    ("op", "measured_ms"),
    [
        # Published on an H100 (SGLang 0.5.14, aiconfigurator@095f58a): 32,768 x 16,384, and a step of 1,024.
        (Quantize("fp8", 32768, 16384, "cast"), 0.524),
        (DeltaRule("bf16", 1024, 1, 16, 48, 128, 128, True), 2.138),
    ],
)
def test_the_bound_is_below_what_was_measured_and_of_its_order(op: Quantize | DeltaRule, measured_ms: float) -> None:
    bound = float(roofline([op], load_gpu("h100-sxm")).lower_bound_s[0]) * 1e3
    assert 0.85 * measured_ms < bound < measured_ms
