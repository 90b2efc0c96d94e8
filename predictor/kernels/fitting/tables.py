"""Tables of measured rows: dataclasses whose arrays have an entry a row, tables within them included."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from predictor.files.records import replace


class RowTable:
    """What every such dataclass of n rows shares."""

    __slots__ = ()

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Self:
        """The rows at these places, or those that are marked; what is not an array is the same for all rows."""
        chosen: Self = _take(self, rows)
        return chosen


def _take(value: Any, rows: npt.NDArray[Any]) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _take(getattr(value, f.name), rows) for f in fields(value)})
    return value[rows] if isinstance(value, np.ndarray) else value
