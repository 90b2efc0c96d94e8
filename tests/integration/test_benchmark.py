"""benchmarks/speed.py: every figure beside a yardstick of the same machine."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
speed = importlib.import_module("speed")


def test_every_figure_stands_beside_the_yardstick_and_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--json --runs 1 --models 6 --sweep 30 --grid 30 --many 300 --users 2 --seconds 1"
    command = [sys.executable, str(ROOT / "benchmarks" / "speed.py"), *words.split()]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd="/").stdout)
    assert f"{len(os.sched_getaffinity(0))} cores, Python {sys.version.split()[0]}" in figures["machine"]
    for name in ("warm", "sweep", "grid"):
        assert 0.02 < figures[name]["yardstick_ms"] < 200
        assert 0.1 < figures[name]["yardsticks"] < 100
    speed.show(figures, 1)
    text = capsys.readouterr().out
    assert text.startswith("machine: ") and text.count(" yardsticks of ") == 4


def test_a_multiple_is_of_the_work_and_not_of_the_machine() -> None:
    """Three yardsticks are three yardsticks, however busy the machine is; a part is its share of the call."""
    pair = speed.Pair()
    for _ in range(40):
        pair.time(lambda: [speed.yardstick() for _ in range(3)])
    assert pair.figures()["yardsticks"] == pytest.approx(3.0, rel=0.35)
    assert pair.figures(3)["yardsticks"] == pytest.approx(pair.figures()["yardsticks"] / 3)
    assert len(pair.yard_cpu_s) == len(pair.wall_s) == 40
