"""Tiles, grids and waves against hand counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.errors import RequestError
from predictor.tiling import Tile, TileGrid, wave_efficiency


def test_a_grid_by_hand() -> None:
    grid = TileGrid.cover(1000, 300, Tile(128, 128))
    assert (grid.rows, grid.columns) == (8, 3)  # 7.8 and 2.3, padded
    assert grid.blocks == 24
    assert grid.waves(16) == 1.5
    assert grid.whole_waves(16) == 2
    assert grid.tail_blocks(16) == 8
    assert grid.wave_efficiency(16) == 0.75


def test_batches_and_splits_multiply_the_blocks() -> None:
    grid = TileGrid.cover(64, 64, Tile(64, 32), batch=5, splits=3)
    assert grid.blocks == 1 * 2 * 5 * 3
    assert grid.whole_waves(sm_count=10, per_sm=2) == 2
    assert grid.tail_blocks(10, 2) == 10


def test_a_full_last_wave_is_its_own_tail() -> None:
    grid = TileGrid.cover(256, 256, Tile(128, 128))
    assert grid.tail_blocks(2) == 2
    assert grid.wave_efficiency(2) == 1.0


def test_a_tile_knows_its_size() -> None:
    tile = Tile(128, 64)
    assert tile.elements == 8192
    assert tile.transposed() == Tile(64, 128)
    assert tile.intensity == pytest.approx(2 * 8192 / 192)
    assert str(tile) == "128x64"


@pytest.mark.parametrize("size", [(0, 1), (1, -3)])
def test_a_tile_without_extent_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(RequestError, match="expected at least 1"):
        Tile(*size)


def test_a_grid_over_nothing_is_refused() -> None:
    with pytest.raises(RequestError, match="at least 1"):
        TileGrid.cover(0, 8, Tile(8, 8))


def test_the_arrays_say_what_the_class_says() -> None:
    blocks = np.array([1.0, 24.0, 25.0, 1000.0])
    expected = [TileGrid(int(b), 1).wave_efficiency(12) for b in blocks]
    assert wave_efficiency(blocks, 12) == pytest.approx(expected)


@given(m=st.integers(1, 5000), n=st.integers(1, 5000), sms=st.integers(1, 200))
def test_waves_hold_every_block(m: int, n: int, sms: int) -> None:
    grid = TileGrid.cover(m, n, Tile(64, 128))
    assert grid.rows * 64 >= m > (grid.rows - 1) * 64
    assert grid.columns * 128 >= n > (grid.columns - 1) * 128
    assert (grid.whole_waves(sms) - 1) * sms + grid.tail_blocks(sms) == grid.blocks
    assert 0.0 < grid.wave_efficiency(sms) <= 1.0
