"""Fits `Efficiency`: for each GPU, operator family and dtype two numbers, by least squares on log latency (soft L1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.estimators.efficiency import ANY
from predictor.hardware.gpu import GPUSpec
from predictor.ops import OPERATORS
from predictor.roofline import roofline
from predictor.training.dataset import ops_of
from predictor.training.extras import require

Frame = Any
FloatArray = npt.NDArray[np.float64]


def fit_efficiency(
    frame: Frame, gpus: Mapping[str, GPUSpec], seed: int
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """(manifest, weights) of an `Efficiency` from measured rows; ``seed`` is not needed, the fit draws nothing."""
    del seed
    table: dict[str, tuple[float, float]] = {}
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
                    table[f"{gpu}|{family}|{dtype}"] = _two_numbers(cold, measured[index])
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


def _supported(op: Any, gpu: GPUSpec) -> bool:
    return op.unit != "matrix" or gpu.supports(op.dtype)


def _two_numbers(cold: FloatArray, measured: FloatArray) -> tuple[float, float]:
    """Efficiency in (0, 1] and overhead >= 0 of measured = overhead + cold / efficiency; both arrays of shape (n,)."""
    optimize = require("scipy.optimize")
    start_efficiency = float(np.clip(np.median(cold / measured), 1e-4, 1.0))
    start_overhead = float(measured.min()) * 0.5
    if len(measured) < 3:
        return start_efficiency, 0.0

    def residuals(p: FloatArray) -> FloatArray:
        return np.log((np.exp(p[1]) + cold / np.exp(p[0])) / measured)

    result = optimize.least_squares(
        residuals,
        [np.log(start_efficiency), np.log(start_overhead)],
        bounds=([np.log(1e-5), np.log(1e-9)], [1e-9, np.log(max(float(measured.max()), 2e-9))]),
        loss="soft_l1",
        f_scale=0.1,
    )
    return float(np.exp(min(result.x[0], 0.0))), float(np.exp(result.x[1]))


def _medians(table: dict[str, tuple[float, float]]) -> None:
    """Adds the medians over GPUs under "*"."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for key, pair in table.items():
        groups.setdefault(key.split("|", 1)[1], []).append(pair)
    for rest, pairs in groups.items():
        median = np.median(np.array(pairs), axis=0)
        table[f"{ANY}|{rest}"] = (float(median[0]), float(median[1]))
