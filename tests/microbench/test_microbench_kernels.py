"""Which kernel a row is named after: traces of a GPU, of a processor, of a busy one, and of none that is known."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from microbench import kernels
from microbench.case import Case
from microbench.devices.cpu import CpuDevice
from microbench.measure import Measurer
from microbench.timing import Settings
from predictor.ops import Softmax


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return CpuDevice(1)


TRACE = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 50},
    {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "ts": 20, "dur": 1, "args": {"bytes": 4}},
    {
        "ph": "X", "cat": "kernel", "name": "sm90_xmma_gemm_bf16bf16_bf16f32", "ts": 30, "dur": 12,
        "args": {"grid": [132, 1, 1], "block": [384, 1, 1], "registers per thread": 168, "shared memory": 214016},
    },
]  # fmt: skip


def test_the_kernel_is_read_from_the_profilers_trace() -> None:
    assert kernels.from_trace(TRACE, "cuda") == {
        "kernel_name": "sm90_xmma_gemm_bf16bf16_bf16f32", "kernel_count": 2, "grid_x": 132, "grid_y": 1, "grid_z": 1,
        "block_x": 384, "block_y": 1, "block_z": 1, "registers": 168, "shared_memory_bytes": 214016,
    }  # fmt: skip
    assert kernels.from_trace([], "cuda") == {}


def test_a_copy_or_a_fill_names_a_row_only_where_no_kernel_ran() -> None:
    """The workspace of a split product is filled first, which can take longer than a small product does."""
    fill = {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "ts": 1, "dur": 90, "args": {"bytes": 4}}
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)", "ts": 99, "dur": 95}
    found = kernels.from_trace([fill, *TRACE, copy], "cuda")
    assert found["kernel_name"] == "sm90_xmma_gemm_bf16bf16_bf16f32" and found["kernel_count"] == 4
    assert kernels.from_trace([fill, copy], "cuda")["kernel_name"] == "Memcpy DtoD (Device -> Device)"


def test_the_operator_with_the_longest_own_time_is_a_processors_kernel() -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "ts": 0.0, "dur": 100.0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "ts": 5.0, "dur": 90.0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::expand", "ts": 6.0, "dur": 2.0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::t", "ts": 1.0, "dur": 3.0},
    ]
    assert kernels.from_trace(events, "cpu") == {"kernel_name": "aten::addmm", "kernel_count": 1}


def test_a_span_of_the_autograd_engine_names_no_kernel() -> None:
    """The engine's thread can be preempted in a span of its own, which is then longer than the operator within it."""
    engine = "autograd::engine::evaluate_function: PowBackward0"
    events = [
        {"ph": "X", "cat": "cpu_op", "name": engine, "ts": 0.0, "dur": 900.0},
        {"ph": "X", "cat": "cpu_op", "name": "PowBackward0", "ts": 500.0, "dur": 300.0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::pow", "ts": 510.0, "dur": 20.0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mul", "ts": 540.0, "dur": 60.0},
    ]
    assert kernels.from_trace(events, "cpu")["kernel_name"] == "aten::mul"
    assert kernels.from_trace(events[:1], "cpu")["kernel_name"] == engine


def test_a_span_of_another_thread_is_not_within() -> None:
    """A backward pass runs its operators on the engine's thread, while the caller's waits in one of its own."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0.0, "dur": 100.0, "tid": 1},
        {"ph": "X", "cat": "cpu_op", "name": "aten::sum", "ts": 10.0, "dur": 80.0, "tid": 2},
        {"ph": "X", "cat": "cpu_op", "name": "aten::t", "ts": 10.0, "dur": 15.0, "tid": 1},
    ]
    assert kernels.from_trace(events, "cpu")["kernel_name"] == "aten::mm"


def operator(name: str, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": 0.0, "dur": dur}


@pytest.mark.parametrize(
    ("longest", "named"),
    [
        (["empty", "mm", "mm"], "mm"),  # the processor was taken away amid an allocation
        (["mm", "mm"], "mm"),
        (["mm", "empty", "mm"], "mm"),
        (["mm", "empty", "t"], "mm"),
    ],
)
def test_two_calls_agree_on_a_processors_kernel(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch, longest: list[str], named: str
) -> None:
    traces = iter([operator(f"aten::{name}", 4000.0), operator("aten::other", 9.0)] for name in longest)
    calls: list[int] = []
    monkeypatch.setattr(kernels, "_events", lambda profiler: next(traces))
    assert kernels.profile(device, lambda: calls.append(1))["kernel_name"] == f"aten::{named}"
    assert len(calls) == len(longest)


@pytest.mark.parametrize(
    ("found", "named", "calls"), [(["gemm", "fill"], "gemm", 1), (["", "gemm"], "gemm", 2), (["", "", ""], None, 3)]
)
def test_the_first_call_that_is_seen_names_a_gpus_kernel(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch, found: list[str], named: str | None, calls: int
) -> None:
    """A profiler that has just been set up can miss a call; one without the rights for it misses all."""
    left = list(found)
    monkeypatch.setattr(device, "kind", "cuda")
    monkeypatch.setattr(kernels, "_profile_one", lambda *_: {"kernel_name": name} if (name := left.pop(0)) else {})
    assert kernels.profile(device, lambda: None).get("kernel_name") == named
    assert len(found) - len(left) == calls


@pytest.mark.parametrize("trace", [[{}], [operator("aten::mm", 1.0) | {"dur": None}], [{"ph": "X", "cat": "cpu_op"}]])
def test_a_trace_of_another_form_costs_the_name_alone(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch, trace: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(kernels, "_events", lambda profiler: trace)
    row = Measurer(device, Settings(case_s=0.002)).measure(Case("softmax", Softmax("fp32", 4, 4)))
    assert "kernel_name" not in row and row["latency_ms"] > 0
