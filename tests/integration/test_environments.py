"""Where Tilecast runs: users without a home, odd widths of a terminal, streams that are closed or full."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from predictor.cli.main import main
from predictor.files.read import user_folder
from predictor.models.built.load import CONFIGS

ROOT = Path(__file__).resolve().parents[2]
PREDICT = ["predict", "--model", "gpt2", "--gpu", "h100", "--artifacts", "roofline"]
#: Commands one after the other in a process whose user has no name and no home, as in a container.
NO_HOME = """
import json, os, pwd, sys
os.environ.pop("HOME", None)
def nobody(*asked):
    raise KeyError("getpwuid(): uid not found: 12345")
pwd.getpwuid = pwd.getpwnam = nobody
from predictor.cli.main import main
for words in json.loads(sys.argv[1]):
    status = main(words)
    print(json.dumps(["status", status]), flush=True)
"""


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
        [sys.executable, "-c", NO_HOME, json.dumps(listed)], env=environment(), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    statuses = [json.loads(line)[1] for line in done.stdout.splitlines() if line.startswith('["status"')]
    assert statuses == [status for status, each_status in commands.items() for _ in each_status], done.stderr
    lines = done.stderr.splitlines()
    assert "Traceback" not in done.stderr and len(lines) <= 3, done.stderr
    assert [line for line in lines if line.startswith("error: this user has no home folder; expected HOME or XDG_")]
    assert [line for line in lines if line.startswith("error: a path begins with ~")]


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
