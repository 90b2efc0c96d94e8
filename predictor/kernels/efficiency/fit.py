"""Fits `Efficiency`: for each GPU, operator family and dtype two numbers, by least squares on log latency (soft L1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data.dataset import ops_of
from predictor.data.frame import Frame
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.efficiency.estimator import ANY
from predictor.kernels.fitting.family import FamilyFit, Fitted, Law, SearchStage, fit
from predictor.ops import OPERATORS
from predictor.ops.roofline import roofline

FloatArray = npt.NDArray[np.float64]


class TwoNumbers(Law):
    """Efficiency in (0, 1] and overhead >= 0 of measured = overhead + cold / efficiency; both arrays of shape (n,)."""

    pull, scale = 0.0, 0.1  # nothing pulls; errors beyond 10 % count less: chosen by hand, not from data

    def __init__(self, key: str, cold: FloatArray, measured: FloatArray) -> None:
        self.key, self._cold, self._measured = key, cold, measured
        efficiency, overhead = float(np.clip(np.median(cold / measured), 1e-4, 1.0)), float(measured.min()) * 0.5
        self.start = np.log([efficiency, overhead])
        self.bounds = [np.log(1e-5), np.log(1e-9)], [1e-9, np.log(max(float(measured.max()), 2e-9))]

    def stages(self) -> Iterator[SearchStage]:
        """One search; none for fewer than three rows."""
        if len(self._measured) >= 3:
            yield SearchStage(lambda p: np.log((np.exp(p[1]) + self._cold / np.exp(p[0])) / self._measured))

    def numbers(self) -> tuple[float, float]:
        """What was found: without a search no overhead."""
        overhead = float(np.exp(self.x[1])) if len(self._measured) >= 3 else 0.0
        return float(np.exp(min(self.x[0], 0.0))), overhead


class EfficiencyFit(FamilyFit):
    """Rows of any operators, by GPU, family and dtype."""

    def __init__(self, frame: Frame, gpus: Mapping[str, GPUSpec]) -> None:
        self._laws: list[TwoNumbers] = []
        families = np.array([OPERATORS[str(op)].family for op in frame["op"].astype(str)], dtype=object)
        gpu_ids = frame["gpu"].astype(str).to_numpy()
        dtypes = frame["dtype"].astype(str).to_numpy()
        measured = np.asarray(frame["latency_ms"], dtype=np.float64) / 1e3
        ops = ops_of(frame)
        for gpu in sorted(set(gpu_ids)):
            for family in sorted(set(families[gpu_ids == gpu])):
                here = (gpu_ids == gpu) & (families == family)
                groups = {ANY: here} | {d: here & (dtypes == d) for d in sorted(set(dtypes[here]))}
                for dtype, rows in groups.items():
                    index = [i for i in np.flatnonzero(rows) if _supported(ops[i], gpus[gpu])]
                    if index:
                        cold = roofline([ops[i] for i in index], gpus[gpu]).cold_s
                        self._laws.append(TwoNumbers(f"{gpu}|{family}|{dtype}", cold, measured[index]))

    def laws(self) -> Iterable[Law]:
        """One for each GPU, family and dtype, and one over all dtypes."""
        return self._laws

    def artifact(self, boosters: Mapping[str, Any]) -> Fitted:
        """An `Efficiency`."""
        table = {law.key: law.numbers() for law in self._laws}
        _medians(table)
        keys = sorted(table)
        manifest = {
            "kind": "efficiency",
            "name": "efficiency",
            "keys": keys,
            "features": ["cold roofline"],
            "calibrated": {},
        }
        return manifest, {"constants": np.array([table[key] for key in keys], dtype=np.float64)}


def fit_efficiency(frame: Frame, gpus: Mapping[str, GPUSpec], seed: int) -> Fitted:
    """(manifest, weights) of an `Efficiency` from measured rows; the fit draws nothing by ``seed``."""
    return fit(EfficiencyFit(frame, gpus), seed)


def _supported(op: Any, gpu: GPUSpec) -> bool:
    return op.unit != "matrix" or gpu.supports(op.dtype)


def _medians(table: dict[str, tuple[float, float]]) -> None:
    """Adds the medians over GPUs under "*"."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for key, pair in table.items():
        groups.setdefault(key.split("|", 1)[1], []).append(pair)
    for rest, pairs in groups.items():
        median = np.median(np.array(pairs), axis=0)
        table[f"{ANY}|{rest}"] = (float(median[0]), float(median[1]))
