"""From this machine's processor to a forecast for it: collect, import, train, evaluate, predict, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str | Path) -> str:
    """One command of the project in a process of its own; its standard output."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_collect_import_train_evaluate_predict(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    data, rows, model = tmp_path / "data", tmp_path / "cpu.parquet", tmp_path / "set"
    run("microbench", "collect", "--device", "cpu", "--threads", "1", "--ops", "gemm,elementwise,softmax,norm",
        "--max-cases", "40", "--case-seconds", "0.05s", "--budget", "300s", "--out", data)  # fmt: skip
    (device,) = data.glob("*/device.yaml")
    imported = json.loads(run("predictor", "dataset", "import", "microbench", data, "--out", rows, "--json"))
    assert imported["rows"] > 10
    trained = json.loads(run("predictor", "train", "--data", rows, "--out", model, "--json"))
    assert trained["fitted"]
    assert (model / "gpus" / f"{device.parent.name}.yaml").is_file()
    scored = json.loads(run("predictor", "evaluate", "kernels", rows, "--artifacts", model, "--baselines", "--json"))
    assert scored["n"] > 10
    assert scored["median_ape_pct"] < scored["roofline_baseline_pct"]
    words = ("predictor", "predict", "--model", "gpt2", "--gpu", device, "--dtype", "fp32", "--seq-len", "64", "--json")
    answer = json.loads(run(*words, "--artifacts", model))
    assert answer["latency_ms"] > json.loads(run(*words, "--artifacts", "roofline"))["latency_ms"]
