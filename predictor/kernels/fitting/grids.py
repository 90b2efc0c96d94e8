"""Which sizes tables have again and again: the knots between which a forecast goes along a line.

A table measures every layer at the same few sizes. These are stored with the trees that learned them
(`predictor.kernels.knots`): ``manifest["grids"]`` are distinct lists of sizes, and ``knots`` of a booster names one
for each column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from predictor.kernels.fitting.serving_rows import VariantRows
from predictor.ops.roofline import FloatArray

#: Columns of a family's shapes that are on a grid, by kind of rows.
SizesOf = Callable[[Any, str], Mapping[str, FloatArray]]

#: A size is of the grid that has so large a share of the most frequent size's rows; the others (a few layers were
#: measured at 320 rows, hundreds at 257) lie between knots. Chosen by looking at how many rows each size has in
#: AIConfigurator's tables: shares are below 0.04 or above 0.2.
_COMMON = 0.1
#: Rows that a size has on a grid at least, on average, and the share of rows that are on it: random sizes have no grid.
#: Chosen by hand, not from data.
_ROWS_A_SIZE = 4
_ON_GRID = 0.9


def grid_of(values: FloatArray) -> list[float]:
    """The sizes of a grid, rising; none where ``values`` (n,) are not on one."""
    sizes, counts = np.unique(values, return_counts=True)
    common = counts >= _COMMON * counts.max(initial=0)
    rows = int(counts[common].sum())
    if rows < max(_ON_GRID * len(values), _ROWS_A_SIZE * int(common.sum()), 1):
        return []
    return [float(size) for size in sizes[common]]


def knots_of(parts: Sequence[VariantRows], sizes_of: SizesOf) -> dict[str, list[float]]:
    """The grid of each column over ``parts``; columns without one are left out."""
    values_by_column: dict[str, list[FloatArray]] = {}
    for part in parts:
        for column, values in sizes_of(part.shapes, part.kind).items():
            values_by_column.setdefault(column, []).append(values)
    grids = {column: grid_of(np.concatenate(values)) for column, values in values_by_column.items()}
    return {column: grid for column, grid in grids.items() if grid}


def stored(knots: Mapping[str, list[float]], grids: list[list[float]]) -> dict[str, int]:
    """Numbers of the columns' grids among ``grids``, which grows by those that it lacks."""
    for grid in knots.values():
        if grid not in grids:
            grids.append(grid)
    return {column: grids.index(grid) for column, grid in knots.items()}
