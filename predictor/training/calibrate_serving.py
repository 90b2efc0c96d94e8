"""Estimators of serving kernels, adapted to one GPU by a few of its rows (16 to 256).

The constants of the core are fitted again by robust least squares, each pulled toward what the set says of the GPU
without the rows, as far as it differs among measured GPUs. The trees that answered before stay, at the strength that
explains the rows best, and a Gaussian process over a few features says what is left (`residual.Adapted`). GEMM on a GPU
that no measured board stands in for mixes the trees of all measured ones instead: the rows say whose kernels it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from predictor import engines
from predictor.engines import EAGER
from predictor.errors import RequestError
from predictor.estimators.adapted import NO_POINTS, Adapted, Points, covariance
from predictor.estimators.cores.gemm import Constants
from predictor.estimators.named import Named
from predictor.estimators.residual import ANY_GPU, MMA_GPUS, Corrections
from predictor.estimators.serving_attention import DECODE, PREFILL
from predictor.hardware.gpu import GPUSpec
from predictor.measurement import CUDA_GRAPH
from predictor.roofline import FloatArray
from predictor.sampling import cells, one_of_each, spread_out
from predictor.training.fit_serving import ATTENTION, GEMM, MOE, Family
from predictor.training.own_scalars import Fitted, Frame, Weights, percent
from predictor.training.serving_rows import ROW_DTYPES, Part, expressible
from predictor.training.tile_rows import is_probe, shared_rate, teach, tile_parts

BoolArray = npt.NDArray[np.bool_]

#: A call that takes longer does not show the host's time of launching it: chosen by hand, not from data.
ABOVE_HOST_S = 50e-6
#: dtypes whose tile probes tell of the products that this estimator answers for.
TILE_DTYPES = ("bf16", "fp16", "tf32", *ROW_DTYPES[1:])
#: What follows was chosen by hand, not from data, up to the next comment of its own.
ABSENT = {"kv_dtype": "", "window": np.nan}  # columns that a file of plain kernels need not have
TRAINED = "|trained"  # behind the key of a measured GPU's own trees, once it is calibrated
ROW_ERROR = 0.1  # log error of one row that counts as usual
USUAL_SPREAD = 0.3  # standard deviation of the log of a constant that fewer than two GPUs have
LEAST_SPREAD = 0.08  # standard deviation of the log of a constant among GPUs is taken as at least this
STRENGTHS = (0.0, 0.5, 1.0)
ROUNDS = 3  # in which rows that lie far off are believed less
MIXED = ("serving_gemm",)  # estimators whose calibration mixes the trees of measured GPUs
SHARE_SPREAD = 0.2  # standard deviation of a GPU's share in a mixture, around an equal one
OFFSET_SPREAD = 0.3  # of the offset that comes with a mixture
MIX_ERROR = 0.06  # log error of a row that counts as usual in a mixture
#: Share of the mean of measured GPUs' own trees, each of what its own constants leave, in what tile probes alone tell.
#: Chosen by looking at models/default: each of its boards with its own constants and the trees of other chips has a
#: median error of 7.4 % without trees (mean over boards, libraries, bf16 and fp8), 6.8 % with 0.4 to 0.6, 7.2 % with 1.
OF_OTHERS = 0.5
#: Standard deviation of the process, its length in octaves of a size, and of a row's own error, that are tried. Chosen
#: by hand, not from data.
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


def calibrate_gemm(rows: Frame, gpu: GPUSpec, manifest: dict[str, Any], weights: Weights) -> Fitted:
    """The GEMM estimator with ``gpu``'s own constants from its bf16 and fp8 ``rows``; RequestError without any.

    Rows of tile probes have their part in the constants of a variant. Where it has no other rows, they alone tell them
    (`predictor.training.tile_rows`), for every library, and its trees are `OF_OTHERS` of the measured GPUs' mean.
    """
    probes = is_probe(rows)
    if not probes.any():
        return calibrate(GEMM, rows, gpu, manifest, weights)
    tiles = {part.kind: part for part in tile_parts(rows[probes], {gpu.id: gpu})}
    if probes.all():
        found = Fitted(*without(manifest, weights, gpu.id), {}, 0.0, 0.0)
    else:
        found = calibrate(GEMM, rows[~probes].reset_index(drop=True), gpu, manifest, weights, tiles)
    alone = [part for kind, part in tiles.items() if f"{gpu.id}|{kind}" not in found.manifest["adapted"]]
    if not alone:
        return found
    new, scalars, told = told_by_tiles(found.manifest, found.weights, alone, gpu)
    before, after = (percent(np.exp(np.concatenate(e)), np.ones(1)) for e in zip(*told, strict=True))
    return Fitted(new, found.weights, {**found.scalars, **scalars}, found.before or before, found.after or after)


def told_by_tiles(
    known: Mapping[str, Any], weights: Weights, tiles: Sequence[Part], gpu: GPUSpec
) -> tuple[dict[str, Any], dict[str, Any], list[tuple[FloatArray, FloatArray]]]:
    """(manifest, constants by path, log errors of the rows before and after): a GPU by ``tiles`` alone."""
    manifest = {**known, **{key: dict(known[key]) for key in ("cores", "adapted", "probes")}}
    corrections = _corrections(GEMM, known, weights)
    scalars: dict[str, Any] = {}
    errors = []
    for part in tiles:
        rate = shared_rate(manifest["probes"], part.kind)
        runners = corrections.runners(part.kind) or (part.path.split("|")[0],)
        for runner in runners:
            _, start = _start(GEMM, corrections, gpu, replace(part, path=f"{runner}|{part.kind}"))
            taught = teach(part, cast(Constants, start), rate=rate)
            key = f"{gpu.id}|{runner}|{part.kind}"
            manifest["cores"][key] = scalars[f"{runner}|{part.kind}"] = taught.constants.to_manifest()
        trees = corrections.measured(part.kind) or (f"{ANY_GPU}|{part.kind}",)
        (first, share), *others = [(key, OF_OTHERS / len(trees)) for key in trees]
        adapted = Adapted(first, share, (), NO_POINTS, tuple(others))
        manifest["adapted"][f"{gpu.id}|{part.kind}"], _ = adapted.to_manifest("")
        manifest["probes"][f"{gpu.id}|{part.kind}"] = taught.to_manifest(part, 0)
        errors.append((taught.before, taught.after))
    return manifest, scalars, errors


def calibrate_attention(rows: Frame, gpu: GPUSpec, manifest: dict[str, Any], weights: Weights) -> Fitted:
    """The attention estimator, likewise."""
    return calibrate(ATTENTION, rows, gpu, manifest, weights)


def calibrate_moe(rows: Frame, gpu: GPUSpec, manifest: dict[str, Any], weights: Weights) -> Fitted:
    """The MoE estimator, likewise."""
    return calibrate(MOE, rows, gpu, manifest, weights)


def gemm_rows(frame: Frame, gpu: GPUSpec) -> BoolArray:
    """Which rows calibrate the GEMM: a serving framework's, kernels of PyTorch's linear layers, and tile probes."""
    probes = is_probe(frame) & np.isin(_text(frame, "dtype"), [name for name in TILE_DTYPES if gpu.supports(name)])
    return library_rows(frame, gpu) | probes


def library_rows(frame: Frame, gpu: GPUSpec) -> BoolArray:
    """The same without tile probes."""
    own = (_text(frame, "kind") == "linear") & (_text(frame, "layout") == "tn")
    return _rows(frame, gpu, "gemm", _kernel_alone(frame) & own) & ~is_probe(frame)


def plain_products(frame: Frame) -> BoolArray:
    """(n,) True for linear layers without a scheme, in any dtype, whose kernel's time stands in the row."""
    linear = (_text(frame, "op") == "gemm") & (_text(frame, "kind") == "linear") & (_text(frame, "layout") == "tn")
    return linear & (_text(frame, "quant") == "") & _kernel_alone(frame) & ~is_probe(frame)


def attention_rows(frame: Frame, gpu: GPUSpec) -> BoolArray:
    """The same for attention: PyTorch's flash kernel counts for prefill; decode in a framework reads a paged cache."""
    own = np.char.endswith(_text(frame, "kernel_source"), "flash") & (_number(frame, "q_len") > 1)
    return _rows(frame, gpu, "attention", _kernel_alone(frame) & own) & (_text(frame, "phase") != "backward")


def moe_rows(frame: Frame, gpu: GPUSpec) -> BoolArray:
    """The same for MoE: a serving framework's alone."""
    return _rows(frame, gpu, "moe", np.zeros(len(frame), dtype=bool))


def _rows(frame: Frame, gpu: GPUSpec, op: str, eager: BoolArray) -> BoolArray:
    framework = _text(frame, "framework")
    supported = np.isin(_text(frame, "dtype"), [name for name in ROW_DTYPES if gpu.supports(name)])
    measured = np.isin(framework, [library.name for library in engines.measured()])
    served = measured | ((framework == EAGER.kernels) & eager)
    return np.asarray((_text(frame, "op") == op) & supported & served & expressible(frame), dtype=bool)


def _kernel_alone(frame: Frame) -> BoolArray:
    """(n,) True for warm rows without the host's time in them: replayed graphs, and calls far longer than a launch."""
    long = _number(frame, "latency_ms") * 1e-3 >= ABOVE_HOST_S
    alone: BoolArray = (_text(frame, "cache_state") == "warm") & ((_text(frame, "protocol") == CUDA_GRAPH) | long)
    return alone


def _text(frame: Frame, name: str) -> npt.NDArray[np.str_]:
    """A column of text, (n,): empty where the file, which may hold other operators alone, has no such column."""
    if name not in frame:
        return np.full(len(frame), "", dtype=np.str_)
    return np.asarray(frame[name].astype(object).fillna("").astype(str), dtype=np.str_)


def _number(frame: Frame, name: str) -> FloatArray:
    if name not in frame:
        return np.full(len(frame), np.nan)
    return np.asarray(frame[name].astype(float), dtype=np.float64)


def calibrate(
    family: Family, rows: Frame, gpu: GPUSpec, manifest: dict[str, Any], weights: Weights,
    tiles: Mapping[str, Part] = MappingProxyType({}),
) -> Fitted:  # fmt: skip
    """The estimator of ``family`` adapted to ``gpu``; an earlier calibration of it is replaced.

    ``tiles``: rows of tile probes by variant, which have their part in the constants.
    PyTorch's rows count as those of the library that answers for it. RequestError where no row is one that it reads.
    """
    missing = {name: value for name, value in ABSENT.items() if name not in rows}  # a file without them is whole, too
    alike = {EAGER.kernels: engines.answering(EAGER.kernels).name}
    rows = rows.assign(framework=rows["framework"].astype(str).replace(alike), **missing)
    parts = [part for part in family.parts(rows, {gpu.id: gpu}) if part.size]
    if not parts:
        raise RequestError(f"no row of {gpu.id} that {family.kind} reads: expected bf16 or fp8 of a serving framework")
    base, kept = without(manifest, weights, gpu.id)
    corrections = _corrections(family, base, kept)
    new = {**base, "cores": dict(base["cores"]), "adapted": dict(base["adapted"]), "boosters": dict(base["boosters"])}
    paths = [f"{gpu.id}|{part.path}" for part in parts]
    about = {"cores": {path: base["cores"][path] for path in paths if path in base["cores"]}}
    new["calibrated"] = {**base["calibrated"], gpu.id: about}
    scalars: dict[str, Any] = {}
    before, after = [], []
    for kind in dict.fromkeys(part.kind for part in parts):
        own = [part for part in parts if part.kind == kind]
        starts = [_start(family, corrections, gpu, part) for part in own]
        trees = f"{starts[0][0]}|{kind}"
        form = _form(family, kind, starts[0][1])
        starts = [(s, start if isinstance(start, type(form.start)) else starts[0][1]) for s, start in starts]
        for part, (_, start) in zip(own, starts, strict=True):
            apart = spread(base, part.path, start)
            if kind in tiles:
                taught = teach(tiles[kind], cast(Constants, start), part, apart)
                new["probes"] = {
                    **new["probes"],
                    f"{gpu.id}|{kind}": taught.to_manifest(tiles[kind], part.size),
                }
                found: Named = taught.constants
            else:
                found = constants(form, part, start, apart)
            new["cores"][f"{gpu.id}|{part.path}"] = scalars[part.path] = found.to_manifest()
        adapted, first, last = _adapt(form, own, starts, new["cores"], corrections, trees, gpu)
        if trees == f"{gpu.id}|{kind}":  # a GPU that was measured: its own trees get another name, this one is taken
            adapted = replace(adapted, trees=trees + TRAINED)
            if trees in base["boosters"]:
                new["boosters"][trees + TRAINED] = base["boosters"][trees]
        new["adapted"][f"{gpu.id}|{kind}"], arrays = adapted.to_manifest(f"a_{gpu.id}_{kind}_")
        kept |= arrays
        before.append(first)
        after.append(last)
    return Fitted(new, kept, scalars, *(percent(np.exp(np.concatenate(e)), np.ones(1)) for e in (before, after)))


def _corrections(family: Family, manifest: Mapping[str, Any], weights: Weights) -> Corrections:
    """The constants and trees of an estimator of ``family``."""
    others = [family.common(kind) for kind in (PREFILL, DECODE)] if family.common else []
    return Corrections(manifest, weights, [type(one.start) for one in (family, *others)])


def _start(family: Family, corrections: Corrections, gpu: GPUSpec, part: Part) -> tuple[str, Named]:
    """(whose constants, constants) that answer for a part before it is calibrated."""
    framework, *rest = part.path.split("|")
    kernel = family.kernel_of(framework, rest[-1], gpu) if family.kernel_of else part.kind
    source, _, values = corrections.resolve(gpu, framework, *rest, kernel=kernel)
    return source, values


def _form(family: Family, kind: str, start: Named) -> Family:
    """The core and the trees that constants like ``start`` are of: those that GPUs share may be others."""
    return family.common(kind) if family.common and not isinstance(start, type(family.start)) else family


def without(manifest: Mapping[str, Any], weights: Weights, gpu: str) -> tuple[dict[str, Any], Weights]:
    """Manifest and arrays without an earlier calibration of ``gpu``; what it was trained on stays."""
    kept = dict(weights)
    adapted = dict(manifest["adapted"])
    calibrated = dict(manifest["calibrated"])
    for key in [key for key in adapted if key.split("|")[0] == gpu]:
        prefix = adapted[key]["prefix"]
        for name in [name for name in kept if prefix and name.startswith(prefix)]:
            del kept[name]
        del adapted[key]
    cores = dict(manifest["cores"])
    if gpu not in manifest["devices"]:
        cores = {key: values for key, values in cores.items() if key.split("|")[0] != gpu}
    cores |= calibrated.pop(gpu, {"cores": {}})["cores"]
    boosters = {k: v for k, v in manifest["boosters"].items() if not (k.startswith(f"{gpu}|") and k.endswith(TRAINED))}
    probes = {key: told for key, told in manifest["probes"].items() if key.split("|")[0] != gpu}
    own = {"cores": cores, "boosters": boosters, "adapted": adapted, "calibrated": calibrated, "probes": probes}
    return {**manifest, **own}, kept


def spread(manifest: Mapping[str, Any], path: str, start: Named) -> FloatArray:
    """How far (standard deviation of the log) each constant lies apart among the measured GPUs."""
    shared = (ANY_GPU, MMA_GPUS)
    own = [v for k, v in manifest["cores"].items() if k.split("|", 1)[1] == path and k.split("|")[0] not in shared]
    logs = [start.from_manifest(values, path).logs() for values in own if start.reads(values)]  # others: another core
    if len(logs) < 2:
        return np.full(len(start.names()), USUAL_SPREAD)
    return np.maximum(np.std(np.array(logs), axis=0), LEAST_SPREAD)


def constants(family: Family, part: Part, start: Named, apart: FloatArray) -> Named:
    """The constants that balance the rows' log errors and the distance of their logarithms from those of ``start``."""
    from scipy.optimize import least_squares

    first = start.logs()

    def errors(x: FloatArray) -> FloatArray:
        gaps = np.log(family.total(part, x)) - part.log_latency
        return np.concatenate([gaps / ROW_ERROR, (x - first) / apart])

    return start.from_logs(least_squares(errors, first, loss="soft_l1", diff_step=1e-3, max_nfev=40).x)


def _adapt(
    family: Family,
    parts: Sequence[Part],
    starts: Sequence[tuple[str, Named]],
    cores: Mapping[str, Mapping[str, float]],
    corrections: Corrections,
    key: str,
    gpu: GPUSpec,
) -> tuple[Adapted, FloatArray, FloatArray]:
    """(what the trees and the process say, log errors before, log errors after) over the rows of one kind."""
    columns = [family.features.index(name) for name in POINTS[family.kind]]
    shared = key.split("|")[0] in (ANY_GPU, MMA_GPUS)
    others = corrections.measured(key.split("|")[1]) if shared and family.kind in MIXED else ()
    tables, left, learned, first = [], [], [], []
    for part, (_, start) in zip(parts, starts, strict=True):
        path = f"{gpu.id}|{part.path}"
        own = family.start.from_manifest(cores[path], path)
        tables.append(family.describe(part, family.core(part, own))[:, columns])
        asked, joined = family.at_knots(part, corrections.knots(key))
        core = family.core(asked, own)
        left.append(part.log_latency - joined(np.log(core.total)))
        x = family.describe(asked, core)
        said = [joined(corrections.said(k, gpu, x, whole=True)) for k in (key, *others)]
        learned.append(np.stack(said, axis=1))
        old = family.core(asked, start)
        before = np.log(old.total) + corrections.said(key, gpu, family.describe(asked, old))
        first.append(joined(before) - part.log_latency)
    at, y, trees = np.concatenate(tables), np.concatenate(left), np.concatenate(learned)
    if others:
        adapted = blend((key, *others), tuple(columns), at, y, trees)
    else:
        adapted = explain(key, tuple(columns), at, y, trees[:, 0])
    shares = (adapted.strength, *(share for _, share in adapted.others))
    answer = adapted.points.predict(at) + adapted.offset + trees @ np.array(shares)
    return adapted, np.concatenate(first), answer - y


def explain(key: str, columns: tuple[int, ...], at: FloatArray, y: FloatArray, trees: FloatArray) -> Adapted:
    """Trees' strength and a process that explain log residuals ``y`` (n,) at points ``at`` (n, f) best.

    Rows that lie far off are believed less, in rounds (Huber's weights): a kernel that a library takes for one shape
    says little of the shapes around it.
    """
    scale = np.ones(len(y))
    for _ in range(ROUNDS):
        found = [(s, *process(at, y - s * trees, scale)) for s in STRENGTHS]
        strength, _, points, gaps = max(found, key=lambda entry: entry[1])
        scale = np.sqrt(np.maximum(1.0, np.abs(gaps)))
    return Adapted(key, strength, columns, points)


def blend(keys: tuple[str, ...], columns: tuple[int, ...], at: FloatArray, y: FloatArray, trees: FloatArray) -> Adapted:
    """A mixture of ``trees`` (n, s) by ``keys``, an offset and a process that explain log residuals ``y`` (n,).

    Ridge regression toward equal shares, in rounds with Huber's weights (stacking: Wolpert, "Stacked generalization",
    1992), then the process on what is left.
    """
    table = np.column_stack([trees, np.ones(len(y))])
    start = np.append(np.full(len(keys), 1.0 / len(keys)), 0.0)
    pull = np.diag(np.append(np.full(len(keys), SHARE_SPREAD**-2), OFFSET_SPREAD**-2))
    found, weights = start, np.ones(len(y))
    for _ in range(ROUNDS):
        scaled = (table * weights[:, None]).T / MIX_ERROR**2
        found = start + np.linalg.solve(scaled @ table + pull, scaled @ (y - table @ start))
        weights = 1.0 / np.maximum(1.0, np.abs(y - table @ found) / MIX_ERROR)
    points = explain(keys[0], columns, at, y - table @ found, np.zeros(len(y))).points
    others = tuple((key, float(share)) for key, share in zip(keys[1:], found[1:-1], strict=True))
    return Adapted(keys[0], float(found[0]), columns, points, others, float(found[-1]))


def process(at: FloatArray, y: FloatArray, scale: FloatArray) -> tuple[float, Points, FloatArray]:
    """(log marginal likelihood, points, gaps) of the Gaussian process that explains ``y`` (n,) at ``at`` (n, f) best.

    A row's own error is the process's times ``scale`` (n,); gaps are what is left of ``y``, in units of that error
    before scaling. Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1, over a grid.
    """
    best: tuple[float, Points, FloatArray] | None = None
    for deviation, length, noise in GRID:
        matrix = covariance(at, at, deviation, length) + np.diag((noise * scale) ** 2)
        lower = np.linalg.cholesky(matrix)
        weights = np.linalg.solve(lower.T, np.linalg.solve(lower, y))
        likelihood = float(-0.5 * y @ weights - np.log(np.diag(lower)).sum())
        if best is None or likelihood > best[0]:
            best = likelihood, Points(at, weights, deviation, length), noise * scale**2 * weights
    assert best is not None
    return best


def stratified(rows: Frame, count: int, seed: int, random: bool = False) -> npt.NDArray[np.int64]:
    """Positions of ``count`` GEMM rows, sorted: one of each cell over log FLOPs and arithmetic intensity.

    Of a dozen that ``seed`` draws in a cell, it is the one that tells most; with ``random``, any.
    """
    m, n, k = (rows[name].to_numpy(dtype=float) for name in ("m", "n", "k"))
    flops = np.log(m * n * k)
    groups = cells(flops, flops - np.log(m * n + n * k + m * k), count)
    return one_of_each(groups, seed) if random else np.sort(spread_out(np.log2(np.stack([m, n, k], 1)), groups, seed))
