"""Which kernel a library picks: a multinomial logit over candidates, fitted to the kernels that ran.

The score of a candidate is -sharpness x log(time by the formula) + a term for its tile + a term for its split factor;
the terms, divided by the sharpness, become the factors (penalties) on time that the estimator uses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.files.extras import require
from predictor.files.records import dataclass

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_RIDGE = 1e-4  # weight of the squared terms beside the mean log likelihood: chosen by hand, not from data


@dataclass(frozen=True, slots=True)
class Choice:
    """Penalties of tiles (tiles,) and split factors (splits,), and the sharpness of the logit."""

    tile: FloatArray
    split: FloatArray
    sharpness: float


def _surprise(score: FloatArray, picked: IntArray) -> tuple[float, FloatArray]:
    """Minus the log likelihood of ``picked`` (n,) by scores (n, c), and its slope by each score."""
    share, rows = np.exp(score - score.max(axis=1, keepdims=True)), np.arange(len(picked))
    share /= share.sum(axis=1, keepdims=True)
    value = -float(np.log(np.maximum(share[rows, picked], 1e-300)).sum())
    share[rows, picked] -= 1.0
    return value, share


def fit_choice(
    log_time: FloatArray, picked: IntArray, tile: IntArray, split: IntArray, sizes: tuple[int, int]
) -> Choice:
    """The penalties that make ``picked`` likeliest.

    ``log_time`` (n, c) has inf where a candidate is not allowed; ``picked`` (n,) is the column that ran; ``tile`` and
    ``split`` (c,) index each candidate's tile and split factor among ``sizes``.
    """
    optimize: Any = require("scipy.optimize")
    allowed = np.isfinite(log_time)
    seen = allowed[np.arange(len(picked)), picked]
    allowed, picked = allowed[seen], picked[seen]
    time = np.where(allowed, log_time[seen], 0.0)
    n, (tiles, splits) = len(picked), sizes
    if n == 0:
        return Choice(np.ones(tiles), np.ones(splits), 1.0)

    def loss(p: FloatArray) -> tuple[float, FloatArray]:
        sharp = np.exp(p[0])
        score = np.where(allowed, p[1 : 1 + tiles][tile] + p[1 + tiles :][split] - sharp * time, -np.inf)
        value, share = _surprise(score, picked)
        value, share = value / n + _RIDGE * float((p[1:] ** 2).sum()), share / n
        slope = np.zeros_like(p)
        slope[0] = -sharp * float((share * time).sum())
        np.add.at(slope, 1 + tile, share.sum(axis=0))
        np.add.at(slope, 1 + tiles + split, share.sum(axis=0))
        slope[1:] += 2.0 * _RIDGE * p[1:]
        return value, slope

    start = np.zeros(1 + tiles + splits)
    start[0] = np.log(20.0)
    bounds = [(np.log(2.0), np.log(80.0))] + [(None, None)] * (tiles + splits)
    p = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    sharp = float(np.exp(p[0]))
    return Choice(np.exp(-p[1 : 1 + tiles] / sharp), np.exp(-p[1 + tiles :] / sharp), sharp)


#: How far (standard deviation of the log) a GPU's penalties lie from its library's, and the logit's sharpness there.
#: Chosen by looking at five GPUs, each left out and calibrated with 20 rows
#: (benchmarks/results/accuracy-fp32-2026-11-21.md).
TILE_SPREAD, SPLIT_SPREAD, SHARPNESS = 3.0, 0.5, 10.0


def adapt_choice(
    log_time: FloatArray, picked: IntArray, tile: IntArray, split: IntArray, tiles: FloatArray, splits: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Penalties of tiles and split factors for one GPU: pulled toward its library's, ``tiles`` and ``splits``.

    Arguments as `fit_choice` has them; every picked candidate is allowed.
    """
    optimize: Any = require("scipy.optimize")
    allowed, count = np.isfinite(log_time), len(tiles)
    time = np.where(allowed, log_time, 0.0)
    start = np.log(np.concatenate([tiles, splits]))
    spread = np.repeat([TILE_SPREAD, SPLIT_SPREAD], [count, len(splits)])

    def loss(p: FloatArray) -> tuple[float, FloatArray]:
        score = np.where(allowed, -SHARPNESS * (time + p[tile] + p[count + split]), -np.inf)
        value, share = _surprise(score, picked)
        move = (p - start) / spread
        value, slope = value + 0.5 * float((move**2).sum()), move / spread
        np.add.at(slope, tile, -SHARPNESS * share.sum(axis=0))
        np.add.at(slope, count + split, -SHARPNESS * share.sum(axis=0))
        return value, slope

    p = np.exp(optimize.minimize(loss, start, jac=True, method="L-BFGS-B").x)
    return p[:count], p[count:]
