"""The type of a table of rows, without pandas, which loads where a table is made or read."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import pandas

Frame: TypeAlias = "pandas.DataFrame"
