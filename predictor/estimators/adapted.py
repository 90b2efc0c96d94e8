"""What a calibration adds to the trees of serving kernels: how much of whose trees, and a process for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

#: Standard deviation of the offset that all rows of a calibrated GPU share: chosen by hand, not from data.
_OFFSET = 0.05


def covariance(a: FloatArray, b: FloatArray, deviation: float, length: float) -> FloatArray:
    """Squared-exponential covariance of points (n, f) and (m, f), plus that of a common offset; shape (n, m)."""
    apart = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
    result: FloatArray = deviation**2 * np.exp(-0.5 * apart / length**2) + _OFFSET**2
    return result


@dataclass(frozen=True, slots=True)
class Points:
    """A Gaussian process at its measured points: ``at`` (n, f), ``weights`` (n,)."""

    at: FloatArray
    weights: FloatArray
    deviation: float
    length: float

    def predict(self, x: FloatArray) -> FloatArray:
        """Mean of the process at points (m, f); shape (m,)."""
        result: FloatArray = covariance(x, self.at, self.deviation, self.length) @ self.weights
        return result


#: A process that was measured at no point and says nothing.
NO_POINTS = Points(np.zeros((0, 0)), np.zeros(0), 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Adapted:
    """A calibrated GPU: how much of whose trees, and a process over the features ``columns`` for what is left.

    ``others`` are trees of measured GPUs and how much of each; with them comes an ``offset`` of the log. A GPU that
    tile probes alone were measured on has `NO_POINTS`.
    """

    trees: str
    strength: float
    columns: tuple[int, ...]
    points: Points
    others: tuple[tuple[str, float], ...] = ()
    offset: float = 0.0

    def to_manifest(self, prefix: str) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """(what goes into the manifest, arrays)."""
        about = {
            "trees": self.trees, "strength": self.strength, "columns": list(self.columns), "prefix": prefix,
            "deviation": self.points.deviation, "length": self.points.length,
            "others": dict(self.others), "offset": self.offset,
        }  # fmt: skip
        if not len(self.points.weights):
            return about, {}
        return about, {prefix + "at": self.points.at, prefix + "weights": self.points.weights}

    @classmethod
    def from_manifest(cls, about: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]]) -> Adapted:
        """What `to_manifest` wrote; KeyError where something is missing."""
        at, own = np.zeros((0, len(about["columns"]))), np.zeros(0)
        if about["length"]:
            at, own = (weights[about["prefix"] + name] for name in ("at", "weights"))
        points = Points(at, own, float(about["deviation"]), float(about["length"]))
        others = tuple((str(key), float(share)) for key, share in about["others"].items())
        trees, strength, columns = str(about["trees"]), float(about["strength"]), tuple(about["columns"])
        return cls(trees, strength, columns, points, others, float(about["offset"]))
