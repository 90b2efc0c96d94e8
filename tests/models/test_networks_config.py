"""config.json -> ModelConfig: the catalogue, defaults, errors of one line."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from predictor.errors import RequestError, SpecError, UnknownNameError, UnsupportedError
from predictor.models.built import config_from_dict, kv_bytes_per_token, load_config, parameters
from predictor.models.built.load import CONFIGS, aliases
from tests.catalogue import MODELS

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_attention_heads": 8,
    "num_hidden_layers": 2, "vocab_size": 1000,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_catalogue_assumes_nothing(name: str) -> None:
    config = load_config(name)
    assert config.assumed == ()
    assert config.name == name


def test_aliases_name_models_of_the_catalogue() -> None:
    for alias, name in aliases().items():
        assert load_config(alias.upper()).name == name, alias
    public = {name for alias, name in aliases().items() if "/" in alias}
    assert {name for name in MODELS if name not in public} == {
        name for name in MODELS if name.startswith("gpt3")
    }  # GPT-3 alone was never published
    assert aliases()["meta-llama/Llama-3.1-8B"] == "llama-3.1-8b"


def test_a_hugging_face_name_is_looked_up_after_files_and_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RequestError, match=r"nearest of the catalogue: meta-llama/Llama-3\.1-8B"):
        load_config("meta-llama/Llama-3.1-9B")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen3-8B").mkdir(parents=True)
    with pytest.raises(SpecError, match=r"no config\.json in this folder"):
        load_config("Qwen/Qwen3-8B")
    assert load_config("Qwen/Qwen3-4B").name == "qwen3-4b"


def test_a_class_and_a_model_type_that_contradict_each_other_are_one_line() -> None:
    for architecture, model_type, said in (
        ("MistralForCausalLM", "llama", "expected LlamaForCausalLM, or model_type 'mistral'"),
        ("Qwen3MoeForCausalLM", "qwen3", "expected Qwen3ForCausalLM, or model_type 'qwen3_moe'"),
        ("Qwen3ForCausalLM", "qwen3_moe", "or model_type 'qwen3'"),
        ("FalconForCausalLM", "llama", "expected LlamaForCausalLM"),
    ):
        with pytest.raises(SpecError) as caught:
            config_from_dict({**LLAMA, "architectures": [architecture], "model_type": model_type}, "m", "c.json")
        line = str(caught.value)
        assert said in line and "contradict" in line and "c.json" in line and "\n" not in line
    for architecture in ("LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel", "LlamaForSequenceClassification"):
        assert config_from_dict({**LLAMA, "architectures": [architecture]}).model_type == "llama"


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt3-125m", 0.125), ("gpt3-350m", 0.350), ("gpt3-760m", 0.760), ("gpt3-xl", 1.3), ("gpt3-2.7b", 2.7),
        ("gpt3-6.7b", 6.7), ("gpt3-13b", 13.0), ("gpt3", 175.0),
    ],
)  # fmt: skip
def test_gpt3_has_the_sizes_of_its_paper(name: str, billions: float) -> None:
    """arXiv:2005.14165, table 2.1."""
    assert parameters(load_config(name)) == pytest.approx(billions * 1e9, rel=0.02)


def test_missing_keys_take_the_class_default_and_are_listed() -> None:
    config = config_from_dict(LLAMA)
    assert config.intermediate == 11008
    assert "intermediate_size=11008" in config.assumed
    assert "num_key_value_heads=8" in config.assumed
    assert config.head_dim == 32


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"])
def test_a_missing_size_is_an_error(key: str) -> None:
    data = {k: v for k, v in LLAMA.items() if k != key}
    with pytest.raises(SpecError, match=f"missing '{key}'") as error:
        config_from_dict(data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 0}, "'hidden_size' is 0"), ({"num_hidden_layers": -2}, "'num_hidden_layers' is -2"),
        ({"vocab_size": "many"}, "'vocab_size' is 'many'"), ({"hidden_size": True}, "'hidden_size' is True"),
        ({"num_attention_heads": 7}, "width 256 is not a multiple of 7 heads"),
        ({"num_key_value_heads": 3}, "8 attention heads are not a multiple of 3 KV heads"),
        ({"attention_dropout": -0.1}, "'attention_dropout' is -0.1"), ({"attention_dropout": 2}, "expected 0 to 1"),
        ({"attention_bias": "no"}, "'attention_bias' is 'no'"), ({"hidden_act": 3}, "'hidden_act' is 3"),
    ],
)  # fmt: skip
def test_impossible_values_are_errors_of_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message) as error:
        config_from_dict({**LLAMA, **change})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", sorted({load_config(n).model_type: n for n in MODELS}.values()))
def test_odd_values_never_end_in_a_traceback(name: str) -> None:
    data = json.loads((CONFIGS / f"{name}.json").read_text())
    odd: tuple[Any, ...] = ("x", -1, 0, 0.5, 1e300, True, [], ["x"], [3.5], {}, {"a": 1}, None)
    for key in data:
        for value in odd:
            with contextlib.suppress(RequestError):
                parameters(config_from_dict({**data, key: value}))


def test_an_unknown_model_type_names_the_nearest() -> None:
    with pytest.raises(UnsupportedError, match=r"unknown model_type 'llama9'.*nearest: llama"):
        config_from_dict({**LLAMA, "model_type": "llama9"})
    with pytest.raises(SpecError, match="missing 'model_type'"):
        config_from_dict({"hidden_size": 4})


def test_an_unknown_architecture_is_no_guess() -> None:
    with pytest.raises(UnsupportedError, match="unknown architecture 'LlamaForTokenClassification'"):
        config_from_dict({**LLAMA, "architectures": ["LlamaForTokenClassification"]})
    data = json.loads((CONFIGS / "t5-small.json").read_text())
    with pytest.raises(UnsupportedError, match="T5ForSequenceClassification"):
        config_from_dict({**data, "architectures": ["T5ForSequenceClassification"]})


def test_an_unknown_name_has_near_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"nearest:.*llama-2-7b"):
        load_config("llama-2-7")


def test_broken_json_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n  "model_type": "llama",\n  "hidden_size" 5\n}\n')
    with pytest.raises(SpecError, match="line 3"):
        load_config(path)
    path.write_text("[1, 2]")
    with pytest.raises(SpecError, match="expected a JSON object"):
        load_config(path)


def test_a_path_or_its_folder_loads_and_gives_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert load_config(folder) == load_config(folder / "config.json")
    assert load_config(folder).name == "my-model"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(LLAMA))
    assert load_config(str(other)).name == "other"


def test_experts_have_to_be_enough_for_a_token() -> None:
    data = json.loads((CONFIGS / "mixtral-8x7b.json").read_text())
    with pytest.raises(SpecError, match="9 experts a token"):
        config_from_dict({**data, "num_experts_per_tok": 9})


def test_window_patterns() -> None:
    gemma2, gemma3 = load_config("gemma-2-2b"), load_config("gemma-3-1b")
    assert gemma2.windows[:4] == (4096, 0, 4096, 0)
    assert gemma3.windows[:7] == (512, 512, 512, 512, 512, 0, 512)
    assert gemma3.layer_groups() == ((False, 512, 22), (False, 0, 4))
    assert load_config("mistral-7b").layer_groups() == ((False, 4096, 32),)
    data = json.loads((CONFIGS / "gemma-2-2b.json").read_text())
    typed = config_from_dict({**data, "layer_types": ["full_attention"] * 26})
    assert set(typed.windows) == {0}
    with pytest.raises(SpecError, match="'layer_types' has 1 entries"):
        config_from_dict({**data, "layer_types": ["full_attention"]})


def test_expert_layers() -> None:
    v3, switch = load_config("deepseek-v3"), load_config("switch-base-8")
    assert v3.layer_groups() == ((False, 0, 3), (True, 0, 58))
    assert [switch.is_sparse(i) for i in range(4)] == [False, True, False, True]
    data = json.loads((CONFIGS / "qwen3-30b-a3b.json").read_text())
    mixed = config_from_dict({**data, "mlp_only_layers": [0], "decoder_sparse_step": 2})
    assert [mixed.is_sparse(i) for i in range(4)] == [False, True, False, True]


def test_the_text_part_of_a_multimodal_gemma3() -> None:
    data = json.loads((CONFIGS / "gemma-3-4b.json").read_text())
    whole = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
             "text_config": {k: v for k, v in data.items() if k != "architectures"}}  # fmt: skip
    config = config_from_dict(whole)
    assert parameters(config) == parameters(load_config("gemma-3-4b"))
    assert config.assumed == ("vision_config=left out",)


@pytest.mark.parametrize(
    ("name", "dtype", "size"),
    [
        ("llama-2-7b", "fp16", 524288), ("llama-3.1-70b", "fp8", 163840), ("deepseek-v3", "bf16", 61 * 576 * 2),
        ("bert-base", "fp16", 0),
    ],
)  # fmt: skip
def test_kv_bytes_by_hand(name: str, dtype: str, size: float) -> None:
    assert kv_bytes_per_token(load_config(name), dtype) == size


def test_errors_of_the_request_leave_with_status_2() -> None:
    assert issubclass(SpecError, RequestError)
    assert UnsupportedError("x").exit_status == 2
