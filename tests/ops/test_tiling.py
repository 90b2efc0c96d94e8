"""Grids and waves against hand counts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from predictor.ops.tiling import TileGrid


def test_a_grid_by_hand() -> None:
    grid = TileGrid.cover(1000.0, 300.0, 128.0, 128.0)
    assert (grid.rows, grid.columns) == (8, 3)  # 7.8 and 2.3, padded
    assert grid.blocks == 24
    assert grid.waves(16) == 1.5
    assert grid.whole_waves(16) == 2
    assert grid.tail_blocks(16) == 8
    assert grid.wave_efficiency(16) == 0.75


def test_batches_and_splits_multiply_the_blocks() -> None:
    grid = TileGrid.cover(64.0, 64.0, 64.0, 32.0, batch=5.0)
    assert grid.blocks == 1 * 2 * 5
    assert grid.whole_waves(20, splits=3.0) == 2
    assert grid.tail_blocks(20, splits=3.0) == 10


def test_a_full_last_wave_is_its_own_tail() -> None:
    grid = TileGrid.cover(256.0, 256.0, 128.0, 128.0)
    assert grid.tail_blocks(2) == 2
    assert grid.wave_efficiency(2) == 1.0


def test_many_products_and_many_tiles_at_once() -> None:
    m, tile = np.array([[64.0], [65.0], [4096.0]]), np.array([64.0, 128.0])
    grid = TileGrid.cover(m, 256.0, tile, 128.0)
    np.testing.assert_array_equal(grid.blocks, [[2, 2], [4, 2], [128, 64]])
    np.testing.assert_array_equal(grid.whole_waves(100), [[1, 1], [1, 1], [2, 1]])


@given(m=st.integers(1, 5000), n=st.integers(1, 5000), sms=st.integers(1, 200))
def test_waves_hold_every_block(m: int, n: int, sms: int) -> None:
    grid = TileGrid.cover(float(m), float(n), 64.0, 128.0)
    assert grid.rows * 64 >= m > (grid.rows - 1) * 64
    assert grid.columns * 128 >= n > (grid.columns - 1) * 128
    assert (grid.whole_waves(sms) - 1) * sms + grid.tail_blocks(sms) == grid.blocks
    assert 0.0 < grid.wave_efficiency(sms) <= 1.0
