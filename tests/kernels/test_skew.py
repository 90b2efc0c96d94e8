"""Ranks out of step: the mean of the largest of n draws."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.kernels.collective.core import LAUNCHED_DEVIATION_S, late_rank_s


@pytest.mark.parametrize("ranks", [2, 4, 8, 72])
def test_the_last_rank_comes_as_late_as_the_largest_of_as_many_draws(ranks: int) -> None:
    draws = np.random.default_rng(0).normal(0.0, 3e-6, (20_000, ranks))
    assert late_rank_s(ranks, 3e-6) == pytest.approx(draws.max(axis=1).mean(), rel=0.05)


def test_a_rank_alone_waits_for_nobody_and_more_ranks_wait_longer() -> None:
    assert late_rank_s(1) == 0.0
    waits = [late_rank_s(n) for n in (1, 2, 4, 8, 64, 512)]
    assert (np.diff(waits) > 0).all() and waits[-1] < 4 * LAUNCHED_DEVIATION_S
    assert late_rank_s(8, 0.0) == 0.0
