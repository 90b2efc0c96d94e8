"""Passes that an engine runs in graphs: padded to a captured size, in pieces, or launched."""

from __future__ import annotations

from dataclasses import replace

import pytest

import predictor
from predictor.engines import CAPTURED, LAUNCHES, PIECES
from predictor.forecast.forecast import forecast
from predictor.ops.attention import Attention
from predictor.request.request import Request
from predictor.request.run import Run
from predictor.simulate.answer import Prediction
from predictor.simulate.plan import plan_of


def run_of(**words: object) -> Run:
    return Request("qwen3-0.6b", "h100", execution="vllm", **words).run()  # type: ignore[arg-type]


def asked(**words: object) -> Prediction:
    return predictor.predict("qwen3-0.6b", "h100", execution="vllm", **words)  # type: ignore[arg-type]


def test_a_decode_step_is_padded_to_the_next_graph_but_for_its_attention() -> None:
    words = {"mode": "decode", "context_len": 1000}
    (stage,) = plan_of(run_of(batch=9, **words)).stages
    (whole,) = plan_of(run_of(batch=16, **words)).stages
    assert stage.host == CAPTURED and stage.counted is not None and whole.counted is None
    for (mine, _), (other, _) in zip(stage.graph.nodes(), whole.graph.nodes(), strict=True):
        assert mine.op == (replace(other.op, batch=9) if isinstance(other.op, Attention) else other.op)
    nine, sixteen = asked(batch=9, **words), asked(batch=16, **words)
    launched = sum(timed.total_s for timed in forecast(run_of(batch=9, **words)).stages)
    assert nine.latency_s == pytest.approx(launched)
    assert nine.latency_s < sixteen.latency_s  # attention over nine sequences
    assert nine.flops == pytest.approx(9 / 16 * sixteen.flops)  # the model's, not those of rows that pad it
    assert nine.tokens == 9


def test_what_no_graph_holds_is_launched() -> None:
    (stage,) = plan_of(run_of(mode="decode", batch=600, context_len=100)).stages
    assert stage.host == LAUNCHES and stage.counted is None
    (stage,) = plan_of(run_of(mode="decode", batch=9, context_len=100), captured=False).stages
    assert stage.host == LAUNCHES and stage.counted is None


@pytest.mark.parametrize("lens", [None, (100, 27, 3)])
def test_small_prompts_run_in_pieces(lens: tuple[int, ...] | None) -> None:
    words = {"mode": "prefill", "batch": 2, "seq_len": 65} if lens is None else {"mode": "prefill", "prompt_lens": lens}
    run = run_of(**words)
    (stage,) = plan_of(run).stages
    (alone,) = plan_of(run, captured=False).stages
    assert (stage.host, alone.host) == (PIECES, LAUNCHES)
    assert stage.counted is not None and stage.counted.flops() == alone.graph.flops()
    sizes = {node.op.m for node, _ in stage.graph.nodes() if node.op.family == "gemm" and node.op.kind == "linear"}
    sequences = 2 if lens is None else 3
    assert sizes == {136, sequences}  # 130 tokens in the graph of 136; the head works on the last of each prompt
    attention = [node.op for node, _ in stage.graph.nodes() if isinstance(node.op, Attention)]
    assert attention == [node.op for node, _ in alone.graph.nodes() if isinstance(node.op, Attention)]
    layers = run.config.layers
    (timed,) = forecast(run).stages
    calls = sum(node.op.kernels() * times for node, times in alone.graph.nodes() if isinstance(node.op, Attention))
    launches = timed.timeline.cpu_s / stage.launch_s
    assert launches == pytest.approx(calls + layers + 1)  # attention, a piece behind each, and the first
    assert asked(**words).latency_s < asked(**words, launch_overhead=9e-4).latency_s


def test_prompts_beyond_the_largest_graph_and_other_engines_are_launched() -> None:
    (stage,) = plan_of(run_of(mode="prefill", seq_len=513)).stages
    assert stage.host == LAUNCHES
    other = Request("qwen3-0.6b", "h100", execution="tensorrt_llm", mode="prefill", seq_len=64).run()
    (stage,) = plan_of(other).stages
    assert stage.host == other.work.engine.host != PIECES and stage.counted is None
