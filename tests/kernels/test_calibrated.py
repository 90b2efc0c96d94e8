"""What `tilecast calibrate` adds to the fp32 GEMM of a GPU: its own constants, a correction that ends where nothing was
measured, and the choice of kernels."""

from __future__ import annotations

import json

import numpy as np
import pytest

from predictor.errors import SpecError
from predictor.hardware.gpu import load_gpu
from predictor.kernels.base import make_batch
from predictor.kernels.fitting.adapt import without
from predictor.kernels.gaussian import Adapted, Process, covariance
from predictor.kernels.gemm_fp32 import core as sgemm
from predictor.kernels.gemm_fp32.calibrate import RESIDUAL_LENGTHS
from predictor.kernels.gemm_fp32.estimator import Fp32Gemm
from predictor.kernels.gemm_fp32.kernel_choice import adapt_choice
from predictor.ops import Gemm
from tests.kernels.test_tile_gemm import artifact, constants

GPU = "l4"


def columns(*shapes: tuple[float, float, float, float]) -> dict[str, np.ndarray]:
    return dict(zip(("batch", "m", "n", "k"), np.array(shapes, dtype=float).T, strict=True))


def calibrated(
    errors: list[float], own: sgemm.Constants | None = None
) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """Manifest and arrays with a correction of L4 by ``errors`` at three linear layers, and constants of its own."""
    shapes = columns((1, 256, 512, 1024), (1, 4096, 512, 64), (1, 1024, 8192, 2048))
    points = sgemm.features(shapes, np.zeros(3, dtype=np.int64))
    total = covariance(points, points, 0.1, RESIDUAL_LENGTHS) + 0.06**2 * np.eye(3)
    process = Process(points, np.linalg.solve(total, errors), 0.1, RESIDUAL_LENGTHS)
    residual, arrays = Adapted({}, 0.0, tuple(range(5)), process).to_manifest(f"a_{GPU}_fp32_")
    manifest, key = artifact(), f"{GPU}|fp32"
    manifest["cores"][f"{GPU}|pytorch|fp32"] = (own or constants()).to_manifest()
    manifest["adapted"] = {key: residual}
    manifest["calibrated"] = {
        GPU: {
            "cores": {}, "adapted": [key], "board": {"sustained": 0.9, "bandwidth": 0.8},
            "eager_overhead_s": {"tn": [3e-5, 2e-5], "nn": [4e-5, 3e-5]},
        }
    }  # fmt: skip
    return json.loads(json.dumps(manifest)), arrays


def seconds(manifest: object, arrays: dict[str, np.ndarray], *shapes: Gemm, gpu: str = GPU) -> np.ndarray:
    estimator = Fp32Gemm.from_artifact(manifest, arrays)  # type: ignore[arg-type]
    return estimator.seconds(make_batch("gemm", shapes), load_gpu(gpu))


LAYERS = (Gemm("fp32", 256, 512, 1024), Gemm("fp32", 4096, 512, 64), Gemm("fp32", 1024, 8192, 2048))


def test_unknown_or_missing_constants_are_refused() -> None:
    for change in ({"charm": 1.0}, {"norm": None}):
        manifest, arrays = calibrated([0.0, 0.0, 0.0])
        core = manifest["cores"][f"{GPU}|pytorch|fp32"]  # type: ignore[index]
        core.update(change)
        for name in [name for name, value in core.items() if value is None]:
            del core[name]
        with pytest.raises(SpecError, match="expected efficiency"):
            Fp32Gemm.from_artifact(manifest, arrays)


def test_own_constants_and_boards_are_those_of_the_gpu_alone() -> None:
    slow = constants(efficiency=0.5 * constants().efficiency)
    before, after = (calibrated([0.0, 0.0, 0.0], own) for own in (None, slow))
    ratio = seconds(*after, LAYERS[2]) / seconds(*before, LAYERS[2])
    assert ratio == pytest.approx(2.0, rel=0.1)
    assert (seconds(*after, *LAYERS, gpu="rtx-4090") == seconds(*before, *LAYERS, gpu="rtx-4090")).all()
    estimator = Fp32Gemm.from_artifact(*after)
    assert estimator.board(load_gpu(GPU)).bandwidth == 0.8 != estimator.board(load_gpu("rtx-4090")).bandwidth
    assert estimator.eager_seconds(np.zeros(1), GPU, "nn")[0] == 4e-5


def test_correction_follows_the_rows_and_ends_far_from_them() -> None:
    def factor(errors: list[float], *shapes: Gemm) -> np.ndarray:
        return seconds(*calibrated(errors), *shapes) / seconds(*calibrated([0.0, 0.0, 0.0]), *shapes)

    here = factor([0.2, 0.2, 0.2], LAYERS[0])[0]
    assert 1.1 < here < np.exp(0.2)
    far = factor([0.2, 0.2, 0.2], Gemm("fp32", 10**6, 10**9, 1, 10**6, "bmm", layout="nn"))[0]
    assert far == pytest.approx(1.0, abs=1e-3)
    other_layout = factor([0.2, 0.2, 0.2], Gemm("fp32", 256, 512, 1024, 1, "bmm", layout="nn"))[0]
    assert 1.0 < other_layout < here
    assert factor([9.0, 9.0, 9.0], LAYERS[0])[0] == pytest.approx(2.0)


def test_the_core_alone_has_no_correction_and_a_second_calibration_starts_from_none() -> None:
    manifest, arrays = calibrated([0.2, 0.2, 0.2])
    alone = Fp32Gemm.from_artifact(manifest, arrays).core_alone()
    plain = calibrated([0.0, 0.0, 0.0])
    assert (alone.seconds(make_batch("gemm", LAYERS), load_gpu(GPU)) == seconds(*plain, *LAYERS)).all()
    rest, kept = without(manifest, arrays, GPU)  # type: ignore[arg-type]
    assert rest == json.loads(json.dumps(artifact())) and not kept


def test_choice_moves_to_what_ran_and_stays_without_rows() -> None:
    tile, split = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    tiles, splits = np.array([1.0, 1.2]), np.array([1.0, 1.1])
    log_time = np.log(np.array([[1.0, 1.3, 1.6, 2.0], [1.0, 1.3, 1.4, np.inf], [2.0, 2.5, 2.4, 2.6]]))
    picked = np.array([2, 2, 2])
    before = np.argmin(log_time + np.log(tiles[tile] * splits[split]), axis=1)
    assert (before == 0).all()
    new_tiles, new_splits = adapt_choice(log_time, picked, tile, split, tiles, splits)
    after = np.argmin(log_time + np.log(new_tiles[tile] * new_splits[split]), axis=1)
    assert (after == picked).all()
    none = np.empty((0, 4)), np.empty(0, dtype=np.int64)
    same_tiles, same_splits = adapt_choice(*none, tile, split, tiles, splits)
    np.testing.assert_allclose(same_tiles, tiles)
    np.testing.assert_allclose(same_splits, splits)
