"""Parameter counts and defaults of the catalogue against the Hugging Face classes, on the meta device."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

from predictor.models.built.load import CONFIGS, config_from_dict, load_config
from predictor.models.built.parameters import parameters
from predictor.models.traced.torchvision_operators import ready
from tests.catalogue import MODELS

torch = pytest.importorskip("torch", reason="the test extra (torch, transformers) is not installed")
transformers = pytest.importorskip("transformers", reason="the test extra (torch, transformers) is not installed")

ready()
# Models with more layers than this are built with few layers, twice: that pins what a layer and the rest hold.
FULL_LAYERS = 12
_LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers")


def hf_parameters(data: dict[str, Any]) -> int:
    """Unique parameters of the Hugging Face class of ``data``."""
    data = {k: v for k, v in data.items() if k != "_note"}
    architecture = data["architectures"][0].replace("MPTFor", "MptFor")
    cls = getattr(transformers, architecture)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.device("meta"):
            model = cls(cls.config_class(**data))
    # T5Config of transformers 5 ties whatever the file says; the checkpoints of flan-t5 hold a head of their own.
    untied_t5 = data["model_type"] == "t5" and data.get("tie_word_embeddings") is False
    head = data["vocab_size"] * data["d_model"] if untied_t5 else 0
    return int(sum(p.numel() for p in model.parameters()) + head)


def with_layers(data: dict[str, Any], layers: int) -> dict[str, Any]:
    cut = {k: (layers if k in _LAYER_KEYS else v) for k, v in data.items()}
    for key in ("num_sparse_encoder_layers", "num_sparse_decoder_layers"):
        if key in cut:
            cut[key] = layers // 2
    return cut


@pytest.mark.parametrize("name", MODELS)
def test_parameters_equal_the_hugging_face_class(name: str) -> None:
    data = json.loads((CONFIGS / f"{name}.json").read_text())
    config = load_config(name)
    if max(config.layers, config.encoder_layers) <= FULL_LAYERS and config.experts <= 8:
        assert parameters(config) == hf_parameters(data)
        return
    least = 2 if config.experts == 0 else config.first_dense + 2
    if config.is_encoder_decoder:
        sizes: tuple[int, ...] = (2, 4)
    elif config.windows:
        sizes = (2, 3, 7)
    else:
        sizes = (least, least + 1)
    for layers in sizes:
        cut = with_layers(data, layers)
        assert parameters(config_from_dict(cut, name)) == hf_parameters(cut)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("BertForPreTraining", "bert-base"), ("BertForSequenceClassification", "bert-base"), ("BertModel", "bert-base"),
        ("BertLMHeadModel", "bert-base"), ("GPT2Model", "gpt2"), ("GPT2ForSequenceClassification", "gpt2"),
        ("LlamaForSequenceClassification", "llama-3.2-1b"), ("OPTModel", "opt-350m"),
        ("OPTForSequenceClassification", "opt-350m"), ("Qwen3Model", "qwen3-0.6b"),
    ],
)  # fmt: skip
def test_other_heads_equal_the_hugging_face_class(architecture: str, name: str) -> None:
    data = json.loads((CONFIGS / f"{name}.json").read_text())
    cut = {**with_layers(data, 2), "architectures": [architecture], "num_labels": 2}
    assert parameters(config_from_dict(cut, name)) == hf_parameters(cut)


# Keys that are sizes, and keys whose default the reader derives, are not to be dropped.
_REQUIRED = {
    "architectures", "model_type", "vocab_size", "n_embd", "hidden_size", "d_model", "n_layer", "n_layers", "n_head",
    "n_heads", "num_hidden_layers", "num_layers", "num_attention_heads", "num_heads", "num_decoder_layers",
    "num_experts_per_tok", "num_key_value_heads", "_note",
}  # fmt: skip
_PER_TYPE = sorted({load_config(n).model_type: n for n in reversed(MODELS)}.values())


@pytest.mark.parametrize("name", _PER_TYPE)
def test_a_missing_key_means_the_default_of_the_class(name: str) -> None:
    data = json.loads((CONFIGS / f"{name}.json").read_text())
    data = with_layers(data, 4)
    for key in data.keys() - _REQUIRED - {"attn_config", "no_bias"}:
        cut = {k: v for k, v in data.items() if k != key}
        assert parameters(config_from_dict(cut, name)) == hf_parameters(cut), key
