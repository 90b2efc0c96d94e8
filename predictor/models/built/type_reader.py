"""Reads a config.json by the row of its model_type: its keys, and the defaults of its Hugging Face configuration class.

The defaults are those of transformers 5; a test holds them against the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from predictor.errors import SpecError, UnsupportedError
from predictor.files.records import replace
from predictor.models.built.config import ModelConfig
from predictor.models.built.keys import Read
from predictor.models.built.model_types import TRAITS, Traits
from predictor.models.built.reader import DEFAULT_ARCHITECTURE, HEADS, Reader, common_fields, head_width

#: Keys of all types; a type may have another in its place. Source: the configuration classes of transformers 5.
_KEYS: Mapping[str, tuple[str, Any]] = {"attention_dropout": ("attention_dropout", 0.0)}


def read(traits: Traits, model_type: str, data: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    """The model of a config.json; of one with a "text_config" its language model alone."""
    inner = data.get("text_config")
    assumed = []
    if isinstance(inner, dict):
        outer = {key: data[key] for key in ("tie_word_embeddings",) if key in data and key not in inner}
        seen = data.seen if isinstance(data, Read) else set()
        data = Read({**outer, **inner, "architectures": [traits.architecture]}, seen)
        assumed = ["vision_config=left out"]
    r = Reader(data, where, traits.names)
    r.assumed.extend(assumed)
    fields = _base(r, traits, model_type, name)
    fields |= traits.fields
    for field, (key, default) in {**_KEYS, **traits.keys}.items():
        fields[field] = _value(r, key, default)
    if model_type in _DERIVED:
        fields |= _DERIVED[model_type](r, fields)
    if fields.get("position") == "learned":
        fields["position_rows"] = fields["max_positions"] + fields.get("position_rows", 0)
    if fields.get("kv_lora_rank"):
        fields["kv_heads"], fields["head_dim"] = fields["heads"], fields["qk_nope_dim"] + fields["qk_rope_dim"]
    if not fields.get("experts"):
        fields |= {"experts": 0, "top_k": 0}
    config = ModelConfig(**fields)
    if traits.layers:
        from predictor.models.built.layer_rules import RULES  # models whose layers are alike start without it

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
    if isinstance(default, list):
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
    head_dim = 0 if latent else r.optional("head_dim", traits.head_dim, note=traits.head_dim > 0)
    head_dim = head_dim or (1 if latent else head_width(r, hidden, heads))
    layers = r.size("num_hidden_layers")
    positions = r.integer("max_position_embeddings", traits.positions)
    return {
        **common_fields(r, model_type, name), "hidden": hidden, "layers": layers, "heads": heads, "kv_heads": kv_heads,
        "head_dim": head_dim, "vocab": r.size("vocab_size"), "gated": True,
        "intermediate": _intermediate(r, traits, hidden), "max_positions": positions,
        "scaled_positions": scaled_positions(r.data, model_type, positions),
        "activation": r.word("hidden_act", traits.activation), "rotary_dim": _rotary(r, traits, head_dim),
        "tie_embeddings": r.flag("tie_word_embeddings", traits.tie), "windows": _windows(r, traits, layers),
    }  # fmt: skip


def _intermediate(r: Reader, traits: Traits, hidden: int) -> int:
    """Width of the feed-forward; where layers have each their own, no key says it."""
    if traits.expansion:
        return r.optional("intermediate_size") or r.integer("expansion_ratio", traits.expansion) * hidden
    return r.integer("intermediate_size", traits.intermediate) if traits.intermediate else 1


def _rotary(r: Reader, traits: Traits, head_dim: int) -> int:
    """Width of the part of a head that is rotated; 0 where it is all of it, or none of it."""
    if "position" in traits.fields:
        return 0
    said = r.data.get("rope_parameters")
    data = said if isinstance(said, dict) and "partial_rotary_factor" in said else r.data
    share = Reader(data, r.where).number("partial_rotary_factor", traits.rotary, note=False)
    if int(head_dim * share) == 0:
        raise SpecError(f"{r.where}: 'partial_rotary_factor' is {share!r}, which turns nothing of a head of {head_dim}")
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
    if traits.windows == "even":
        return tuple(0 if i % 2 else window for i in range(layers))
    if traits.windows == "5 of 6":
        every = r.integer("sliding_window_pattern", 6)
        return tuple(window if (i + 1) % every else 0 for i in range(layers))
    if traits.windows == "late":
        first = r.integer("max_window_layers", 28, at_least=0)
        return tuple(window if i >= first else 0 for i in range(layers))
    return (window,) * layers


def _opt(r: Reader, fields: Mapping[str, Any]) -> dict[str, Any]:
    width = r.optional("word_embed_proj_dim", fields["hidden"], note=True)
    last = fields["pre_norm"] and not r.flag("_remove_final_layer_norm", False, note=False)
    return {"embed_width": 0 if width in (0, fields["hidden"]) else width, "final_norm": last}


def _mpt(r: Reader, fields: Mapping[str, Any]) -> dict[str, Any]:
    """llm-foundry writes MPTForCausalLM (biases, learned positions); transformers MptForCausalLM has neither."""
    attention = Reader(r.mapping("attn_config"), f"{r.where} attn_config")
    foundry = str(fields["architecture"]).startswith("MPT")
    bias = foundry and not r.flag("no_bias", False)
    alibi = not foundry or attention.flag("alibi", False)
    learned = not alibi and r.flag("learned_pos_emb", True)
    return {
        **dict.fromkeys(("norm_bias", "qkv_bias", "out_bias", "mlp_bias"), bias),
        "kv_heads": attention.optional("kv_n_heads") or fields["heads"],
        "position": "alibi" if alibi else "learned" if learned else "none",
        "attention_dropout": attention.number("attn_pdrop", 0.0),
    }


def _t5(r: Reader, fields: Mapping[str, Any]) -> dict[str, Any]:
    projection = r.word("feed_forward_proj", "relu")
    activation = "gelu_new" if projection == "gated-gelu" else projection.removeprefix("gated-")
    return {**_encoder(r, fields), "gated": projection.startswith("gated-"), "activation": activation}


def _switch(r: Reader, fields: Mapping[str, Any]) -> dict[str, Any]:
    """SwitchTransformersConfig derives the steps from the counts of sparse layers, whatever the file says of them."""
    stacks = _encoder(r, fields)
    sparse_encoder = r.integer("num_sparse_encoder_layers", 3, at_least=0)
    sparse_decoder = r.integer("num_sparse_decoder_layers", 3, at_least=0)
    return {
        **stacks,
        "moe_intermediate": fields["intermediate"],
        "encoder_sparse_step": stacks["encoder_layers"] // max(sparse_encoder, 1),
        "sparse_step": stacks["layers"] // max(sparse_decoder, 1),
        "padded_experts": "padded" in str(r.data.get("_note", "")),
    }


def _encoder(r: Reader, fields: Mapping[str, Any]) -> dict[str, int]:
    """Layers of both stacks. UnsupportedError for a class without a head on the decoder."""
    if fields["head"] != "lm":
        close = DEFAULT_ARCHITECTURE[fields["model_type"]]
        raise UnsupportedError(f"{r.where}: architecture {fields['architecture']!r} is not supported; nearest: {close}")
    return {"encoder_layers": fields["layers"], "layers": r.optional("num_decoder_layers") or fields["layers"]}


#: What no row of the table can say: fields that follow from several keys.
_DERIVED: Mapping[str, Callable[[Reader, Mapping[str, Any]], dict[str, Any]]] = {
    "opt": _opt, "mpt": _mpt, "t5": _t5, "switch_transformers": _switch,
}  # fmt: skip
#: (the dictionary of a config.json, the model's name, what names the file in an error) -> its ModelConfig.
Family = Callable[[Mapping[str, Any], str, str], ModelConfig]
FAMILIES: dict[str, Family] = {kind: partial(read, traits, kind) for kind, traits in TRAITS.items()}
#: What the text of a multimodal config.json calls itself, and files that have a whole config inside.
FAMILIES |= {
    f"{kind}_text": FAMILIES[kind] for kind in ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "llama4")
}
FAMILIES["gemma3"] = FAMILIES["gemma3_text"]


def register_family(model_type: str, read: Family, architecture: str) -> None:
    """Adds a ``model_type`` from outside the package, whose config.json ``read`` makes a ModelConfig of.

    ``architecture`` is the class that a file without ``architectures`` is of ("LlamaForCausalLM"): its end says which
    head the model has. ValueError where the model type is taken, or no head is known for the class.
    """
    if model_type in FAMILIES:
        raise ValueError(f"a reader of model_type {model_type!r} exists")
    if not architecture.endswith(tuple(HEADS)):
        raise ValueError(f"architecture {architecture!r}: expected a name that ends with one of {', '.join(HEADS)}")
    FAMILIES[model_type] = read
    DEFAULT_ARCHITECTURE[model_type] = architecture
