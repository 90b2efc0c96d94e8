"""What few rows say of any core: constants near a prior, shares of trees, an offset, a process; on made-up laws."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')
pytest.importorskip("sklearn", reason='scikit-learn is not installed: pip install "tilecast[train]"')

from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from predictor.hardware.gpu import load_gpu
from predictor.kernels.fitting.adapt import (
    ALL_OR_NONE,
    GRID,
    NOISE,
    OFFSET_SPREAD,
    TRUST,
    Question,
    RowsView,
    Trial,
    calibrated,
    constants,
    explain,
    in_folds,
    kept_aside,
    rows_alone,
    trusted,
    width,
)
from predictor.kernels.gaussian import LIMIT, Adapted, Process, covariance

FloatArray = npt.NDArray[np.float64]


def _given(gaps: FloatArray, at: FloatArray, trees: FloatArray, share: FloatArray, length: float) -> Question:
    """Rows and no constant."""
    return Question(
        np.zeros(1), np.ones(1), lambda x: RowsView(lambda x: gaps, at, trees, share), np.full(at.shape[1], length)
    )  # fmt: skip


def explained(at: FloatArray, gaps: FloatArray, trees: FloatArray | None = None, length: float = 3.0) -> Adapted:
    """The residual of rows that are all kernel."""
    table = np.zeros((len(at), 0)) if trees is None else trees
    keys = [f"{i}|x" for i in range(table.shape[1])]
    question = _given(gaps, at, table, np.ones(len(at)), length)
    return explain(question, np.zeros(1), keys, tuple(range(at.shape[1]))).residual


def test_the_process_interpolates_and_fades() -> None:
    at = np.random.default_rng(0).uniform(0, 10, (80, 2))
    y = 0.2 * np.sin(at[:, 0])
    found = explained(at, y)
    assert np.abs(found.told(at) - y).mean() < 0.05
    assert float(found.process.mean(np.full((1, 2), 1e3))[0]) == pytest.approx(0.0, abs=1e-6)


def test_the_process_is_a_gaussian_process_with_an_exponential_kernel() -> None:
    """scikit-learn's, at the deviation, lengths and row error that the rows' likelihood picked, says the same."""
    random = np.random.default_rng(3)
    at, new = random.uniform(0, 10, (40, 2)), random.uniform(0, 10, (15, 2))
    gaps = 0.1 * np.sin(at[:, 0]) + random.normal(0.0, 0.02, 40)
    told = explained(at, gaps)
    process = told.process
    kernel = process.deviation**2 * Matern(process.lengths, nu=0.5) + ConstantKernel(OFFSET_SPREAD**2)
    answers = []
    for noise in sorted({noise for _, _, noise in GRID}):
        regressor = GaussianProcessRegressor(kernel, alpha=noise**2, optimizer=None)
        regressor.fit(at, gaps)
        answers.append((regressor.log_marginal_likelihood_value_, regressor.predict(new)))
    np.testing.assert_allclose(told.told(new), max(answers, key=lambda answer: answer[0])[1], atol=1e-9)


def test_the_process_says_no_more_than_twice() -> None:
    at = np.zeros((1, 1))
    sure = Process(at, np.array([1e3]), 0.1, np.ones(1))
    np.testing.assert_allclose(sure.mean(at), LIMIT)
    np.testing.assert_allclose(Process(at, np.array([-1e3]), 0.1, np.ones(1)).mean(at), -LIMIT)


def test_covariance_is_a_covariance_and_a_length_stretches() -> None:
    at = np.random.default_rng(0).normal(size=(30, 3))
    table = covariance(at, at, 0.3, np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(np.diag(table), 0.09)
    assert np.linalg.eigvalsh(table).min() > 0
    np.testing.assert_allclose(covariance(2 * at, 2 * at, 0.3, np.array([2.0, 4.0, 6.0])), table)


def test_a_row_that_lies_far_off_is_believed_less() -> None:
    rng = np.random.default_rng(0)
    at = rng.uniform(0, 10, (60, 2))
    y = rng.normal(0.0, 0.03, 60)
    around = at[np.argsort(((at - at[7]) ** 2).sum(axis=1))[1:6]]
    calm = explained(at, y).told(around)
    y[7] = 0.8
    assert np.abs(explained(at, y).told(around) - calm).max() < 0.02


def test_shares_find_whose_trees_tell_of_a_gpu() -> None:
    rng = np.random.default_rng(0)
    trees = rng.normal(0.0, 0.2, (64, 4))
    y = 0.02 + 0.9 * trees[:, 1] + rng.normal(0.0, 0.02, 64)
    y[5] += 2.0  # a kernel of its own
    at = rng.uniform(0, 1e6, (64, 2))  # so far apart that the process has nothing to carry over
    found = explained(at, y, trees)
    shares = list(found.shares.values())
    assert shares[1] == pytest.approx(0.9, abs=0.15)
    assert max(abs(share) for i, share in enumerate(shares) if i != 1) < 0.15


def test_few_rows_leave_shares_near_equal_ones() -> None:
    trees = np.random.default_rng(0).normal(0.0, 0.01, (2, 4))
    found = explained(np.array([[0.0], [1.0]]), trees[:, 1], trees)
    np.testing.assert_allclose(list(found.shares.values()), 0.25, atol=0.1)


def test_a_row_that_the_host_hides_moves_the_residual_less() -> None:
    at = np.array([[0.0], [100.0]])
    question = _given(np.array([0.1, 0.1]), at, np.zeros((2, 0)), np.array([1.0, 0.1]), 1.0)
    seen, hidden = explain(question, np.zeros(1), (), (0,)).residual.process.mean(at)
    assert 0.0 < hidden < 0.5 * seen


def _line(rows: FloatArray, law: FloatArray) -> Question:
    """log(latency) = a + b t, believed to be 0 and 0, by measurements of ``law``."""
    return Question(np.zeros(2), np.array([1.0, 0.5]), rows_alone(lambda x: law - (x[0] + x[1] * rows)), noise=0.05)


@pytest.mark.parametrize(("a", "b"), list(product((-0.3, 0.4), (-0.2, 0.3))))
def test_many_rows_find_the_constants_and_an_outlier_moves_them_little(a: float, b: float) -> None:
    rows = np.linspace(-2, 2, 40)
    law = a + b * rows
    np.testing.assert_allclose(constants(_line(rows, law)), (a, b), atol=0.01)
    law[3] += 3.0
    np.testing.assert_allclose(constants(_line(rows, law)), (a, b), atol=0.03)


def test_rows_that_say_that_they_are_noisy_move_constants_less() -> None:
    rows = np.linspace(-2, 2, 40)
    law, errors = 0.2 + 0.1 * rows, np.where(np.arange(40) % 2, 1.0, 0.01)
    noisy = law + np.where(np.arange(40) % 2, 0.8, 0.0)  # every other row was disturbed, and its samples show it
    told = constants(replace(_line(rows, noisy), row_errors=errors))
    np.testing.assert_allclose(told, (0.2, 0.1), atol=0.03)
    assert constants(_line(rows, noisy))[0] > 0.4
    at = rows[:, None]
    question = _given(noisy - law, at, np.zeros((40, 0)), np.ones(40), 3.0)
    untold, told_too = (
        explain(asked, np.zeros(1), (), (0,)).residual.told(at)
        for asked in (question, replace(question, row_errors=errors))
    )
    assert np.abs(told_too).max() < 0.1 < np.abs(untold).mean()


def test_rows_without_a_residual_are_kept_aside_in_folds() -> None:
    rows = np.linspace(-2, 2, 40)
    noise = np.random.default_rng(0).normal(0.0, 0.05, 40)
    known = kept_aside(_line(rows, 0.3 + 0.1 * rows + noise))
    assert np.abs(known).mean() == pytest.approx(np.abs(noise).mean(), rel=0.15)
    lone = np.zeros(40)
    lone[7] = 1.0  # a row that alone speaks of a constant: the others say nothing of it
    question = Question(np.zeros(1), np.ones(1), rows_alone(lambda x: lone * (0.5 - x[0])), noise=0.05)
    assert constants(question)[0] == pytest.approx(0.5, abs=0.01)
    assert kept_aside(question)[7] == -0.5


def test_neighbours_in_a_file_are_in_different_folds() -> None:
    folds: list[list[int]] = []

    def errors(kept: npt.NDArray[np.int64], out: npt.NDArray[np.int64]) -> FloatArray:
        assert sorted([*kept, *out]) == list(range(7))
        folds.append(out.tolist())
        return out * 10.0

    np.testing.assert_array_equal(in_folds(7, errors, 3), np.arange(7) * 10.0)
    assert folds == [[0, 3, 6], [1, 4], [2, 5]]


def test_what_makes_some_rows_many_times_slower_is_no_gain() -> None:
    before, after = np.full(64, -1.0), np.zeros(64)
    after[:6] = 4.0  # nine rows of ten are right now, the others 55 times too slow
    assert np.abs(after).mean() < np.abs(before).mean()
    assert trusted(before, after, shares=ALL_OR_NONE) == 0.0
    after[:6] = 0.0
    assert trusted(before, after, shares=ALL_OR_NONE) == 1.0


def test_constants_that_no_row_tells_of_stay() -> None:
    found = constants(_line(np.zeros(10), np.full(10, 0.3)))
    assert found[0] == pytest.approx(0.3, abs=0.01)
    assert found[1] == 0.0


def test_rows_that_are_close_to_each_other_are_one_witness() -> None:
    def asked(at: FloatArray) -> float:
        gaps = np.full(10, 0.2)
        view = RowsView(lambda x: gaps - x[0], at, np.zeros((10, 0)), np.ones(10))
        question = Question(np.zeros(1), np.array([0.1]), lambda x: view, np.ones(1), NOISE)
        return float(constants(question)[0])

    assert asked(np.zeros((10, 1))) < asked(1e3 * np.arange(10.0)[:, None]) < 0.2


def test_held_out_errors_are_those_of_fits_without_the_row() -> None:
    rng = np.random.default_rng(1)
    at = rng.uniform(0, 6, (25, 1))
    gaps = 0.2 * np.sin(at[:, 0]) + rng.normal(0.0, 0.03, 25)

    def told(keep: npt.NDArray[np.int64]) -> Question:
        return _given(gaps[keep], at[keep], np.zeros((len(keep), 0)), np.ones(len(keep)), 3.0)

    everything = np.arange(25)
    held = explain(told(everything), np.zeros(1), (), (0,)).held_out
    again = []
    for i in everything:
        residual = explain(told(np.delete(everything, i)), np.zeros(1), (), (0,)).residual
        again.append(float(residual.told(at[i : i + 1])[0]) - gaps[i])
    assert np.corrcoef(held, again)[0, 1] > 0.95
    assert np.abs(held).mean() == pytest.approx(np.abs(again).mean(), rel=0.15)


def test_held_out_errors_count_what_constants_would_not_know() -> None:
    gaps = np.array([0.3, 0.0, 0.0, 0.0, 0.0, 0.0])
    alone = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])  # one row tells of a constant that no other does
    view = RowsView(lambda x: gaps - alone * x[0], 1e3 * np.arange(6.0)[:, None], np.zeros((6, 0)), np.ones(6))
    question = Question(np.zeros(1), np.array([0.5]), lambda x: view, np.ones(1))
    found = constants(question)
    told = explain(question, found, (), (0,))
    assert abs(told.errors[0]) < 0.05
    assert told.held_out[0] == pytest.approx(-0.3, abs=0.05)


def test_rows_are_trusted_as_far_as_they_help_each_other() -> None:
    rng = np.random.default_rng(0)
    good, bad = rng.normal(0.0, 0.02, 64), rng.normal(0.0, 0.1, 64)
    assert trusted(before=bad, after=good) == 1.0
    assert trusted(before=good, after=bad) == 0.0
    assert trusted(before=np.full(64, 0.1), after=np.full(64, -0.1)) == 0.5


@pytest.mark.parametrize("rows", [16, 64, 256])
def test_a_width_holds_eight_of_ten_further_rows(rows: int) -> None:
    rng = np.random.default_rng(0)
    held = []
    for _ in range(100):
        low, high = width(rng.normal(0.05, 0.1, rows))
        further = -rng.normal(0.05, 0.1, 500)
        held.append(((further >= low) & (further <= high)).mean())
    assert 0.79 < np.mean(held) < 0.9


class HalfTold(Trial):
    """Rows that gain by half of what the others say, and lose by all of it."""

    shares = TRUST

    def __init__(self, first: np.ndarray, aside: np.ndarray) -> None:
        self.question = Question(np.zeros(1), np.ones(1), rows_alone(lambda x: -first))
        self._first, self._aside = first, aside

    def constants(self) -> np.ndarray:
        return np.zeros(1)

    def before(self) -> np.ndarray:
        return self._first

    def held_out(self, told: object) -> np.ndarray:
        return self._aside

    def keep(self, board: object, x: np.ndarray, told: object, share: float) -> np.ndarray:
        assert share == 0.5
        return self._first


def test_the_error_of_rows_kept_aside_is_that_of_the_share_that_is_kept() -> None:
    """Half of what the rows say is kept, which is better than nothing; all of it were worse, and is not reported."""
    first, aside = np.full(20, 0.3), np.full(20, -0.35)
    manifest = {name: {} for name in ("adapted", "calibrated", "cores", "probes", "boosters", "devices")}
    said = calibrated(lambda rows, board: [HalfTold(first, aside)], None, load_gpu("h100"), manifest, {})
    assert said.gained and said.held_out == pytest.approx(100 * (1 - math.exp(-0.025))) and said.held_out < said.before
