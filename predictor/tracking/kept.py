"""Runs that a store did not take, kept on this machine until they are sent."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

from predictor.errors import SpecError, TilecastError
from predictor.files.read import atomic_write, read_json
from predictor.tracking.record import Record
from predictor.tracking.store import SET_FOLDER, address, first_line, installed, push, state_folder

PENDING = "run.json"


def keep(record: Record) -> Path:
    """Copy a run and its artifacts into a folder of their own, whole or not at all; that folder."""
    home = state_folder() / "pending"
    home.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=home, prefix=".new."))
    try:
        kept = Record(**asdict(record))
        if record.folder:
            shutil.copytree(record.folder, temporary / SET_FOLDER)
            kept.folder = SET_FOLDER
        kept.files = []
        for path in map(Path, record.files):
            shutil.copy2(path, temporary / path.name)
            kept.files.append(path.name)
        atomic_write(temporary / PENDING, (json.dumps(asdict(kept), indent=1) + "\n").encode())
        place = home / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(record.started_ms / 1e3))}-{temporary.name[5:]}"
        temporary.rename(place)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return place


def pending() -> list[tuple[Path, Record]]:
    """Runs kept on this machine, the oldest first."""
    records = []
    for path in sorted((state_folder() / "pending").glob(f"[!.]*/{PENDING}")):
        known = {entry.name for entry in fields(Record)}
        try:
            record = Record(**{k: v for k, v in read_json(path).items() if k in known})
            record.folder = str(path.parent / record.folder) if record.folder else ""
            record.files = [str(path.parent / name) for name in record.files]
        except TypeError as error:
            raise SpecError(f"{path}: expected a run that was kept here ({error}); remove its folder") from None
        records.append((path.parent, record))
    return records


def push_pending(uri: str | None, say: Callable[[str], None]) -> int:
    """Send every kept run, to ``uri`` or to where it was meant to go; how many are left. A sent run is removed here."""
    left = 0
    waiting = pending()
    if waiting and not installed():
        raise TilecastError("sending runs needs mlflow, which is not installed: pip install 'tilecast[train]'")
    for place, record in waiting:
        record.uri = uri or record.uri
        try:
            push(record)
        except Exception as error:
            say(f"{place.name}: MLflow at {record.uri} failed ({first_line(error)}); kept")
            left += 1
            continue
        shutil.rmtree(place)
        say(f"{place.name}: sent as run {record.run_id}: {address(record)}")
    return left
