"""`first-run --minutes`: what is done once, what goes on, and what is left where no time is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from microbench.cli import main
from microbench.commands import first_run
from predictor.errors import TilecastError

STEPS = ("doctor", "overhead", "strata", "side_by_side", "kill", "calibration", "collection", "calibrated")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Steps that were run, in order: each a note and no more."""
    names: list[str] = []
    for step in STEPS:
        monkeypatch.setattr(first_run.Session, step, lambda session, step=step: names.append(step) or {"done": step})
    monkeypatch.setattr(first_run, "process_age_s", lambda: 0.0)
    return names


def first(out: Path, *words: str) -> int:
    return main(["first-run", "--device", "cpu", "--out", str(out), *words])


def test_a_stopped_run_goes_on_behind_what_is_done_once(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(session: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(first_run.Session, "kill", stopped)
        with pytest.raises(KeyboardInterrupt):
            first_run.run(first_run_arguments(tmp_path / "out"))
    assert ran == ["doctor", "overhead", "strata", "side_by_side"]
    ran.clear()
    assert first(tmp_path / "out", "--minutes", "8") == 0
    assert ran == ["strata", "kill", "calibration", "collection", "calibrated"]
    assert "[1/8] doctor: done before" in capsys.readouterr().out
    notes = json.loads((tmp_path / "out" / "first-run.json").read_text())
    assert notes["doctor"] == {"done": "doctor"} and notes["kill and resume"] == {"done": "kill"}


def first_run_arguments(out: Path) -> Any:
    import argparse

    parser = argparse.ArgumentParser()
    first_run.add_arguments(parser)
    return parser.parse_args(["--device", "cpu", "--out", str(out), "--minutes", "8"])


def test_another_machine_begins_anew_and_a_failed_step_is_tried_again(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(session: Any) -> dict[str, Any]:
        raise TilecastError("no product to compare")

    with monkeypatch.context() as patch:
        patch.setattr(first_run.Session, "side_by_side", failed)
        assert first(tmp_path / "out") == 0
    ran.clear()
    assert first(tmp_path / "out") == 0 and ran[:2] == ["strata", "side_by_side"]
    ran.clear()
    monkeypatch.setattr(first_run.environment, "versions", lambda: {"torch": "another"})
    assert first(tmp_path / "out") == 0 and ran == list(STEPS)


class Board:
    """What the management library says of a GPU."""

    def __init__(self, uuid: str, driver: str) -> None:
        self._said = uuid, driver

    def uuid(self) -> str:
        return self._said[0]

    def driver(self) -> str:
        return self._said[1]


def test_another_device_or_thread_count_begins_anew(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures of a processor say nothing of a GPU, nor those of a GPU of the next one or of the next driver."""
    out = str(tmp_path / "out")
    gpu = ("first-run", "--device", "cuda", "--out", out)
    assert first(tmp_path / "out") == 0 and first(tmp_path / "out", "--threads", "1") == 0
    assert ran == [*STEPS, *STEPS]
    monkeypatch.setattr(first_run, "visible", lambda kind: ("0",))
    for board in (Board("GPU-a", "570.1"), Board("GPU-b", "570.1"), Board("GPU-b", "580.2"), None):
        monkeypatch.setattr(first_run.management, "entry_board", lambda entry, board=board: board)
        ran.clear()
        assert main(gpu) == 0 and ran == list(STEPS), board
        ran.clear()
        assert main(gpu) == 0 and ran == ["strata", "calibration", "collection", "calibrated"], board


def test_the_bounds_of_the_minutes_are_among_them(ran: list[str], tmp_path: Path) -> None:
    assert first(tmp_path / "out", "--minutes", "1440") == 0 and ran == list(STEPS)


def test_imports_are_of_the_budget_and_what_has_no_time_says_so(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert first_run.process_age_s() == 0.0
    monkeypatch.undo()
    assert 0.0 < first_run.process_age_s() < 86400
    for step in STEPS:
        monkeypatch.setattr(first_run.Session, step, lambda session, step=step: ran.append(step) or {"done": step})
    monkeypatch.setattr(first_run, "process_age_s", lambda: 119.0)
    assert first(tmp_path / "out", "--minutes", "2") == 0
    assert ran == ["doctor", "overhead", "calibrated"]
    assert capsys.readouterr().out.count("no time was left; run the same command again to continue") == 5


@pytest.mark.parametrize("minutes", ["1", "0", "-3", "nan", "1440.1", "2000"])
def test_minutes_that_make_no_sense_are_one_line(
    minutes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert first(tmp_path / "out", "--minutes", minutes) == 2
    assert capsys.readouterr().err.count("\n") == 1
