"""Tiles, tile grids and waves: how a matrix product is cut into thread blocks and how those fill a GPU.

A kernel computes C[M, N] in tiles of ``Tile.m`` x ``Tile.n``, one thread block a tile; with split-K, ``splits`` blocks
share the K loop of one tile. An SM works on ``per_sm`` blocks at a time, so ``per_sm`` x SMs blocks make a full wave.
What is left for the last wave (the tail wave) leaves SMs idle: wave quantization.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from predictor.errors import RequestError

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of C that one thread block computes: ``m`` rows by ``n`` columns."""

    m: int
    n: int

    def __post_init__(self) -> None:
        if self.m < 1 or self.n < 1:
            raise RequestError(f"tile {self.m}x{self.n}: expected at least 1 row and 1 column")

    def transposed(self) -> Tile:
        """The same tile the other way round."""
        return Tile(self.n, self.m)

    @property
    def elements(self) -> int:
        """Outputs of one tile."""
        return self.m * self.n

    @property
    def intensity(self) -> float:
        """FLOP for every element of A or B that a tile's K loop reads: 2 m n / (m + n)."""
        return 2.0 * self.elements / (self.m + self.n)

    def __str__(self) -> str:
        return f"{self.m}x{self.n}"


@dataclass(frozen=True, slots=True)
class TileGrid:
    """Tiles that cover ``batch`` matrices, and the waves in which a GPU works through them.

    >>> grid = TileGrid.cover(4096, 4096, Tile(128, 256))
    >>> grid.blocks, grid.whole_waves(132), grid.tail_blocks(132)
    (512, 4, 116)
    >>> round(grid.wave_efficiency(132), 3)
    0.97
    """

    rows: int
    columns: int
    batch: int = 1
    splits: int = 1

    @classmethod
    def cover(cls, m: int, n: int, tile: Tile, batch: int = 1, splits: int = 1) -> TileGrid:
        """The grid of ``tile`` over ``batch`` outputs of shape (m, n); edges are padded to whole tiles."""
        if min(m, n, batch, splits) < 1:
            raise RequestError(f"a grid over {batch} x ({m}, {n}) with {splits} splits: expected values of at least 1")
        return cls(ceil(m / tile.m), ceil(n / tile.n), batch, splits)

    @property
    def blocks(self) -> int:
        """Thread blocks of the kernel."""
        return self.rows * self.columns * self.batch * self.splits

    def waves(self, sm_count: int, per_sm: int = 1) -> float:
        """Waves as a fraction: 1.25 is one full wave and a tail of a quarter."""
        return self.blocks / (sm_count * per_sm)

    def whole_waves(self, sm_count: int, per_sm: int = 1) -> int:
        """Waves that run, the tail wave included: the blocks on the busiest SM where ``per_sm`` is 1."""
        return ceil(self.blocks / (sm_count * per_sm))

    def tail_blocks(self, sm_count: int, per_sm: int = 1) -> int:
        """Blocks of the tail wave; a full wave's where nothing is left over."""
        wave = sm_count * per_sm
        return self.blocks % wave or wave

    def wave_efficiency(self, sm_count: int, per_sm: int = 1) -> float:
        """Share of the SMs' slots that hold a block over all waves, in (0, 1]."""
        return self.waves(sm_count, per_sm) / self.whole_waves(sm_count, per_sm)


def wave_efficiency(blocks: FloatArray, sm_count: float, per_sm: float = 1.0) -> FloatArray:
    """`TileGrid.wave_efficiency` of many grids at once: ``blocks`` and the result have the same shape."""
    waves = blocks / (sm_count * per_sm)
    result: FloatArray = waves / np.ceil(waves)
    return result
