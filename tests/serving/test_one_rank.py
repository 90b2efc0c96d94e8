"""A server with one scheduler has a loop of its own, which does what the loop of all servers does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.engines.scheduling import Batching, StepBatch
from predictor.request.request import Request
from predictor.request.run import Run
from predictor.serving import simulator
from predictor.serving.deployment import Options, deploy
from predictor.serving.simulator import Served, costs_of, deployed, serve
from predictor.serving.traffic import Traffic, arrivals

SCHEDULERS = [("vllm", ""), ("vllm", "0.6"), ("vllm", "0.2.7"), ("sglang", ""), ("tensorrt_llm", "")]
COLUMNS = ("arrival_s", "scheduled_s", "first_s", "last_s", "preempted_times", "found_tokens")


def run_of(execution: str, software: str = "", fraction: float | None = None) -> Run:
    words = {"mode": "generate", "execution": execution, "software": software, "batch": 1, "output_len": 9}
    run = Request("llama-3.2-3b", "l4", seq_len=1000, **words).run()  # type: ignore[arg-type]
    return run if fraction is None else replace(run, work=replace(run.work, memory_fraction=fraction))


def traffic_of(requests: int, rate: float, clients: int = 0, shared: bool = False) -> Traffic:
    random = np.random.default_rng(int(rate * 100) + clients)
    inputs, outputs = random.integers(1, 1500, requests), random.integers(1, 400, requests)
    outputs[::7] = 1
    inputs[::3] = 700
    prefix = np.minimum(inputs, 64) * (inputs % 2) if shared else np.zeros_like(inputs)
    if clients:
        return Traffic(np.zeros(0), inputs, outputs, prefix, clients, 1e-3, 2.8e-6)
    return Traffic(arrivals(requests, rate, "poisson", 1.0, 3), inputs, outputs, prefix)


def both(run: Run, traffic: Traffic, options: Options, monkeypatch: pytest.MonkeyPatch) -> tuple[Served, Served]:
    """From this loop, and from that of all servers."""
    costs = costs_of(deployed(run, traffic, options), traffic)
    here = serve(run, traffic, options, costs)
    with monkeypatch.context() as patched:
        patched.setattr(simulator, "_only", lambda _: None)
        return here, serve(run, traffic, options, costs)


@pytest.mark.parametrize(("execution", "software"), SCHEDULERS)
def test_it_gives_every_request_the_same_bits(execution: str, software: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle and full servers, clients who wait, shared beginnings, and a small cache, from which requests give way."""
    small = run_of(execution, software, 0.45), Options(max_num_batched_tokens=2048, max_num_seqs=48)
    large, gave_way = (run_of(execution, software), Options()), 0
    for (run, options), traffic in (
        (large, traffic_of(60, 0.2)), (large, traffic_of(200, 3.0)), (small, traffic_of(120, 8.0)),
        (small, traffic_of(120, 0.0, 64)), (large, traffic_of(40, 0.0, 3)), (large, traffic_of(60, 3.0, 0, True)),
    ):  # fmt: skip
        here, there = both(run, traffic, options, monkeypatch)
        for column in COLUMNS:
            np.testing.assert_array_equal(getattr(here, column), getattr(there, column), column)
        assert here.moments == there.moments
        gave_way += here.preempted
    assert gave_way or execution != "vllm"  # the others set more pages aside


def test_a_scheduler_is_not_asked_where_all_who_wait_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    run, traffic, asked = run_of("vllm"), traffic_of(60, 1.0), 0
    kind = type(deploy(run, Options(), 4096).batching())
    batch = kind.batch

    def count(self: Batching) -> StepBatch:
        nonlocal asked
        asked += 1
        return batch(self)

    monkeypatch.setattr(kind, "batch", count)
    served = serve(run, traffic)
    assert sum(bool(moment.chunk_tokens) for moment in served.moments[0]) > 40
    assert asked == 0
    monkeypatch.setattr(kind, "joins", False)
    again = serve(run, traffic)
    assert asked > 40
    np.testing.assert_array_equal(served.last_s, again.last_s)
