"""Estimators of serving kernels, adapted to one GPU by a few of its rows (16 to 256).

The constants of the core lie from what the set says of the GPU as far apart as they do among measured GPUs. The trees
that answered before stay as far as the rows bear them out (`predictor.kernels.fitting.adapt`); GEMM on a GPU that no
measured board stands in for mixes the trees of all measured ones: the rows say whose kernels it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from predictor import engines
from predictor.data.frame import Frame, numbers, texts
from predictor.data.sampling import cells, one_of_each, spread_out
from predictor.data.schema import CUDA_GRAPH, ROTATING
from predictor.engines import EAGER
from predictor.errors import RequestError
from predictor.files.records import replace
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.attention.estimator import DECODE, PREFILL
from predictor.kernels.device import Device, describe_device
from predictor.kernels.fitting import adapt
from predictor.kernels.fitting.adapt import AdaptedArtifact, IntArray, Question, RowsView, Told, Trial, Weights
from predictor.kernels.fitting.serving import ATTENTION, GEMM, MOE, Family
from predictor.kernels.fitting.serving_rows import ROW_DTYPES, VariantRows, expressible, hot
from predictor.kernels.gaussian import Adapted, Process
from predictor.kernels.gemm.core import Constants
from predictor.kernels.gemm.tiles import Taught, gaps, is_probe, shared_rate, teach, tile_parts
from predictor.kernels.interval import LATENT
from predictor.kernels.named import Named
from predictor.kernels.residual import ANY_GPU, SHARED, Corrections
from predictor.ops.roofline import FloatArray

BoolArray = npt.NDArray[np.bool_]

#: A call that takes longer does not show the host's time of launching it: chosen by hand, not from data.
ABOVE_HOST_S = 50e-6
#: dtypes whose tile probes tell of the products that this estimator answers for.
TILE_DTYPES = ("bf16", "fp16", "tf32", *ROW_DTYPES[1:])
#: What follows was chosen by hand, not from data, up to the next comment of its own.
ABSENT = {"kv_dtype": "", "window": np.nan}  # columns that a file of plain kernels need not have
USUAL_SPREAD = 0.3  # standard deviation of the log of a constant that fewer than two GPUs have
LEAST_SPREAD = 0.08  # standard deviation of the log of a constant among GPUs is taken as at least this
CARRIED = 0.5  # of what a board's rows say of its own table, what a measured sibling takes over: the software's half
MIXED = ("serving_gemm",)  # estimators whose calibration mixes the trees of measured GPUs
#: Share of the mean of measured GPUs' own trees, each of what its own constants leave, in what tile probes alone tell.
#: Chosen by looking at models/default: each of its boards with its own constants and the trees of other chips has a
#: median error of 7.4 % without trees (mean over boards, libraries, bf16 and fp8), 6.8 % with 0.4 to 0.6, 7.2 % with 1.
OF_OTHERS = 0.5
#: Features that the process works on, by kind of estimator, all logarithms to base 2, and its length in all of them.
#: Both chosen by hand, not from data.
LENGTH = 6.0
POINTS: Mapping[str, tuple[str, ...]] = {
    "serving_gemm": ("log2_m", "log2_n", "log2_k", "log2_compute_over_memory", "log2_tiles_128"),
    "serving_attention": (
        "log2_batch", "log2_kv_heads", "log2_group", "log2_q_len", "log2_kv_len", "log2_head_dim",
        "log2_compute_over_memory",
    ),
    "serving_moe": ("log2_tokens", "log2_hidden", "log2_width", "log2_local_experts", "log2_compute_over_memory"),
}  # fmt: skip


def gemm_trials(rows: Frame, board: AdaptedArtifact) -> Iterator[Trial]:
    """Trials of the GEMM estimator's bf16 and fp8 ``rows``; RequestError without any.

    Rows of tile probes have their part in the constants of a variant. Where it has no other rows, they alone tell them
    (`predictor.kernels.gemm.tiles`), for every library, and its trees are `OF_OTHERS` of the measured GPUs' mean.
    """
    probes, gpu = is_probe(rows), board.gpu
    tiles = {part.kind: part for part in tile_parts(rows[probes], {gpu.id: gpu})} if probes.any() else {}
    if not probes.all():
        yield from trials_of(GEMM, rows[~probes].reset_index(drop=True), board, tiles)
    alone = [part for kind, part in tiles.items() if f"{gpu.id}|{kind}" not in board.manifest["adapted"]]
    yield from [TileTrial(part, board) for part in alone]


#: Parts of a probe's rows, as `adapt.FOLDS`: a search of each takes long. Chosen by hand, not from data.
TILE_FOLDS = 3


class TileTrial(Trial):
    """Rows of tile probes of a variant that has no others."""

    question = Question(np.zeros(0), np.zeros(0), adapt.rows_alone(lambda x: np.zeros(0)))

    def __init__(self, part: VariantRows, board: AdaptedArtifact) -> None:
        self._ask = partial(told_by_tiles, dict(board.manifest), board.weights, gpu=board.gpu)
        self._part, (self._entries, self._taught) = part, self._ask(part=part)

    def held_out(self, told: Told | None) -> FloatArray:
        """Log errors of probes by what the others, two folds of three, teach."""

        def errors(kept: IntArray, out: IntArray) -> FloatArray:
            _, taught = self._ask(part=self._part.take(kept))
            return gaps(self._part.take(out), taught.constants, taught.rate, taught.call_cycles)

        return adapt.in_folds(self._part.size, errors, TILE_FOLDS)

    def constants(self) -> FloatArray:
        """None to be moved: the probes taught them."""
        return self.question.start

    def before(self) -> FloatArray:
        """By the constants from which the probes' set out."""
        return self._taught.before

    def keep(self, board: AdaptedArtifact, x: FloatArray, told: Told | None, share: float) -> FloatArray:
        """What the probes taught."""
        board.manifest |= with_entries(board.manifest, self._entries)
        board.scalars |= {key.split("|", 1)[1]: values for key, values in self._entries["cores"].items()}
        return self._taught.after


#: What is added to the mappings of a manifest, by their names.
Entries = Mapping[str, Mapping[str, Any]]


def with_entries(manifest: Mapping[str, Any], entries: Entries) -> dict[str, Any]:
    """The manifest with more in its mappings."""
    return {**manifest, **{name: {**manifest[name], **more} for name, more in entries.items()}}


def told_by_tiles(
    manifest: Mapping[str, Any], weights: Weights, part: VariantRows, gpu: GPUSpec
) -> tuple[Entries, Taught]:
    """(entries for every library, what was taught): a variant of a GPU by rows of tile probes alone."""
    corrections = _corrections(GEMM, manifest, weights)
    rate, cores, key = shared_rate(manifest["probes"], part.kind), {}, f"{gpu.id}|{part.kind}"
    for runner in corrections.runners(part.kind) or (part.path.split("|")[0],):
        source, start = _start(GEMM, corrections, gpu, replace(part, path=f"{runner}|{part.kind}"))
        taught = teach(_as(source, part, gpu, corrections), cast(Constants, start), rate=rate)
        cores[f"{gpu.id}|{runner}|{part.kind}"] = taught.constants.to_manifest()
    trees = corrections.measured(part.kind) or (f"{ANY_GPU}|{part.kind}",)
    adapted = Adapted(dict.fromkeys(trees, OF_OTHERS / len(trees)), 0.0, (), Process.unmeasured(np.zeros(0)))
    probes = {key: taught.to_manifest(part, 0)}
    return {"cores": cores, "adapted": {key: adapted.to_manifest("")[0]}, "probes": probes}, taught


def gemm_rows(frame: Frame, gpu: GPUSpec) -> BoolArray:
    """Which rows calibrate the GEMM: a serving framework's, kernels of PyTorch's linear layers, and tile probes."""
    probes = is_probe(frame) & np.isin(texts(frame, "dtype"), [name for name in TILE_DTYPES if gpu.supports(name)])
    return library_rows(frame, gpu) | probes


#: PyTorch's kernels that stand for a serving framework's prefill from Hopper on: its flash backend is FlashAttention-2,
#: which they do not run there (FlashAttention-3, arXiv:2407.08608; cuDNN's kernel is of that kind).
HOPPER_PREFILL = ("sdpa_cudnn", "fa3")


def library_rows(frame: Frame, gpu: GPUSpec) -> BoolArray:
    """The same without tile probes."""
    in_layout = (texts(frame, "kind") == "linear") & (texts(frame, "layout") == "tn")
    return _rows(frame, gpu, "gemm", _kernel_alone(frame) & in_layout)


def plain_products(frame: Frame, gpu: GPUSpec) -> BoolArray:
    """(n,) True for linear layers of ``gpu`` without a scheme, in any dtype, whose kernel's time stands in the row."""
    linear = (texts(frame, "op") == "gemm") & (texts(frame, "kind") == "linear") & (texts(frame, "layout") == "tn")
    plain = linear & (texts(frame, "quant") == "") & _kernel_alone(frame) & ~is_probe(frame)
    plain[plain] = ~hot(frame[plain], gpu)
    return plain


def attention_rows(frame: Frame, gpu: GPUSpec) -> BoolArray:
    """The same for attention: PyTorch's fused kernel of the GPU's generation counts for prefill; decode in a framework
    reads a paged cache."""
    major = int((gpu.compute_capability or "0").partition(".")[0])
    source = texts(frame, "kernel_source")
    of_kernel = np.isin(source, HOPPER_PREFILL) if major >= 9 else np.char.endswith(source, "flash")
    of_kernel &= numbers(frame, "q_len") > 1
    return _rows(frame, gpu, "attention", _kernel_alone(frame) & of_kernel) & (texts(frame, "phase") != "backward")


def as_served(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Frame:
    """The rows (n or fewer) that a serving estimator is fitted on: a measured library's, and PyTorch's where they tell
    of the library that answers for it, whose name they get; the others of PyTorch teach nothing of an engine."""
    framework, gpu = texts(frame, "framework"), texts(frame, "gpu")
    keep = framework != EAGER.kernels
    for name in np.unique(gpu[~keep]):
        rows = np.flatnonzero((gpu == name) & ~keep)
        some = frame.iloc[rows]
        for reads in (library_rows, attention_rows):
            keep[rows[reads(some, gpus[name])]] = True
    if keep.all() and not (framework == EAGER.kernels).any():
        return frame
    named = np.where(framework == EAGER.kernels, engines.answering(EAGER.kernels).name, framework)
    return frame.assign(framework=named)[keep].reset_index(drop=True)


def moe_rows(frame: Frame, gpu: GPUSpec) -> BoolArray:
    """The same for MoE: a serving framework's alone."""
    return _rows(frame, gpu, "moe", np.zeros(len(frame), dtype=bool))


def _rows(frame: Frame, gpu: GPUSpec, op: str, eager: BoolArray) -> BoolArray:
    framework = texts(frame, "framework")
    supported = np.isin(texts(frame, "dtype"), [name for name in ROW_DTYPES if gpu.supports(name)])
    measured = np.isin(framework, [library.name for library in engines.measured()])
    served = measured | ((framework == EAGER.kernels) & eager)
    read = np.flatnonzero((texts(frame, "op") == op) & supported & served & expressible(frame) & ~is_probe(frame))
    result = np.zeros(len(frame), dtype=bool)
    result[read[~hot(frame.iloc[read], gpu)]] = True
    return result


def _kernel_alone(frame: Frame) -> BoolArray:
    """(n,) True for rows without a flush and without the host's time: replayed graphs, calls far longer than a launch.
    Of those whose weights lay in L2, `hot` says which."""
    long = numbers(frame, "latency_ms") * 1e-3 >= ABOVE_HOST_S
    alone: BoolArray = np.isin(texts(frame, "cache_state"), ["warm", ROTATING]) & (
        (texts(frame, "protocol") == CUDA_GRAPH) | long
    )
    return alone


def trials_of(
    family: Family, rows: Frame, board: AdaptedArtifact, tiles: Mapping[str, VariantRows] = MappingProxyType({})
) -> Iterator[Trial]:
    """A trial for each kind of the family's rows.

    ``tiles``: rows of tile probes by variant, which have their part in the constants.
    PyTorch's rows count as those of the library that answers for it. RequestError where no row is one that it reads.
    """
    gpu = board.gpu
    missing = {name: value for name, value in ABSENT.items() if name not in rows}  # a file without them is whole, too
    alike = {EAGER.kernels: engines.answering(EAGER.kernels).name}
    rows = rows.assign(framework=rows["framework"].astype(str).replace(alike), **missing)
    parts = [part for part in family.parts(rows, {gpu.id: gpu}) if part.size]
    if not parts:
        raise RequestError(f"no row of {gpu.id} that {family.kind} reads: expected bf16 or fp8 of a serving framework")
    cores, paths = board.base["cores"], [f"{gpu.id}|{part.path}" for part in parts]
    board.manifest["calibrated"][gpu.id] = {
        "cores": {path: cores[path] for path in paths if path in cores}, "width": {}, "adapted": [],
        "device": describe_device(gpu, sorted({part.dtype for part in parts})),
    }  # fmt: skip
    corrections = _corrections(family, board.base, board.weights)
    for kind in dict.fromkeys(part.kind for part in parts):
        parts_of_kind = [part for part in parts if part.kind == kind]
        yield KindTrial(family, kind, parts_of_kind, board, corrections, tiles.get(kind))


attention_trials, moe_trials = partial(trials_of, ATTENTION), partial(trials_of, MOE)
calibrate_gemm, calibrate_attention = (partial(adapt.calibrated, trials) for trials in (gemm_trials, attention_trials))


def _classes(family: Family, parts: Sequence[VariantRows]) -> tuple[str, ...]:
    """The classes of operators, as `predictor.kernels.interval` has them, that ``parts`` of one kind are of."""
    if family.kind == ATTENTION.kind:
        return (f"{parts[0].kind.replace('mla_', LATENT)} attention",)
    names = ("linear", "bmm") if family.kind == GEMM.kind else ("moe",)
    return tuple(f"{name}|{part.path.split('|')[-1]}" for part in parts for name in names)


class KindTrial(Trial):
    """Rows of one GPU that one residual answers for, whose constants are those of several frameworks' kernels."""

    def __init__(
        self, family: Family, kind: str, parts: Sequence[VariantRows], board: AdaptedArtifact, corrections: Corrections,
        tiles: VariantRows | None,
    ) -> None:  # fmt: skip
        gpu = board.gpu
        resolved = [_start(family, corrections, gpu, part) for part in parts]
        source, _ = resolved[0]
        self.family, self.starts = family, [start for _, start in resolved]
        self._kind, self._tiles, self._gpu, self._corrections = kind, tiles, gpu, corrections
        self.parts = [_as(name, part, gpu, corrections) for part, (name, _) in zip(parts, resolved, strict=True)]
        #: the devices that trees and process are asked about
        self._shown = [
            corrections.asked_as(name, gpu, part.dtype, part.device)
            for part, (name, _) in zip(self.parts, resolved, strict=True)
        ]
        mixed = source in SHARED and family.kind in MIXED
        self.keys = (f"{source}|{kind}", *(corrections.measured(kind) if mixed else ()))
        self.shares, self.doubt = adapt.TRUST, adapt.DOUBT_MEASURED if source == gpu.id else adapt.DOUBT
        self._asked = [self.family.at_knots(part, corrections.knots(self.keys[0])) for part in self.parts]
        self.columns = tuple(self.family.features.index(name) for name in POINTS[self.family.kind])
        self.spreads = [spread(board.base, part.path, start) for part, start in zip(parts, self.starts, strict=True)]
        logs = np.concatenate([start.logs() for start in self.starts])
        self._ends = np.cumsum([len(block) for block in self.spreads])[:-1]
        lengths = np.full(len(self.columns), LENGTH)
        errors = np.concatenate([np.broadcast_to(part.log_error, part.size) for part in self.parts])
        self.question = Question(logs, np.concatenate(self.spreads), self.view, lengths, row_errors=errors)

    def constants(self) -> FloatArray:
        """What the rows say of the constants, rows of tile probes among them."""
        if self._tiles is None:
            return super().constants()
        taught = [
            teach(replace(self._tiles, device=part.device), cast(Constants, start), part, apart)
            for part, start, apart in zip(self.parts, self.starts, self.spreads, strict=True)
        ]
        self._of_tiles = taught[-1].to_manifest(self._tiles, sum(part.size for part in self.parts))
        return np.concatenate([taught_kind.constants.logs() for taught_kind in taught])

    def keep(self, board: AdaptedArtifact, x: FloatArray, told: Told | None, share: float) -> FloatArray:
        """The GPU's constants and residual, and what measured siblings take over of it."""
        assert told is not None
        gpu, kind, first, base = self._gpu, self._kind, self.before(), board.base
        for part, constants in zip(self.parts, self.named(x), strict=True):
            board.manifest["cores"][f"{gpu.id}|{part.path}"] = board.scalars[part.path] = constants.to_manifest()
        if self._tiles is not None:
            board.manifest["probes"][f"{gpu.id}|{kind}"] = self._of_tiles
        held_out = (1.0 - share) * first + share * told.held_out
        widths = dict.fromkeys(_classes(self.family, self.parts), adapt.width(held_out))
        board.manifest["calibrated"][gpu.id]["width"] |= widths
        trees = {self.keys[0]: self._corrections.strength(self.keys[0], gpu)}
        kin = self._corrections.measured_siblings(gpu) if share else ()
        keys = {f"{name}|{kind}": name for name in kin}
        moved = {key: name for key, name in keys.items() if key in base["boosters"] and key not in base["adapted"]}
        own_trees = {f"{gpu.id}|{kind}", *moved}  # as trained: what answers under these keys moves
        board.adapt(gpu.id, kind, told.residual.mixed(share, trees), own_trees)
        for key, sibling in moved.items():
            common = adapt.explain(replace(self.question, view=self.as_it_was), x, (), self.columns).residual
            half = replace(common.mixed(CARRIED * share, {}), shares={key: 1.0})
            board.adapt(sibling, kind, half, own_trees)
        return (1.0 - share) * first + share * told.errors

    def named(self, x: FloatArray) -> list[Named]:
        """Constants of each part."""
        return [self.starts[0].from_logs(logs) for logs in np.split(x, self._ends)]

    def gaps(self, x: FloatArray) -> FloatArray:
        """log(measured / core) of all rows."""
        asked = zip(self.parts, self._asked, self.named(x), strict=True)
        return np.concatenate([
            part.log_latency - joined(np.log(self.family.core(near, constants).total))
            for part, (near, joined), constants in asked
        ])  # fmt: skip

    def view(self, x: FloatArray) -> RowsView:
        """The rows, the trees as the constants ``x`` have them answer."""
        at, trees = [], []
        for part, (near, joined), constants, shown in zip(
            self.parts, self._asked, self.named(x), self._shown, strict=True
        ):
            at.append(self._table(part, constants, shown)[:, self.columns])
            table = self._table(near, constants, shown)
            said = [joined(self._corrections.said(key, self._gpu, table, whole=True)) for key in self.keys]
            trees.append(np.stack(said, axis=1))
        table = np.concatenate(at)
        return RowsView(self.gaps, table, np.concatenate(trees), np.ones(len(table)))

    def as_it_was(self, x: FloatArray) -> RowsView:
        """The rows as errors of the set without them, which no constant moves."""
        gaps, view = -self.before(), self.view(self.question.start)
        return RowsView(lambda x: gaps, view.at, np.zeros((len(gaps), 0)), view.share)

    def before(self) -> FloatArray:
        """Log errors of the set without the rows."""
        said = []
        for (near, joined), constants, shown in zip(self._asked, self.starts, self._shown, strict=True):
            table = self._table(near, constants, shown)
            said.append(joined(self._corrections.said(self.keys[0], self._gpu, table)))
        result: FloatArray = np.concatenate(said) - self.gaps(self.question.start)
        return result

    def _table(self, part: VariantRows, constants: Named, shown: Device) -> FloatArray:
        """The features of rows (n, f), as the trees know them."""
        part = replace(part, device=shown)
        return self.family.describe(part, self.family.core(part, constants))


def _corrections(family: Family, manifest: Mapping[str, Any], weights: Weights) -> Corrections:
    """The constants and trees of an estimator of ``family``."""
    return Corrections(manifest, weights, [type(family.start(kind)) for kind in (PREFILL, DECODE)])


def _as(source: str, part: VariantRows, gpu: GPUSpec, corrections: Corrections) -> VariantRows:
    """A part of ``gpu`` with the scalars that its core has where ``source`` answers."""
    return replace(part, device=corrections.device_as(source, gpu, part.dtype))


def _start(family: Family, corrections: Corrections, gpu: GPUSpec, part: VariantRows) -> tuple[str, Named]:
    """(whose constants, constants) that answer for a part before it is calibrated."""
    framework, *rest = part.path.split("|")
    kernel = family.kernel_of(framework, part, gpu) if family.kernel_of else part.kind
    source, _, values = corrections.resolve(gpu, framework, *rest, kernel=kernel)
    return source, values


def spread(manifest: Mapping[str, Any], path: str, start: Named) -> FloatArray:
    """How far (standard deviation of the log) each constant lies apart among the measured GPUs."""
    measured = [v for k, v in manifest["cores"].items() if k.split("|", 1)[1] == path and k.split("|")[0] not in SHARED]
    logs = [
        start.from_manifest(values, path).logs() for values in measured if start.reads(values)
    ]  # others: another core
    if len(logs) < 2:
        return np.full(len(start.names()), USUAL_SPREAD)
    return np.maximum(np.std(np.array(logs), axis=0), LEAST_SPREAD)


def stratified(rows: Frame, count: int, seed: int, random: bool = False) -> npt.NDArray[np.int64]:
    """Positions of ``count`` GEMM rows, sorted: one of each cell over log FLOPs and arithmetic intensity.

    Of a dozen that ``seed`` draws in a cell, it is the one that tells most; with ``random``, any.
    """
    m, n, k = (rows[name].to_numpy(dtype=float) for name in ("m", "n", "k"))
    flops = np.log(m * n * k)
    groups = cells(flops, flops - np.log(m * n + n * k + m * k), count)
    return one_of_each(groups, seed) if random else np.sort(spread_out(np.log2(np.stack([m, n, k], 1)), groups, seed))
