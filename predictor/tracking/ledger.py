"""A ledger: forecasts that are dated before anybody measures, one JSON object a line, chained by their hashes.

Each line has ``sha256``, the hash of its other keys, and ``previous``, that of the line before: whoever changes, drops
or moves a line makes every later one wrong. Lines cut off at the end leave a whole chain, so the last hash is worth
keeping elsewhere. Nothing but `append` writes, and it only adds: one write under a lock, flushed to the disk; what a
full disk cut off is taken back.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.errors import RequestError
from predictor.files.read import LARGEST_TABLE, check_plain, parse_json

#: What the key "format" of every line says.
FORMAT = "tilecast ledger 1"
#: ``previous`` of the first line.
FIRST = ""
_EXPECTED = "a ledger that `tilecast ledger record` wrote"
#: Of a file that was not there: readable by all. By definition of POSIX's custom.
_NEW_MODE = 0o644


def hash_of(entry: Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal digits, of an entry without its own ``sha256``."""
    return hashlib.sha256(_line({k: v for k, v in entry.items() if k != "sha256"})).hexdigest()


def read(path: Path) -> list[dict[str, Any]]:
    """The entries of a ledger, the oldest first; [] of an empty file.

    Raises RequestError, one line that names the first bad line, for a file of another kind and for a broken chain.
    """
    check_plain(path, _EXPECTED, LARGEST_TABLE)
    return _entries(path.read_bytes(), path)


def append(path: Path, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Adds an entry at the end of a ledger, which is made where it is not there; returns it as it was written.

    ``entry`` may have an ``id``, else it takes its number. Raises RequestError, one line, and changes nothing, where
    the file is of another kind, its chain is broken, or it has the id; OSError where the disk takes no more.
    """
    is_new = not path.exists()
    if not is_new:
        check_plain(path, _EXPECTED, LARGEST_TABLE)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, _NEW_MODE)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # the kernel lets go of it however this process ends
        before = path.read_bytes()
        entries = _entries(before, path)
        place = {"format": FORMAT, "number": len(entries) + 1, "previous": entries[-1]["sha256"] if entries else FIRST}
        whole = {"id": str(len(entries) + 1), **entry, **place}
        if any(other["id"] == whole["id"] for other in entries):
            raise RequestError(f"{path}: has an entry {whole['id']!r}; expected another --id")
        whole["sha256"] = hash_of(whole)
        _write(handle, _line(whole) + b"\n", len(before))
        if is_new:
            _flush_folder(path)
    finally:
        os.close(handle)
    return whole


def _line(entry: Mapping[str, Any]) -> bytes:
    """The text that stands in the file: keys sorted, no blanks, so that an entry has but one."""
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _entries(data: bytes, path: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    previous = FIRST
    *lines, rest = data.split(b"\n")
    for number, line in enumerate([*lines, rest] if rest else lines, start=1):
        where = f"{path}: line {number}"
        if number > len(lines):
            raise RequestError(f"{where} is not whole: a write was cut off; remove it, or record in another file")
        if not line.startswith(b"{") and number == 1:
            raise RequestError(f"{path}: not a ledger; expected {_EXPECTED}")
        entry = parse_json(line, where)
        if not isinstance(entry, dict) or entry.get("format") != FORMAT:
            raise RequestError(f"{where}: not an entry of a ledger (no format {FORMAT!r}); expected {_EXPECTED}")
        if entry.get("sha256") != hash_of(entry) or not isinstance(entry.get("id"), str):
            raise RequestError(f"{where} was changed after it was written: its hash is of another text")
        if entry.get("previous") != previous or entry.get("number") != number:
            raise RequestError(f"{where} does not follow the line before: one was dropped, moved or put in")
        previous = entry["sha256"]
        entries.append(entry)
    return entries


def _write(handle: int, data: bytes, size: int) -> None:
    """Adds ``data`` to a file of ``size`` bytes whole, on the disk; what was written of it in part is taken back."""
    try:
        done = os.write(handle, data)
        while done < len(data):
            done += os.write(handle, data[done:])
        os.fsync(handle)
    except BaseException:
        os.ftruncate(handle, size)
        raise


def _flush_folder(path: Path) -> None:
    """A new file's name on the disk, too."""
    folder = os.open(path.resolve().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
