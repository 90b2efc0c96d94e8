"""From this processor's tile probes to a forecast: collect, import, train or calibrate, predict, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
COLLECT = "microbench collect --device cpu --threads 1 --ops tile --case-seconds 0.02s --budget 300s"


def run(*words: str | Path) -> str:
    """One command of the project in a process of its own; its standard output."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def predict(device: Path, dtype: str, *words: str | Path) -> dict[str, Any]:
    shape = ("--dtype", dtype, "--seq-len", "64", "--json")
    found: dict[str, Any] = json.loads(run("predictor", "predict", "--model", "gpt2", "--gpu", device, *shape, *words))
    return found


def test_collect_import_train_calibrate_predict(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("scipy")
    data, rows = tmp_path / "data", tmp_path / "tiles.parquet"
    run(*COLLECT.split(), "--max-cases", "56", "--out", data)
    (device,) = data.glob("*/device.yaml")
    imported = json.loads(run("predictor", "dataset", "import", "microbench", data, "--out", rows, "--json"))
    assert imported["flagged"]["tile_probe"] > 40
    # a set of tile probes alone
    trained = json.loads(run("predictor", "train", "--data", rows, "--out", tmp_path / "trained", "--json"))
    assert trained["fitted"]["fp32-gemm"] >= 16
    answer = predict(device, "fp32", "--artifacts", tmp_path / "trained")
    bound = predict(device, "fp32", "--artifacts", "roofline")
    assert bound["latency_ms"] < answer["latency_ms"] < 20 * bound["latency_ms"]
    gemm = next(row for row in answer["breakdown"] if row["op"] == "linear")
    assert gemm["source"] == "estimator" and gemm["estimators"] == ["fp32-gemm"]
    # the shipped set, for which a processor is a board that nobody measured
    words = ("--gpu", device, "--data", rows, "--out", tmp_path / "calibrated", "--json")
    report = json.loads(run("predictor", "calibrate", *words))
    assert report["rows"]["gemm"] >= 16
    assert report["after_mean_ape_pct"]["gemm"] < report["before_mean_ape_pct"]["gemm"]
    before, after = (predict(device, "bf16", *words) for words in ((), ("--artifacts", tmp_path / "calibrated")))
    times = [next(row["latency_ms"] for row in a["breakdown"] if row["op"] == "linear") for a in (before, after)]
    assert times[0] != times[1]
