"""An estimator's files as they were written: of one schema version, read whole, with the hashes of its manifest.

"files" of a manifest maps each file beside it to {"bytes": size, "sha256": hash}. Nothing of a file is believed before
its hash is right, so that a flipped bit, a cut or a file of another set is one line and never another forecast.

SHA-256 of the largest file of the shipped set takes about as long as `np.load` spends on copying its arrays, so these
are read in place instead: a forecast starts no later than without the check.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import struct
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt

from predictor.errors import SpecError
from predictor.files.archives import BROKEN, LARGEST_ARCHIVE, LARGEST_UNPACKED, member_bytes
from predictor.files.read import check_plain, parse_json, read_text

#: Version of all that a set of estimators holds: by definition what is written and read today. No other is read.
SCHEMA_VERSION = 2
VERSION_KEY = "schema_version"

WEIGHTS = "weights.npz"
MANIFEST = "manifest.json"
#: Key of a manifest that has the sizes and hashes of the files beside it.
FILES = "files"

#: Key of a manifest that has the hash of its own text, by which a constant that was changed by hand is told.
SEAL = "manifest_sha256"
_SEALED = re.compile(rf'("{SEAL}": ")([^"]*)')

#: What every estimator's manifest has besides what its kind needs.
COMMON = {"name": str, "gpus": list, "calibrated": dict, FILES: dict}

#: Zip's header of a member: its length, and where in it the lengths of what follows (name, extra field) stand. By
#: definition (PKWARE's APPNOTE.TXT, section 4.3.7).
_MEMBER_BYTES, _LENGTHS_AT = 30, 26


def check_version(path: Path, content: Mapping[str, Any]) -> None:
    """SpecError, one line, where a file of a set is of another schema version."""
    version = content.get(VERSION_KEY)
    if version != SCHEMA_VERSION:
        raise SpecError(
            f"{path}: {VERSION_KEY} is {version!r:.40}, expected {SCHEMA_VERSION}: another version of Tilecast wrote"
            " the set; train it again (tilecast train FILES --out FOLDER)"
        )


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an estimator's folder; SpecError where it is of another version, or lacks what all have."""
    path = folder / MANIFEST
    said = read_text(path, "a JSON file")
    manifest = parse_json(said, str(path))
    if not isinstance(manifest, dict):
        raise SpecError(f"{path}: expected a JSON object, found {type(manifest).__name__}")
    check_version(path, manifest)
    if SEAL in manifest and sealed(said) != said:
        raise SpecError(
            f"{path}: is not what `tilecast train` or `tilecast calibrate` wrote (its {SEAL} is of another text); copy"
            " the set again, or fit it with what you would change"
        )
    for key, form in COMMON.items():
        if not isinstance(manifest.get(key), form):
            raise SpecError(f"{path}: key {key!r} is {manifest.get(key)!r:.60}; expected a {form.__name__}")
    return manifest


def sealed(said: str) -> str:
    """The text of a manifest with its own hash under `SEAL`: that of the text with zeros in its place."""
    bare = _SEALED.sub(rf"\g<1>{'0' * 64}", said)
    return _SEALED.sub(rf"\g<1>{hashlib.sha256(bare.encode()).hexdigest()}", bare)


def described(folder: Path) -> dict[str, dict[str, Any]]:
    """What a manifest keeps under `FILES` of the files in an estimator's folder; the manifest itself is left out."""
    return {
        path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST
    }


def read_verified(path: Path, manifest: Mapping[str, Any]) -> bytes:
    """The content of a file beside ``manifest``; SpecError, one line, where it is not what was written."""
    try:
        known = manifest[FILES][path.name]
        size, sha256 = int(known["bytes"]), str(known["sha256"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise SpecError(
            f"{path.parent / MANIFEST}: key {FILES!r} has no bytes and sha256 of {path.name}; run the `tilecast train`"
            " or `tilecast calibrate` that made the set again"
        ) from None
    if size <= LARGEST_ARCHIVE:
        check_plain(path, f"a file of {size:,} bytes as its manifest says", sys.maxsize)
    try:
        size_on_disk = path.stat().st_size  # an oversized file is not read
        data = path.read_bytes() if size_on_disk == size <= LARGEST_ARCHIVE else b""
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror or error}); copy the set again") from None
    if size_on_disk != size:
        raise SpecError(f"{path}: {size_on_disk:,} bytes, expected {size:,} as its manifest says; copy the set again")
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise SpecError(
            f"{path}: SHA-256 {digest[:16]}..., expected {sha256[:16]}... as its manifest says; copy the set again"
        )
    return data


def read_weights(folder: Path, manifest: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an estimator's folder, by name, read-only; SpecError where they are damaged, not a number, or
    hold anything but numbers."""
    path = folder / WEIGHTS
    data = read_verified(path, manifest)
    try:
        weights = _arrays(data)
    except (*BROKEN, TypeError) as error:
        said = " ".join(str(error).split())[:200]
        raise SpecError(f"{path}: is no file of arrays ({said}); expected what `tilecast train` writes") from None
    for name, array in weights.items():
        if array.dtype.kind not in "iufb":
            raise SpecError(f"{path}: array {name!r} is of {array.dtype}; expected numbers")
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise SpecError(f"{path}: array {name!r} holds NaN; expected numbers: train or calibrate the set again")
    return weights


def _arrays(data: bytes) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an npz file; those that are stored, not compressed, are views of ``data``."""
    view = memoryview(data)
    arrays: dict[str, npt.NDArray[Any]] = {}
    left = LARGEST_UNPACKED
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in arrays:
                raise ValueError(f"{name!r} appears twice")
            if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 0x1:
                lengths = struct.unpack_from("<HH", data, member.header_offset + _LENGTHS_AT)
                start = member.header_offset + _MEMBER_BYTES + sum(lengths)
                content = view[start : start + member.file_size]
            else:
                content = memoryview(member_bytes(archive, member, left))
                left -= len(content)
            arrays[name] = _array(content)
    return arrays


def _array(content: memoryview) -> npt.NDArray[Any]:
    """One array in NumPy's npy format, version 1 or 2; ValueError for another content."""
    head = io.BytesIO(content[: 1 << 14])
    version = npy.read_magic(head)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"npy version {version}")
    try:
        shape, by_column, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(head)
    except Exception as error:  # of Python's own parser of literals, which has many
        raise ValueError(f"a header that is none ({type(error).__name__})") from None
    if dtype.hasobject:
        raise ValueError("an array of objects, which could run code")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize > len(content):
        raise ValueError(f"{len(content):,} bytes for an array of {' x '.join(map(str, shape))}")
    flat: npt.NDArray[Any] = np.frombuffer(content, dtype=dtype, count=count, offset=head.tell())
    result = flat.reshape(shape, order="F" if by_column else "C")
    return result if result.flags.aligned else result.copy()
