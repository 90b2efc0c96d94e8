"""`--gpu p5.48xlarge`: a cloud's instance says the board and how many of them there are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from predictor import predict
from predictor.cli.main import main
from predictor.errors import RequestError
from predictor.ui.boards import board_of

WORDS: dict[str, Any] = {"mode": "decode", "batch": 8, "artifacts": "roofline"}
TAKEN = "p5.48xlarge is 8 x h100-sxm: taken as --num-gpus 8 --tp 8 (--num-gpus 1 for one of them)."


def test_an_instance_is_its_board_and_all_of_its_gpus() -> None:
    answer = predict("llama-3.1-8b", "p5.48xlarge", **WORDS)
    by_hand = predict("llama-3.1-8b", "h100-sxm", tp=8, **WORDS)
    assert answer.latency_s == by_hand.latency_s and answer.gpu == "h100-sxm"
    assert answer.workload.parallelism.num_gpus == 8 and answer.notes == (TAKEN, *by_hand.notes)


def test_training_shares_the_batch() -> None:
    answer = predict("gpt2", "p5.48xlarge", mode="train", batch=8, artifacts="roofline")
    assert answer.workload.parallelism.dp == 8 and "--num-gpus 8 --dp 8" in answer.notes[0]


@pytest.mark.parametrize(
    ("words", "gpus", "said"),
    [
        ({"num_gpus": 1}, 1, "p5.48xlarge is 8 x h100-sxm: the run has 1 GPUs."),
        ({"tp": 4}, 4, "p5.48xlarge is 8 x h100-sxm: the run has 4 GPUs."),
        ({"tp": 8}, 8, "p5.48xlarge is 8 x h100-sxm."),
        ({"tp": 8, "pp": 3}, 24, "p5.48xlarge is 8 x h100-sxm: the run has 24 GPUs, 3 instances."),
    ],
)
def test_who_gives_a_number_has_chosen(words: dict[str, int], gpus: int, said: str) -> None:
    answer = predict("llama-3.1-8b", "p5.48xlarge", **WORDS, **words)
    assert answer.workload.parallelism.num_gpus == gpus and answer.notes[0] == said


def test_an_instance_of_one_gpu_is_that_board() -> None:
    assert predict("llama-3.1-8b", "g6.xlarge", **WORDS) == predict("llama-3.1-8b", "l4", **WORDS)


def test_searches_take_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", "gpt2", "--global-batch", "8", "--artifacts", "roofline", "--json"]
    assert main(["plan", "--gpu", "p5.48xlarge", *given]) == 0
    assert json.loads(capsys.readouterr().out)["num_gpus"] == [8]
    assert main(["plan", "--gpu", "h100", *given]) == 2
    assert "--num-gpus: expected how many GPUs to plan for, or an instance" in capsys.readouterr().err


def test_the_page_has_an_instance_or_values_of_its_board() -> None:
    assert board_of("p5.48xlarge").spec.id == "h100-sxm"
    with pytest.raises(RequestError, match=r"p5\.48xlarge is 8 x h100-sxm; expected h100-sxm beside values"):
        board_of("p5.48xlarge power_limit=500W")


def test_compare_counts_its_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ["--mode", "decode", "--artifacts", "roofline", "--json"]
    assert main(["compare", "--model", "llama-3.1-8b", "--gpu", "p5.48xlarge,l4", *shown]) == 0
    text = capsys.readouterr().out
    assert '"num_gpus": 8' in text and '"num_gpus": 1' in text
