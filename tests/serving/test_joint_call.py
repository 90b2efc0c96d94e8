"""Decodes in one attention call with prompts, and decodes of unequal lengths: what a call of FlashAttention-2 takes,
measured and by its parts."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from predictor.engines import library
from predictor.hardware.gpu import load_gpu
from predictor.request.request import Request
from predictor.serving.costs import StepCosts
from predictor.serving.joint_call import deviations
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


#: (decodes, those that are long, their tokens, tokens of the others) -> how many times as long their call takes as that
#: of as many of their mean: Llama-3.1-8B without a prompt. Source: casys-kaist/LLMServingSim@5daddb2, MIT.
UNEQUAL = {
    ("rtx-pro-6000-server", 188): {
        (64, 1, 16384, 4096): 1.291, (64, 4, 16384, 4096): 1.187, (64, 16, 8192, 2048): 1.075,
        (64, 48, 8192, 2048): 1.062, (64, 58, 8192, 2048): 1.004, (128, 4, 16384, 4096): 1.128,
    },
    ("rtx-4090", 128): {
        (32, 1, 16384, 4096): 1.473, (32, 4, 16384, 4096): 1.207, (32, 16, 16384, 4096): 1.118,
        (64, 1, 16384, 4096): 1.253, (64, 8, 16384, 4096): 1.156, (128, 32, 8192, 2048): 1.019,
    },
}  # fmt: skip


def listed(lengths: Sequence[float], heads: int, places: int, faster: float) -> float:
    """Tokens' time of a full GPU until tiles of ``lengths``, head by head, are done: a place takes the next when it is
    free, and those that run share the memory's rate, of which one has ``faster`` shares at most."""
    tiles = [length for _ in range(heads) for length in lengths]
    running = sorted(tiles[:places])
    time = progress = 0.0
    for following in [*tiles[places:], *[None] * min(places, len(tiles))]:
        rate = min(faster, places / len(running))
        end = heapq.heappop(running)
        time, progress = time + (end - progress) / rate, end
        if following is not None:
            heapq.heappush(running, progress + following)
    return time


def faster_on(gpu: str) -> float:
    """How many times as fast as its share of memory a lone tile is, by the tables of the law."""
    joint = costs_on(gpu).tables.joint
    assert joint is not None
    layers, call = joint._layers[0], joint._call
    return float(layers.read_s * layers.group * layers.keys / layers.step_s * call.lone)


@pytest.mark.parametrize(("gpu", "sms"), UNEQUAL)
def test_multiprocessors_take_tiles_in_their_order(gpu: str, sms: int) -> None:
    """What the law stands for gives what was measured, the long ones first as they were."""
    for (n, many, long, short), ratio in UNEQUAL[gpu, sms].items():
        mean, faster = (many * long + (n - many) * short) / n, faster_on(gpu)
        took = listed([long] * many + [short] * (n - many), 8, sms, faster)
        assert took / listed([mean] * n, 8, sms, faster) == pytest.approx(ratio, abs=0.04), (n, many, long, short)


@pytest.mark.parametrize(
    ("sequences", "heads", "sms", "faster"),
    [(64, 8, 188, 3.6), (128, 8, 188, 3.6), (128, 4, 188, 3.6), (32, 8, 128, 2.4), (64, 8, 128, 2.4),
     (128, 8, 128, 2.4), (32, 32, 128, 1.0), (64, 32, 188, 1.0), (128, 32, 188, 1.0)],
)  # fmt: skip
def test_the_tail_is_that_of_tiles_in_random_order(sequences: int, heads: int, sms: int, faster: float) -> None:
    random, tails = np.random.default_rng(sequences), []
    for _ in range(8):
        lengths = random.exponential(1000.0, sequences)
        busy = lengths.sum() * heads / sms
        tails.append((listed(lengths.tolist(), heads, sms, faster) - busy) / lengths.std() * faster)
    assert deviations(sequences) - np.log(faster) == pytest.approx(np.mean(tails), rel=0.2)


def test_decodes_alone_are_uneven_where_no_cache_is_split() -> None:
    """A cache has one part from 1.6 tiles an SM on, of 8 KV heads: 301 on 188 SMs, 205 on 128."""
    for gpu, first in (("rtx-pro-6000-server", 38), ("rtx-4090", 26)):
        costs = costs_on(gpu)
        assert costs.uneven_s(first - 1) == 0.0 < costs.uneven_s(first) < costs.uneven_s(2 * first)
    for gpu in ("h100-sxm", "b200-sxm"):  # which share work out in parts
        assert costs_on(gpu).uneven_s(128) == 0.0
    # Windows of 128 tokens are full in every decode, so that half of the layers are even.
    windowed = costs_on("a100-sxm-80gb", "openai/gpt-oss-20b")
    layers = windowed.tables.joint._layers  # type: ignore[union-attr]
    assert {bool(each.window) for each in layers} == {True, False}
    assert windowed.uneven_s(128) == sum(each.uneven_s(128, 0.0, 1.2) for each in layers if not each.window) > 0.0


def test_a_step_of_unequal_decodes_takes_longer() -> None:
    """128 decodes on RTX PRO 6000 that deviate by 560 tokens, as ShareGPT's do: steps lacked 0.7 to 1.4 ms of 27."""
    costs = costs_on("rtx-pro-6000-server")
    more_s = costs.uneven_s(128) * 560.0
    assert 0.7e-3 < more_s < 1.4e-3
    alike, step = costs.decode_step(128, 128e3), costs.decode_step(128, 128e3, more_s)
    assert step - alike == pytest.approx(more_s)
    assert costs.decode(128, np.array([128e3]), more_s)[0] == pytest.approx(step)
    # A rank that reads no prompt while another does has such a step, too.
    alone_s = costs.tables.decodes.of(128, 1000.0)
    assert costs.attention_beside(128, 128000, 0, 0.0, 560.0) == pytest.approx(alone_s + more_s)


def test_unequal_decodes_beside_prompts_end_with_the_longest() -> None:
    costs = costs_on("rtx-pro-6000-server")
    for n in (2, 64):
        even, uneven, more = (costs.attention_beside(n, n * 1000, 512, 0.0, spread) for spread in (0.0, 300.0, 600.0))
        assert even < uneven < more
    assert more - uneven == pytest.approx(uneven - even)  # many: a tail behind the same work
    tail = (uneven - even) / 300.0
    assert tail == pytest.approx(deviations(64) * costs.tables.joint._layers[0].token_s)  # type: ignore[union-attr]
    long_s = 1e-2  # a few end before a prompt that takes longer
    assert costs.attention_beside(2, 2000, 512, long_s, 600.0) == costs.attention_beside(2, 2000, 512, long_s)


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h100-sxm"])
def test_a_rank_without_prompts_has_a_call_of_decodes(gpu: str) -> None:
    """Others of its step read prompts: with data parallelism, and in a pipeline."""
    costs = costs_on(gpu)
    assert costs.attention_beside(64, 64 * 4000, 0, 0.0) == costs.tables.decodes.of(64, 4000.0)
