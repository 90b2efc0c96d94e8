"""What `tilecast calibrate` adds to the fp32 GEMM estimator for one GPU: its own constants and a smooth correction.

A few measured rows move the formula's constants (rates by layout and tile, traffic, waves, fixed times) and say which
tiles the GPU's library really picks. What they leave is interpolated by a Gaussian process over log sizes (Rasmussen &
Williams 2006, eq. 2.23; exponential kernel), which falls back to no correction away from the measured shapes.

Shapes: n operators, r measured rows; layouts are 0 (tn) and 1 (nn; a layer of either layout counts as nn).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Log sizes over which the correction changes by about its whole amplitude: output, aspect, K, batch. Chosen by looking
#: at five GPUs, each left out and calibrated with 20 rows (docs/accuracy-fp32.md); the two below, too.
LENGTHS = np.array([4.0, 4.0, 3.0, 4.0])
#: Standard deviation of the log error that the formula leaves, and of what a single row says of it. Chosen by the same
#: looks.
AMPLITUDE, NOISE = 0.1, 0.06
#: Correlation of the errors of two products of the same size in different layouts. Chosen by the same looks.
ACROSS_LAYOUTS = 0.3
#: No correction goes beyond this factor (as a logarithm).
LIMIT = float(np.log(2.0))
#: Constants that a GPU may own: those of the formula with a value for each kernel library, and the others.
BY_LIBRARY = ("efficiency", "penalty", "split_penalty", "unaligned", "reread", "narrow", "straddle")
BY_TILE = ("prologue", "lonely")
SINGLE = ("write_out", "norm", "quantization", "fixed_s", "split_s")

Shared = TypeVar("Shared")


@dataclass(frozen=True, slots=True)
class Calibrated:
    """One GPU's own side.

    ``constants`` maps names of the formula's constants to the GPU's own values, of its kernel library alone where the
    formula has them by library; the rest are the shared ones.
    """

    board: tuple[float, float]  # u and the bandwidth share
    overhead: Mapping[str, tuple[float, float]]  # (host, launch) in seconds by layout
    constants: Mapping[str, FloatArray]
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
            {name: np.array(entry["constants"][name], dtype=np.float64) for name in _known(entry["constants"])},
            np.array(entry["points"], dtype=np.float64).reshape(-1, len(LENGTHS)),
            np.array(entry["layouts"], dtype=np.int64),
            np.array(entry["weights"], dtype=np.float64),
        )

    def to_manifest(self) -> dict[str, Any]:
        """What `from_manifest` reads."""
        return {
            "board": list(self.board),
            "eager_overhead_s": {k: list(v) for k, v in self.overhead.items()},
            "constants": {name: np.asarray(value).tolist() for name, value in self.constants.items()},
            "points": np.round(self.points, 6).tolist(),
            "layouts": self.layouts.tolist(),
            "weights": self.weights.tolist(),
        }

    def own(self, shared: Shared, library: int) -> Shared:
        """The formula's constants (a dataclass) as this GPU has them, in its kernel library."""
        values: dict[str, Any] = {}
        for name, value in self.constants.items():
            if name in BY_LIBRARY:
                values[name] = np.array(getattr(shared, name), dtype=np.float64)
                values[name][library] = value
            else:
                values[name] = value if name in BY_TILE else float(value)
        result: Shared = replace(shared, **values)  # type: ignore[type-var]
        return result

    def factor(self, columns: Mapping[str, FloatArray], layouts: IntArray) -> FloatArray:
        """What kernel times are multiplied by, shape (n,)."""
        if not len(self.weights):
            return np.ones(len(layouts))
        between = covariance(sizes(columns), np.minimum(layouts, 1), self.points, self.layouts)
        result: FloatArray = np.exp(np.clip(between @ self.weights, -LIMIT, LIMIT))
        return result


def _known(constants: Mapping[str, Any]) -> list[str]:
    unknown = [name for name in constants if name not in (*BY_LIBRARY, *BY_TILE, *SINGLE)]
    if unknown:
        raise ValueError(f"unknown constants {', '.join(unknown)}")
    return list(constants)


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
