"""What a sample is: seconds of one launch, whatever it was batched, captured or warmed up with."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="measuring needs torch")

from microbench.case import Case  # noqa: E402
from microbench.devices.base import BenchDevice, DeviceState  # noqa: E402
from microbench.devices.cpu import CpuDevice  # noqa: E402
from microbench.stopping import StoppingRule  # noqa: E402
from microbench.timing import Settings, Timer  # noqa: E402
from predictor.ops import Softmax  # noqa: E402

CALL_S = 10e-6


class Clocked(BenchDevice):
    """A device whose call takes 10 microseconds by its own clock; it notes what it was asked for."""

    kind = "cpu"

    def __init__(self) -> None:
        super().__init__()
        self.clock = 0.0
        self.batches: list[int] = []
        self.replays: list[int] = []
        self.cold: list[int] = []

    def launch(self) -> None:
        self.clock += CALL_S

    def time_batch(self, launch: Any, launches: int) -> float:
        self.batches.append(launches)
        begin = self.clock
        for _ in range(launches):
            launch()
        return (self.clock - begin) / launches

    def time_replays(self, replay: Any, replays: int) -> float:
        self.replays.append(replays)
        begin = self.clock
        for _ in range(replays):
            replay()
        return (self.clock - begin) / replays

    def time_cold(self, launch: Any, repeats: int) -> list[float]:
        self.cold.append(repeats)
        return [3 * CALL_S] * repeats

    def capture(self, launch: Any, launches: int) -> Any:
        return lambda: [launch() for _ in range(launches)]

    def synchronize(self) -> None: ...

    def state(self) -> DeviceState:
        return DeviceState()

    def environment(self) -> dict[str, Any]:
        return {"torch_version": "2.9.0"}

    def facts(self) -> dict[str, Any]:
        return {}


def timing(device: Clocked, cache: str, protocol: str, **settings: Any) -> Any:
    timer = Timer(device, Settings(**{"warm_up_s": 0.0, "max_samples": 20} | settings))
    return timer.time(Case("s", Softmax("fp32", 1, 1), (), cache, protocol), device.launch)


def test_a_sample_of_several_replays_is_one_launch() -> None:
    device = Clocked()
    found = timing(device, "warm", "cuda_graph", sample_s=0.1)  # 4,000 launches in a graph take 40 ms: three replays
    assert device.replays[-1] == 3
    assert found.launches == 12000
    assert found.rule.samples == pytest.approx([CALL_S] * len(found.rule.samples))


def test_a_sample_of_a_batch_is_as_long_as_asked_and_one_launch() -> None:
    device = Clocked()
    found = timing(device, "warm", "eager_events", sample_s=0.0005)
    assert device.batches[-1] == found.launches == 50
    assert found.rule.samples == pytest.approx([CALL_S] * len(found.rule.samples))


def test_a_cold_sample_is_one_launch_after_a_flush() -> None:
    device = Clocked()
    found = timing(device, "cold", "eager_events")
    assert found.launches == 1
    assert set(device.cold) == {5}
    assert found.rule.samples == pytest.approx([3 * CALL_S] * len(found.rule.samples))


def test_calls_are_warmed_up_for_as_long_as_asked() -> None:
    device = Clocked()
    timing(device, "cold", "eager_events")
    assert device.batches == [1, 1]  # twice at least
    longer = Clocked()
    timing(longer, "cold", "eager_events", warm_up_s=0.02)
    assert len(longer.batches) > 20


def test_the_quickest_call_of_the_warm_up_says_how_many_make_a_sample() -> None:
    device = Clocked()
    calls = iter([CALL_S, 50 * CALL_S])  # the second one was interrupted

    def launch() -> None:
        device.clock += next(calls, CALL_S)

    timer = Timer(device, Settings(warm_up_s=0.0, max_samples=20))
    found = timer.time(Case("s", Softmax("fp32", 1, 1), (), "warm", "eager_events"), launch)
    assert found.launches == 50


def test_a_processors_flush_runs_before_every_cold_call() -> None:
    device = CpuDevice(threads=1)
    device.cache_bytes = 1024
    seen: list[int] = []
    device.time_cold(lambda: seen.append(int(device._flush_buffer[0])), 3)
    assert seen == [1, 2, 3]
    assert device._flush_buffer.numel() == 2 * 1024


def test_measuring_goes_on_until_the_median_is_known() -> None:
    noisy = StoppingRule(noise=0.01, min_samples=10, max_samples=100, timeout_s=1.0)
    noisy.add([1.0, 2.0] * 20)
    assert not noisy.done(0.9)
    assert noisy.done(1.0)
    assert noisy.reason == "timeout"
    calm = StoppingRule(noise=0.01, min_samples=10, max_samples=100, timeout_s=1.0)
    calm.add([1.0] * 9)
    assert not calm.done(0.0)
    calm.add([1.0])
    assert calm.done(0.0)
    assert calm.reason == "precise"
    endless = StoppingRule(noise=0.01, min_samples=10, max_samples=100, timeout_s=1.0)
    endless.add([1.0, 2.0] * 50)
    assert endless.done(0.0)
    assert endless.reason == "max_samples"


def test_a_graph_that_is_too_short_is_captured_again() -> None:
    """A call of 10 microseconds, whose launch hides a kernel of one: a replay lasts half a millisecond all the same."""
    device = Clocked()
    captured: list[int] = []

    def capture(launch: Any, launches: int) -> Any:
        captured.append(launches)

        def replay() -> None:
            device.clock += launches * 1e-6

        return replay

    device.capture = capture  # type: ignore[method-assign]
    found = timing(device, "warm", "cuda_graph", sample_s=0.0005)
    assert captured[0] == 100 and captured[1] == found.launches == pytest.approx(550, abs=1) and device.replays[-1] == 1
    assert found.rule.samples[0] == pytest.approx(1e-6)
