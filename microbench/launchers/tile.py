"""GEMM of our own with the tile fixed: what one tile and one wave take, measured and not inferred.

C (m, n) = A (m, k) B (k, n), B stored as (n, k). m and n are multiples of the tile, so that every program of the grid
computes one whole tile and the number of waves is tiles / SMs (at one program a SM; the row says how many fit).

A GPU runs a kernel in Triton. A processor runs a blocked product: a wave is as many tiles as PyTorch has threads, and
each turn of its loop over K adds the products of their blocks of A and B to the wave's tiles, in one batched call of
PyTorch's library. What the call itself takes is in the row, once a turn; no library's own loop has that.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from microbench import rocm
from microbench.case import Case
from microbench.devices.base import TORCH_DTYPES, BenchDevice
from microbench.launchers.base import IllegalCase, Prepared, relative_error, some_rows
from predictor.data.schema import TILE_PROBE
from predictor.ops import Gemm

#: What a product of 8 bits is written in, as engines have it.
WRITTEN = {"fp8": "bf16"}

_kernel: Any = None


def _load() -> Any:
    """The Triton kernel, compiled at its first launch. Raises IllegalCase where Triton is not installed."""
    global _kernel
    if _kernel is None:
        try:
            from microbench.launchers.tile_kernel import gemm_tile
        except ImportError:
            raise IllegalCase("Triton is not installed") from None
        _kernel = gemm_tile
    return _kernel


def parse_tile(text: str) -> tuple[int, int, int]:
    """ "128x64x32" -> (rows, columns, depth of a step)."""
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise IllegalCase(f"tile {text!r}: expected MxNxK such as 128x64x32")
    return int(parts[0]), int(parts[1]), int(parts[2])


def options(tile: tuple[int, int, int], itemsize: int, gfx: str = "") -> dict[str, int]:
    """How Triton compiles a tile M x N x K: shared memory holds two operands a stage. Raises IllegalCase where a board
    of AMD has no room for it."""
    rows, columns, _ = tile
    stages = rocm.stages(tile, itemsize, gfx) if gfx else 3 if itemsize <= 2 else 2
    if not stages:
        raise IllegalCase("the tile does not fit the local data share")
    return {"num_warps": 8 if rows * columns >= 128 * 128 else 4, "num_stages": stages}


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Gemm)
    tile_m, tile_n, tile_k = parse_tile(str(case.option("tile")))
    if op.m % tile_m or op.n % tile_n:
        raise IllegalCase("m and n are no multiples of the tile")
    if op.k % tile_k:
        raise IllegalCase("k is no multiple of the tile's depth")
    if device.kind == "cpu":
        return _blocked(op, (tile_m, tile_n, tile_k), device)
    kernel = _load()
    a = device.randn(op.m, op.k, dtype=op.dtype)
    scale = 1.0 if op.dtype == "fp8" else op.k**-0.5  # whose smallest number is a 512th
    b = device.randn(op.n, op.k, dtype=op.dtype, scale=scale)
    c = torch.empty(op.m, op.n, dtype=TORCH_DTYPES[WRITTEN.get(op.dtype, op.dtype)], device=a.device)
    grid = (op.n // tile_n, op.m // tile_m)
    built = options((tile_m, tile_n, tile_k), a.element_size(), device.gfx)

    def launch() -> torch.Tensor:
        kernel[grid](
            a, b, c, op.n, op.k, BLOCK_M=tile_m, BLOCK_N=tile_n, BLOCK_K=tile_k, TF32=op.dtype == "tf32",
            **built,
        )  # fmt: skip
        return c

    def check() -> float:
        rows = some_rows(op.m).to(a.device)
        return relative_error(launch()[rows], a.float()[rows].double() @ b.float().double().t())

    return _prepared(launch, check, "triton_tile", (tile_m, tile_n, tile_k))


def _prepared(launch: Any, check: Any, source: str, tile: tuple[int, int, int]) -> Prepared:
    named = dict(zip(("tile_m", "tile_n", "tile_k"), tile, strict=True))
    return Prepared(launch, check, kernel_source=source, flag=TILE_PROBE, extra=named)


Places: TypeAlias = tuple[int, int] | torch.Tensor


def _waves(rows: int, columns: int, units: int) -> list[tuple[int, int, Places, Places]]:
    """(first and last tile, rows of tiles, columns of tiles) of every wave; (which, how many) where they are alike."""
    waves: list[tuple[int, int, Places, Places]] = []
    for first in range(0, rows * columns, units):
        last = min(first + units, rows * columns)
        row, column = divmod(first, columns)
        if (last - 1) // columns == row:
            waves.append((first, last, (row, first - last), (column, last - first)))
        else:
            numbers = torch.arange(first, last)
            waves.append((first, last, torch.div(numbers, columns, rounding_mode="floor"), numbers % columns))
    return waves


def _blocks(of: torch.Tensor, places: Places) -> torch.Tensor:
    """The blocks of a wave: one for all of its tiles (a negative count), those side by side, or copies of any."""
    if isinstance(places, torch.Tensor):
        return of.index_select(0, places)
    at, count = places
    return of[at].expand(-count, -1, -1) if count < 0 else of[at : at + count]


def _blocked(op: Gemm, tile: tuple[int, int, int], device: BenchDevice) -> Prepared:
    """The processor's probe: A, B and C lie tile by tile, as a library packs them."""
    tile_m, tile_n, tile_k = tile
    rows, columns, turns = op.m // tile_m, op.n // tile_n, op.k // tile_k
    a = device.randn(turns, rows, tile_m, tile_k, dtype=op.dtype)
    b = device.randn(turns, columns, tile_k, tile_n, dtype=op.dtype, scale=op.k**-0.5)
    c = torch.empty(rows * columns, tile_m, tile_n, dtype=TORCH_DTYPES[op.dtype])
    waves = _waves(rows, columns, torch.get_num_threads())

    def launch() -> torch.Tensor:
        for first, last, down, across in waves:
            into = c[first:last]
            for turn in range(turns):
                left, right = _blocks(a[turn], down), _blocks(b[turn], across)
                torch.baddbmm(into, left, right, beta=1.0 if turn else 0.0, out=into)
        return c

    def check() -> float:
        whole = launch().view(rows, columns, tile_m, tile_n).transpose(1, 2).reshape(op.m, op.n)
        left = a.permute(1, 2, 0, 3).reshape(op.m, op.k)
        right = b.permute(0, 2, 1, 3).reshape(op.k, op.n)
        some = some_rows(op.m)
        return relative_error(whole[some], left[some].double() @ right.double())

    return _prepared(launch, check, "blocked", tile)
