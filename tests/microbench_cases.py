"""Cases and rows that the harness's tests share."""

from __future__ import annotations

import functools
import json
from typing import Any

from microbench import capability, sweep
from microbench.case import Case, op_cells
from predictor.hardware.gpu import load_gpu
from predictor.ops import Gemm, Softmax

GPU = capability.gpu_target(load_gpu("h100"))
CPU = capability.cpu_target(2, 16 * 2**30)
CASE = Case("gemm", Gemm("bf16", 128, 256, 64))


@functools.cache
def plan(kind: str) -> sweep.CasePlan:
    return sweep.build({"cuda": GPU, "cpu": CPU}[kind])


def plan_of(target: capability.Target) -> list[Case]:
    """All sweeps' cases, built once."""
    return plan(target.kind).cases


def row_of(case: Case, latency_ms: float = 1.0, **more: Any) -> dict[str, Any]:
    """A whole row of a case, as a worker would send it."""
    return {
        "case_id": case.id, "launcher": case.launcher, "options": json.dumps(dict(case.options)),
        "source": "microbench", "source_file": "", "source_row": 0, "split": "", "gpu": "h100-sxm",
        "framework": "pytorch", "framework_version": "2.9.0", "kernel_source": "eager", "protocol": case.protocol,
        "cache_state": case.cache, "quant": "", "latency_ms": latency_ms, "latency_min_ms": latency_ms,
        "latency_max_ms": latency_ms, "samples": 10, "flag": "", "measured_at": "2026-01-01T00:00:00+00:00",
        "noise": 0.01, **op_cells(case.op), **more,
    }  # fmt: skip


def softmax(rows: int) -> Case:
    return Case("softmax", Softmax("fp32", rows, 64))
