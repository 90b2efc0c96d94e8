"""Recordings that are kept between runs, in the user's cache folder, by a hash of all that they follow from."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from predictor import __version__
from predictor.errors import RequestError
from predictor.files import atomic_write, read_json, user_folder
from predictor.graph.recording import Recording
from predictor.graph.saved_graph import VERSION, load_recording, save_recording

Kept = TypeVar("Kept")
#: Characters of a name in that of a file, below what file systems take: chosen by hand, not from data.
_LONGEST = 80


def cache_folder() -> Path:
    """Where recordings are kept: $TILECAST_CACHE, else `tilecast` in the user's cache folder (XDG)."""
    said = os.environ.get("TILECAST_CACHE")
    if said:
        return Path(said)
    return user_folder("XDG_CACHE_HOME", ".cache") / "tilecast" / "graphs"


def kept_or(make: Callable[[], Recording], name: str, key: Sequence[Any], packages: Sequence[str]) -> Recording:
    """The recording that ``make`` gives, or gave for this ``key`` with these versions of ``packages``, of torch, and of
    what records here."""
    return _kept(make, load_recording, save_recording, name, key, packages)


def kept_object(
    make: Callable[[], dict[str, Any]], name: str, key: Sequence[Any], packages: Sequence[str]
) -> dict[str, Any]:
    """As `kept_or`, of an object that JSON can hold."""

    def save(made: dict[str, Any], path: Path) -> None:
        atomic_write(path, json.dumps(made).encode())

    return _kept(make, read_json, save, name, key, packages)


def _kept(
    make: Callable[[], Kept], load: Callable[[Path], Kept], save: Callable[[Kept, Path], None], name: str,
    key: Sequence[Any], packages: Sequence[str],
) -> Kept:  # fmt: skip
    versions = [_version(each) for each in ("torch", *packages)]
    text = json.dumps([*key, versions, VERSION, __version__, _recorder()], sort_keys=True, default=str)
    plain = re.sub(r"[^\w.-]+", "_", name)[:_LONGEST]  # a file of a pipeline chooses the name of a part
    try:
        folder = cache_folder()
    except RequestError:  # a user without a home: every run makes it
        return make()
    path = folder / f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
    try:
        if path.is_file():
            return load(path)
    except (RequestError, OSError):
        pass  # none that can be read
    made = make()
    with contextlib.suppress(OSError):  # a folder that cannot be written: the next run makes it again
        save(made, path)
    return made


@lru_cache(maxsize=1)
def _recorder() -> str:
    """Tells the code that records from that of other versions: its files, and those that fold what it records."""
    package = Path(__file__).parent
    found = hashlib.sha256()
    for path in sorted((*package.glob("*.py"), *(package.parent / "graph").glob("*.py"))):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
