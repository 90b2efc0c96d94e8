"""Keys of a config.json that its class does not know: an error where one is misspelt, a note where nobody reads it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from predictor import predict
from predictor.errors import RequestError, SpecError
from predictor.models.built import config_from_dict, load_config
from predictor.models.built.keys import ANY, SHOWN, ignored_notes, known_keys
from predictor.models.built.load import CONFIGS
from predictor.models.built.type_reader import FAMILIES, register_family
from tests.model_types import ELSEWHERE, TYPES, small

LLAMA = json.loads((CONFIGS / "llama-3.1-8b.json").read_text(encoding="utf-8"))


def slips(key: str) -> list[str]:
    """The key with a letter less, one more, and two in the other order."""
    middle = len(key) // 2
    return [key[:middle] + key[middle + 1 :], key[:middle] + "x" + key[middle:], key[:-2] + key[-1] + key[-2]]


@pytest.mark.parametrize("name", [*TYPES, *ELSEWHERE])
def test_a_misspelt_size_of_every_type_names_the_nearest_key(name: str) -> None:
    data = small(name)
    whole = config_from_dict(data, name)
    assert not [key for key in whole.ignored if not key.startswith("index_")]  # of a sparse sibling
    for key in (key for key in data if isinstance(data[key], int) and len(key) > 7 and key not in whole.ignored):
        for slip in slips(key):
            wrong = {slip if name == key else name: value for name, value in data.items()}
            if slip == key or slip in known_keys(name):
                continue
            with pytest.raises(SpecError, match=f"unknown key '{slip}'; nearest: "):
                config_from_dict(wrong, name)


def test_a_misspelt_key_of_the_text_is_told() -> None:
    inner = {**small("qwen3_5_text"), "model_type": "qwen3_5_text"}
    assert not config_from_dict({"model_type": "qwen3_5", "text_config": inner}).ignored
    inner["hidden_sise"] = inner.pop("hidden_size")
    with pytest.raises(SpecError, match="text_config: unknown key 'hidden_sise'; nearest: hidden_size"):
        config_from_dict({"model_type": "qwen3_5", "text_config": inner})


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_the_catalogue_has_no_key_that_nobody_knows(path: Path) -> None:
    assert not load_config(path).ignored


def test_no_public_config_is_taken_for_misspelt(data: Path) -> None:
    files = [path for path in sorted((data / "hf_configs").glob("*_config.json")) if "hf_quant" not in path.name]
    if not files:
        pytest.skip("no hf_configs beside the data")
    said = []
    for path in files:
        try:
            load_config(path)
        except RequestError as error:
            said.append(str(error))
    assert not [line for line in said if "unknown key" in line]


def test_a_key_that_nobody_knows_is_named_in_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "frobnicate": 3, "_note": "of ours", "torch_dtype": "bfloat16"}), "utf-8")
    answer = predict(path, "h100", artifacts="roofline")
    assert [note for note in answer.notes if "frobnicate" in note] == list(ignored_notes(["frobnicate"]))
    assert not [note for note in predict("llama-3.1-8b", "h100", artifacts="roofline").notes if "keys of" in note]


def test_many_keys_are_counted() -> None:
    (line,) = ignored_notes([f"key_{i}" for i in range(SHOWN + 3)])
    assert line.endswith(f"key_{SHOWN - 1} and 3 more.")


def test_a_type_from_outside_may_have_any_key() -> None:
    def read(data: Any, name: str, where: str) -> Any:
        return FAMILIES["llama"]({**LLAMA, "architectures": None}, name, where)

    register_family("outside-keys", read, "LlamaForCausalLM")
    try:
        assert not config_from_dict({"model_type": "outside-keys", "hiden_size": 3}).ignored
    finally:
        del FAMILIES["outside-keys"]


def test_the_table_is_that_of_the_classes() -> None:
    pytest.importorskip("torch", reason="the test extra (torch, transformers) is not installed")
    transformers = pytest.importorskip("transformers", reason="the test extra (torch, transformers) is not installed")
    from predictor.models.built.keys import TABLE
    from predictor.models.traced.config_class import keys_of

    if json.loads(TABLE.read_text(encoding="utf-8"))["version"] != transformers.__version__:
        pytest.skip("the table is of another version of transformers")
    for name in ("llama", "qwen3_5_text", "nemotron_h", "gpt2"):
        known = keys_of(transformers.models.auto.configuration_auto.CONFIG_MAPPING[name])
        assert known == known_keys(name)
        assert not known & {"hidden_sise"} and "model_type" in ANY


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"attention": True, "ffn": {"ffn_mult": 1.0}}, "'attention' is True, expected an object"),
        ({"attention": {"no_op": True}, "ffn": "wide"}, "'ffn' is 'wide', expected an object"),
        ({"attention": {"n_heads_in_group": 3}}, "'n_heads_in_group' is 3, expected a divisor of 8 heads"),
    ],
)
def test_a_searched_block_that_is_none_is_one_line(block: dict[str, Any], said: str) -> None:
    data = small("nemotron-nas")
    with pytest.raises(SpecError) as raised:
        config_from_dict({**data, "block_configs": [block, *data["block_configs"][1:]]})
    assert said in str(raised.value)


def test_a_billion_experts_are_refused() -> None:
    with pytest.raises(SpecError, match=r"'num_experts' is .*, expected at most 10000"):
        config_from_dict({**small("qwen2_moe"), "num_experts": 10**9})


def test_a_key_that_only_another_class_has_changes_no_size() -> None:
    """Nemotron-H alone calls the width of a head attention_head_dim; GPT-2 has no KV heads."""
    assert config_from_dict({**LLAMA, "attention_head_dim": 64}) == replace(
        config_from_dict(LLAMA), ignored=("attention_head_dim",)
    )
    gpt2 = json.loads((CONFIGS / "gpt2.json").read_text(encoding="utf-8"))
    assert config_from_dict({**gpt2, "num_key_value_heads": 1}).kv_heads == gpt2["n_head"]
    hybrid = small("nemotron_h")
    assert config_from_dict({**hybrid, "attention_head_dim": 16}).head_dim == 16 != config_from_dict(hybrid).head_dim
