"""Decodes in one attention call with prompts: what a call of FlashAttention-2 takes, measured and by its parts."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from predictor.engines import library
from predictor.hardware.gpu import load_gpu
from predictor.request.request import Request
from predictor.serving.costs import StepCosts
from predictor.serving.step_tables import Sizes

#: (tokens of the prompt, decodes, tokens of each) -> microseconds of the call, and of the prompt's alone: a layer of
#: Llama-3.1-8B in vLLM 0.19 on RTX PRO 6000. Source: casys-kaist/LLMServingSim@5daddb2, MIT.
MEASURED = {
    (512, 16, 1024): (111.0, 24.9), (512, 64, 512): (220.7, 24.9), (2048, 64, 512): (452.0, 172.6),
    (2048, 128, 128): (555.1, 172.6), (1024, 16, 1024): (146.0, 61.1), (256, 2, 16384): (366.0, 11.1),
    (512, 64, 4096): (1465.1, 24.9), (128, 128, 1024): (681.8, 8.6),
}  # fmt: skip
#: 128 decodes of one KV head are 268 MB there, and its L2 cache holds half.
FAR = (512, 128, 4096), 4321.3
#: What two boards' fits of the law leave is 9 % on average; no row by itself may be further off than this.
ROW = 0.25


@cache
def costs_on(gpu: str, model: str = "llama-3.1-8b") -> StepCosts:
    run = Request(model, gpu, mode="generate", execution="vllm", batch=1, seq_len=2048, output_len=2048).run()
    return StepCosts(run, Sizes(2048, 128, 18432), None)


def added_us(gpu: str, prompt: int, decodes: int, context: int, chunks_s: float | None = None) -> float:
    """Of one layer."""
    costs = costs_on(gpu)
    layers = costs.run.config.stack().layers
    alone_s = costs.attention_of(((prompt, 0),)) if chunks_s is None else chunks_s
    return costs.attention_beside(decodes, decodes * context, prompt, alone_s) / layers * 1e6


def test_measured_calls_of_prompts_beside_decodes() -> None:
    errors = []
    for (prompt, decodes, context), (call_us, prompt_us) in MEASURED.items():
        alone_s = prompt_us * 1e-6 * costs_on("rtx-pro-6000-server").run.config.stack().layers
        got = prompt_us + added_us("rtx-pro-6000-server", prompt, decodes, context, alone_s)
        errors.append(got / call_us - 1.0)
    assert np.abs(errors).max() < ROW, errors
    assert np.abs(errors).mean() < 0.12, errors


def test_heads_of_a_group_read_a_cache_that_l2_does_not_hold_each_for_itself() -> None:
    (prompt, decodes, context), call_us = FAR
    assert added_us("rtx-pro-6000-server", prompt, decodes, context) == pytest.approx(call_us, rel=ROW)
    few = added_us("rtx-pro-6000-server", prompt, 32, context) / 32
    assert added_us("rtx-pro-6000-server", prompt, decodes, context) / decodes > 1.5 * few
    # With so few decodes most heads of a group run at a time, however long the cache is.
    assert added_us("rtx-pro-6000-server", prompt, 32, 4 * context) / 32 == pytest.approx(4 * few, rel=0.1)


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "l40s", "rtx-4090", "rtx-pro-6000-server"])
def test_a_decode_pays_for_its_tiles_and_the_empty_ones(gpu: str) -> None:
    """Steps of a tile are over 128 keys of 128 values each, and a prompt of more tiles leaves a decode more empty
    ones."""
    work = [added_us(gpu, 512, 64, context) for context in (127, 128, 255, 256)]
    assert work[0] < work[1] == work[2] < work[3]
    short, long = added_us(gpu, 64, 64, 600), added_us(gpu, 2048, 64, 600)
    assert added_us(gpu, 1, 64, 600) == short < long
    assert added_us(gpu, 2048, 64, 600) - short == pytest.approx(31 / 7 * (added_us(gpu, 512, 64, 600) - short))
    counts = [added_us(gpu, 512, n, 600) for n in (1, 2, 4, 8, 16, 32, 64, 128)]
    assert counts == sorted(counts)


def test_a_lone_decode_is_as_long_as_its_tiles_which_nothing_splits() -> None:
    """32 tiles do not fill 188 SMs: the call ends with them, or with a prompt that takes longer."""
    beside_nothing = added_us("rtx-pro-6000-server", 64, 1, 16384, 0.0)
    assert beside_nothing == pytest.approx(366.0, rel=ROW)  # measured there: 16 to 256 tokens beside one of 16,384
    layers = costs_on("rtx-pro-6000-server").run.config.stack().layers
    assert added_us("rtx-pro-6000-server", 64, 1, 16384, 1e-3 * layers) < 0.3 * beside_nothing


def test_the_keys_of_a_step_and_the_tiles_of_an_sm() -> None:
    """kBlockN of heads of 64, 128 and 256; queries, keys and values are 80 KiB at 128."""
    call = library("vllm").joins(load_gpu("a100-sxm-80gb"))
    assert call is not None
    assert [call.keys_of(width) for width in (64, 96, 128, 192, 256)] == [256, 128, 128, 64, 64]
    assert call.tiles_an_sm(128, 2.0, load_gpu("a100-sxm-80gb")) == 2
    assert call.tiles_an_sm(128, 2.0, load_gpu("l40s")) == 1


def test_other_boards_and_engines_keep_their_calls() -> None:
    """FlashAttention-3 has no such grid, FlashInfer has decodes apart."""
    assert costs_on("h100-sxm").tables.joint is None
    assert costs_on("h100-sxm").tables.joined_s > 0.0
    assert costs_on("b200-sxm").tables.joint is None
    assert costs_on("b200-sxm").tables.joined_s == 0.0


def test_layers_with_a_window_see_no_more_than_that() -> None:
    """gpt-oss: every second layer sees 128 tokens; a longer cache is more work for the other half alone."""
    costs = costs_on("a100-sxm-80gb", "openai/gpt-oss-20b")
    assert costs.tables.joint is not None
    near, far = (costs.attention_beside(16, 16 * context, 64, 0.0) for context in (1023, 2047))
    assert 1.5 * near < far < 2.0 * near
