"""Rows of a table: arrays of every depth are cut alike, and what is one for all stays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

from predictor.hardware.gpu import load_gpu
from predictor.kernels.device import Device
from predictor.kernels.fitting.serving_rows import VariantRows
from predictor.kernels.fitting.tables import RowTable
from predictor.kernels.gemm.core import Shapes, Tiles

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Rows(RowTable):
    name: str
    pairs: FloatArray


@pytest.mark.parametrize("rows", [np.array([3, 1]), np.arange(4) % 2 == 1], ids=["places", "marks"])
def test_all_arrays_of_a_row_are_taken_together(rows: npt.NDArray[np.int64]) -> None:
    sizes = np.arange(4.0)
    shapes = Shapes(sizes, sizes + 10, sizes + 20, sizes + 30, 2.0, 2.0, tiles=Tiles(sizes + 1, sizes + 2, sizes + 3))
    whole = VariantRows("a", "b|c", "c", Device.of(load_gpu("a100"), "bf16"), shapes, 0, sizes - 5, "bf16")
    part = replace(whole, log_error=sizes / 10).take(rows)
    expected = sizes[rows]
    assert part.size == 2 and part.device is not None and part.device == whole.device
    for array, base in ((part.shapes.m, 10), (part.shapes.tiles.k, 3), (part.log_latency, -5)):
        np.testing.assert_array_equal(array, expected + base)
    np.testing.assert_array_equal(part.log_error, expected / 10)
    assert whole.take(rows).log_error == 0.0 and part.shapes.itemsize == 2.0


def test_an_array_with_several_columns_keeps_them() -> None:
    table = _Rows("x", np.arange(12.0).reshape(4, 3)).take(np.array([2]))
    np.testing.assert_array_equal(table.pairs, [[6.0, 7.0, 8.0]])
    assert table.name == "x"
