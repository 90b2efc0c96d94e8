"""Requests that cannot be answered are refused in one line that names the value."""

from __future__ import annotations

import math
from typing import Any

import pytest

from predictor.api import predict
from predictor.errors import RequestError, UnsupportedError
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import default_system
from predictor.request.parallelism import Parallelism
from predictor.request.request import Request
from predictor.request.workload import Workload

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


@pytest.mark.parametrize("words", [{"pp": 2}, {"dp": 2, "ep": 2}, {"shard": "zero1"}])
def test_what_only_training_has_is_refused_elsewhere(words: dict[str, Any]) -> None:
    gpus = math.prod(words.get(name, 1) for name in ("tp", "pp", "dp", "cp"))
    system = default_system(load_gpu("h100"))
    with pytest.raises(UnsupportedError, match="not built yet for --mode forward"):
        Workload(**(GOOD | {"parallelism": Parallelism(gpus, **words), "system": system}))


@pytest.mark.parametrize("words", [{"dp": 2, "batch": 2}, {"cp": 2}])
def test_a_built_forward_pass_takes_no_ranks_with_samples_of_their_own(words: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="not built yet for --mode forward"):
        Request("gpt2", "h100", **words).run()


@pytest.mark.parametrize(("words", "said"), [
    ({"dp": 3, "batch": 8}, "--batch 8: the 3 ranks of --dp do not divide it; nearest valid: 9"),
    ({"dp": 2, "batch": 8, "micro_batch": 3}, "--micro-batch 3: does not divide --batch 8 over --dp 2, 4 a rank;"
     " nearest valid: 2"),
    ({"dp": 4, "ep": 3, "batch": 8}, "--ep 3: does not divide the 4 ranks of --dp x --cp; nearest valid: 2"),
    ({"num_gpus": 8, "tp": 2, "pp": 2, "batch": 8}, "--num-gpus 8: --tp 2 --pp 2 uses 4; expected --dp 2,"
     " or no --num-gpus"),
    ({"num_gpus": 64, "tp": 4, "batch": 64}, "--num-gpus 64: --tp 4 uses 4; expected --tp 64, --dp 16,"
     " or no --num-gpus"),
    ({"vpp": 2}, "--vpp 2: needs pipeline stages; expected --pp 2 or more, or --vpp 1"),
    ({"pp": 2, "vpp": 2, "schedule": "1f1b"}, "--schedule 1f1b: runs one chunk per stage, not --vpp 2; expected"
     " interleaved or breadth_first"),
    ({"pp": 2, "schedule": "2f2b"}, "--schedule '2f2b': expected one of gpipe, 1f1b, interleaved, breadth_first;"
     " nearest: 1f1b"),
    ({"recompute": "full:81-of-80"}, "--recompute 'full:81-of-80': expected full:N-of-L, N of the model's L layers, as"
     " full:21-of-80"),
    ({"offload_layers": -1}, "--offload-layers -1: expected 0 or more"),
])  # fmt: skip
def test_words_of_training_that_are_wrong(words: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        Request("gpt2", "h100", mode="train", **words).run()
    assert str(caught.value) == said


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
