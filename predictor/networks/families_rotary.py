"""Readers of the decoders with rotary positions and RMS norms: Llama and its relatives, experts, latent attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from predictor.errors import SpecError
from predictor.networks.config import ModelConfig
from predictor.networks.reader import Reader, common_fields, head_width


@dataclass(frozen=True, slots=True)
class Defaults:
    """Where the configuration classes differ in what a missing key means; None = all attention heads."""

    intermediate: int
    positions: int
    kv_heads: int | None = None
    head_dim: int = 0
    window: int = 0
    tie: bool = False
    activation: str = "silu"


#: Model type -> what its configuration class says of a missing key. Source: transformers' configuration_*.py, a class
#: for each.
_DEFAULTS = {
    "llama": Defaults(11008, 2048),
    "mistral": Defaults(14336, 131072, kv_heads=8, window=4096),
    "qwen2": Defaults(22016, 32768, kv_heads=32),
    "qwen3": Defaults(22016, 32768, kv_heads=32, head_dim=128),
    "mixtral": Defaults(14336, 131072, kv_heads=8),
    "qwen3_moe": Defaults(6144, 32768, kv_heads=4),
    "deepseek_v2": Defaults(11008, 2048),
    "deepseek_v3": Defaults(18432, 4096),
    "phi3": Defaults(8192, 4096),
    "gemma2": Defaults(9216, 8192, kv_heads=4, head_dim=256, window=4096, tie=True, activation="gelu_pytorch_tanh"),
    "gemma3_text": Defaults(9216, 131072, kv_heads=4, head_dim=256, window=4096, tie=True,
                            activation="gelu_pytorch_tanh"),
}  # fmt: skip


def _base(r: Reader, model_type: str, name: str) -> dict[str, Any]:
    """The fields that every model of this file has."""
    default = _DEFAULTS[model_type]
    hidden, heads = r.size("hidden_size"), r.size("num_attention_heads")
    kv_heads = r.optional("num_key_value_heads", default.kv_heads or heads, note=True) or heads
    gemma = model_type.startswith("gemma")
    head_dim = r.optional("head_dim", default.head_dim, note=default.head_dim > 0)
    layers = r.size("num_hidden_layers")
    positions = r.integer("max_position_embeddings", default.positions)
    activation = r.word("hidden_activation" if gemma else "hidden_act", default.activation)
    return {
        **common_fields(r, model_type, name), "hidden": hidden, "layers": layers, "heads": heads, "kv_heads": kv_heads,
        "head_dim": head_dim or head_width(r, hidden, heads), "vocab": r.size("vocab_size"),
        "intermediate": r.integer("intermediate_size", default.intermediate), "gated": True,
        "max_positions": positions, "scaled_positions": scaled_positions(r.data, model_type, positions),
        "activation": activation,
        "tie_embeddings": r.flag("tie_word_embeddings", default.tie), "windows": _windows(r, model_type, layers),
        "attention_dropout": r.number("attention_dropout", 0.0),
    }  # fmt: skip


def scaled_positions(data: Mapping[str, Any], model_type: str, positions: int) -> int:
    """Positions that "rope_scaling" (transformers 5: "rope_parameters") stretches ``positions`` to; 0: it does not.

    "linear" and "dynamic" multiply max_position_embeddings by their factor, "yarn" its original_max_position_embeddings
    where the file has them. Gemma 3's files say the stretched length, as those of "llama3" and "longrope" do.
    """
    scaling = data.get("rope_scaling") or data.get("rope_parameters")
    if not isinstance(scaling, Mapping) or model_type.startswith("gemma3"):
        return 0
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
    if kind not in ("linear", "dynamic", "yarn") or not number or not 1.0 <= float(factor) < 1e6:  # type: ignore[arg-type]
        return 0
    original = scaling.get("original_max_position_embeddings")
    whole = isinstance(original, int) and not isinstance(original, bool) and original > 0
    return round((original if kind == "yarn" and whole else positions) * factor)  # type: ignore[operator]


def _windows(r: Reader, model_type: str, layers: int) -> tuple[int, ...]:
    """Sliding window of every layer: by "layer_types" where the file has them, else by the class's rule."""
    default = _DEFAULTS[model_type].window
    if model_type in ("llama", "deepseek_v2", "deepseek_v3"):
        return ()
    if model_type.startswith("qwen") and not r.flag("use_sliding_window", False):
        return ()
    window = r.optional("sliding_window", default, note=True)
    if not window:
        return ()
    types = r.data.get("layer_types")
    if isinstance(types, list):
        if len(types) != layers:
            raise SpecError(f"{r.where}: 'layer_types' has {len(types)} entries, expected {layers}")
        return tuple(window if kind == "sliding_attention" else 0 for kind in types)
    if model_type == "gemma2":
        return tuple(0 if i % 2 else window for i in range(layers))
    if model_type == "gemma3_text":
        every = r.integer("sliding_window_pattern", 6)
        return tuple(window if (i + 1) % every else 0 for i in range(layers))
    if model_type in ("qwen2", "qwen3"):
        first = r.integer("max_window_layers", 28, at_least=0)
        return tuple(window if i >= first else 0 for i in range(layers))
    return (window,) * layers


def _build(r: Reader, fields: dict[str, Any]) -> ModelConfig:
    return ModelConfig(**fields, assumed=tuple(r.assumed))


def llama(data: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    r = Reader(data, where)
    bias = r.flag("attention_bias", False)
    return _build(r, {
        **_base(r, "llama", name), "qkv_bias": bias, "out_bias": bias, "mlp_bias": r.flag("mlp_bias", False),
    })  # fmt: skip


def mistral(data: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    r = Reader(data, where)
    return _build(r, _base(r, "mistral", name))


def qwen2(data: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    r = Reader(data, where)
    return _build(r, {**_base(r, "qwen2", name), "qkv_bias": True})


def qwen3(data: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    r = Reader(data, where)
    bias = r.flag("attention_bias", False)
    return _build(r, {**_base(r, "qwen3", name), "qk_norm": True, "qkv_bias": bias, "out_bias": bias})


def phi3(data: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    r = Reader(data, where)
    base = _base(r, "phi3", name)
    return _build(r, {
        **base, "merged_qkv": True, "merged_gate_up": True, "residual_dropout": r.number("resid_pdrop", 0.0),
        "rotary_dim": int(base["head_dim"] * r.number("partial_rotary_factor", 1.0, note=False)),
    })  # fmt: skip


def gemma2(data: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    r = Reader(data, where)
    bias = r.flag("attention_bias", False)
    return _build(r, {
        **_base(r, "gemma2", name), "qkv_bias": bias, "out_bias": bias, "post_norms": True, "embed_scale": True,
        "attention_softcap": r.number("attn_logit_softcapping", 50.0),
        "final_softcap": r.number("final_logit_softcapping", 30.0),
    })  # fmt: skip


def gemma3(data: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    """Gemma 3's language model; of a multimodal config.json the text part alone, the vision tower left out."""
    inner = data.get("text_config")
    ignored = []
    if isinstance(inner, dict):
        data = {"architectures": ["Gemma3ForCausalLM"], **inner}
        ignored = ["vision_config=left out"]
    r = Reader(data, where)
    r.assumed.extend(ignored)
    bias = r.flag("attention_bias", False)
    return _build(r, {
        **_base(r, "gemma3_text", name), "qkv_bias": bias, "out_bias": bias, "post_norms": True, "embed_scale": True,
        "qk_norm": True, "attention_softcap": r.number("attn_logit_softcapping", 0.0, note=False),
        "final_softcap": r.number("final_logit_softcapping", 0.0, note=False),
    })  # fmt: skip


def mixtral(data: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    r = Reader(data, where)
    base = _base(r, "mixtral", name)
    return _build(r, {
        **base, "experts": r.integer("num_local_experts", 8), "top_k": r.integer("num_experts_per_tok", 2),
        "moe_intermediate": base["intermediate"],
    })  # fmt: skip


def qwen3_moe(data: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    r = Reader(data, where)
    bias, base = r.flag("attention_bias", False), _base(r, "qwen3_moe", name)
    experts = "num_local_experts" if "num_local_experts" in data else "num_experts"
    return _build(r, {
        **base, "qk_norm": True, "qkv_bias": bias, "out_bias": bias, "experts": r.integer(experts, 128),
        "top_k": r.integer("num_experts_per_tok", 8), "moe_intermediate": r.integer("moe_intermediate_size", 768),
        "sparse_step": r.integer("decoder_sparse_step", 1),
        "dense_layers": r.indices("mlp_only_layers"),
    })  # fmt: skip


def _deepseek(r: Reader, model_type: str, name: str) -> dict[str, Any]:
    v3 = model_type == "deepseek_v3"
    base = _base(r, model_type, name)
    bias = r.flag("attention_bias", False)
    q_rank = r.optional("q_lora_rank", 1536, note=True)
    nope, rope = r.integer("qk_nope_head_dim", 128), r.integer("qk_rope_head_dim", 64)
    top_k = r.size("num_experts_per_tok") if not v3 else r.integer("num_experts_per_tok", 8)
    return {
        **base, "kv_heads": base["heads"], "head_dim": nope + rope, "qk_nope_dim": nope, "qk_rope_dim": rope,
        "v_head_dim": r.integer("v_head_dim", 128), "q_lora_rank": q_rank,
        "kv_lora_rank": r.integer("kv_lora_rank", 512),
        "qkv_bias": bias, "out_bias": bias, "experts": r.integer("n_routed_experts", 256 if v3 else 64), "top_k": top_k,
        "moe_intermediate": r.integer("moe_intermediate_size", 2048 if v3 else 1407),
        "shared_experts": r.optional("n_shared_experts", 1 if v3 else 2, note=True),
        "first_dense": r.integer("first_k_dense_replace", 3 if v3 else 0, at_least=0),
    }  # fmt: skip


def deepseek_v2(data: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    r = Reader(data, where)
    return _build(r, {**_deepseek(r, "deepseek_v2", name), "mlp_bias": r.flag("mlp_bias", False, note=False)})


def deepseek_v3(data: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    r = Reader(data, where)
    return _build(r, _deepseek(r, "deepseek_v3", name))
