"""`tilecast calibrate`: a set of estimators adapted to one GPU by a few of its measured rows.

What all GPUs share stays as it was trained. The GPU's own scalars are fitted by robust least squares (soft L1) on log
latency, each pulled toward what the set says of the GPU without the rows (its data sheet, or the boards measured), so
that a handful of rows moves only what they speak of:

- fp32 GEMM: u by layout, bandwidth share, the host's times; with enough rows that name their kernel, the tiles that
  run; then a smooth correction over sizes (`predictor.estimators.calibrated`).
- memory-bound operators: bandwidth share and the host's times.

The other estimators of the set are copied as they are.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.errors import RequestError
from predictor.estimators import calibrated
from predictor.estimators import memory_bound as mb
from predictor.estimators import tile_gemm as tg
from predictor.estimators.artifact import ArtifactSet, load_artifacts
from predictor.estimators.base import make_batch
from predictor.hardware.gpu import GPUSpec
from predictor.training import dataset
from predictor.training.extras import require
from predictor.training.fit import _check_out, _gpu, _json, _publish, write_estimator
from predictor.training.fit_tile_gemm import tile_indices

FloatArray = npt.NDArray[np.float64]
Frame = Any
Weights = dict[str, npt.NDArray[Any]]

FEWEST, MOST = 5, 256
#: Log error of one row that counts as usual, and how far (standard deviation of the log) a scalar of a GPU lies from
#: what the set says without rows: rates and bandwidth shares, the host's time of a call, its part after the launch.
ROW_ERROR = 0.15
SHARE_SPREAD, HOST_SPREAD, AFTER_SPREAD = 0.15, 0.35, 0.7
#: How much the two layouts differ (standard deviation of the log) in their rates, and in how far the host's times lie
#: from what the set says: a slow host is slow in both.
LAYOUT_SPREAD, LAYOUT_HOST_SPREAD = 0.15, 0.1
#: Rows of a layout that must name their kernel before the tiles that ran may replace the library's (both are tried),
#: and how many do where they all name one; the share of them in which a tile must have run.
NAMED_ROWS, ONE_TILE_ROWS, TILE_SHARE = 8, 2, 0.05
#: Rows below this many times the host's time say nothing of their kernel.
ABOVE_HOST = 1.3
LEAST_AFTER_S = 3e-6
MEMORY_OPS = ("elementwise", "softmax", "norm")
EVALUATIONS = 40


@dataclass(slots=True)
class CalibrateReport:
    """What `calibrate` did. ``before`` and ``after`` are mean absolute errors in % on the rows given, by estimator."""

    out: Path
    gpu: str
    rows: dict[str, int] = field(default_factory=dict)
    unused_rows: int = 0
    scalars: dict[str, dict[str, Any]] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    unchanged: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fitted:
    """An estimator's folder with the GPU in it, the scalars found, and the errors in % on the rows."""

    manifest: dict[str, Any]
    weights: Weights
    scalars: dict[str, Any]
    before: float
    after: float


def calibrate(gpu: str, data: Path, out: Path, artifacts: Path | None = None) -> CalibrateReport:
    """Write the set at ``artifacts`` (None: the shipped one), adapted to ``gpu``, to ``out``: whole or not at all.

    Raises RequestError where the GPU is unknown, the data has no row of it that an estimator reads or not between 5
    and 256, or ``out`` cannot be written.
    """
    _check_out(out)
    frame = dataset.read(data)
    spec = _gpu(gpu, dataset.read_meta(data).get("devices", {}))
    source = load_artifacts(None if artifacts is None else str(artifacts))
    if not isinstance(source, ArtifactSet):
        raise RequestError("--artifacts roofline: has no estimators to calibrate; expected a folder of them")
    own = frame[frame["gpu"].astype(str) == spec.id]
    if not len(own):
        raise RequestError(f"--data {str(data)!r} has no row of {spec.id}: expected {FEWEST} to {MOST}")
    own = own[(own["flag"].astype(str) == "").to_numpy()].reset_index(drop=True)
    report = CalibrateReport(out, spec.id)
    fits: dict[str, Fitted] = {}
    for folder in source.folders():
        fit = FITS.get(str(source.member_manifest(folder).get("kind")))
        rows = own[fit.rows(own)].reset_index(drop=True) if fit else own.iloc[:0]
        report.rows[folder] = len(rows)
        if fit is None:
            report.unchanged[folder] = "has no scalars of a GPU: not calibrated"
        elif not len(rows):
            report.unchanged[folder] = f"no {fit.reads} rows in the data"
    total = sum(report.rows.values())
    if not FEWEST <= total <= MOST:
        hint = "draw some of them, or use `tilecast train`" if total > MOST else "measure a few more"
        raise RequestError(
            f"--data {str(data)!r} has {total:,} rows of {spec.id} to calibrate with (fp32):"
            f" expected {FEWEST} to {MOST}; {hint}"
        )
    report.unused_rows = len(own) - total
    for folder in source.folders():
        if folder not in report.unchanged:
            fit = FITS[str(source.member_manifest(folder)["kind"])]
            rows = own[fit.rows(own)].reset_index(drop=True)
            found = fit.fit(rows, spec, source.member_manifest(folder), read_weights(source.path / folder))
            fits[folder] = found
            report.scalars[folder], report.before[folder], report.after[folder] = (
                found.scalars, found.before, found.after,
            )  # fmt: skip
    about = {"gpu": spec.id, "file": data.name, "rows": total, "sha256": dataset.digest(own), "from": source.name}
    _write(source, fits, about, out)
    return report


def read_weights(folder: Path) -> Weights:
    """The arrays of an estimator's folder."""
    with np.load(folder / "weights.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def _write(source: ArtifactSet, fits: Mapping[str, Fitted], about: dict[str, Any], out: Path) -> None:
    """The set's own files copied, calibrated estimators in place of theirs; rows that were held out stay behind."""
    temporary = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        for folder in source.folders():
            shutil.copytree(source.path / folder, temporary / folder)
        if (source.path / "gpus").is_dir():
            shutil.copytree(source.path / "gpus", temporary / "gpus")
        for folder, found in fits.items():
            write_estimator(temporary / folder, {**found.manifest, "calibration": about}, found.weights)
        manifest = dict(source.manifest)
        manifest["name"] = out.name
        manifest["calibrated"] = [e for e in manifest.get("calibrated", []) if e["gpu"] != about["gpu"]] + [about]
        (temporary / "manifest.json").write_text(_json(manifest), encoding="utf-8")
        text = (
            f"# Estimators `{out.name}`\n\n`{source.name}`, calibrated by `tilecast calibrate` to {about['gpu']} with"
        )
        text += f" {about['rows']} rows (SHA-256 `{about['sha256'][:16]}`): {', '.join(fits)}. The rest is as it was.\n"
        (temporary / "README.md").write_text(text, encoding="utf-8")
        _publish(temporary, out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _least_squares(error: Callable[[FloatArray], FloatArray], start: FloatArray, spread: FloatArray) -> FloatArray:
    """Scalars (as logarithms) that balance the rows' log errors and the distance from ``start``."""

    def residuals(x: FloatArray) -> FloatArray:
        return np.concatenate([error(x) / ROW_ERROR, (x - start) / spread])

    optimize = require("scipy.optimize")
    # a step that moves the time: the choice among tiles makes it uneven
    found = optimize.least_squares(residuals, start, loss="soft_l1", diff_step=5e-3, max_nfev=EVALUATIONS)
    result: FloatArray = found.x
    return result


def _cost(residuals: FloatArray) -> float:
    """What soft L1 makes of residuals."""
    return float((np.sqrt(1.0 + residuals**2) - 1.0).sum())


def _overheads(known: Mapping[str, Sequence[float]], gpu: str) -> tuple[float, float]:
    """(host, time after the launch) that the set says of a GPU: its own, or the median of the measured ones."""
    pairs = np.array(list(known.values()) or [[3e-5, 1.5e-5]], dtype=np.float64)
    host, launch = known[gpu] if gpu in known else np.median(pairs, axis=0)
    return float(host), max(float(host) - float(launch), LEAST_AFTER_S)


def _eager(seconds: FloatArray, host: FloatArray, after: FloatArray, eager: npt.NDArray[np.bool_]) -> FloatArray:
    result: FloatArray = np.where(eager, np.maximum(host, np.maximum(host - after, 1e-6) + seconds), seconds)
    return result


def _percent(predicted: FloatArray, measured: FloatArray) -> float:
    return float(np.abs(predicted / measured - 1.0).mean() * 100.0)


# ---------------------------------------------------------------------------------------------------------- fp32 GEMM


def gemm_rows(frame: Frame) -> npt.NDArray[np.bool_]:
    """Which rows calibrate the fp32 GEMM."""
    keep = (frame["op"].astype(str) == "gemm") & (frame["dtype"].astype(str) == "fp32")
    return np.asarray(keep & (frame["framework"].astype(str) == "pytorch"), dtype=bool)


class GemmTrial:
    """The estimator with trial scalars: log of (rate tn, rate nn, bandwidth share, host tn, nn, after tn, nn)."""

    def __init__(self, rows: Frame, gpu: GPUSpec, manifest: Mapping[str, Any], weights: Weights) -> None:
        self.gpu = gpu
        self.base = tg.TileGemm.from_artifact(_without(manifest, gpu.id), weights)
        batch = make_batch("gemm", dataset.ops_of(rows))
        self.columns, self.layouts = batch.columns, tg.layout_indices(batch.ops)
        self.call = np.array([0 if op.layout == "tn" else 1 for op in batch.ops])  # type: ignore[attr-defined]
        self.eager = (rows["protocol"].astype(str) == "eager_events").to_numpy()
        self.measured = rows["latency_ms"].to_numpy(dtype=np.float64) * 1e-3
        board = self.base.board(gpu)
        self.bandwidth = float(board.bandwidth / gpu.memory_bandwidth)
        self.sustained = float(board.sustained)
        hosts = [_overheads(manifest["eager_overhead_s"][layout], gpu.id) for layout in tg.LAYOUTS]
        self.start = np.log([1.0, 1.0, self.bandwidth, *(h for h, _ in hosts), *(a for _, a in hosts)])
        self.spread = np.array([*3 * [SHARE_SPREAD], *2 * [HOST_SPREAD], *2 * [AFTER_SPREAD]])
        self.tiles = np.zeros((len(tg.LAYOUTS), len(tg.TILES)), dtype=bool)

    def tiles_run(self, rows: Frame) -> npt.NDArray[np.bool_]:
        """The tiles (layouts, tiles) that ran in `TILE_SHARE` of a layout's rows, where enough of them name one."""
        ran = np.zeros((len(tg.LAYOUTS), len(tg.TILES)), dtype=bool)
        if "kernel_name" not in rows:
            return ran
        named = tile_indices(rows["kernel_name"].astype(str))
        for layout in range(len(tg.LAYOUTS)):
            own = named[(named >= 0) & (self.layouts == layout)]
            if len(own) >= (ONE_TILE_ROWS if len(np.unique(own)) == 1 else NAMED_ROWS):
                ran[layout] = np.bincount(own, minlength=len(tg.TILES)) >= TILE_SHARE * len(own)
        return ran

    def own(self, x: FloatArray, correction: FloatArray | None = None) -> calibrated.Calibrated:
        """The GPU's own side for ``x``; ``correction`` (r,) are weights at the rows."""
        host, after = np.exp(x[3:5]), np.exp(x[5:7])
        overhead = {
            layout: (float(host[i]), float(max(host[i] - after[i], 1e-6))) for i, layout in enumerate(tg.LAYOUTS)
        }
        board = self.sustained, float(np.exp(x[2]))
        points, layouts = np.empty((0, 4)), np.empty(0, dtype=np.int64)
        if correction is not None:
            points, layouts = calibrated.sizes(self.columns), np.minimum(self.layouts, 1)
        weights = np.empty(0) if correction is None else correction
        return calibrated.Calibrated(board, overhead, np.exp(x[:2]), self.tiles, points, layouts, weights)

    def kernel(self, own: calibrated.Calibrated) -> FloatArray:
        """Kernel times, shape (r,)."""
        return self.base.calibrated(self.gpu.id, own).kernel_seconds(self.columns, self.layouts, self.gpu)

    def measurable(self, x: FloatArray, kernel: FloatArray) -> FloatArray:
        """What the rows' protocols show for kernel times, shape (r,)."""
        return _eager(kernel, np.exp(x[3:5])[self.call], np.exp(x[5:7])[self.call], self.eager)

    def error(self, x: FloatArray) -> FloatArray:
        """Log errors, shape (r,), and how far the layouts lie apart in units of a row's error, shape (3,)."""
        error = np.log(self.measurable(x, self.kernel(self.own(x))) / self.measured)
        move = x - self.start
        apart = np.array([move[0] - move[1], move[3] - move[4], move[5] - move[6]])
        spread = np.array([LAYOUT_SPREAD, LAYOUT_HOST_SPREAD, LAYOUT_HOST_SPREAD])
        return np.concatenate([error, apart * (ROW_ERROR / spread)])

    def fit(self, rows: Frame) -> FloatArray:
        """The scalars, with the library's tiles or those that ran, whichever explains the rows better."""
        best, found = np.inf, self.start
        chosen, ran = self.tiles, self.tiles_run(rows)
        for tiles in (self.tiles, ran) if ran.any() else (self.tiles,):
            self.tiles = tiles
            x = _least_squares(self.error, self.start, self.spread)
            cost = _cost(np.concatenate([self.error(x) / ROW_ERROR, (x - self.start) / self.spread]))
            if cost < best:
                best, found, chosen = cost, x, tiles
        self.tiles = chosen
        return found

    def correction(self, x: FloatArray) -> FloatArray:
        """Weights of the smooth correction, zero at rows that the host hides, shape (r,)."""
        kernel = self.kernel(self.own(x))
        host, after = np.exp(x[3:5])[self.call], np.exp(x[5:7])[self.call]
        seen = np.where(self.eager, self.measured - np.maximum(host - after, 1e-6), self.measured)
        tells = (seen > 0.0) & (~self.eager | (self.measured > ABOVE_HOST * host))
        weights = np.zeros(len(kernel))
        if tells.any():
            errors = np.clip(np.log(seen[tells] / kernel[tells]), -calibrated.LIMIT, calibrated.LIMIT)
            points, layouts = calibrated.sizes(self.columns)[tells], np.minimum(self.layouts, 1)[tells]
            weights[tells] = calibrated.solve(points, layouts, errors)
        return weights


def _without(manifest: Mapping[str, Any], gpu: str) -> dict[str, Any]:
    """The manifest without an earlier calibration of ``gpu``."""
    others = {k: v for k, v in manifest.get("calibrated", {}).items() if k != gpu}
    return {**manifest, "calibrated": others}


def calibrate_gemm(rows: Frame, gpu: GPUSpec, manifest: dict[str, Any], weights: Weights) -> Fitted:
    """The fp32 GEMM estimator with ``gpu``'s scalars from its ``rows``."""
    trial = GemmTrial(rows, gpu, manifest, weights)
    before = trial.base.kernel_seconds(trial.columns, trial.layouts, gpu)
    x = trial.fit(rows)
    own = trial.own(x, trial.correction(x))
    after = trial.measurable(x, trial.kernel(own))
    new = _without(manifest, gpu.id)
    new["calibrated"][gpu.id] = own.to_manifest()
    scalars = {
        "sustained_tn": trial.sustained * float(own.rates[0]), "sustained_nn": trial.sustained * float(own.rates[1]),
        "sustained_before": trial.sustained, "bandwidth_share": own.board[1], "bandwidth_share_before": trial.bandwidth,
        "host_s": {layout: list(own.overhead[layout]) for layout in tg.LAYOUTS},
        "tiles": {
            layout: [t.name for t, ran in zip(tg.TILES, trial.tiles[i], strict=True) if ran]
            for i, layout in enumerate(tg.LAYOUTS)
        },
    }  # fmt: skip
    first = trial.measurable(trial.start, before)
    return Fitted(new, weights, scalars, _percent(first, trial.measured), _percent(after, trial.measured))


# ------------------------------------------------------------------------------------------------------- memory-bound


def memory_rows(frame: Frame) -> npt.NDArray[np.bool_]:
    """Which rows calibrate the memory-bound operators."""
    keep = frame["op"].astype(str).isin(MEMORY_OPS) & (frame["dtype"].astype(str) == "fp32")
    return np.asarray(keep & (frame["framework"].astype(str) == "pytorch"), dtype=bool)


def calibrate_memory(rows: Frame, gpu: GPUSpec, manifest: dict[str, Any], weights: Weights) -> Fitted:
    """The memory-bound estimator with ``gpu``'s bandwidth share and host times from its ``rows``."""
    base = mb.MemoryBound.from_artifact(_without(manifest, gpu.id), weights)
    names = rows["op"].astype(str).to_numpy()
    present = [op for op in MEMORY_OPS if (names == op).any()]
    parts = [np.flatnonzero(names == op) for op in present]
    ops = dataset.ops_of(rows)
    traffic = [mb.traffic_of(make_batch(ops[i[0]].family, [ops[j] for j in i]), gpu) for i in parts]
    order = np.concatenate(parts)
    measured = rows["latency_ms"].to_numpy(dtype=np.float64)[order] * 1e-3
    eager = (rows["protocol"].astype(str) == "eager_events").to_numpy()[order]
    call = np.concatenate([np.full(len(i), j) for j, i in enumerate(parts)])
    board = base.board(gpu)
    hosts = [_overheads(manifest["eager_overhead_s"].get(op, {}), gpu.id) for op in present]
    count = len(present)
    share = float(board.bandwidth / gpu.memory_bandwidth)
    start = np.log([share, *(h for h, _ in hosts), *(a for _, a in hosts)])
    spread = np.array([SHARE_SPREAD, *count * [HOST_SPREAD], *count * [AFTER_SPREAD]])

    def predicted(x: FloatArray) -> FloatArray:
        own = replace(board, bandwidth=float(np.exp(x[0])) * gpu.memory_bandwidth)
        kernel = np.concatenate([mb.kernel_seconds(t, own, base.const) for t in traffic])
        host, after = np.exp(x[1 : 1 + count])[call], np.exp(x[1 + count :])[call]
        return _eager(kernel, host, after, eager)

    x = _least_squares(lambda x: np.log(predicted(x) / measured), start, spread)
    found = min(float(np.exp(x[0])), 1.0)
    overhead = {}
    for i, op in enumerate(present):
        host, after = float(np.exp(x[1 + i])), float(np.exp(x[1 + count + i]))
        overhead[op] = [host, max(host - after, 1e-6)]
    scalars = {"bandwidth_share": found, "bandwidth_share_before": share, "host_s": overhead}
    errors = _percent(predicted(start), measured), _percent(predicted(x), measured)
    new = _without(manifest, gpu.id)
    new["calibrated"][gpu.id] = {"board": [found, float(board.hold)], "eager_overhead_s": overhead}
    return Fitted(new, weights, scalars, *errors)


@dataclass(frozen=True, slots=True)
class Calibration:
    """How a kind of estimator is calibrated: which rows it reads, and the fit."""

    reads: str
    rows: Callable[[Frame], npt.NDArray[np.bool_]]
    fit: Callable[[Frame, GPUSpec, dict[str, Any], Weights], Fitted]


#: kind of estimator -> its calibration
FITS = {
    "tile_gemm": Calibration("fp32 GEMM", gemm_rows, calibrate_gemm),
    "memory_bound": Calibration("fp32 element-wise, softmax or norm", memory_rows, calibrate_memory),
}
