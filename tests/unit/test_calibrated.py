"""The own side of a calibrated GPU: its manifest, its constants, a correction that ends where nothing was measured."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

from predictor.estimators import calibrated
from predictor.estimators.gaussian import Adapted, Process, covariance
from predictor.training.kernel_choice import adapt_choice


@dataclass(frozen=True)
class Formula:
    """Stands for the formula's constants, two kernel libraries."""

    efficiency: np.ndarray
    unaligned: np.ndarray
    prologue: np.ndarray
    fixed_s: float


SHARED = Formula(np.full((2, 2, 3), 0.9), np.array([0.1, 0.2]), np.ones(3), 2e-6)


def columns(*shapes: tuple[float, float, float, float]) -> dict[str, np.ndarray]:
    return dict(zip(("batch", "m", "n", "k"), np.array(shapes, dtype=float).T, strict=True))


def own(errors: list[float] | None = None) -> calibrated.Calibrated:
    """A GPU with constants of its own, and a correction by ``errors`` at three linear layers."""
    constants = {"efficiency": np.full((2, 3), 0.5), "unaligned": np.array(0.7), "fixed_s": np.array(5e-6)}
    overhead = {"tn": (3e-5, 2e-5), "nn": (4e-5, 3e-5)}
    shapes = columns((1, 256, 512, 1024), (1, 4096, 512, 64), (1, 1024, 8192, 2048))
    points = calibrated.sizes(shapes, np.zeros(3, dtype=np.int64))
    total = covariance(points, points, 0.1, calibrated.LENGTHS) + 0.06**2 * np.eye(3)
    process = Process(points, np.linalg.solve(total, errors or [0.0, 0.0, 0.0]), 0.1, calibrated.LENGTHS)
    residual = Adapted({}, 0.0, calibrated.COLUMNS, process)
    return calibrated.Calibrated((0.9, 0.8), overhead, constants, residual)


def test_manifest_round_trip() -> None:
    first = own([0.2, -0.1, 0.05])
    about, arrays = first.to_manifest("l4")
    second = calibrated.Calibrated.from_manifest(json.loads(json.dumps(about)), arrays)
    assert second.to_manifest("l4")[0] == about
    where, layouts = columns((1, 300, 500, 900), (8, 64, 64, 64)), np.array([0, 1])
    np.testing.assert_allclose(second.factor(where, layouts), first.factor(where, layouts), rtol=1e-4)


def test_unknown_or_missing_constants_are_refused() -> None:
    entry, arrays = own().to_manifest("l4")
    with pytest.raises(ValueError, match="charm"):
        calibrated.Calibrated.from_manifest({**entry, "constants": {"charm": 1.0}}, arrays)
    del entry["constants"]
    with pytest.raises(KeyError):
        calibrated.Calibrated.from_manifest(entry, arrays)


def test_own_constants_replace_those_of_its_library_alone() -> None:
    mine = own().own(SHARED, 1)
    assert (mine.efficiency[1] == 0.5).all() and (mine.efficiency[0] == 0.9).all()
    assert mine.unaligned.tolist() == [0.1, 0.7]
    assert mine.fixed_s == 5e-6
    assert (mine.prologue == 1.0).all()
    assert (SHARED.efficiency == 0.9).all() and SHARED.unaligned.tolist() == [0.1, 0.2]


def test_correction_follows_the_rows_and_ends_far_from_them() -> None:
    slow = own([0.2, 0.2, 0.2])
    here = slow.factor(columns((1, 256, 512, 1024)), np.array([0]))[0]
    assert 1.1 < here < np.exp(0.2)
    far = slow.factor(columns((1e6, 1e9, 1e-6, 1e9)), np.array([0]))[0]
    assert far == pytest.approx(1.0, abs=1e-3)
    other_layout = slow.factor(columns((1, 256, 512, 1024)), np.array([1]))[0]
    assert 1.0 < other_layout < here
    assert own([9.0, 9.0, 9.0]).factor(columns((1, 256, 512, 1024)), np.array([0]))[0] == pytest.approx(2.0)


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
