"""What calibrating an estimator to one GPU has in common, whatever the estimator (`predictor.training.calibrate`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.estimators.device import Device
from predictor.estimators.eager import eager_seconds, overhead
from predictor.roofline import FloatArray
from predictor.training.solve import solve

Frame = Any  # pandas.DataFrame
Weights = dict[str, npt.NDArray[Any]]

#: The host's time after a launch is at least so long; how often a search may try. Both chosen by hand, not from data.
LEAST_AFTER_S = 3e-6
EVALUATIONS = 40
#: Where the host's time after a launch starts in a fit: a call's launch time is its host time less this one. Chosen by
#: hand, not from data; each GPU's own is fitted.
AFTER_LAUNCH_S = 13e-6


@dataclass(frozen=True, slots=True)
class Fitted:
    """An estimator's folder with the GPU in it, the scalars found, and the errors in % on the rows."""

    manifest: dict[str, Any]
    weights: Weights
    scalars: dict[str, Any]
    before: float
    after: float


def without(manifest: Mapping[str, Any], gpu: str) -> dict[str, Any]:
    """The manifest without an earlier calibration of ``gpu``."""
    others = {k: v for k, v in manifest["calibrated"].items() if k != gpu}
    return {**manifest, "calibrated": others}


def least_squares(error: Callable[[FloatArray], FloatArray], start: FloatArray, spread: FloatArray) -> FloatArray:
    """Scalars (as logarithms) that balance the rows' errors and the distance from ``start``; soft L1.

    ``error`` is in units of what a row's error usually is, ``spread`` how far a scalar usually lies from its start.
    """
    return solve(error, start, 1.0 / spread, most=EVALUATIONS).x


def overheads(known: Mapping[str, Sequence[float]], gpu: str) -> tuple[float, float]:
    """(host, time after the launch) that the set says of a GPU: its own, or the median of the measured ones."""
    host, launch = overhead(known, gpu, (3e-5, 1.5e-5))
    return host, max(host - launch, LEAST_AFTER_S)


def eager(seconds: FloatArray, host: FloatArray, after: FloatArray, is_eager: npt.NDArray[np.bool_]) -> FloatArray:
    """What a row's protocol reads for kernels of ``seconds``, where ``is_eager`` with the host's times; shape (r,)."""
    return np.where(is_eager, eager_seconds(seconds, host, np.maximum(host - after, 1e-6)), seconds)


def of_rows(devices: Sequence[Device], index: npt.NDArray[np.int64]) -> Device:
    """The devices of rows, where ``index`` (n,) says which: as one, whose fields are arrays (n,)."""
    columns: dict[str, Any] = {f.name: np.array([getattr(d, f.name) for d in devices])[index] for f in fields(Device)}
    return Device(**columns)


def percent(predicted: FloatArray, measured: FloatArray) -> float:
    """Mean absolute error in %."""
    return float(np.abs(predicted / measured - 1.0).mean() * 100.0)
