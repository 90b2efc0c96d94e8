"""Probabilities of limits and of which run is faster, from the ends of intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t

from predictor.simulate.error_model import BOARD, ENGINE, KINDS, PARTS, ErrorModel
from predictor.simulate.odds import END, Outlook, chances, faster, percent, share_below

MODEL = ErrorModel(dict.fromkeys(PARTS, 0.1), dict.fromkeys(KINDS, (-1.0, 0.0, 1.0)), {BOARD: 0.5, ENGINE: 0.25})


def outlook(median_s: float, width: float = 0.2, board: str = "a", engine: str = "x") -> Outlook:
    return Outlook(median_s * math.exp(-width), median_s, median_s * math.exp(2 * width), board, engine)


def test_the_distribution_is_students_t_with_two_degrees_of_freedom() -> None:
    x = np.linspace(-6.0, 6.0, 25)
    assert share_below(x) == pytest.approx(t.cdf(x, 2))
    assert pytest.approx(t.ppf(0.9, 2)) == END


def test_the_ends_of_an_interval_hold_four_fifths() -> None:
    asked = outlook(3.0)
    assert [asked.within(limit) for limit in asked[:3]] == pytest.approx([0.1, 0.5, 0.9])
    assert asked.within(0.0) == 0.0 and asked.within(math.inf) == 1.0
    assert asked.times(2.0).within(2.0 * asked.high_s) == pytest.approx(0.9)


def test_which_run_is_faster_follows_from_both_sides_that_face_each_other() -> None:
    first, other = outlook(1.0, board="a", engine="x"), outlook(1.3, 0.1, "b", "y")
    end = math.hypot(0.4, 0.1)  # up from the first one's median, down from the other's
    assert faster(first, other, MODEL) == pytest.approx(t.cdf(END * math.log(1.3) / end, 2))
    assert faster(other, first, MODEL) == pytest.approx(1.0 - faster(first, other, MODEL))
    assert faster(first, first, MODEL) == 0.5


def test_errors_that_two_runs_share_do_not_blur_which_is_faster() -> None:
    first = outlook(1.0)
    alone, engine, board, both = (
        faster(first, outlook(1.3, board=board, engine=engine), MODEL)
        for board, engine in (("b", "y"), ("b", "x"), ("a", "y"), ("a", "x"))
    )
    assert 0.5 < alone < board < engine < both < 1.0


def test_words_are_never_surer_than_measured_pairs() -> None:
    assert [percent(chance) for chance in (0.0, 0.3, 0.995)] == ["under 1 %", "30 %", "over 99 %"]
    assert chances([("h100", 0.78), ("a100", 1.0)]) == "h100 78 %, a100 over 99 %"
