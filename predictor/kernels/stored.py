"""An estimator's files as they were written: of one schema version, read whole, with the hashes of its manifest.

"files" of a manifest maps each file beside it to {"bytes": size, "sha256": hash}. Nothing of a file is believed before
its hash is right, so that a flipped bit, a cut or a file of another set is one line and never another forecast.

A forecast asks for a few of the hundred arrays of a large file of weights. So the manifest has the place and the hash
of each array, too: it is read and checked when it is first asked for. `ArtifactSet.verify` reads whole files.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt

from predictor.errors import SpecError
from predictor.files.read import LARGEST_ARCHIVE, check_plain, parse_json, read_text
from predictor.kernels.ranges import check_array

#: Version of all that a set of estimators holds: by definition what is written and read today. No other is read.
SCHEMA_VERSION = 2
VERSION_KEY = "schema_version"

WEIGHTS = "weights.npz"
MANIFEST = "manifest.json"
#: Key of a manifest that has the sizes and hashes of the files beside it.
FILES = "files"
#: Key of what `FILES` has of the weights: array -> "offset bytes sha256" of its content in NumPy's npy format.
ARRAYS = "arrays"
#: Files of fewer bytes are read and hashed whole, with what stands between their arrays. Chosen by hand, not from data.
_SMALL = 1 << 16

#: Key of a manifest that has the hash of its own text, by which a constant that was changed by hand is told.
SEAL = "manifest_sha256"
_SEALED = re.compile(rf'("{SEAL}": ")([^"]*)')

#: What every estimator's manifest has besides what its kind needs.
COMMON = {"name": str, "gpus": list, "calibrated": dict, FILES: dict}


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
    files = (path for path in sorted(folder.iterdir()) if path.name != MANIFEST)
    return {path.name: described_file(path.name, path.read_bytes()) for path in files}


def described_file(name: str, content: bytes) -> dict[str, Any]:
    """The same of one file: its size and hash, and of weights the places of the arrays."""
    about = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return about | _places(content) if name == WEIGHTS else about


def _places(data: bytes) -> dict[str, dict[str, str]]:
    """Under `ARRAYS`, where the arrays of an npz file are; nothing for one that is broken, or compressed."""
    from predictor.kernels.npz import BROKEN, members

    try:
        parts = list(members(data))
    except BROKEN:
        return {}
    if any(start is None for _, start, _ in parts):
        return {}
    hashes = {name: f"{start} {len(part)} {hashlib.sha256(part).hexdigest()}" for name, start, part in parts}
    return {ARRAYS: hashes}


def read_verified(path: Path, manifest: Mapping[str, Any]) -> bytes:
    """The content of a file beside ``manifest``; SpecError, one line, where it is not what was written."""
    size, sha256 = _sized(path, manifest)
    return _part(path, 0, size, sha256)


def _sized(path: Path, manifest: Mapping[str, Any]) -> tuple[int, str]:
    """(bytes, sha256) that ``manifest`` has of a file; SpecError, one line, where the file is of another size."""
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
        size_on_disk = path.stat().st_size
    except OSError as error:
        raise _unread(path, error) from None
    if size_on_disk != size or size > LARGEST_ARCHIVE:  # an oversized file is not read
        raise SpecError(f"{path}: {size_on_disk:,} bytes, expected {size:,} as its manifest says; copy the set again")
    return size, sha256


def _part(path: Path, start: int, size: int, sha256: str, what: str = "") -> bytes:
    """``size`` bytes of a file; SpecError, one line, where their hash is another, which says ``what`` they are."""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            data = file.read(size)
    except OSError as error:
        raise _unread(path, error) from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise SpecError(
            f"{path}: {what}SHA-256 {digest[:16]}..., expected {sha256[:16]}... as its manifest says; copy the set"
            " again"
        )
    return data


def _unread(path: Path, error: OSError) -> SpecError:
    return SpecError(f"{path}: cannot be read ({error.strerror or error}); copy the set again")


def read_weights(folder: Path, manifest: Mapping[str, Any]) -> Mapping[str, npt.NDArray[Any]]:
    """The arrays of an estimator's folder, by name, read-only; SpecError where they are damaged, not a number, or
    hold anything but numbers: of a large file, when the array is asked for."""
    path = folder / WEIGHTS
    size, sha256 = _sized(path, manifest)
    places = _indexed(path, manifest, size)
    if places is None:
        return _unpacked(path, _part(path, 0, size, sha256))
    if size >= _SMALL:
        return _Stored(path, places)
    data = memoryview(_part(path, 0, size, sha256))
    return {name: _numbers(path, name, data[at : at + count]) for name, (at, count, _) in places.items()}


def _indexed(path: Path, manifest: Mapping[str, Any], size: int) -> dict[str, tuple[int, int, str]] | None:
    """Array -> (offset, bytes, sha256) in a file of ``size`` bytes; None where the manifest does not have them."""
    said = manifest[FILES][WEIGHTS].get(ARRAYS)
    if said is None:
        return None
    try:
        places = {
            name: (int(at), int(count), sha) for name, (at, count, sha) in ((n, p.split()) for n, p in said.items())
        }
        if not all(0 <= at <= at + count <= size for at, count, _ in places.values()):
            raise ValueError
    except (AttributeError, TypeError, ValueError):
        raise SpecError(
            f"{path.parent / MANIFEST}: key {ARRAYS!r} of {WEIGHTS} does not say where in the file its arrays are; run"
            " the `tilecast train` or `tilecast calibrate` that made the set again"
        ) from None
    return places


class _Stored(Mapping[str, "npt.NDArray[Any]"]):
    """Arrays of a large file: each is read, and its hash compared, at the first question for it."""

    def __init__(self, path: Path, places: Mapping[str, tuple[int, int, str]]) -> None:
        self._path, self._places = path, places

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        start, size, sha256 = self._places[name]
        return _numbers(self._path, name, memoryview(_part(self._path, start, size, sha256, f"array {name!r}: ")))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _unpacked(path: Path, data: bytes) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an npz file; those that are stored, not compressed, are views of ``data``."""
    from predictor.kernels.npz import BROKEN, members

    try:
        parts = [(name, content) for name, _, content in members(data)]
    except BROKEN as error:
        raise _no_arrays(path, error) from None
    return {name: _numbers(path, name, content) for name, content in parts}


def _no_arrays(path: Path, error: Exception) -> SpecError:
    said = " ".join(str(error).split())[:200]
    return SpecError(f"{path}: is not a file of arrays ({said}); expected what `tilecast train` writes")


def _numbers(path: Path, name: str, content: memoryview) -> npt.NDArray[Any]:
    """The array ``name``, in NumPy's npy format; SpecError, one line, for one that is broken or holds no numbers."""
    try:
        array = _array(content)
    except (TypeError, ValueError, OverflowError) as error:
        raise _no_arrays(path, error) from None
    if array.dtype.kind not in "iufb":
        raise SpecError(f"{path}: array {name!r} is of {array.dtype}; expected numbers")
    check_array(path, name, array)
    return array


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
