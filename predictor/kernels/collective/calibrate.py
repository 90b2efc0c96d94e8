"""`tilecast calibrate` for collectives: the own factors of PCIe systems, from eight rows of each or more.

Boards without NVLink share the uplinks of PCIe switches and sockets, each machine in its own way, and no data sheet
says how. What NVLink gives is on the data sheet, so rows of such systems are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from predictor import engines
from predictor.data.frame import Frame
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.collective import fit as fit_collective
from predictor.kernels.collective.core import OWN, Constants, Own
from predictor.kernels.fitting.adapt import (
    AdaptedArtifact,
    Question,
    Told,
    Trial,
    calibrated,
    row_errors,
    rows_alone,
)
from predictor.ops.roofline import FloatArray

#: Rows of a system: fewest that tell its four factors. Chosen by hand, not from data.
FEWEST = 8


def collective_rows(frame: Frame, gpu: GPUSpec) -> npt.NDArray[np.bool_]:
    """Which rows calibrate: replayed or eager collectives over PCIe, of systems with eight rows or more."""
    if not {"link", "system"} <= set(frame.columns):
        return np.zeros(len(frame), dtype=bool)
    keep = (frame["op"].astype(str) == "collective") & (frame["link"].astype(str) == "pcie")
    keep &= frame["framework"].astype(str).isin(engines.libraries())
    system = fit_collective.systems_of(frame)
    names, counts = np.unique(system[keep], return_counts=True)
    return np.asarray(keep & np.isin(system, names[counts >= FEWEST]), dtype=bool)


class SystemTrial(Trial):
    """Rows of one system; what the set knew of it is replaced."""

    def __init__(self, rows: fit_collective.CollectiveRows, errors: FloatArray, board: AdaptedArtifact) -> None:
        constants, system = Constants.from_manifest(board.base["constants"], "constants"), str(rows.system[0])
        self._law = fit_collective.SystemLaw(rows, constants)
        known = None if system in board.earlier else board.base["systems"].get(system)
        self._known = np.zeros(len(OWN)) if known is None else Own.from_manifest(known, self._law.system).logs()
        near = self._law.scale / np.asarray(self._law.pull)
        gaps = rows_alone(lambda x: -self._law.errors(x))
        self.question = Question(self._law.start, near, gaps, noise=self._law.scale, row_errors=errors)

    def before(self) -> FloatArray:
        """By what the set knew of the system."""
        return self._law.errors(self._known)

    def keep(self, board: AdaptedArtifact, x: FloatArray, told: Told | None, share: float) -> FloatArray:
        """Its factors, among those of all systems."""
        scalars = Own.from_logs(x).to_manifest()
        systems = {**board.manifest["systems"], self._law.system: scalars}
        board.manifest["systems"] = {name: systems[name] for name in sorted(systems)}
        board.scalars[self._law.system] = scalars
        board.manifest["calibrated"][board.gpu.id] = board.scalars
        return self._law.errors(x)


def system_trials(rows: Frame, board: AdaptedArtifact) -> Iterator[Trial]:
    """A trial for every system of the rows."""
    table = fit_collective.rows_of(rows, {board.gpu.id: board.gpu})
    place, errors = table.system, row_errors(rows)
    for system in np.unique(place).tolist():
        index = np.flatnonzero(place == system)
        yield SystemTrial(table.take(index), errors[index], board)


calibrate_collective = partial(calibrated, system_trials)
