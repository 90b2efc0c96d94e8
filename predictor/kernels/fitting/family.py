"""The one fit of every estimator: constants law by law, by one search, then trees on what these leave.

What is an estimator's own stands in a `FamilyFit`: which unknowns are found together and by which rows (`Law`), what
trees learn of the rest, and what the artifact keeps. `fit` is the loop around them. Hold-outs, intervals and cards know
no family (`predictor.fit.fit`, `predictor.fit.fit_intervals`, `predictor.fit.publish`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.files.records import dataclass
from predictor.kernels.fitting.boosting import BoosterSettings, boost
from predictor.kernels.fitting.solve import Solution, solve
from predictor.kernels.named import Named
from predictor.ops.roofline import FloatArray

#: (manifest, arrays) of an estimator.
Fitted = tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]

#: What a manifest says of calibrations and tile probes where there are none.
NO_CALIBRATION: Mapping[str, Any] = {"adapted": {}, "calibrated": {}, "probes": {}}

#: Steps after which it shows which of several searches ends deepest: chosen by hand, not from data.
_FEW_STEPS = 10


@dataclass(frozen=True, slots=True)
class SearchStage:
    """One search. ``errors`` (n,): weighted log(forecast / measured) of the rows that tell, by the law's unknowns (u,);
    ``free`` (u,): which of these move (None: all); ``begins``: from where, the best of several (none: where they are).
    """

    errors: Callable[[FloatArray], FloatArray]
    free: npt.NDArray[np.bool_] | None = None
    begins: Sequence[FloatArray] = ()


class Law(ABC):
    """Unknowns (u,) that are found together: where each starts, and how hard it is pulled there."""

    start: FloatArray
    pull: FloatArray | float
    #: As `solve` has them.
    bounds: tuple[Sequence[float], Sequence[float]] | None = None
    scale: float = 1.0
    step: float | None = None
    most: int | None = None
    #: The unknowns as the last stage left them.
    x: FloatArray

    @abstractmethod
    def stages(self) -> Iterator[SearchStage]:
        """The searches, in order; each may go by what the one before it found."""

    def find(self) -> FloatArray:
        """The unknowns (u,) after all stages."""
        self.x = self.start.copy()
        for stage in self.stages():
            begins = stage.begins or (self.x,)
            if len(begins) > 1:
                begins = (
                    min((self._search(stage, x, _FEW_STEPS) for x in begins), key=lambda solution: solution.cost).x,
                )
            self.x = self._search(stage, begins[0], self.most).x
        return self.x

    def _search(self, stage: SearchStage, begin: FloatArray, most: int | None) -> Solution:
        return solve(
            stage.errors, self.start, self.pull, begin=begin, free=stage.free, bounds=self.bounds, scale=self.scale,
            step=self.step, most=most,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Residual:
    """What trees learn under ``key``: features (n, f), log residuals (n,), and what a manifest says of the trees."""

    key: str
    x: FloatArray
    y: FloatArray
    settings: BoosterSettings
    about: Mapping[str, Any]


class FamilyFit(ABC):
    """A family of operators and the rows that its estimator is fitted to."""

    @abstractmethod
    def laws(self) -> Iterable[Law]:
        """What constants are found by; each is found before the next is asked for."""

    def residuals(self) -> Iterator[Residual]:
        """What trees learn once all constants are found; most families have none."""
        return iter(())

    @abstractmethod
    def artifact(self, boosters: Mapping[str, Any]) -> Fitted:
        """What a set keeps of the fit; ``boosters``: of each key's trees."""


class JointFit(Law, FamilyFit):
    """A family whose constants are all found together."""

    def laws(self) -> Iterable[Law]:
        """Itself alone."""
        return (self,)


def fit(family: FamilyFit, seed: int) -> Fitted:
    """(manifest, arrays) of the family's estimator; the same rows and seed give the same."""
    for law in family.laws():
        law.find()
    boosters: dict[str, dict[str, Any]] = {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for residual in family.residuals():
        prefix = f"b{len(boosters)}_"
        arrays |= boost(residual.x, residual.y, seed, residual.settings).pack(prefix)
        boosters[residual.key] = {"prefix": prefix, **residual.about}
    manifest, of_family = family.artifact(boosters)
    return manifest, {**arrays, **of_family}


def of_cores(cores: Mapping[str, Named], core_rows: Mapping[str, int], boosters: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says of constants, the rows that each rest on, and trees, before any calibration."""
    written = {key: constants.to_manifest() for key, constants in cores.items()}
    return {"devices": {}, "cores": written, "core_rows": core_rows, "boosters": boosters, **NO_CALIBRATION}
