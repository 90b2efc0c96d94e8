"""Models without learned positions run beyond the sequences that they were trained for: the answer says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

import predictor
from predictor.cli.compare import compare
from predictor.files.terminal import screen
from predictor.forecast.forecast import forecast
from predictor.models.built.load import CONFIGS, config_from_dict, load_config
from predictor.report.compare import print_comparison
from predictor.report.html import to_html
from predictor.report.json_report import to_dict
from predictor.report.terminal import print_prediction
from predictor.request.request import Request

NOTE = "tokens exceed the"
_LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 8192,
}  # fmt: skip


def notes(data: dict[str, Any], **words: Any) -> list[str]:
    answer = predictor.predict(config_from_dict(data, "tiny"), "h100", artifacts="roofline", **words)
    return [note for note in answer.notes if NOTE in note]


@pytest.mark.parametrize(
    "words",
    [
        {"seq_len": 32768}, {"mode": "prefill", "seq_len": 8193}, {"mode": "decode", "context_len": 8192},
        {"mode": "generate", "seq_len": 8000, "output_len": 194}, {"mode": "train", "seq_len": 8193},
        {"mode": "prefill", "prompt_lens": (3, 8193)}, {"mode": "decode", "prompt_lens": (3, 8192)},
    ],
)  # fmt: skip
def test_beyond_the_trained_context_there_is_a_note(words: dict[str, Any]) -> None:
    (said,) = notes(_LLAMA, **words)
    assert "exceed the 8,192 that tiny was trained for (rotary positions)" in said
    shorter = {
        key: tuple(n - 1 for n in value) if isinstance(value, tuple) else value - 1
        for key, value in words.items()
        if key in ("seq_len", "context_len", "prompt_lens")
    }
    if "output_len" not in words:
        shorter = shorter if words.get("seq_len") != 32768 else {"seq_len": 8192}
    assert notes(_LLAMA, **{**words, **shorter}) == []


@pytest.mark.parametrize(
    ("scaling", "trained"),
    [
        (None, 8192),
        ({"type": "linear", "factor": 4.0}, 32768),
        ({"rope_type": "dynamic", "factor": 2}, 16384),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, 32768),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096}, 8192),
        ({"rope_type": "yarn", "factor": 4.0}, 32768),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 2048}, 8192),
        ({"type": "longrope", "short_factor": [1.0], "long_factor": [4.0]}, 8192),
        ({"rope_type": "default"}, 8192),
        ({"rope_type": "linear", "factor": "four"}, 8192),
        ({"rope_type": "linear", "factor": 0.5}, 8192),
        ({"rope_type": "linear", "factor": float("inf")}, 8192),
    ],
)
def test_scaling_extends_it(scaling: dict[str, Any] | None, trained: int) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        data = {**_LLAMA, key: scaling}
        assert config_from_dict(data, "tiny").trained_positions == trained
        assert notes(data, mode="prefill", seq_len=trained) == []
        assert f"the {trained:,} that" in notes(data, mode="prefill", seq_len=trained + 1)[0]


def test_published_configs() -> None:
    """The lengths that the models' cards state: DeepSeek's and Llama 3.1's files hold the stretched length already."""
    stated = {"llama-3.1-8b": 131072, "deepseek-v3": 163840, "gemma-2-9b": 8192, "llama-2-7b": 4096}
    assert {name: load_config(name).trained_positions for name in stated} == stated
    gemma = {**json.loads((CONFIGS / "gemma-2-9b.json").read_text()), "model_type": "gemma3_text",
             "architectures": ["Gemma3ForCausalLM"], "max_position_embeddings": 131072,
             "rope_scaling": {"rope_type": "linear", "factor": 8.0}}  # fmt: skip
    assert config_from_dict(gemma, "gemma-3").trained_positions == 131072


def test_alibi_says_so_and_relative_positions_do_not() -> None:
    bloom = {"model_type": "bloom", "architectures": ["BloomForCausalLM"], "hidden_size": 256, "n_layer": 2,
             "n_head": 4, "vocab_size": 1000, "seq_length": 2048}  # fmt: skip
    (said,) = notes(bloom, seq_len=2049)
    assert "(alibi positions)" in said
    assert notes(bloom, seq_len=2048) == []
    t5 = predictor.predict("flan-t5-base", "h100", seq_len=4096, artifacts="roofline")
    assert not [note for note in t5.notes if NOTE in note]


def test_terminal_json_page_and_comparison_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    answer = predictor.predict("llama-2-7b", "h100", mode="prefill", seq_len=5000, artifacts="roofline")
    said = "5,000 tokens exceed the 4,096 that llama-2-7b was trained for"
    print_prediction(answer, screen())
    assert said in capsys.readouterr().out
    assert any(said in note for note in to_dict(answer)["notes"])
    words: dict[str, Any] = {"mode": "prefill", "seq_len": 5000, "artifacts": "roofline"}
    print_comparison(compare(["llama-2-7b"], ["h100", "a100"], words, None), screen())
    assert capsys.readouterr().out.count(said) == 1
    page = to_html(forecast(Request("llama-2-7b", "h100", **words).run()))
    assert said in page
