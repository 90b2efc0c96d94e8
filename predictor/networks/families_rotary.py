"""Reads decoders by the table of their model types (`predictor.networks.model_types`): one reader for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from predictor.errors import SpecError
from predictor.networks.config import ModelConfig
from predictor.networks.keys import Read
from predictor.networks.layer_rules import RULES
from predictor.networks.model_types import Traits
from predictor.networks.reader import Reader, common_fields, head_width


def read(traits: Traits, model_type: str, data: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    """The model of a config.json; of one with a "text_config" its language model alone."""
    inner = data.get("text_config")
    assumed = []
    if isinstance(inner, dict):
        outer = {key: data[key] for key in ("tie_word_embeddings",) if key in data and key not in inner}
        seen = data.seen if isinstance(data, Read) else set()
        data = Read({**outer, **inner, "architectures": [traits.architecture]}, seen)
        assumed = ["vision_config=left out"]
    r = Reader(data, where)
    r.assumed.extend(assumed)
    fields = _base(r, traits, model_type, name)
    fields |= traits.fields
    for field, (key, default) in traits.keys.items():
        fields[field] = _value(r, key, default)
    if fields.get("kv_lora_rank"):
        fields["kv_heads"], fields["head_dim"] = fields["heads"], fields["qk_nope_dim"] + fields["qk_rope_dim"]
    if not fields.get("experts"):
        fields |= {"experts": 0, "top_k": 0}
    config = ModelConfig(**fields)
    if traits.layers:
        config = _layered(config, RULES[traits.layers](r, config))
    return replace(config, assumed=tuple(dict.fromkeys(r.assumed)))


def _layered(config: ModelConfig, layers: list[ModelConfig]) -> ModelConfig:
    """``config`` with a kind of its own for every layer that differs; itself where none does."""
    kinds = list(dict.fromkeys(layers))
    if kinds == [config]:
        return config
    first = next((kind for kind in kinds if kind.mixer == "attention"), kinds[0])
    shared = {name: getattr(first, name) for name in ("heads", "kv_heads", "head_dim", "v_head_dim")}
    windows = tuple(layer.windows[0] if layer.windows else 0 for layer in layers)
    return replace(
        config, **shared, variants=tuple(kinds), pattern=tuple(kinds.index(layer) for layer in layers),
        windows=windows if any(windows) else (), intermediate=max(kind.intermediate for kind in kinds),
    )  # fmt: skip


def _value(r: Reader, key: str, default: Any) -> Any:
    """What the first of the keys says, as the type of its default; "?" at the end: a missing one is not noted."""
    quiet = key.endswith("?")
    names = key.rstrip("?").split("|")
    name = next((known for known in names if known in r.data), names[-1])
    if default is None:
        return r.size(name)
    if isinstance(default, bool):
        return r.flag(name, default, note=not quiet)
    if isinstance(default, float):
        return r.number(name, default, note=not quiet)
    if isinstance(default, tuple):
        return r.indices(name)
    if quiet or name in ("n_shared_experts", "q_lora_rank"):  # null means none
        return r.optional(name, default, note=not quiet)
    return r.integer(name, default, at_least=0 if name == "first_k_dense_replace" else 1)


def _base(r: Reader, traits: Traits, model_type: str, name: str) -> dict[str, Any]:
    """The fields that every model of the table has."""
    hidden, heads = r.size("hidden_size"), r.size("num_attention_heads")
    kv_heads = r.optional("num_key_value_heads", traits.kv_heads or heads, note=True) or heads
    # The width of latent heads follows from their parts; a "head_dim" beside them is another one's.
    latent = "kv_lora_rank" in traits.keys
    given = "attention_head_dim" if "attention_head_dim" in r.data else "head_dim"
    head_dim = 0 if latent else r.optional(given, traits.head_dim, note=traits.head_dim > 0)
    head_dim = head_dim or (1 if latent else head_width(r, hidden, heads))
    layers = r.size("num_hidden_layers")
    positions = r.integer("max_position_embeddings", traits.positions)
    return {
        **common_fields(r, model_type, name), "hidden": hidden, "layers": layers, "heads": heads, "kv_heads": kv_heads,
        "head_dim": head_dim, "vocab": r.size("vocab_size"), "intermediate": _intermediate(r, traits), "gated": True,
        "max_positions": positions, "scaled_positions": scaled_positions(r.data, model_type, positions),
        "activation": r.word(traits.activation_key, traits.activation), "rotary_dim": _rotary(r, traits, head_dim),
        "tie_embeddings": r.flag("tie_word_embeddings", traits.tie), "windows": _windows(r, traits, layers),
        "attention_dropout": r.number("attention_dropout", 0.0),
    }  # fmt: skip


def _intermediate(r: Reader, traits: Traits) -> int:
    """Width of the feed-forward; where layers have each their own, no key says it."""
    return r.integer("intermediate_size", traits.intermediate) if traits.intermediate else 1


def _rotary(r: Reader, traits: Traits, head_dim: int) -> int:
    """Width of the part of a head that is rotated; 0 where it is all of it."""
    said = r.data.get("rope_parameters")
    data = said if isinstance(said, dict) and "partial_rotary_factor" in said else r.data
    share = Reader(data, r.where).number("partial_rotary_factor", traits.rotary, note=False)
    return int(head_dim * share) if share < 1.0 or traits.fields.get("merged_qkv") else 0


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


def _windows(r: Reader, traits: Traits, layers: int) -> tuple[int, ...]:
    """Sliding window of every layer: by "layer_types" where the file has them, else by the class's rule."""
    if not traits.windows or (traits.switch and not r.flag(traits.switch, False)):
        return ()
    window = r.optional("sliding_window", traits.window, note=True)
    if not window:
        return ()
    types = r.data.get("layer_types")
    if isinstance(types, list):
        if len(types) != layers:
            raise SpecError(f"{r.where}: 'layer_types' has {len(types)} entries, expected {layers}")
        return tuple(window if kind == "sliding_attention" else 0 for kind in types)
    rule = traits.windows.removeprefix("types ")
    if rule == "even":
        return tuple(0 if i % 2 else window for i in range(layers))
    if rule == "5 of 6":
        every = r.integer("sliding_window_pattern", 6)
        return tuple(window if (i + 1) % every else 0 for i in range(layers))
    if rule == "late":
        first = r.integer("max_window_layers", 28, at_least=0)
        return tuple(window if i >= first else 0 for i in range(layers))
    return (window,) * layers
