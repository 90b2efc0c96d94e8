"""What a run of a command holds before any store sees it."""

from __future__ import annotations

import hashlib
import json
import pwd
from pathlib import Path

import pytest

from predictor.tracking import lifecycle
from predictor.tracking.record import LONGEST_VALUE, Record, TrackedRun


def started() -> TrackedRun:
    return TrackedRun(Record("train", "off"))


def test_only_finite_numbers_are_metrics() -> None:
    run = started()
    run.metrics({"gemm": {"n": 3, "p90": 1.5}, "bad": float("nan"), "worse": float("inf"), "word": "x", "odd name!": 1})
    assert run.record.metrics == {"gemm.n": 3.0, "gemm.p90": 1.5, "odd name_": 1.0}


def test_settings_are_words_and_cut_where_a_store_ends() -> None:
    run = started()
    run.parameters({"gpus": ["a", "b"], "split": {"seed": 0}, "long": "x" * 2 * LONGEST_VALUE})
    assert run.record.parameters == {"gpus": "a, b", "split.seed": "0", "long": "x" * LONGEST_VALUE}


def test_error_tables_become_a_figure_of_every_place_and_the_whole_comes_first() -> None:
    run = started()
    rows = [{"gpu": "t4", "operator": "gemm", "median_ape_pct": 2.0, "n": 3, "p90_ape_pct": None},
            {"gpu": "all", "operator": "gemm", "median_ape_pct": 4.0, "n": 9}]  # fmt: skip
    run.errors("heldout", rows)
    assert run.record.metrics == {
        "heldout_median_ape_pct/t4 gemm": 2.0, "heldout_median_ape_pct/all gemm": 4.0,
        "heldout_n/t4 gemm": 3.0, "heldout_n/all gemm": 9.0,
    }  # fmt: skip
    assert next(iter(run.record.metrics)).endswith("all gemm")


def test_the_set_that_was_used_is_known_by_its_hash(tmp_path: Path) -> None:
    text = json.dumps({"name": "mine"})
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
    run = started()
    run.used(tmp_path)
    assert run.record.parameters == {"set": "mine", "set_sha256": hashlib.sha256(text.encode()).hexdigest()}


def test_a_user_without_a_name_has_a_record_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that runs under a bare number: getpass finds no variable and no entry of the passwd file."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    tags = lifecycle._tags("train")
    assert "mlflow.user" not in tags and tags["tilecast.kind"] == "train"
