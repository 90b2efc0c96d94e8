"""How framework calls are timed: known costs, a GPU's way with a stand-in, and what is said of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from microbench import launch_worker  # noqa: E402
from microbench.commands import launch_overhead  # noqa: E402
from microbench.devices.cpu import CpuDevice  # noqa: E402


class Watched(CpuDevice):
    """Writes down when it was waited for."""

    def __init__(self, kind: str = "cpu") -> None:
        super().__init__(1)
        self.kind = kind
        self.waited: list[int] = []
        self.calls = 0

    def synchronize(self) -> None:
        self.waited.append(self.calls)

    def call(self) -> None:
        self.calls += 1


class Clock:
    """A clock that moves when a call is made, and by nothing else."""

    def __init__(self, costs_ns: Iterator[int]) -> None:
        self.costs_ns, self.now_ns = costs_ns, 0

    def call(self) -> None:
        self.now_ns += next(self.costs_ns)

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def perf_counter(self) -> float:
        return self.now_ns / 1e9


def test_a_call_of_known_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 us a call, and in every second batch one that the machine held up for 4 ms."""
    held_up = [4_000_000, *[50_000] * (launch_worker.BATCH - 1)]
    clock = Clock(itertools.cycle([*[50_000] * launch_worker.BATCH, *held_up]))
    monkeypatch.setattr(launch_worker, "time", clock)
    times = launch_worker.time_calls(Watched(), clock.call, 0.2)
    assert len(times) >= 5 and sum(times) * launch_worker.BATCH >= 0.2
    assert min(times) == pytest.approx(50e-6)  # the quickest batch: what else the machine does is not in it
    assert max(times) == pytest.approx(50e-6 + 3.95e-3 / launch_worker.BATCH)


def test_nothing_is_waited_for_inside_a_batch() -> None:
    device = Watched()
    times = launch_worker.time_calls(device, device.call, 0.001)
    batches = [after - before for before, after in zip(device.waited, device.waited[1:], strict=False)]
    assert batches == [launch_worker.BATCH] * len(times)
    assert launch_worker.BATCH * 2 < 1024  # a batch of two kernels a call does not fill the driver's queue


def test_on_a_gpu_a_null_kernel_is_launched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", clocks.append, raising=False)
    row = launch_worker.measure(Watched("cuda"), 0.05)
    assert set(clocks) == {1}
    assert 0 < row["null_kernel_s"] < min(row["calls_s"].values())  # a list's append is less than any framework call
    assert launch_worker.measure(Watched("cpu"), 0.05)["null_kernel_s"] is None


def test_the_overhead_is_the_mean_of_the_kinds() -> None:
    row = launch_worker.measure(Watched(), 0.1)
    calls = row["calls_s"]
    assert row["launch_overhead_s"] == pytest.approx(sum(calls.values()) / len(calls))
    assert row["typical_s"] >= row["launch_overhead_s"]


def test_what_is_printed() -> None:
    facts = {"id": "l4", "kind": "cuda", "torch": "2.13.0"}
    row = {
        "launch_overhead_s": 6.3e-6, "typical_s": 6.9e-6, "calls_s": {"linear": 8.6e-6, "add": 4e-6},
        "null_kernel_s": 2.1e-6, "batches": 40, "batch": 200,
    }  # fmt: skip
    found = launch_overhead.report(facts, row)
    assert found["launch_overhead_us"] == 6.3
    lines = launch_overhead.as_text(found).splitlines()
    assert lines[0].startswith("6.3 us a framework call (mean of 2 kinds, each the quickest of about 20 batches")
    assert any("null kernel on l4: 2.1 us" in line for line in lines)
    assert lines[-1] == "predict --launch-overhead 6.3us"
    assert "value: 6.3 us" in launch_overhead.as_yaml(found)
