"""Convolutions and the indexer, answered from the set's products and streams."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import RooflineOnly, load_artifacts
from predictor.kernels.base import make_batch, predict_kernels
from predictor.kernels.convolution import core
from predictor.kernels.convolution.estimator import CONSTANTS, Gathered
from predictor.ops import Convolution, Elementwise, Gemm, Indexer, Op

SET = load_artifacts()
BOARDS = ("v100-pcie-32gb", "rtx-3090", "h100", "mi300x", "p4")


def conv(dtype: str = "fp16", batch: int = 32, into: int = 64, out: int = 128, size: int = 56, side: int = 3,
         **more: object) -> Convolution:  # fmt: skip
    groups = int(more.get("groups", 1))  # type: ignore[call-overload]
    shape, weight = (batch, into, size, size), (out, into // groups, side, side)
    return Convolution.of(dtype, shape, weight, (1,), (side // 2,), **more)  # type: ignore[arg-type]


def seconds(*ops: Op, gpu: str = "rtx-3090") -> list[float]:
    return predict_kernels(ops, load_gpu(gpu), SET).latency_s.tolist()


def unclipped(op: Op, gpu: str) -> float:
    estimator = SET.select(op.family, op.dtype)
    assert estimator is not None
    return float(estimator.seconds(make_batch(op.family, [op]), load_gpu(gpu))[0])


@pytest.mark.parametrize("gpu", BOARDS)
def test_convolutions_are_estimated_above_the_roofline_and_near_it(gpu: str) -> None:
    for dtype in ("fp16", "fp32"):
        board = load_gpu(gpu)
        if not board.supports(dtype):
            continue
        forward = conv(dtype)
        for op in (forward, *forward.backward(), conv(dtype, into=96, out=96, groups=96, side=7)):
            table = predict_kernels([op], board, SET)
            assert table.estimators[0]
            assert table.latency_s[0] >= table.lower_bound_s[0]
            assert 1.0 <= unclipped(op, gpu) / table.lower_bound_s[0] < 60.0, (op.label, dtype)


def test_the_pixels_of_one_tap_are_the_rows_of_a_product() -> None:
    one = conv(batch=64, into=512, out=512, size=28, side=1, channels_last=True)
    product = Gemm("fp16", 64 * 28 * 28, 512, 512)
    assert seconds(one)[0] == pytest.approx(seconds(product)[0], rel=0.35)


def test_channels_that_lie_apart_cost_two_transposes() -> None:
    apart, together = (conv(channels_last=last) for last in (False, True))
    moves = core.transposes(apart)
    assert core.transposes(together) == ()
    assert sum(move.elements for move in moves) == 32 * 56 * 56 * (64 + 128)
    assert seconds(apart)[0] == pytest.approx(seconds(together)[0] + sum(seconds(*moves)), rel=1e-6)
    assert core.transposes(conv("fp32")) == ()


def test_winograd_serves_what_it_can() -> None:
    plain = conv("fp32", into=512, out=512, size=28)
    assert core.is_winograd(plain)
    for other in (replace(plain, stride=2), replace(plain, groups=2), conv("fp32", side=5), plain.backward()[1]):
        assert not core.is_winograd(other)  # type: ignore[arg-type]
    assert core.winograd_product(plain) == (36, 32 * 49, 512, 512)
    strided = replace(plain, stride=2)  # the same FLOPs, without it
    quick, slow = seconds(plain, strided, gpu="v100-pcie-32gb")
    assert slow > 1.3 * quick
    assert plain.least_flops() == pytest.approx(plain.flops() / 4)


def test_time_grows_with_every_size() -> None:
    for dtype in ("fp16", "fp32"):
        base = conv(dtype)
        larger = [conv(dtype, **{name: 2 * value}) for name, value in
                  (("batch", 32), ("into", 64), ("out", 128), ("size", 56))]  # fmt: skip
        times = seconds(base, *larger)
        assert min(times[1:]) > times[0]


def test_sets_without_products_leave_it_to_the_roofline() -> None:
    table = predict_kernels([conv()], load_gpu("a100"), RooflineOnly())
    assert table.estimators == ("",)


def test_the_indexer_reads_its_keys() -> None:
    short, long = (Indexer("bf16", 64, 64, 1, n, 128) for n in (4096, 65536))
    quick, slow = seconds(short, long, gpu="h100")
    assert 8 < slow / quick < 20


def test_constants_move_what_they_name() -> None:
    estimator = SET.select("convolution", "fp32")
    assert isinstance(estimator, Gathered)
    batch = make_batch("convolution", [conv("fp32", side=5), conv("fp32", into=96, out=96, groups=96)])
    gpu = load_gpu("v100-pcie-32gb")
    base = estimator.seconds(batch, gpu)
    slower = estimator.with_constants(replace(CONSTANTS, implicit=CONSTANTS.implicit / 2)).seconds(batch, gpu)
    assert slower[0] > 1.8 * base[0]
    assert np.isclose(slower[1], base[1])
    issued = estimator.with_constants(replace(CONSTANTS, tap_issue=400.0)).seconds(batch, gpu)
    assert issued[1] > 2 * base[1]
    assert issued[0] == base[0]


def test_narrow_groups_are_packed_side_by_side() -> None:
    narrow = conv(into=128, out=128, groups=32, channels_last=True)
    whole = replace(narrow, groups=1)
    assert core.implicit_shapes([narrow], 2.0, 16).batch[0] == 8
    assert core.implicit_shapes([narrow], 2.0, 16).k[0] == 16 * 9
    quick, slow = seconds(narrow, whole)
    assert quick < 1.05 * slow, "a whole product serves at worst"
    grouped = core.implicit_shapes([narrow], 2.0)
    assert grouped.batch[0] == 32


def tf32(into: int, dims: int = 2, out: int = 64, groups: int = 1, transposed: bool = False, stride: int = 1,
         last: bool = False) -> Convolution:  # fmt: skip
    size, taps = [24] * dims, [3] * dims
    weight = (into, out // groups, *taps) if transposed else (out, into // groups, *taps)
    return Convolution.of(
        "tf32", (16, into, *size), weight, (stride,), transposed=transposed, groups=groups, channels_last=last
    )


def test_channels_that_do_not_fill_a_load_leave_the_tensor_cores() -> None:
    assert core.on_lanes(tf32(3))
    assert not core.on_lanes(tf32(4))
    assert not core.on_lanes(tf32(3, last=True)), "inductor makes them channels last, and cuDNN pads them"
    assert core.on_lanes(conv("fp32"))
    assert not core.on_lanes(conv("fp16", into=3)), "16-bit kernels pad them"
    apart, together = tf32(3), tf32(3, last=True)
    assert core.transposes(apart) == () == core.transposes(together)
    (quick,), (three,) = seconds(apart), seconds(replace(apart, in_channels=4))
    assert quick < 0.8 * three, "without transposes"


def test_gradients_of_narrow_taps_and_of_groups_run_on_lanes() -> None:
    narrow, wide = tf32(16, 3, transposed=True), tf32(32, 3, transposed=True)
    assert core.is_gradient(narrow)
    assert core.on_lanes(narrow)
    assert not core.on_lanes(wide)
    assert not core.on_lanes(tf32(16, 2, transposed=True))
    assert not core.on_lanes(tf32(16, 3)), "forward"
    assert core.on_lanes(tf32(32, groups=4, transposed=True))
    assert not core.on_lanes(tf32(32, groups=4))
    back = tf32(64, 3, out=8).backward()[0]
    assert isinstance(back, Convolution)
    assert core.is_gradient(back)
    assert core.on_lanes(back), "it sums the 8 channels of the result"


def test_lanes_take_taps_one_by_one_where_they_are_no_row() -> None:
    assert core.lanes_product(tf32(3))[3] == 27, "one row"
    assert core.lanes_product(tf32(3, 3))[3] == 27 * 8
    assert core.lanes_product(tf32(3, transposed=True))[3] == 9 * 16
    strided = tf32(3, transposed=True, stride=2)
    assert core.lanes_product(strided)[3] == 9 * 16, "zeros between the strides are multiplied"
    assert strided.product[3] < 9


def test_power_holds_lanes_that_registers_feed() -> None:
    limited = replace(load_gpu("l4"), power_limit_w=300.0)
    op = make_batch("convolution", [tf32(3, 3, out=128)])
    estimator = SET.select("convolution", "tf32")
    assert estimator is not None
    slow, quick = (float(estimator.seconds(op, gpu)[0]) for gpu in (load_gpu("l4"), limited))
    assert 1.3 < slow / quick < 1.6
    v100 = load_gpu("v100-pcie-32gb")
    plain = make_batch("convolution", [conv("fp32", side=5)])
    same = [float(estimator.seconds(plain, gpu)[0]) for gpu in (v100, replace(v100, power_limit_w=150.0))]
    assert same[0] == same[1], "what power leaves there is in the constants"


@pytest.mark.parametrize("dtype", ["tf32", "fp16"])
def test_a_tap_needs_no_transposes(dtype: str) -> None:
    one = conv(dtype, batch=64, into=256, out=256, size=28, side=1)
    assert core.is_plain(one)
    assert core.transposes(one) == ()
    assert seconds(one) == seconds(replace(one, channels_last=True))
    for other in (replace(one, stride=2, out_h=14, out_w=14), replace(one, out_h=30, out_w=30), conv(dtype)):
        assert len(core.transposes(other)) == 2, other
    assert core.transposes(replace(one, groups=4)) == ()


def test_winograd_in_one_kernel_moves_its_bytes() -> None:
    gpu = load_gpu("l4")
    estimator, streams = SET.select("convolution", "tf32"), SET.select("elementwise", "fp32")
    assert estimator is not None
    assert streams is not None
    image = Convolution.of("tf32", (16, 3, 256, 256), (64, 3, 3, 3))
    moved = Elementwise("fp32", "relu", int(image.bytes_moved() / 8))
    stream = float(streams.seconds(make_batch("elementwise", [moved]), gpu)[0])
    assert float(estimator.seconds(make_batch("convolution", [image]), gpu)[0]) > 0.99 * stream
