"""What a forecast has to beat: the roofline itself, and the roofline divided by one constant efficiency.

The constant is the median efficiency (cold roofline over latency) of the training rows by operator and dtype. It is
written into the set's manifest when the set is trained, so that both sides saw the same GPUs. A bootstrap says whether
a difference of errors is one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor.estimators.artifact import ArtifactSet, RooflineOnly

Frame = Any
FloatArray = npt.NDArray[np.float64]

#: Draws of the bootstrap: chosen by hand, not from data.
RESAMPLES = 10_000
INTERVAL = (2.5, 97.5)  # ends of a 95 % interval in percent, by definition


class Difference(NamedTuple):
    """Mean of paired differences and the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


def paired_difference(
    ours: npt.ArrayLike, other: npt.ArrayLike, seed: int = 0, resamples: int = RESAMPLES
) -> Difference:
    """Mean of |ours| - |other| over the same cells, below zero where ours is better, with a 95 % interval.

    Both of shape (n,): errors of the same cells in the same order, signed or not, in any unit. Percentile bootstrap:
    cells are drawn with replacement ``resamples`` times, a cell's two errors together; the same seed gives the same
    interval. It counts cells as independent draws; cells of one model and GPU are not, so it is rather too narrow.
    Raises ValueError for other shapes or values that are not finite.
    """
    left, right = np.abs(np.asarray(ours, dtype=np.float64)), np.abs(np.asarray(other, dtype=np.float64))
    if left.ndim != 1 or left.shape != right.shape or not len(left):
        raise ValueError(f"errors of shapes {left.shape} and {right.shape}: expected two of the same shape (n,)")
    difference = left - right
    if not np.isfinite(difference).all():
        raise ValueError("errors that are not finite: expected the cells that both sides forecast")
    drawn = np.random.default_rng(seed).integers(0, len(difference), size=(resamples, len(difference)))
    low, high = np.percentile(difference[drawn].mean(axis=1), INTERVAL)
    return Difference(float(difference.mean()), float(low), float(high))


def constant_efficiencies(frame: Frame, roofline: npt.NDArray[np.float64]) -> dict[str, float]:
    """Median of roofline over latency by "op dtype", from rows with ``latency_ms`` and their roofline in ms."""
    keys = frame["op"].astype(str) + " " + frame["dtype"].astype(str)
    ratio = roofline / np.asarray(frame["latency_ms"], dtype=np.float64)
    return {str(key): float(np.median(ratio[rows])) for key, rows in keys.groupby(keys).indices.items()}


def roofline_ms(rows: Frame) -> npt.NDArray[np.float64]:
    """The roofline (cold cache) of predicted rows."""
    return np.asarray(rows["roofline_ms"], dtype=np.float64)


def constant_efficiency_ms(rows: Frame, selector: ArtifactSet | RooflineOnly) -> npt.NDArray[np.float64]:
    """The roofline over the set's constant efficiency; NaN for an operator that the set saw no row of."""
    known = selector.manifest.get("constant_efficiency", {}) if isinstance(selector, ArtifactSet) else {}
    keys = (rows["op"].astype(str) + " " + rows["dtype"].astype(str)).tolist()
    efficiency = np.array([known.get(key, np.nan) for key in keys], dtype=np.float64)
    return roofline_ms(rows) / efficiency
