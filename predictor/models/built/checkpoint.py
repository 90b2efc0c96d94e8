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

from predictor.errors import RequestError, SpecError, UnsupportedError, nearest, printable
from predictor.files.patterns import Pattern
from predictor.files.records import dataclass, replace
from predictor.formats.parts import Checkpoint
from predictor.formats.quantization import STATIC, integer_word
from predictor.models.built.class_names import LAYERS, MODULES, modules_of
from predictor.models.built.config import ModelConfig
from predictor.models.built.keys import quantization_of

#: Schemes of NVIDIA ModelOpt (`quant_algo`) -> words of --dtype.
_MODELOPT = {
    "FP8": STATIC, "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "FP8_BLOCK_SCALES": "fp8_block", "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4", "NVFP4_AWQ": "nvfp4", "NVFP4_SVDQUANT": "nvfp4", "W4A16_NVFP4": "nvfp4_wo", "MXFP8": "mxfp8",
    "W4A8_MXFP4_FP8": "mxfp4_fp8", "W4A8_MXFP4_MXFP8": "mxfp4_mxfp8", "W4A16_MXFP4": "mxfp4", "MXFP4": "mxfp4_mxfp4",
    "W4A8_AWQ": "int4_fp8",
    "INT8_SQ": "int8", "W8A8_SQ_PER_CHANNEL": "int8", "W8A16": "int8_wo", "W4A16": "int4_wo", "W4A16_AWQ": "int4_wo",
    "INT4_AWQ": "int4_wo",
}  # fmt: skip
#: Keys that list modules which stay as they were.
_KEPT = (
    "modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers", "exclude", "llm_int8_skip_modules",
    "skip_modules",
)  # fmt: skip
#: Patterns of modules with words of their own.
Single = tuple[tuple[str, str], ...]

#: Elements that share a scale. Source: OCP Microscaling Formats 1.0.
_MX = 32


def read_checkpoint(data: Mapping[str, Any], config: ModelConfig, where: str) -> Checkpoint | None:
    """What the dictionary of a config.json says of its numbers; None for a checkpoint in 16 bit or more.

    Raises SpecError where the value is not an object. An unknown scheme goes into the checkpoint's ``trouble`` (one
    line, which lists the known ones): only a run in the checkpoint's own format raises it.
    """
    rules = rules_of(data, where)
    if rules is None or isinstance(rules, Checkpoint):
        return rules
    return replace(_by_part(rules, config), notes=_block_notes(data))


def rules_of(data: Mapping[str, Any], where: str) -> Rules | Checkpoint | None:
    """The rules of a config.json; None where it has none, and a checkpoint with its ``trouble`` if they are unknown."""
    said = quantization_of(data)
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
        word, single = _METHODS[method](said, where)
        kept = [name for key in _KEPT for name in _names(said, key, where)]
        _check_patterns([pattern for pattern, _ in single], where)
        named = tuple((_Patterns([pattern]), word_of) for pattern, word_of in single)
        head = said.get("lm_head") is True or said.get("quant_lm_head") is True
        return cls(method, word, _Patterns(kept), named, head, _kv(said))

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


def _unknown(value: object, where: str, known: Iterable[str] | None = None) -> UnsupportedError:
    """The error for a scheme that no word of --dtype stands for."""
    known = tuple(KNOWN if known is None else known)
    close = nearest(str(value), known, 1)
    tail = f"; nearest: {close[0]}" if close else ""
    return UnsupportedError(f"{where}: {value!r} is not a known scheme: expected one of {', '.join(known)}{tail}")


#: Weights that share a scale where scales in fp32 add less than 0.4 % of the weights' bytes (32 bits for 1,024 of 8),
#: and the most of one axis: chosen by hand, not from data.
_FEW_SCALES, _LARGEST_BLOCK = 1024, 2**20


def _fp8(said: Mapping[str, Any], where: str) -> str:
    block = said.get("weight_block_size")
    if block is None:
        return STATIC if said.get("activation_scheme") == "static" else "fp8"
    return _blocks(block, where)


def _blocks(block: Any, where: str) -> str:
    """fp8 in blocks of any size whose scales are few: the nearest kernels are those of 128 x 128."""
    sizes = block if isinstance(block, list) and len(block) == 2 else (0, 0)
    if not all(isinstance(n, int) and 0 < n <= _LARGEST_BLOCK for n in sizes) or sizes[0] * sizes[1] < _FEW_SCALES:
        raise _unknown(f"fp8 in blocks of {printable(str(block))[:40]}", where, ("fp8 in blocks of [128, 128]", "fp8"))
    return "fp8_block"


def _block_notes(data: Mapping[str, Any]) -> tuple[str, ...]:
    """A line where blocks of fp8 are of another size than their nearest kernels'."""
    said = quantization_of(data)
    groups = said[1].get("config_groups") if said is not None else None
    weights = [each.get("weights") for each in groups.values()] if isinstance(groups, Mapping) else []
    listed = [each.get("block_structure") for each in weights if isinstance(each, Mapping)]
    sizes = [size for size in (*listed, said[1].get("weight_block_size") if said is not None else None) if size]
    other = next((size for size in sizes if isinstance(size, list) and size != [128, 128]), None)
    if other is None:
        return ()
    return (f"The checkpoint's fp8 in blocks of {other[0]} x {other[1]} takes as long as blocks of 128 x 128.",)


def _integers(said: Mapping[str, Any], where: str) -> str:
    """GPTQ and AWQ: integers with one scale for a group of a column's weights (-1: the column), and a zero point unless
    they are symmetric."""
    bits = said.get("bits", said.get("w_bit", 4))
    group = said.get("group_size", said.get("q_group_size", 128))
    return _integer(bits, group, said.get("zero_point") is True or said.get("sym") is False, where)


def _integer(bits: Any, group: Any, zero: bool, where: str) -> str:
    """The word of integers in groups; UnsupportedError for those that no scheme has."""
    whole = isinstance(bits, int) and isinstance(group, int) and not isinstance(bits, bool) and group is not True
    word = integer_word(bits, max(group, 0), zero) if whole else ""
    if not word:
        known = ("2, 3, 4, 5, 6 or 8 bits", "in groups of 16, 32, 64, 128 or 256, or of a column")
        raise _unknown(f"{bits} bits in groups of {group}", where, known)
    return word


def _listed(said: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """An object of modules, empty where there is none. SpecError for anything else."""
    value = said.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SpecError(f"{where}: {key!r} is {str(value)[:80]!r}, expected an object")
    return value


def _gptq(said: Mapping[str, Any], where: str) -> tuple[str, Single]:
    """GPTQ's word; "dynamic" (GPTQModel) and "extra_config" (AutoRound) have patterns with values of their own: "-:"
    (or 16 bits) is a module that stays as it was."""
    single = []
    for pattern, about in _listed(said, "dynamic", where).items():
        sign, _, rest = str(pattern).rpartition(":")
        kept = sign == "-"
        single.append((f"re:{rest}", "" if kept else _integers({**said, **_object(about, "dynamic", where)}, where)))
    for name, about in _listed(said, "extra_config", where).items():
        values = {**said, **_object(about, "extra_config", where)}
        whole = isinstance(values.get("bits"), int) and values["bits"] >= 16
        single.append((str(name), "" if whole else _integers(values, where)))
    return _integers(said, where), tuple(single)


def _object(value: Any, key: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(f"{where}: {key!r} has {str(value)[:80]!r}, expected an object")
    return value


def _bitsandbytes(said: Mapping[str, Any], where: str) -> tuple[str, Single]:
    """4 bits (NF4 and FP4 take the same bytes and kernels), with scales quantized in their turn or not; or LLM.int8().

    The head stays as it was. Source: bitsandbytes 0.50, transformers integrations/bitsandbytes.py."""
    if said.get("load_in_4bit") is True or said.get("_load_in_4bit") is True:
        return ("nf4" if said.get("bnb_4bit_use_double_quant") is True else "nf4_plain"), ()
    if said.get("load_in_8bit") is True or said.get("_load_in_8bit") is True:
        return "int8", ()
    raise _unknown("bitsandbytes in neither 4 nor 8 bits", where, ("load_in_4bit", "load_in_8bit"))


#: torchao's configurations without underscores, capitals and "config" -> word. Source: torchao 0.14,
#: quantization/quant_api.py.
_TORCHAO = {
    "int8weightonly": "int8_wo", "int8dynamicactivationint8weight": "int8", "float8weightonly": "fp8_wo",
    "float8dynamicactivationfloat8weight": "fp8", "float8staticactivationfloat8weight": STATIC,
    "float8dynamicactivationint4weight": "int4_fp8", "nvfp4inference": "nvfp4",
    "nvfp4dynamicactivationnvfp4weight": "nvfp4", "nvfp4weightonly": "nvfp4_wo",
}  # fmt: skip


def _torchao(said: Mapping[str, Any], where: str) -> tuple[str, Single]:
    """torchao: a configuration by name, or serialized; one for each module by name where it says so."""
    kind = said.get("quant_type")
    if isinstance(kind, Mapping) and "default" in kind:
        kind = kind["default"]
    if isinstance(kind, Mapping) and "fqn" in str(kind.get("_type", "")).lower():
        data = _object(kind.get("_data"), "quant_type", where)
        by_name = data.get("module_fqn_to_config", data.get("fqn_to_config"))
        modules = dict(_object(by_name, "module_fqn_to_config", where))
        word = _torchao_word(modules.pop("_default", None), {}, where)
        return word, tuple((str(name), _torchao_word(kind, {}, where)) for name, kind in modules.items())
    if kind is None:
        raise _unknown(kind, f"{where}: quant_type", ("int4_weight_only", *_TORCHAO))
    return _torchao_word(kind, _listed(said, "quant_type_kwargs", where), where), ()


def _torchao_word(kind: Any, more: Mapping[str, Any], where: str) -> str:
    """The word of one configuration; None is a module that stays as it was."""
    if kind is None:
        return ""
    name, data = (kind.get("_type"), _listed(kind, "_data", where)) if isinstance(kind, Mapping) else (kind, more)
    plain = str(name).lower().replace("_", "").removesuffix("config")
    if plain == "int4weightonly":  # scale and zero point in 16 bit each: as many bits as in groups of half the size
        group = data.get("group_size", 128)
        return _integer(4, group // 2 if isinstance(group, int) else group, False, where)
    if plain == "mxdynamicactivationmxweight" or plain == "mxfpinference":
        return "mxfp4_mxfp4" if "4" in str(data.get("weight_dtype", "")) else "mxfp8"
    word = _TORCHAO.get(plain, "")
    if not word:
        raise _unknown(name, f"{where}: quant_type", ("int4_weight_only", *_TORCHAO))
    return word


#: Quark's dtypes -> type and bits, as compressed-tensors has them. Source: quark 0.10, its config_mapping.
_QUARK = {
    "fp8_e4m3": ("float", 8), "fp8_e5m2": ("float", 8), "fp4": ("float", 4), "int8": ("int", 8), "uint8": ("int", 8),
    "int4": ("int", 4), "uint4": ("int", 4), "int3": ("int", 3), "int2": ("int", 2),
}  # fmt: skip


def _quark(said: Mapping[str, Any], where: str) -> tuple[str, Single]:
    """AMD Quark: a configuration of all layers, and of layers by pattern."""
    single = tuple(
        (str(name), _quark_word(about, where)) for name, about in _listed(said, "layer_quant_config", where).items()
    )
    return _quark_word(said.get("global_quant_config"), where), single


def _quark_word(said: Any, where: str) -> str:
    group: dict[str, Mapping[str, Any] | None] = {}
    about = _object(said, "global_quant_config", where)
    for key, ours in (("weight", "weights"), ("input_tensors", "input_activations")):
        tensor = about.get(key)
        if isinstance(tensor, list) and tensor:  # in steps, int4 over fp8: the first is what is stored
            tensor = tensor[0]
        if tensor is None:
            group[ours] = None
            continue
        tensor = _object(tensor, key, where)
        kind = _QUARK.get(str(tensor.get("dtype")).lower())
        if kind is None:
            raise _unknown(tensor.get("dtype"), f"{where}: {key}", _QUARK)
        size = tensor.get("group_size") if tensor.get("qscheme") == "per_group" else None
        group[ours] = {"type": kind[0], "num_bits": kind[1], "group_size": size, "dynamic": tensor.get("is_dynamic"),
                       "symmetric": tensor.get("symmetric")}  # fmt: skip
    return _group(group, where) if group["weights"] is not None else ""


def _hqq(said: Mapping[str, Any], where: str) -> tuple[str, Single]:
    """HQQ: integers with a scale and a zero point in 16 bit each: as many bits as in groups of half the size."""
    weights = _listed(_listed(said, "quant_config", where), "weight_quant_params", where)
    group = weights.get("group_size") or 0
    return _integer(weights.get("nbits"), group // 2 if isinstance(group, int) else group, False, where), ()


def _quanto(said: Mapping[str, Any], where: str) -> tuple[str, Single]:
    """Quanto: weights alone; integers below 8 bits in groups of 128 with a scale and a shift."""
    words = {"int8": "int8_wo", "float8": "fp8_wo", "int4": integer_word(4, 64), "int2": integer_word(2, 64)}
    word = words.get(str(said.get("weights")))
    if word is None or said.get("activations") is not None:
        raise _unknown(f"{said.get('weights')} with {said.get('activations')} activations", where, words)
    return word, ()


def _codebooks(said: Mapping[str, Any], where: str) -> tuple[str, Single]:
    """AQLM: codes of so many bits for a group of a row's weights."""
    size = said.get("in_group_size")
    width, books = said.get("nbits_per_codebook"), said.get("num_codebooks")
    if not isinstance(size, int) or size < 1 or not isinstance(width, int) or not isinstance(books, int):
        raise _unknown("aqlm without its sizes", where, ("nbits_per_codebook", "num_codebooks", "in_group_size"))
    return _integer(-(-width * books // size), 0, False, where), ()


def _always(word: str) -> Callable[[Mapping[str, Any], str], tuple[str, Single]]:
    return lambda said, where: (word, ())


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
        return _blocks(weights.get("block_structure") or [128, 128], where)
    if kind == "int" and with_inputs is None and (bits != 8 or size):
        return _integer(bits, 0 if size is None else size, weights.get("symmetric") is False, where)
    if (kind, bits, with_inputs) == ("int", 4, ("float", 8)):
        return "int4_fp8"
    blocks = size if kind == "float" and (bits == 4 or size == _MX) else None
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
    ("float", 4, 32, None): "mxfp4", ("float", 4, 32, ("float", 4)): "mxfp4_mxfp4",
    ("float", 4, 32, ("float", 8)): "mxfp4_fp8", ("float", 8, _MX, ("float", 8)): "mxfp8",
}  # fmt: skip
#: Methods of a `quantization_config` -> their readers: the word of all layers, and patterns with words of their own.
_METHODS: Mapping[str, Callable[[Mapping[str, Any], str], tuple[str, Single]]] = {
    "fp8": lambda said, where: (_fp8(said, where), ()), "fbgemm_fp8": _always("fp8"), "ptpc_fp8": _always("fp8"),
    "gptq": _gptq, "awq": _gptq, "auto-round": _gptq, "intel/auto-round": _gptq,
    # transformers quantizes the experts alone, whatever the list says
    "mxfp4": lambda said, where: ("", (("re:.*[.]experts[.]", "mxfp4"),)),
    "experts_int8": lambda said, where: ("", (("re:.*[.]experts[.]", "int8_wo"),)),
    "modelopt": _modelopt, "compressed-tensors": _compressed, "bitsandbytes": _bitsandbytes, "torchao": _torchao,
    "quark": _quark, "hqq": _hqq, "quanto": _quanto, "eetq": _always("int8_wo"), "aqlm": _codebooks,
    "bitnet": _always("int2_wo_row"),
}  # fmt: skip
#: Methods of a `quantization_config` that have a word.
KNOWN = tuple(_METHODS)


def _kv(said: Mapping[str, Any]) -> str:
    """What the checkpoint's scales of keys and values are for: "fp8" or "", and what else it says in its own words."""
    scheme = said.get("kv_cache_quant_algo") or said.get("kv_cache_scheme") or _quark_kv(said)
    if isinstance(scheme, Mapping):
        scheme = f"{'fp' if scheme.get('type') == 'float' else scheme.get('type')}{scheme.get('num_bits')}"
    return str(scheme).lower() if scheme else ""


def _quark_kv(said: Mapping[str, Any]) -> str:
    """Quark's dtype of the outputs that become keys and values, as "fp8"; "" where they stay as they were."""
    patterns = said.get("kv_cache_quant_config")
    for about in patterns.values() if isinstance(patterns, Mapping) else ():
        outputs = about.get("output_tensors") if isinstance(about, Mapping) else None
        kind = _QUARK.get(str(outputs.get("dtype"))) if isinstance(outputs, Mapping) else None
        if kind is not None:
            return f"{'fp' if kind[0] == 'float' else 'int'}{kind[1]}"
    return ""


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
    prefix = LAYERS.get(config.model_type, "model.layers")
    layers = [
        {
            part: _common([rules.of(f"{prefix}.{i}.{name}") for name in modules_of(part, config.at(i))])
            for part in _parts(config.at(i), config.is_sparse(i))
        }
        for i in range(config.layers)
    ]
    return _voted(rules, layers)


def _voted(rules: Rules, layers: list[dict[str, str]]) -> Checkpoint:
    """The words of every part that most ``layers`` have, and those of layers that differ."""
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


#: Layers whose modules are looked at where a config does not say how many there are, and at most: chosen by hand, not
#: from data.
_UNSAID_LAYERS, _MOST_LAYERS = 128, 1000
#: What stands before the number of a layer in the names of modules. Source: the classes of transformers 5, alone and in
#: a model of images and text.
_ANY_LAYERS = ("model.layers", "model.language_model.layers", "language_model.model.layers")


def checkpoint_of_any(data: Mapping[str, Any], where: str) -> Checkpoint | None:
    """The checkpoint of a config.json whose type no reader knows (`read_checkpoint` otherwise), by the names that most
    classes give the modules of a layer. Where layers have words of their own and none of these names has one, that is
    its ``trouble``."""
    rules = rules_of(data, where)
    if rules is None or isinstance(rules, Checkpoint):
        return rules
    inner = data.get("text_config")
    said = (inner if isinstance(inner, Mapping) else data).get("num_hidden_layers")
    count = said if isinstance(said, int) and 0 < said <= _MOST_LAYERS else _UNSAID_LAYERS
    every = [_any_layers(rules, prefix, count) for prefix in _ANY_LAYERS]
    layers = next((named for named in every if any(set(words.values()) != {rules.word} for words in named)), every[0])
    if rules.single and all(set(words.values()) == {rules.word} for words in layers):
        trouble = f"{where}: some layers have formats of their own, and no reader knows this model_type"
        return Checkpoint("", method=rules.method, trouble=trouble)
    return replace(_voted(rules, layers), notes=_block_notes(data))


def _any_layers(rules: Rules, prefix: str, count: int) -> list[dict[str, str]]:
    """The words of the parts of ``count`` layers, by names that most classes have."""
    return [
        {part: _common([rules.of(f"{prefix}.{i}.{name}") for name in names]) for part, names in MODULES.items()}
        for i in range(count)
    ]
