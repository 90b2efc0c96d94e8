"""Speculative decoding in words: tokens a step by hand, files of rates and lengths, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import predictor
from predictor.errors import TilecastError
from predictor.models.built import load_config
from predictor.request.speculation import read_acceptance, tokens_a_step


def test_tokens_a_step_by_hand() -> None:
    assert tokens_a_step(0.5, 0) == tokens_a_step(0.0, 4) == 1.0
    assert tokens_a_step(0.5, 2) == 1.0 + 0.5 + 0.25
    assert tokens_a_step(1.0, 3) == 4.0
    assert tokens_a_step(2.4, 3) == 2.4


def test_numbers_are_chances_up_to_one_and_tokens_a_step_above() -> None:
    assert read_acceptance("0.7", 3) == read_acceptance(0.7, 3) == (0.7, "")
    assert read_acceptance("2.4", 3) == (2.4, "")
    assert read_acceptance(4, 3) == (4.0, "")


def test_a_file_of_rates_by_position(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("position,rate\n1,0.8\n2,0.5\n3,0.25\n")
    assert read_acceptance(path, 2) == (1.0 + 0.8 + 0.5, "")
    assert read_acceptance(str(path), 3) == (2.55, "")
    with pytest.raises(TilecastError, match="no rate of position 4"):
        read_acceptance(path, 4)
    path.write_text("position,rate\n1,0.5\n2,0.8\n")
    with pytest.raises(TilecastError, match="do not rise"):
        read_acceptance(path, 2)


def test_a_file_of_tokens_a_step_by_drafts(tmp_path: Path) -> None:
    path = tmp_path / "lengths.yaml"
    path.write_text("some-model:\n  thinking_on:\n    1: 1.8\n    3: 2.5\n  thinking_off:\n    3: 3.0\n    2: 1.0\n")
    assert read_acceptance(f"{path}:thinking_off", 3) == (3.0, "")
    assert read_acceptance(f"{path}:some-model/thinking_off", 2) == (0.0, "")  # no draft is right
    length, note = read_acceptance(path, 3)
    assert length == 2.5 and "some-model/thinking_on counts" in note and "thinking_off" in note
    with pytest.raises(TilecastError, match="nothing of 2 drafts; expected one of 1, 3"):
        read_acceptance(path, 2)
    with pytest.raises(TilecastError, match="no such table"):
        read_acceptance(f"{path}:thinking", 3)


@pytest.mark.parametrize("given", [-0.1, 4.5, "nan", "many", "none.csv", "none.yaml", True, None, [0.5]])
def test_what_says_no_acceptance_is_one_line(given: Any) -> None:
    with pytest.raises(TilecastError) as caught:
        read_acceptance(given, 3)
    assert "\n" not in str(caught.value)


def test_models_know_their_layers_for_drafts() -> None:
    assert [load_config(name).draft_layers for name in ("deepseek-v3", "mimo-7b-base", "qwen3.5-397b-a17b")] == [1] * 3
    assert [load_config(name).draft_layers for name in ("llama-3.1-8b", "kimi-k2")] == [0, 0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"model": "llama-3.1-8b", "acceptance": 0.5}, "llama-3.1-8b has no layer that guesses tokens"),
        ({"acceptance": None}, "--drafts K and --acceptance P go together"),
        ({"drafts": 0, "acceptance": 0.5}, "--drafts K and --acceptance P go together"),
        ({"drafts": 0, "acceptance": None, "draft_model": "gpt2"}, "--draft-model: makes drafts"),
        ({"execution": "compile"}, "--drafts 2: --execution compile does not speculate"),
        ({"mode": "prefill"}, "--drafts 2: only --mode decode and generate take it"),
        ({"mode": "forward", "execution": "eager"}, "--drafts 2: only --mode decode and generate take it"),
        ({"drafts": 17}, "--drafts 17: expected at most 16"),
        ({"acceptance": 3.5}, "--acceptance 3.5: with --drafts 2 expected"),
        ({"pp": 2}, "--drafts 2: not built for --pp 2"),
        ({"prompt_lens": [5, 9]}, "--drafts 2: not built for --prompt-lens"),
        ({"draft_model": "gpt5"}, "--draft-model gpt5: unknown model"),
    ],
)
def test_what_does_not_go_together_is_one_line(words: dict[str, Any], said: str) -> None:
    usual = {"model": "mimo-7b-base", "mode": "decode", "execution": "vllm", "drafts": 2, "acceptance": 0.5}
    with pytest.raises(TilecastError) as caught:
        predictor.predict(gpu="h100", artifacts="roofline", **usual | words)  # type: ignore[arg-type]
    assert str(caught.value).startswith(said) or said in str(caught.value), caught.value
    assert "\n" not in str(caught.value)
