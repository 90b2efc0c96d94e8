"""benchmarks/bandwidth_reached.py: the best rate that a row reaches from memory, rows that fit L2 aside."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas")

from predictor.data import dataset
from predictor.data.schema import from_op
from predictor.ops.elementwise import Elementwise
from predictor.ops.gemm import Gemm

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bandwidth_reached.py"


def script() -> Any:
    spec = importlib.util.spec_from_file_location("bandwidth_reached", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_that_fit_l2_do_not_count(tmp_path: Path) -> None:
    """Of a GEMM that streams 1 GiB of weights at 4 TB/s and one of 8 MiB at 8 TB/s, the first is a rate of memory."""
    large = Gemm(dtype="bf16", m=1, n=32768, k=16384)
    small = Gemm(dtype="bf16", m=1, n=2048, k=2048)
    copy = Elementwise(dtype="bf16", fn="relu", elements=2**30)
    rows = []
    for op, rate in ((large, 4e12), (small, 8e12), (copy, 3e12)):
        seconds = (op.bytes_read() + op.bytes_written()) / rate
        rows.append(
            from_op(op)
            | {
                "source": "mine", "source_file": "f", "source_row": len(rows) + 1, "split": "", "gpu": "h200-sxm",
                "framework": "vllm", "framework_version": "", "kernel_source": "", "protocol": "cuda_graph",
                "cache_state": "unknown", "latency_ms": seconds * 1e3, "flag": "",
            }
        )  # fmt: skip
    columns = {name: [row.get(name) for row in rows] for name in {name for row in rows for name in row}}
    frame = dataset.to_frame(columns, len(rows))
    path = tmp_path / "rows.parquet"
    dataset.write(frame, path, {})
    found = script().best_of(path, 4.0)
    assert sorted(round(rate / 1e12, 3) for _, rate, _ in found) == [3.0, 4.0]
    assert {name for name, _, _ in found} == {"h200-sxm"}
