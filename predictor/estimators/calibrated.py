"""What `tilecast calibrate` adds to the fp32 GEMM estimator for one GPU: rates, tiles that run, a smooth correction.

A few measured rows name the tiles that the GPU's library really picks and how fast it runs each layout. What they leave
is interpolated by a Gaussian process over log sizes (Rasmussen & Williams 2006, eq. 2.23; exponential kernel), which
falls back to no correction away from the measured shapes.

Shapes: n operators, r measured rows; layouts are 0 (tn) and 1 (nn; a layer of either layout counts as nn).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

#: Log sizes over which the correction changes by about its whole amplitude: output, aspect, K, batch.
LENGTHS = np.array([4.0, 4.0, 3.0, 4.0])
#: Standard deviation of the log error that the formula leaves, and of what a single row says of it.
AMPLITUDE, NOISE = 0.3, 0.08
#: Correlation of the errors of two products of the same size in different layouts.
ACROSS_LAYOUTS = 0.3
#: No correction goes beyond this factor (as a logarithm).
LIMIT = float(np.log(2.0))


@dataclass(frozen=True, slots=True)
class Calibrated:
    """One GPU's own side. In ``tiles``, a layout without any runs its library's."""

    board: tuple[float, float]  # u and the bandwidth share
    overhead: Mapping[str, tuple[float, float]]  # (host, launch) in seconds by layout
    rates: FloatArray  # (2,) factors on u
    tiles: BoolArray  # (2, tiles)
    points: FloatArray  # (r, 4)
    layouts: IntArray  # (r,)
    weights: FloatArray  # (r,)

    @classmethod
    def from_manifest(cls, entry: Mapping[str, Any]) -> Calibrated:
        """From an entry of the manifest's "calibrated"; KeyError or ValueError where it is incomplete."""
        sustained, share = entry["board"]
        return cls(
            (float(sustained), float(share)),
            {str(k): (float(host), float(launch)) for k, (host, launch) in entry["eager_overhead_s"].items()},
            np.array(entry["rates"], dtype=np.float64),
            np.array(entry["tiles_run"], dtype=bool),
            np.array(entry["points"], dtype=np.float64).reshape(-1, len(LENGTHS)),
            np.array(entry["layouts"], dtype=np.int64),
            np.array(entry["weights"], dtype=np.float64),
        )

    def to_manifest(self) -> dict[str, Any]:
        """What `from_manifest` reads."""
        return {
            "board": list(self.board),
            "eager_overhead_s": {k: list(v) for k, v in self.overhead.items()},
            "rates": self.rates.tolist(),
            "tiles_run": self.tiles.astype(int).tolist(),
            "points": np.round(self.points, 6).tolist(),
            "layouts": self.layouts.tolist(),
            "weights": self.weights.tolist(),
        }

    def factor(self, columns: Mapping[str, FloatArray], layouts: IntArray) -> FloatArray:
        """What kernel times are multiplied by, shape (n,)."""
        if not len(self.weights):
            return np.ones(len(layouts))
        between = covariance(sizes(columns), np.minimum(layouts, 1), self.points, self.layouts)
        result: FloatArray = np.exp(np.clip(between @ self.weights, -LIMIT, LIMIT))
        return result


def sizes(columns: Mapping[str, FloatArray]) -> FloatArray:
    """Log of output elements, aspect, K and batch, shape (n, 4)."""
    b, m, n, k = (np.log(columns[c]) for c in ("batch", "m", "n", "k"))
    return np.stack([b + m + n, m - n, k, b], axis=1)


def covariance(points: FloatArray, layouts: IntArray, others: FloatArray, other_layouts: IntArray) -> FloatArray:
    """Prior covariance of the log errors at two sets of points, shape (n, r)."""
    distance = np.sqrt((((points[:, None, :] - others[None, :, :]) / LENGTHS) ** 2).sum(axis=2))
    same = np.where(layouts[:, None] == other_layouts[None, :], 1.0, ACROSS_LAYOUTS)
    result: FloatArray = AMPLITUDE**2 * np.exp(-distance) * same
    return result


def solve(points: FloatArray, layouts: IntArray, errors: FloatArray) -> FloatArray:
    """Weights of the correction that explains log ``errors`` (r,) at ``points``, shape (r,)."""
    noise = NOISE**2 * np.eye(len(errors))
    total: FloatArray = covariance(points, layouts, points, layouts) + noise
    result: FloatArray = np.asarray(np.linalg.solve(total, errors), dtype=np.float64)
    return result
