"""MFU and HFU: what the model asks for and what the GPU runs, over time and peak."""

from __future__ import annotations

import json
from typing import Any

import pytest

from predictor.cli.main import main
from predictor.forecast.forecast import Forecast, forecast
from predictor.models.built import load_config
from predictor.request.request import Request
from predictor.search.training.price import exactly
from predictor.search.training.space import ParallelPlan

WORDS: dict[str, Any] = {
    "mode": "train", "batch": 8, "micro_batch": 1, "seq_len": 512, "execution": "megatron", "artifacts": "roofline",
}  # fmt: skip


def ask(model: str = "gpt3-1.3b", **words: Any) -> Forecast:
    return forecast(Request(model, "h100", **(WORDS | words)).run(), intervals=False)


@pytest.mark.parametrize("words", [
    {"recompute": "full"}, {"recompute": "full", "attention": "math"}, {"recompute": "selective", "attention": "math"},
    {"recompute": "full", "tp": 2, "sp": True}, {"recompute": "full", "pp": 2}, {"recompute": "full:6-of-24"},
    {"recompute": "full", "execution": "eager"}, {"recompute": "full", "execution": "compile"},
    {"recompute": "full", "model": "mixtral-8x7b"}, {"recompute": "full", "model": "llama-3.2-1b", "dp": 4},
    {"recompute": "full", "dtype": "fp8"},
])  # fmt: skip
def test_mfu_is_the_model_s_whatever_runs_again(words: dict[str, Any]) -> None:
    again, once = ask(**words), ask(**{name: value for name, value in words.items() if name != "recompute"})
    assert again.flops > 1.001 * once.flops, "some of it runs twice"
    assert again.model_flops == pytest.approx(once.model_flops, rel=1e-9)
    answer, peak = again.summary(), again.run.gpu.peak_flops(again.run.numbers.gemm)
    assert answer.mfu == pytest.approx(again.model_flops / again.latency_s / peak) and answer.mfu < answer.hfu
    assert answer.hfu == pytest.approx(again.flops / again.latency_s / peak)


def test_model_flops_by_hand() -> None:
    """Six a weight and token, twelve a layer, position and width of the scores, half of these causal (Chowdhery et al.,
    arXiv:2204.02311, appendix B); the kernels between the products are below 2 % of that."""
    config = load_config("gpt3-1.3b")
    found = ask(attention="flash")
    weights = 12 * config.layers * config.hidden**2 + config.vocab * config.hidden
    tokens, seq = 8 * 512, 512
    hand = 6.0 * weights * tokens + 12.0 * config.layers * config.hidden * seq / 2 * tokens
    assert hand < found.model_flops < 1.02 * hand
    scores = 2.0 * config.layers * config.hidden * seq / 2 * tokens  # one product of five, again in the backward pass
    assert found.flops - found.model_flops == pytest.approx(scores, rel=0.01)


@pytest.mark.parametrize("words", [
    {"attention": "math"}, {"mode": "forward", "micro_batch": 0}, {"execution": "eager", "attention": "math"},
])  # fmt: skip
def test_without_recomputation_both_are_one(words: dict[str, Any]) -> None:
    answer = ask(**words).summary()
    assert answer.mfu == answer.hfu > 0


def test_plans_have_the_mfu_of_predict() -> None:
    asked = Request("gpt3-1.3b", "h100", mode="train", batch=8, seq_len=512, execution="megatron", artifacts="roofline")
    plan = ParallelPlan(tp=2, dp=2, micro_batch=1, recompute="full")
    (priced,) = exactly([plan], asked, asked.run().selector)
    assert priced.mfu == ask(tp=2, dp=2, recompute="full").summary().mfu


def test_the_answer_shows_both_where_they_differ(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "gpt3-1.3b", "--gpu", "h100", "--mode", "train", "--seq-len", "512", "--artifacts", "roofline"]
    for words, shown in (("--recompute full --attention math", True), ("--attention math", False)):
        assert main(["predict", *flags, *words.split()]) == 0
        assert ("HFU" in capsys.readouterr().out) == shown
    assert main(["predict", *flags, "--recompute", "full", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["hfu"] / answer["mfu"] == pytest.approx(4 / 3, rel=0.05)
