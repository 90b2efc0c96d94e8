"""`--top` lists an operator once, however many passes stand for a run."""

from __future__ import annotations

import json
from collections import Counter

import pytest

import predictor
from predictor.cli.main import main

EVERY = 10_000


@pytest.mark.parametrize("attention", ["flash", "math"])
@pytest.mark.parametrize("output_len", [2, 5, 400])
def test_generate_lists_prefill_and_decode_of_an_operator_once_each(attention: str, output_len: int) -> None:
    answer = predictor.predict(
        "gpt2", "h100", mode="generate", seq_len=64, output_len=output_len, attention=attention, top=EVERY
    )
    rows = Counter((row.name, row.op) for row in answer.nodes)
    assert max(rows.values()) == 2  # a prefill's shape is another than a step's
    assert len({(row.name, row.op, row.shape) for row in answer.nodes}) == len(answer.nodes)
    assert sum(row.latency_s for row in answer.nodes) == pytest.approx(answer.gpu_busy_s)
    assert sum(row.share for row in answer.nodes) == pytest.approx(1.0)
    assert [row.latency_s for row in answer.nodes] == sorted((row.latency_s for row in answer.nodes), reverse=True)
    steps = output_len - 1
    (down,) = (row for row in answer.nodes if row.name == "mlp down" and row.shape.startswith("1 x"))
    assert down.count == pytest.approx(12 * steps)
    (head,) = (row for row in answer.nodes if row.name == "lm head")
    assert head.count == pytest.approx(1 + steps), "of one shape in prefill and in every step"


def test_what_grows_with_the_context_has_its_range() -> None:
    for attention, name, first, last in (
        ("flash", "attention core", "kv 65 to 463", "kv 463"), ("math", "attention scores", "x 65 to 463 x", "x 463 x"),
    ):  # fmt: skip
        answer = predictor.predict(
            "gpt2", "h100", mode="generate", seq_len=64, output_len=400, attention=attention, top=EVERY
        )
        shapes = [row.shape for row in answer.nodes if row.name == name]
        assert len(shapes) == 2 and any(first in shape for shape in shapes), shapes
        step = predictor.predict("gpt2", "h100", mode="decode", context_len=462, attention=attention, top=EVERY)
        (alone,) = (row.shape for row in step.nodes if row.name == name)
        assert last in alone and " to " not in alone


def test_the_list_is_cut_after_it_was_gathered(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "--model", "llama-3.1-8b", "--gpu", "h100", "--mode", "generate", "--seq-len", "64"]
    assert main([*words, "--output-len", "400", "--execution", "vllm", "--top", "5", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["operators"]
    assert len({row["name"] for row in rows}) == 5
    assert {"mlp gate_up", "mlp down", "attention core"} < {row["name"] for row in rows}


def test_training_lists_forward_and_backward() -> None:
    answer = predictor.predict("gpt2", "h100", mode="train", seq_len=64, batch=4, micro_batch=2, top=EVERY)
    assert sum(row.latency_s for row in answer.nodes) == pytest.approx(answer.gpu_busy_s)
    assert {row.phase for row in answer.nodes} >= {"forward", "backward"}
    (down,) = (row for row in answer.nodes if row.name == "mlp down" and row.phase == "forward")
    assert down.count == pytest.approx(12 * 2)
