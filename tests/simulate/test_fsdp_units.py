"""What sharded layers cost: weights gathered once each, hooks on the host, and the waits of a limited host."""

from __future__ import annotations

import pytest

from predictor.forecast.forecast import Forecast, forecast
from predictor.models.built import load_config, parameters
from predictor.request.request import Request
from predictor.simulate.stage import GRADIENTS, WEIGHTS
from predictor.simulate.step_time import _late


def ask(model: str = "gpt2", **words: object) -> Forecast:
    words = {"dp": 8, "batch": 16, "micro_batch": 1, "seq_len": 512, "artifacts": "roofline", **words}
    return forecast(Request(model, "h100", mode="train", **words).run())  # type: ignore[arg-type]


def sent(found: Forecast, what: str, kind: str) -> list[tuple[float, float]]:
    """Bytes and weight of every collective of a phase: how often each runs in a step."""
    return [
        (node.op.size, times * stage.weight)
        for stage in found.plan.stages
        if stage.phase == what
        for node, times in stage.graph.nodes()
        if node.op.label == kind
    ]


@pytest.mark.parametrize("model", ["gpt2", "llama-3.1-8b"])
def test_every_weight_is_gathered_once_a_pass_a_tied_one_too(model: str) -> None:
    found = ask(model, shard="zero3", execution="eager")
    (passes,) = {found.run.work.micro_batches}
    gathered = sum(size * times for size, times in sent(found, WEIGHTS, "all_gather"))
    reduced = sum(size * times for size, times in sent(found, GRADIENTS, "reduce_scatter"))
    whole = parameters(load_config(model))
    assert gathered == pytest.approx(2.0 * whole * passes, rel=1e-6)
    assert reduced == pytest.approx(2.0 * whole * passes, rel=1e-6)


def test_hooks_are_the_hosts_work() -> None:
    times = {
        (shard, us): ask(shard=shard, execution="compile", launch_overhead=us * 1e-6).latency_s
        for shard in ("none", "zero3") for us in (1, 20)
    }  # fmt: skip
    assert times["none", 20] == pytest.approx(times["none", 1], rel=0.01), "a captured graph launches nothing"
    assert times["zero3", 20] > 1.5 * times["zero3", 1]


def test_a_limited_host_asks_late() -> None:
    assert _late(1.0, 2.0, 0.0, 0.0) == 0.0
    assert _late(1.0, 2.0, 1.5, 0.0) == pytest.approx(0.5)
    assert _late(1.0, 2.0, 9.0, 0.0) == 1.0, "never more than all of it"


def test_gradients_alone_are_sharded_by_megatrons_zero2() -> None:
    two, one = (ask(shard=shard, execution="megatron") for shard in ("zero2", "zero1"))
    passes = two.run.work.micro_batches
    assert passes == 2
    whole = parameters(load_config("gpt2"))
    each_pass = sum(size * times for size, times in sent(two, GRADIENTS, "reduce_scatter"))
    once = sum(size * times for size, times in sent(one, GRADIENTS, "reduce_scatter"))
    assert each_pass == pytest.approx(passes * once, rel=1e-6)
    assert each_pass == pytest.approx(4.0 * whole * passes, rel=1e-6)
    for found in (one, two):
        assert sum(size * times for size, times in sent(found, WEIGHTS, "all_gather")) == pytest.approx(2.0 * whole)
    assert two.memory.gradients < one.memory.gradients
