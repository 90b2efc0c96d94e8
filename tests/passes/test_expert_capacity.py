"""Experts that are not picked alike: what the busiest rank has, and what a capacity drops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from predictor.errors import TilecastError
from predictor.forecast.forecast import Forecast, forecast
from predictor.ops.collective import Collective
from predictor.ops.gemm import Gemm
from predictor.ops.routing import inclusion, shares_of, within_capacity
from predictor.request.request import Request

BASE: dict[str, Any] = {"mode": "train", "seq_len": 2048, "batch": 16, "micro_batch": 1, "execution": "megatron"}


def ask(model: str = "mixtral-8x7b", **words: Any) -> Forecast:
    return forecast(Request(model, "h100", artifacts="roofline", **(BASE | words)).run(), intervals=False)


def ops(found: Forecast) -> list[Any]:
    return [node.op for block in found.plan.stages[0].graph.blocks for node in block.nodes]


def exchanged(found: Forecast) -> int:
    return next(op.size for op in ops(found) if isinstance(op, Collective) and op.kind == "all_to_all")


def rows(found: Forecast) -> int:
    """Rows of the experts' products, of a gradient of their inputs."""
    return next(op.m * op.batch for op in ops(found) if isinstance(op, Gemm) and op.kind == "grouped")


@pytest.mark.parametrize("experts", [8, 64])
@pytest.mark.parametrize("routing", ["random", "zipf:0.5", "zipf:1.2"])
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5])
def test_what_a_capacity_keeps_is_what_draws_keep(experts: int, routing: str, factor: float) -> None:
    tokens, top_k, draws = 1024, 2, 300
    kept, after = within_capacity(routing, tokens, experts, top_k, factor)
    chances = inclusion(routing, experts, top_k)
    random = np.random.default_rng(0)
    most = np.ceil(tokens * top_k / experts * factor)
    drawn = np.minimum(random.binomial(tokens, chances, (draws, experts)), most)
    assert kept == pytest.approx(drawn.sum(axis=1).mean(), rel=0.01)
    assert np.array(shares_of(after)) * kept == pytest.approx(drawn.mean(axis=0), rel=0.05, abs=1.0)
    assert kept <= tokens * top_k + 1e-6


def test_the_busiest_rank_sets_the_pace() -> None:
    even, skewed = ask(dp=8, ep=8), ask(dp=8, ep=8, routing="zipf:1")
    most = float(inclusion("zipf:1", 8, 2)[0]) * 8 / 2
    assert exchanged(skewed) == pytest.approx(most * exchanged(even), rel=1e-3)
    assert rows(skewed) == pytest.approx(most * rows(even), rel=1e-3)
    assert skewed.latency_s > even.latency_s
    assert skewed.memory.activations > even.memory.activations
    alone = ask(dp=8, routing="zipf:1")
    assert rows(alone) == rows(ask(dp=8)), "a rank that has all experts has all rows"


def test_a_capacity_bounds_the_busiest_rank_and_is_free_where_nothing_is_beyond() -> None:
    words = {"dp": 8, "ep": 8, "routing": "zipf:1"}
    found = [ask(**words, capacity_factor=factor) for factor in (1.0, 1.5, 3.0, 0.0)]
    times, sent = [each_.latency_s for each_ in found], [exchanged(each_) for each_ in found]
    assert times[0] < times[1] < times[2] == pytest.approx(times[3]) and sent[:3] == sorted(sent[:3])
    assert sent[0] == pytest.approx(exchanged(ask(dp=8, ep=8)), rel=1e-3), "an even share"
    assert ask(dp=8, ep=8, capacity_factor=4.0).latency_s == pytest.approx(ask(dp=8, ep=8).latency_s, rel=1e-3)
    half = ask(dp=8, ep=8, routing="balanced", capacity_factor=0.5)
    assert rows(half) * 2 == rows(ask(dp=8, ep=8, routing="balanced"))
    assert rows(half) == 2048, "8 ranks' tokens, two copies of each, half of them kept, on an eighth of the experts"


@pytest.mark.parametrize(("words", "said"), [
    ({"capacity_factor": -1.0}, "--capacity-factor -1.0: expected a number such as 1.25, or 0 to drop nothing"),
    ({"model": "gpt2", "seq_len": 512, "capacity_factor": 1.0}, "--capacity-factor 1: gpt2 has no experts; expected 0"),
    ({"execution": "eager", "capacity_factor": 1.0}, "--execution eager runs experts one by one, and drops no tokens"),
    ({"mode": "forward", "micro_batch": 0, "capacity_factor": 1.0}, "--capacity-factor 1.0: only --mode train takes"),
])  # fmt: skip
def test_what_cannot_be_is_one_line(words: dict[str, Any], said: str) -> None:
    with pytest.raises(TilecastError) as caught:
        ask(**words)
    assert said in str(caught.value)
