"""Which sizes are knots, and what a fit and a calibration make of them, on made-up measurements."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason='pandas is not installed: pip install "tilecast[train]"')
pytest.importorskip("lightgbm", reason='LightGBM is not installed: pip install "tilecast[train]"')
pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')

from predictor.hardware.gpu import load_gpu  # noqa: E402
from predictor.kernels.base import make_batch  # noqa: E402
from predictor.kernels.fitting import serving as fit_serving  # noqa: E402
from predictor.kernels.fitting.calibrate_serving import calibrate_gemm  # noqa: E402
from predictor.kernels.fitting.grids import grid_of  # noqa: E402
from predictor.kernels.gemm.estimator import TensorCoreGemm  # noqa: E402
from predictor.ops import Gemm, Op  # noqa: E402
from predictor.ops.roofline import roofline  # noqa: E402

GPU, NEW = load_gpu("h100-sxm"), load_gpu("l40s")
GRID = (1, 8, 16, 64, 256, 512, 2048)
LAYERS = tuple(product((1024, 4096, 6144, 8192), (1024, 4096, 8192)))


def _ops(rows: Any) -> list[Op]:
    return [Gemm("bf16", int(m), n, k) for m in rows for n, k in LAYERS]


def _frame(ops: list[Op], gpu: Any, efficiency: float) -> Any:
    """The roofline over an efficiency, plus 5 us; a quarter more where the rows are no multiple of 64."""
    seconds = roofline(ops, gpu).cold_s / efficiency + 5e-6
    seconds *= [1.25 if op.m % 64 else 1.0 for op in ops]  # type: ignore[attr-defined]
    rows = [
        {"m": op.m, "n": op.n, "k": op.k, "batch": 1, "dtype": "bf16", "latency_ms": s * 1e3}  # type: ignore[attr-defined]
        for op, s in zip(ops, seconds, strict=True)
    ]
    return pd.DataFrame(rows).assign(gpu=gpu.id, framework="vllm", op="gemm", quant="")


@pytest.fixture(scope="module")
def fitted() -> Any:
    few = _frame(_ops([320])[:1], GPU, 0.7)
    return fit_serving.fit_gemm(pd.concat([_frame(_ops(GRID), GPU, 0.7), few], ignore_index=True), {GPU.id: GPU}, 0)


def _without_knots(manifest: Any) -> Any:
    bare = {key: about | {"knots": {}} for key, about in manifest["boosters"].items()}
    return manifest | {"boosters": bare}


def _seconds(manifest: Any, weights: Any, ops: list[Op], gpu: Any) -> Any:
    return TensorCoreGemm.from_artifact(manifest, weights).seconds(make_batch("gemm", ops, "vllm"), gpu)


def test_a_size_that_few_layers_were_measured_at_is_no_knot() -> None:
    sizes = np.array([*GRID * 30, 320.0, 320.0])
    assert grid_of(sizes) == list(GRID)


def test_random_sizes_have_no_grid() -> None:
    rng = np.random.default_rng(0)
    assert grid_of(rng.integers(1, 8192, 3000).astype(float)) == []
    assert grid_of(np.array([])) == []


def test_a_fit_keeps_the_sizes_of_its_rows_with_the_trees(fitted: Any) -> None:
    manifest = fitted[0]
    assert manifest["grids"] == [list(GRID)]
    assert {key: about["knots"] for key, about in manifest["boosters"].items()} == {
        "h100-sxm|bf16": {"m": 0}, "*|bf16": {"m": 0},
    }  # fmt: skip


def test_random_rows_are_asked_as_they_are() -> None:
    rng = np.random.default_rng(0)
    frame = _frame([Gemm("bf16", int(m), 4096, 4096) for m in rng.integers(1, 4096, 400)], GPU, 0.7)
    manifest, weights = fit_serving.fit_gemm(frame, {GPU.id: GPU}, 0)
    assert manifest["grids"] == []
    ops = _ops([300])
    np.testing.assert_array_equal(
        _seconds(manifest, weights, ops, GPU), _seconds(_without_knots(manifest), weights, ops, GPU)
    )


def test_measured_sizes_answer_as_without_knots_and_others_lie_on_the_line(fitted: Any) -> None:
    manifest, weights = fitted
    for gpu in (GPU, NEW):
        at = _seconds(manifest, weights, _ops(GRID), gpu)
        np.testing.assert_allclose(at, _seconds(_without_knots(manifest), weights, _ops(GRID), gpu), rtol=1e-12)
    low, high = at.reshape(len(GRID), -1)[4:6]
    middle = _seconds(manifest, weights, [Gemm("bf16", 384, n, k) for n, k in LAYERS], NEW)
    share = np.log(384 / 256) / np.log(2)
    np.testing.assert_allclose(np.log(middle), (1 - share) * np.log(low) + share * np.log(high), rtol=1e-12)


@pytest.mark.parametrize("gpu", [GPU, NEW])
def test_a_calibration_with_rows_at_measured_sizes_answers_there_as_without_knots(fitted: Any, gpu: Any) -> None:
    rows = _frame(_ops(GRID), gpu, 0.5).iloc[::4].reset_index(drop=True)
    known, bare = (
        calibrate_gemm(rows, gpu, manifest, fitted[1]) for manifest in (fitted[0], _without_knots(fitted[0]))
    )
    ops = _ops(GRID)
    np.testing.assert_allclose(
        _seconds(known.manifest, known.weights, ops, gpu), _seconds(bare.manifest, bare.weights, ops, gpu), rtol=1e-6
    )


def test_a_calibration_tells_sizes_between_the_knots_too(fitted: Any) -> None:
    """Rows at 300 and 1000, on which the line between two knots is off, are learned on top of it."""
    ops = _ops([300, 1000])
    frame = _frame(ops, NEW, 0.5)
    found = calibrate_gemm(frame.iloc[::2].reset_index(drop=True), NEW, *fitted)
    before, after = (
        np.abs(_seconds(*of, ops, NEW) / (frame["latency_ms"].to_numpy() * 1e-3) - 1.0).mean()
        for of in (fitted, (found.manifest, found.weights))
    )
    assert after < 0.06 < before
