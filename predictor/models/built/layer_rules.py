"""Models whose layers differ in more than experts and windows: a rule makes a config of each kind of layer.

A rule is given the reader and the config of what all layers share, and returns one config a layer; equal ones are one
kind (`ModelConfig.variants`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from predictor.errors import SpecError
from predictor.files.records import replace
from predictor.models.built.config import ModelConfig
from predictor.models.built.reader import Reader

Rule = Callable[[Reader, ModelConfig], list[ModelConfig]]


def _listed(r: Reader, key: str, layers: int) -> list[Any] | None:
    """A list with an entry a layer, None where the key is missing. SpecError for another length."""
    value = r.data.get(key)
    if value is None:
        return None
    if not isinstance(value, (list, str)) or len(value) != layers:
        raise SpecError(f"{r.where}: {key!r} has {len(value) if hasattr(value, '__len__') else value} entries, expected"
                        f" {layers}")  # fmt: skip
    return list(value)


def no_rotary(r: Reader, config: ModelConfig) -> list[ModelConfig]:
    """SmolLM3: every fourth layer has no rotary positions."""
    listed = _listed(r, "no_rope_layers", config.layers)
    every = r.integer("no_rope_layer_interval", 4) if listed is None else 0
    turned = listed if listed is not None else [int((i + 1) % every != 0) for i in range(config.layers)]
    return [config if on else replace(config, position="none") for on in turned]


def llama4(r: Reader, config: ModelConfig) -> list[ModelConfig]:
    """Llama 4: rotary layers see chunks, every fourth sees everything without rotary positions; experts every so many
    layers, between them a feed-forward of another width."""
    # As Hugging Face's config, an empty list says nothing.
    listed = _listed(r, "no_rope_layers", config.layers) if r.data.get("no_rope_layers") != [] else None
    chunk = r.optional("attention_chunk_size", 8192, note=True)
    every = r.integer("no_rope_layer_interval", 4, 0) or 4
    turned = listed or [int((i + 1) % every != 0) for i in range(config.layers)]
    sparse = r.indices("moe_layers") or tuple(range(config.sparse_step - 1, config.layers, config.sparse_step))
    dense = r.integer("intermediate_size_mlp", 16384)
    tuned = bool(r.data.get("attn_temperature_tuning", True))
    config = replace(config, intermediate=dense, sparse_step=0, qk_norm_bare=True)
    layers = []
    for i, on in enumerate(turned):
        layer = config if i in sparse else replace(config, experts=0, top_k=0, shared_experts=0)
        layers.append(
            replace(layer, windows=(chunk,) if chunk else ()) if on
            else replace(layer, position="none", qk_norm=False, tuned_queries=tuned)
        )  # fmt: skip
    return layers


def interval(r: Reader, config: ModelConfig) -> list[ModelConfig]:
    """Qwen3-Next and Qwen3.5: gated delta nets, and full attention every fourth layer."""
    listed = _listed(r, "layer_types", config.layers)
    if listed is None:
        every = r.integer("full_attention_interval", 4)
        listed = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(config.layers)]
    return [replace(config, mixer="delta") if kind == "linear_attention" else config for kind in listed]


def mixed(r: Reader, config: ModelConfig) -> list[ModelConfig]:
    """Kimi delta or Lightning attention in some layers, attention in the others; some of either have no experts.

    Source: configuration_kimi_linear.py of transformers 5.24, which counts layers from 1; configuration_*.py of
    MiniMax-M1 ("attn_type_list") and Ring-flash-linear-2.0 ("layer_group_size"), as recalled, unverified: the last
    layer of each group has attention, and what no group holds.
    """
    heads, width, taps, kind = config.heads, config.head_dim, 1, "lightning"
    if config.model_type == "kimi_linear" or r.data.get("linear_attn_config") is not None:
        kind, part = "kda", Reader(r.mapping("linear_attn_config"), f"{r.where} linear_attn_config")
        heads, width = part.integer("num_heads", 32), part.integer("head_dim", 128)
        taps = part.integer("short_conv_kernel_size", 4)
        full = [layer - 1 for layer in part.indices("full_attn_layers")]
        if not full:
            listed = _listed(r, "layer_types", config.layers) or ["", *[""] * (config.layers - 1)]
            full = [i for i, said in enumerate(listed) if said == "full_attention" or (not said and i and i % 4 == 0)]
    elif r.data.get("attn_type_list") is not None:
        full = [layer for layer, said in enumerate(_listed(r, "attn_type_list", config.layers) or ()) if said]
    else:
        every = r.size("layer_group_size")
        whole = config.layers - config.layers % every
        full = [layer for layer in range(config.layers) if (layer + 1) % every == 0 or layer >= whole]
    config = replace(config, state_heads=heads, state_v_heads=heads, state_dim=width, state_v_dim=width, taps=taps)
    dense = replace(config, experts=0, top_k=0, shared_experts=0, shared_width=0)
    layers = [config if config.is_sparse(layer) else dense for layer in range(config.layers)]
    return [each if layer in full else replace(each, mixer=kind) for layer, each in enumerate(layers)]


#: Letters of a pattern -> what a layer of Nemotron-H does. Source: configuration_nemotron_h.py.
_LETTERS = {"M": "scan", "*": "attention", "-": "mlp", "E": "experts"}


def nemotron_h(r: Reader, config: ModelConfig) -> list[ModelConfig]:
    """One thing a layer: a Mamba2 scan, attention, a feed-forward or experts."""
    pattern = _listed(r, "hybrid_override_pattern", config.layers)
    names = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
    if pattern is None:
        listed = _listed(r, "layers_block_type", config.layers) or []
        pattern = [names.get(str(word), "?") for word in listed]
    if not pattern or any(letter not in _LETTERS for letter in pattern):
        raise SpecError(f"{r.where}: 'hybrid_override_pattern' is {''.join(pattern)[:40]!r}, expected M, *, - and E")
    plain = replace(config, experts=0, top_k=0, shared_width=0)
    kinds = {
        "M": replace(plain, mixer="scan", feed=False), "*": replace(plain, feed=False),
        "-": replace(plain, mixer="none"), "E": replace(config, mixer="none"),
    }  # fmt: skip
    return [kinds[letter] for letter in pattern]


def mimo(r: Reader, config: ModelConfig) -> list[ModelConfig]:
    """MiMo-V2: window layers have sinks and heads of their own; some layers are dense."""
    windows = _listed(r, "hybrid_layer_pattern", config.layers) or [
        int(kind == "sliding_attention") for kind in _listed(r, "layer_types", config.layers) or [0] * config.layers
    ]
    sparse = _listed(r, "moe_layer_freq", config.layers) or [
        int(kind == "sparse") for kind in _listed(r, "mlp_layer_types", config.layers) or [1] * config.layers
    ]
    size = r.integer("sliding_window", 128)
    bias = {True: r.flag("add_swa_attention_sink_bias", True), False: r.flag("add_full_attention_sink_bias", False)}
    far = replace(config, windows=(), sinks=bias[False])
    near = replace(
        config, windows=(size,), sinks=bias[True], heads=r.optional("swa_num_attention_heads") or config.heads,
        kv_heads=r.optional("swa_num_key_value_heads", 8), head_dim=r.optional("swa_head_dim") or config.head_dim,
        v_head_dim=r.optional("swa_v_head_dim") or config.v_head_dim,
    )  # fmt: skip
    layers = [near if on else far for on in windows]
    return [layer if on else replace(layer, experts=0, top_k=0) for layer, on in zip(layers, sparse, strict=True)]


#: Widths of a searched feed-forward are multiples of this. Source: configuration_decilm.py, find_multiple.
_MULTIPLE = 256


def nas(r: Reader, config: ModelConfig) -> list[ModelConfig]:
    """Nemotron-NAS: each layer its own KV heads and width, or none of the two."""
    blocks, where = _listed(r, "block_configs", config.layers) or [], f"{r.where} block_configs"
    layers = []
    for block in blocks:
        attention, feed = (
            Reader(block if isinstance(block, dict) else {}, where).mapping(p) for p in ("attention", "ffn")
        )
        layer = config
        if attention.get("no_op"):
            layer = replace(layer, mixer="none")
        elif attention.get("replace_with_linear"):
            raise SpecError(f"{r.where}: 'block_configs' replaces attention by a linear layer, expected attention")
        else:
            group = Reader(attention, where).size("n_heads_in_group")
            if config.heads % group:
                raise SpecError(f"{where}: 'n_heads_in_group' is {group}, expected a divisor of {config.heads} heads")
            layer = replace(layer, kv_heads=config.heads // group)
        if feed.get("no_op"):
            layer = replace(layer, feed=False)
        elif feed.get("replace_with_linear"):
            raise SpecError(f"{r.where}: 'block_configs' replaces an ffn by a linear layer, expected an ffn")
        else:
            multiple = Reader(feed, where).number("ffn_mult", 0.0)
            width = int(2 * multiple * config.hidden / 3)
            layer = replace(layer, intermediate=-(-width // _MULTIPLE) * _MULTIPLE)
        layers.append(layer)
    return layers


RULES: Mapping[str, Rule] = {
    "no rotary": no_rotary, "llama4": llama4, "interval": interval, "nemotron_h": nemotron_h, "mimo": mimo, "nas": nas,
    "mixed": mixed,
}  # fmt: skip
