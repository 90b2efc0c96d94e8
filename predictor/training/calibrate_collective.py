"""`tilecast calibrate` for collectives: the own factors of PCIe systems, from eight rows of each or more.

Boards without NVLink share the uplinks of PCIe switches and sockets, each machine in its own way, and no data sheet
says how. What NVLink gives is on the data sheet, so rows of such systems are not read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from predictor import engines
from predictor.estimators.cores.collective import OWN, Constants, Own
from predictor.hardware.gpu import GPUSpec
from predictor.training import fit_collective
from predictor.training.adapt import Fitted, Frame, Weights, percent

#: Rows of a system: fewest that tell its four factors. Chosen by hand, not from data.
FEWEST = 8


def collective_rows(frame: Frame, gpu: GPUSpec) -> npt.NDArray[np.bool_]:
    """Which rows calibrate: replayed or eager collectives over PCIe, of systems with eight rows or more."""
    if not {"link", "system"} <= set(frame.columns):
        return np.zeros(len(frame), dtype=bool)
    keep = (frame["op"].astype(str) == "collective") & (frame["link"].astype(str) == "pcie")
    keep &= frame["framework"].astype(str).isin(engines.libraries())
    system = _systems(frame, gpu)
    names, counts = np.unique(system[keep], return_counts=True)
    return np.asarray(keep & np.isin(system, names[counts >= FEWEST]), dtype=bool)


def calibrate_collective(rows: Frame, gpu: GPUSpec, manifest: dict[str, Any], weights: Weights) -> Fitted:
    """The estimator with the own factors of every system of ``rows``; what it knew of these is replaced."""
    table = fit_collective.rows_of(rows, {gpu.id: gpu})
    constants = Constants.from_manifest(manifest["constants"], "constants")
    systems = dict(manifest["systems"])
    place = table.system.astype(str)
    before, after, scalars = np.empty(table.size), np.empty(table.size), {}
    for system in np.unique(place).tolist():
        index = np.flatnonzero(place == system)
        part = table.take(index)
        known = Own.from_manifest(systems[system], system).logs() if system in systems else np.zeros(len(OWN))
        before[index] = part.errors(constants, np.tile(known, (part.size, 1)))
        found = Own.from_logs(fit_collective.SystemLaw(part, constants).find())
        systems[system] = scalars[system] = found.to_manifest()
        after[index] = part.errors(constants, np.tile(found.logs(), (part.size, 1)))
    systems = {name: systems[name] for name in sorted(systems)}
    new = {**manifest, "systems": systems, "calibrated": {**manifest["calibrated"], gpu.id: scalars}}
    return Fitted(new, weights, scalars, *(percent(np.exp(errors), np.ones(1)) for errors in (before, after)))


def _systems(frame: Frame, gpu: GPUSpec) -> npt.NDArray[Any]:
    """(n,) the system of every row, as `fit_collective.rows_of` names it."""
    system = frame["system"].astype(object).fillna("").astype(str).to_numpy()
    return np.where(system == "", f"{gpu.id}-node", system).astype(str)
