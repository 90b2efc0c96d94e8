"""The fp32 GEMM kernels of cuBLAS on the CUDA cores: their tiles and split-K factors, and the time one takes.

For each candidate (tile, split-K factor) of the kernel library that serves a GPU:

    busiest   = SMs' share of the blocks, wave quantization softened: w + q (ceil(w) - w), at least 1
    compute_s = busiest x 2 tm tn (K / splits + prologue) / (peak / SMs x efficiency(tile) x u(GPU)) x lonely-block term
    memory_s  = (operand bytes, those read again by later waves included, + (2 splits - 1) output bytes) / bandwidth
    kernel_s  = (compute_s^p + memory_s^p)^(1/p) + write-out + a fixed time, + a fixed time for split-K

A product with a matrix by one row, or by few rows that lie along K, needs no tile: a kernel streams the matrix by as
cuBLAS's gemv and gemmSN kernels do, and takes its bytes (`streamed_seconds`). It runs where it is the faster.

A GPU whose library nobody measured gets the mean of the other libraries' kernels (`consensus`, `expected_seconds`).

Arrays: n operators, c candidates; what depends on both is of shape (n, c).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.files.records import dataclass, replace
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.device import Device
from predictor.kernels.gemm.core import CoreTime, Shapes
from predictor.kernels.named import Named, constant, p_norm
from predictor.ops.roofline import FloatArray
from predictor.ops.tiling import TileGrid

IntArray = npt.NDArray[np.int64]

BYTES = 4.0  # of an fp32 element, by definition

#: Generations of cuBLAS' fp32 kernels, by the architecture they were written for. Newer GPUs run the last one's.
LIBRARIES = ("maxwell", "volta", "ampere")
_LIBRARY = {"kepler": 0, "maxwell": 0, "pascal": 0, "volta": 1, "turing": 1}
#: How surely a library that nobody measured is taken to pick its fastest kernel: the exponent of a candidate's odds in
#: its time. Chosen by leaving one library out at a time (benchmarks/results/accuracy-2026-11-23.md).
UNSEEN_SHARPNESS = 10.0
#: BLAS layouts that pick different kernels: "tn" (a linear layer forward), everything else ("nn").
LAYOUTS = ("tn", "nn")


@dataclass(frozen=True, slots=True)
class KernelTile:
    """A kernel's tile: ``n`` along the output's columns, ``m`` along its rows; ``resident`` blocks fit an SM."""

    name: str
    n: int
    m: int
    resident: int


#: Tiles of cuBLAS' sgemm kernels, named as in the kernel's name; "s": sliced, four warps share one tile's K loop.
#: Source: the kernels that NeuSight's tables name. How many blocks fit an SM was chosen by hand, not from data.
TILES: tuple[KernelTile, ...] = (
    KernelTile("128x128", 128, 128, 2), KernelTile("128x64", 128, 64, 4), KernelTile("64x64", 64, 64, 6),
    KernelTile("128x32", 128, 32, 5), KernelTile("32x128", 32, 128, 5), KernelTile("128x32s", 128, 32, 4),
    KernelTile("64x32s", 64, 32, 6), KernelTile("32x32s", 32, 32, 8),
)  # fmt: skip
#: Split-K factors; a measured one counts as the nearest. Chosen by hand, not from data: NeuSight's grids show others,
#: too.
SPLITS = (1, 2, 3, 4, 6, 9, 16)
#: Elements of K that one turn of a kernel's main loop takes: the 8 of sgemm_128x128x8 (source: the kernels of P4 in
#: NeuSight's tables).
K_STEP = 8.0
#: Rows of this many elements are half way to costing the full `Constants.narrow`: short ones share DRAM pages. Chosen
#: by hand, not from data.
LONG_K = 256.0
#: Two operands of this many bytes (their harmonic mean) are half way to costing the full `Constants.strain`. Pascal's
#: kernels run at a third of their rate far beyond it, however K and the output share it: too many pages for the TLB.
#: Chosen by looking at P100's linear layers (benchmarks/results/accuracy-2026-11-23.md, operands far beyond 300 MB).
REACH = 3e8
#: Rows that a streaming kernel takes at most, of a matrix along K, and the elements that K is a multiple of then. One
#: row (or column) it takes however operands lie. Source: cuBLAS's gemmSN_TN_kernel, as recalled (unverified). Products
#: of 2 to 16 rows in NeuSight's tables ran tiles, with a K that is no multiple of 4; none there has one row.
STREAMED_ROWS, _STREAMED_K = 4.0, 4.0
#: Threads that a column of the matrix keeps loading, 16 bytes each. Source: gemv2T_kernel_val<..., 128, 16, 4, 4, ...>
#: and gemmSN_TN_kernel<float, 128, ...>, as profilers name them (unverified).
_STREAMING_THREADS, _VECTOR_BYTES = 128.0, 16.0
#: Threads that an SM holds at a time. Source: CUDA Programming Guide, compute capabilities 6.0 to 8.0, 9.0 and 10.0;
#: others hold three quarters or half.
_SM_THREADS = 2048.0
#: A split keeps at least this much of K to itself. Chosen by hand, not from data: in NeuSight's tables 9 in 10 keep at
#: least 184.
MIN_SPLIT_K = 256


_NAMES, _FACTORS = tuple(tile.name for tile in TILES), tuple(map(str, SPLITS))


@dataclass(frozen=True, slots=True, eq=False)
class Constants(Named):
    """Those of one kernel library, or of one board."""

    efficiency: FloatArray = constant("share", "of an SM's peak in a main loop; 0: no such kernel", LAYOUTS, _NAMES)
    penalty: FloatArray = constant("", "on a tile's time when cuBLAS' choice is imitated", LAYOUTS, _NAMES)
    split_penalty: FloatArray = constant("", "the same for split-K factors", LAYOUTS, _FACTORS)
    prologue: FloatArray = constant("", "extra K elements for filling a tile's pipeline and writing out", _NAMES)
    lonely: FloatArray = constant("share", "extra time where an SM holds one block only", _NAMES)
    unaligned: float = constant("share", "extra time where K is no multiple of 4")
    reread: float = constant("share", "of what later waves read again that comes from DRAM")
    narrow: float = constant("share", "extra traffic of an operand read along K, 8 elements of a row at a time")
    straddle: float = constant("share", "more of it where K is no multiple of 8, so that 32-byte sectors are cut")
    strain: float = constant("share", "extra time where both operands are far larger than `REACH`")
    memory: float = constant("share", "of the memory bandwidth")
    write_out: float = constant("share", "of C's DRAM time that no compute hides")
    norm: float = constant("", "p of the p-norm")
    quantization: float = constant("share", "q, of wave quantization that is felt")
    fixed_s: float = constant("s", "every kernel")
    split_s: float = constant("s", "every split-K kernel: its second kernel")


@dataclass(frozen=True, slots=True)
class BoardConstants(Named):
    """What a board sustains."""

    sustained: float = constant("share", "u, of the best kernel's rate")
    bandwidth: float = constant("share", "of DRAM's bandwidth that its kernels reach")


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tiles and split-K factors; arrays broadcast against (n, c)."""

    tile_m: FloatArray
    tile_n: FloatArray
    resident: FloatArray
    splits: FloatArray
    efficiency: FloatArray
    prologue: FloatArray
    lonely: FloatArray
    penalty: FloatArray

    def grid(self, shape: Shapes) -> TileGrid:
        """How they cover the products, each of shape (n, c)."""
        return TileGrid.cover(shape.m, shape.n, self.tile_m, self.tile_n, shape.batch)


def products(batch: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray) -> Shapes:
    """fp32 products of such sizes; arrays broadcast against (n, c)."""
    return Shapes(batch, m, n, k, BYTES, BYTES)


def core_time(shape: Shapes, device: Device, const: Constants, cand: Candidates, along_k: Any) -> CoreTime:
    """Seconds of every candidate and of its two parts, each of shape (n, c); ``device`` at the rates that it sustains.

    ``along_k``: 1 where B, too, is stored along K (layout tn). It and the constants that are numbers are one for all,
    or arrays that broadcast against (n, c).
    """
    grid, out = cand.grid(shape), shape.batch * shape.m * shape.n * BYTES
    compute = _compute_seconds(shape, device, const, cand, grid.waves(device.sms, cand.splits))
    operands = _operand_bytes(shape, device, const, cand, along_k, grid)
    memory: FloatArray = (operands + (2.0 * cand.splits - 1.0) * out) / (device.bandwidth * const.memory)
    fixed = const.fixed_s + np.where(cand.splits > 1.0, const.split_s, 0.0)
    total = p_norm(compute, memory, const.norm) + out * (const.write_out / device.bandwidth) + fixed
    return CoreTime(total, compute, memory)


def _operand_bytes(
    shape: Shapes, device: Device, const: Constants, cand: Candidates, along_k: Any, grid: TileGrid
) -> FloatArray:
    """Bytes of A and B from DRAM: once, plus what each wave of blocks reads again where L2 cannot hold both.

    Blocks start along a row of tiles; the blocks of one wave walk K together and share rows of A and columns of B.
    """
    once = (shape.m + shape.n) * shape.k * BYTES
    cut = np.where(shape.k % 8.0 != 0.0, const.straddle, 0.0)
    extra = (const.narrow + cut) * (shape.k / (shape.k + LONG_K))
    strided = (shape.m + shape.n * along_k) * shape.k * (BYTES * extra)
    wave = device.sms * cand.resident
    wide = np.minimum(grid.columns, wave)
    high = np.minimum(np.maximum(wave / wide, 1.0), grid.rows)
    waves = grid.columns * grid.rows / (wide * high)
    reread = waves * (wide * cand.tile_n + high * cand.tile_m) * shape.k * BYTES
    reread = np.where(once > 0.5 * device.l2_bytes, np.maximum(reread - once, 0.0), 0.0)
    result: FloatArray = shape.batch * (once + strided + const.reread * reread)
    return result


def _compute_seconds(shape: Shapes, device: Device, const: Constants, cand: Candidates, waves: Any) -> FloatArray:
    """Time of the SM with most blocks, shape (n, c)."""
    whole = np.ceil(waves)
    busiest = np.maximum(waves + const.quantization * (whole - waves), 1.0)
    steps = np.ceil(shape.k / (K_STEP * cand.splits))  # the main loop takes whole steps
    work = 2.0 * cand.tile_m * cand.tile_n / cand.efficiency * (steps * K_STEP + cand.prologue)
    unaligned = np.where(shape.k % 4.0 != 0.0, 1.0 + const.unaligned, 1.0)
    far = (2.0 * BYTES * shape.k * shape.m * shape.n / (shape.m + shape.n) / REACH) ** 2
    slow = np.where(whole < 2.0, 1.0 + cand.lonely, 1.0) * unaligned * (1.0 + const.strain * (far / (1.0 + far)))
    result: FloatArray = busiest * work * slow * (device.sms / device.peak_flops)
    return result


def streamed_seconds(shape: Shapes, device: Device, fixed_s: float, along_k: bool) -> FloatArray:
    """Seconds of a kernel that streams the larger operand by a few rows of the other, inf where none does; shapes as
    those of ``shape``.

    ``device``: of its bandwidth a stream finds the share ``fed``. Columns too few to keep the memory's latency covered
    (Little's law) get less of it. ``along_k``: both operands lie along K.
    """
    few, many = np.minimum(shape.m, shape.n), np.maximum(shape.m, shape.n)
    taken = (few == 1.0) | ((few <= STREAMED_ROWS) & (shape.k % _STREAMED_K == 0.0) & along_k)
    moved = shape.batch * ((shape.m + shape.n) * shape.k + shape.m * shape.n) * BYTES
    a_column = np.minimum(_STREAMING_THREADS, np.ceil(shape.k * BYTES / _VECTOR_BYTES))
    threads = np.minimum(shape.batch * many * a_column, device.sms * _SM_THREADS)
    covered = threads * _VECTOR_BYTES / device.memory_latency_s
    seconds = fixed_s + device.memory_latency_s + moved / np.minimum(device.bandwidth * device.fed, covered)
    return np.where(taken, seconds, np.inf)


def library_of(gpu: GPUSpec) -> int:
    """Index into `LIBRARIES` of the kernels that were written for ``gpu``, or last before it.

    Whether its library picks among them as others do, rows alone tell (`TileGemm.measured`).
    """
    return _LIBRARY.get(gpu.architecture, len(LIBRARIES) - 1)


@lru_cache(maxsize=1)
def all_candidates() -> tuple[IntArray, FloatArray]:
    """Every (tile, split) pair: tile index and split factor, both of shape (c,)."""
    tiles = np.repeat(np.arange(len(TILES)), len(SPLITS))
    return tiles, np.tile(np.array(SPLITS, dtype=np.float64), len(TILES))


def split_indices(splits: FloatArray) -> IntArray:
    """Index into `SPLITS` of the nearest factor (by ratio)."""
    ratio = np.log(np.array(SPLITS))[None, :] - np.log(splits)[:, None]
    result: IntArray = np.abs(ratio).argmin(axis=1)
    return result


def candidates(
    const: Constants, rate: FloatArray, tiles: IntArray, splits: FloatArray, penalty: FloatArray | float = 1.0
) -> Candidates:
    """Candidates from tile indices, split factors and main-loop efficiencies of one shape."""
    return Candidates(
        np.array([t.m for t in TILES], dtype=np.float64)[tiles],
        np.array([t.n for t in TILES], dtype=np.float64)[tiles],
        np.array([t.resident for t in TILES], dtype=np.float64)[tiles],
        splits, rate, const.prologue[tiles], const.lonely[tiles], np.asarray(penalty),
    )  # fmt: skip


def of_library(const: Constants, layout: int) -> Candidates:
    """What a library picks among in a layout; ``len(LAYOUTS)`` stands for kernels of either.

    Whether K is split hangs on the batch, not on the layout: the rows of layout nn are batched products, of which none
    splits it. What is not batched splits K as linear layers do.
    """
    either = layout == len(LAYOUTS) or not const.efficiency[layout].any()
    rate = const.efficiency.max(axis=0) if either else const.efficiency[layout]
    tile_penalty = const.penalty.min(axis=0) if either else const.penalty[layout]
    split_penalty = const.split_penalty[0 if either else layout]
    tiles, splits = all_candidates()
    keep = rate[tiles] > 0.0
    tiles, splits = tiles[keep], splits[keep]
    return candidates(const, rate[tiles], tiles, splits, tile_penalty[tiles] * split_penalty[split_indices(splits)])


def allowed(shape: Shapes, splits: FloatArray) -> npt.NDArray[np.bool_]:
    """Whether the products keep enough of K for such split factors, arrays that broadcast."""
    result: npt.NDArray[np.bool_] = (splits == 1.0) | (shape.k >= MIN_SPLIT_K * splits)
    return result


def nearest_library(measured: npt.NDArray[np.bool_], library: int) -> int:
    """``library`` where it is one of the ``measured`` (libraries,), else the nearest of them, the newer of two."""
    known = np.nonzero(measured)[0][::-1]
    return int(known[np.abs(known - library).argmin()])


def consensus(measured: Sequence[Constants], nearest: Constants) -> Constants:
    """A library that nobody measured: kernels and split factors as the ``measured`` ones have them, by geometric means,
    the rest as the ``nearest`` of these.

    A tile's penalty is a library's own habit and does not carry over: all 1.
    """
    efficiency = np.array([const.efficiency for const in measured])
    ran = efficiency > 0.0
    total = np.log(np.where(ran, efficiency, 1.0)).sum(axis=0)
    rates = np.where(ran.any(axis=0), np.exp(total / np.maximum(ran.sum(axis=0), 1)), 0.0)
    splits = np.exp(np.log(np.array([const.split_penalty for const in measured])).mean(axis=0))
    return replace(nearest, efficiency=rates, penalty=np.ones_like(rates), split_penalty=splits)


def expected_seconds(seconds: FloatArray, score: FloatArray, sharpness: float) -> FloatArray:
    """Geometric mean of candidates' times, each by the logit's probability that it is the one picked, shape (n,).

    ``score`` (n, c) is time x penalty, inf where a candidate is not allowed.
    """
    share = (score.min(axis=1, keepdims=True) / score) ** sharpness
    result: FloatArray = np.exp((share * np.log(seconds)).sum(axis=1) / share.sum(axis=1))
    return result


def layout_indices(ops: tuple[Any, ...]) -> IntArray:
    """Kernels that serve each Gemm: a batched product 1, a linear layer in "tn" 0, one stored otherwise either (2)."""
    both = len(LAYOUTS)
    return np.array([1 if op.kind == "bmm" else 0 if op.layout == "tn" else both for op in ops], dtype=np.int64)


def features(columns: Mapping[str, FloatArray], layouts: IntArray) -> FloatArray:
    """What a calibration's residual works on, (n, 5): log of output elements, aspect, K and batch; the layout (0: tn,
    1: nn, as which a layer of either counts)."""
    b, m, n, k = (np.log(columns[c]) for c in ("batch", "m", "n", "k"))
    return np.stack([b + m + n, m - n, k, b, np.minimum(layouts, 1)], axis=1)
