"""Configs of classes that are traced: misspelt keys, sizes below 1, sizes that the class assumes, too many layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from predictor import predict
from predictor.errors import RequestError, SpecError
from predictor.models.traced.config_class import MOST_LAYERS, read_of


class Text:
    """As a configuration class of transformers has it."""

    attribute_map: ClassVar[dict[str, str]] = {"hidden_size": "n_embd"}
    sub_configs: ClassVar[dict[str, Any]] = {}
    defaults: ClassVar[dict[str, Any]] = {
        "n_embd": 768, "num_hidden_layers": 12, "num_experts": 8, "type_vocab_size": 2, "hidden_sizes": [64, 128],
        "eps": 1e-5, "pad_token_id": 0, "sparse_layers": [0, 4],
    }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return dict(self.defaults)


class Both(Text):
    sub_configs: ClassVar[dict[str, Any]] = {"text_config": Text, "audio_config": Text}
    defaults: ClassVar[dict[str, Any]] = {"projection_dim": 512}


WHOLE = {key: value for key, value in Text.defaults.items() if isinstance(value, int)}


def read(data: dict[str, Any], cls: Any = Text) -> Any:
    return read_of(cls, data, "config.json", {})


def test_a_whole_config_says_nothing() -> None:
    assert read(WHOLE) == ((), ())
    assert read({**WHOLE, "num_experts": 0, "type_vocab_size": 0, "pad_token_id": 0, "sparse_layers": [0]}) == ((), ())


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_hidden_layers", 0, "'num_hidden_layers' is 0, expected an integer of at least 1"),
        ("num_hidden_layers", -3, "'num_hidden_layers' is -3"),
        ("num_hidden_layers", MOST_LAYERS + 1, "expected at most 1,000 layers"),
        ("n_embd", -768, "'n_embd' is -768"),
        ("n_embd", 10**12, "expected at most 1,000,000,000"),
        ("hidden_sizes", [64, -128], "'hidden_sizes' is -128"),
        ("num_experts", -1, "'num_experts' is -1"),
        ("n_embd", float("nan"), "'n_embd' is nan"),
        ("num_hiden_layers", 3, "unknown key 'num_hiden_layers'; nearest: num_hidden_layers"),
    ],
)
def test_a_wrong_size_or_key_is_one_line(key: str, value: object, said: str) -> None:
    data: dict[str, Any] = {**WHOLE, key: value}
    if key.startswith("num_hiden"):
        del data["num_hidden_layers"]
    with pytest.raises(SpecError) as raised:
        read(data)
    assert said in str(raised.value)


def test_sizes_of_the_class_are_assumed_and_other_keys_ignored() -> None:
    found = read({"hidden_size": 5, "frobnicate": 1, "torch_dtype": "bfloat16"})
    assert found.ignored == ("frobnicate",)
    assert found.assumed == ("num_hidden_layers=12", "num_experts=8", "type_vocab_size=2")


def test_configs_inside_are_read_too() -> None:
    inner = {key: value for key, value in WHOLE.items() if key != "num_hidden_layers"}
    found = read({"projection_dim": 4, "text_config": {**inner, "odd": 1}}, Both)
    assert found.ignored == ("text_config.odd",)
    assert found.assumed == ("text_config.num_hidden_layers=12", "audio_config of the class")
    with pytest.raises(SpecError, match="text_config: 'n_embd' is 0"):
        read({"projection_dim": 4, "text_config": {**inner, "n_embd": 0}}, Both)


def test_a_class_of_transformers_says_so_in_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the test extra (torch, transformers) is not installed")
    pytest.importorskip("transformers", reason="the test extra (torch, transformers) is not installed")
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "config.json"
    config = {
        "model_type": "gpt_neox", "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64,
        "vocab_size": 128, "hidden_size": 32, "frobnicate": 1, "max_position_embeddings": 64,
    }  # fmt: skip
    path.write_text(json.dumps(config), encoding="utf-8")
    answer = predict(path, "h100", seq_len=8, artifacts="roofline")
    assert not answer.assumed
    assert [note for note in answer.notes if "frobnicate" in note]
    del config["intermediate_size"]
    path.write_text(json.dumps(config), encoding="utf-8")
    assert predict(path, "h100", seq_len=8, artifacts="roofline").assumed == ("intermediate_size=24576",)
    path.write_text(json.dumps({**config, "intermediate_sise": 64}), encoding="utf-8")
    with pytest.raises(RequestError, match="unknown key 'intermediate_sise'; nearest: intermediate_size"):
        predict(path, "h100", seq_len=8)
