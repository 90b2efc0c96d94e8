"""Requests that cannot be answered are refused in one line that names the value."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.api import predict
from predictor.errors import RequestError, UnsupportedError
from predictor.workload import Parallelism, Workload

GOOD: dict[str, Any] = {
    "mode": "forward", "batch": 1, "seq_len": 16, "dtype": "bf16", "execution": "eager", "attention": "flash",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch": 0}, "--batch 0"),
        ({"batch": -3}, "--batch -3"),
        ({"seq_len": 0}, "--seq-len 0"),
        ({"mode": "trian"}, "train"),
        ({"execution": "egar"}, "eager"),
        ({"attention": "falsh"}, "flash"),
        ({"optimizer": "adamx"}, "adam"),
        ({"mode": "decode", "context_len": -1}, "--context-len -1"),
        ({"mode": "generate"}, "--output-len 0"),
        ({"output_len": 4}, "--output-len 4"),
        ({"context_len": 4}, "--context-len 4"),
        ({"micro_batch": 2}, "--micro-batch 2"),
        ({"mode": "train", "batch": 4, "micro_batch": 3}, "--micro-batch 3"),
    ],
)
def test_bad_values(change: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        Workload(**(GOOD | change))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"execution": "megatron"}, {"recompute": "full"}])
def test_what_is_not_built_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="not built yet"):
        Workload(**(GOOD | change))


@pytest.mark.parametrize("name", ["pp", "dp", "cp", "ep"])
def test_parallelism_is_refused_until_it_is_built(name: str) -> None:
    with pytest.raises(UnsupportedError, match="not built yet"):
        Parallelism(**{name: 2})


@pytest.mark.parametrize("name", ["num_gpus", "tp", "pp", "dp", "cp", "ep"])
def test_degrees_are_at_least_one(name: str) -> None:
    with pytest.raises(RequestError, match="at least 1"):
        Parallelism(**{name: 0})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"shard": None}, "--shard None"),
        ({"shard": 3}, "--shard 3"),
        ({"prompt_lens": 5}, "--prompt-lens 5"),
        ({"prompt_lens": "1,,2"}, "'1,,2'"),
        ({"dtype": ["bf16"]}, "unknown dtype ['bf16']"),
        ({"top": "x"}, "--top 'x'"),
        ({"top": 1.5}, "--top 1.5"),
        ({"top": -1}, "--top -1"),
        ({"batch": 10**30}, "--batch of 31 digits"),
        ({"tp": True}, "--tp True"),
    ],
)
def test_a_word_of_another_type_is_one_line(words: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as error:
        predict("gpt2", "h100", **words)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
