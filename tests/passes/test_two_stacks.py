"""Pipelines of encoder-decoders: work is conserved, and the encoder's output travels to every stage of the decoder."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.errors import TilecastError
from predictor.forecast.forecast import Forecast, forecast
from predictor.models.built import load_config
from predictor.request.request import Request
from predictor.simulate.pipeline import times

BASE: dict[str, Any] = {"mode": "train", "seq_len": 512, "batch": 16, "micro_batch": 1, "execution": "megatron"}


def ask(model: str, **words: Any) -> Forecast:
    return forecast(Request(model, "a100-sxm-80gb", artifacts="roofline", **(BASE | words)).run(), intervals=False)


def stages(found: Forecast) -> list[Any]:
    """The graph of every stage's pass."""
    parallel = found.plan.parallel
    assert parallel is not None
    return [found.timed[parallel.kinds[kind].chunks[0]].stage.graph for kind in parallel.ranks]


@pytest.mark.parametrize("model", ["t5-large", "switch-base-8"])
@pytest.mark.parametrize(
    "words", [{"pp": 2}, {"pp": 3}, {"pp": 4}, {"pp": 2, "dp": 2, "shard": "zero1"}, {"pp": 4, "recompute": "full"}]
)
def test_stages_have_all_of_the_model_and_nothing_twice(model: str, words: dict[str, Any]) -> None:
    whole, found = ask(model, recompute=words.get("recompute", "none")), ask(model, **words)
    micro_batches = found.run.work.micro_batches
    flops = sum(graph.flops() for graph in stages(found)) * micro_batches * words.get("dp", 1)
    assert flops == pytest.approx(whole.flops, rel=2e-3)  # but for the optimizer's
    nodes = [sum(n.count * b.repeat for b in graph.blocks for n in b.nodes) for graph in stages(found)]
    (one,) = (sum(n.count * b.repeat for b in whole.plan.stages[0].graph.blocks for n in b.nodes),)
    assert sum(nodes) == one
    config = load_config(model)
    parallel = found.plan.parallel
    assert parallel is not None
    copies = sum(any("token embedding" in n.name for b in g.blocks for n in b.nodes) for g in stages(found))
    held = sum(parallel.kinds[kind].parameters for kind in parallel.ranks)
    plain = found.plan.parallel and ask(model, dp=2).plan.parallel
    assert plain
    tables = copies + (config.tie_embeddings and words["pp"] > 2)
    assert held == plain.kinds[0].parameters + (tables - 1) * config.vocab * config.hidden


def test_the_encoders_output_goes_on_to_every_stage_of_the_decoder() -> None:
    found = ask("t5-large", pp=4)
    parallel, step = found.plan.parallel, found.step
    assert parallel is not None and step is not None
    assert parallel.sends == (1, 1, 2, 2), "the encoder's last stage sends its output alone"
    assert ask("gpt2", pp=4).plan.parallel.sends == (1, 1, 1, 1)  # type: ignore[union-attr]
    from predictor.simulate.step_time import laid_out

    laid = laid_out(found.run, found.plan, found.timed)
    assert laid.order is not None
    alone = times(laid.order, laid.forward_s, laid.backward_s, laid.sent_s.min(), laid.p2p)
    assert laid.ends_s.max() > alone.end_s.max(), "more is sent"
    sums = [n.op for s in found.plan.stages if s.phase == "gradients" for b in s.graph.blocks for n in b.nodes]
    assert {op.ranks for op in sums} == {3}, "copies of the embedding: encoder, decoder, head"


def test_unequal_stages_and_what_cannot_be() -> None:
    even, cut = ask("t5-large", pp=4), ask("t5-large", pp=4, stage_layers="20,10,10,8")
    assert cut.latency_s < even.latency_s, "a layer of the decoder has more to do"
    for words, said in (
        ({"pp": 2, "vpp": 2}, "--vpp 2: an encoder-decoder .t5-large. runs one chunk per stage"),
        ({"pp": 4, "stage_layers": "6,6,6,6"}, "24 layers; expected the 48 of t5-large"),
        ({"pp": 40}, "does not divide the 48 layers of t5-large"),
    ):
        with pytest.raises(TilecastError, match=said):
            ask("t5-large", batch=98, **words)
