"""Suites of training: rows as requests, and the parts that `benchmarks/training_effects.py` adds up; with the public
data, the errors that benchmarks/results/accuracy-training-2026-11-23.md states, with room for other estimators."""

from __future__ import annotations

import argparse
import csv
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import data_folder

from predictor.fit.suite import described
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import default_system, load_system

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("training_effects", ROOT / "benchmarks" / "training_effects.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def suite(name: str) -> tuple[list[dict[str, Any]], Path]:
    folder = data_folder()
    if folder is None or not (folder / "ground_truth" / f"{name}.csv").is_file():
        pytest.skip("the public data is not here")
    with (folder / "ground_truth" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file)), folder / "ground_truth" / "configs"


def test_a_row_says_its_network() -> None:
    system = default_system(load_gpu("a100-sxm-80gb"))
    slow = described(system, 8, 800.0)
    assert slow.across(8)[0] == pytest.approx(100e9) and slow.id == system.id
    assert described(system, 8, 0.0) is system
    assert described(system, 4, 800.0).gpus_per_node == 4


def test_hosts_of_a_rack_share_its_links() -> None:
    """A row of GB200 says 4 GPUs a node, as Slurm counts them; NVLink joins 72, and each host brings its cards."""
    rack = load_system("gb200-nvl72")
    assert described(rack, 4, 0.0) is rack
    assert described(rack, 4, 1600.0).across(72)[0] == described(rack, 0, 1600.0).across(72)[0] == 18 * 1600e9 / 8
    assert described(rack, 72, 7200.0).across(72)[0] == 7200e9 / 8
    assert described(rack, 36, 0.0).gpus_per_node == 36


def test_the_five_modes_of_a_layer_come_out_in_order(script: ModuleType) -> None:
    rows, configs = suite("korthikanti_layer")
    trained = [row for row in rows if row["mode"] == "train"]
    found, left = script.forecasts(trained, configs, {})
    assert not left and len(found) == 5
    measured = [float(row["measured_ms"]) for row, _ in found]
    forecast = [one.latency_s for _, one in found]
    assert sorted(range(5), key=measured.__getitem__) == sorted(range(5), key=forecast.__getitem__)
    for row, one in found:
        parts = script.parts(one)
        assert parts[-1] == pytest.approx(one.latency_s) and parts == sorted(parts), row["case"]


@pytest.mark.parametrize(("name", "most"), [("korthikanti_layer", 5.0), ("megatron", 7.0), ("vtrain", 11.0)])
def test_steps_are_as_near_as_the_page_says(script: ModuleType, name: str, most: float) -> None:
    rows, configs = suite(name)
    found, left = script.forecasts(rows, configs, {})
    assert not left
    errors = script.errors_pct([row for row, _ in found], [one.latency_s for _, one in found])
    assert sum(map(abs, errors)) / len(errors) < most


def test_rows_can_be_asked_with_other_cells(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    rows, configs = suite("korthikanti_layer")
    row = next(row for row in rows if row["mode"] == "train")
    own, half = (script.forecasts([row], configs, cells)[0][0] for cells in ({}, {"seq_len": "1024"}))
    assert half[0] is row and half[1].latency_s < own[1].latency_s
    parser = argparse.ArgumentParser()
    assert script.given(parser, "software=megatron 2022") == ("software", "megatron 2022")
    for text in ("seq_len", "seqlen=256"):
        with pytest.raises(SystemExit) as ended:
            script.given(parser, text)
        assert ended.value.code == 2 and f"--set '{text}': expected COLUMN=CELL" in capsys.readouterr().err


def test_the_slowest_board_sets_the_pace_of_kernels(script: ModuleType) -> None:
    rows, configs = suite("korthikanti_layer")
    (row, one), *_ = script.forecasts(rows[:1], configs, {})[0]
    assert script.slowest(row, one, 0.0) == one.latency_s
    longer = [script.slowest({**row, "num_gpus": str(n)}, one, 0.01) - one.latency_s for n in (1, 2, 8, 1024)]
    kernels = script.parts(one)[0]
    assert longer[0] == 0.0 and longer[1] / kernels == pytest.approx(0.01 / 3.14159**0.5, rel=0.05)
    assert longer == sorted(longer) and longer[3] / kernels == pytest.approx(0.0325, rel=0.02)
