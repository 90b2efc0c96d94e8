"""What a collection has measured it does not measure again."""

from __future__ import annotations

from pathlib import Path

import pytest
from microbench_cases import row_of

from microbench.case import Case
from microbench.storage import FolderLock, Journal, StorageError, encode, write_atomic
from microbench.store import Store
from predictor.ops import Softmax

DONE, FAILED, NEW = (Case("softmax", Softmax("fp32", rows, 64), (), "warm", "eager_events") for rows in (1, 2, 3))


def opened(out: Path) -> Store:
    store = Store(out, "board", "torch", {"run": "one"})
    store.open(0.0)
    return store


def wanted(store: Store, retry_failures: bool) -> list[bool]:
    return [store.wants(case, retry_failures) for case in (DONE, FAILED, NEW)]


def test_what_is_done_or_failed_is_left_out(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert wanted(store, False) == [True, True, True]
    store.add_row(DONE, row_of(DONE))
    store.add_failure(FAILED, {"kind": "error", "message": "no"}, "2026-01-01T00:00:00+00:00")
    assert wanted(store, False) == [False, False, True]
    assert wanted(store, True) == [False, True, True]
    store.close()
    again = opened(tmp_path)
    assert wanted(again, False) == [False, False, True]
    assert [row["case_id"] for row in again.all_rows()] == [DONE.id]
    again.close()


def test_nothing_of_a_torn_line_is_left_behind_a_shorter_one(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    whole = encode({"case_id": "one"})
    path.write_bytes(whole + encode({"case_id": "x" * 500})[:-1])
    journal = Journal(path)
    assert path.read_bytes() == whole
    journal.append({"case_id": "two"})
    journal.close()
    assert path.read_bytes() == whole + encode({"case_id": "two"})


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="the disk is full"):
        write_atomic(path, b"after")
    assert path.read_bytes() == b"before"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_file_system_without_locks_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refused)
    with pytest.raises(StorageError, match="cannot be locked") as caught:
        opened(tmp_path)
    assert "\n" not in str(caught.value) and "microbench merge" in str(caught.value)


def test_a_lock_of_somebody_else_stays(tmp_path: Path) -> None:
    """A folder that is no data set's may have a file of that name."""
    (tmp_path / ".lock").write_bytes(b"mine\n")
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.release()
    assert (tmp_path / ".lock").read_bytes() == b"mine\n"
