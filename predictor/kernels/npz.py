"""Members of an npz file: what `predictor.kernels.stored` reads where a manifest does not say where its arrays are."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator

from predictor.files.archives import BROKEN, LARGEST_UNPACKED, member_bytes

__all__ = ["BROKEN", "members"]

#: Zip's header of a member: its length, and where in it the lengths of what follows (name, extra field) stand. By
#: definition (PKWARE's APPNOTE.TXT, section 4.3.7).
_MEMBER_BYTES, _LENGTHS_AT = 30, 26


def members(data: bytes) -> Iterator[tuple[str, int | None, memoryview]]:
    """(array, offset, content) of each member: those that are stored are views of ``data``, those that are compressed
    are unpacked, and have no offset. One of `BROKEN` for what is no archive, or too large a one."""
    view = memoryview(data)
    names: set[str] = set()
    left = LARGEST_UNPACKED
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in names:
                raise ValueError(f"{name!r} appears twice")
            names.add(name)
            if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 0x1:
                lengths = struct.unpack_from("<HH", data, member.header_offset + _LENGTHS_AT)
                start = member.header_offset + _MEMBER_BYTES + sum(lengths)
                yield name, start, view[start : start + member.file_size]
            else:
                content = memoryview(member_bytes(archive, member, left))
                left -= len(content)
                yield name, None, content
