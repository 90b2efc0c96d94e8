"""Estimators of serving kernels, adapted to one GPU by a few of its rows (16 to 256).

The constants of the core lie from what the set says of the GPU as far apart as they do among measured GPUs. The trees
that answered before stay as far as the rows bear them out (`predictor.training.adapt`); GEMM on a GPU that no measured
board stands in for mixes the trees of all measured ones: the rows say whose kernels it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from predictor import engines
from predictor.engines import EAGER
from predictor.errors import RequestError
from predictor.estimators.cores.gemm import Constants
from predictor.estimators.device import Device, describe_device
from predictor.estimators.gaussian import Adapted, Process
from predictor.estimators.interval import LATENT
from predictor.estimators.named import Named
from predictor.estimators.residual import ANY_GPU, SHARED, Corrections
from predictor.estimators.serving_attention import DECODE, PREFILL
from predictor.hardware.gpu import GPUSpec
from predictor.measurement import CUDA_GRAPH
from predictor.roofline import FloatArray
from predictor.sampling import cells, one_of_each, spread_out
from predictor.training import adapt
from predictor.training.adapt import Fitted, Frame, Question, View, Weights, percent
from predictor.training.fit_serving import ATTENTION, GEMM, MOE, Family
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
            source, start = _start(GEMM, corrections, gpu, replace(part, path=f"{runner}|{part.kind}"))
            taught = teach(_as(source, part, gpu, corrections), cast(Constants, start), rate=rate)
            key = f"{gpu.id}|{runner}|{part.kind}"
            manifest["cores"][key] = scalars[f"{runner}|{part.kind}"] = taught.constants.to_manifest()
        trees = corrections.measured(part.kind) or (f"{ANY_GPU}|{part.kind}",)
        adapted = Adapted(dict.fromkeys(trees, OF_OTHERS / len(trees)), 0.0, (), Process.unmeasured(np.zeros(0)))
        manifest["adapted"][f"{gpu.id}|{part.kind}"], _ = adapted.to_manifest("")
        manifest["probes"][f"{gpu.id}|{part.kind}"] = taught.to_manifest(part, 0)
        errors.append((taught.before, taught.after))
    return manifest, scalars, errors


def gemm_rows(frame: Frame, gpu: GPUSpec) -> BoolArray:
    """Which rows calibrate the GEMM: a serving framework's, kernels of PyTorch's linear layers, and tile probes."""
    probes = is_probe(frame) & np.isin(_text(frame, "dtype"), [name for name in TILE_DTYPES if gpu.supports(name)])
    return library_rows(frame, gpu) | probes


#: PyTorch's kernels that stand for a serving framework's prefill from Hopper on: its flash backend is FlashAttention-2,
#: which they do not run there (FlashAttention-3, arXiv:2407.08608; cuDNN's kernel is of that kind).
HOPPER_PREFILL = ("sdpa_cudnn", "fa3")


def library_rows(frame: Frame, gpu: GPUSpec) -> BoolArray:
    """The same without tile probes."""
    own = (_text(frame, "kind") == "linear") & (_text(frame, "layout") == "tn")
    return _rows(frame, gpu, "gemm", _kernel_alone(frame) & own) & ~is_probe(frame)


def plain_products(frame: Frame) -> BoolArray:
    """(n,) True for linear layers without a scheme, in any dtype, whose kernel's time stands in the row."""
    linear = (_text(frame, "op") == "gemm") & (_text(frame, "kind") == "linear") & (_text(frame, "layout") == "tn")
    return linear & (_text(frame, "quant") == "") & _kernel_alone(frame) & ~is_probe(frame)


def attention_rows(frame: Frame, gpu: GPUSpec) -> BoolArray:
    """The same for attention: PyTorch's fused kernel of the GPU's generation counts for prefill; decode in a framework
    reads a paged cache."""
    major = int((gpu.compute_capability or "0").partition(".")[0])
    source = _text(frame, "kernel_source")
    own = np.isin(source, HOPPER_PREFILL) if major >= 9 else np.char.endswith(source, "flash")
    own &= _number(frame, "q_len") > 1
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
    about: dict[str, Any] = {
        "cores": {path: base["cores"][path] for path in paths if path in base["cores"]}, "width": {}, "adapted": [],
        "device": describe_device(gpu, sorted({part.dtype for part in parts})),
    }  # fmt: skip
    new["calibrated"] = {**base["calibrated"], gpu.id: about}
    scalars: dict[str, Any] = {}
    before, after = [], []
    for kind in dict.fromkeys(part.kind for part in parts):
        own = [part for part in parts if part.kind == kind]
        found = _Kind(family, kind, own, gpu, base, corrections)
        if kind in tiles:
            taught = [
                teach(replace(tiles[kind], device=part.device), cast(Constants, start), part, apart)
                for part, start, apart in zip(found.parts, found.starts, found.spreads, strict=True)
            ]
            of_tiles = taught[-1].to_manifest(tiles[kind], sum(part.size for part in own))
            new["probes"] = {**new["probes"], f"{gpu.id}|{kind}": of_tiles}
            x = np.concatenate([one.constants.logs() for one in taught])
        else:
            x = adapt.constants(found.question)
        told, first = adapt.explain(found.question, x, found.keys, found.columns), found.before()
        measured = found.keys[0] == f"{gpu.id}|{kind}"
        share = adapt.trusted(first, told.held_out, adapt.DOUBT_MEASURED if measured else adapt.DOUBT)
        x = found.question.start + share * (x - found.question.start)
        for part, one in zip(own, found.constants(x), strict=True):
            new["cores"][f"{gpu.id}|{part.path}"] = scalars[part.path] = one.to_manifest()
        held_out = (1.0 - share) * first + share * told.held_out
        about["width"] |= dict.fromkeys(_classes(family, own), adapt.width(held_out))
        before.append(first)
        after.append((1.0 - share) * first + share * told.errors)
        adapted = told.residual.mixed(share, {found.keys[0]: corrections.strength(found.keys[0], gpu)})
        kin = [name for name in corrections.measured_siblings(gpu) if share and f"{name}|{kind}" in base["boosters"]]
        moved = [name for name in kin if f"{name}|{kind}" not in base["adapted"]]
        own_trees = {f"{name}|{kind}" for name in (gpu.id, *moved)}  # as trained: what answers under these keys moves
        _keep(new, kept, base, gpu.id, gpu.id, kind, adapted, own_trees)
        for sibling in moved:
            common = adapt.explain(replace(found.question, view=found.as_it_was), x, (), found.columns).residual
            half = replace(common.mixed(CARRIED * share, {}), shares={f"{sibling}|{kind}": 1.0})
            _keep(new, kept, base, gpu.id, sibling, kind, half, own_trees)
    return Fitted(new, kept, scalars, *(percent(np.exp(np.concatenate(e)), np.ones(1)) for e in (before, after)))


calibrate_attention, calibrate_moe = partial(calibrate, ATTENTION), partial(calibrate, MOE)


def _classes(family: Family, parts: Sequence[Part]) -> tuple[str, ...]:
    """The classes of operators, as `predictor.estimators.interval` has them, that ``parts`` of one kind are of."""
    if family.kind == ATTENTION.kind:
        return (f"{parts[0].kind.replace('mla_', LATENT)} attention",)
    names = ("linear", "bmm") if family.kind == GEMM.kind else ("moe",)
    return tuple(f"{name}|{part.path.split('|')[-1]}" for part in parts for name in names)


def _keep(
    new: dict[str, Any], kept: Weights, base: Mapping[str, Any], calibrated: str, gpu: str, kind: str, adapted: Adapted,
    own_trees: Set[str],
) -> None:  # fmt: skip
    """``adapted`` as what answers for ``gpu``, put there by a calibration of ``calibrated``.

    Trees of measured GPUs under the keys ``own_trees``, which are answered otherwise now, get another name.
    """
    key = f"{gpu}|{kind}"
    shares = {trees + TRAINED * (trees in own_trees): share for trees, share in adapted.shares.items()}
    for trees in own_trees & adapted.shares.keys() & base["boosters"].keys():
        new["boosters"][trees + TRAINED] = base["boosters"][trees]
    adapted = replace(adapted, shares=shares)
    new["adapted"][key], arrays = adapted.to_manifest(f"a_{calibrated}_{gpu}_{kind}_")
    new["calibrated"][calibrated]["adapted"].append(key)
    kept |= arrays


class _Kind:
    """Rows of one GPU that one residual answers for, whose constants are those of several frameworks' kernels."""

    def __init__(
        self, family: Family, kind: str, parts: Sequence[Part], gpu: GPUSpec, manifest: Mapping[str, Any],
        corrections: Corrections,
    ) -> None:  # fmt: skip
        resolved = [_start(family, corrections, gpu, part) for part in parts]
        source, _ = resolved[0]
        self.family, self.starts = family, [start for _, start in resolved]
        self._gpu, self._corrections = gpu, corrections
        self.parts = [_as(name, part, gpu, corrections) for part, (name, _) in zip(parts, resolved, strict=True)]
        #: the devices that trees and process are asked about
        self._shown = [
            corrections.asked_as(name, gpu, part.dtype, part.device)
            for part, (name, _) in zip(self.parts, resolved, strict=True)
        ]
        mixed = source in SHARED and family.kind in MIXED
        self.keys = (f"{source}|{kind}", *(corrections.measured(kind) if mixed else ()))
        self._asked = [self.family.at_knots(part, corrections.knots(self.keys[0])) for part in self.parts]
        self.columns = tuple(self.family.features.index(name) for name in POINTS[self.family.kind])
        self.spreads = [spread(manifest, part.path, start) for part, start in zip(parts, self.starts, strict=True)]
        logs = np.concatenate([start.logs() for start in self.starts])
        self._ends = np.cumsum([len(one) for one in self.spreads])[:-1]
        lengths = np.full(len(self.columns), LENGTH)
        self.question = Question(logs, np.concatenate(self.spreads), self.view, lengths)

    def constants(self, x: FloatArray) -> list[Named]:
        """Of each part."""
        return [self.starts[0].from_logs(logs) for logs in np.split(x, self._ends)]

    def gaps(self, x: FloatArray) -> FloatArray:
        """log(measured / core) of all rows."""
        asked = zip(self.parts, self._asked, self.constants(x), strict=True)
        return np.concatenate([
            part.log_latency - joined(np.log(self.family.core(near, one).total)) for part, (near, joined), one in asked
        ])  # fmt: skip

    def view(self, x: FloatArray) -> View:
        """The rows, the trees as the constants ``x`` have them answer."""
        at, trees = [], []
        for part, (near, joined), one, shown in zip(
            self.parts, self._asked, self.constants(x), self._shown, strict=True
        ):
            at.append(self._table(part, one, shown)[:, self.columns])
            table = self._table(near, one, shown)
            said = [joined(self._corrections.said(key, self._gpu, table, whole=True)) for key in self.keys]
            trees.append(np.stack(said, axis=1))
        table = np.concatenate(at)
        return View(self.gaps, table, np.concatenate(trees), np.ones(len(table)))

    def as_it_was(self, x: FloatArray) -> View:
        """The rows as errors of the set without them, which no constant moves."""
        gaps, view = -self.before(), self.view(self.question.start)
        return View(lambda x: gaps, view.at, np.zeros((len(gaps), 0)), view.share)

    def before(self) -> FloatArray:
        """Log errors of the set without the rows."""
        said = []
        for (near, joined), one, shown in zip(self._asked, self.starts, self._shown, strict=True):
            table = self._table(near, one, shown)
            said.append(joined(self._corrections.said(self.keys[0], self._gpu, table)))
        result: FloatArray = np.concatenate(said) - self.gaps(self.question.start)
        return result

    def _table(self, part: Part, constants: Named, shown: Device) -> FloatArray:
        """The features of rows (n, f), as the trees know them."""
        part = replace(part, device=shown)
        return self.family.describe(part, self.family.core(part, constants))


def _corrections(family: Family, manifest: Mapping[str, Any], weights: Weights) -> Corrections:
    """The constants and trees of an estimator of ``family``."""
    return Corrections(manifest, weights, [type(family.start(kind)) for kind in (PREFILL, DECODE)])


def _as(source: str, part: Part, gpu: GPUSpec, corrections: Corrections) -> Part:
    """A part of ``gpu`` with the scalars that its core has where ``source`` answers."""
    return replace(part, device=corrections.device_as(source, gpu, part.dtype))


def _start(family: Family, corrections: Corrections, gpu: GPUSpec, part: Part) -> tuple[str, Named]:
    """(whose constants, constants) that answer for a part before it is calibrated."""
    framework, *rest = part.path.split("|")
    kernel = family.kernel_of(framework, part, gpu) if family.kernel_of else part.kind
    source, _, values = corrections.resolve(gpu, framework, *rest, kernel=kernel)
    return source, values


def without(manifest: Mapping[str, Any], weights: Weights, gpu: str) -> tuple[dict[str, Any], Weights]:
    """Manifest and arrays without an earlier calibration of ``gpu``; what it was trained on stays."""
    rest, kept = adapt.without(manifest, weights, gpu)
    about = manifest["calibrated"].get(gpu, {"cores": {}, "adapted": []})
    own = {key for key in (*about["adapted"], *manifest["adapted"]) if key.split("|")[0] == gpu}
    own |= set(about["adapted"]).difference(*(other.get("adapted", ()) for other in rest["calibrated"].values()))
    adapted = {key: values for key, values in manifest["adapted"].items() if key not in own}
    cores = dict(manifest["cores"])
    if gpu not in manifest["devices"]:
        cores = {key: values for key, values in cores.items() if key.split("|")[0] != gpu}
    cores |= about["cores"]
    unused = {key + TRAINED for key in own}.difference(*(about["shares"] for about in adapted.values()))
    boosters = {key: about for key, about in manifest["boosters"].items() if key not in unused}
    probes = {key: told for key, told in manifest["probes"].items() if key.split("|")[0] != gpu}
    return {**rest, "cores": cores, "boosters": boosters, "adapted": adapted, "probes": probes}, kept


def spread(manifest: Mapping[str, Any], path: str, start: Named) -> FloatArray:
    """How far (standard deviation of the log) each constant lies apart among the measured GPUs."""
    own = [v for k, v in manifest["cores"].items() if k.split("|", 1)[1] == path and k.split("|")[0] not in SHARED]
    logs = [start.from_manifest(values, path).logs() for values in own if start.reads(values)]  # others: another core
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
