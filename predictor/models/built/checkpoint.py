"""What a quantized checkpoint says of its numbers: a `quantization_config`, or ModelOpt's hf_quant_config.json.

Each scheme becomes a word of `--dtype`; lists of modules that stay as they were become parts of the model. Formats as
transformers (`quantization_config`), compressed-tensors and NVIDIA ModelOpt (`quantization`) write them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fnmatch import translate
from typing import Any

from predictor.errors import RequestError, SpecError, UnsupportedError, nearest
from predictor.files.patterns import Pattern
from predictor.files.records import dataclass
from predictor.formats.parts import Checkpoint
from predictor.formats.quantization import STATIC
from predictor.models.built.config import ModelConfig

#: Schemes of NVIDIA ModelOpt (`quant_algo`) -> words of --dtype.
_MODELOPT = {
    "FP8": STATIC, "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "FP8_BLOCK_SCALES": "fp8_block", "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4", "NVFP4_AWQ": "nvfp4", "W4A16_NVFP4": "nvfp4_wo", "MXFP8": "mxfp8", "W4A8_MXFP4_FP8": "",
    "INT8_SQ": "int8", "W8A8_SQ_PER_CHANNEL": "int8", "W8A16": "int8_wo", "W4A16": "int4_wo", "W4A16_AWQ": "int4_wo",
    "INT4_AWQ": "int4_wo",
}  # fmt: skip
#: Keys that list modules which stay as they were.
_KEPT = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")
#: Patterns of modules with words of their own.
Single = tuple[tuple[str, str], ...]
#: Weights of a group (-1: a whole row) -> word, by definition of the words.
_GROUPS = {128: "int4_wo", -1: "int4_wo", 64: "int4_wo_g64", 32: "int4_wo_g32"}
#: Methods of a `quantization_config` that have a word.
KNOWN = ("fp8", "fbgemm_fp8", "gptq", "awq", "mxfp4", "modelopt", "compressed-tensors")

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
_LAYERS = {
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
}
#: Types whose shared experts are one module of another name.
_ONE_SHARED = ("qwen2_moe", "qwen3_next", "qwen3_5_moe")


def read_checkpoint(data: Mapping[str, Any], config: ModelConfig, where: str) -> Checkpoint | None:
    """What the dictionary of a config.json says of its numbers; None for a checkpoint in 16 bit or more.

    Raises SpecError where the value is not an object. An unknown scheme goes into the checkpoint's ``trouble`` (one
    line, which lists the known ones): only a run in the checkpoint's own format raises it.
    """
    rules = rules_of(data, where)
    return rules if rules is None or isinstance(rules, Checkpoint) else _by_part(rules, config)


def rules_of(data: Mapping[str, Any], where: str) -> Rules | Checkpoint | None:
    """The rules of a config.json; None where it has none, and a checkpoint with its ``trouble`` if they are unknown."""
    inner = data.get("text_config")
    keys = ("quantization_config", "compression_config", "quantization")
    within = (data, inner if isinstance(inner, Mapping) else {})
    said = next(((key, mapping[key]) for mapping in within for key in keys if mapping.get(key) is not None), None)
    if said is None:
        return None
    if not isinstance(said[1], Mapping):
        raise SpecError(f"{where}: {said[0]!r} is {said[1]!r}, expected an object or null")
    try:
        return Rules.read(said[1], f"{where}: {said[0]}")
    except UnsupportedError as error:
        return Checkpoint("", method="unknown", trouble=str(error))


class _Patterns:
    """Names of modules as checkpoints list them: "re:" starts a regular expression that matches from the start, "*"
    stands for anything. A plain name means that module and all inside it, at any depth ("gate" is not "gate_proj")."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: set[str] = set()
        self._patterns: list[Pattern | re.Pattern[str]] = []
        for raw in names:
            name = _plain_name(raw)
            if name.startswith("re:"):
                self._patterns.append(Pattern(name[3:]))
            elif "*" in name:
                # What `translate` makes gives nothing back (Python 3.11 on), so `re` is linear in it, too.
                self._patterns += [re.compile(translate(glob)) for glob in (name, f"{name}.*")]
            else:
                self._names.add(name)

    def match(self, name: str) -> bool:
        """Whether one of them means the module ``name``."""
        words = name.split(".")
        runs = (".".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1))
        return any(run in self._names for run in runs) or any(p.match(name) for p in self._patterns)


@dataclass(frozen=True, slots=True)
class Rules:
    """``word`` of all modules but the ``kept`` ones and those that have a word of their own (``single``)."""

    method: str
    word: str
    kept: _Patterns
    single: tuple[tuple[_Patterns, str], ...]
    head: bool
    kv: str

    @classmethod
    def read(cls, said: Mapping[str, Any], where: str) -> Rules | None:
        method = _method(said, where)
        if method == "none":
            return None
        single: Single = ()
        if method == "modelopt":
            word, single = _modelopt(said, where)
        elif method == "compressed-tensors":
            word, single = _compressed(said, where)
        elif method == "mxfp4":  # transformers quantizes the experts alone, whatever the list says
            word, single = "", (("re:.*[.]experts[.]", "mxfp4"),)
        else:
            word = _WORDS[method](said, where)
        kept = [name for key in _KEPT for name in _names(said, key, where)]
        _check_patterns([pattern for pattern, _ in single], where)
        named = tuple((_Patterns([pattern]), word_of) for pattern, word_of in single)
        return cls(method, word, _Patterns(kept), named, said.get("lm_head") is True, _kv(said))

    def of(self, name: str) -> str:
        """The word of the module ``name``, "" where it stays as it was."""
        if self.kept.match(name):
            return ""
        return next((word for patterns, word in self.single if patterns.match(name)), self.word)


def _method(said: Mapping[str, Any], where: str) -> str:
    """One of `KNOWN`, or "none"; ModelOpt and compressed-tensors are also told by their own keys."""
    method = said.get("quant_method")
    if method is None and "quant_algo" in said:
        method = "modelopt"
    if method is None and "config_groups" in said:
        method = "compressed-tensors"
    if isinstance(method, str) and method.lower().startswith("modelopt"):
        method = "modelopt"
    if method == "modelopt" and said.get("quant_algo") in (None, "") and "config_groups" not in said:
        return "none"
    if method not in KNOWN:
        raise _unknown(method, where)
    return str(method)


def _unknown(value: object, where: str, known: Iterable[str] = KNOWN) -> UnsupportedError:
    """The error for a scheme that no word of --dtype stands for."""
    close = nearest(str(value), known, 1)
    tail = f"; nearest: {close[0]}" if close else ""
    return UnsupportedError(f"{where}: {value!r} is no scheme that is known: expected one of {', '.join(known)}{tail}")


def _fp8(said: Mapping[str, Any], where: str) -> str:
    block = said.get("weight_block_size")
    if block is None:
        return STATIC if said.get("activation_scheme") == "static" else "fp8"
    if block != [128, 128]:
        raise _unknown(f"fp8 in blocks of {block}", where, ("fp8 in blocks of [128, 128]", "fp8"))
    return "fp8_block"


def _integers(said: Mapping[str, Any], where: str) -> str:
    """GPTQ and AWQ: 4 or 8 bits, one scale for a group of a column's weights (-1: the column)."""
    bits = said.get("bits", said.get("w_bit", 4))
    group = said.get("group_size", said.get("q_group_size", 128))
    if bits == 8 and not isinstance(bits, bool):
        return "int8_wo"
    if bits != 4 or isinstance(group, bool) or not isinstance(group, int) or group not in _GROUPS:
        known = ("4 bits in groups of 128", "of 64", "of 32", "8 bits")
        raise _unknown(f"{bits} bits in groups of {group}", where, known)
    return _GROUPS[group]


_WORDS: Mapping[str, Callable[[Mapping[str, Any], str], str]] = {
    "fp8": _fp8, "fbgemm_fp8": lambda said, where: "fp8", "gptq": _integers, "awq": _integers,
}  # fmt: skip


def _modelopt(said: Mapping[str, Any], where: str) -> tuple[str, Single]:
    """The word of `quant_algo`; MIXED_PRECISION names each module's in `quantized_layers`."""
    algo = said.get("quant_algo")
    layers = said.get("quantized_layers")
    if algo == "MIXED_PRECISION" and isinstance(layers, Mapping) and layers:
        single = tuple(
            (str(name), _algo(about.get("quant_algo") if isinstance(about, Mapping) else about, where))
            for name, about in layers.items()
        )
        return "", single
    if algo is None:
        return _compressed(said, where)
    return _algo(algo, where), ()


def _algo(algo: object, where: str) -> str:
    word = _MODELOPT.get(algo.upper(), "") if isinstance(algo, str) else ""
    if not word:
        raise _unknown(algo, f"{where}: quant_algo", [name for name, known in _MODELOPT.items() if known])
    return word


def _compressed(said: Mapping[str, Any], where: str) -> tuple[str, Single]:
    """Words of the groups of compressed-tensors: targets are classes ("Linear"), names or "re:" patterns."""
    groups = said.get("config_groups")
    if not isinstance(groups, Mapping) or not groups or not all(isinstance(g, Mapping) for g in groups.values()):
        raise SpecError(f"{where}: 'config_groups' is {groups!r}, expected an object of groups")
    word, single = "", []
    for group in groups.values():
        group_word = _group(group, where)
        targets = group.get("targets", ["Linear"])
        if not isinstance(targets, list):
            raise SpecError(f"{where}: 'targets' is {targets!r}, expected a list of names")
        for target in map(str, targets):
            if re.fullmatch(r"[A-Z]\w*", target):  # a class
                word = group_word
            else:
                single.append((target, group_word))
    return word, tuple(single)


def _group(group: Mapping[str, Any], where: str) -> str:
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, Mapping) or not (inputs is None or isinstance(inputs, Mapping)):
        raise SpecError(f"{where}: a group has weights {weights!r}, expected an object with num_bits and type")
    kind, bits, size = weights.get("type"), weights.get("num_bits"), weights.get("group_size")
    with_inputs = None if inputs is None else (inputs.get("type"), inputs.get("num_bits"))
    if kind == "float" and bits == 8 and weights.get("strategy") == "block":
        if weights.get("block_structure") not in (None, [128, 128]):
            raise _unknown(f"fp8 in blocks of {weights.get('block_structure')}", where, ("[128, 128]",))
        return "fp8_block"
    if (kind, bits, with_inputs) == ("int", 4, None):
        return _integers({"bits": 4, "group_size": 128 if size is None else size}, where)
    blocks = size if bits == 4 else None
    word = _GROUP_WORDS.get((kind, bits, blocks, with_inputs), "")
    if word == "fp8" and inputs is not None and inputs.get("dynamic") is False:
        return STATIC
    if not word:
        shown = f"{kind}{bits} weights" + (f" in groups of {size}" if size else "")
        shown += f" with {with_inputs[0]}{with_inputs[1]} activations" if with_inputs else ""
        raise _unknown(shown, where, ("int4", "int8", "float8", "nvfp4 (float4 by 16)", "mxfp4 (float4 by 32)"))
    return word


#: (type, bits, group of 4-bit weights, (type, bits) of the activations) -> word, by definition of the
#: formats.
_GROUP_WORDS: Mapping[tuple[Any, Any, Any, Any], str] = {
    ("float", 8, None, ("float", 8)): "fp8", ("float", 8, None, None): "fp8_wo", ("int", 8, None, None): "int8_wo",
    ("int", 8, None, ("int", 8)): "int8", ("float", 4, 16, ("float", 4)): "nvfp4", ("float", 4, 16, None): "nvfp4_wo",
    ("float", 4, 32, None): "mxfp4",
}  # fmt: skip


def _kv(said: Mapping[str, Any]) -> str:
    """What the checkpoint's scales of keys and values are for: "fp8" or "", and what else it says in its own words."""
    scheme = said.get("kv_cache_quant_algo") or said.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        scheme = f"{'fp' if scheme.get('type') == 'float' else scheme.get('type')}{scheme.get('num_bits')}"
    return str(scheme).lower() if scheme else ""


# -------------------------------------------------------------------------------------------- modules of a part


def _names(said: Mapping[str, Any], key: str, where: str) -> list[str]:
    """A list of names of modules, empty where there is none."""
    names = said.get(key)
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SpecError(f"{where}: {key!r} is {str(names)[:80]}, expected a list of names of modules")
    _check_patterns(names, f"{where}: {key!r}")
    return names


def _check_patterns(names: Iterable[str], where: str) -> None:
    """SpecError for an invalid regular expression, UnsupportedError for one that `Pattern` does not read."""
    for name in names:
        if name.startswith("re:"):
            try:
                Pattern(name[3:])
            except RequestError as error:
                raise type(error)(f"{where}: {error}") from None


def _plain_name(name: str) -> str:
    """A name without the tower that a multimodal model has its language model in."""
    return name.replace("model.language_model.", "model.").replace("language_model.", "", 1)


def _modules(part: str, config: ModelConfig) -> tuple[str, ...]:
    """Names of a part's modules below a layer, as the class calls them."""
    if part == "attention.q_b" and not config.q_lora_rank:
        return ("self_attn.q_proj",)
    if part in (mixer := _MIXERS.get(config.mixer, {})):
        return mixer[part]
    if part == "shared_experts" and config.model_type in _ONE_SHARED:
        return tuple(f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down"))
    return _OTHERS.get(config.model_type, {}).get(part, MODULES[part])


def _parts(config: ModelConfig, sparse: bool) -> tuple[str, ...]:
    """The parts that a layer has."""
    latent = ("attention.q_b", "attention.kv_a", "attention.kv_b")
    attention = (*latent, *(("attention.q_a",) if config.q_lora_rank else ())) if config.is_mla else ("attention.qkv",)
    mixing = (*attention, "attention.out") if config.mixer != "none" else ()
    shared = ("shared_experts",) if config.shared_intermediate else ()
    inside = ("experts", *shared) if sparse else ("mlp.up", "mlp.down")
    return (*mixing, *(inside if config.feed else ()))


def _by_part(rules: Rules, config: ModelConfig) -> Checkpoint:
    """The words of every part: those of most layers, and the layers that differ.

    An engine runs the modules of a part as one product; where their words differ, the part counts as unquantized.
    """
    prefix = _LAYERS.get(config.model_type, "model.layers")
    layers = [
        {
            part: _common([rules.of(f"{prefix}.{i}.{name}") for name in _modules(part, config.at(i))])
            for part in _parts(config.at(i), config.is_sparse(i))
        }
        for i in range(config.layers)
    ]
    votes: dict[str, Counter[str]] = {}
    for layer in layers:
        for part, word in layer.items():
            votes.setdefault(part, Counter())[word] += 1
    usual = {part: counts.most_common(1)[0][0] for part, counts in votes.items()}
    used = [word for part in ("experts", "mlp.up", "attention.qkv", *usual) if (word := usual.get(part, ""))]
    scheme = used[0] if used else rules.word
    exceptions = [(part, word) for part, word in usual.items() if word != scheme]
    if rules.head:
        exceptions.append(("head", rules.of("lm_head") or rules.word))
    apart = (tuple((part, word) for part, word in layer.items() if word != usual[part]) for layer in layers)
    single = tuple((i, named) for i, named in enumerate(apart) if named)
    return Checkpoint(scheme, tuple(exceptions), single, rules.kv, rules.method)


def _common(words: list[str]) -> str:
    """The word that all have; "" where they differ."""
    return words[0] if len(set(words)) == 1 else ""


#: Layers whose modules are looked at: the first two, which mixed stacks have otherwise, and one within. Chosen by hand,
#: not from data.
_SAMPLED_LAYERS = (0, 1, 7)


def checkpoint_of_any(data: Mapping[str, Any], where: str) -> Checkpoint | None:
    """The checkpoint of a config.json whose type no reader knows (`read_checkpoint` otherwise): one word for all linear
    layers of the layers. Where some of these have words of their own, or stay as they were, that is its ``trouble``."""
    rules = rules_of(data, where)
    if rules is None or isinstance(rules, Checkpoint):
        return rules
    names = [f"model.layers.{i}.{name}" for i in _SAMPLED_LAYERS for part in MODULES.values() for name in part]
    if rules.single or any(rules.of(name) != rules.word for name in names):
        trouble = f"{where}: some layers have formats of their own, and no reader knows this model_type"
        return Checkpoint("", method=rules.method, trouble=trouble)
    return Checkpoint(rules.word, (("head", rules.word),) if rules.head else (), (), rules.kv, rules.method)
