"""Long work says so on a terminal, on stderr, after a second; that is gone at the end, and stdout is the answer's."""

from __future__ import annotations

import argparse
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from predictor.report import under_way
from predictor.report.under_way import UnderWay

#: Work of a second and a half that prints an answer, in steps.
SLOW = """
import sys, time, argparse
from predictor.report.under_way import UnderWay
with UnderWay("working", argparse.Namespace(json="--json" in sys.argv), total=3, unit="steps") as life:
    for step in range(3):
        time.sleep(float(sys.argv[1]) / 3)
        life.at(step + 1)
print("the answer")
"""


def on_a_terminal(*words: str) -> tuple[str, str, list[tuple[float, str]]]:
    """Standard output (a pipe), all of stderr (a terminal), and its pieces with the seconds at which they came."""
    ours, theirs = pty.openpty()
    began, pieces = time.monotonic(), []
    work = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=theirs, text=True, cwd=Path(__file__).parents[2],
        env=os.environ | {"TERM": "xterm", "COLUMNS": "80", "PYTHONPATH": "."},
    )  # fmt: skip
    os.close(theirs)
    while True:
        ready, _, _ = select.select([ours], [], [], 60.0)
        try:
            piece = os.read(ours, 65536) if ready else b""
        except OSError:  # Linux: the other side is closed
            piece = b""
        if not piece:
            break
        pieces.append((time.monotonic() - began, piece.decode()))
    os.close(ours)
    assert work.stdout is not None
    said = work.stdout.read()
    assert work.wait(60) == 0
    return said, "".join(piece for _, piece in pieces), pieces


def test_it_appears_after_a_second_and_is_gone_at_the_end() -> None:
    said, drawn, pieces = on_a_terminal("-c", SLOW, "2.5")
    assert said == "the answer\n"
    assert "working" in drawn and "/3" in drawn and "steps" in drawn
    assert next(at for at, piece in pieces if "working" in piece) >= under_way.PATIENCE_S
    assert drawn.rstrip().endswith("\x1b[2K")  # the last thing that is done to the line is to erase it


def test_short_work_and_json_into_a_file_draw_nothing() -> None:
    assert on_a_terminal("-c", SLOW, "0.1")[:2] == ("the answer\n", "")
    assert on_a_terminal("-c", SLOW, "1.5", "--json")[:2] == ("the answer\n", "")


def test_nothing_is_drawn_where_stderr_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(under_way, "PATIENCE_S", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")  # with which rich takes a pipe for a terminal
    with UnderWay("working", argparse.Namespace(json=False), total=2) as life:
        life.at(1)
        time.sleep(0.3)
    assert capfd.readouterr() == ("", "")


def test_commands_that_take_long_say_so() -> None:
    """A command on a terminal, where a twentieth of a second is long: the line comes and goes, the answer is whole."""
    code = (
        "import sys; from predictor.report import under_way; under_way.PATIENCE_S = 0.05;"
        " from predictor.cli.main import main;"
        " sys.exit(main(sys.argv[1:]))"
    )
    words = ["serve", "plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--num-gpus", "2", "--isl", "2000"]
    given = [*words, "--osl", "200", "--tpot", "30ms", "--execution", "vllm", "--simulate", "0"]
    said, drawn, _ = on_a_terminal("-c", code, *given)
    assert "planning for 2 GPUs" in drawn and drawn.rstrip().endswith("\x1b[2K")
    plain = subprocess.run(
        [sys.executable, "-m", "predictor", *given], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2], env=os.environ | {"COLUMNS": "80"},
    )  # fmt: skip
    assert said == plain.stdout and plain.stderr == ""
