"""Which rows to measure before a calibration: in each of several groups of shapes, the one that tells most.

A design of experiments (Chaloner & Verdinelli 1995, "Bayesian experimental design: a review", A-optimality): before
anything is measured, the set says how each constant of a GPU may move and what each move does to every shape's latency
(its slope). Rows are chosen so that the forecasts of the shapes of interest are least uncertain afterwards. Only shapes
are read, never a latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data.sampling import CANDIDATES, INTEREST, most_telling
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.fitting.adapt import DEVIATION, NOISE, AdaptedArtifact, Frame, Weights, believed
from predictor.kernels.gemm_fp32.calibrate import RESIDUAL_LENGTHS, GemmTrial

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: What a design takes the form's own error to be, in units of the correction's amplitude: more than the calibration
#: itself does, so that no row is chosen for the one constant that it would tell if the form were exact. And the step of
#: a slope. Both were chosen by hand, not from data.
FORM_ERROR = 3.0
STEP = 0.3


def covariance(rows: Frame, gpu: GPUSpec, manifest: dict[str, Any], weights: Weights) -> FloatArray:
    """What the set leaves open about the log latencies of ``rows``, shape (r, r). Latencies in them are not read."""
    trial = GemmTrial(rows.assign(latency_ms=1.0, kernel_name=""), AdaptedArtifact(gpu, manifest, weights))
    start, spread = trial.unknowns.start, trial.spread
    view = trial.view(start)
    slopes = np.empty((len(rows), len(start)))
    for i, width in enumerate(spread):
        step = np.zeros(len(start))
        step[i] = min(STEP, width)
        slopes[:, i] = (view.gaps(-step) - view.gaps(step)) / (2.0 * step[i]) * width
    form = believed(view.at, view.share, FORM_ERROR * DEVIATION, RESIDUAL_LENGTHS)
    result: FloatArray = slopes @ slopes.T + form
    return result


def most_informative(
    rows: Frame, groups: Sequence[IntArray], gpu: GPUSpec, manifest: dict[str, Any], weights: Weights, seed: int
) -> IntArray:
    """One index of ``rows`` from each group, sorted: greedily the best, then each again with the others fixed.

    ``seed`` draws the candidates of each group, and which rows stand for the shapes of interest.
    """
    random = np.random.default_rng(seed)
    drawn = [random.permutation(group)[:CANDIDATES] for group in groups]
    interest = random.permutation(len(rows))[:INTEREST]
    index = np.concatenate([*drawn, interest])
    total = covariance(rows.iloc[index].reset_index(drop=True), gpu, manifest, weights)
    rows_of_groups = most_telling(total, [len(part) for part in drawn], NOISE**2, random)
    return np.sort(index[rows_of_groups])
