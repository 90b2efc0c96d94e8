"""All folders of one device, behind one lock of the folder and one of the threads: where rows and failures go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from microbench.case import Case
from microbench.storage import FolderLock, remove_temporaries
from microbench.writer import OpFolder, Row, op_folders, read_rows
from predictor.errors import SpecError


@dataclass(slots=True)
class Store:
    """`<out>/<device>/`: opened by one process, used by the threads of all its workers on boards of that id.

    `broken`: operators whose folder cannot be read, and why. They are left out, and the others are measured.
    """

    out: Path
    device: str
    stack: str
    run: dict[str, Any]
    new_rows: int = 0
    new_failures: int = 0
    broken: dict[str, str] = field(default_factory=dict)
    _folders: dict[str, OpFolder] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _lock: FolderLock | None = None

    @property
    def path(self) -> Path:
        return self.out / self.device

    def open(self, wait_s: float, stopped: Callable[[], bool] = lambda: False) -> None:
        """Takes the device's lock, clears away what a crash left and moves every journal into its parquet file.

        Raises LockedError and StorageError, one line each.
        """
        lock = FolderLock(self.path)
        lock.acquire(wait_s, stopped)
        self._lock = lock
        remove_temporaries(self.path)
        for folder in op_folders(self.path):
            if folder.name == self.stack:
                try:
                    self.folder(folder.parent.name).compact()
                except SpecError as error:
                    self.broken[folder.parent.name] = str(error)

    def folder(self, op: str) -> OpFolder:
        """The folder of one launcher, opened at its first use."""
        if op not in self._folders:
            folder = OpFolder(self.out, f"{self.device}/{op}/{self.stack}")
            self._folders[op] = folder
            folder.note(self.run)
        return self._folders[op]

    def wants(self, case: Case, retry_failures: bool) -> bool:
        """Whether ``case`` has no row yet, and has not failed for good (or is to be tried again)."""
        with self._guard:
            if case.launcher in self.broken:
                return False
            folder = self._folders.get(case.launcher)
            if folder is None:
                return True
            return case.id not in folder.done and (retry_failures or folder.to_try(case.id))

    def add_row(self, case: Case, row: Row) -> None:
        """Durable when it returns. Raises StorageError."""
        with self._guard:
            self.folder(case.launcher).append(row)
            self.new_rows += 1

    def add_failure(self, case: Case, failure: Mapping[str, Any], when: str) -> None:
        """Durable when it returns. Raises StorageError."""
        document = {"case_id": case.id, "measured_at": when, **failure, "case": case.to_json()}
        with self._guard:
            self.folder(case.launcher).fail(document)
            self.new_failures += 1

    def rows(self, launcher: str) -> list[Row]:
        """Every row of a launcher that this device and software have."""
        return [] if launcher in self.broken else read_rows(self.path / launcher / self.stack)

    def all_rows(self) -> list[Row]:
        mine = (folder for folder in op_folders(self.path) if folder.name == self.stack)
        return [row for folder in mine for row in self.rows(folder.parent.name)]

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Moves every journal into its parquet file and notes how the run ended. Raises StorageError."""
        with self._guard:
            for folder in self._folders.values():
                folder.compact()
                folder.note({**self.run, **facts})

    def close(self) -> None:
        """Lets go of files and lock."""
        for folder in self._folders.values():
            folder.close()
        self._folders.clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
