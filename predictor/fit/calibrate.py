"""`tilecast calibrate`: a set of estimators adapted to one GPU by a few of its measured rows.

What all GPUs share stays as it was trained. The GPU's own scalars are fitted by robust least squares (soft L1) on log
latency, each pulled toward what the set says of the GPU without the rows (its data sheet, or the boards measured), so
that a handful of rows moves only what they speak of:

- fp32 GEMM: the formula's constants, the tiles that run, a residual (`predictor.kernels.gemm_fp32.calibrate`).
- memory-bound operators: bandwidth share and the host's times.
- GEMM, attention and MoE of serving: the cores' constants, shares of the trees, a Gaussian process for the rest
  (`predictor.kernels.fitting.calibrate_serving`). Tile probes tell the constants of GEMM, alone or with rows of a
  library.
- collectives of PCIe systems: factors on latency and bandwidth (what boards share there is on no data sheet).

The other estimators of the set are copied as they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data import dataset
from predictor.data.frame import Frame, texts
from predictor.data.importers import table
from predictor.data.plausible import keep_apart
from predictor.data.plausible_tables import TABLE_FLAGS, keep_tables_apart
from predictor.data.sampling import cells, one_of_each
from predictor.engines import EAGER
from predictor.errors import RequestError
from predictor.files.records import dataclass
from predictor.fit.fit import _check_out, _gpu
from predictor.fit.publish import as_manifest, published, write_estimator
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.artifact import ArtifactSet, load_artifacts
from predictor.kernels.base import make_batch
from predictor.kernels.collective.calibrate import collective_rows, system_trials
from predictor.kernels.device import Device
from predictor.kernels.fitting import adapt
from predictor.kernels.fitting import calibrate_serving as serving
from predictor.kernels.fitting.adapt import AdaptedArtifact, Fitted, Question, Told, Trial, eager, overheads
from predictor.kernels.gemm.tiles import is_probe
from predictor.kernels.gemm_fp32.calibrate import GemmTrial, gemm_rows
from predictor.kernels.memory_bound import core as stream
from predictor.kernels.memory_bound.estimator import MemoryBound
from predictor.kernels.stored import read_weights

FloatArray = npt.NDArray[np.float64]

#: Rows of one estimator: fewest (of serving kernels, whose core has eight constants for each variant; of one system's
#: collectives), most; and fewest in all. Chosen by hand, not from data.
FEWEST_SERVING, FEWEST_COLLECTIVE = 16, 8
FEWEST, MOST = 5, 256
#: Memory-bound operators: log error of one row that counts as usual, and how far (standard deviation of the log) a
#: scalar of a GPU lies from what the set says without rows: bandwidth share, the host's time of a call, its part after
#: the launch. Chosen by hand, not from data.
ROW_ERROR = 0.15
SHARE_SPREAD, HOST_SPREAD, AFTER_SPREAD = 0.15, 0.35, 0.7
MEMORY_OPS = ("elementwise", "softmax", "norm")


@dataclass(slots=True)
class CalibrateReport:
    """What `calibrate` did. ``before`` and ``after`` are mean absolute errors in % on the rows given, by estimator;
    ``held_out``: of each row by what the others say; ``drawn_from``: how many there were of those that were drawn."""

    out: Path
    gpu: str
    rows: dict[str, int] = field(default_factory=dict)
    unused_rows: int = 0
    drawn_from: dict[str, int] = field(default_factory=dict)
    scalars: dict[str, dict[str, Any]] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    held_out: dict[str, float] = field(default_factory=dict)
    unchanged: dict[str, str] = field(default_factory=dict)


def calibrate(
    gpu: str, data: Path, out: Path, artifacts: Path | None = None, say: Callable[[str], None] = lambda text: None
) -> CalibrateReport:
    """Write the set at ``artifacts`` (None: the shipped one), adapted to ``gpu``, to ``out``: whole or not at all.

    An estimator that does not surely gain on rows kept aside stays as it was, and the report says so.

    Of more than 256 rows for an estimator so many are drawn. Raises RequestError where the GPU is unknown, the data has
    fewer than 5 rows of it that an estimator reads, or ``out`` cannot be written.
    """
    _check_out(out)
    own_table = table.is_table(data)
    read = None if own_table else dataset.read(data)
    spec = _gpu(gpu, {} if own_table else dataset.read_meta(data).get("devices", {}))
    frame = table.read_table(data, spec).frame if read is None else read
    if own_table:
        say(f"{data}: taken as {table.assumed_words(frame)}")
    source = load_artifacts(None if artifacts is None else str(artifacts))
    if not isinstance(source, ArtifactSet):
        raise RequestError("--artifacts roofline: has no estimators to calibrate; expected a folder of them")
    source.verify()
    measured = frame[frame["gpu"].astype(str) == spec.id]
    if not len(measured):
        raise RequestError(f"--data {str(data)!r} has no row of {spec.id}: expected {FEWEST} or more")
    measured = measured.reset_index(drop=True)
    keep_apart(measured, f"{data}, rows of {spec.id}", {spec.id: spec}, say)
    measured = measured[(measured["flag"].astype(str) == "").to_numpy() | is_probe(measured)].reset_index(drop=True)
    read_digest = dataset.digest(measured)
    keep_tables_apart(measured, {spec.id: spec}, say)
    faulty = measured["flag"].astype(str).isin(TABLE_FLAGS).to_numpy()
    kept_apart = {str(flag): int(n) for flag, n in measured["flag"][faulty].astype(str).value_counts().items()}
    measured = measured[~faulty].reset_index(drop=True)
    report = CalibrateReport(out, spec.id)
    used = _choose(source, measured, spec, report, data)
    total = sum(report.rows.values())
    drawn_out = sum(report.drawn_from.values()) - sum(report.rows[folder] for folder in report.drawn_from)
    report.unused_rows = len(measured) - total - drawn_out
    fits: dict[str, Fitted] = {}
    for folder, rows in used.items():
        manifest = source.member_manifest(folder)
        weights = dict(read_weights(source.path / folder, manifest))
        calibrated = adapt.calibrated(FITS[str(manifest["kind"])].trials, rows, spec, manifest, weights)
        if not calibrated.gained:
            report.unchanged[folder] = (
                f"{len(rows):,} rows, which do not surely help: error of rows kept aside"
                f" {calibrated.before:.1f} % before, {calibrated.held_out:.1f} % after"
            )
            continue
        fits[folder] = calibrated
        report.scalars[folder], report.before[folder], report.after[folder], report.held_out[folder] = (
            calibrated.scalars, calibrated.before, calibrated.after, calibrated.held_out,
        )  # fmt: skip
    total = sum(report.rows[folder] for folder in fits)
    about = {"gpu": spec.id, "file": data.name, "rows": total, "sha256": read_digest, "from": source.name}
    if kept_apart:
        about["kept_apart"] = kept_apart
    _write(source, fits, about, out)
    return report


def _choose(
    source: ArtifactSet, measured: Frame, gpu: GPUSpec, report: CalibrateReport, data: Path
) -> dict[str, Frame]:  # fmt: skip
    """The rows of each estimator that has enough; the report says why the others stay. RequestError as `calibrate`."""
    used: dict[str, Frame] = {}
    libraries = measured[~is_probe(measured)].reset_index(drop=True)
    for folder in source.folders():
        manifest = source.member_manifest(folder)
        fit = FITS.get(str(manifest["kind"]))
        seen = measured if fit and fit.tiles else libraries
        rows = seen[fit.rows(seen, gpu)].reset_index(drop=True) if fit else measured.iloc[:0]
        report.rows[folder] = len(rows)
        probes = int(is_probe(rows).sum())
        if fit is None:
            report.unchanged[folder] = "has no scalars of a GPU: not calibrated"
        elif not len(rows):
            report.unchanged[folder] = f"no {fit.reads} rows in the data"
        elif probes == len(rows) and gpu.id in manifest["devices"]:
            report.unchanged[folder] = (
                f"{probes} tile probes: {gpu.id} was measured with its libraries, expected rows of them"
            )
            report.rows[folder] = 0
        elif len(rows) < fit.fewest:
            report.unchanged[folder] = f"{len(rows)} {fit.reads} rows: expected {fit.fewest} or more"
            report.rows[folder] = 0
        else:
            used[folder] = rows
            if len(rows) - probes > MOST:
                report.drawn_from[folder] = len(rows)
                used[folder] = drawn(rows, MOST)
                report.rows[folder] = len(used[folder])
    total = sum(report.rows.values())
    if total < FEWEST:
        few = "; ".join(why for why in report.unchanged.values() if "expected" in why)
        raise RequestError(
            f"--data {str(data)!r} has {total} rows of {gpu.id} to calibrate with: expected {FEWEST} or more"
            f"{f' ({few})' if few else ''}; measure a few more"
        )
    return used


#: What tells kinds of rows apart, which get equal parts of what is drawn.
_KINDS = ("op", "dtype", "quant", "framework", "kind", "layout", "phase")


def drawn(rows: Frame, count: int) -> Frame:
    """``count`` of the rows and all tile probes: of each kind equal parts, spread over FLOPs and FLOP a byte, as
    `microbench plan --calibration` plans them; the same rows every time."""
    probes = is_probe(rows)
    kinds: dict[tuple[str, ...], list[int]] = {}
    columns = [texts(rows, name) for name in _KINDS]
    for at in np.flatnonzero(~probes).tolist():
        kinds.setdefault(tuple(str(column[at]) for column in columns), []).append(at)
    kept, left = [*np.flatnonzero(probes).tolist()], count
    for place, of_kind in enumerate(sorted(kinds.values(), key=len)):  # what a small kind leaves goes to the larger
        share = left // (len(kinds) - place)
        ops = dataset.ops_of(rows.iloc[of_kind])
        flops = np.log([max(op.flops(), 1.0) for op in ops])
        groups = cells(flops, flops - np.log([max(op.bytes_moved(), 1.0) for op in ops]), share)
        picked = one_of_each(groups, 0).tolist() if groups else []
        kept, left = kept + [of_kind[i] for i in picked], left - len(picked)
    return rows.iloc[sorted(kept)].reset_index(drop=True)


def _write(source: ArtifactSet, fits: Mapping[str, Fitted], about: dict[str, Any], out: Path) -> None:
    """The set's own files copied, calibrated estimators in place of theirs; rows that were held out stay behind."""
    with published(out) as temporary:
        for folder in source.folders():
            shutil.copytree(source.path / folder, temporary / folder)
        if (source.path / "gpus").is_dir():
            shutil.copytree(source.path / "gpus", temporary / "gpus")
        for folder, fit in fits.items():
            write_estimator(temporary / folder, {**fit.manifest, "calibration": about}, fit.weights)
        manifest = dict(source.manifest)
        manifest["name"] = out.name
        if fits:
            manifest["calibrated"] = [e for e in manifest["calibrated"] if e["gpu"] != about["gpu"]] + [about]
        (temporary / "manifest.json").write_text(as_manifest(manifest), encoding="utf-8")
        text = f"# Estimators `{out.name}`\n\n`{source.name}`, "
        if fits:
            text += (
                f"calibrated by `tilecast calibrate` to {about['gpu']} with {about['rows']} rows (SHA-256"
                f" `{about['sha256'][:16]}`): {', '.join(fits)}. The rest is as it was.\n"
            )
        else:
            text += f"as it was: `tilecast calibrate` tried rows of {about['gpu']}, and no estimator surely gained.\n"
        (temporary / "README.md").write_text(text, encoding="utf-8")


# ------------------------------------------------------------------------------------------------------- memory-bound


def memory_rows(frame: Frame, gpu: GPUSpec) -> npt.NDArray[np.bool_]:
    """Which rows calibrate the memory-bound operators."""
    keep = frame["op"].astype(str).isin(MEMORY_OPS) & (frame["dtype"].astype(str) == "fp32")
    return np.asarray(keep & (frame["framework"].astype(str) == EAGER.kernels), dtype=bool)


class MemoryTrial(Trial):
    """Rows of memory-bound operators: the GPU's bandwidth share, and for each operator the host's times."""

    def __init__(self, rows: Frame, board: AdaptedArtifact) -> None:
        gpu = board.gpu
        self._base = MemoryBound.from_artifact(board.base, board.weights)
        names, ops = rows["op"].astype(str).to_numpy(), dataset.ops_of(rows)
        self._present = [op for op in MEMORY_OPS if (names == op).any()]
        parts = [np.flatnonzero(names == op) for op in self._present]
        self._traffic = [stream.traffic_of(make_batch(ops[i[0]].family, [ops[j] for j in i]), gpu) for i in parts]
        order = np.concatenate(parts)
        self._measured = rows["latency_ms"].to_numpy(dtype=np.float64)[order] * 1e-3
        self._eager = (rows["protocol"].astype(str) == "eager_events").to_numpy()[order]
        self._call = np.concatenate([np.full(len(i), j) for j, i in enumerate(parts)])
        self._share, self._hold = self._base.board(gpu)
        self._sheet = Device.sheet(gpu, gpu.vector_flops("fp32"))
        hosts = [overheads(board.base["eager_overhead_s"].get(op, {}), gpu.id) for op in self._present]
        self._count = count = len(self._present)
        start = np.log([self._share, *(h for h, _ in hosts), *(a for _, a in hosts)])
        spread = np.array([SHARE_SPREAD, *count * [HOST_SPREAD], *count * [AFTER_SPREAD]])
        errors = adapt.row_errors(rows)[order]
        self.question = Question(start, spread, adapt.rows_alone(self._gaps), noise=ROW_ERROR, row_errors=errors)

    def _gaps(self, x: FloatArray) -> FloatArray:
        device = self._sheet.sustaining(bandwidth=float(np.exp(x[0])))
        kernel = np.concatenate([stream.kernel_seconds(t, device, self._hold, self._base.const) for t in self._traffic])
        host, after = np.exp(x[1 : 1 + self._count])[self._call], np.exp(x[1 + self._count :])[self._call]
        return np.log(self._measured / eager(kernel, host, after, self._eager))

    def before(self) -> FloatArray:
        """By what its memory and architecture say, or its earlier rows."""
        return -self._gaps(self.question.start)

    def keep(self, board: AdaptedArtifact, x: FloatArray, told: Told | None, share: float) -> FloatArray:
        """The GPU's scalars."""
        bandwidth_share = min(float(np.exp(x[0])), 1.0)
        overhead = {}
        for i, op in enumerate(self._present):
            host, after = float(np.exp(x[1 + i])), float(np.exp(x[1 + self._count + i]))
            overhead[op] = [host, max(host - after, 1e-6)]
        board.scalars |= {"bandwidth_share": bandwidth_share, "bandwidth_share_before": self._share, "host_s": overhead}
        about = {"board": [bandwidth_share, self._hold], "eager_overhead_s": overhead}
        board.manifest["calibrated"][board.gpu.id] = about
        return -self._gaps(x)


@dataclass(frozen=True, slots=True)
class Calibration:
    """How a kind of estimator is calibrated: which rows it reads, and what these are asked."""

    reads: str
    rows: Callable[[Frame, GPUSpec], npt.NDArray[np.bool_]]
    trials: Callable[[Frame, AdaptedArtifact], Iterable[Trial]]
    fewest: int = FEWEST
    tiles: bool = False  # whether it learns from tile probes, too


#: kind of estimator -> its calibration
FITS = {
    "tile_gemm": Calibration("fp32 GEMM", gemm_rows, lambda *asked: [GemmTrial(*asked)]),
    "memory_bound": Calibration(
        "fp32 element-wise, softmax or norm", memory_rows, lambda *asked: [MemoryTrial(*asked)]
    ),
    "serving_gemm": Calibration(
        "bf16, 8- or 4-bit GEMM", serving.gemm_rows, serving.gemm_trials, FEWEST_SERVING, tiles=True
    ),
    "serving_attention": Calibration(
        "bf16 or fp8 attention", serving.attention_rows, serving.attention_trials, FEWEST_SERVING
    ),
    "serving_moe": Calibration("serving MoE", serving.moe_rows, serving.moe_trials, FEWEST_SERVING),
    "collective": Calibration("PCIe collective", collective_rows, system_trials, FEWEST_COLLECTIVE),
}
