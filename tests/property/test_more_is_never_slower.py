"""More hardware is never slower, more work never faster: random requests, each against itself with more of one thing.

``MORE_REQUESTS`` says how many are drawn (200 without it); a run by hand takes thousands.

SMs or a clock raised alone, at the peaks that a file states, are weaker SMs: k times as many do 1/k of the work each a
clock. That is another board and no better one. A grid of few tiles has slower tiles and no use for the other SMs, and
the same peak takes more watts at k times the clock, or over k times as many SMs. So what holds is a bound:

clock   with the watts for it, k^3 times as many as voltage rises with it, never slower; at the same watts at most k
        times the time, as if the board ran at the old clock
SMs     with k times the watts at most k times the time, that of a tile on one of them; at the same watts the power law
        takes up to k^(1 - NEED_EXPONENT) more
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pytest

from predictor import predict
from predictor.errors import TilecastError
from predictor.hardware.gpu import GPUSpec, list_gpus, load_gpu
from predictor.hardware.what_if import vary
from predictor.kernels.device import NEED_EXPONENT

REQUESTS = int(os.environ.get("MORE_REQUESTS", "200"))
#: A share of the latency: what a forecast may be slower with more hardware, or faster with more work.
MOST = 0.01
#: What more work may be faster where a board's own table says so (docs/explanation/limits.md, Between measured sizes):
#: a doubled batch on B60.
MEASURED = {("b60", "batch"): 0.09}
HARDWARE = ("memory_bandwidth", "clock", "sm_count", "l2", "peak_flops", "power_limit")
MODELS = (
    "llama-3.1-8b", "llama-3.2-1b", "qwen2.5-7b", "llama-2-13b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "gpt2",
    "bert-large", "opt-1.3b", "t5-small", "gemma-2-9b",
)  # fmt: skip
EXECUTIONS = ("eager", "compile", "cuda_graph", "vllm", "sglang", "tensorrt_llm")
TRAINING = ("eager", "compile", "megatron")
DTYPES = ("fp32", "fp16", "bf16", "fp8", "fp8_block", "int4_wo", "nvfp4")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and what of it becomes more."""

    model: str
    gpu: str
    more: str
    factor: float
    words: tuple[tuple[str, Any], ...]

    def latency_s(self, more: bool) -> float:
        """Its forecast, of the request as it is or of the one with more."""
        words, gpu = dict(self.words), load_gpu(self.gpu)
        if more and self.more == "batch":
            words["batch"] *= 2
        elif more:
            gpu = vary(gpu, self.more, self.factor)
        return _latency_s(self.model, gpu, words)

    def gained(self) -> float:
        """By what share more work makes it faster, or more hardware slower; negative where it is as it should be."""
        before, after = self.latency_s(False), self.latency_s(True)
        return before / after - 1.0 if self.more == "batch" else after / before - 1.0


def _latency_s(model: str, gpu: GPUSpec, words: dict[str, Any]) -> float:
    return predict(model, gpu, **words).latency_s


def asked(seed: int) -> Iterator[Asked]:
    """Random requests without end; most are valid."""
    draw = random.Random(seed)
    while True:
        mode = draw.choice(("forward", "prefill", "decode", "train"))
        words: dict[str, Any] = {
            "mode": mode, "batch": draw.choice((1, 2, 3, 4, 8, 16, 30, 64)), "dtype": draw.choice(DTYPES),
            "execution": draw.choice(TRAINING if mode == "train" else EXECUTIONS),
        }  # fmt: skip
        if mode == "decode":
            words["context_len"] = draw.choice((100, 512, 1024, 4000))
        else:
            words["seq_len"] = draw.choice((64, 128, 500, 512))
        if draw.random() < 0.25:
            words["tp"] = draw.choice((2, 4, 8))
        more = draw.choice((*HARDWARE, "batch"))
        factor = draw.choice((1.04, 1.1, 1.3, 1.5, 2.0, 3.0))
        yield Asked(draw.choice(MODELS), draw.choice(list_gpus()), more, factor, tuple(words.items()))


def judged(count: int, seed: int = 0) -> tuple[Counter[str], list[tuple[float, Asked]]]:
    """(valid requests by what becomes more, those that gain beyond `MOST`, the worst first) of ``count`` valid ones."""
    valid: Counter[str] = Counter()
    wrong: list[tuple[float, Asked]] = []
    for request in asked(seed):
        if valid.total() == count:
            break
        try:
            gained = request.gained()
        except TilecastError:
            continue
        valid[request.more] += 1
        if gained > MEASURED.get((request.gpu, request.more), MOST):
            wrong.append((gained, request))
    return valid, sorted(wrong, key=lambda found: -found[0])


def test_random_requests() -> None:
    valid, wrong = judged(REQUESTS)
    assert valid.total() == REQUESTS and len(valid) == len(HARDWARE) + 1
    lines = [f"{gained:.1%} {request}" for gained, request in wrong]
    assert not wrong, f"{len(wrong)} of {REQUESTS}:\n" + "\n".join(lines)


@pytest.mark.parametrize("gpu", ["gh200-144gb", "h100-sxm", "l40s"])
@pytest.mark.parametrize("execution", ["megatron", "compile"])
def test_a_product_is_no_slower_where_what_was_measured_with_it_is_faster(gpu: str, execution: str) -> None:
    """Times of narrow products hold that of a quantization, which is taken out where another kernel has done it."""
    mode = "train" if execution == "megatron" else "prefill"
    words = (("mode", mode), ("batch", 3), ("dtype", "fp8"), ("execution", execution), ("seq_len", 500))
    for more in ("l2", "memory_bandwidth", "peak_flops"):
        assert Asked("llama-3.2-1b", gpu, more, 3.0, words).gained() <= 0.0, more


@pytest.mark.parametrize("alone", ["clock", "clock and watts", "sm_count", "sm_count and watts"])
def test_weaker_sms_are_slower_by_no_more_than_they_are_weaker(alone: str) -> None:
    """SMs or the clock times k at the peaks of the file."""
    wrong, valid = [], 0
    for request in islice(asked(len(alone)), REQUESTS // 4):
        board, words = load_gpu(request.gpu), dict(request.words)
        k, watts = request.factor, board.power_limit_w
        if alone.startswith("clock"):
            more = replace(board, boost_clock_hz=board.boost_clock_hz * k)
            bound, watts = (1.0, watts * k**3) if alone != "clock" else (k, watts)
        else:
            more = replace(board, sm_count=round(board.sm_count * k))
            k = more.sm_count / board.sm_count
            bound, watts = (k, watts * k) if alone != "sm_count" else (k ** (2.0 - NEED_EXPONENT), watts)
        try:
            before = _latency_s(request.model, board, words)
            after = _latency_s(request.model, replace(more, power_limit_w=watts), words)
        except TilecastError:
            continue
        valid += 1
        if after > (1.0 + MOST) * bound * before:
            wrong.append(f"{after / before:.3f} times, at most {bound:.3f}: {request}")
    assert valid > REQUESTS // 16 and not wrong, f"{len(wrong)} of {valid}:\n" + "\n".join(wrong)


@pytest.mark.parametrize(("gpu", "batch", "told"), [
    ("b60", 1, "1.26 times as long as with 8 times the batch"), ("b60", 2, "with 4 times"), ("b60", 8, ""),
    ("h100-sxm", 1, ""), ("rtx-pro-6000-server", 1, ""), ("l40s", 2, ""),
])  # fmt: skip
def test_a_table_that_falls_is_told(gpu: str, batch: int, told: str) -> None:
    """B60's products of one row take longer than of eight (docs/explanation/limits.md, Between measured sizes)."""
    words: dict[str, Any] = {"mode": "decode", "context_len": 1024, "execution": "vllm"}
    found = predict("llama-3.1-8b", gpu, batch=batch, **words)
    notes = [note for note in found.notes if note.startswith("Linear layers take")]
    assert len(notes) == bool(told) and all(told in note for note in notes)
    if told:
        more = predict("llama-3.1-8b", gpu, batch=8, **words).latency_s
        assert more < found.latency_s / 1.05, "what the note says is so"
    alone = predict("llama-3.1-8b", gpu, batch=batch, artifacts="roofline", **words)
    assert not [note for note in alone.notes if note.startswith("Linear layers take")]
