"""Fits the estimator of collectives: constants shared by all systems of NVIDIA GPUs, then scalars of each system.

Robust least squares (soft L1) on log latency, the constants pulled gently toward their start and a system's scalars
toward none, so that the constants say what systems have in common and a system that nobody measured gets just them.
Groups of rows weigh alike however many sizes they have. Systems of other vendors (another library) get scalars alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data.dataset import ops_of
from predictor.data.frame import Frame, texts
from predictor.engines import EAGER
from predictor.engines.releases import is_version
from predictor.errors import RequestError
from predictor.files.records import dataclass
from predictor.hardware.gpu import GPUSpec
from predictor.hardware.system import LINKS
from predictor.kernels.base import make_batch
from predictor.kernels.collective.core import OWN, CollectiveCalls, Constants, Own, OwnKernels, seconds
from predictor.kernels.device import Device
from predictor.kernels.fitting.adapt import of_rows
from predictor.kernels.fitting.family import FamilyFit, Fitted, Law, SearchStage, fit
from predictor.kernels.fitting.tables import RowTable
from predictor.ops.roofline import FloatArray

#: Rows of a group (source, GPU, library, kind, GPUs, dtype) that are fitted: the first of every third of an octave.
#: These four were chosen by hand, not from data.
_BINS_AN_OCTAVE = 3
_GROUP_ROWS = 60.0  # a group of more rows weighs as one of so many
_HOST_BYTES = 65536  # eager rows up to this size show the host, not the kernel
_CLOCKED_WITH_HOST = 0.6  # weight of rows with launches inside (eager, profiler) beside those of a CUDA graph

#: Pulls, in units of the rows' errors: of a constant toward its start, of a system's scalars toward 0. Chosen by hand,
#: not from data.
_PULL = 0.33
_PULLS: Mapping[str, float] = {"share_pcie_many": 5.0}  # few systems, each sharing in its own way: kept near its start
#: What PCIe boards share beyond two of them is a system's own; what NVLink gives is not. Chosen by hand, not from data.
_OWN_PULL = {"pcie": np.array([1.0, 0.1, 0.1]), "": np.array([1.0, 1.0, 1.0])}
_ALONE_PULL = {"pcie": np.array([0.1, 0.03, 0.03, 0.03]), "": np.array([0.3, 0.3, 0.3, 0.3])}
_PCIE = LINKS.index("pcie")


@dataclass(frozen=True, slots=True)
class CollectiveRows(RowTable):
    """Measured collectives, ready for the formula; arrays of shape (n,)."""

    links: CollectiveCalls
    device: Device  # of every row: its fields are arrays
    kernels: OwnKernels
    log_latency: FloatArray
    system: npt.NDArray[Any]
    weight: FloatArray

    @property
    def size(self) -> int:
        return len(self.log_latency)

    def errors(self, constants: Constants, scalars: FloatArray) -> FloatArray:
        """Log of forecast over measured, (n,); ``scalars`` of shape (n, 4)."""
        forecast = seconds(self.links, self.device, constants, scalars, self.kernels)
        result: FloatArray = np.log(forecast) - self.log_latency
        return result


def rows_of(frame: Frame, gpus: Mapping[str, GPUSpec]) -> CollectiveRows:
    """The rows of a frame (op collective) as the formula reads them; rows without a system count as the GPU's own."""
    batch = make_batch("collective", ops_of(frame))
    names, index = np.unique(texts(frame, "gpu"), return_inverse=True)
    links = CollectiveCalls.of(batch.columns)
    libraries = [
        f"{name} {version}" if is_version(version) else name
        for name, version in zip(*(texts(frame, c).tolist() for c in ("framework", "framework_version")), strict=True)
    ]
    kernels = OwnKernels.of(libraries, links.ranks)
    return CollectiveRows(
        links, of_rows([Device.sheet(gpus[name]) for name in names], index), kernels,
        np.log(np.asarray(frame["latency_ms"], dtype=np.float64) / 1e3),
        systems_of(frame), _weights(frame),
    )  # fmt: skip


def systems_of(frame: Frame) -> npt.NDArray[np.str_]:
    """The system of every row, (n,): the GPU's own where a row names none."""
    system = texts(frame, "system")
    return np.where(system == "", np.char.add(texts(frame, "gpu"), "-node"), system)


def _keys(frame: Frame) -> Frame:
    names = ("source", "gpu", "framework", "kind", "ranks", "ranks_per_node", "dtype")
    return frame[list(names)].astype(str).agg("|".join, axis=1)


def _weights(frame: Frame) -> FloatArray:
    """Square roots of the rows' weights: groups count alike, rows with launches inside count less."""
    keys = frame[["source", "gpu", "framework", "kind"]].astype(str).agg("|".join, axis=1)
    rows = keys.map(keys.value_counts()).to_numpy(dtype=np.float64)
    hosted = frame["protocol"].astype(str).isin(("eager_events", "profiler")).to_numpy()
    return np.sqrt(_GROUP_ROWS / np.maximum(rows, _GROUP_ROWS / 3)) * np.where(hosted, _CLOCKED_WITH_HOST, 1.0)


def usable(frame: Frame) -> Frame:
    """Rows to fit on: no own kernels launched one by one (they show the host), dense sizes thinned out."""
    served = frame["framework"].astype(str) != EAGER.kernels
    eager = served & frame["kernel_source"].astype(str).str.endswith("_eager")
    frame = frame[~eager.to_numpy()].reset_index(drop=True)
    keep = np.zeros(len(frame), dtype=bool)
    octave = np.log2(np.asarray(frame["size"], dtype=np.float64))
    for index in _keys(frame).groupby(_keys(frame)).indices.values():
        if len(index) > _GROUP_ROWS:
            _, first = np.unique(np.round(octave[index] * _BINS_AN_OCTAVE), return_index=True)
            index = index[first]
        keep[index] = True
    return frame[keep].reset_index(drop=True)


def _of_link(pulls: Mapping[str, FloatArray], rows: CollectiveRows) -> FloatArray:
    return pulls["pcie" if bool((rows.links.link == _PCIE).all()) else ""]


class SharedLaw(Law):
    """The constants, and factors of every system of the rows.

    Beside the constants a system has bandwidths of its own here, and no latency: with one, each would explain its own
    small collectives, and nothing but the pulls would say what a system has that nobody measured.
    """

    scale, step, most = 0.1, 1e-3, 80  # errors beyond 10 % count less: chosen by hand, not from data

    def __init__(self, rows: CollectiveRows) -> None:
        logs, self.rows = Constants().logs(), rows
        systems, self._place = np.unique(rows.system.astype(str), return_inverse=True)
        parts = [rows.take(np.flatnonzero(self._place == i)) for i in range(len(systems))]
        own_pull = np.stack([_of_link(_OWN_PULL, part) for part in parts])
        pull = _PULL * np.array([_PULLS.get(name, 0.33) / 0.33 for name in Constants.names()])
        self.start = np.concatenate([logs, np.zeros(own_pull.size)])
        self.pull, self._shape, self._shared = np.concatenate([pull, own_pull.ravel()]), own_pull.shape, len(logs)

    def constants(self, x: FloatArray) -> Constants:
        """Those that the systems share."""
        return Constants.from_logs(x[: self._shared])

    def stages(self) -> Iterator[SearchStage]:
        """One search, over everything."""

        def errors(x: FloatArray) -> FloatArray:
            scalars = np.column_stack([np.zeros(self._shape[0]), x[self._shared :].reshape(self._shape)])
            log_errors = np.clip(self.rows.errors(self.constants(x), scalars[self._place]), -3.0, 3.0)
            return self.rows.weight * log_errors

        yield SearchStage(errors)


class SystemLaw(Law):
    """The factors of one system from its own rows, eight or more, the shared constants being given.

    Raises RequestError where the rows are of more than one system.
    """

    scale, step = SharedLaw.scale, SharedLaw.step

    def __init__(self, rows: CollectiveRows, constants: Constants) -> None:
        systems = sorted(set(rows.system.tolist()))
        if len(systems) != 1:
            raise RequestError(f"rows of the systems {', '.join(systems) or 'none'}: expected those of one")
        self.system, self.rows, self._constants = systems[0], rows, constants
        self.start, self.pull = np.zeros(len(OWN)), _of_link(_ALONE_PULL, rows)

    def errors(self, scalars: FloatArray) -> FloatArray:
        """Log of forecast over measured, (n,), by the logarithms of the factors (4,)."""
        return self.rows.errors(self._constants, np.tile(scalars, (self.rows.size, 1)))

    def stages(self) -> Iterator[SearchStage]:
        """One search."""
        yield SearchStage(self.errors)


class CollectiveFit(FamilyFit):
    """Constants of NVIDIA's systems (of all where there are none), then each system by itself."""

    def __init__(self, frame: Frame, gpus: Mapping[str, GPUSpec]) -> None:
        chosen = usable(frame)
        self._frame, self._rows = frame, rows_of(chosen, gpus)
        nvidia = np.array([gpus[name].vendor == "nvidia" for name in chosen["gpu"].astype(str)])
        shared = np.flatnonzero(nvidia) if nvidia.any() else np.arange(self._rows.size)
        self._shared = SharedLaw(self._rows.take(shared))
        self._systems: list[SystemLaw] = []

    def laws(self) -> Iterator[Law]:
        """What all share, then what is a system's own."""
        yield self._shared
        self._constants = self._shared.constants(self._shared.x)
        for system in sorted(set(self._rows.system.tolist())):
            rows = self._rows.take(np.flatnonzero(self._rows.system == system))
            self._systems.append(SystemLaw(rows, self._constants))
            yield self._systems[-1]

    def artifact(self, boosters: Mapping[str, Any]) -> Fitted:
        """A `Collectives`."""
        return {
            "kind": "collective",
            "name": "collective",
            "constants": self._constants.to_manifest(),
            "systems": {law.system: Own.from_logs(law.x).to_manifest() for law in self._systems},
            "host_s": host_seconds(self._frame),
            "fitted_rows": self._rows.size,
            "calibrated": {},
        }, {}


def fit_collective(frame: Frame, gpus: Mapping[str, GPUSpec], seed: int) -> Fitted:
    """(manifest, weights) of a `Collectives` from measured rows (op collective)."""
    return fit(CollectiveFit(frame, gpus), seed)


def host_seconds(frame: Frame) -> dict[str, float]:
    """GPU -> host time of one collective launched by itself (median of small eager rows), "*" for all; may be empty."""
    eager = (frame["protocol"].astype(str) == "eager_events") & (frame["size"] <= _HOST_BYTES)
    small = frame[eager.to_numpy()]
    if not len(small):
        return {}
    medians = (small["latency_ms"] / 1e3).groupby(small["gpu"].astype(str)).median()
    host_s = {str(gpu): round(float(value), 9) for gpu, value in medians.sort_index().items()}
    return {**host_s, "*": round(float(medians.median()), 9)}
