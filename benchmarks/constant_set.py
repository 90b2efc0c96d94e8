"""What forecasts of whole models have to beat: a set of estimators with one constant efficiency an operator family.

A bootstrap says whether a difference of errors is one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor.data.frame import Frame
from predictor.files.read import atomic_write
from predictor.fit.evaluate import as_json, predict_rows
from predictor.fit.publish import write_estimator
from predictor.fit.scores import roofline_ms
from predictor.kernels.artifact import RooflineOnly
from predictor.kernels.efficiency.estimator import ANY
from predictor.kernels.stored import SCHEMA_VERSION
from predictor.ops import OPERATORS

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


def family_constants(families: npt.NDArray[Any], cold: FloatArray, measured: FloatArray) -> dict[str, float]:
    """Efficiency in (0, 1] by operator family: the median of cold roofline over latency, each row weighing its latency.

    All of shape (n,), times in one unit. The weight is for whole models, whose time is that of their long kernels: the
    unweighted median of eager rows is that of launch-bound ones.
    """
    found = {}
    for family in sorted(set(families.tolist())):
        rows = families == family
        ratio, weight = cold[rows] / measured[rows], measured[rows]
        order = np.argsort(ratio, kind="stable")
        half = np.searchsorted(np.cumsum(weight[order]), 0.5 * weight.sum())
        found[family] = float(min(1.0, ratio[order][min(int(half), len(order) - 1)]))
    return found


def write_constant_set(frame: Frame, out: Path) -> dict[str, float]:
    """A set of estimators in ``out`` that knows constant efficiencies alone; returns them by "GPU|family|*".

    One by operator family for each GPU of ``frame`` (rows of the measurement schema, as `dataset.read` gives), and
    under "*" their median, for a GPU without rows. Each GPU by itself, as one constant for all would be that of the
    slowest, which takes most of the time.
    """
    rows = predict_rows(frame.reset_index(drop=True), RooflineOnly())
    rows = rows[np.isfinite(rows["roofline_ms"].to_numpy())]
    families = np.array([OPERATORS[op].family for op in rows["op"].astype(str)], dtype=object)
    cold, measured = roofline_ms(rows), np.asarray(rows["measured_ms"], dtype=np.float64)
    gpus = rows["gpu"].astype(str).to_numpy()
    found: dict[str, float] = {}
    for gpu in sorted(set(gpus)):
        own = family_constants(families[gpus == gpu], cold[gpus == gpu], measured[gpus == gpu])
        found |= {f"{gpu}|{family}|{ANY}": value for family, value in own.items()}
    known = sorted(set(families))
    for family in known:
        values = [value for key, value in found.items() if key.split("|")[1] == family]
        found[f"{ANY}|{family}|{ANY}"] = float(np.median(values))
    about = {"kind": "efficiency", "name": "constant", "keys": list(found), "gpus": sorted(set(gpus)), "calibrated": {}}
    about |= {"families": known, "dtypes": [ANY]}
    write_estimator(out / "constant", about, {"constants": np.array([[value, 0.0] for value in found.values()])})
    member = {"folder": "constant", "families": known, "dtypes": [ANY]}
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "name": "constant",
        "gpus": about["gpus"],
        "calibrated": [],
        "estimators": [member],
    }
    atomic_write(out / "manifest.json", as_json(manifest).encode())
    return found
