"""What the classes of transformers call the linear layers of each part (`predictor.formats.parts`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from predictor.models.built.config import ModelConfig

#: Names of the modules of each part below a layer, where a class has no others.
MODULES: Mapping[str, tuple[str, ...]] = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.q_a": ("self_attn.q_a_proj",),
    "attention.q_b": ("self_attn.q_b_proj",),
    "attention.kv_a": ("self_attn.kv_a_proj_with_mqa",),
    "attention.kv_b": ("self_attn.kv_b_proj",),
    "attention.out": ("self_attn.o_proj",),
    "mlp.up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": ("mlp.down_proj",),
    "shared_experts": tuple(f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")),
    "experts": tuple(f"mlp.experts.0.{name}_proj" for name in ("gate", "up", "down")),
}
_OTHERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "mixtral": {"experts": tuple(f"block_sparse_moe.experts.0.{name}" for name in ("w1", "w3", "w2"))},
    "phi3": {"attention.qkv": ("self_attn.qkv_proj",), "mlp.up": ("mlp.gate_up_proj",)},
    "opt": {"attention.out": ("self_attn.out_proj",), "mlp.up": ("fc1",), "mlp.down": ("fc2",)},
    "bloom": {
        "attention.qkv": ("self_attention.query_key_value",), "attention.out": ("self_attention.dense",),
        "mlp.up": ("mlp.dense_h_to_4h",), "mlp.down": ("mlp.dense_4h_to_h",),
    },
    "gpt2": {
        "attention.qkv": ("attn.c_attn",), "attention.out": ("attn.c_proj",), "mlp.up": ("mlp.c_fc",),
        "mlp.down": ("mlp.c_proj",),
    },
    "minimax_m2": {"experts": tuple(f"block_sparse_moe.experts.0.{name}" for name in ("w1", "w3", "w2"))},
    "nemotron_h": {
        "attention.qkv": tuple(f"mixer.{name}_proj" for name in "qkv"), "attention.out": ("mixer.o_proj",),
        "mlp.up": ("mixer.up_proj",), "mlp.down": ("mixer.down_proj",),
        "shared_experts": tuple(f"mixer.shared_experts.{name}_proj" for name in ("up", "down")),
        "experts": tuple(f"mixer.experts.0.{name}_proj" for name in ("up", "down")),
    },
    "mpt": {
        "attention.qkv": ("attn.Wqkv",), "attention.out": ("attn.out_proj",), "mlp.up": ("ffn.up_proj",),
        "mlp.down": ("ffn.down_proj",),
    },
}  # fmt: skip
#: Where a class keeps its layers; "model.layers" without a name here.
LAYERS = {
    "opt": "model.decoder.layers",
    "gpt2": "transformer.h",
    "bloom": "transformer.h",
    "mpt": "transformer.blocks",
    "nemotron_h": "backbone.layers",
}
#: Names of the modules that mix tokens in place of attention.
_MIXERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "delta": {
        "attention.qkv": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
        "attention.out": ("linear_attn.out_proj",),
    },
    "scan": {"attention.qkv": ("mixer.in_proj",), "attention.out": ("mixer.out_proj",)},
    "lightning": {
        "attention.qkv": ("self_attn.qkv_proj", "self_attn.output_gate"),
        "attention.out": ("self_attn.out_proj",),
    },
}
#: Types whose shared experts are one module of another name.
_ONE_SHARED = ("qwen2_moe", "qwen3_next", "qwen3_5_moe")


def modules_of(part: str, config: ModelConfig) -> tuple[str, ...]:
    """Names of a part's modules below a layer, as the class calls them."""
    if part == "attention.q_b" and not config.q_lora_rank:
        return ("self_attn.q_proj",)
    if part in (mixer := _MIXERS.get(config.mixer, {})):
        return mixer[part]
    if part == "shared_experts" and config.model_type in _ONE_SHARED:
        return tuple(f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down"))
    return _OTHERS.get(config.model_type, {}).get(part, MODULES[part])
