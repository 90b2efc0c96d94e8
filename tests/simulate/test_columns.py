"""Runs that are forecast as one, in columns, have the answers that each of them has alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from predictor.errors import RequestError
from predictor.forecast.forecast import forecast, summaries
from predictor.request.request import Request, Runs
from predictor.request.run import Run
from predictor.simulate.answer import Prediction
from predictor.simulate.columns import FEWEST, PartWays, agree, in_columns, planned, structure
from predictor.simulate.plan import plan_of, sample_contexts

#: A model, a mode, an engine and its GPUs: eager and captured hosts, a cache with windows, experts, kernels in pieces.
CASES = (
    ("llama-3.1-8b", "decode", "vllm", 1), ("llama-3.1-8b", "generate", "vllm", 2), ("gpt2", "forward", "eager", 1),
    ("gemma-2-2b", "generate", "sglang", 1), ("qwen3-30b-a3b", "prefill", "tensorrt_llm", 2),
    ("mixtral-8x7b", "decode", "eager", 4), ("llama-3.1-8b", "prefill", "compile", 1),
)  # fmt: skip


def runs_of(model: str, mode: str, execution: str, tp: int, count: int = 32) -> list[Run]:
    """Runs of one structure, of random sizes."""
    rng = random.Random(f"{model} {mode} {execution}")
    runs = []
    for _ in range(count):
        tokens = rng.choice((1, 64, 511, 640, 900, 1000))
        words: dict[str, Any] = {"context_len" if mode == "decode" else "seq_len": tokens}
        words |= {"output_len": rng.randrange(6, 200)} if mode == "generate" else {}
        batch = rng.choice((1, 2, 3, 8, 64, 100, 600))
        runs.append(Request(model, "h100", mode=mode, execution=execution, tp=tp, batch=batch, **words).run())
    return runs


def assert_alike(one: object, other: object, name: str) -> None:
    """Numbers to the last bits, as sums of columns are added in another order; all else is equal, types with it."""
    assert type(one) is type(other), (name, one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys(), name
        for key in one:
            assert_alike(one[key], other[key], f"{name} {key}")
    elif isinstance(one, tuple) and isinstance(other, tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_alike(a, b, name)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-12, abs=0.0), name
    else:
        assert one == other, name


def assert_answers(runs: Sequence[Run]) -> None:
    for run, answer in zip(runs, summaries(runs, intervals=True), strict=True):
        alone = forecast(run).with_interval()
        for name in (field for field in Prediction.__slots__ if field != "memory"):
            assert_alike(getattr(answer, name), getattr(alone, name), f"{run.work.batch} {name}")
        for name in answer.memory.__slots__:
            assert_alike(getattr(answer.memory, name), getattr(alone.memory, name), name)


@pytest.mark.parametrize(("model", "mode", "execution", "tp"), CASES)
def test_columns_are_the_runs_one_by_one(model: str, mode: str, execution: str, tp: int) -> None:
    runs = runs_of(model, mode, execution, tp)
    columns, _ = planned(runs, plan_of)
    assert sum(len(places) for places, _, _ in columns) >= FEWEST, "some of them have to be in columns"
    assert_answers(runs)


def test_products_of_large_sizes_do_not_overflow() -> None:
    """A rank's part of a tensor of 1.18 million tokens is worked out of products beyond 2^63."""
    sizes = [(236, 5000)] * FEWEST
    runs = [
        Request("llama-3.1-8b", "h100", mode="prefill", execution="vllm", tp=2, batch=batch, seq_len=tokens).run()
        for batch, tokens in sizes
    ]
    assert [len(places) for places, _, _ in planned(runs, plan_of)[0]] == [FEWEST]
    assert_answers(runs)


def test_points_that_part_ways_are_columns_of_their_own() -> None:
    """vLLM captures decode steps of up to 512 sequences, and launches the kernels of larger ones."""
    batches = [*range(1, FEWEST + 1), *range(1000, 1000 + FEWEST)]
    runs = [
        Request("llama-3.1-8b", "h100", mode="decode", execution="vllm", batch=batch, context_len=64).run()
        for batch in batches
    ]
    columns, alone = planned(runs, plan_of)
    assert sorted(len(places) for places, _, _ in columns) == [FEWEST, FEWEST] and alone == []
    assert {plan.stages[0].captured for _, _, plan in columns} == {True, False}
    with pytest.raises(PartWays):
        plan_of(in_columns(runs))


def test_what_a_column_is_asked_has_one_answer() -> None:
    assert agree(np.array([True, True])) and not agree(np.array([False, False])) and agree(True)
    with pytest.raises(PartWays) as parted:
        agree(np.array([True, False]))
    assert parted.value.mask.tolist() == [True, False]


def test_steps_of_a_column_are_sampled_as_those_of_each_run() -> None:
    steps = np.array([6, 7, 50, 131])
    picked, weights = sample_contexts(steps)
    for place, count in enumerate(steps.tolist()):
        alone, each = sample_contexts(count)
        assert tuple(int(grown[place]) for grown in picked) == alone
        assert tuple(float(np.broadcast_to(weight, 4)[place]) for weight in weights) == each


def test_what_is_not_a_size_keeps_runs_apart() -> None:
    words: dict[str, Any] = {"mode": "decode", "execution": "vllm", "context_len": 64}
    first = structure(Request("llama-3.1-8b", "h100", batch=4, **words).run())
    assert first is not None and first == structure(Request("llama-3.1-8b", "h100", batch=5, **words).run())
    for other in ({"kv_dtype": "fp8"}, {"step_overhead": 1e-3}, {"tp": 2}, {"gpu": "a100"}, {"sampling": "top-p"}):
        asked: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100", "batch": 4, **words, **other}
        assert structure(Request(**asked).run()) != first, other
    for alone in ({"strict": True}, {"prompt_lens": (3, 5), "context_len": None}):
        asked = {"model": "llama-3.1-8b", "gpu": "h100", **words, **alone}
        assert structure(Request(**asked).run()) is None, alone


def test_requests_that_share_words_are_the_runs_of_each() -> None:
    """Also where a size decides: FasterTransformer's fused attention of encoders takes sequences up to a length."""
    serving: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100", "execution": "vllm"}
    encoder: dict[str, Any] = {"model": "bert-base", "gpu": "a100", "execution": "fastertransformer", "dtype": "fp16"}
    words: list[dict[str, Any]] = [
        {**serving, "mode": mode, "batch": batch, **more}
        for mode, sizes in (
            ("decode", ({}, {"context_len": 50}, {"seq_len": 70})),
            ("generate", ({}, {"output_len": 9}, {"seq_len": 70})),
            ("forward", ({}, {"seq_len": 30})),
        )
        for more in sizes
        for batch in (None, 1, 40)
    ]
    words += [{**encoder, "mode": "forward", "seq_len": tokens} for tokens in (64, 300, 511, 512, 128)]
    words += [{**serving, "mode": "prefill", "prompt_lens": lens} for lens in ((3, 4), (4, 4, 9))]
    words += [{"model": "gpt2", "gpu": "h100", "mode": "train", "batch": batch} for batch in (4, 8)]
    runs = Runs()
    for each in words:
        assert runs.run(Request(**each)) == Request(**each).run(), each
    assert len({run.work.attention for run in (Request(**each).run() for each in words)}) > 1


@pytest.mark.parametrize(
    "wrong",
    [{"batch": 0}, {"batch": True}, {"seq_len": 2000}, {"seq_len": "long"}, {"tp": True}, {"context_len": 4}],
)
def test_a_request_is_refused_whatever_came_before_it(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"model": "gpt2", "gpu": "h100", "mode": "prefill", "batch": 2, "seq_len": 64, "tp": 1}
    runs = Runs()
    runs.run(Request(**right))
    with pytest.raises(RequestError) as alone:
        Request(**right | wrong).run()
    with pytest.raises(RequestError) as after:
        runs.run(Request(**right | wrong))
    assert str(after.value) == str(alone.value)
