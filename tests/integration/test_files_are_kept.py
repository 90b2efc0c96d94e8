"""No command destroys a file of a user: not one that it reads, nor one that Tilecast did not write."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from microbench.cli import main as microbench
from predictor.cli.main import main as tilecast
from predictor.hardware.gpu import load_gpu
from predictor.models.built.load import CONFIGS

OWN = b"years of work\n"
PREDICT = ("predict", "--model", "gpt2", "--gpu", "t4")
SIMULATE = ("serve", "simulate", "--model", "gpt2", "--gpu", "h100", "--rate", "1", "--requests", "4",
            "--isl", "16", "--osl", "4")  # fmt: skip
SUGGEST = ("calibrate", "--gpu", "t4", "--suggest", "5")
PLAN = ("plan", "--gpu", "t4", "--calibration", "--rows", "16", "--ops", "gemm")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a user's files, in which commands run; none of those that stood there may have changed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "off")
    (tmp_path / "own.txt").write_bytes(OWN)
    shutil.copyfile(CONFIGS / "gpt2.json", tmp_path / "model.json")
    shutil.copyfile(str(load_gpu("t4").path), tmp_path / "board.yaml")
    (tmp_path / "spec.yaml").write_text("model: [gpt2]\ngpu: [t4]\n")
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n0,16,4\n1,16,4\n")
    (tmp_path / "rows.csv").write_text("gpu,op,latency_ms\nt4,gemm,1.0\n")
    (tmp_path / "suite.csv").write_text(
        "gpu,config,mode,dtype,batch,seq_len,measured_ms\nt4,gpt2,forward,fp16,1,128,9\n"
    )
    return tmp_path


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(run: Callable[[Sequence[str]], int], words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The line of a refusal with status 2, after which every file is as it was."""
    before = bytes_of(Path.cwd())
    status = run(words)
    said = capsys.readouterr().err
    assert status == 2 and said.startswith("error: ") and said.count("\n") == 1, (words, said)
    assert bytes_of(Path.cwd()) == before, words
    return said


def test_an_input_is_no_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its name, a link, a hard link, another way to write its name; with --force, too."""
    os.link("board.yaml", "hard.yaml")
    Path("soft.yaml").symlink_to("board.yaml")
    Path("soft.json").symlink_to("model.json")
    models = ("predict", "--model", "model.json", "--gpu", "board.yaml")
    for words in (
        (*models, "--html", "model.json"), (*models, "--html", "board.yaml"), (*models, "--trace", "hard.yaml"),
        (*models, "--save-graph", "soft.json"), (*models, "--html", "soft.yaml"),
        (*models, "--html", f"../{folder.name}/board.yaml"),
        (*SIMULATE[:6], "--trace", "trace.csv", "--out", "trace.csv"),
        (*SIMULATE[:6], "--trace", "trace.csv", "--html", "trace.csv"),
        (*SIMULATE[:6], "--trace", "trace.csv", "--timeline", "trace.csv"),
        ("sweep", "spec.yaml", "--out", "spec.yaml"),
        ("calibrate", "--gpu", "board.yaml", "--data", "rows.csv", "--out", "rows.csv"),
        ("calibrate", "--gpu", "board.yaml", "--suggest", "5", "--out", "board.yaml"),
        ("evaluate", "kernels", "rows.csv", "--out", "rows.csv"),
        ("evaluate", "workloads", "suite.csv", "--out", "./suite.csv"),
        ("compare", "--model", "gpt2,model.json", "--gpu", "t4", "--out", "model.json"),
        ("plan", "--model", "model.json", "--gpu", "board.yaml", "--num-gpus", "1", "--global-batch", "1", "--out",
         "board.yaml"),
    ):  # fmt: skip
        for more in ((), ("--force",)):
            assert "this command reads it" in refused(tilecast, (*words, *more), capsys)
    assert "this command reads it" in refused(microbench, (*PLAN[:2], "board.yaml", "--out", "board.yaml"), capsys)
    assert "reads it" in refused(microbench, ("workload", "suite.csv", "--device", "cpu", "--out", "suite.csv"), capsys)


def test_a_file_that_is_read_on_the_way_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A set's files, and what the file of a sweep names."""
    assert tilecast((*PREDICT, "--save-graph", "graph.json")) == 0
    Path("parts.yaml").write_text("sizes: {}\nparts:\n  one: {model: graph.json}\n")
    words = ("predict", "--model", "parts.yaml", "--gpu", "t4", "--dtype", "fp16")
    capsys.readouterr()
    assert tilecast(words) == 0
    capsys.readouterr()
    assert "reads it" in refused(tilecast, (*words, "--html", "graph.json", "--force"), capsys)


def test_files_of_somebody_else_take_force(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every flag that writes a file; with --force it writes."""
    flags = (
        (tilecast, PREDICT, "--html", "own.txt"), (tilecast, PREDICT, "--trace", "own.txt"),
        (tilecast, PREDICT, "--save-graph", "own.json"), (tilecast, SIMULATE, "--out", "own.csv"),
        (tilecast, SIMULATE, "--html", "own.txt"), (tilecast, SIMULATE, "--timeline", "own.txt"),
        (tilecast, ("sweep", "spec.yaml", "--jobs", "1"), "--out", "own.csv"), (tilecast, SUGGEST, "--out", "own.csv"),
        (microbench, PLAN, "--out", "own.csv"),
    )  # fmt: skip
    for name in ("own.csv", "own.json"):
        Path(name).write_bytes(OWN)
    for run, words, flag, name in flags:
        assert "--force" in refused(run, (*words, flag, name), capsys), (words, flag)
    for run, words, flag, name in flags:
        assert run((*words, flag, name, "--force")) == 0, (words, flag)
        assert Path(name).read_bytes() != OWN
        capsys.readouterr()
        assert run((*words, flag, name)) == 0, f"{flag} again"  # what it wrote, it replaces
        Path(name).write_bytes(OWN)
    capsys.readouterr()


def test_measured_rows_are_no_cases(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--force" in refused(tilecast, (*SUGGEST, "--out", "rows.csv"), capsys)
    assert "--force" in refused(microbench, (*PLAN, "--out", "rows.csv"), capsys)
    words = ("dataset", "import", "neusight", str(folder), "--out", "rows.csv")
    assert "--force" in refused(tilecast, words, capsys)
    Path("new.csv.meta.json").write_bytes(OWN)
    assert "--force" in refused(tilecast, (*words[:-1], "new.csv"), capsys)


def test_two_outputs_are_two_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("link.json").symlink_to("same.json")
    for words in (("--html", "same.json", "--trace", "same.json"),
                  ("--html", "same.json", "--save-graph", "./same.json"),
                  ("--trace", "link.json", "--save-graph", "same.json")):  # fmt: skip
        assert "too; expected another one" in refused(tilecast, (*PREDICT, *words), capsys)
    assert "too; expected" in refused(tilecast, (*SIMULATE, "--html", "a", "--timeline", "a"), capsys)
    plans = ("serve", "plan", "--model", "gpt2", "--gpu", "t4", "--num-gpus", "1", "--isl", "16", "--osl", "4")
    assert "too; expected" in refused(tilecast, (*plans, "--out", "a.csv", "--out", "a.csv"), capsys)


def test_pipes_devices_and_folders_stay(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    os.mkfifo("pipe.csv")
    os.mkfifo("pipe.json")
    Path("folder.csv").mkdir()
    for words in ((*PREDICT, "--html", "pipe"), (*PREDICT, "--save-graph", "pipe.json"),
                  (*SIMULATE, "--out", "pipe.csv"), (*SIMULATE, "--timeline", "/dev/null"),
                  ("sweep", "spec.yaml", "--out", "pipe.csv"),
                  (*SUGGEST, "--out", "/dev/stdout"), (*SUGGEST, "--out", "pipe"),
                  (*SIMULATE, "--out", "folder.csv")):  # fmt: skip
        assert "expected" in refused(tilecast, (*words, "--force"), capsys)
    assert "expected" in refused(microbench, (*PLAN, "--out", "pipe", "--force"), capsys)
    assert Path("pipe").is_fifo() and Path("pipe.csv").is_fifo() and Path("/dev/null").is_char_device()


def test_a_link_stays_and_its_target_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pages").mkdir()
    Path("page.html").symlink_to("pages/new.html")
    assert tilecast((*PREDICT, "--html", "page.html")) == 0
    assert Path("page.html").is_symlink() and "Tilecast" in Path("pages/new.html").read_text()
    Path("pages/new.html").chmod(0o600)
    assert tilecast((*PREDICT, "--html", "page.html")) == 0
    assert Path("pages/new.html").stat().st_mode & 0o777 == 0o600
    Path("other.html").symlink_to("own.txt")
    capsys.readouterr()
    assert "--force" in refused(tilecast, (*PREDICT, "--html", "other.html"), capsys)


def test_a_folder_of_parts_that_is_not_ours_stays(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = Path("a.csv.parts")
    parts.mkdir()
    (parts / "thesis.json").write_bytes(OWN)
    words = ("sweep", "spec.yaml", "--out", "a.csv", "--jobs", "1")
    for more in ((), ("--restart",), ("--force",)):
        assert "folder of something else" in refused(tilecast, (*words, *more), capsys)
    (parts / "sweep.json").write_text("{}")  # as if one had begun there
    assert tilecast((*words, "--restart")) == 0
    assert (parts / "thesis.json").read_bytes() == OWN and [p.name for p in parts.iterdir()] == ["thesis.json"]
    parts.rename("kept")
    Path("kept.link").symlink_to("kept")
    Path("a.csv.parts").symlink_to("kept")
    capsys.readouterr()
    refused(tilecast, words, capsys)


def test_a_set_is_not_its_own_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """calibrate and train into the set or the folder of rows that they read, into one of something else, over files."""
    Path("set").mkdir()
    Path("set/manifest.json").write_text(json.dumps({"schema_version": 2, "name": "set", "estimators": []}))
    shutil.copyfile("rows.csv", "set/rows.csv")
    Path("thesis").mkdir()
    Path("thesis/manifest.json").write_text(json.dumps({"chapters": 9}))
    calibrate = ("calibrate", "--gpu", "board.yaml", "--data", "rows.csv")
    for words in (
        (*calibrate, "--artifacts", "set", "--out", "set"), (*calibrate, "--out", "thesis"),
        (*calibrate, "--out", "own.txt"), (*calibrate[:3], "--data", "set/rows.csv", "--out", "set"),
        ("train", "--data", "set", "--out", "set"), ("train", "--data", "rows.csv", "--out", "thesis"),
    ):  # fmt: skip
        for more in ((), ("--force",)):
            refused(tilecast, (*words, *more), capsys)


def test_a_gpu_file_keeps_what_a_measurement_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """launch-overhead writes YAML: not over a board's."""
    words = ("launch-overhead", "--device", "cpu", "--budget", "0.2s", "--out", "board.yaml")
    assert "--force" in refused(microbench, words, capsys)
    assert yaml.safe_load(Path("board.yaml").read_text())["name"]
