"""Bytes on the disk that are whole or not there: a journal of checked lines, atomic files, a lock.

A journal line is `crc32 SPACE json NEWLINE`, appended and fsynced. A crash can leave half a line at the end only; it is
cut off when the journal is opened for writing and passed over when it is read.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from predictor.errors import TilecastError
from predictor.files.outputs import guarded

#: Temporary files carry this mark; whoever holds the lock of a device's folder removes what an earlier run left.
TEMPORARY = ".microbench-tmp"


class StorageError(TilecastError):
    """The disk refused: one line that says where, why and that what was measured is kept."""


class LockedError(TilecastError):
    """Another collector writes into the folder."""


def storage_error(path: Path, error: OSError) -> StorageError:
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"the disk is full: cannot write {path} ({reason}); what was measured before is kept: "
            "free some space and run the same command again"
        )
    return StorageError(f"cannot write {path}: {reason}")


def sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(path, error) from None


def write_atomic(path: Path, content: bytes) -> None:
    """Writes `content` beside `path`, fsyncs, renames, fsyncs the folder. Raises StorageError; leaves no temporary."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            _write_all(handle, content)
            os.fsync(handle)
        finally:
            os.close(handle)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise storage_error(path, error) from None


def write_output(path: Path, content: bytes) -> None:
    """The same for a file that --out names: a link's target is written. Raises RequestError for a file that this
    command reads, and for what is no plain file."""
    write_atomic(guarded("--out", path), content)


def _write_all(handle: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]


def remove_temporaries(root: Path) -> int:
    """Removes what an interrupted write left anywhere below `root`; returns how many files that were."""
    temporaries = list(root.rglob(f".*{TEMPORARY}"))
    for path in temporaries:
        path.unlink(missing_ok=True)
    return len(temporaries)


def encode(document: dict[str, Any]) -> bytes:
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode()
    return f"{zlib.crc32(text):08x} ".encode() + text + b"\n"


def decode(line: bytes) -> dict[str, Any] | None:
    """The document of one line, or None where the line is not whole or names no case."""
    if len(line) < 10 or line[8:9] != b" " or not line.endswith(b"\n"):
        return None
    body = line[9:-1]
    try:
        if int(line[:8], 16) != zlib.crc32(body):
            return None
        document = json.loads(body)
    except ValueError:
        return None
    return document if isinstance(document, dict) and isinstance(document.get("case_id"), str) else None


def read_journal(path: Path) -> tuple[list[dict[str, Any]], int, int]:
    """(documents, bytes of the whole lines at the start, lines that are broken although others follow them)."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], 0, 0
    documents: list[dict[str, Any]] = []
    good, position, broken = 0, 0, 0
    for line in _lines(content):
        position += len(line)
        document = decode(line)
        if document is None:
            broken += 1
            continue
        documents.append(document)
        good = position
    tail = 1 if broken and not content.endswith(b"\n") else 0
    return documents, good, broken - tail


def _lines(content: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(content):
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end + 1
        yield content[start:end]
        start = end


class Journal:
    """A file of checked lines, open for appending. Opening it cuts a torn tail off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.documents, good, self.broken = read_journal(path)
        try:
            new = not path.exists()
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            if os.fstat(self._handle).st_size > good:
                os.ftruncate(self._handle, good)
                os.fsync(self._handle)
            if new:
                sync_folder(path.parent)
        except OSError as error:
            raise storage_error(path, error) from None
        self._size = good

    def append(self, document: dict[str, Any]) -> None:
        """Durable when it returns. On an error the file is what it was before; raises StorageError."""
        line = encode(document)
        try:
            os.lseek(self._handle, self._size, os.SEEK_SET)
            _write_all(self._handle, line)
            os.fsync(self._handle)
        except OSError as error:
            os.ftruncate(self._handle, self._size)
            raise storage_error(self.path, error) from None
        self._size += len(line)
        self.documents.append(document)

    def clear(self) -> None:
        """Forgets every line (they stand elsewhere, durably)."""
        try:
            os.ftruncate(self._handle, 0)
            os.fsync(self._handle)
        except OSError as error:
            raise storage_error(self.path, error) from None
        self._size = 0
        self.documents = []

    def close(self) -> None:
        os.close(self._handle)


def _unlockable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{path} cannot be locked ({error.strerror or error}): this file system has no flock (NFS without a lock "
        "daemon?); collect to a local disk and `microbench merge` the folders"
    )


#: How the line of a holder begins.
_SIGNED = b"process "


class FolderLock:
    """One collector a device's folder, by flock on `.lock`: the kernel lets go of it however the process ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handle = -1

    def acquire(self, wait_s: float = 0.0, stopped: Callable[[], bool] = lambda: False) -> None:
        """Takes the lock, waiting up to ``wait_s`` for another collector to end, or until ``stopped`` says so.

        Raises LockedError, one line.
        """
        make_folder(self.folder)
        path = self.folder / ".lock"
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise storage_error(path, error) from None
        until = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() < until and not stopped():
                    time.sleep(0.2)
                    continue
                owner = os.pread(self._handle, 200, 0).decode(errors="replace").strip()
                os.close(self._handle)
                self._handle = -1
                raise LockedError(
                    f"{self.folder} is being collected into by {owner or 'another process'}: wait for it "
                    "(--wait), or give another --out"
                ) from None
            except OSError as error:
                os.close(self._handle)
                self._handle = -1
                raise _unlockable(path, error) from None
        self._sign()

    def _sign(self) -> None:
        """Who holds the lock, for the other's error line. The lock holds where a full disk refuses to write it."""
        try:
            there = os.pread(self._handle, len(_SIGNED), 0)
            if there and there != _SIGNED:  # a file of somebody else, which is locked and stays
                return
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        except OSError:
            return

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
