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
from predictor.request.serving import Serving
from predictor.request.training import Training
from predictor.request.workload import Workload

GOOD: dict[str, Any] = {"batch": 1, "seq_len": 16, "dtype": "bf16", "execution": "eager", "attention": "flash"}
DECODE = Serving("decode", "bf16", context_len=16)


@pytest.mark.parametrize(
    ("make", "change", "said"),
    [
        (Workload, {"batch": 0}, "--batch 0"),
        (Workload, {"batch": -3}, "--batch -3"),
        (Workload, {"seq_len": 0}, "--seq-len 0"),
        (Workload, {"execution": "egar"}, "eager"),
        (Workload, {"attention": "falsh"}, "flash"),
        (Workload, {"serving": DECODE, "steps": 2}, "--steps 2: only --mode forward takes it"),
        (Workload, {"training": Training(micro_batch=3), "batch": 4}, "--micro-batch 3"),
        (Workload, {"training": Training(), "execution": "vllm"}, "--execution vllm: does not train"),
        (Workload, {"serving": Serving("decode", "bf16", sampling="top-p")}, "--sampling top-p"),
        (Training, {"optimizer": "adamx"}, "adam"),
        (Training, {"capacity_factor": -1.0}, "--capacity-factor -1.0"),
        (Serving, {"mode": "train"}, "--mode 'train': expected one of prefill, decode, generate"),
        (Serving, {"mode": "decode", "context_len": -1}, "--context-len -1"),
        (Serving, {"mode": "generate"}, "--output-len 0"),
        (Serving, {"mode": "decode", "output_len": 4}, "--output-len 4: only --mode generate takes it"),
        (Serving, {"mode": "prefill", "context_len": 4}, "--context-len 4: only --mode decode takes it"),
        (Serving, {"mode": "decode", "step_overhead_s": 10.0}, "--step-overhead 10.0 s: expected 0 to 10 s"),
    ],
)
def test_bad_values(make: type[object], change: dict[str, Any], said: str) -> None:
    good: dict[type[object], dict[str, Any]] = {Workload: GOOD, Training: {}, Serving: {"kv_dtype": "bf16"}}
    with pytest.raises(RequestError) as caught:
        make(**(good[make] | change))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_word_that_does_not_fit_a_mode_cannot_be_said() -> None:
    """A record of words is None where the mode has none of them; no workload has both, and none takes the other's."""
    forward, train, decode = (Workload(**GOOD, **more) for more in ({}, {"training": Training()}, {"serving": DECODE}))
    assert (forward.mode, train.mode, decode.mode) == ("forward", "train", "decode")
    assert (forward.training, forward.serving, train.serving, decode.training) == (None, None, None, None)
    assert set(Training.__match_args__) & set(Serving.__match_args__) == set()
    assert not (set(Training.__match_args__) | set(Serving.__match_args__)) & set(Workload.__match_args__)
    with pytest.raises(TypeError, match="trains or serves"):
        Workload(**GOOD, training=Training(), serving=DECODE)
    with pytest.raises(TypeError):
        Serving("decode", "bf16", recompute="full")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Training(context_len=4)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("mode", "words", "said"),
    [
        ("decode", {"recompute": "full"}, "--recompute full: only --mode train takes it"),
        ("decode", {"micro_batch": 2}, "--micro-batch 2: only --mode train takes it"),
        ("forward", {"lora": 8}, "--lora 8: only --mode train takes it"),
        ("train", {"context_len": 4}, "--context-len 4: only --mode decode takes it"),
        ("forward", {"output_len": 4}, "--output-len 4: only --mode generate takes it"),
        ("forward", {"all_to_all": "deepep"}, "--all-to-all deepep: only --mode train, prefill, decode and generate"),
        ("forward", {"sampling": "top-p"}, "--sampling top-p: only --mode prefill, decode and generate"),
    ],
)
def test_a_word_of_another_mode_is_refused(mode: str, words: dict[str, Any], said: str) -> None:
    """By who asks for a run, and by a workload that is changed."""
    with pytest.raises(RequestError, match=f"^{said}"):
        Request("gpt2", "h100", mode=mode, **words).run()
    work = Request("gpt2", "h100", mode=mode).run().work
    with pytest.raises(RequestError, match=f"^{said}"):
        work.changed(**words)


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_a_step_overhead_is_of_serving(mode: str) -> None:
    """Nothing is nothing in every mode; 5 ms would be left out without a word."""
    said = "--step-overhead 0.005 s: only --mode prefill, decode and generate take it"
    with pytest.raises(RequestError, match=said):
        Request("gpt2", "h100", mode=mode, step_overhead="5ms").run()
    assert Request("gpt2", "h100", mode=mode, step_overhead=0).run().work.mode == mode


def test_a_change_goes_to_the_record_that_has_the_word() -> None:
    run = Request("gpt2", "h100", mode="decode", batch=4, context_len=64, execution="vllm").run()
    step = run.work.changed(mode="prefill", batch=2, seq_len=32, context_len=0)
    assert step == Request("gpt2", "h100", mode="prefill", batch=2, seq_len=32, execution="vllm").run().work
    train = Request("gpt2", "h100", mode="train", batch=4).run().work
    changed = train.changed(batch=8, micro_batch=2, recompute="full")
    assert changed.training == Training(micro_batch=2, recompute="full") and changed.batch == 8
    for words in ({"mode": "decode"}, {"kv_dtype_source": "asked"}, {"sequences": 4}):
        with pytest.raises(TypeError):
            train.changed(**words)


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


def test_words_of_degrees_are_those_that_somebody_gave() -> None:
    assert Parallelism().asked == {}
    folded = Parallelism(2, tp=2, sp=True, etp=1)
    assert folded.asked == {"tp": 2, "sp": True, "etp": 1} and folded.trains_only == {"sp": True}
    cut = Parallelism(2, pp=2, stage_layers=(3, 5))
    assert cut.asked == {"pp": 2, "stage_layers": "3,5"} == cut.trains_only
