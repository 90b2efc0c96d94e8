"""What `tilecast calibrate` adds to the fp32 GEMM estimator for one GPU: its own constants and a smooth correction.

A few measured rows move the formula's constants (rates by layout and tile, traffic, waves, fixed times) and say which
tiles the GPU's library really picks. What they leave is the residual's (`predictor.estimators.gaussian`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from predictor.estimators.gaussian import Adapted, Process

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Log sizes over which the residual changes by about its whole amplitude: output, aspect, K, batch; and layouts (0: tn,
#: 1: nn, as which a layer of either counts), a third of whose residual is common. Chosen by looking at five GPUs, each
#: left out and calibrated with 20 rows (docs/accuracy-fp32.md).
LENGTHS = np.array([4.0, 4.0, 3.0, 4.0, 0.83])
COLUMNS = tuple(range(len(LENGTHS)))
#: A residual that no row told.
NONE = Adapted({}, 0.0, COLUMNS, Process.unmeasured(LENGTHS))
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
    residual: Adapted

    @classmethod
    def from_manifest(cls, entry: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]]) -> Calibrated:
        """From an entry of the manifest's "calibrated"; KeyError or ValueError where it is incomplete."""
        sustained, share = entry["board"]
        return cls(
            (float(sustained), float(share)),
            {str(k): (float(host), float(launch)) for k, (host, launch) in entry["eager_overhead_s"].items()},
            {name: np.array(entry["constants"][name], dtype=np.float64) for name in _known(entry["constants"])},
            Adapted.from_manifest(entry["residual"], weights),
        )

    def to_manifest(self, gpu: str) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """(what `from_manifest` reads, arrays beside it)."""
        residual, arrays = self.residual.to_manifest(f"a_{gpu}_")
        about = {
            "board": list(self.board),
            "eager_overhead_s": {k: list(v) for k, v in self.overhead.items()},
            "constants": {name: np.asarray(value).tolist() for name, value in self.constants.items()},
            "residual": residual,
        }
        return about, arrays

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
        result: FloatArray = np.exp(self.residual.told(sizes(columns, layouts)))
        return result


def _known(constants: Mapping[str, Any]) -> list[str]:
    unknown = [name for name in constants if name not in (*BY_LIBRARY, *BY_TILE, *SINGLE)]
    if unknown:
        raise ValueError(f"unknown constants {', '.join(unknown)}")
    return list(constants)


def sizes(columns: Mapping[str, FloatArray], layouts: IntArray) -> FloatArray:
    """Features of the residual, (n, 5): log of output elements, aspect, K and batch; the layout."""
    b, m, n, k = (np.log(columns[c]) for c in ("batch", "m", "n", "k"))
    return np.stack([b + m + n, m - n, k, b, np.minimum(layouts, 1)], axis=1)
