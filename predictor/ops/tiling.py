"""Tile grids and waves: how matrix products are cut into thread blocks and how those fill a GPU.

A kernel computes C[M, N] in tiles, one thread block a tile; with split-K, some blocks share the K loop of one tile. As
many blocks as there are SMs make a full wave. What is left for the last wave (the tail wave) leaves SMs idle: wave
quantization. Sizes are float arrays that broadcast: many products, and many tiles for each, at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.files.records import dataclass

FloatArray = npt.NDArray[np.float64]
Sizes = FloatArray | float


@dataclass(frozen=True, slots=True)
class TileGrid:
    """Tiles that cover ``batch`` matrices, ``rows`` x ``columns`` each, and the waves in which SMs work through them.

    >>> grid = TileGrid.cover(4096.0, 4096.0, 128.0, 256.0)
    >>> int(grid.blocks), int(grid.whole_waves(132)), int(grid.tail_blocks(132))
    (512, 4, 116)
    >>> round(float(grid.wave_efficiency(132)), 3)
    0.97
    """

    rows: Sizes
    columns: Sizes
    batch: Sizes = 1.0

    @classmethod
    def cover(cls, m: Sizes, n: Sizes, tile_m: Sizes, tile_n: Sizes, batch: Sizes = 1.0) -> TileGrid:
        """The grid of tiles of ``tile_m`` x ``tile_n`` over outputs of shape (m, n); edges are padded to whole tiles.

        >>> TileGrid.cover(1000.0, 300.0, 128.0, 128.0).blocks  # 7.8 x 2.3 tiles
        np.float64(24.0)
        """
        return cls(np.ceil(m / tile_m), np.ceil(n / tile_n), batch)

    @property
    def blocks(self) -> Sizes:
        """Tiles of all matrices: thread blocks of a kernel that does not split K."""
        return self.batch * self.rows * self.columns

    def waves(self, sms: float, splits: Sizes = 1.0) -> Sizes:
        """Waves as a fraction, with ``splits`` blocks a tile: 1.25 is one full wave and a tail of a quarter."""
        return self.blocks * (splits / sms)

    def whole_waves(self, sms: float, splits: Sizes = 1.0) -> Sizes:
        """Waves that run, the tail wave included: the blocks on the busiest SM."""
        result: Sizes = np.ceil(self.waves(sms, splits))
        return result

    def tail_blocks(self, sms: float, splits: Sizes = 1.0) -> Sizes:
        """Blocks of the last wave: a full wave's where nothing is left over."""
        return self.blocks * splits - (self.whole_waves(sms, splits) - 1.0) * sms

    def wave_efficiency(self, sms: float, splits: Sizes = 1.0) -> Sizes:
        """Share of the SMs' slots that hold a block over all waves, in (0, 1]."""
        return self.waves(sms, splits) / self.whole_waves(sms, splits)


def filled(size: Any, whole: Any = 1.0) -> Any:
    """Share that ``size`` fills of the tiles of ``whole`` that cover it, or of waves; numbers or arrays that broadcast.

    >>> filled(300.0, 128.0), filled(1.25)
    (np.float64(0.78125), np.float64(0.625))
    """
    return size / (np.ceil(size / whole) * whole)
