"""The measuring itself: launchers against their references, rounds and throttling, the GPU's timers on a fake GPU."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from microbench import launchers, sweep, worker
from microbench.capability import target_of
from microbench.case import Case, op_from
from microbench.devices.base import DeviceState
from microbench.devices.cpu import CpuDevice
from microbench.launchers.base import IllegalCase, Prepared, relative_error
from microbench.measure import Measurer, WrongResult
from microbench.schema import problems
from microbench.timing import Settings, Timer
from microbench.validate import row_problems
from predictor.ops import Attention, Gemm, Softmax

QUICK = Settings(noise=0.9, min_samples=2, case_s=0.002, sample_s=1e-6, warm_up_s=0.0, profile=False)


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return CpuDevice(1)


def small_cases(device: CpuDevice) -> list[Case]:
    """One small case of everything that the sweeps hold for a processor."""
    seen: dict[tuple[Any, ...], Case] = {}
    for case in sweep.build(target_of(device.facts())).cases:
        op = case.op
        names = ("fn", "kind", "layout", "distribution", "in_dtype")
        key = (case.launcher, op.dtype, case.phase, case.options, *(getattr(op, name, "") for name in names))
        if op.bytes_moved() < 2e6:
            seen.setdefault(key, case)
    return list(seen.values())


def test_every_launcher_computes_what_its_reference_says(device: CpuDevice) -> None:
    measurer = Measurer(device, QUICK)
    cases = small_cases(device)
    checked = Counter[str]()
    for case in cases:
        row = measurer.measure(case)
        row["case_id"] = case.id
        assert not problems(row) and not row_problems(row), (case.describe(), row_problems(row))
        checked[str(row["checked"])] += 1
    assert len(cases) > 100 and {case.launcher for case in cases} >= set(launchers.LAUNCHERS) - {
        "tile",
        "collective",
        "ceiling",
        "moe",
        "serving",
    }
    assert checked["yes"] > 80 and checked["no"] < 5


@pytest.mark.parametrize(
    "cells",
    [
        {"op": "moe", "dtype": "bf16", "tokens": 9, "hidden": 32, "intermediate": 16, "experts": 8, "top_k": 2},
        {"op": "moe", "dtype": "fp32", "tokens": 9, "hidden": 32, "intermediate": 16, "experts": 8, "top_k": 3,
         "gated": False, "distribution": "zipf:1.2"},
        {"op": "gemm", "dtype": "fp32", "m": 5, "n": 7, "k": 9, "layout": "nt", "bias": True},
        {"op": "gemm", "dtype": "bf16", "m": 5, "n": 8, "k": 16, "batch": 3, "kind": "grouped"},
        {"op": "attention", "dtype": "fp32", "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 1, "kv_len": 33,
         "head_dim": 16},
        {"op": "attention", "dtype": "fp32", "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 33, "kv_len": 33,
         "head_dim": 16, "phase": "backward"},
    ],
)  # fmt: skip
def test_a_shape_is_computed_right(device: CpuDevice, cells: dict[str, Any]) -> None:
    case = Case(cells["op"], op_from(cells))
    row = Measurer(device, QUICK).measure(case)
    assert row["checked"] == "yes" and row["check_error"] < 0.02


def test_fp8_products_are_computed_right(device: CpuDevice) -> None:
    prepared = launchers.load("gemm").prepare(Case("gemm", Gemm("fp8", 16, 32, 64)), device)
    try:
        prepared.launch()
    except RuntimeError as error:
        pytest.skip(f"this processor's PyTorch has no fp8 product: {error}")
    assert prepared.check is not None and prepared.check() < 0.06


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (Gemm("bf16", 8, 8, 8, batch=2, kind="bmm", bias=True), "no bias"),
        (Gemm("fp8", 8, 8, 24), "multiples of 16"),
        (Attention("bf16", 1, 2, 2, 8, 8, 16, window=4), "no sliding window"),
        (Attention("bf16", 1, 2, 2, 4, 8, 16), "wrong corner"),
    ],
)
def test_an_illegal_case_says_why(device: CpuDevice, op: Any, said: str) -> None:
    name = "gemm" if isinstance(op, Gemm) else "attention"
    with pytest.raises(IllegalCase, match=said) as caught:
        launchers.load(name).prepare(Case(name, op), device)
    assert worker.classify(caught.value) == "illegal"


def test_a_wrong_result_is_no_row(device: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Prepared(lambda: None, lambda: 0.5)
    monkeypatch.setattr(launchers, "load", lambda name: type("Module", (), {"prepare": lambda *_: wrong}))
    with pytest.raises(WrongResult, match=r"off by 0\.5") as caught:
        Measurer(device, QUICK).measure(Case("softmax", Softmax("fp32", 4, 4)))
    assert worker.classify(caught.value) == "wrong_result"


def test_an_error_is_relative_to_the_largest_value() -> None:
    want = torch.tensor([100.0, 1.0])
    assert relative_error(want + torch.tensor([0.0, 1.0]), want) == pytest.approx(0.01)
    assert relative_error(torch.tensor([float("nan"), 1.0]), want) == float("inf")
    assert relative_error(torch.zeros(3), want) == float("inf")


def test_data_is_random_and_never_zero(device: CpuDevice) -> None:
    for dtype in ("fp32", "bf16", "fp16", "int8", "fp8"):
        values = device.randn(3000, 1000, dtype=dtype).float()
        assert float((values == 0).float().mean()) < 0.02
        assert float(values.std()) > 0.5
    assert 0.4 < float(device.randn(10000, dtype="bool").float().mean()) < 0.6


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "out_of_memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "cuda_error"),
        (RuntimeError("CUDA graph capture failed: operation not permitted"), "not_captured"),
        (ValueError("nope"), "error"),
    ],
)
def test_failures_have_kinds(device: CpuDevice, error: Exception, kind: str) -> None:
    assert worker.classify(error) == kind
    assert device.poisoned_by(error) == (kind == "cuda_error")


# ---------------------------------------------------------------------------------------------------------- throttling


class Throttled(CpuDevice):
    """A processor that says it throttles in the rounds that `rounds` names."""

    def __init__(self, rounds: set[int] | None, *reasons: str) -> None:
        super().__init__(1)
        self.rounds, self.asked, self.reasons = rounds, 0, reasons or ("thermal",)

    def state(self) -> DeviceState:
        self.asked += 1
        hot = self.rounds is None or self.asked in self.rounds
        return DeviceState(sm_clock_hz=1e9, throttled=self.reasons if hot else ())


def test_samples_under_throttling_are_thrown_away_and_counted() -> None:
    settings = replace(QUICK, case_s=600.0, noise=-1.0, max_samples=40)  # 40 samples end it, and nothing else
    row = Measurer(Throttled({3, 4}), settings).measure(Case("softmax", Softmax("fp32", 8, 8)))
    assert row["throttled_samples"] == 15  # rounds with the reason before or after: 2, 3 and 4
    assert row["throttle_reasons"] == "thermal" and row["flag"] == "" and row["samples"] == 40


def test_a_device_that_always_throttles_gives_a_row_kept_apart() -> None:
    row = Measurer(Throttled(None), QUICK).measure(Case("softmax", Softmax("fp32", 8, 8)))
    assert row["flag"] == "throttled" and row["samples"] > 0 and row["throttled_samples"] >= row["samples"]


def test_a_board_that_its_power_limit_holds_is_measured_as_it_runs() -> None:
    """The small boards run every large product at their limit: such rows are what an estimator has to learn."""
    capped = Measurer(Throttled(None, "power_cap"), QUICK).measure(Case("softmax", Softmax("fp32", 8, 8)))
    assert capped["flag"] == "" and capped["throttle_reasons"] == "power_cap" and capped["throttled_samples"] > 0
    both = Measurer(Throttled(None, "power_cap", "thermal"), QUICK).measure(Case("softmax", Softmax("fp32", 8, 8)))
    assert both["flag"] == "throttled"


# ------------------------------------------------------------------------------------------------------- odd machines


class Odd(CpuDevice):
    """A processor whose batches take what it is told, and whose sensors read what they are told."""

    def __init__(self, seconds: list[float], *states: DeviceState) -> None:
        super().__init__(1)
        self.seconds, self.states = itertools.cycle(seconds), itertools.cycle(states or (DeviceState(),))

    def time_batch(self, launch: Any, launches: int) -> float:
        return next(self.seconds)

    def state(self) -> DeviceState:
        return next(self.states)


@pytest.mark.parametrize("seconds", [[0.0], [1e-6, 0.0], [float("nan")]])
def test_a_call_that_took_no_time_is_a_failure_and_no_row(seconds: list[float]) -> None:
    with pytest.raises(RuntimeError, match="took no time") as caught:
        Measurer(Odd(seconds), QUICK).measure(Case("softmax", Softmax("fp32", 4, 4)))
    assert worker.classify(caught.value) == "error"


def test_noise_beyond_the_median_itself_is_a_row_that_says_so() -> None:
    case = Case("softmax", Softmax("fp32", 4, 4))
    settings = replace(QUICK, max_samples=20, noise=1e-3, case_s=600.0)
    row = Measurer(Odd([1e-6, 1e-6, 9e-3, 9e-3]), settings).measure(case)
    assert row["noise"] > 0.9 and row["stop"] == "max_samples" and row["latency_min_ms"] == pytest.approx(1e-3)
    assert not row_problems(row | {"case_id": case.id})


def test_a_sensor_that_reads_nonsense_says_nothing() -> None:
    """0 MHz of a virtual machine, a temperature below zero read as unsigned, the watts of a broken meter."""
    broken = DeviceState(0.0, 0.0, 4294967290.0, 4294967.0)
    case = Case("softmax", Softmax("fp32", 4, 4))
    row = Measurer(Odd([1e-6], broken), QUICK).measure(case)
    assert not {"sm_clock_hz", "memory_clock_hz", "temperature_c", "power_w"} & set(row)
    assert not row_problems(row | {"case_id": case.id})
    often = Measurer(
        Odd([1e-6], broken, DeviceState(1e9, 2e9, 40.0, 300.0)), replace(QUICK, noise=-1.0, max_samples=20)
    )
    assert often.measure(case)["sm_clock_hz"] == 1e9


# --------------------------------------------------------------------------------------------------------- a fake GPU


class FakeEvent:
    """A CUDA event on a clock that moves 10 microseconds a launch, and 100 a flush."""

    clock = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = -1.0

    def record(self) -> None:
        self.at = FakeEvent.clock

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: FakeEvent) -> float:
        return (other.at - self.at) * 1e3


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    from microbench.devices.cuda import CudaDevice

    made = object.__new__(CudaDevice)
    made.torch_device = torch.device("cpu")
    made.cache_bytes, made.board, made.stream = 1024, None, None
    made._flush_buffer, made._sleep = None, None
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    return made


def launch() -> None:
    FakeEvent.clock += 10e-6


def test_a_batch_on_a_gpu_is_between_two_events(gpu: Any) -> None:
    assert gpu.time_batch(launch, 7) == pytest.approx(10e-6)


def test_a_flush_is_outside_of_the_time_and_twice_the_cache(gpu: Any) -> None:
    begin = FakeEvent.clock
    waits: list[int] = []
    gpu._sleep = waits.append
    assert gpu.time_cold(launch, 3) == pytest.approx([10e-6] * 3)
    assert FakeEvent.clock - begin == pytest.approx(30e-6) and len(waits) == 3
    assert gpu._flush_buffer.numel() * 4 == 2 * gpu.cache_bytes


def test_a_graph_that_cannot_be_captured_replaces_the_worker(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> None:
            raise RuntimeError("operation not permitted when stream is capturing")

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Refuses)
    monkeypatch.setattr(torch.cuda, "graph", Refuses)
    with pytest.raises(RuntimeError, match="CUDA graph capture failed: operation not permitted") as caught:
        gpu.capture(launch, 4)
    assert gpu.poisoned_by(caught.value) and worker.classify(caught.value) == "not_captured"


def test_a_capture_that_failed_says_why_it_did(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a broken capture raises an error of its own: the reason is the first one."""

    class Broken:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    def launch_too_much() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Broken)
    monkeypatch.setattr(torch.cuda, "graph", Broken)
    with pytest.raises(RuntimeError, match="capture failed: CUDA out of memory") as caught:
        gpu.capture(launch_too_much, 4)
    assert worker.classify(caught.value) == "out_of_memory"


def test_a_lost_context_is_found_by_asking(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    illegal = RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
    refused = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul`")
    assert not gpu.poisoned_by(illegal) and not gpu.poisoned_by(refused) and not gpu.poisoned_by(ValueError("no"))

    def lost(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    assert gpu.poisoned_by(illegal) and gpu.poisoned_by(refused) and gpu.poisoned_by(ValueError("no"))


def test_graphs_and_cold_calls_are_queued_behind_a_busy_gpu(gpu: Any) -> None:
    waits: list[int] = []
    gpu._sleep = waits.append
    assert gpu.time_replays(launch, 4) == pytest.approx(10e-6) and waits == [200_000]
    gpu._host_s = 1e-3  # a call whose host side takes a millisecond
    gpu.time_cold(launch, 1)
    assert waits[1] == 4_000_000


def test_a_graph_is_timed_by_the_launch(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[int] = []

    def capture(call: Any, launches: int) -> Any:
        captured.append(launches)
        return lambda: [call() for _ in range(launches)]

    monkeypatch.setattr(gpu, "capture", capture)
    monkeypatch.setattr(gpu, "environment", lambda: {"torch_version": "2.9.0"})
    timing = Timer(gpu, replace(QUICK, sample_s=1e-3)).time(
        Case("s", Softmax("fp32", 1, 1), (), "warm", "cuda_graph"), launch
    )
    assert captured == [timing.launches] and timing.launches == pytest.approx(200, abs=5)
    assert timing.rule.samples[0] == pytest.approx(10e-6)


def test_a_tile_is_read_from_its_name() -> None:
    from microbench.launchers.tile import parse_tile

    assert parse_tile("128x64x32") == (128, 64, 32)
    with pytest.raises(IllegalCase):
        parse_tile("128x64")
