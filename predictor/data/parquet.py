"""Parquet files, which a forecast does without: read no larger than memory should hold, and written."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from predictor.data.frame import Frame
from predictor.errors import SpecError
from predictor.files.archives import check_table
from predictor.files.extras import require
from predictor.files.read import LARGEST_TABLE, check_header, check_plain


def read_arrow(path: Path, expected: str = "a parquet file") -> Any:
    """The table of a file, as pyarrow has it. SpecError, one line, for what is no parquet file or is too large."""
    return _opened(path, expected, lambda file: file.read())


def count_rows(path: Path) -> int:
    """Rows of a file, of which only its foot is read; SpecError as of `read_arrow`."""
    return int(_opened(path, "a parquet file", lambda file: file.metadata.num_rows))


def _opened(path: Path, expected: str, use: Callable[[Any], Any]) -> Any:
    arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    check_plain(path, expected, LARGEST_TABLE)
    try:
        with parquet.ParquetFile(path) as file:
            check_table(path, file.metadata)
            check_header(file.schema_arrow.names, str(path))
            return use(file)
    except (arrow.ArrowException, OSError, ValueError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SpecError(f"{path} cannot be read as parquet: {said}; expected {expected}") from None


def read_frame(path: Path, expected: str = "a parquet file") -> Frame:
    """The same as a frame of pandas."""
    return as_frame(read_arrow(path, expected))


def as_frame(table: Any) -> Frame:
    """A table of pyarrow as a frame of pandas, whose truth values may be null."""
    arrow, pd = require("pyarrow"), require("pandas")
    booleans = {arrow.bool_(): pd.BooleanDtype()}
    return table.to_pandas(types_mapper=booleans.get)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Every row of a file of requests; SpecError as of `read_arrow`."""
    rows: list[dict[str, Any]] = read_arrow(path, "a parquet file of requests").to_pylist()
    return rows


def table_bytes(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """A parquet file of these columns."""
    arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    buffer = io.BytesIO()
    parquet.write_table(arrow.table(dict(columns)), buffer, compression="zstd")
    return buffer.getvalue()
