"""Serving kernels adapted to a GPU by a few rows of it, on made-up measurements whose law is known."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason='pandas is not installed: pip install "tilecast[train]"')
pytest.importorskip("lightgbm", reason='LightGBM is not installed: pip install "tilecast[train]"')
pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')

from predictor.errors import RequestError  # noqa: E402
from predictor.estimators.base import make_batch  # noqa: E402
from predictor.estimators.residual import Points, covariance  # noqa: E402
from predictor.estimators.serving_gemm import ServingGemm  # noqa: E402
from predictor.hardware.gpu import GPUSpec, load_gpu  # noqa: E402
from predictor.ops import Gemm, Op  # noqa: E402
from predictor.roofline import roofline  # noqa: E402
from predictor.training import fit_serving  # noqa: E402
from predictor.training.calibrate_serving import calibrate_gemm, process, stratified  # noqa: E402

MEASURED = {name: load_gpu(name) for name in ("a100-sxm-80gb", "h100-sxm")}
NEW = load_gpu("l40s")
OPS: list[Op] = [
    Gemm("bf16", m, n, k)
    for m, n, k in product((1, 8, 64, 256, 1024, 4096), (256, 1024, 4096, 8192), (512, 2048, 8192))
]


def _frame(gpu: GPUSpec, efficiency: float) -> Any:
    """Measurements: the cold roofline over an efficiency, plus 6 microseconds."""
    seconds = roofline(OPS, gpu).cold_s / efficiency + 6e-6
    names = list(Gemm.__dataclass_fields__)
    rows = [{n: getattr(op, n) for n in names} | {"latency_ms": s * 1e3} for op, s in zip(OPS, seconds, strict=True)]
    return pd.DataFrame(rows).assign(gpu=gpu.id, framework="vllm", op="gemm", quant="")


@pytest.fixture(scope="module")
def fitted() -> tuple[dict[str, Any], dict[str, Any]]:
    frame = pd.concat([_frame(gpu, 0.75) for gpu in MEASURED.values()], ignore_index=True)
    return fit_serving.fit_gemm(frame, MEASURED, 0)


def _error(files: Any, frame: Any, gpu: GPUSpec) -> float:
    bound = roofline(OPS, gpu).lower_bound_s
    used = ServingGemm.from_artifact(*files).utilization(make_batch("gemm", OPS, "vllm"), gpu, bound)
    return float(np.median(np.abs(bound / used / (frame["latency_ms"].to_numpy() * 1e-3) - 1.0)))


def test_rows_of_a_new_gpu_bring_its_error_down(fitted: Any) -> None:
    frame = _frame(NEW, 0.45)
    few = frame.iloc[stratified(frame, 24, 0)].reset_index(drop=True)
    found = calibrate_gemm(few, NEW, *fitted)
    before, after = _error(fitted, frame, NEW), _error((found.manifest, found.weights), frame, NEW)
    assert after < 0.5 * before
    assert after < 0.1
    assert found.after < found.before
    assert set(found.scalars["vllm|bf16"]) == set(fitted[0]["constants"])
    other = MEASURED["h100-sxm"]
    rows = _frame(other, 0.75)
    assert _error(fitted, rows, other) == _error((found.manifest, found.weights), rows, other)


def test_a_second_calibration_replaces_the_first(fitted: Any) -> None:
    first = calibrate_gemm(_frame(NEW, 0.3).iloc[::3].reset_index(drop=True), NEW, *fitted)
    rows = _frame(NEW, 0.6).iloc[::4].reset_index(drop=True)
    second = calibrate_gemm(rows, NEW, first.manifest, first.weights)
    direct = calibrate_gemm(rows, NEW, *fitted)
    assert second.manifest == direct.manifest
    assert set(second.weights) == set(direct.weights)


def test_without_a_row_that_it_reads(fitted: Any) -> None:
    with pytest.raises(RequestError, match="no row of l40s"):
        calibrate_gemm(_frame(NEW, 0.5).assign(framework="other"), NEW, *fitted)


def test_the_process_interpolates_and_fades() -> None:
    rng = np.random.default_rng(0)
    at = rng.uniform(0, 10, (80, 2))
    y = 0.2 * np.sin(at[:, 0])
    _, points = process(at, y)
    assert np.abs(points.predict(at) - y).mean() < 0.05
    far = points.predict(np.full((1, 2), 1e3))
    assert abs(float(far[0])) < 0.05
    assert covariance(at, at, 0.1, 2.0).shape == (80, 80)
    assert isinstance(points, Points)


def test_stratified_rows_are_distinct_and_spread() -> None:
    frame = _frame(NEW, 0.5)
    few = stratified(frame, 16, 3)
    assert len(set(few.tolist())) == 16
    assert stratified(frame, 16, 3).tolist() == few.tolist()
    flops = np.log((frame["m"] * frame["n"] * frame["k"]).to_numpy(dtype=float))
    assert np.ptp(flops[few]) > 0.6 * np.ptp(flops)
    assert len(stratified(frame, 10_000, 0)) == len(frame)
