"""Estimators of serving kernels, adapted to one GPU by a few of its rows (16 to 256).

The constants of the core are fitted again by robust least squares, each pulled toward what the set says of the GPU
without the rows, as far as it differs among measured GPUs. The trees that answered before stay, at the strength that
explains the rows best, and a Gaussian process over a few features says what is left (`residual.Adapted`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.errors import RequestError
from predictor.estimators.residual import ANY_GPU, MMA_GPUS, Adapted, Corrections, FloatArray, Points, covariance
from predictor.hardware.gpu import GPUSpec
from predictor.training.fit_serving import ATTENTION, GEMM, MOE, Family, Part

Frame = Any
Weights = dict[str, npt.NDArray[Any]]

ROW_ERROR = 0.1  # log error of one row that counts as usual
LEAST_SPREAD = 0.08  # standard deviation of the log of a constant among GPUs is taken as at least this
STRENGTHS = (0.0, 0.5, 1.0)
#: Standard deviation of the process, its length in octaves of a size, and of a row's own error, that are tried.
GRID = tuple(product((0.05, 0.1, 0.2), (2.0, 3.5, 6.0), (0.03, 0.06, 0.1)))

#: Features that the process works on, by kind of estimator: all logarithms to base 2.
POINTS: Mapping[str, tuple[str, ...]] = {
    "serving_gemm": ("log2_m", "log2_n", "log2_k", "log2_compute_over_memory", "log2_tiles_128"),
    "serving_attention": (
        "log2_batch", "log2_kv_heads", "log2_group", "log2_q_len", "log2_kv_len", "log2_head_dim",
        "log2_compute_over_memory",
    ),
    "serving_moe": ("log2_tokens", "log2_hidden", "log2_width", "log2_local_experts", "log2_compute_over_memory"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServingFit:
    """An estimator's two files with the GPU in them, the scalars found, and mean errors in % on the rows."""

    manifest: dict[str, Any]
    weights: Weights
    scalars: dict[str, Any]
    before: float
    after: float


def calibrate_gemm(rows: Frame, gpu: GPUSpec, manifest: dict[str, Any], weights: Weights) -> ServingFit:
    """The GEMM estimator with ``gpu``'s own constants from its bf16 and fp8 ``rows``; RequestError without any."""
    return calibrate(GEMM, rows, gpu, manifest, weights)


def calibrate_attention(rows: Frame, gpu: GPUSpec, manifest: dict[str, Any], weights: Weights) -> ServingFit:
    """The attention estimator, likewise."""
    return calibrate(ATTENTION, rows, gpu, manifest, weights)


def calibrate_moe(rows: Frame, gpu: GPUSpec, manifest: dict[str, Any], weights: Weights) -> ServingFit:
    """The MoE estimator, likewise."""
    return calibrate(MOE, rows, gpu, manifest, weights)


def calibrate(family: Family, rows: Frame, gpu: GPUSpec, manifest: dict[str, Any], weights: Weights) -> ServingFit:
    """The estimator of ``family`` adapted to ``gpu``; an earlier calibration of it is replaced."""
    parts = [part for part in family.parts(rows, {gpu.id: gpu}) if part.size]
    if not parts:
        raise RequestError(f"no row of {gpu.id} that {family.kind} reads: expected bf16 or fp8 of a serving framework")
    base, kept = without(manifest, weights, gpu.id)
    corrections = Corrections(base, kept)
    new = {**base, "cores": dict(base["cores"]), "adapted": dict(base.get("adapted", {}))}
    scalars: dict[str, Any] = {}
    before, after = [], []
    for kind in dict.fromkeys(part.kind for part in parts):
        own = [part for part in parts if part.kind == kind]
        starts = [corrections.core(gpu, *part.path.split("|")) for part in own]
        source = starts[0][0]
        for part, (_, start) in zip(own, starts, strict=True):
            found = constants(family, part, start, spread(base, part.path, start))
            new["cores"][f"{gpu.id}|{part.path}"] = [round(float(v), 9) for v in found]
            scalars[part.path] = dict(zip(family.names, np.exp(found).tolist(), strict=True))
        adapted, first, last = _adapt(family, own, starts, new["cores"], corrections, f"{source}|{kind}", gpu)
        new["adapted"][f"{gpu.id}|{kind}"], arrays = adapted.to_manifest(f"a_{gpu.id}_{kind}_")
        kept |= arrays
        before.append(first)
        after.append(last)
    return ServingFit(new, kept, scalars, _percent(np.concatenate(before)), _percent(np.concatenate(after)))


def without(manifest: Mapping[str, Any], weights: Weights, gpu: str) -> tuple[dict[str, Any], Weights]:
    """Manifest and arrays without an earlier calibration of ``gpu``; what it was trained on stays."""
    kept = dict(weights)
    result = dict(manifest)
    adapted = dict(manifest.get("adapted", {}))
    for key in [key for key in adapted if key.split("|")[0] == gpu]:
        for name in [name for name in kept if name.startswith(adapted[key]["prefix"])]:
            del kept[name]
        del adapted[key]
    if gpu not in manifest.get("devices", {}):
        result["cores"] = {k: v for k, v in manifest["cores"].items() if k.split("|")[0] != gpu}
    result["adapted"] = adapted
    return result, kept


def spread(manifest: Mapping[str, Any], path: str, start: FloatArray) -> FloatArray:
    """How far (standard deviation of the log) each constant lies apart among the measured GPUs."""
    shared = (ANY_GPU, MMA_GPUS)
    own = [v for k, v in manifest["cores"].items() if k.split("|", 1)[1] == path and k.split("|")[0] not in shared]
    if len(own) < 2:
        return np.full(len(start), 0.3)
    return np.maximum(np.std(np.array(own), axis=0), LEAST_SPREAD)


def constants(family: Family, part: Part, start: FloatArray, apart: FloatArray) -> FloatArray:
    """Logarithms of the constants that balance the rows' log errors and the distance from ``start``."""
    from scipy.optimize import least_squares

    def errors(x: FloatArray) -> FloatArray:
        gaps = np.log(family.core(part, x).total) - part.log_latency
        return np.concatenate([gaps / ROW_ERROR, (x - start) / apart])

    found = least_squares(errors, start, loss="soft_l1", diff_step=1e-3, max_nfev=40)
    return np.asarray(found.x, dtype=np.float64)


def _adapt(
    family: Family,
    parts: Sequence[Part],
    starts: Sequence[tuple[str, FloatArray]],
    cores: Mapping[str, Sequence[float]],
    corrections: Corrections,
    key: str,
    gpu: GPUSpec,
) -> tuple[Adapted, FloatArray, FloatArray]:
    """(what the trees and the process say, log errors before, log errors after) over the rows of one kind."""
    columns = [family.features.index(name) for name in POINTS[family.kind]]
    tables, left, first = [], [], []
    for part, (_, start) in zip(parts, starts, strict=True):
        core = family.core(part, np.array(cores[f"{gpu.id}|{part.path}"]))
        tables.append(family.describe(part, core))
        left.append(part.log_latency - np.log(core.total))
        old = family.core(part, start)
        log_factor = corrections.log_factor(key, gpu.architecture, _later(family, part, old))
        first.append(np.log(old.total) + log_factor - part.log_latency)
    x, y = np.concatenate(tables), np.concatenate(left)
    trees = corrections.log_factor(key, gpu.architecture, lambda: x, whole=True)
    best: tuple[float, Adapted] | None = None
    for strength in STRENGTHS:
        likelihood, points = process(x[:, columns], y - strength * trees)
        if best is None or likelihood > best[0]:
            best = likelihood, Adapted(key, strength, tuple(columns), points)
    assert best is not None
    adapted = best[1]
    answer = adapted.strength * trees + adapted.points.predict(x[:, columns])
    return adapted, np.concatenate(first), answer - y


def _later(family: Family, part: Part, core: Any) -> Callable[[], FloatArray]:
    return lambda: family.describe(part, core)


def process(at: FloatArray, y: FloatArray) -> tuple[float, Points]:
    """(log marginal likelihood, points) of the Gaussian process that explains ``y`` (n,) at points ``at`` (n, f) best.

    Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1, over a grid of settings.
    """
    best: tuple[float, Points] | None = None
    for deviation, length, noise in GRID:
        matrix = covariance(at, at, deviation, length) + noise**2 * np.eye(len(y))
        lower = np.linalg.cholesky(matrix)
        weights = np.linalg.solve(lower.T, np.linalg.solve(lower, y))
        likelihood = float(-0.5 * y @ weights - np.log(np.diag(lower)).sum())
        if best is None or likelihood > best[0]:
            best = likelihood, Points(at, weights, deviation, length)
    assert best is not None
    return best


def stratified(rows: Frame, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Positions of ``count`` GEMM rows, spread over a grid of quantiles of log FLOPs and arithmetic intensity."""
    rng = np.random.default_rng(seed)
    m, n, k = (rows[name].to_numpy(dtype=float) for name in ("m", "n", "k"))
    flops = np.log(m * n * k)
    intensity = flops - np.log(m * n + n * k + m * k)
    side = max(2, round(np.sqrt(count) / 1.4))
    cell = np.empty(len(rows), dtype=np.int64)
    band = _quantile(flops, side)
    for i in range(side):
        chosen = np.flatnonzero(band == i)
        cell[chosen] = i * side + _quantile(intensity[chosen], side)
    turn = np.empty(len(rows), dtype=np.int64)  # how many rows of its cell come before a row
    order = rng.permutation(len(rows))
    for i in range(side * side):
        chosen = order[cell[order] == i]
        turn[chosen] = np.arange(len(chosen))
    result: npt.NDArray[np.int64] = np.sort(np.lexsort((rng.random(len(rows)), turn))[:count])
    return result


def _quantile(values: FloatArray, count: int) -> npt.NDArray[np.int64]:
    """Which of ``count`` equal shares of the sorted values each belongs to."""
    ranks = np.argsort(np.argsort(values, kind="stable"))
    return np.asarray(ranks * count // max(len(values), 1), dtype=np.int64)


def _percent(log_errors: FloatArray) -> float:
    return float(np.abs(np.exp(log_errors) - 1.0).mean() * 100.0)
