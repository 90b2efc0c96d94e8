"""A table of rows, its type and its columns as arrays, without pandas, which loads where a table is made or read."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas

Frame: TypeAlias = "pandas.DataFrame"


def texts(frame: Frame, name: str) -> npt.NDArray[np.str_]:
    """A column of text, (n,): empty where the row says nothing, or the file has no such column."""
    if name not in frame:
        return np.full(len(frame), "", dtype=np.str_)
    return np.asarray(frame[name].astype(object).fillna("").astype(str), dtype=np.str_)


def numbers(frame: Frame, name: str) -> npt.NDArray[np.float64]:
    """A column of numbers, (n,): NaN where the row says nothing, or the file has no such column."""
    if name not in frame:
        return np.full(len(frame), np.nan)
    return np.asarray(frame[name].astype(float), dtype=np.float64)
