"""Kernel time against the size: between two measured sizes it lies between what they take, without steps of trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import make_batch
from predictor.kernels.knots import Corners, Knots
from predictor.ops import Attention, Gemm

FloatArray = npt.NDArray[np.float64]

GPUS = ("h100-sxm", "a100-sxm-80gb", "l40s", "b200-sxm", "rtx-4090")
LIBRARIES = ("vllm", "sglang", "trtllm")
#: (n, k) of linear layers of models with 7 to 70 billion parameters, some of them over tp ranks.
LAYERS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (5120, 5120), (1280, 8192), (7168, 8192))
HEADS = ((32, 8), (32, 32), (8, 1))
ALIGNED = np.arange(64, 8193, 64)
#: What aligned rows may fall by from one multiple of 64 to the next: what tables measured of one row more than a tile
#: or of another kernel falls so (a line from 257 to 512 rows is as steep as their times have it).
FALL = 0.11
#: Share of such steps that fall by more than 2 %: those that measured times have.
SHARE = 0.0245


def steps(seconds: FloatArray) -> FloatArray:
    """Relative change from each size to the next."""
    return seconds[1:] / seconds[:-1] - 1.0


def of_gemm(gpu: str, library: str, dtype: str, n: int, k: int, rows: npt.NDArray[np.int64]) -> FloatArray:
    estimator = load_artifacts().select("gemm", dtype)
    assert estimator is not None
    products = [Gemm(m=int(m), n=n, k=k, dtype=dtype) for m in rows]
    return estimator.seconds(make_batch("gemm", products, library), load_gpu(gpu))


def of_attention(gpu: str, library: str, calls: list[Attention]) -> FloatArray:
    estimator = load_artifacts().select("attention", "bf16")
    assert estimator is not None
    return estimator.seconds(make_batch("attention", calls, library), load_gpu(gpu))


def test_aligned_products_hardly_fall_as_their_rows_grow() -> None:
    found = []
    for gpu in GPUS:
        for dtype in ("bf16", "fp8"):
            if dtype == "bf16" or load_gpu(gpu).supports(dtype):
                for library in LIBRARIES:
                    found += [steps(of_gemm(gpu, library, dtype, n, k, ALIGNED)) for n, k in LAYERS]
    every = np.concatenate(found)
    assert every.min() > -FALL
    assert (every < -0.02).mean() < SHARE


@pytest.mark.parametrize("rows", [(257, 300), (513, 640), (4353, 6000)])
def test_a_product_between_two_measured_sizes_takes_as_long_as_its_neighbours_have_it(rows: tuple[int, int]) -> None:
    """fp8 falls from 257 to 300 rows by no more than from 257 to 512, the next measured size."""
    knots = {257: 512, 513: 768, 4353: 8192}
    for library in LIBRARIES:
        for n, k in LAYERS:
            at = of_gemm("h100-sxm", library, "fp8", n, k, np.array([*rows, knots[rows[0]]]))
            assert at[1] > 0.999 * min(at[0], at[2])


def test_attention_grows_with_its_cache_and_its_prompt() -> None:
    """A decode step over more keys costs no less, nor does a longer prompt: to 1 %, as measured sizes have it."""
    lengths = np.unique((16 * 1.03 ** np.arange(250)).astype(int))
    for gpu in GPUS:
        for library in LIBRARIES:
            for heads, kv_heads in HEADS:
                for batch in (1, 8):
                    of: dict[str, Any] = {
                        "batch": batch,
                        "heads": heads,
                        "kv_heads": kv_heads,
                        "head_dim": 128,
                        "dtype": "bf16",
                    }
                    caches = [Attention(q_len=1, kv_len=int(length), **of) for length in lengths]
                    prompts = [Attention(q_len=int(length), kv_len=int(length), **of) for length in lengths]
                    decode, prefill = (of_attention(gpu, library, calls) for calls in (caches, prompts))
                    assert steps(decode).min() > -0.01
                    assert steps(prefill).min() > -0.01


def test_a_measured_size_is_its_own_only_neighbour() -> None:
    corners = Corners.around({"m": (np.array([1.0, 2.0, 8.0, 64.0]), Knots.of([2.0, 4.0, 8.0]))})
    assert corners.sizes["m"].tolist() == [1, 2, 8, 64]  # halved below what was measured, and doubled beyond
    assert corners.rows.tolist() == [0, 1, 2, 3]
    assert corners.weights == pytest.approx(1.0)


def test_the_line_is_exact_for_powers_of_both_sizes() -> None:
    rng = np.random.default_rng(0)
    knots = Knots.of([1.0, 2.0, 5.0, 16.0, 40.0])
    a, b = rng.uniform(1, 90, 50), rng.uniform(1, 90, 50)
    corners = Corners.around({"a": (a, knots), "b": (b, knots)})
    line = corners.joined(0.7 * np.log(corners.sizes["a"]) - 1.3 * np.log(corners.sizes["b"]))
    np.testing.assert_allclose(line, 0.7 * np.log(a) - 1.3 * np.log(b), atol=1e-12)
    np.testing.assert_allclose(np.bincount(corners.rows, corners.weights), 1.0)
