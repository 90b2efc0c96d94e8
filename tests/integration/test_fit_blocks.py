"""Estimators of quantization and linear attention, fitted to rows that a known board made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lightgbm")

from predictor import engines
from predictor.cli.main import main
from predictor.data import dataset
from predictor.data.schema import from_op
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.kernels.blocks.core import Constants, core_time, shapes_of
from predictor.kernels.device import Device
from predictor.ops import CausalConv1d, DeltaRule, Op, Quantize

TRUTH = Constants(0.9, 12.0, 0.8, 5e3, 900.0, 1.5e3, 6.0, 1.0, 2.5)
BOARDS = ("a100-sxm-80gb", "l40s", "rtx-pro-6000-server")
OPS: list[Op] = [
    *(Quantize("fp8", rows, cols, "cast") for rows in (1, 8, 64, 512, 4096) for cols in (256, 1024, 4096, 16384)),
    *(DeltaRule("bf16", b, q, 8, 16, 128, 128) for b in (1, 4, 16, 64) for q in (16, 64, 256, 1024, 4096)),
    *(DeltaRule("bf16", b, 1, 8, 16, 128, 128, True) for b in (1, 4, 16, 64, 256)),
    *(CausalConv1d("bf16", b, q, 4096) for b in (1, 4, 16) for q in (4, 64, 1024, 8192)),
]
GROUND = {"source": "made", "source_file": "x", "framework": "vllm", "framework_version": "1", "kernel_source": "k",
          "split": "", "protocol": "cuda_graph", "cache_state": "unknown", "quant": "", "flag": ""}  # fmt: skip


def took(op: Op, gpu: str, constants: Constants = TRUTH) -> float:
    spec = load_gpu(gpu)
    shapes = shapes_of([op], engines.library("vllm"), spec)
    bound = float(predict_kernels([op], spec, load_artifacts("roofline")).lower_bound_s[0])
    return max(float(core_time(shapes, Device.of(spec, "bf16"), constants).total[0]), bound)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows: list[dict[str, Any]] = []
    for gpu in BOARDS:
        rows += [{**GROUND, "gpu": gpu, **from_op(op), "latency_ms": took(op, gpu) * 1e3} for op in OPS * 10]
    frame = dataset.to_frame({key: [row.get(key) for row in rows] for row in rows for key in row}, len(rows))
    frame["source_row"] = np.arange(len(rows)) + 1
    folder = tmp_path_factory.mktemp("blocks")
    dataset.write(frame, folder / "rows.parquet", {"source": "made"})
    words = ["train", "--data", str(folder / "rows.parquet"), "--exclude-gpu", "l40s", "--no-intervals"]
    assert main([*words, "--estimators", "quantize,linear-attention", "--out", str(folder / "set")]) == 0
    return folder / "set"


@pytest.mark.parametrize("gpu", BOARDS)
def test_measured_and_left_out_boards_are_forecast_as_they_were_made(trained: Path, gpu: str) -> None:
    table = predict_kernels(OPS, load_gpu(gpu), load_artifacts(trained), "vllm")
    errors = np.abs(table.latency_s / np.array([took(op, gpu) for op in OPS]) - 1.0)
    assert np.median(errors) < 0.05 and np.quantile(errors, 0.9) < 0.25
    assert set(table.estimators) == {"quantize", "linear-attention"}


def test_the_set_says_what_it_answers_for(trained: Path) -> None:
    found = json.loads((trained / "manifest.json").read_text())["estimators"]
    assert {e["folder"]: e["families"] for e in found} == {
        "quantize": ["quantize"], "linear-attention": ["causal_conv1d", "delta_rule"],
    }  # fmt: skip
    card = (trained / "README.md").read_text()
    assert "| l40s | delta_rule | bf16 | vllm |" in card
    artifacts = load_artifacts(trained)
    assert artifacts.select("delta_rule", "fp16") is not None
    assert artifacts.select("delta_rule", "fp32") is None
    assert predict_kernels([replace(OPS[0], dtype="int8")], load_gpu("t4"), artifacts).estimators == ("quantize",)  # type: ignore[type-var]
