"""Zip archives from anywhere: their members in memory, never on disk, and never more of them than a limit says."""

from __future__ import annotations

import io
import lzma
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

from predictor.errors import SpecError
from predictor.files.read import LARGEST_ARCHIVE, check_plain

#: Bytes that what is read of an archive may have unpacked: guards against one that memory cannot hold, by hand; the
#: largest set of estimators has 1/100 of it.
LARGEST_UNPACKED = 2**30
#: Cells of a table: ten times those of all measurements that come with Tilecast. Chosen by hand, not from data.
MOST_CELLS = 500_000_000
#: What `zipfile` raises for an archive that is broken, encrypted, or packed in a way that it does not know.
BROKEN = (
    ValueError, KeyError, EOFError, OSError, RuntimeError, OverflowError, struct.error, zlib.error, lzma.LZMAError,
    zipfile.BadZipFile, zipfile.LargeZipFile,
)  # fmt: skip


def member_bytes(archive: zipfile.ZipFile, member: zipfile.ZipInfo, most: int) -> bytes:
    """What a member holds. ValueError where it has more than ``most`` bytes, whatever it says of them; one of `BROKEN`
    for what cannot be unpacked."""
    if member.file_size <= most:
        with archive.open(member) as file:
            data = file.read(most + 1)
        if len(data) <= most:
            return data
    raise ValueError(f"{member.filename!r} unpacks to more than {most:,} bytes")


def check_table(path: Path, metadata: Any) -> None:
    """SpecError where a parquet file (its ``metadata`` as pyarrow has it) holds more than memory should, unpacked."""
    cells = metadata.num_rows * max(1, metadata.num_columns)
    unpacked = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if cells > MOST_CELLS or unpacked > LARGEST_ARCHIVE:
        raise SpecError(
            f"{path}: {metadata.num_rows:,} rows of {metadata.num_columns} columns, {unpacked:,} bytes; expected"
            f" at most {MOST_CELLS:,} cells and {LARGEST_ARCHIVE:,} bytes"
        )


def read_member(path: Path, names: tuple[str, ...], expected: str, most: int = LARGEST_UNPACKED) -> dict[str, bytes]:
    """The members of the archive at ``path`` whose names end in one of ``names``, by that ending; those that are not
    there are left out. SpecError, one line that ends in ``expected``, for what is no archive, or too large a one."""
    check_plain(path, expected, LARGEST_ARCHIVE)
    contents: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes()) if path.stat().st_size < most else path) as archive:
            for member in archive.infolist():
                ending = next((name for name in names if f"/{member.filename}".endswith(f"/{name}")), None)
                if ending is None:
                    continue
                if ending in contents:
                    raise ValueError(f"{ending!r} appears twice")
                contents[ending] = member_bytes(archive, member, most)
    except BROKEN as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise SpecError(f"{path}: cannot be read as {expected} ({said})") from None
    return contents
