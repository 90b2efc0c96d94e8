"""Convolutions, norms of channels, pooling, resizing, indices, sorts, bags and graphs: counts by hand, and laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.errors import RequestError
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import RooflineOnly, load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.ops import (
    Aggregate,
    ChannelNorm,
    Convolution,
    EmbeddingBag,
    Gemm,
    Index,
    Indexer,
    Interpolate,
    Op,
    Pool,
    Scan,
    Sort,
    StateSpace,
)
from predictor.ops.elementwise import Elementwise
from predictor.ops.roofline import roofline
from predictor.ops.sparse import distinct

STEM = Convolution.of("fp32", (2, 3, 224, 224), (64, 3, 7, 7), (2,), (3,), bias=True)
WIDE = Convolution.of("fp16", (8, 64, 56, 56), (128, 64, 3, 3), (1,), (1,))
DEPTHWISE = Convolution.of("fp16", (8, 96, 56, 56), (96, 1, 7, 7), (1,), (3,), groups=96)


def test_a_convolution_by_hand() -> None:
    assert (STEM.out_h, STEM.out_w, STEM.out_d) == (112, 112, 1)
    assert STEM.flops() == 2 * 2 * 112 * 112 * 64 * 3 * 49
    assert STEM.weights() == 64 * 3 * 49 + 64
    assert STEM.bytes_read() == (2 * 3 * 224 * 224 + 64 * 3 * 49 + 64) * 4
    assert STEM.bytes_written() == 2 * 64 * 112 * 112 * 4
    assert WIDE.product == (1, 8 * 56 * 56, 128, 64 * 9)
    assert STEM.unit == "matrix"


def test_one_and_three_dimensions() -> None:
    sound = Convolution.of("fp16", (1, 80, 3000), (512, 80, 3), (2,), (1,))
    assert (sound.out_w, sound.pixels, sound.dimensions) == (1500, 1500, 1)
    film = Convolution.of("bf16", (1, 16, 9, 60, 80), (32, 16, 3, 3, 3), (1, 2, 2), (1, 1, 1))
    assert (film.out_d, film.out_h, film.out_w, film.taps, film.dimensions) == (9, 30, 40, 27, 3)
    assert film.flops() == 2 * 9 * 30 * 40 * 27 * 16 * 32


def test_a_stride_beyond_the_window_skips_pixels() -> None:
    short_cut = Convolution.of("fp32", (4, 64, 56, 56), (128, 64, 1, 1), (2,))
    assert short_cut.input_bytes == 4 * 64 * 28 * 28 * 4
    assert replace(short_cut, phase="dgrad").bytes_written() == 4 * 64 * 56 * 56 * 4


def test_a_transposed_convolution_mirrors_the_gradient_of_a_plain_one() -> None:
    up = Convolution.of("fp32", (2, 32, 14, 14), (32, 16, 2, 2), (2,), transposed=True)
    assert (up.out_channels, up.out_h, up.weights()) == (16, 28, 32 * 16 * 4)
    plain = Convolution.of("fp32", (2, 16, 28, 28), (32, 16, 2, 2), (2,))
    mirror = replace(plain, phase="dgrad")
    assert up.flops() == mirror.flops()
    assert up.product == mirror.product
    assert up.bytes_moved() == mirror.bytes_moved()


def test_all_passes_have_the_flops_of_the_forward_one() -> None:
    for op in (WIDE, STEM, DEPTHWISE):
        data, weight, *sums = op.backward()
        assert data.flops() == weight.flops() == op.flops()
        assert len(sums) == op.bias == len(op.gradients()) - 2
        for grad in (data, weight):
            assert isinstance(grad, Convolution)
            groups, m, n, k = grad.product
            assert 2.0 * groups * m * n * k == pytest.approx(op.flops(), rel=0.02)
        assert data.backward() == ()


def test_depthwise_work_is_not_for_tensor_cores() -> None:
    assert DEPTHWISE.is_depthwise
    assert DEPTHWISE.unit == "vector"
    assert DEPTHWISE.flops() == 2 * 8 * 56 * 56 * 96 * 49
    assert not replace(WIDE, groups=32).is_depthwise


@pytest.mark.parametrize(
    ("shape", "weight"),
    [((2, 3, 8), (4, 3, 3, 3)), ((2, 3, 8, 8), (4, 5, 3, 3)), ((2, 3, 2, 2), (4, 3, 5, 5)), ((2, 3), (4, 3))],
)
def test_sizes_that_do_not_go_together_are_refused(shape: tuple[int, ...], weight: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match="convolution of"):
        Convolution.of("fp32", shape, weight)


def test_norms_of_channels_by_hand() -> None:
    scaled = ChannelNorm("fp16", 8, 64, 49)
    assert scaled.read_bytes == 8 * 64 * 49 * 2 + 2 * 64 * 4 + 2 * 64 * 4
    assert scaled.again_bytes == 0
    found = replace(scaled, training=True)
    assert found.again_bytes == 8 * 64 * 49 * 2
    assert found.kernels() == 2
    (back,) = found.backward()
    assert back.bytes_read() - found.bytes_read() == 8 * 64 * 49 * 2
    by_group = ChannelNorm("fp16", 8, 64, 49, "group", 32)
    assert by_group.write_bytes == 8 * 64 * 49 * 2 + 2 * 8 * 32 * 4
    assert found.weights() == 128


def test_pooling_and_resizing_by_hand() -> None:
    pool = Pool("fp16", 16, 112 * 112, 56 * 56, 9)
    assert pool.read_bytes == 16 * 112 * 112 * 2
    assert pool.write_bytes == 16 * 56 * 56 * 2
    kept = replace(pool, training=True)
    assert kept.write_bytes == 16 * 56 * 56 * (2 + 8)
    assert kept.backward()[0].bytes_moved() == 16 * (56 * 56 * 10 + 112 * 112 * 2)
    assert Pool("fp32", 4, 100, 4, 4, "avg").read_bytes == 4 * 16 * 4, "windows that leave pixels out"
    up = Interpolate("fp32", 4, 100, 400)
    assert up.bytes_moved() == 4 * (100 + 400) * 4
    assert replace(up, kind="bicubic").flops() == 4 * 400 * 2 * 16


def test_indices_scans_and_sorts_by_hand() -> None:
    picked = Index("fp32", 100, 8, 50)
    assert picked.read_bytes == 50 * 8 * 4 + 100 * 8
    assert picked.again_bytes == 50 * 8 * 4, "rows that were picked before"
    assert Index("fp32", 100, 1, 1000).again_bytes == 100 * 28, "the rest of a sector"
    fill, add = picked.backward()
    assert isinstance(fill, Elementwise)
    assert (fill.elements, add.flops()) == (50 * 8, 800)
    assert Scan("fp32", 10, 20).bytes_moved() == 2 * 200 * 4
    assert Sort("fp32", 4, 1000).again_bytes == 0
    long = Sort("fp32", 4, 100_000)
    assert long.again_bytes == 3 * 2 * 4 * 100_000 * 12
    best = replace(long, top_k=8)
    assert (best.write_bytes, best.again_bytes) == (4 * 8 * 12, 4 * 4 * 100_000 * 4)


def test_rows_that_picks_touch() -> None:
    assert distinct(10, 1) == 1.0
    assert distinct(1, 1000) == pytest.approx(1.0, rel=0.01)
    whole = sum(1 / q for q in range(1, 20001))
    exact = sum(1 - (1 - 1 / r / whole) ** 5000 for r in range(1, 20001))
    assert distinct(5000, 20000, 1.0) == pytest.approx(exact, rel=2e-3)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 10**8), st.floats(0, 1.5))
def test_distinct_rows_are_bounded_and_grow(picks: int, rows: int, skew: float) -> None:
    found = distinct(picks, rows, skew)
    assert 0 < found <= min(picks, rows) * (1 + 1e-9)
    assert distinct(2 * picks, rows, skew) >= found * (1 - 1e-9)
    assert distinct(picks, rows, skew + 0.5) <= found * (1 + 1e-3)


def test_bags_and_messages_by_hand() -> None:
    bag = EmbeddingBag("fp32", 64, 20, 128, 10**7)
    assert bag.read_bytes == pytest.approx(64 * 20 * 128 * 4 + (64 * 20 + 64) * 8, rel=1e-3)
    assert bag.again_bytes == pytest.approx(0, abs=2e-3 * bag.read_bytes)
    skewed = replace(bag, skew=1.2)
    assert skewed.read_bytes + skewed.again_bytes == pytest.approx(bag.read_bytes + bag.again_bytes)
    assert skewed.read_bytes < 0.8 * bag.read_bytes
    (dense,) = replace(bag, sparse=False).backward()
    assert dense.bytes_written() == 10**7 * 128 * 4
    (fused,) = bag.backward()
    assert fused.bytes_written() < 64 * 20 * 128 * 4 * 1.001
    ring = Aggregate("fp32", 100, 100, 1000, 16)
    assert ring.read_bytes + ring.again_bytes == pytest.approx((1000 * 16) * 4 + (1000 + 101) * 8)
    assert ring.write_bytes == 100 * 16 * 4
    both = replace(ring, weighted=True, heads=4).backward()
    assert [type(op).__name__ for op in both] == ["Aggregate", "Elementwise"]


@pytest.mark.parametrize(("width", "hand"), [(64, 32.6e-3), (256, 130.4e-3)])
def test_a_sparse_product_is_bound_by_the_rows_that_it_gathers(width: int, hand: float) -> None:
    """Reddit: 232,965 nodes, 114.6 M edges, fp32 on V100. Its features do not fit L2 (6 MiB), so that nearly every edge
    reads its row from DRAM: 114.6e6 x width x 4 bytes at 900 GB/s; FLOPs at the peak take a thirtieth of that."""
    gpu, op = load_gpu("v100-sxm"), Aggregate("fp32", 232_965, 232_965, 114_615_892, width)
    assert hand == pytest.approx(op.elements * 4 / 900e9, rel=0.01)
    found = predict_kernels([op], gpu, load_artifacts(None)).row(0)
    assert found.bound == "memory" and hand < found.latency_s < 1.35 * hand
    alone = predict_kernels([op], gpu, RooflineOnly()).row(0)
    assert alone.bound == "memory" and alone.latency_s == pytest.approx(hand, rel=0.15)  # edges and results beside
    assert op.flops() / gpu.vector_flops("fp32") < 0.05 * hand


def test_rows_that_fit_l2_are_read_once() -> None:
    """A graph whose features lie in L2 reads them from DRAM once. Kernels that look up an element a lane are told."""
    gpu = load_gpu("h100")
    small, large = (Aggregate("fp32", nodes, nodes, 20_000_000, 64) for nodes in (50_000, 5_000_000))
    assert small.missed_bytes(gpu.l2_bytes) == 0.0
    assert large.missed_bytes(gpu.l2_bytes) == pytest.approx(
        large.again_bytes * (1 - gpu.l2_bytes / large.distinct_bytes)
    )
    seconds = predict_kernels([small, large], gpu, load_artifacts(None)).latency_s
    assert seconds[0] < 0.9 * seconds[1]
    heads = replace(small, weighted=True, heads=4)
    assert heads.indexed == heads.elements == 4 * small.indexed == 4 * replace(small, weighted=True).indexed
    bag, narrow = (EmbeddingBag("fp32", 4096, 20, width, 10**6) for width in (128, 4))
    assert (bag.indexed, narrow.indexed) == (4096 * 20 * 32, 4096 * 20 * 32), "lanes beyond a row's end are idle"


def test_the_indexer_and_a_state_space_by_hand() -> None:
    decode = Indexer("fp8", 4, 64, 1, 8192, 128)
    assert decode.pairs == 4 * 8192
    assert decode.flops() == 4 * 8192 * 64 * (2 * 128 + 3)
    assert decode.weight_bytes == 4 * 8192 * 128
    assert Indexer("fp8", 1, 64, 100, 100, 128).pairs == 5050
    scan = StateSpace("bf16", 2, 16, 8, 64, 128, 64, True)
    assert scan.state_bytes == 2 * 64 * 128 * 64 * 4
    assert scan.bytes_read() == 32 * (2 * 8 * 128 + 64 * 65) * 2 + scan.state_bytes
    assert scan.flops() == 5 * 32 * 64 * 128 * 64


OPS: list[Op] = [
    STEM, WIDE, DEPTHWISE, *WIDE.backward(), ChannelNorm("fp16", 8, 64, 49, training=True),
    Pool("fp16", 16, 49, 16, 9), Index("bf16", 5, 64, 100), Sort("fp32", 3, 400),
    EmbeddingBag("fp32", 10, 3, 128, 1000, 1.05), Aggregate("bf16", 10, 20, 300, 64),
    Indexer("bf16", 2, 64, 3, 400, 128),
]  # fmt: skip


def test_each_has_a_finite_roofline() -> None:
    found = roofline(OPS, load_gpu("a100"))
    assert (found.lower_bound_s > 0).all()
    assert found.cold_s.max() < 1.0


def test_a_linear_layer_is_a_convolution_of_one_tap() -> None:
    conv, linear = Convolution.of("bf16", (32, 64, 7, 7), (128, 64, 1, 1)), Gemm("bf16", 32 * 49, 128, 64)
    assert conv.flops() == linear.flops()
    assert conv.bytes_moved() == linear.bytes_moved()
    assert conv.product == (1, linear.m, linear.n, linear.k)


def test_the_bound_counts_the_cheapest_algorithm() -> None:
    gpu = load_gpu("p100-pcie-16gb")
    three = Convolution.of("fp32", (42, 500, 10, 10), (411, 500, 3, 3), (1,), (1,))
    assert three.least_flops() == three.flops() / 4
    assert roofline([three], gpu).compute_s[0] == pytest.approx(three.flops() / 4 / gpu.peak_flops("fp32"))
    assert STEM.least_flops() == STEM.flops(), "a stride leaves no tile"
    assert DEPTHWISE.least_flops() == DEPTHWISE.flops()
