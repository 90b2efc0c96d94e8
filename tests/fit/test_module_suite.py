"""`tilecast bench-suite`: a row a module and board, whatever a file does, and errors against measurements."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="extra 'torch'")

import predictor
from predictor.cli.main import main

SUMS = """import torch
print("a module may print")

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        print("and print again")
        return self.linear(x)

def get_inputs():
    return [torch.rand(256, 1024)]

def get_init_inputs():
    return [1024]
"""
CONVOLVES = """import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(1024, 1024, 1)

    def forward(self, x):
        return self.convolution(x)

def get_inputs():
    return [torch.rand(32, 1024, 28, 28)]

def get_init_inputs():
    return []
"""
BRANCHES = SUMS.replace("return self.linear(x)", "return x if x.sum() > 0 else self.linear(x)")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "modules"
    (place / "deep").mkdir(parents=True)
    for name, text in {
        "sums.py": SUMS, "deep/convolves.py": CONVOLVES, "branches.py": BRANCHES, "broken.py": "def f(:",
        "ends.py": "import sys\nsys.exit(3)", "nothing.py": "x = 1", "_hidden.py": "raise ValueError",
    }.items():  # fmt: skip
        (place / name).write_text(text, encoding="utf-8")
    return place


def suite(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> dict[str, Any]:
    assert main(["bench-suite", str(folder), "--artifacts", "roofline", *words, "--json"]) == 0, capsys.readouterr().err
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["bench-suite", *words]) == 2
    said = capsys.readouterr()
    assert not said.out and said.err.splitlines()[-1].startswith("error: ")
    return said.err


def test_every_file_is_a_row_on_every_board(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = suite(capsys, folder, "--gpu", "l4,v100")
    rows = {(row["module"], row["gpu"]): row for row in answer["rows"]}
    names = {"sums", "deep/convolves", "branches", "broken", "ends", "nothing"}
    boards = {predictor.load_gpu(name).id for name in ("l4", "v100")}
    assert set(rows) == {(name, board) for name in names for board in boards}
    notes = {name: row["note"] for (name, board), row in rows.items() if board == "l4"}
    assert notes["sums"] == notes["deep/convolves"] == ""
    assert "depends on numbers" in notes["branches"] and "SyntaxError" in notes["broken"]
    assert "exit 3" in notes["ends"] and "has no Model" in notes["nothing"]
    assert all((row["predicted_ms"] is None) == bool(row["note"]) for row in rows.values())
    assert not any("\n" in note for note in notes.values())


def test_convolutions_run_on_tensor_cores_where_a_board_has_tf32(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand: 32 x 28 x 28 pixels, 1024 x 1024 weights, 2 FLOPs each; a V100 has no TF32, a product stays fp32."""
    answer = suite(capsys, folder, "--gpu", "a100,v100")
    times = {(row["module"], row["gpu"]): row["predicted_ms"] for row in answer["rows"]}
    flops = 2.0 * 32 * 28 * 28 * 1024 * 1024
    for name, dtype in (("a100", "tf32"), ("v100", "fp32")):
        gpu = predictor.load_gpu(name)
        assert times["deep/convolves", gpu.id] == pytest.approx(flops / gpu.peak_flops(dtype) * 1e3, rel=0.2)
    a100 = predictor.load_gpu("a100")
    assert times["sums", a100.id] * 1e-3 >= 2.0 * 256 * 1024 * 1024 / a100.peak_flops("fp32")


def test_measurements_give_errors_by_board(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = {row["module"]: row["predicted_ms"] for row in suite(capsys, folder, "--gpu", "l4")["rows"]}
    table, out = tmp_path / "measured.csv", tmp_path / "out.csv"
    half, twice = plain["sums"] * 2.0, plain["deep/convolves"] / 2.0
    table.write_text(
        f"module,gpu,measured_ms,execution\nsums.py,l4,{half},eager\nsuite/deep/convolves,L4,{twice},eager\n"
        "sums,l4,9,compile\nanother,l4,1,eager\nbroken,l4,1,eager\n",
        encoding="utf-8",
    )
    answer = suite(capsys, folder, "--gpu", "l4,t4", "--measured", str(table), "--out", str(out))
    errors = {row["module"]: row["error_pct"] for row in answer["rows"] if row["gpu"] == "l4"}
    assert errors["sums"] == pytest.approx(-50.0) and errors["deep/convolves"] == pytest.approx(100.0)
    assert errors["broken"] is None and answer["measured_elsewhere"] == 1
    assert (answer["errors"]["l4"]["n"], answer["errors"]["l4"]["unpredicted"]) == (2, 1)
    assert answer["errors"]["l4"]["mean_ape_pct"] == pytest.approx(75.0)
    assert answer["errors"]["t4"]["n"] == 0
    with out.open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["module"] for row in written] == [row["module"] for row in answer["rows"]]
    assert main(["bench-suite", str(folder), "--artifacts", "roofline", "--gpu", "l4", "--measured", str(table)]) == 0
    printed = capsys.readouterr().out
    assert "(-50 %)" in printed and "75.00 %" in printed and "a module may print" not in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu", "l4,nope"], "unknown GPU 'nope'"),
        (["--gpu", "l4,l4"], "named twice"),
        (["--gpu", "l4", "--dtype", "nono"], "--dtype 'nono': expected one of"),
        (["--gpu", "l4", "--execution", "nono"], "--execution 'nono'"),
        (["--gpu", "l4", "--out", "x.txt"], "ends in .csv"),
    ],
)
def test_words_that_are_wrong_are_one_line(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(capsys, str(folder), *words)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("module,gpu,measured_ms\nsums,l4,0\n", "row 1: measured_ms '0'"),
        ("module,gpu,measured_ms\nsums,l4,1\nsums.py,L4,2\n", "row 2: sums.py on L4 has a row before"),
        ("module,gpu,measured_ms\n,l4,1\n", "row 1: no module"),
        ("module,gpu,measured_ms\nsums,nope,1\n", "unknown GPU 'nope'"),
    ],
)
def test_a_bad_table_is_one_line(table: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = folder.with_name("rows.csv")
    rows.write_text(table, encoding="utf-8")
    assert said in refusal(capsys, str(folder), "--gpu", "l4", "--measured", str(rows))


def test_a_folder_without_files_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such folder" in refusal(capsys, str(tmp_path / "none"), "--gpu", "l4")
    assert "no Python file" in refusal(capsys, str(tmp_path), "--gpu", "l4")
