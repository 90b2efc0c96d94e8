"""Which rows a fit sees: none that it is scored on, none of a GPU left out, none of another board."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pandas", reason="extra 'train'")

from predictor.cli.main import main
from predictor.data import dataset
from predictor.fit.evaluate import predict_rows
from predictor.kernels.artifact import load_artifacts


def softmaxes(gpu: str, count: int, seed: int) -> dataset.Frame:
    """Made-up rows of softmax: 1.5 times what the roofline says, and 2 % of noise."""
    rng = np.random.default_rng(seed)
    rows, cols = (2 ** rng.integers(8, 14, count) for _ in range(2))
    cells: dict[str, Any] = {
        "source": "made-up", "source_file": "none", "source_row": np.arange(count), "gpu": gpu, "framework": "pytorch",
        "framework_version": "0", "kernel_source": "aten", "protocol": "eager_events", "cache_state": "warm",
        "op": "softmax", "dtype": "fp32", "quant": "", "flag": "", "rows": rows, "cols": cols, "latency_ms": 1.0,
    }  # fmt: skip
    frame = dataset.to_frame(cells, count)
    perfect = predict_rows(frame, load_artifacts("roofline"))["predicted_ms"].to_numpy(dtype=float)
    return frame.assign(latency_ms=1.5 * perfect * np.exp(rng.normal(0, 0.02, count)) + 0.02)


def keys(frame: dataset.Frame) -> set[tuple[str, int]]:
    return set(zip(frame["gpu"].astype(str), frame["source_row"].astype(int), strict=True))


def test_no_row_is_fitted_and_scored(tmp_path: Path) -> None:
    gpus = ("v100-pcie-32gb", "a100-pcie-40gb", "t4")
    everything = dataset.concat([softmaxes(gpu, 60, seed) for seed, gpu in enumerate(gpus)])
    dataset.write(everything, tmp_path / "rows.parquet")
    out = tmp_path / "set"
    words = ["--holdout", "0.3", "--exclude-gpu", "t4", "--no-intervals", "--out", str(out)]
    assert main(["train", "--data", str(tmp_path / "rows.parquet"), *words]) == 0
    shapes, boards = (dataset.read(out / f"{name}.parquet") for name in ("heldout", "heldout_gpus"))
    assert keys(boards) == {("t4", row) for row in range(60)}
    assert not keys(shapes) & keys(boards)
    assert {gpu for gpu, _ in keys(shapes)} == set(gpus[:2])
    (manifest,) = (json.loads(path.read_text(encoding="utf-8")) for path in out.glob("*/manifest.json"))
    assert manifest["rows"] == len(everything) - len(shapes) - len(boards)
    assert sorted(manifest["gpus"]) == sorted(gpus[:2])
    held = set(zip(shapes["rows"], shapes["cols"], strict=True))
    of_two = everything[everything["gpu"].astype(str).isin(gpus[:2])]
    assert sum(pair in held for pair in zip(of_two["rows"], of_two["cols"], strict=True)) == len(shapes)


def test_rows_of_another_gpu_calibrate_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, other = softmaxes("rtx-4090", 12, 0), softmaxes("t4", 20, 1)
    dataset.write(dataset.concat([mine, other]), tmp_path / "rows.parquet")
    words = ["--gpu", "rtx-4090", "--data", str(tmp_path / "rows.parquet"), "--out", str(tmp_path / "set"), "--json"]
    assert main(["calibrate", *words]) == 0
    report = json.loads(capsys.readouterr().out)
    assert sum(report["rows"].values()) == 12
    assert report["unused_rows"] == 0
