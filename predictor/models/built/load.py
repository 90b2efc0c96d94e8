"""A catalogue name or a config.json -> ModelConfig.

A missing size (layers, width, heads, vocabulary) or an unknown model_type is an error here. Any other missing
key takes the default of the Hugging Face configuration class and is listed in ``ModelConfig.assumed``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from predictor.errors import (
    NoHubError,
    SpecError,
    UnknownModelTypeError,
    UnknownNameError,
    nearest,
    printable,
    unknown_name,
)
from predictor.files.read import read_json
from predictor.files.records import replace
from predictor.models.built.config import ModelConfig
from predictor.models.built.keys import Read, ignored_keys, quantization_of
from predictor.models.built.type_reader import FAMILIES

CONFIGS = Path(__file__).parent / "configs"
#: The config.json of checkpoints as their authors published them, written by tools/catalogue_configs.py.
PUBLISHED = Path(__file__).parent / "published"
#: A model of the catalogue -> its other names.
ALIASES = Path(__file__).parent / "aliases.json"

#: What a name of a model may be, in errors.
_EXPECTED = "a name of `tilecast models` or a path to a config.json, or org/name of Hugging Face"
#: Models of a family that an error lists: chosen by hand, not from data.
_SHOWN = 8

#: A head of 256 is wide; what is far beyond is a slip of the keyboard.
_WIDEST_HEAD = 2**16

#: Activation functions that the graph builders know.
ACTIVATIONS = (
    "relu", "gelu", "gelu_new", "gelu_fast", "gelu_bloom", "gelu_python", "gelu_pytorch_tanh", "quick_gelu", "silu",
    "swish", "tanh", "sigmoid", "relu2",
)  # fmt: skip


def catalogue() -> tuple[str, ...]:
    """Names of the models that come with the package, sorted."""
    return tuple(sorted(path.stem for folder in (CONFIGS, PUBLISHED) for path in folder.glob("*.json")))


def _listed(name: str) -> Path | None:
    """The file of a name of the catalogue; None for any other text."""
    paths = (folder / f"{name}.json" for folder in (CONFIGS, PUBLISHED))
    return None if "/" in name else next((path for path in paths if path.is_file()), None)


@lru_cache(maxsize=1)
def aliases() -> Mapping[str, str]:
    """Other names of the catalogue's models -> their own: those on Hugging Face (of models with the same sizes), and
    what papers call them."""
    listed = read_json(ALIASES)
    return MappingProxyType({alias: name for name, others in listed.items() for alias in others})


@lru_cache(maxsize=1)
def _lower() -> Mapping[str, str]:
    """The aliases in lower case, as names are looked up."""
    return {alias.lower(): name for alias, name in aliases().items()}


@lru_cache(maxsize=1)
def _short() -> Mapping[str, str]:
    """Names and aliases, these without the organisation, too, as `_squeezed` writes them; a name goes before an
    alias."""
    names: dict[str, str] = {}
    for alias, name in aliases().items():
        names.setdefault(_squeezed(alias.rpartition("/")[2]), name)
        names.setdefault(_squeezed(alias), name)
    return names | {_squeezed(name): name for name in aliases().values()}


def _squeezed(text: str) -> str:
    """``text`` without what people write differently between the words of a name: "llama3.1:8b", "Llama-3.1-8B"."""
    return re.sub(r"[-_: ]", "", text.strip().lower())


def catalogue_name(text: str) -> str | None:
    """The model of the catalogue that ``text`` names: its own name, one of Hugging Face, a spelling of either without
    the organisation or with other signs between the words, or the name of a family that has one model ("yi",
    "llama-4-scout"; a quantized twin beside it does not count). None where it names none.

    Raises UnknownNameError, which lists them, for a family that has several.
    """
    name = text.strip().lower()
    if _listed(name) is not None:
        return name
    known = _lower().get(name) or _short().get(_squeezed(name))
    if known is not None or not name or "/" in name:
        return known
    family = [other for other in catalogue() if other.startswith(f"{name}-")]
    first = min(family, key=len, default=None)
    if first is None or all(other == first or other.startswith(f"{first}-") for other in family):
        return first
    shown = ", ".join(family[:_SHOWN]) + f" and {len(family) - _SHOWN} more" * (len(family) > _SHOWN)
    raise UnknownNameError(f"model {text!r} is a family: expected one of {shown}")


def load_config(name_or_path: str | Path) -> ModelConfig:
    """The model of a catalogue name, of a config.json, or of a folder that holds one.

    Raises UnknownNameError with the nearest names, SpecError for a file that is no valid config and UnsupportedError
    for an architecture that is not known.
    """
    try:
        path, beside, stamp = config_file(str(name_or_path))
    except NoHubError as error:
        return _twin(str(name_or_path), error)
    return _read_config(path, beside, stamp)


def _twin(text: str, error: NoHubError) -> ModelConfig:
    """The model of the catalogue that has the sizes of ``text`` ("org/name"), in the format that its name states;
    raises ``error`` where none is known."""
    from predictor.models.built.variants import Known, twin  # names of the catalogue and of the hub start without it

    def read_listed(name: str) -> tuple[Mapping[str, Any], ModelConfig]:
        path = _listed(name)
        assert path is not None, name
        return data_of(path, None), load_config(name)

    read = twin(text, Known(catalogue_name, read_listed, PUBLISHED))
    if read is None:
        raise error
    data, base, source = read
    config = config_from_dict(data, printable(text.rpartition("/")[2]).lower(), text)
    words = "16 bit" if config.checkpoint is None else "+".join(config.checkpoint.words)
    note = f"{text} is not here: it is forecast with the sizes of {base}, in {words}, {source}"
    return replace(config, notes=(*config.notes, note))


def config_file(text: str) -> tuple[Path, Path | None, tuple[int, ...]]:
    """The config.json of a name or path, the file of ModelOpt beside it, and what tells both from what stood there
    before (`_stamped`). Raises as `load_config`."""
    try:
        path = _find(text)
        return path, *_stamped(path)
    except RuntimeError:  # what `Path.expanduser` says of "~" without a home, of "~nobody"
        raise SpecError(
            f"model {text!r}: a path begins with ~, and there is no such home folder; expected the whole path"
        ) from None
    except (OSError, ValueError) as error:  # a name too long, a closed folder
        reason = getattr(error, "strerror", None) or error
        raise SpecError(f"model {text!r}: cannot be read ({reason}); expected {_EXPECTED}") from None


def _find(text: str) -> Path:
    """The file of a name or path. UnknownNameError, SpecError; OSError and RuntimeError where the system refuses.

    A name of the catalogue goes before a file of that name; a file or folder goes before an alias, and that before a
    repository of the hub.
    """
    listed = _listed(text.strip().lower())
    if listed is not None:
        return listed
    path = Path(text).expanduser()
    if text.strip() and path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise SpecError(f"{text}: no config.json in this folder")
    if path.is_file():
        return path
    listed = _listed(catalogue_name(text) or "")
    if listed is not None:
        return listed
    from predictor.models.built.hub import fetch, is_repository  # models of the catalogue start without it

    every = (*catalogue(), *aliases())
    if not is_repository(text):
        raise unknown_name("model", text, every, _EXPECTED)
    try:
        return fetch(text)
    except SpecError as error:
        close = nearest(text, every)
        raise type(error)(f"{error}; nearest of the catalogue: {', '.join(close)}" if close else str(error)) from None


def _stamped(path: Path) -> tuple[Path | None, tuple[int, ...]]:
    """The file of ModelOpt beside a config.json (hf_quant_config.json, or X_hf_quant_config.json beside X_config.json),
    None where there is none, and what tells both from what stood there before."""
    beside = path.with_name(path.name.removesuffix("config.json") + "hf_quant_config.json")
    files, modelopt = [path.stat()], None
    if path.name.endswith("config.json") and beside.is_file():
        files, modelopt = [path.stat(), beside.stat()], beside
    return modelopt, tuple(n for file in files for n in (file.st_dev, file.st_ino, file.st_mtime_ns, file.st_size))


@lru_cache(maxsize=256)
def _read_config(path: Path, beside: Path | None, stamp: tuple[int, ...]) -> ModelConfig:
    """The model of a file, which ``stamp`` tells from what stood there before: one written again is read again."""
    return config_from_dict(data_of(path, beside), model_name(path), str(path))


def data_of(path: Path, beside: Path | None) -> Mapping[str, Any]:
    """The dictionary of a config.json, with what the file of ModelOpt ``beside`` it says of its numbers."""
    data: Mapping[str, Any] = _with_floats(read_json(path))
    if beside is None or data.get("quantization_config") is not None:
        return data
    said = read_json(beside).get("quantization")
    if not isinstance(said, Mapping):
        raise SpecError(f"{beside}: 'quantization' is {str(said)[:80]}, expected an object")
    return {**data, "quantization": said}


def _with_floats(value: Any) -> Any:
    """``value`` with the numbers that JSON has no sign for as transformers 5 writes them: {"__float__": "Infinity"}."""
    if isinstance(value, Mapping):
        if tuple(value) == ("__float__",) and value["__float__"] in ("Infinity", "-Infinity", "NaN"):
            return float(value["__float__"])
        return {key: _with_floats(each) for key, each in value.items()}
    return [_with_floats(each) for each in value] if isinstance(value, list) else value


def config_from_dict(data: Mapping[str, Any], name: str = "model", where: str = "config.json") -> ModelConfig:
    """The ModelConfig of the dictionary of a config.json; ``where`` names it in errors.

    Raises SpecError for a missing or impossible value and UnsupportedError for an unknown model_type.
    """
    model_type = data.get("model_type")
    if not isinstance(model_type, str):
        raise SpecError(f"{where}: missing 'model_type', expected one of {', '.join(sorted(FAMILIES))}")
    family = FAMILIES.get(model_type)
    if family is None:
        close = nearest(model_type, FAMILIES)
        tail = f"; nearest: {', '.join(close)}" if close else ""
        known = ", ".join(sorted(FAMILIES))
        raise UnknownModelTypeError(f"{where}: unknown model_type {model_type!r}: expected one of {known}{tail}")
    seen: set[str] = set()
    try:
        check_raw(data, where)
        read = Read(data, seen)
        config = family(read, name, f"{where} ({model_type})")
        config = replace(config, draft_layers=draft_layers(read, config, where))
        if data.get("vision_config") is not None:
            from predictor.models.built.vision import tower_of  # models that see nothing start without it

            config = replace(config, tower=tower_of(data))
    except SpecError:
        ignored_keys(data, model_type, seen, where)  # a missing size may be there under a misspelt key
        raise
    ignored = ignored_keys(data, model_type, seen, where)
    check(config, where)
    if quantization_of(data) is None:
        return replace(config, ignored=ignored)
    from predictor.models.built.checkpoint import read_checkpoint  # a checkpoint in 16 bit starts without it

    return replace(config, checkpoint=read_checkpoint(data, config, where), ignored=ignored)


#: Keys of the layers that guess further tokens. Source: config.json of DeepSeek-V3, MiMo and GLM-4.5, and of Qwen3.5.
_DRAFT_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
#: Types whose checkpoints have such layers though a config.json may not say so. Source: tensors "mtp.layers.0" that the
#: quantized checkpoints of Qwen3.5 leave out (predictor/models/built/published/qwen3.5-397b-a17b-nvfp4.json).
_ALWAYS_DRAFTS = ("qwen3_5", "qwen3_5_moe")


def draft_layers(data: Mapping[str, Any], config: ModelConfig, where: str) -> int:
    """Layers of multi-token prediction; none where layers differ in more than their experts and their attention."""
    if any(not (kind.feed and kind.mixer != "none") for kind in config.variants):
        return 0
    inner = data.get("text_config")
    for said in (inner if isinstance(inner, Mapping) else {}, data):
        for key in _DRAFT_KEYS:
            count = said.get(key)
            if count is None:
                continue
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise SpecError(f"{where}: {key!r} is {count!r:.40}, expected an integer of at least 0")
            return count
    return int(data.get("model_type") in _ALWAYS_DRAFTS)


def check_raw(data: Mapping[str, Any], where: str) -> None:
    """Raises for what the normalised fields cannot show: counts of zero."""
    for key in ("num_key_value_heads", "kv_n_heads", "head_dim"):
        value = data.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 1):
            raise SpecError(f"{where}: {key!r} is {value!r}, expected an integer of at least 1")
    window = data.get("sliding_window")
    if isinstance(window, int | float) and window < 0:
        raise SpecError(f"{where}: 'sliding_window' is {window!r}, expected an integer of at least 0 or null")


def check(config: ModelConfig, where: str) -> None:
    """Raises SpecError where the sizes do not go together."""
    if config.heads % config.kv_heads:
        raise SpecError(f"{where}: {config.heads} attention heads are not a multiple of {config.kv_heads} KV heads")
    if config.experts and not 1 <= config.top_k <= config.experts:
        raise SpecError(f"{where}: {config.top_k} experts a token, expected 1 to {config.experts}")
    if config.activation not in ACTIVATIONS:
        close = nearest(config.activation, ACTIVATIONS)
        tail = f"; nearest: {', '.join(close)}" if close else ""
        raise SpecError(
            f"{where}: unknown activation {config.activation!r}: expected one of {', '.join(ACTIVATIONS)}{tail}"
        )
    if config.head_dim > _WIDEST_HEAD:
        raise SpecError(f"{where}: heads of {config.head_dim}, expected at most {_WIDEST_HEAD}")
    if config.rotary_dim > config.head_dim:
        raise SpecError(f"{where}: {config.rotary_dim} rotary dimensions in a head of {config.head_dim}")
    for kind in config.variants or (config,):
        turned = kind.qk_rope_dim or kind.rotary_dim or kind.head_dim
        if kind.position == "rotary" and kind.mixer == "attention" and turned % 2:
            raise SpecError(f"{where}: rotary positions turn pairs of numbers, expected an even width, got {turned}")
    for field in ("residual_dropout", "attention_dropout", "embed_dropout", "activation_dropout"):
        if getattr(config, field) > 1.0:
            raise SpecError(f"{where}: {field} is {getattr(config, field)}, expected 0 to 1")


def model_name(path: Path) -> str:
    """What a model is called whose config.json this is."""
    folder = path.parent.name
    if path.parent.parent.name == "snapshots":
        from predictor.models.built.hub import name_in_cache  # models of the catalogue start without it

        folder = name_in_cache(path.parent) or folder
    return printable(folder if path.stem == "config" and folder else path.stem)
