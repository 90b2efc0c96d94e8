"""A config.json of a model_type that nobody knows -> the nearest decoder that its keys describe.

New checkpoints often come with a type of their own whose layers are those of a known one. Keys of a plain decoder are
enough: width, layers, heads and vocabulary, with experts, shared experts, latent attention, an indexer, windows, gated
delta nets, Kimi delta, Lightning or Mamba2 layers where their keys are there. A key that changes the graph and is not
read is an error, every other one that is not read is named in the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from predictor.errors import SpecError, UnsupportedError, printable
from predictor.files.records import replace
from predictor.models.built.config import ModelConfig
from predictor.models.built.keys import ANY, SHOWN, Read, known_keys, quantization_of
from predictor.models.built.load import ACTIVATIONS, check, check_raw
from predictor.models.built.model_types import TRAITS, Traits
from predictor.models.built.reader import DEFAULT_ARCHITECTURE, HEADS
from predictor.models.built.type_reader import FAMILIES, read

#: Where a config of several models has that of its language model.
TEXTS = ("thinker_config", "text_config", "llm_config", "language_config", "language_model_config")
#: What an answer says of a model of which only that is forecast.
LANGUAGE_ALONE = "{} is forecast from its language model: images and sound, and what reads them, are left out."
#: Key as it is read here -> what other classes call it. Source: configuration classes of transformers 5, and those of
#: Megatron-LM, ChatGLM, Step, Ernie, LongCat and Hunyuan in their checkpoints' repositories.
_ALSO: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model", "dim", "model_dim", "hidden_dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("n_kv_heads", "num_kv_heads", "kv_n_heads", "n_kv_head", "num_query_groups",
                            "multi_query_group_num", "num_attention_groups"),
    "intermediate_size": ("ffn_hidden_size", "n_inner", "ffn_dim", "d_ff", "ffn_intermediate_size"),
    "vocab_size": ("padded_vocab_size", "n_vocab"),
    "head_dim": ("kv_channels", "attention_head_dim"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length", "n_ctx", "max_sequence_length"),
    "hidden_act": ("hidden_activation", "activation_function", "hidden_activation_function"),
    "n_routed_experts": ("num_experts", "num_local_experts", "moe_num_experts", "num_routed_experts", "n_experts"),
    "num_experts_per_tok": ("moe_topk", "moe_top_k", "moe_k", "num_experts_per_token", "moe_router_topk",
                            "experts_per_token", "num_selected_experts", "n_activated_experts"),
    "moe_intermediate_size": ("expert_ffn_hidden_size", "moe_ffn_hidden_size", "expert_intermediate_size",
                              "moe_inter_dim"),
    "n_shared_experts": ("num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "shared_expert_intermediate_size": ("moe_shared_expert_intermediate_size", "share_expert_dim"),
    "first_k_dense_replace": ("num_dense_layers", "n_dense_layers", "first_num_dense_layers"),
    "qk_norm": ("use_qk_norm", "qk_layernorm", "use_qk_layernorm", "use_qk_layer_norm"),
    "qkv_bias": ("use_qkv_bias", "add_qkv_bias"),
    "attention_bias": ("use_bias", "add_bias_linear"),
    "attn_output_gate": ("use_output_gate", "attention_output_gate", "use_attn_gate", "use_attention_gate"),
}  # fmt: skip
#: The same of Mamba2 layers. Source: configuration_bamba.py, configuration_granitemoehybrid.py of transformers 5.
_ALSO_SCAN: Mapping[str, tuple[str, ...]] = {
    "mamba_num_heads": ("mamba_n_heads",), "mamba_head_dim": ("mamba_d_head",),
    "ssm_state_size": ("mamba_d_state", "mamba_state_dim"), "n_groups": ("mamba_n_groups",),
    "conv_kernel": ("mamba_d_conv",),
}  # fmt: skip
#: Kinds of layers in lists -> letters of Nemotron-H's pattern (`predictor.models.built.layer_rules.nemotron_h`).
#: Source: those of Bamba, Granite 4 and Nemotron-H, configuration_TYPE.py of transformers 5.
_LETTERS = {
    "mamba": "M", "mamba2": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E",
}  # fmt: skip
#: Keys that hold a part of a decoder's keys. Source: configuration_dbrx.py, configuration_mpt.py of transformers 5.
_INSIDE = ("attn_config", "attention_config", "ffn_config", "mlp_config", "moe_config", "expert_config")
#: Sizes without which nothing can be said.
_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
#: Words of keys that say what layers run; one with a value that is not read is an error. Source: the classes of
#: transformers 5 whose layers are not those of a plain decoder, and of flash-linear-attention ("attn_mode": RWKV 7,
#: RetNet, HGRN and its other models).
_GRAPH = re.compile(
    r"mamba|ssm|(?:^|_)conv|rwkv|xlstm|lightning|linear_|delta|(?:^|_)kda|(?:^|_)gla(?:_|$)|recurr|(?:^|_)loops?(?:_|$)"
    r"|^attn_mode$|decay_low_rank|(?:^|_)hc_|mhc|hyper_conn|engram|altup|laurel|per_layer|sparse_(?:att|block)|(?:^|_)nsa|compress|index_|indexer"
    r"|cross_att|encoder|decoder_layers|diffusion|codebook|block_(?:types|configs)|layers_block_type|hybrid|zero_expert"
    r"|attn_(?:output_)?gate|attention_gate|kv_shar|shared_kv|yoco|latent|retention|altern|hash_layers"
)
#: Of those, keys that say nothing of the graph.
_QUIET = re.compile(r"token_id|dropout|norm_eps|head_wise|is_encoder_decoder|is_decoder|_init|initializer")
#: Keys that say which layers have no experts (`_dense_layers`).
_DENSE = {
    "mlp_layer_types", "moe_layer_freq", "moe_layers_enum", "decoder_sparse_step", "moe_layer_interval",
    "interleave_moe_layer_step", "mlp_only_layers", "dense_layers",
}  # fmt: skip
#: Kinds of attention of "layer_types" that a plain decoder has.
_ATTENTION = (
    "full_attention", "sliding_attention", "attention", "global_attention", "local_attention", "chunked_attention",
)  # fmt: skip
#: Keys of latent attention, of an indexer, of gated delta nets and of Mamba2 layers.
_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_INDEXER = ("index_topk", "index_n_heads", "index_head_dim")
_DELTA = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
#: Keys that say which layers are linear attention (`predictor.models.built.layer_rules.mixed`) -> of which kind. The
#: scales beside them change no kernel.
_MIXED = {"linear_attn_config": "Kimi delta attention", "attn_type_list": "Lightning attention",
          "layer_group_size": "Lightning attention"}  # fmt: skip
_SCALES = re.compile(r"^(?:linear_silu|group_norm_size|layernorm_\w+_(?:alpha|beta))$")
_SCAN = ("hybrid_override_pattern", "mamba_num_heads", "mamba_head_dim", "ssm_state_size")

#: A plain decoder: Llama's layers by definition, with what the keys say of norms, biases, windows and experts.
_PLAIN = Traits(
    architecture="LlamaForCausalLM", positions=2**20, intermediate=1, windows="all",
    keys={
        "qk_norm": ("qk_norm?", False), "attention_gate": ("attn_output_gate?", False),
        "mlp_bias": ("mlp_bias?", False), "dense_layers": ("dense_layers", []),
        "experts": ("n_routed_experts?", 0), "top_k": ("num_experts_per_tok?", 0),
        "moe_intermediate": ("moe_intermediate_size?", 0), "shared_experts": ("n_shared_experts?", 0),
        "shared_width": ("shared_expert_intermediate_size?", 0), "first_dense": ("first_k_dense_replace?", 0),
        "expert_groups": ("n_group?", 0), "top_groups": ("topk_group?", 0),
    },
)  # fmt: skip


def stand_in(data: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    """The nearest decoder of a config.json whose model_type nobody knows; its ``notes`` say what was assumed.

    Raises UnsupportedError, the end of a line that says that nobody knows the type, where keys change the graph and are
    not read, and SpecError, a whole line, for a size that is none.
    """
    said = printable(str(data.get("model_type", "")))[:80]
    whole, data = data, text_of(data)
    known = _known_type(data)
    if known:
        config = _read(known, {**data, "model_type": known}, name, where, said)
        what = f"its keys are read as those of {known}"
    else:
        config, what = _nearest(data, name, f"{where} ({said})", said)
    lines = [f"Nobody knows model_type '{said}': {what}."]
    if data is not whole:
        lines.append(LANGUAGE_ALONE.format(name))
    from predictor.models.built.vision import tower_of  # a known type starts without it

    config = replace(config, notes=(*lines, *config.notes), tower=tower_of(whole))
    quantized = whole if quantization_of(whole) is not None else data
    if quantization_of(quantized) is None:
        return config
    from predictor.models.built.checkpoint import read_checkpoint  # a checkpoint in 16 bit starts without it

    return replace(config, checkpoint=read_checkpoint(quantized, config, where))


def text_of(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config.json that says its language model: itself where it has none inside."""
    for key in TEXTS:
        if isinstance(data.get(key), Mapping):
            outer = {key: data[key] for key in ("tie_word_embeddings",) if key in data}
            return text_of({**outer, **data[key]})
    return data


def _known_type(data: Mapping[str, Any]) -> str:
    """The type of the language model inside, or of the class that "architectures" names; "" where neither is known."""
    listed = data.get("architectures")
    named = str(listed[0]) if isinstance(listed, list) and listed else ""
    of_class = {architecture: kind for kind, architecture in reversed(DEFAULT_ARCHITECTURE.items())}
    kind = str(data.get("model_type"))
    return kind if kind in FAMILIES else of_class.get(named, "")


def _nearest(data: Mapping[str, Any], name: str, where: str, said: str) -> tuple[ModelConfig, str]:
    """A config of the type whose keys there are, and what that is in words."""
    data = _one_level(data)
    if all(key in data for key in _DELTA):
        kind = "qwen3_next" if _value_of(data, "n_routed_experts") else "qwen3_5_text"
        return _read(kind, data, name, where, said), f"its keys are read as those of {kind} (gated delta nets)"
    scanned = _scanned(data)
    if scanned is not None:
        traits = replace(TRAITS["nemotron_h"], fields={**TRAITS["nemotron_h"].fields, "gated": True})
        config = _read("nemotron_h", scanned, name, where, said, traits)
        return config, "its layers are read as Mamba2, attention and gated feed-forwards in its list's order"
    if all(key in data for key in _SCAN):
        return _read("nemotron_h", data, name, where, said), "its keys are read as those of nemotron_h (Mamba2 layers)"
    linear = next((f" and {said}" for key, said in _MIXED.items() if data.get(key)), "")
    data = _plain_keys({key: value for key, value in data.items() if not linear or not _SCALES.search(key)}, where)
    rule = "mixed" if linear else ""
    if all(data.get(key) for key in _LATENT):
        kind = "deepseek_v32" if all(data.get(key) for key in _INDEXER) else "deepseek_v3"
        if not data.get("n_routed_experts"):
            layers = {"first_k_dense_replace": data["num_hidden_layers"], "n_group": 1, "topk_group": 1}
            dense = {"n_routed_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 1, "n_shared_experts": 0}
            data = {**data, **dense, **layers}
        data = {"q_lora_rank": None, "n_shared_experts": 0, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1,
                **data}  # fmt: skip
        keys = {**TRAITS[kind].keys, "dense_layers": ("dense_layers", [])}
        fields = {**TRAITS[kind].fields, **({"position": "none"} if data.get("mla_use_nope") else {})}
        traits = replace(TRAITS[kind], keys=keys, fields=fields, layers=rule)
        config = _read(kind, data, name, where, said, traits)
        return config, f"its keys are read as those of {kind} (latent attention{linear})"
    config = _read("llama", data, name, where, said, replace(_PLAIN, layers=rule))
    shared = config.experts and (config.shared_experts or config.shared_width)
    parts = [
        f"{config.experts} experts" * bool(config.experts), "shared experts" * bool(shared),
        "norms of queries and keys" * config.qk_norm, "windows" * bool(config.windows),
    ]  # fmt: skip
    beside = ", ".join(part for part in parts if part)
    return config, "it is forecast as a plain decoder, Llama's layers" + f" with {beside}" * bool(beside) + linear


def _one_level(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """``data`` with the keys of its parts beside its own, sizes that are the same in all layers as one number, and
    windows that a list gives as kinds of layers. UnsupportedError for sizes that layers have of their own."""
    flat = dict(data)
    for part in _INSIDE:
        inner = flat.pop(part, None)
        if not isinstance(inner, Mapping):
            continue
        if _value_of(inner, "n_routed_experts"):
            inner = {"moe_intermediate_size": _value_of(inner, "intermediate_size"), **inner}
        flat = {**inner, **flat}
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size", "head_dim"):
        for name in (key, *_ALSO.get(key, ())):
            value = flat.get(name)
            if isinstance(value, list) and value:
                if any(each != value[0] for each in value):
                    raise UnsupportedError(f"{name!r} differs between its layers")
                flat[name] = value[0]
    windows = flat.get("sliding_window")
    if isinstance(windows, list):
        sizes = {each for each in windows if isinstance(each, int) and each > 0}
        if len(sizes) > 1:
            raise UnsupportedError("'sliding_window' has several sizes")
        flat["layer_types"] = ["sliding_attention" if each in sizes else "full_attention" for each in windows]
        flat["sliding_window"] = next(iter(sizes), None)
    return flat


def _scanned(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """``data`` with Nemotron-H's keys, of a decoder whose list says which layers are Mamba2; None for any other.

    A list without feed-forwards has one in each layer, of experts where there are some.
    """
    known = next((data[k] for k in ("layers_block_type", "layer_types", "block_types") if data.get(k)), None)
    letters = [_LETTERS.get(str(kind), "") for kind in known] if isinstance(known, list) else []
    if "M" not in letters or not all(letters):
        return None
    named = {key: next((data[n] for n in (key, *also) if data.get(n) is not None), None)
             for key, also in _ALSO_SCAN.items()}  # fmt: skip
    if not all(named[key] for key in ("mamba_num_heads", "mamba_head_dim", "ssm_state_size")):
        return None
    plain = {key: _value_of(data, key) for key in _ALSO}
    if not {"-", "E"} & set(letters):
        letters = [letter + ("E" if plain["n_routed_experts"] else "-") for letter in letters]
    pattern = "".join(letters)
    shared, width = plain["n_shared_experts"], plain["moe_intermediate_size"]
    if isinstance(shared, int) and isinstance(width, int) and shared and not plain["shared_expert_intermediate_size"]:
        plain["shared_expert_intermediate_size"] = shared * width
    plain["moe_shared_expert_intermediate_size"] = plain.pop("shared_expert_intermediate_size")
    act = str(plain.pop("hidden_act") or "silu")
    gone = ("layers_block_type", "layer_types", "block_types", *(n for also in _ALSO_SCAN.values() for n in also))
    return {
        **{key: value for key, value in data.items() if key not in gone},
        **{key: value for key, value in (plain | named).items() if value is not None},
        "mlp_hidden_act": act if act in ACTIVATIONS else "silu",
        "hybrid_override_pattern": pattern,
        "num_hidden_layers": len(pattern),
    }


def _read(
    kind: str, data: Mapping[str, Any], name: str, where: str, said: str, traits: Traits | None = None
) -> ModelConfig:
    """``data`` as a known type reads it. UnsupportedError for a key that changes the graph and is not read."""
    seen: set[str] = set()
    check_raw(data, where)
    looked = Read({**data, "architectures": [_head(data, kind)]}, seen)
    config = FAMILIES[kind](looked, name, where) if traits is None else read(traits, kind, looked, name, where)
    check(config, where)
    known = seen | ANY | known_keys(kind) | _DENSE | {also for names in _ALSO.values() for also in names}
    unread = [key for key in data if key not in known and not key.startswith("_")]
    changing = [key for key in unread if _GRAPH.search(key) and not _QUIET.search(key) and data[key]]
    if changing:
        shown = ", ".join(printable(key)[:60] for key in changing[:SHOWN])
        raise UnsupportedError(f"these keys change what its layers run: {shown}")
    shown = ", ".join(printable(key)[:60] for key in unread[:SHOWN]) + f" and {len(unread) - SHOWN} more" * (
        len(unread) > SHOWN
    )
    return replace(config, notes=(f"These keys of the config are not read: {shown}.",) if unread else ())


def _head(data: Mapping[str, Any], kind: str) -> str:
    """The class of ``kind`` with the head that the file's class has."""
    listed = data.get("architectures")
    named = str(listed[0]) if isinstance(listed, list) and listed else ""
    end = next((end for end, head in HEADS.items() if head in ("base", "classifier") and named.endswith(end)), "")
    names = (kind, kind.removesuffix("_text"), f"{kind}_text")
    whole = next(DEFAULT_ARCHITECTURE[name] for name in names if name in DEFAULT_ARCHITECTURE)
    stem = next(whole.removesuffix(suffix) for suffix in HEADS if whole.endswith(suffix))
    return stem + end if end else whole


def _value_of(data: Mapping[str, Any], key: str) -> Any:
    return next((data[name] for name in (key, *_ALSO.get(key, ())) if data.get(name) is not None), None)


def _plain_keys(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``data`` with the keys that are read here in place of other names of them, and layers without experts listed."""
    plain = dict(data)
    for key in _ALSO:
        value = _value_of(data, key)
        if value is not None:
            plain[key] = value
    missing = [key for key in _NEEDED if plain.get(key) is None]
    if missing:
        raise UnsupportedError(f"a plain decoder needs {', '.join(missing)}, too")
    if plain.get("n_routed_experts"):
        plain.setdefault("moe_intermediate_size", plain.get("intermediate_size"))
        if plain.get("intermediate_size") is None:
            plain["intermediate_size"] = plain["moe_intermediate_size"]
        plain["dense_layers"] = _dense_layers(plain)
    for key in ("intermediate_size", *(("num_experts_per_tok",) if plain.get("n_routed_experts") else ())):
        if plain.get(key) is None:
            raise SpecError(f"{where}: missing {key!r}, expected a positive integer")
    act = str(plain.get("hidden_act", "silu"))
    plain["hidden_act"] = act if act in ACTIVATIONS else "gelu" if "gelu" in act or "geglu" in act else "silu"
    if plain.pop("use_sliding_window", True) is False:
        plain["sliding_window"] = None
    types = plain.get("layer_types")
    if isinstance(types, list):
        strange = sorted({str(kind) for kind in types} - set(_ATTENTION))
        if strange:
            raise UnsupportedError(
                f"'layer_types' has {printable(', '.join(strange))[:80]}; a plain decoder has {_ATTENTION[0]} and"
                f" {_ATTENTION[1]}"
            )
        near = dict.fromkeys(("local_attention", "chunked_attention"), "sliding_attention")
        plain.setdefault("sliding_window", plain.get("attention_chunk_size"))
        plain["layer_types"] = [near.get(str(kind), str(kind)) for kind in types]
    return plain


def _dense_layers(data: Mapping[str, Any]) -> list[int]:
    """Layers without experts, as the keys of several types say them; none for a model that says nothing."""
    layers = data["num_hidden_layers"]
    count = range(layers if isinstance(layers, int) and 0 < layers < 10_000 else 0)
    types, every, listed = data.get("mlp_layer_types"), data.get("moe_layer_freq"), data.get("moe_layers_enum")
    if isinstance(types, list):
        return [layer for layer, kind in enumerate(types) if kind == "dense"]
    if isinstance(every, list):
        return [layer for layer, sparse in enumerate(every) if not sparse]
    if isinstance(every, int) and every > 1:
        return [layer for layer in count if layer % every]
    if isinstance(listed, str) and re.fullmatch(r"[\d, ]+", listed):
        sparse = {int(number) for number in re.findall(r"\d+", listed)}
        return [layer for layer in count if layer not in sparse]
    step = data.get("decoder_sparse_step", data.get("moe_layer_interval", data.get("interleave_moe_layer_step")))
    alone = set(data.get("mlp_only_layers") or ())
    if isinstance(step, int) and step > 1:
        alone |= {layer for layer in count if (layer + 1) % step}
    return sorted(alone)
