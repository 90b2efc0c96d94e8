"""The fp32 GEMM kernels of cuBLAS on the CUDA cores: their tiles and split-K factors, and the time one takes.

For each candidate (tile, split-K factor) of the kernel library that serves a GPU:

    busiest   = SMs' share of the blocks, wave quantization softened: w + q (ceil(w) - w), at least 1
    compute_s = busiest x 2 tm tn (K / splits + prologue) / (peak / SMs x efficiency(tile) x u(GPU)) x lonely-block term
    memory_s  = (operand bytes, those read again by later waves included, + (2 splits - 1) output bytes) / bandwidth
    kernel_s  = (compute_s^p + memory_s^p)^(1/p) + write-out + a fixed time, + a fixed time for split-K

A GPU whose library nobody measured gets the mean of the other libraries' kernels (`consensus`, `expected_seconds`).

Arrays: n operators, c candidates; what depends on both is of shape (n, c).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.estimators.cores.gemm import CoreTime, Shapes
from predictor.estimators.device import Device
from predictor.estimators.named import p_norm
from predictor.hardware.gpu import GPUSpec
from predictor.roofline import FloatArray
from predictor.tiling import TileGrid

IntArray = npt.NDArray[np.int64]

BYTES = 4.0  # of an fp32 element, by definition

#: Generations of cuBLAS' fp32 kernels, by the architecture they were written for. Newer GPUs run the last one's.
LIBRARIES = ("maxwell", "volta", "ampere")
_LIBRARY = {"kepler": 0, "maxwell": 0, "pascal": 0, "volta": 1, "turing": 1}
#: Stands for a library that nobody measured, and how surely it is taken to pick its fastest kernel: the exponent of a
#: candidate's odds in its time. Chosen by leaving one library out at a time (docs/accuracy.md).
UNSEEN = -1
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
#: Chosen by looking at P100's linear layers (docs/accuracy.md, operands far beyond 300 MB).
REACH = 3e8
#: A split keeps at least this much of K to itself. Chosen by hand, not from data: in NeuSight's tables 9 in 10 keep at
#: least 184.
MIN_SPLIT_K = 256


@dataclass(frozen=True, slots=True)
class Constants:
    """What all GPUs share. Arrays by tile have shape (tiles,), by library (libraries,)."""

    efficiency: FloatArray  # (libraries, layouts, tiles): share of an SM's peak in a main loop; 0: no such kernel
    prologue: FloatArray  # (tiles,) extra K elements a tile pays for filling its pipeline and writing out
    lonely: FloatArray  # (tiles,) extra time share where an SM holds one block only
    unaligned: FloatArray  # (libraries,) extra time share where K is no multiple of 4
    reread: FloatArray  # (libraries,) share of what later waves read again that comes from DRAM
    narrow: FloatArray  # (libraries,) extra traffic of an operand read along K, 8 elements of a row at a time
    straddle: FloatArray  # (libraries,) more of it where K is no multiple of 8, so that 32-byte sectors are cut
    strain: FloatArray  # (libraries,) extra time share where both operands are far larger than `REACH`
    penalty: FloatArray  # (libraries, layouts, tiles): factor on a tile's time when cuBLAS' choice is imitated
    split_penalty: FloatArray  # (libraries, layouts, splits): the same for split-K factors
    memory: float  # share of the memory bandwidth
    write_out: float  # time for writing C that no compute hides, as a share of its DRAM time
    norm: float  # p of the p-norm
    quantization: float  # q, share of wave quantization that is felt
    fixed_s: float  # every kernel
    split_s: float  # every split-K kernel: its second kernel


#: The fields of `Constants` that an artifact keeps as arrays, and those that are one number.
ARRAYS, SCALARS = (
    tuple(field.name for field in fields(Constants) if (field.type == "float") is one) for one in (False, True)
)


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


def core_time(
    shape: Shapes, device: Device, const: Constants, cand: Candidates, library: Any, along_k: Any
) -> CoreTime:
    """Seconds of every candidate and of its two parts, each of shape (n, c); ``device`` at the rates that it sustains.

    ``library``: index of the kernel library; ``along_k``: 1 where B, too, is stored along K (layout tn). Both are one
    for all, or arrays that broadcast against (n, c).
    """
    grid, out = cand.grid(shape), shape.batch * shape.m * shape.n * BYTES
    compute = _compute_seconds(shape, device, const, cand, library, grid.waves(device.sms, cand.splits))
    operands = _operand_bytes(shape, device, const, cand, library, along_k, grid)
    memory: FloatArray = (operands + (2.0 * cand.splits - 1.0) * out) / (device.bandwidth * const.memory)
    fixed = const.fixed_s + np.where(cand.splits > 1.0, const.split_s, 0.0)
    total = p_norm(compute, memory, const.norm) + out * (const.write_out / device.bandwidth) + fixed
    return CoreTime(total, compute, memory)


def _operand_bytes(
    shape: Shapes, device: Device, const: Constants, cand: Candidates, lib: Any, along_k: Any, grid: TileGrid
) -> FloatArray:
    """Bytes of A and B from DRAM: once, plus what each wave of blocks reads again where L2 cannot hold both.

    Blocks start along a row of tiles; the blocks of one wave walk K together and share rows of A and columns of B.
    """
    once = (shape.m + shape.n) * shape.k * BYTES
    cut = np.where(shape.k % 8.0 != 0.0, const.straddle[lib], 0.0)
    extra = (const.narrow[lib] + cut) * (shape.k / (shape.k + LONG_K))
    strided = (shape.m + shape.n * along_k) * shape.k * (BYTES * extra)
    wave = device.sms * cand.resident
    wide = np.minimum(grid.columns, wave)
    high = np.minimum(np.maximum(wave / wide, 1.0), grid.rows)
    waves = grid.columns * grid.rows / (wide * high)
    again = waves * (wide * cand.tile_n + high * cand.tile_m) * shape.k * BYTES
    again = np.where(once > 0.5 * device.l2_bytes, np.maximum(again - once, 0.0), 0.0)
    result: FloatArray = shape.batch * (once + strided + const.reread[lib] * again)
    return result


def _compute_seconds(
    shape: Shapes, device: Device, const: Constants, cand: Candidates, lib: Any, waves: Any
) -> FloatArray:
    """Time of the SM with most blocks, shape (n, c)."""
    whole = np.ceil(waves)
    busiest = np.maximum(waves + const.quantization * (whole - waves), 1.0)
    steps = np.ceil(shape.k / (K_STEP * cand.splits))  # the main loop takes whole steps
    work = 2.0 * cand.tile_m * cand.tile_n / cand.efficiency * (steps * K_STEP + cand.prologue)
    unaligned = np.where(shape.k % 4.0 != 0.0, 1.0 + const.unaligned[lib], 1.0)
    far = (2.0 * BYTES * shape.k * shape.m * shape.n / (shape.m + shape.n) / REACH) ** 2
    slow = np.where(whole < 2.0, 1.0 + cand.lonely, 1.0) * unaligned * (1.0 + const.strain[lib] * (far / (1.0 + far)))
    result: FloatArray = busiest * work * slow * (device.sms / device.peak_flops)
    return result


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


def nearest_library(measured: npt.NDArray[np.bool_], library: int) -> int:
    """``library`` where it is one of the ``measured`` (libraries,), else the nearest of them, the newer of two."""
    known = np.nonzero(measured)[0][::-1]
    return int(known[np.abs(known - library).argmin()])


def consensus(
    efficiency: FloatArray, penalty: FloatArray, split_penalty: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Efficiency, penalty and split penalty of a library that nobody measured: geometric means over those measured.

    A tile's penalty is a library's own habit and does not carry over: all 1.
    """
    ran = efficiency > 0.0
    total = np.log(np.where(ran, efficiency, 1.0)).sum(axis=0)
    rates = np.where(ran.any(axis=0), np.exp(total / np.maximum(ran.sum(axis=0), 1)), 0.0)
    splits = np.exp(np.log(split_penalty[ran.any(axis=(1, 2))]).mean(axis=0))
    return rates, np.ones_like(penalty[0]), splits


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
