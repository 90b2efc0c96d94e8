"""Data sets of many nodes as one: every case once, every failure and collection, folders written whole or not at all.

Run again, it adds what is new: nothing is doubled. Of a case that two nodes measured the first one's row stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from microbench import ceilings
from microbench.dataset import DatasetFolder, read
from microbench.storage import FolderLock, write_atomic
from microbench.writer import OpFolder
from predictor.errors import RequestError


@dataclass(slots=True)
class Merged:
    """What a merge did. ``twice``: rows left out because their case had one already; ``warnings``: one line each."""

    sources: int = 0
    rows: int = 0
    twice: int = 0
    failures: int = 0
    folders: int = 0
    warnings: list[str] = field(default_factory=list)


def merge(sources: Sequence[Path], out: Path, wait_s: float = 0.0) -> Merged:
    """Adds the data sets ``sources`` to that in ``out``. Raises RequestError, StorageError, LockedError: one line."""
    for source in sources:
        if source.resolve() == out.resolve():
            raise RequestError(f"{source} is --out itself: expected the data sets to add to it")
    done = Merged(len(sources))
    by_device: dict[str, list[DatasetFolder]] = defaultdict(list)
    for source in sources:
        for part in read(source):
            if part.broken:
                done.warnings.append(f"{part.broken}; left out")
            else:
                by_device[part.device_folder.resolve().name].append(part)
    for device, parts in by_device.items():
        lock = FolderLock(out / device)
        lock.acquire(wait_s)
        try:
            for part in parts:
                _add(part, out, done)
            _device_file(parts, out / device, device)
        finally:
            lock.release()
    return done


def _add(part: DatasetFolder, out: Path, done: Merged) -> None:
    folder = OpFolder(out, part.name)
    try:
        rows = part.all_rows
        new = folder.take(rows)
        done.rows, done.twice, done.folders = done.rows + new, done.twice + len(rows) - new, done.folders + 1
        known = {(failure["case_id"], failure.get("measured_at")) for failure in folder.failures()}
        for failure in part.failures:
            if (failure["case_id"], failure.get("measured_at")) not in known:
                folder.fail(failure)
                done.failures += 1
        for collection in part.meta.get("collections", []):
            if "run" in collection:
                folder.note(collection)
    finally:
        folder.close()


def _device_file(parts: Sequence[DatasetFolder], folder: Path, device: str) -> None:
    """A board that the catalogue lacks: the first node's file, its ceilings raised to what any row reached."""
    if ceilings.in_catalogue(device):
        return
    target = folder / ceilings.DEVICE_FILE
    for part in parts:
        source = part.device_folder / ceilings.DEVICE_FILE
        if not target.exists() and source.is_file():
            write_atomic(target, source.read_bytes())
    spec = ceilings.spec_of(folder, device)
    if spec is None or not target.exists():
        return
    lifts = ceilings.lifts((row for part in parts for row in part.all_rows), spec)
    if lifts:
        ceilings.write_device(folder, ceilings.lifted(target, spec, lifts))
