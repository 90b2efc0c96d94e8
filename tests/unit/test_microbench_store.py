"""What a collection has measured it does not measure again."""

from __future__ import annotations

from pathlib import Path

from microbench_cases import row_of

from microbench.case import Case
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
