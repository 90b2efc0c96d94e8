"""What rows of one board leave of a core's answer: shares of measured boards' trees, and a Gaussian process.

    seconds = core * exp(residual),  residual = offset + sum of share * trees + mean of the process

The process works on dimensionless features. Its mean fades to nothing away from the rows that it was measured at
(Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, algorithm 2.1; trees and offset are its explicit
basis functions, section 2.7).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.files.records import dataclass, replace
from predictor.ops.roofline import FloatArray

#: No process makes a time more than twice, or less than half, what the rest says.
LIMIT = float(np.log(2.0))


def covariance(a: FloatArray, b: FloatArray, deviation: float, lengths: FloatArray) -> FloatArray:
    """Prior covariance of log residuals at points (n, f) and (m, f), shape (n, m).

    Exponential in the distance, each feature in its own of ``lengths`` (f,).
    """
    apart = np.sqrt((((a[:, None, :] - b[None, :, :]) / lengths) ** 2).sum(axis=2))
    result: FloatArray = deviation**2 * np.exp(-apart)
    return result


@dataclass(frozen=True, slots=True)
class Process:
    """A Gaussian process at its measured points: ``at`` (n, f), ``weights`` (n,), ``lengths`` (f,)."""

    at: FloatArray
    weights: FloatArray
    deviation: float
    lengths: FloatArray

    @classmethod
    def unmeasured(cls, lengths: FloatArray) -> Process:
        """One that was measured at no point and says nothing."""
        return cls(np.zeros((0, len(lengths))), np.zeros(0), 0.0, lengths)

    def mean(self, x: FloatArray) -> FloatArray:
        """Mean of the process at points (m, f), within `LIMIT`; shape (m,)."""
        if not len(self.weights):
            return np.zeros(len(x))
        result: FloatArray = covariance(x, self.at, self.deviation, self.lengths) @ self.weights
        return np.clip(result, -LIMIT, LIMIT)


@dataclass(frozen=True, slots=True)
class Adapted:
    """A calibrated board's residual: how much of whose trees (by key), an offset, and a process over ``columns``."""

    shares: Mapping[str, float]
    offset: float
    columns: tuple[int, ...]
    process: Process

    def told(self, at: FloatArray) -> FloatArray:
        """What the board's own rows say beside the trees at ``columns`` (n, f) of the features, (n,)."""
        return self.process.mean(at) + self.offset

    def mixed(self, share: float, before: Mapping[str, float]) -> Adapted:
        """So much of the way here from shares ``before`` of trees, and no more."""
        keys = dict.fromkeys((*before, *self.shares))
        shares = {key: (1.0 - share) * before.get(key, 0.0) + share * self.shares.get(key, 0.0) for key in keys}
        process = replace(self.process, weights=share * self.process.weights)
        return Adapted(shares, share * self.offset, self.columns, process)

    def to_manifest(self, prefix: str) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """(what goes into the manifest, arrays, whose names begin with ``prefix``)."""
        process = self.process
        about = {
            "shares": dict(self.shares), "offset": self.offset, "columns": list(self.columns), "prefix": prefix,
            "deviation": process.deviation, "lengths": process.lengths.tolist(),
        }  # fmt: skip
        if not len(process.weights):
            return {**about, "prefix": ""}, {}
        return about, {prefix + "at": process.at, prefix + "weights": process.weights}

    @classmethod
    def from_manifest(cls, about: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]]) -> Adapted:
        """What `to_manifest` wrote; KeyError where something is missing."""
        lengths, prefix = np.array(about["lengths"], dtype=np.float64), str(about["prefix"])
        process = Process.unmeasured(lengths)
        if prefix:
            at, weights_of_rows = (weights[prefix + name] for name in ("at", "weights"))
            process = Process(at, weights_of_rows, float(about["deviation"]), lengths)
        shares = {str(key): float(share) for key, share in about["shares"].items()}
        return cls(shares, float(about["offset"]), tuple(about["columns"]), process)
