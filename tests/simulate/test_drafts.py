"""Steps that check drafts: what they give and cost, and that a forecast and a simulation have the same ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import predictor
from predictor.engines.vintage import Graphs
from predictor.files.records import replace
from predictor.report.json_report import to_dict
from predictor.request.request import Request
from predictor.serving.costs import StepCosts
from predictor.serving.step_tables import Sizes
from predictor.simulate.answer import Prediction

BATCH, CONTEXT = 8, 1000


def ask(drafts: int = 0, acceptance: float | None = None, mode: str = "decode", **words: Any) -> Prediction:
    sizes: dict[str, Any] = {"context_len": CONTEXT} if mode == "decode" else {"seq_len": CONTEXT, "output_len": 101}
    usual: dict[str, Any] = {"model": "mimo-7b-base", "gpu": "h100", "execution": "vllm", "batch": BATCH}
    return predictor.predict(mode=mode, drafts=drafts, acceptance=acceptance, **usual | sizes | words)


def test_drafts_that_are_all_wrong_give_no_gain_and_all_right_k_more() -> None:
    alone, wrong, right = ask(), ask(3, 0.0), ask(3, 1.0)
    assert alone.tpot_s == alone.latency_s < wrong.latency_s == wrong.tpot_s
    assert right.latency_s == wrong.latency_s and right.tpot_s == pytest.approx(right.latency_s / 4)
    assert (alone.tokens, wrong.tokens, right.tokens) == (BATCH, BATCH, 4 * BATCH)
    assert right.tokens_per_s == pytest.approx(4 * BATCH / right.latency_s)


def test_time_a_token_falls_as_more_drafts_are_right() -> None:
    times = [ask(2, right).tpot_s for right in (0.0, 0.3, 0.6, 0.9, 2.8, 3.0)]
    assert times == sorted(times, reverse=True) and len(set(times)) == 6  # type: ignore[type-var]
    steps = [ask(drafts, 0.5).latency_s for drafts in (1, 2, 4, 8)]
    assert steps == sorted(steps)


@pytest.mark.parametrize("words", [{}, {"draft_model": "qwen2.5-0.5b"}])
def test_generate_takes_fewer_steps(words: dict[str, Any]) -> None:
    alone, drafted = ask(mode="generate"), ask(3, 2.5, "generate", **words)
    step = ask(3, 2.5, context_len=CONTEXT + 50, **words)
    assert drafted.tpot_s == pytest.approx(step.tpot_s, rel=0.02)
    assert drafted.phases_s["decode"] == pytest.approx(100 * drafted.tpot_s)  # type: ignore[operator]
    assert drafted.tokens == alone.tokens == 101 * BATCH
    assert drafted.latency_s < alone.latency_s
    assert drafted.ttft_s > alone.ttft_s  # type: ignore[operator]  # what makes drafts reads the prompt, too


def test_a_draft_model_costs_its_steps_and_its_memory() -> None:
    makers = ("qwen2.5-0.5b", "qwen2.5-7b")
    layer, small, large = ask(2, 0.5), *(ask(2, 0.5, draft_model=name) for name in makers)
    steps = [ask(model=name, step_overhead=0) for name in makers]
    more = 2 * (steps[1].latency_s - steps[0].latency_s)
    assert large.latency_s - small.latency_s == pytest.approx(more, rel=1e-6)
    assert large.memory.weights - ask().memory.weights == pytest.approx(steps[1].memory.weights)
    # the model's own layer is one of its 36, of which the head and the embedding are none
    assert 0 < layer.memory.weights - ask().memory.weights < ask().memory.weights / 36
    assert layer.memory.kv_cache == pytest.approx(ask().memory.kv_cache * 37 / 36)


def test_json_says_drafts_and_the_tokens_of_a_step() -> None:
    plain, said = to_dict(ask()), to_dict(ask(2, 0.5))
    assert (said["drafts"], said["acceptance_length"], said["draft_model"]) == (2, 1.75, None)
    assert said["tpot_ms"] == pytest.approx(said["latency_ms"] / 1.75)
    assert not {"drafts", "acceptance_length"} & plain.keys()


@pytest.mark.parametrize(("execution", "maker"), [("vllm", None), ("sglang", None), ("vllm", "qwen2.5-0.5b")])
def test_a_simulation_has_the_steps_of_a_forecast(execution: str, maker: str | None) -> None:
    drafts, words = 3, {"execution": execution, "draft_model": maker}
    run = Request("mimo-7b-base", "h100", mode="generate", batch=1, seq_len=CONTEXT, output_len=8, drafts=drafts,
                  acceptance=0.5, **words).run()  # type: ignore[arg-type]  # fmt: skip
    served = replace(run, work=run.work.changed(drafts=0, acceptance=0.0, draft_model=""))
    from predictor.engines.defaults import graphs
    from predictor.engines.vintage import Setting

    held = graphs(run.work.engine, Setting(run.gpu, drafts=drafts))
    costs = StepCosts(served, Sizes(512, 16, 2048, drafts=drafts), held)
    for batch in (1, 5, 16):
        step = ask(drafts, 0.5, batch=batch, **words).latency_s
        assert costs.decode_step(batch, batch * CONTEXT) == pytest.approx(step, rel=0.02), batch
        array = costs.decode(batch, np.array([batch * CONTEXT, batch * 1500.0]))[0]
        assert array[0] == pytest.approx(costs.decode_step(batch, batch * CONTEXT)) and array[1] > array[0]


def test_captured_sizes_count_tokens_or_sequences() -> None:
    by_sequence, by_token = (Graphs((1, 2, 4, 8, 16), "", of_tokens=tokens) for tokens in (False, True))
    assert [by_sequence.tokens_of(3, 4), by_token.tokens_of(3, 4)] == [16, 16]
    assert [by_sequence.tokens_of(5, 4), by_token.tokens_of(5, 4)] == [32, None]
    assert by_token.tokens_of(3) == by_sequence.tokens_of(3) == 4


def test_a_step_counts_the_work_on_every_token_that_it_checks() -> None:
    maker = "qwen2.5-0.5b"
    step, tokens, draft = ask(3, 0.5, draft_model=maker), ask(batch=4 * BATCH), ask(model=maker)
    # attention, which is counted for one token of a sequence, is a few percent of it
    assert step.flops == pytest.approx(tokens.flops + 3 * draft.flops, rel=0.05)
