"""Cases and rows that the harness's tests share."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from microbench import capability, sweep
from microbench.case import Case, op_cells
from predictor.hardware.gpu import load_gpu
from predictor.ops import Gemm, Softmax

GPU = capability.gpu_target(load_gpu("h100"))
CPU = capability.cpu_target(2, 16 * 2**30)
_BUILD, _BUILT = sweep.build, dict[str, sweep.CasePlan]()
CASE = Case("gemm", Gemm("bf16", 128, 256, 64))


@functools.cache
def plan(kind: str) -> sweep.CasePlan:
    return sweep.build({"cuda": GPU, "cpu": CPU}[kind])


def build_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has collections of a test share the cases of one target: twenty thousand of them take two CPU seconds."""
    monkeypatch.setattr(sweep, "build", _shared)


def _shared(
    target: capability.Target, ops: tuple[str, ...] | None = None, dtypes: tuple[str, ...] | None = None,
    folder: Path = sweep.SWEEPS,
) -> sweep.CasePlan:  # fmt: skip
    asked = repr((target, ops, dtypes, folder))
    if asked not in _BUILT:
        _BUILT[asked] = _BUILD(target, ops, dtypes, folder)
    return sweep.CasePlan(list(_BUILT[asked].cases), dict(_BUILT[asked].left_out))


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
