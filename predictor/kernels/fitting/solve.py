"""The one search of every fit: robust least squares, each unknown pulled toward where it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.files.extras import require
from predictor.files.records import dataclass
from predictor.ops.roofline import FloatArray


@dataclass(frozen=True, slots=True)
class Solution:
    """The unknowns found, all of them, and what is left: half the sum of the errors' losses."""

    x: FloatArray
    cost: float


def solve(
    errors: Callable[[FloatArray], FloatArray],
    start: FloatArray,
    pull: FloatArray | float,
    *,
    begin: FloatArray | None = None,
    free: npt.NDArray[np.bool_] | None = None,
    bounds: tuple[Sequence[float], Sequence[float]] | None = None,
    scale: float = 1.0,
    step: float | None = None,
    most: int | None = None,
) -> Solution:
    """Unknowns (u,) that balance ``errors`` (of rows, and whatever else) and ``pull`` x their distance from ``start``.

    The loss is soft L1 beyond ``scale``. The search sets out at ``begin`` (None: the start) and moves those that are
    ``free`` (None: all) within their ``bounds`` (lows, highs), ``most`` times, by differences of ``step`` (relative).
    """
    whole = (start if begin is None else begin).copy()
    moves = np.ones(len(start), dtype=bool) if free is None else free
    pulls = np.broadcast_to(pull, start.shape)[moves]

    def gaps(x: FloatArray) -> FloatArray:
        whole[moves] = x
        return np.concatenate([errors(whole), (x - start[moves]) * pulls])

    optimize: Any = require("scipy.optimize")
    fit = optimize.least_squares(
        gaps, whole[moves], bounds=bounds or (-np.inf, np.inf), loss="soft_l1", f_scale=scale, diff_step=step,
        max_nfev=most,
    )  # fmt: skip
    whole[moves] = fit.x
    return Solution(whole, float(fit.cost))


class Unknowns:
    """Named unknowns as one vector: where each starts, and how hard it is pulled there."""

    def __init__(self, start: Mapping[str, FloatArray], pull: Mapping[str, float], usual: float) -> None:
        self._names, self._ends = tuple(start), np.cumsum([len(values) for values in start.values()])
        self.start = self.join(start)
        self.pull = self.join({name: np.full(len(values), pull.get(name, usual)) for name, values in start.items()})

    def split(self, x: FloatArray) -> dict[str, FloatArray]:
        """The named parts of a vector."""
        return dict(zip(self._names, np.split(x, self._ends[:-1]), strict=True))

    def join(self, parts: Mapping[str, FloatArray]) -> FloatArray:
        """The vector of such parts."""
        return np.concatenate([parts[name] for name in self._names])

    def marks(self, of: Mapping[str, npt.NDArray[np.bool_]], others: bool) -> npt.NDArray[np.bool_]:
        """Which unknowns are free: those that ``of`` marks; of names that it lacks all or none."""
        parts = self.split(self.start)
        return np.concatenate([of.get(name, np.full(len(values), others)) for name, values in parts.items()])
