"""Fits the fp32 GEMM estimator (`predictor.kernels.gemm_fp32.estimator`) to measured kernels of known tile.

1. The time of a kernel whose tile and split factor the row names: robust least squares (soft L1) on log latency,
   weighted toward longer rows; those near the host's floor are left out. First on the reference boards (newer kernels,
   HBM: they hold their clock), which give the constants that all GPUs share; then, with those fixed, on other boards
   with HBM, which give those of their own library; then on the rest, which give their own scalars alone: what a small
   memory or a low power limit does to their kernels is not the kernels'. Kernels that no board with HBM ran get what
   such boards' libraries agree on (`tile_transfer`).
2. Which kernel runs: penalties by library and layout (`kernel_choice`).

Rows are drawn by GPU and layout; the same seed gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data.frame import Frame
from predictor.errors import SpecError
from predictor.files.records import dataclass, replace
from predictor.hardware.generation import generation
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.device import Device
from predictor.kernels.fitting.adapt import AFTER_LAUNCH_S, by_call, fitted_rows, launch_s, of_boards, of_rows
from predictor.kernels.fitting.family import Fitted, JointFit, SearchStage, fit, of_cores
from predictor.kernels.fitting.solve import Unknowns
from predictor.kernels.fitting.tables import RowTable
from predictor.kernels.gemm.core import Shapes
from predictor.kernels.gemm_fp32 import core as sgemm
from predictor.kernels.gemm_fp32.estimator import FP32
from predictor.kernels.gemm_fp32.kernel_choice import fit_choice
from predictor.kernels.gemm_fp32.tile_transfer import fill_rates, is_reference, is_steady, power_need, ruled
from predictor.kernels.residual import ANY_GPU

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

ROWS_PER_GROUP = 2500  # rows drawn of a GPU and layout: chosen by hand, not from data
#: A library's kernel is a candidate where it ran in this share of a layout's rows: chosen by hand, not from data.
MIN_SHARE = 0.005
#: Longer K is left out: no model has it, and blocks no longer walk K in step. More splits are left out, too, and the
#: search may try so often. Chosen by hand, not from data: 2 % of NeuSight's rows are longer.
MAX_K, MAX_SPLITS, EVALUATIONS = 32768, 32, 40
#: Rows from this latency on count in full. In shorter runs power control has not yet slowed the clock of a board with a
#: low power limit, and the launch is a part of them. Chosen by hand, not from data.
FULL_WEIGHT_S = 5e-3
#: The host's time of a call is this quantile of its latencies; only rows above this many times it tell of the kernel.
#: Chosen by looking at NeuSight's test tables (benchmarks/results/accuracy-2026-11-23.md, How blind is it).
HOST_QUANTILE = 0.02
ABOVE_HOST = 1.3
#: A kernel's own start and end, which the tables cannot tell from the launch. Chosen by hand, not from data.
FIXED_S = 2e-6
#: Share of the fp32 peak that the best kernel reaches on a board that holds its clock: what u = 1 stands for. Chosen by
#: looking at NeuSight's test tables (benchmarks/results/accuracy-2026-11-23.md: 0.98 gives 5.0 % on the
#: A100-80GB, 0.96 gives 5.9 %).
HELD = 0.98
#: Constants with one value for each kernel library; those that are searched for as shares between 0 and 1.
OF_LIBRARY = ("unaligned", "reread", "narrow", "straddle", "strain")
_SHARES = ("reread", "quantization")
_KERNEL = re.compile(r"sgemm_(\d+)x(\d+)(_sliced)?")


@dataclass
class ProductRows(RowTable):
    """Measured products as arrays of shape (n,)."""

    gpu: IntArray
    library: IntArray
    layout: IntArray
    shape: Shapes
    tile: IntArray  # -1 where the kernel's name gives none
    splits: FloatArray
    seconds: FloatArray
    weight: FloatArray


def read_rows(frame: Frame, gpus: list[GPUSpec]) -> ProductRows:
    """The fp32 PyTorch GEMMs of a measurement frame on ``gpus``."""
    order = {gpu.id: i for i, gpu in enumerate(gpus)}
    rows = fitted_rows(frame, ("gemm",))
    rows = rows[rows["gpu"].isin(list(order))]
    if len(rows) == 0:
        raise SpecError("no fp32 gemm rows to fit: expected op gemm, dtype fp32 on a known GPU")
    number = {c: rows[c].to_numpy(dtype=np.float64) for c in ("batch", "m", "n", "k", "latency_ms")}
    number["batch"] = np.where(np.isnan(number["batch"]), 1.0, number["batch"])
    gpu = rows["gpu"].astype(str).map(order).to_numpy(dtype=np.int64)
    layout = np.where(rows["layout"].astype(str).to_numpy() == "tn", 0, 1).astype(np.int64)
    shape = sgemm.products(*(number[name] for name in ("batch", "m", "n", "k")))
    names = rows["kernel_name"].astype(object).fillna("").astype(str) if "kernel_name" in rows else None
    tile = np.full(len(rows), -1) if names is None else tile_indices(names)
    seconds = number["latency_ms"] * 1e-3
    library = libraries_of(names, gpu, gpus)[gpu]
    return ProductRows(
        gpu, library, layout, shape, tile,
        _splits(rows, tile, shape), seconds, np.sqrt(np.clip(seconds / FULL_WEIGHT_S, 0.02, 1.0)),
    )  # fmt: skip


def libraries_of(names: Any, gpu: IntArray, gpus: list[GPUSpec]) -> IntArray:
    """Index into `LIBRARIES` of each board's kernels, (gpus,): what most of its rows' kernel names (a text Series or
    None) begin with; by architecture where they name none."""
    library = np.array([sgemm.library_of(g) for g in gpus])
    if names is not None:
        named = np.stack([names.str.startswith(library).to_numpy(dtype=bool) for library in sgemm.LIBRARIES])
        for i in range(len(gpus)):
            counts = named[:, gpu == i].sum(axis=1)
            library[i] = counts.argmax() if counts.any() else library[i]
    return library


def tile_indices(names: Any) -> IntArray:
    """Index into `TILES` of each kernel name (a text Series), -1 where it names no tile of them."""
    known = {tile.name: i for i, tile in enumerate(sgemm.TILES)}

    def find(name: str) -> int:
        match = _KERNEL.search(name)
        return known.get(f"{match[1]}x{match[2]}{'s' if match[3] else ''}", -1) if match else -1

    unique = {name: find(name) for name in sorted(set(names))}
    return np.array([unique[name] for name in names], dtype=np.int64)


def _splits(rows: Frame, tile: IntArray, shape: Shapes) -> FloatArray:
    """Split-K factor from the launched grid: blocks over the tiles of the output."""
    if not {"grid_x", "grid_y", "grid_z"} <= set(rows.columns):
        return np.ones(len(rows))
    blocks = np.prod([rows[c].to_numpy(dtype=np.float64) for c in ("grid_x", "grid_y", "grid_z")], axis=0)
    n = np.array([t.n for t in sgemm.TILES])[tile]
    m = np.array([t.m for t in sgemm.TILES])[tile]
    splits = np.round(blocks / (np.ceil(shape.n / n) * np.ceil(shape.m / m) * shape.batch))
    result: FloatArray = np.where(np.isnan(splits), 1.0, np.maximum(splits, 1.0))
    return result


class Parameters(Unknowns):
    """The vector that least squares works on <-> the formula's constants. Positive constants stand as logarithms."""

    def __init__(self, gpus: int, present: npt.NDArray[np.bool_]) -> None:
        tiles, libraries = len(sgemm.TILES), len(sgemm.LIBRARIES)
        self.present = present
        #: By library: factors on the times of tiles, and of split-K factors.
        self.penalties = np.ones(present.shape), np.ones((*present.shape[:2], len(sgemm.SPLITS)))
        start = {
            "efficiency": np.full(int(present.sum()), np.log(0.9)), "prologue": np.full(tiles, np.log(16.0)),
            "lonely": np.full(tiles, np.log(0.2)), "unaligned": np.full(libraries, np.log(0.02)),
            "reread": np.full(libraries, -1.5), "narrow": np.full(libraries, np.log(0.1)),
            "straddle": np.full(libraries, np.log(0.3)), "strain": np.full(libraries, np.log(0.05)),
            "write_out": np.array([np.log(0.1)]),
            "memory": np.array([np.log(0.8)]), "norm": np.array([np.log(2.5)]),
            "quantization": np.array([1.0]), "split_s": np.array([np.log(5e-6)]),
            "u": np.full(gpus, -0.05), "bandwidth": np.zeros(gpus), "after": np.full(gpus, np.log(AFTER_LAUNCH_S)),
        }  # fmt: skip
        super().__init__(start, {"u": 0.05, "efficiency": 0.1, "after": 3.0}, 0.3)

    def efficiency(self, x: FloatArray) -> FloatArray:
        """Of every kernel, (libraries, layouts, tiles)."""
        efficiency = np.zeros(self.present.shape)
        efficiency[self.present] = np.exp(self.split(x)["efficiency"])
        return efficiency

    def constants(self, x: FloatArray, library: Any) -> sgemm.Constants:
        """Those of a library that ``x`` stands for; of rows (n,) of several, what differs between these is (n,), too,
        and the arrays by tile are those of the first library."""
        p = {name: np.exp(values) for name, values in self.split(x).items() if name not in _SHARES}
        p |= {name: _sigmoid(self.split(x)[name]) for name in _SHARES}
        place = library if isinstance(library, int) else 0
        return sgemm.Constants(
            efficiency=self.efficiency(x)[place], penalty=self.penalties[0][place],
            split_penalty=self.penalties[1][place],
            prologue=p["prologue"], lonely=p["lonely"], **{name: p[name][library] for name in OF_LIBRARY},
            memory=float(p["memory"][0]), write_out=float(p["write_out"][0]), norm=float(1.0 + p["norm"][0]),
            quantization=float(p["quantization"][0]), fixed_s=FIXED_S, split_s=float(p["split_s"][0]),
        )  # fmt: skip


def _sigmoid(x: FloatArray) -> FloatArray:
    result: FloatArray = 1.0 / (1.0 + np.exp(-x))
    return result


class TileFit(JointFit):
    """Boards, constants and the rows they are fitted to."""

    most = EVALUATIONS

    def __init__(self, frame: Frame, gpus: Mapping[str, GPUSpec], seed: int) -> None:
        self.gpus, rows = of_boards(read_rows, frame, gpus)
        self.boards = [Device.sheet(g, g.peak_flops("fp32")) for g in self.gpus]
        #: Index into `LIBRARIES` of each board, (gpus,).
        self.libraries: IntArray = np.array([rows.library[rows.gpu == i][0] for i in range(len(self.gpus))])
        present = np.zeros((len(sgemm.LIBRARIES), len(sgemm.LAYOUTS), len(sgemm.TILES)), dtype=bool)
        known = rows.tile >= 0
        counts = np.zeros(present.shape, dtype=np.int64)
        np.add.at(counts, (rows.library[known], rows.layout[known], rows.tile[known]), 1)
        total = np.maximum(counts.sum(axis=2, keepdims=True), 1)
        self.parameters = Parameters(len(self.gpus), (counts > 0) & (counts >= MIN_SHARE * total))
        self.start, self.pull, self.host = self.parameters.start, self.parameters.pull, self._hosts(rows)
        named = known & self.parameters.present[rows.library, rows.layout, rows.tile]
        named &= (rows.shape.k <= MAX_K) & (rows.splits <= MAX_SPLITS)
        named &= rows.seconds > ABOVE_HOST * self.host[rows.gpu, rows.layout]
        rows = rows.take(np.nonzero(named)[0])
        self.rows = rows.take(sample(rows, ROWS_PER_GROUP, seed))

    def _hosts(self, rows: ProductRows) -> FloatArray:
        """What a call takes the host, seen where the kernel is short: a low quantile, of shape (gpus, layouts)."""
        hosts = np.full((len(self.gpus), len(sgemm.LAYOUTS)), 3e-5)
        for g in range(len(self.gpus)):
            for layout in range(len(sgemm.LAYOUTS)):
                seconds = rows.seconds[(rows.gpu == g) & (rows.layout == layout)]
                if len(seconds):
                    hosts[g, layout] = np.quantile(seconds, HOST_QUANTILE)
        return hosts

    def launch(self, x: FloatArray) -> FloatArray:
        """Time from the start of a call to that of its kernel, of shape (gpus, layouts)."""
        return launch_s(self.host, np.exp(self.parameters.split(x)["after"])[:, None])

    def _device(self, gpu: IntArray, x: FloatArray) -> Device:
        """The devices of the rows, each at what ``x`` says that it sustains."""
        part = self.parameters.split(x)
        return of_rows(self.boards, gpu).sustaining(np.exp(part["u"])[gpu], np.exp(part["bandwidth"])[gpu])

    def seconds(self, x: FloatArray, rows: ProductRows, tile: IntArray, splits: FloatArray) -> FloatArray:
        """Measured latency that the formula gives for one chosen candidate a row, launch time included."""
        const = self.parameters.constants(x, rows.library)
        rate = self.parameters.efficiency(x)[rows.library, rows.layout, tile]
        cand = sgemm.candidates(const, np.maximum(rate, 1e-6), tile, splits)
        along_k = (rows.layout == 0).astype(np.float64)
        core = sgemm.core_time(rows.shape, self._device(rows.gpu, x), const, cand, along_k)
        return core.total + self.launch(x)[rows.gpu, rows.layout]

    def choice_times(self, rows: ProductRows) -> FloatArray:
        """log of the measured time that every candidate gives, of shape (n, c); inf where not allowed."""
        tiles, splits = sgemm.all_candidates()
        out = np.full((len(rows.seconds), len(tiles)), np.inf)
        for j, (t, s) in enumerate(zip(tiles, splits, strict=True)):
            present = self.parameters.present[rows.library, rows.layout, t]
            index = np.nonzero(present & sgemm.allowed(rows.shape, s))[0]
            if len(index):
                part = rows.take(index)
                full = np.full(len(index), 1)
                out[index, j] = np.log(self.seconds(self.x, part, full * t, full * s))
        return out

    def _fit_choices(self) -> None:
        """Penalties by library and layout from the kernels that the rows name."""
        rows = self.rows
        tiles, splits = sgemm.all_candidates()
        split_index = sgemm.split_indices(splits)
        times = self.choice_times(rows)
        picked = rows.tile * len(sgemm.SPLITS) + sgemm.split_indices(rows.splits)
        by_tile, by_split = self.parameters.penalties
        for lib in range(len(sgemm.LIBRARIES)):
            for layout in range(len(sgemm.LAYOUTS)):
                chosen = np.nonzero((rows.library == lib) & (rows.layout == layout))[0]
                sizes = (len(sgemm.TILES), len(sgemm.SPLITS))
                choice = fit_choice(times[chosen], picked[chosen], tiles, split_index, sizes)
                by_tile[lib, layout], by_split[lib, layout] = choice.tile, choice.split

    def stages(self) -> Iterator[SearchStage]:
        """Reference boards, then other boards with HBM, then the scalars of the rest (see the module)."""
        reference, steady = is_reference(self.gpus), is_steady(self.gpus)
        p = self.parameters
        taught = np.zeros(p.present.shape, dtype=bool)
        for boards in (reference, steady & ~reference, ~steady):
            part = self.rows.take(np.nonzero(boards[self.rows.gpu])[0])
            if not len(part.seconds):
                continue
            ran = np.zeros(p.present.shape, dtype=bool)
            ran[part.library, part.layout, part.tile] = True
            first = not taught.any()
            libraries = measured_libraries(ran) & ~measured_libraries(taught)
            kernels = ran & ~taught
            if not first and not steady[boards].any():
                self._fill(taught)
                kernels, libraries = np.zeros_like(kernels), np.zeros_like(libraries)
            free = {"efficiency": kernels[p.present], **dict.fromkeys(("u", "bandwidth", "after"), boards)}
            yield SearchStage(
                partial(self.errors, part), p.marks({**free, **dict.fromkeys(OF_LIBRARY, libraries)}, first)
            )
            taught |= ran

    def errors(self, rows: ProductRows, x: FloatArray) -> FloatArray:
        """Weighted log errors of rows whose kernel is named."""
        error: FloatArray = np.log(self.seconds(x, rows, rows.tile, rows.splits)) - np.log(rows.seconds)
        return error * rows.weight / 0.05

    def _fill(self, taught: BoolArray) -> None:
        """Constants of kernels and libraries that are not among the ``taught`` (libraries, layouts, tiles)."""
        p = self.parameters
        part = p.split(self.x)
        rates = np.zeros(p.present.shape)
        rates[p.present] = part["efficiency"]
        part["efficiency"] = fill_rates(rates, taught)[p.present]
        known = measured_libraries(taught)
        nearest = [sgemm.nearest_library(known, library) for library in range(len(known))]
        part |= {name: part[name][nearest] for name in OF_LIBRARY}
        self.x = p.join(part)

    def artifact(self, boosters: Mapping[str, Any]) -> Fitted:
        """A `TileGemm` of the measured boards."""
        self._fit_choices()
        efficiency, part = self.parameters.efficiency(self.x), self.parameters.split(self.x)
        scale = _scale(efficiency, self.rows, is_steady(self.gpus)[self.rows.gpu])
        sustained = ruled(self.gpus, np.exp(part["u"]) * scale[self.libraries, 0, 0])
        boards = zip(self.gpus, sustained.tolist(), np.exp(part["bandwidth"]).tolist(), strict=True)
        cores = {
            f"{ANY_GPU}|{sgemm.LIBRARIES[i]}|{FP32}": replace(
                self.parameters.constants(self.x, i), efficiency=efficiency[i] / scale[i]
            )
            for i in np.unique(self.libraries).tolist()
        }
        return {
            "kind": "tile_gemm", "name": "tile_gemm", "families": ["gemm"], "dtypes": [FP32],
            "gpus": [gpu.id for gpu in self.gpus], "features": ["batch", "m", "n", "k", "layout"],
            **of_cores(cores, {}, boosters),
            "boards": {gpu.id: sgemm.BoardConstants(*shares).to_manifest() for gpu, *shares in boards},
            "power_need": power_need(self.gpus, sustained),
            "libraries": {generation(g): sgemm.LIBRARIES[i] for g, i in zip(self.gpus, self.libraries, strict=True)},
            "eager_overhead_s": by_call(sgemm.LAYOUTS, self.gpus, self.host, self.launch(self.x)),
            "rows": len(self.rows.seconds),
        }, {}  # fmt: skip


def measured_libraries(kernels: BoolArray) -> BoolArray:
    """Which libraries have one of the ``kernels`` (libraries, layouts, tiles), shape (libraries,)."""
    result: BoolArray = np.asarray(kernels.any(axis=(1, 2)))
    return result


def sample(rows: ProductRows, limit: int, seed: int) -> IntArray:
    """Indices of up to ``limit`` rows for each GPU and layout, drawn at random and sorted."""
    random = np.random.default_rng(seed)
    group = rows.gpu * len(sgemm.LAYOUTS) + rows.layout
    drawn = [random.permutation(np.nonzero(group == g)[0])[:limit] for g in np.unique(group)]
    return np.sort(np.concatenate(drawn))


def fit_tile_gemm(frame: Frame, gpus: Mapping[str, GPUSpec], seed: int = 0) -> Fitted:
    """Manifest and weights of a `TileGemm` fitted to the fp32 gemm rows of ``frame`` on the GPUs of ``gpus``.

    ``frame`` is in the measurement schema; rows that it marks as test or flags are left out. Raises SpecError where
    nothing is left.
    """
    return fit(TileFit(frame, gpus, seed), seed)


def _scale(efficiency: FloatArray, rows: ProductRows, steady: npt.NDArray[np.bool_]) -> FloatArray:
    """What makes each library's best kernel reach `HELD` at u = 1, of shape (libraries, 1, 1).

    The best kernel is one that a board with HBM ran (a row of ``steady``), where the library has such a board.
    """
    ran = np.zeros(efficiency.shape, dtype=bool)
    ran[rows.library[steady], rows.layout[steady], rows.tile[steady]] = True
    unknown = ~ran.any(axis=(1, 2), keepdims=True)
    best = np.where(ran | unknown, efficiency, 0.0).max(axis=(1, 2), keepdims=True)
    result: FloatArray = np.where(best > 0.0, best / HELD, 1.0)
    return result
