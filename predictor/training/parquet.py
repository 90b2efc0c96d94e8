"""Requests in parquet files, which a forecast does without."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from predictor.archives import check_table
from predictor.errors import SpecError
from predictor.files import LARGEST_TABLE, check_plain
from predictor.training.extras import require


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Every row of a file; SpecError, one line, for what is no parquet file."""
    check_plain(path, "a parquet file of requests", LARGEST_TABLE)
    arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    try:
        check_table(path, parquet.read_metadata(path))
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError, OSError) as error:
        raise SpecError(f"cannot read {path}: {str(error).splitlines()[0]}; expected a parquet file") from None
    return rows


def table_bytes(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """A parquet file of these columns."""
    arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    buffer = io.BytesIO()
    parquet.write_table(arrow.table(dict(columns)), buffer, compression="zstd")
    return buffer.getvalue()
