"""`tilecast sweep`: the points of a file, rows with notes, parts that survive what goes wrong."""

from __future__ import annotations

import csv
import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import sweep_workers

import predictor
from predictor.cli.main import main
from predictor.errors import RequestError, SpecError, TilecastError
from predictor.sweep import parts as store
from predictor.sweep import workers
from predictor.sweep.answers import answer, columns
from predictor.sweep.parts import Parts
from predictor.sweep.spec import Spec, read_spec
from predictor.sweep.workers import Task

MANY = "model: [gpt2, gpt2-large]\ngpu: [v100, a100]\nbatch: [1, 2, 3, 4, 5, 6]\nseq-len: 64\n"


def spec_of(text: str, folder: Path) -> Spec:
    path = folder / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    return read_spec(path)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# --------------------------------------------------------------------------------------------------------- points


def test_points_of_a_file(tmp_path: Path) -> None:
    text = """
model: [gpt2, gpt3]
gpu: h100
mode: train
batch: [8, 16]
cases: [{tp: 1}, {tp: 8, pp: [1, 2]}]
exclude: [{model: gpt2, tp: 8}, {batch: 16, pp: 2}]
include: [{model: bert-large, batch: 4}, {model: gpt2, batch: 8, tp: 1}]
"""
    spec = spec_of(text, tmp_path)
    shown = [tuple(point.get(n) for n in ("model", "batch", "tp", "pp")) for point in spec.points]
    assert shown == [
        ("gpt2", 8, 1, None),
        ("gpt2", 16, 1, None),
        ("gpt3", 8, 1, None),
        ("gpt3", 16, 1, None),
        ("gpt3", 8, 8, 1),
        ("gpt3", 8, 8, 2),
        ("gpt3", 16, 8, 1),
        ("bert-large", 4, None, None),
    ]  # fmt: skip  (the last include is there already)
    assert all(point["gpu"] == "h100" and point["mode"] == "train" for point in spec.points)
    assert spec.words == ("model", "gpu", "mode", "batch", "tp", "pp")


def test_lists_of_lengths_are_values(tmp_path: Path) -> None:
    spec = spec_of("model: gpt2\ngpu: h100\nprompt-lens: [12, 40]\n", tmp_path)
    assert [point["prompt_lens"] for point in spec.points] == [[12, 40]]
    spec = spec_of("model: gpt2\ngpu: h100\nprompt-lens: [[12, 40], [7]]\n", tmp_path)
    assert [point["prompt_lens"] for point in spec.points] == [[12, 40], [7]]


def test_a_file_of_includes_is_a_list_of_points(tmp_path: Path) -> None:
    spec = spec_of("mode: decode\ninclude: [{model: gpt2, gpu: t4}, {model: gpt3, gpu: h100}]\n", tmp_path)
    assert [point["model"] for point in spec.points] == ["gpt2", "gpt3"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: gpt2\n", "no gpu"),
        ("modell: gpt2\ngpu: h100\n", "nearest: model"),
        ("model: gpt2\ngpu: []\n", "empty list"),
        ("model: gpt2\ngpu: {h100: 1}\n", "plain values"),
        ("model: gpt2\ngpu: h100\ntop: 3\n", "unknown word 'top'"),
        ("model: gpt2\ngpu: h100\ncases: {tp: 1}\n", "a list of words"),
        ("model: gpt2\ngpu: h100\ntp: 1\ncases: [{tp: 2}]\n", "tp stands in a case and beside"),
        ("model: gpt2\ngpu: h100\nseq-len: 8\nseq_len: 9\n", "appears twice"),
        ("model: gpt2\ngpu: h100\nexclude: [{gpu: h200}]\n", "matches no point"),
        ("model: gpt2\ngpu: h100\nexclude: [{gpu: h100}]\n", "no point is left"),
        ("[1, 2]\n", "no words of a sweep"),
        (f"model: gpt2\ngpu: h100\nbatch: {list(range(3000))}\nseq_len: {list(range(3000))}\n", "expected at most"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of(text, tmp_path)
    assert said in str(caught.value) and "\n" not in str(caught.value)


# ----------------------------------------------------------------------------------------------------------- rows


def test_rows_are_predictions_and_a_bad_point_is_a_note(tmp_path: Path) -> None:
    points: list[dict[str, Any]] = [
        {"model": "gpt2", "gpu": "h100", "batch": 2, "seq_len": 128},
        {"model": "gpt2", "gpu": "h1000"},
        {"model": "gpt3", "gpu": "h100", "mode": "decode", "tp": 7},  # which is seen when the model is split
        {"model": "gpt2", "gpu": "t4", "mode": "generate", "output_len": 4, "seq_len": 32},
        {"model": "gpt2", "gpu": "h100", "batch": "many"},
    ]
    rows = answer(points, 10, "roofline")
    assert [row["point"] for row in rows] == [10, 11, 12, 13, 14]
    good = predictor.predict_many([points[0], points[3]], artifacts="roofline")
    for row, found in zip((rows[0], rows[3]), good, strict=True):
        assert row["latency_ms"] == found.latency_ms and row["note"] == ""
        assert row["memory_gib"] == found.memory.total / 2**30 and row["dtype"] == found.workload.dtype
    assert "nearest" in rows[1]["note"] and "--tp 7" in rows[2]["note"] and rows[4]["note"]
    assert not {"latency_ms"} & set(rows[1])
    assert set().union(*rows) <= set(columns(tuple(set().union(*points))))


def test_a_defect_is_a_note_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from predictor.sweep import answers

    def broken(runs: Any) -> Any:
        raise ZeroDivisionError("of nobody")

    monkeypatch.setattr(answers, "summaries", broken)
    rows = answer([{"model": "gpt2", "gpu": "h100"}] * 2, 0, "roofline")
    assert [row["note"] for row in rows] == ["failed: ZeroDivisionError: of nobody"] * 2


def test_points_that_fail_are_said_and_leave_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A point that is refused is its own fault, one that fails is not: the table is written, the status is 1."""
    from predictor.sweep import answers

    whole = answers.summaries

    def broken(runs: Any) -> Any:
        if any(run.work.batch == 2 for run in runs):
            raise ZeroDivisionError("of nobody")
        return whole(runs)

    monkeypatch.setattr(answers, "summaries", broken)
    spec, out = tmp_path / "s.yaml", tmp_path / "a.csv"
    spec.write_text("model: gpt2\ngpu: [h100, nobody]\nbatch: [1, 2]\n")
    words = ["sweep", str(spec), "--out", str(out), "--jobs", "1", "--artifacts", "roofline", "--json"]
    assert main(words) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["failed"] == 1 and json.loads(said.out)["noted"] == 3
    assert "1 of 4 points failed" in said.err and "ZeroDivisionError: of nobody" in said.err
    assert len(table(out)) == 4


# ---------------------------------------------------------------------------------------------------------- parts


def test_both_kinds_of_table_hold_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="extra 'train'")
    (tmp_path / "s.yaml").write_text(MANY + "include: [{model: gpt2, gpu: nobody}]\n", encoding="utf-8")
    for name in ("a.csv", "a.parquet"):
        words = ["sweep", str(tmp_path / "s.yaml"), "--out", str(tmp_path / name), "--jobs", "1", "--json"]
        assert main([*words, "--artifacts", "roofline"]) == 0
        summary = json.loads(capsys.readouterr().out)
        assert (summary["points"], summary["noted"], summary["forecast"]) == (25, 1, 24)
        assert "nobody" in summary["first_note"]
    rows, columns_ = table(tmp_path / "a.csv"), pq.read_table(tmp_path / "a.parquet").to_pydict()
    assert list(rows[0]) == list(columns_)
    assert columns_["point"] == list(range(25)) == [int(row["point"]) for row in rows]
    assert columns_["batch"][:6] == [1, 2, 3, 4, 5, 6] and isinstance(columns_["fits"][0], bool)
    for i, row in enumerate(rows[:-1]):
        assert float(row["latency_ms"]) == columns_["latency_ms"][i] > 0
    assert columns_["latency_ms"][-1] is None and rows[-1]["latency_ms"] == ""
    assert {path.name for path in tmp_path.iterdir()} == {"s.yaml", "a.csv", "a.parquet"}


def test_a_full_disk_loses_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.yaml").write_text(MANY, encoding="utf-8")
    words = ["sweep", str(tmp_path / "s.yaml"), "--jobs", "1", "--artifacts", "roofline", "--out"]
    assert main([*words, str(tmp_path / "whole.csv")]) == 0
    write, calls = store.atomic_write, []

    def full(path: Path, data: bytes) -> None:
        calls.append(path)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, data)

    monkeypatch.setattr(store, "atomic_write", full)
    capsys.readouterr()
    assert main([*words, str(tmp_path / "a.csv")]) == 1
    said = capsys.readouterr().err
    assert "No space left" in said and "8 of 24 points are kept" in said
    assert not (tmp_path / "a.csv").exists()
    assert main([*words, str(tmp_path / "a.csv")]) == 0
    assert "8 of them kept" in capsys.readouterr().out
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_parts_of_another_sweep_are_not_mixed_in(tmp_path: Path) -> None:
    spec = spec_of(MANY, tmp_path)
    with Parts(spec, tmp_path / "a.csv", "") as parts:
        parts.write(0, answer(parts.points(0), 0, "roofline"))
        with pytest.raises(RequestError, match="another sweep is at work"), Parts(spec, tmp_path / "a.csv", ""):
            pass
        with pytest.raises(TilecastError, match="other points"):
            parts.write(1, answer(parts.points(0), 0, "roofline"))
        with pytest.raises(TilecastError, match="2 parts are missing"):
            parts.finish()
    other = spec_of(MANY.replace("64", "65"), tmp_path)
    with pytest.raises(RequestError, match="--restart"), Parts(other, tmp_path / "a.csv", ""):
        pass
    with Parts(spec, tmp_path / "a.csv", "") as parts:
        assert parts.missing() == [1, 2]
        (parts.folder / "part-000000.json").write_text('[{"point": 3}]', encoding="utf-8")  # cut off, or edited
        assert parts.missing() == [0, 1, 2]
        parts.write(0, answer(parts.points(0), 0, "roofline"))
        there = json.loads((parts.folder / "part-000000.json").read_text(encoding="utf-8"))
        there["rows"][0]["point"] = 3  # a part of the same inputs that holds another point
        (parts.folder / "part-000000.json").write_text(json.dumps(there), encoding="utf-8")
        assert parts.missing() == [0, 1, 2]
    with Parts(other, tmp_path / "a.csv", "", restart=True) as parts:
        assert parts.missing() == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "a.txt"], "ends in .parquet or .csv"),
        ([], "--out"),
        (["--out", "a.csv", "--engine", "rays"], "expected one of processes, ray"),
        (["--out", "a.csv", "--jobs", "0"], "at least 1"),
    ],
)
def test_requests_that_are_refused(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "s.yaml").write_text(MANY, encoding="utf-8")
    import contextlib
    import io

    with contextlib.redirect_stderr(io.StringIO()) as error:
        assert main(["sweep", str(tmp_path / "s.yaml"), *words]) == 2
    assert said in error.getvalue()


def test_nothing_that_can_be_forecast_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text("model: nobody\ngpu: [h100, a100]\n", encoding="utf-8")
    assert main(["sweep", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "a.csv"), "--jobs", "1"]) == 1
    assert "no point could be forecast" in capsys.readouterr().err
    assert len(table(tmp_path / "a.csv")) == 2


# -------------------------------------------------------------------------------------------------------- workers


def tasks_of(marks: list[str], size: int = 1) -> list[Task]:
    """Parts of ``size`` points, the points marked "dies" or "kills" or "" one after the other."""
    points = [{"model": f"m{i}", **({mark: True} if mark else {})} for i, mark in enumerate(marks)]
    return [Task(i // size, points[i : i + size], i) for i in range(0, len(points), size)]


def test_parts_of_a_worker_that_dies_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process, killed before it hands its part over: every part is there, once."""
    monkeypatch.setattr(workers, "answer", sweep_workers.answer)
    tasks = tasks_of(["", "", "", "", "", "dies", "", ""], 2)
    found = list(workers.in_processes(tasks, str(tmp_path), 1))
    assert sorted(number for number, _ in found) == [0, 1, 2, 3]
    assert sorted(row["point"] for _, rows in found for row in rows) == list(range(8))
    assert (tmp_path / "died-m5").exists() and not any(row["note"] for _, rows in found for row in rows)


def test_a_point_that_kills_every_worker_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "answer", sweep_workers.answer)
    monkeypatch.setattr(workers, "TRIES", 1)
    found = dict(workers.in_processes(tasks_of(["", "", "kills", ""], 2), str(tmp_path), 2))
    rows = [row for number in sorted(found) for row in found[number]]
    assert [row["point"] for row in rows] == [0, 1, 2, 3]
    assert [bool(row["note"]) for row in rows] == [False, False, True, False]
    assert "its worker died" in rows[2]["note"]


def test_a_ray_cluster_whose_worker_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real cluster on this machine; a worker is killed with its part."""
    ray = pytest.importorskip("ray", reason="extra 'ray'")
    for name in ("RAY_ADDRESS", "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(sweep_workers.__file__).parent), *sys.path[:4]]))
    monkeypatch.setattr(workers, "answer", sweep_workers.answer)
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        found = list(workers.in_ray(tasks_of(["", "dies", "", ""], 2), str(tmp_path), 2))
    finally:
        ray.shutdown()
    assert sorted(number for number, _ in found) == [0, 1]
    assert sorted(row["point"] for _, rows in found for row in rows) == [0, 1, 2, 3]
    assert (tmp_path / "died-m1").exists() and not any(row["note"] for _, rows in found for row in rows)
