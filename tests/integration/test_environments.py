"""Where Tilecast runs: users without a home, odd widths of a terminal, streams that are closed or full."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from microbench.cli import main as microbench
from microbench.progress import Progress
from predictor.cli.main import main
from predictor.files.read import user_folder
from predictor.models.built.load import CONFIGS
from predictor.report import under_way

ROOT = Path(__file__).resolve().parents[2]
PREDICT = ["predict", "--model", "gpt2", "--gpu", "h100", "--artifacts", "roofline"]
#: Commands one after the other in a process whose user has no name and no home, as in a container.
NO_HOME = """
import json, os, pwd, sys
os.environ.pop("HOME", None)
def nobody(*asked):
    raise KeyError("getpwuid(): uid not found: 12345")
pwd.getpwuid = pwd.getpwnam = nobody
from microbench.cli import main as microbench
from microbench.progress import Progress
from predictor.cli.main import main
for words in json.loads(sys.argv[1]):
    status = main(words)
    print(json.dumps(["status", status]), flush=True)
"""


#: A locale of ASCII alone, which Python is kept from mending.
PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def environment(**words: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "TILECAST_", "MLFLOW"))}
    return kept | {"PYTHONPATH": str(ROOT), **words}


def test_a_user_without_a_home_has_answers_or_a_line(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="the extra train is not installed")
    suite = tmp_path / "suite.csv"
    suite.write_text("case,config,mode,gpu,dtype,seq_len,global_batch,measured_ms\na,gpt2,forward,h100,bf16,64,1,3\n")
    model = tmp_path / "model.py"
    model.write_text("import torch\ndef build():\n    return torch.nn.Linear(8, 8), [torch.zeros(4, 8)]\n")
    of_torch = [["predict", "--model", f"{model}:build", "--gpu", "h100", "--artifacts", "roofline"]]
    traced = importlib.util.find_spec("torch") is not None
    commands = {
        0: [PREDICT, ["gpus", "h100"],
            ["evaluate", "workloads", str(suite), "--configs", str(CONFIGS), "--artifacts", "roofline"],
            *(of_torch if traced else [])],
        2: [["runs"], ["predict", "--model", "~/config.json", "--gpu", "h100"]],
    }  # fmt: skip
    listed = [words for each_status in commands.values() for words in each_status]
    done = subprocess.run(
        [sys.executable, "-c", NO_HOME, json.dumps(listed)], env=environment(**PLAIN), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    statuses = [json.loads(line)[1] for line in done.stdout.splitlines() if line.startswith('["status"')]
    assert statuses == [status for status, each_status in commands.items() for _ in each_status], done.stderr
    lines = done.stderr.splitlines()
    assert "Traceback" not in done.stderr and len(lines) <= 3, done.stderr
    assert [line for line in lines if line.startswith("error: this user has no home folder; expected HOME or XDG_")]
    assert [line for line in lines if "a path begins with ~, and there is no such home folder" in line]


@pytest.mark.parametrize("columns", ["0", "1", "-5", "²", "x", "1000000000"])
def test_any_width_of_a_terminal_has_the_answer(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", columns)
    assert main(PREDICT) == 0
    said = capsys.readouterr()
    assert "gpt2" in said.out and said.err == "" and max(map(len, said.out.splitlines())) < 1000


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("term", ["xterm", "dumb", None])
@pytest.mark.parametrize("columns", ["0", "-1", "²", "1000000000"])
def test_any_terminal_shows_how_far_the_work_is(
    columns: str, term: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", columns)
    monkeypatch.delenv("TERM", raising=False) if term is None else monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(under_way, "PATIENCE_S", 0.0)
    monkeypatch.setattr(sys, "stderr", seen := Terminal())
    with under_way.UnderWay("counting", total=3, unit="steps") as life:
        life._timer and life._timer.join()
        life.at(2)
        assert life._drawn is not None and life._drawn.console.width <= 10_000
    progress = Progress(total=3, budget_s=None)
    progress.note("a word beside the bar [bold]")
    progress.close()
    assert "a word beside the bar [bold]" in seen.getvalue() and len(seen.getvalue()) < 100_000


def imported(path: Path) -> Path:
    """A data set of six products of an H100, as `dataset import csv` writes it."""
    lines = [f"{m},4096,4096,bf16,{40 + m / 20}" for m in (16, 128, 512, 1024, 2048, 4096)]
    (path / "own.csv").write_text("\n".join(["m,n,k,dtype,latency_us", *lines, ""]))
    assert main(["dataset", "import", "csv", str(path / "own.csv"), "--gpu", "h100", "--op", "gemm", "--out",
                 str(path / "own.parquet")]) == 0  # fmt: skip
    return path / "own.parquet"


def every_verb(folder: Path) -> list[tuple[int, list[str]]]:
    """A short command of every verb with its exit status; files are in ``folder``."""
    roofline = ["--artifacts", "roofline"]
    sweep, suite, rows = folder / "points.yaml", folder / "suite.csv", imported(folder)
    sweep.write_text("model: gpt2\ngpu: [h100, a100]\nmode: forward\n")
    suite.write_text("case,config,mode,gpu,dtype,seq_len,global_batch,measured_ms\na,gpt2,forward,h100,bf16,64,1,3\n")
    load = ["--model", "gpt2", "--gpu", "h100", "--isl", "64", "--osl", "8", *roofline]
    off = ["--tracking-uri", "off"]
    return [
        (0, PREDICT), (0, ["compare", "--model", "gpt2", "--gpu", "h100,a100", *roofline]), (0, ["models", "gpt2"]),
        (0, ["plan", "--model", "gpt2", "--gpu", "h100", "--num-gpus", "2", "--global-batch", "4", *roofline]),
        (0, ["serve", "plan", *load, "--num-gpus", "1", "--tpot", "20ms", "--execution", "vllm"]),
        (0, ["serve", "simulate", *load, "--rate", "8", "--requests", "9"]), (0, ["gpus", "h100"]),
        (0, ["sweep", str(sweep), "--out", str(folder / "answers.csv"), "--restart", "--jobs", "1", *roofline]),
        (0, ["dataset", "describe", str(rows)]), (0, ["completion", "bash"]),
        (0, ["evaluate", "workloads", str(suite), "--configs", str(CONFIGS), *roofline, *off]),
        (0, ["evaluate", "kernels", str(rows), *roofline, *off]),
        (2, ["calibrate", "--gpu", "a100", "--data", str(rows), "--out", str(folder / "set"), *off]),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def verbs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, list[str]]]:
    pytest.importorskip("pandas", reason="the extra train is not installed")
    return every_verb(tmp_path_factory.mktemp("verbs"))


@pytest.mark.parametrize("kind", ["folder deleted", "nothing set, home read-only"])
def test_every_verb_answers_or_says_a_line(
    kind: str, verbs: list[tuple[int, list[str]]], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    if kind == "folder deleted":
        monkeypatch.chdir(tmp_path)
        tmp_path.rmdir()
    else:  # no user, root among them, can make a file below /proc
        for name in set(os.environ) - {"PATH"}:
            monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", "/proc/self")
        monkeypatch.setenv("TMPDIR", "/proc/self")
    for status, words in verbs:
        capsys.readouterr()
        got = main(words)
        said = capsys.readouterr()
        assert got == status, (words, said.err)
        assert (said.out.strip() != "" and "Traceback" not in said.err) if status == 0 else said.err.count("\n") == 1


def test_processes_are_not_started_from_a_deleted_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What starts a process there fails by itself, with a traceback of `multiprocessing` or of torch."""
    pytest.importorskip("uvicorn", reason="the extra ui is not installed")
    sweep = tmp_path / "points.yaml"
    sweep.write_text(f"model: gpt2\ngpu: h100\nmode: forward\nbatch: {list(range(1, 130))}\n")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    roofline = ["--artifacts", "roofline"]
    for command, words in (
        (main, ["ui", "--port", "0", *roofline]),
        (main, ["sweep", str(sweep), "--out", str(tmp_path / "answers.csv"), "--jobs", "2", *roofline]),
        (microbench, ["collect", "--device", "cpu", "--budget", "9s", "--ops", "gemm", "--max-cases", "1",
                      "--out", str(tmp_path / "rows"), "--tracking-uri", "off"]),
    ):  # fmt: skip
        capsys.readouterr()
        assert command(words) == 2, words
        said = capsys.readouterr()
        assert said.out == "" and said.err.splitlines()[-1].startswith("error: the working folder was deleted"), said
        assert "Traceback" not in said.err
    assert not (tmp_path / "rows").exists()  # no run is begun that a later one would go on with


def test_an_error_is_never_an_answer() -> None:
    """With standard error closed the line is lost; on standard output it would be taken for JSON."""
    code = "import os, sys; from predictor.cli.main import main; sys.stderr = None; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "predict", "--model", "nope", "--gpu", "h100", "--json"], env=environment(),
        stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == b""


def test_a_folder_of_the_user_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative one would be another folder wherever the command is given (XDG base directories, 0.8)."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_folder("XDG_CACHE_HOME", ".cache") == tmp_path / ".cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    assert user_folder("XDG_CACHE_HOME", ".cache") == tmp_path / "kept"
