"""Names of quantized twins: "org/Llama-3.1-8B-Instruct-AWQ" is a model of the catalogue in the format that its suffix
states. Used where the hub that has its config.json does not answer.

Formats are what those who publish under these suffixes write into `quantization_config`, as recalled of their pages
(unverified), but for those that a config.json of the catalogue shows: of a model of the same type and suffix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from predictor.errors import TilecastError
from predictor.files.read import read_json
from predictor.models.built.config import ModelConfig
from predictor.models.built.keys import quantization_of

Said = Mapping[str, Any]
#: What quantizers leave as it is, as recalled of ModelOpt and llm-compressor, unverified.
_HEAD = ["lm_head"]


def _integers(bits: int, kind: str) -> dict[str, Any]:
    """GPTQ's and AWQ's usual groups of 128."""
    return {"quant_method": kind, "bits": bits, "group_size": 128, "zero_point": kind == "awq", "sym": kind == "gptq"}


def _compressed(bits: int, kind: str, activations: Said | None = None, **weights: Any) -> dict[str, Any]:
    """One group of compressed-tensors over all linear layers but the head."""
    group = {"weights": {"num_bits": bits, "type": kind, "symmetric": True, **weights},
             "input_activations": activations, "targets": ["Linear"]}  # fmt: skip
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": _HEAD}


#: Activations of FP8-dynamic and w8a8, and formats of suffixes. Source: config.json of Qwen/Qwen3-32B-FP8 (blocks),
#: RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic, nvidia/Llama-3.1-70B-Instruct-FP8 and
#: nvidia/Qwen3-235B-A22B-NVFP4; bitsandbytes as recalled of unsloth's pages, unverified.
_FP8, _INT8 = ({"num_bits": 8, "type": kind, "dynamic": True, "strategy": "token"} for kind in ("float", "int"))
_BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
_STATIC = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "ignore": _HEAD}
_NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "ignore": _HEAD}
_NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True}  # fmt: skip


class Suffix(NamedTuple):
    """An end of a name, and what it states; None: 16 bit."""

    pattern: str
    said: Said | None


#: The longer one first. Source: as above; GPTQ, AWQ and MXFP4 as recalled of the pages of Qwen and AMD, unverified.
#: What an organisation means by one stands in `_OF`.
_SUFFIXES = (
    Suffix(r"FP8[-_]dynamic", _compressed(8, "float", _FP8, strategy="channel")),
    Suffix(r"FP8[-_]block", _BLOCKS),
    Suffix(r"FP8[-_](static|static[-_]pertensor|KV)", _STATIC),
    Suffix(r"FP8", {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    Suffix(r"(unsloth-)?bnb-4bit|bnb4|nf4", _NF4),
    Suffix(r"bnb-8bit", {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    Suffix(r"AWQ(-INT4|-4bit)?", _integers(4, "awq")),
    Suffix(r"GPTQ-Int8", _integers(8, "gptq")),
    Suffix(r"GPTQ-Int3", _integers(3, "gptq")),
    Suffix(r"GPTQ(-Int4|-4bit)?|Int4", _integers(4, "gptq")),
    Suffix(r"(quantized\.)?w4a16(-G128)?", _compressed(4, "int", group_size=128, strategy="group")),
    Suffix(r"(quantized\.)?w8a16", _compressed(8, "int", strategy="channel")),
    Suffix(r"(quantized\.)?w8a8(-INT8)?|INT8", _compressed(8, "int", _INT8, strategy="channel")),
    Suffix(r"(NVFP4|FP4)(-V\d)?", _NVFP4),
    Suffix(r"MXFP4", {"quant_method": "quark", "global_quant_config": {
        "weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32},
        "input_tensors": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "is_dynamic": True}},
        "exclude": _HEAD}),
    Suffix(r"BF16|FP16", None),
)  # fmt: skip
#: Keys of a config.json that say its format.
_FORMAT_KEYS = ("quantization_config", "compression_config", "quantization")
#: Organisations whose "-FP8" has scales of the checkpoint.
_SCALED = {"quant_method": "fp8", "activation_scheme": "static"}
_OF: Mapping[str, Said] = {"nvidia": _STATIC, "amd": _STATIC, "redhatai": _SCALED, "neuralmagic": _SCALED}
#: Ends of a name of the catalogue that state a format.
_QUANTIZED = re.compile(r"-(nvfp4|fp8|fp8-dynamic|fp8-static-pertensor)$")
#: What else a name may end in, with the same sizes.
_TRAINED = re.compile(r"[-_](instruct|base|chat|it|hf|thinking|terminus|preview|\d{4}|v\d+(\.\d+)?)$", re.IGNORECASE)


class Known(NamedTuple):
    """The catalogue: a name -> its model's own name (None for none), that -> its config.json and its model; ``folder``
    of the files that their authors published."""

    named: Callable[[str], str | None]
    read: Callable[[str], tuple[Said, ModelConfig]]
    folder: Path


def twin(text: str, known: Known) -> tuple[Said, str, str] | None:
    """The dictionary of a config.json for ``text`` ("org/name"), the model of the catalogue that has its sizes, and who
    says its format; None where no such model is known."""
    organisation, _, name = text.rpartition("/")
    for suffix in (*_SUFFIXES, None):
        cut = None if suffix is None else re.fullmatch(rf"(.+?)[-_.]({suffix.pattern})", name, re.IGNORECASE)
        if suffix is not None and cut is None:
            continue
        base = _base(organisation, cut[1] if cut else name, known)
        if base is None:
            continue
        data, config = known.read(base)
        if suffix is None or cut is None:
            return _as_published(data, base, known.folder)
        said, source = _said(organisation.lower(), cut[2], suffix, config, known.folder)
        return _without_format(data) | ({"quantization_config": said} if said is not None else {}), base, source
    return None


def _as_published(data: Said, base: str, folder: Path) -> tuple[Said, str, str]:
    """What `twin` gives for a name without a format: that of the model with its sizes, or, where the catalogue has a
    quantized twin alone, that of another model of the type."""
    if not _QUANTIZED.search(base):
        return data, base, "as there"
    for path in sorted(folder.glob("*.json")):
        other = read_json(path)
        if other.get("model_type") == data.get("model_type") and not _QUANTIZED.search(path.stem):
            said = quantization_of(other)
            form = {} if said is None else {"quantization_config": said[1]}
            return _without_format(data) | form, base, f"as {path.stem} is"
    return _without_format(data), base, "as its name says"


def _without_format(data: Said) -> dict[str, Any]:
    kept = {key: value for key, value in data.items() if key not in _FORMAT_KEYS}
    inner = data.get("text_config")
    return kept | ({"text_config": _without_format(inner)} if isinstance(inner, Mapping) else {})


def _base(organisation: str, name: str, known: Known) -> str | None:
    """The model of the catalogue with these sizes: as it is called, then without what training adds to a name."""
    while name:
        for spelled in (f"{organisation}/{name}", name):
            try:
                base = known.named(spelled)
            except TilecastError:  # a family that has several
                base = None
            if base is not None:
                return base
        shorter = _TRAINED.sub("", name)
        if shorter == name:
            return None
        name = shorter
    return None


def _said(organisation: str, end: str, suffix: Suffix, config: ModelConfig, folder: Path) -> tuple[Said | None, str]:
    """The format that a suffix states, and who says so."""
    if end.lower() == "fp8":  # of every publisher another
        if config.published_fp8 and organisation not in _OF:
            return _BLOCKS, "as its publisher has fp8"
        return _OF.get(organisation, suffix.said), "as its name says"
    word = re.sub(r"^FP4(-V\d)?$", "NVFP4", end, flags=re.IGNORECASE).lower()
    for path in sorted(folder.glob(f"*-{word}.json")):
        data = read_json(path)
        theirs = quantization_of(data)
        if data.get("model_type") == config.model_type and theirs is not None:
            published: Said = theirs[1]
            return published, f"as {path.stem} has it"
    return suffix.said, "as its name says"
