"""Words of serving at their limits: idle servers, one token, what no engine takes: an answer or one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from predictor import predict
from predictor.cli.main import main
from predictor.errors import RequestError, SpecError
from predictor.serving.request_traces import read_trace
from predictor.serving.traffic import made

SERVE = "serve simulate --model llama-3.1-8b --gpu h100 --artifacts roofline --isl 100"
#: Words of `serve simulate` that leave servers without a request -> fields of the answer.
IDLE: list[tuple[str, dict[str, Any]]] = [
    ("--rate 8 --osl 4 --replicas 8 --requests 20", {"replicas": 8, "requests": 20, "output_tokens": 80}),
    ("--rate 8 --osl 4 --replicas 3 --requests 2", {"replicas": 3, "num_gpus": 3}),
    ("--rate 8 --osl 4 --prefill-servers 4 --requests 2", {"num_gpus": 5, "preemptions": 0}),
    (
        "--rate 8 --osl 1 --prefill-servers 1 --requests 3",
        {"steps": 0, "mean_step_ms": None, "busy_share": 0.0, "most_cache_share": 0.0, "output_tokens": 3},
    ),
]
#: Words -> what the line says.
REFUSED = [
    (f"{SERVE} --rate 8 --osl 4 --seed -1", "expected 0"),
    (f"{SERVE} --rate 8 --osl 4 --replicas 1000000", "--replicas 1000000: expected at most 1,024"),
    (f"{SERVE} --rate 8 --osl 4 --prefill-servers 1000000", "--prefill-servers 1000000: expected at most 1,024"),
    (f"{SERVE} --rate 8 --osl 4 --requests 20 --arrivals gamma --cv 1e6", "20 requests come at once"),
    (f"{SERVE} --rate 8 --osl 4 --requests 20 --arrivals bursts --cv 21", "expected a whole number from 1 to 20"),
    (f"{SERVE} --rate 8 --osl 4 --requests 20 --arrivals bursts --cv 1.5", "expected a whole number from 1 to 20"),
    ("serve simulate --model t5-small --gpu h100 --rate 8 --isl 100 --osl 4", "t5-small is an encoder-decoder"),
    ("serve plan --model t5-small --gpu h100 --num-gpus 1 --isl 100 --osl 4", "t5-small is an encoder-decoder"),
    ("predict --model gpt2 --gpu h100 --mode train --lora 769", "--lora 769: the rank exceeds the width 768 of gpt2"),
    ("predict --model gpt2 --gpu h100 --mode train --batch 8 --micro-batch -3", "--micro-batch -3: expected 0 or more"),
    (
        "predict --model gpt2 --gpu h100 --mode train --pp 2 --batch 10000000",
        "10,000,000 micro-batches are 40,000,000 passes of the 2 stages",
    ),
    ("predict --model gpt2 --gpu h100 --mode decode --batch 0", "--batch 0: expected at least 1"),
]


@pytest.mark.parametrize(("words", "fields"), IDLE)
def test_servers_without_a_request_are_idle(
    words: str, fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SERVE.split(), *words.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found | fields == found
    assert found["ttft_ms"]["mean"] > 0
    assert 0.0 <= found["busy_share"] <= 1.0
    assert max(found["timeline"]["decoding"]) >= 0.0


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_cannot_be_is_one_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    shown = capsys.readouterr()
    assert not shown.out
    (line,) = shown.err.splitlines()
    assert said in line


def test_adapters_as_wide_as_the_model_are_taken() -> None:
    assert predict("gpt2", "h100", mode="train", lora=768, artifacts="roofline").latency_s > 0


def test_a_prompt_beyond_the_context_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    words = SERVE.replace("llama-3.1-8b", "tinyllama-1.1b").replace("--isl 100", "--isl 4000")
    assert main([*words.split(), *["--rate", "8", "--osl", "2", "--requests", "1", "--json"]]) == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert "4,001 tokens exceed the 2,048 that tinyllama-1.1b was trained for" in note
    assert "The engine refuses such a request" in note


def test_an_encoder_decoder_under_vllm_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    words = "predict --model t5-small --gpu h100 --mode decode --artifacts roofline --json --execution"
    notes = {}
    for execution in ("vllm", "cuda_graph"):
        assert main([*words.split(), execution]) == 0
        notes[execution] = [
            note for note in json.loads(capsys.readouterr().out)["notes"] if "encoder-decoders such as t5-small" in note
        ]
    assert len(notes["vllm"]) == 1
    assert not notes["cuda_graph"]


def test_drawn_gaps_that_miss_their_rate_say_so() -> None:
    traffic = made(20, 8.0, None, None, 100, 4, how="gamma", cv=10.0)
    (note,) = traffic.notes
    rate = 19 / traffic.arrival_s[-1]
    assert f"come at {rate:.3g} a second, not at 8" in note
    assert not made(2000, 8.0, None, None, 100, 4, how="gamma", cv=10.0, seed=3).notes
    assert not made(20, 8.0, None, None, 100, 4, how="gamma", cv=1e-5).notes
    with pytest.raises(RequestError, match="come at once"):
        made(2, 8.0, None, None, 100, 4, how="gamma", cv=1e3)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "a.csv",
            "arrival_s,input_tokens,output_tokens,Input_Tokens\n0,1,2,3\n",
            "column 'input_tokens' appears twice",
        ),
        ("a.jsonl", '{"arrival_s": 0, "input_tokens": 1, "input_tokens": 9, "output_tokens": 2}\n', "'input_tokens'"),
    ],
)
def test_a_trace_says_everything_once(name: str, text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match="appears twice") as raised:
        read_trace(path)
    assert said in str(raised.value)
