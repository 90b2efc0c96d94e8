"""`tilecast ledger`: entries that nobody changes unseen, and their errors when measurements come."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from predictor.cli.main import main
from predictor.tracking import ledger

ENTRY: dict[str, Any] = {
    "recorded_at": "2026-11-01T00:00:00+00:00", "version": "0", "words": {"model": "m", "gpu": "g"}, "files": {},
    "model": "m", "gpu": "g", "latency_ms": 10.0, "interval_ms": [8.0, 12.0], "notes": [], "set": {},
}  # fmt: skip


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert not said.out and said.err.count("\n") == 1
    return said.err


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A ledger of three entries that differ in batch and board."""
    path = tmp_path / "three.jsonl"
    for batch, board in ((1, "g"), (8, "g"), (8, "other")):
        words = {"model": "m", "gpu": board, "batch": batch}
        ledger.append(path, ENTRY | {"words": words, "gpu": board, "latency_ms": 10.0 * batch})
    return path


def scored(capsys: pytest.CaptureFixture[str], file: Path, table: str) -> dict[str, Any]:
    rows = file.with_name("rows.csv")
    rows.write_text(table, encoding="utf-8")
    assert main(["ledger", "score", str(file), "--measured", str(rows), "--json"]) == 0, capsys.readouterr().err
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_a_forecast_is_recorded_as_predict_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "gpt2", "--gpu", "h100", "--batch", "4", "--artifacts", "roofline", "--json"]
    assert main(["predict", *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    path = tmp_path / "blind.jsonl"
    for name in ("first", "second"):
        assert main(["ledger", "record", "--ledger", str(path), "--id", name, *words]) == 0
    printed = capsys.readouterr().out
    first, second = ledger.read(path)
    assert first["latency_ms"] == answer["latency_ms"] and first["interval_ms"] == answer["interval_ms"]
    assert first["words"] == {"model": "gpt2", "gpu": "h100", "batch": 4}
    assert first["set"] == {"name": "roofline", "manifest_sha256": ""}
    assert (first["previous"], second["previous"]) == ("", first["sha256"])
    assert second["sha256"] in printed


def test_a_launch_command_is_a_request_and_a_file_has_its_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Path(ledger.__file__).parents[1] / "models" / "built" / "configs" / "gpt2.json"
    path, copy = tmp_path / "blind.jsonl", tmp_path / "config.json"
    copy.write_bytes(config.read_bytes())
    said = ["--gpu", "h100", "--artifacts", "roofline", "--ledger", str(path)]
    assert main(["ledger", "record", "--from", f"vllm serve {copy} --dtype half", *said]) == 0
    (entry,) = ledger.read(path)
    assert entry["words"]["dtype"] == "fp16" and entry["words"]["execution"] == "vllm"
    assert list(entry["files"]) == ["model"] and len(entry["files"]["model"]) == 64


CHANGES: list[tuple[Callable[[list[str]], list[str]], str]] = [
    (lambda lines: [lines[0].replace('"latency_ms":10.0', '"latency_ms":11.0'), *lines[1:]], "line 1 was changed"),
    (lambda lines: [lines[0], lines[2]], "line 2 does not follow"),
    (lambda lines: lines[1:], "line 1 does not follow"),
    (lambda lines: [lines[1], lines[0], lines[2]], "line 1 does not follow"),
    (lambda lines: [*lines, lines[2]], "line 4 does not follow"),
    (lambda lines: [*lines, '{"format":"another"}\n'], "line 4: not an entry"),
    (lambda lines: [*lines, lines[2][:40]], "line 4 is not whole"),
    (lambda lines: ["id,measured_ms\n"], "not a ledger"),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_a_ledger_that_was_changed_is_refused_and_left_alone(
    change: Callable[[list[str]], list[str]], expected: str, three: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    three.write_text("".join(change(three.read_text().splitlines(keepends=True))), encoding="utf-8")
    before = three.read_bytes()
    rows = three.with_name("rows.csv")
    rows.write_text("id,measured_ms\n1,10\n", encoding="utf-8")
    assert expected in refusal(capsys, "ledger", "score", str(three), "--measured", str(rows))
    record = ["ledger", "record", "--ledger", str(three), "--model", "gpt2", "--gpu", "h100"]
    assert expected in refusal(capsys, *record)
    assert three.read_bytes() == before


def test_an_entry_whose_own_hash_was_written_anew_is_noticed_by_the_next(three: Path) -> None:
    first, *others = three.read_text().splitlines(keepends=True)
    forged = json.loads(first) | {"latency_ms": 11.0}
    forged["sha256"] = ledger.hash_of(forged)
    three.write_text(json.dumps(forged) + "\n" + "".join(others), encoding="utf-8")
    with pytest.raises(ledger.RequestError, match="line 2 does not follow"):
        ledger.read(three)


def test_a_full_disk_leaves_the_ledger_as_it_was(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write = three.read_bytes(), os.write

    def full(handle: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return write(handle, data[: len(data) - 50])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        ledger.append(three, ENTRY)
    assert three.read_bytes() == before
    monkeypatch.undo()
    assert ledger.append(three, ENTRY)["number"] == 4


def test_an_id_is_there_once_and_files_of_other_kinds_are_refused(
    three: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "gpt2", "--gpu", "h100", "--artifacts", "roofline"]
    before = three.read_bytes()
    assert "has an entry '2'" in refusal(capsys, "ledger", "record", "--ledger", str(three), "--id", "2", *words)
    assert three.read_bytes() == before
    table = str(three.with_name("rows.csv"))
    assert "ends in .jsonl" in refusal(capsys, "ledger", "record", "--ledger", table, *words)
    folder = three.with_name("folder.jsonl")
    folder.mkdir()
    assert "is a folder" in refusal(capsys, "ledger", "record", "--ledger", str(folder), *words)


def test_errors_and_coverage_are_those_of_the_rows(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = scored(capsys, three, "id,model,gpu,batch,measured_ms\n1,,,,12.5\n,m,other,8,100\n")
    assert [row["id"] for row in answer["rows"]] == ["1", "3"]
    assert [row["error_pct"] for row in answer["rows"]] == pytest.approx([-20.0, -20.0])
    assert [row["within"] for row in answer["rows"]] == [False, False]
    assert answer["summary"]["n"] == 2 and answer["summary"]["mean_signed_pct"] == pytest.approx(-20.0)
    assert answer["summary"]["interval_coverage_pct"] == 0.0
    answer = scored(capsys, three, "id,measured_ms\n1,10\n2,64\n")
    assert answer["summary"]["interval_coverage_pct"] == 50.0
    assert answer["sha256"] == ledger.read(three)[-1]["sha256"]


def test_what_is_not_blind_or_not_recorded_is_named(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = "id,measured_ms,measured_at\n1,10,2026-11-02\n2,80,2026-10-31\n7,5,\n"
    answer = scored(capsys, three, table)
    assert [row["id"] for row in answer["rows"]] == ["1"]
    first, second = (row["reason"] for row in answer["unscored"])
    assert "recorded after 2026-10-31" in first and "no entry '7'" in second


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("id,measured_ms\n1,0\n", "row 1: measured_ms '0'"),
        ("id,measured_ms\n1,soon\n", "row 1: measured_ms 'soon'"),
        ("id,measured_ms\n1,10\n1,11\n", "row 2: entry '1' has a measurement"),
        ("model,batch,measured_ms\nm,8,10\n", "row 1: entries '2' and '3' fit"),
        ("case,measured_ms\na,10\n", "row 1: says no entry"),
        ("id,measured_ms,measured_at\n1,10,soon\n", "row 1: measured_at 'soon'"),
        ("id,measured_ms\n9,10\n", "no row matches an entry"),
        ("id,mesured_ms\n1,10\n", "unknown column 'mesured_ms'"),
    ],
)
def test_a_bad_table_is_one_line(table: str, expected: str, three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = three.with_name("rows.csv")
    rows.write_text(table, encoding="utf-8")
    assert expected in refusal(capsys, "ledger", "score", str(three), "--measured", str(rows))
