"""Reads the keys of one config.json: sizes must be there, other keys fall back to the Hugging Face class's default."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from predictor.errors import SpecError, UnsupportedError, nearest
from predictor.models.built.model_types import TRAITS

# No model comes near; a slip of the keyboard must not make a loop of 1e300 layers.
_MOST = 10**9
_MOST_LAYERS = _MOST_EXPERTS = 10**4


class Reader:
    """Typed look-ups in the dictionary of a config.json; every default that was taken is noted in ``assumed``.

    ``where`` names the file and model type in an error: "config.json of llama". ``names``: what the type calls a key
    that most types have: the first present one of several with "|" between them, or "" for a key that it does not have.
    """

    def __init__(self, data: Mapping[str, Any], where: str, names: Mapping[str, str] = MappingProxyType({})) -> None:
        self.data = data
        self.where = where
        self.names = names
        self.assumed: list[str] = []

    def _key(self, key: str) -> str:
        names = self.names.get(key, key).split("|")
        return next((name for name in names if self.data.get(name) is not None), names[0])

    def size(self, key: str) -> int:
        """A size that has no default. Raises SpecError."""
        key = self._key(key)
        if self.data.get(key) is None:
            raise SpecError(f"{self.where}: missing {key!r}, expected a positive integer")
        return self._positive(key, self.data[key])

    def integer(self, key: str, default: int, at_least: int = 1) -> int:
        """An integer of at least ``at_least``; a missing key takes ``default`` and is noted."""
        key = self._key(key)
        if key not in self.data:
            return int(self._assume(key, default))
        return self._positive(key, self.data[key], at_least)

    def optional(self, key: str, default: int | None = None, note: bool = False) -> int:
        """A positive integer, or 0 where the key is null. ``note`` lists a missing key as assumed."""
        key = self._key(key)
        if key not in self.data:
            return int((self._assume(key, default) if note else default) or 0)
        value = self.data[key]
        return 0 if value is None else self._positive(key, value, 0)

    def flag(self, key: str, default: bool, note: bool = True) -> bool:
        """true or false."""
        key = self._key(key)
        if key not in self.data or self.data[key] is None:
            return bool(self._assume(key, default) if note else default)
        value = self.data[key]
        if not isinstance(value, bool):
            raise SpecError(f"{self.where}: {key!r} is {value!r}, expected true or false")
        return value

    def number(self, key: str, default: float, note: bool = True) -> float:
        """A number of at least 0 (a dropout probability, a cap); null reads as 0."""
        key = self._key(key)
        if key not in self.data:
            return float(self._assume(key, default) if note else default)
        value = self.data[key]
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise SpecError(f"{self.where}: {key!r} is {value!r}, expected a number of at least 0")
        return min(float(value), 1e9)

    def indices(self, key: str) -> tuple[int, ...]:
        """A list of layer numbers, empty where it is missing."""
        value = self.data.get(key) or []
        if not isinstance(value, list):
            raise SpecError(f"{self.where}: {key!r} is {value!r}, expected a list of layer numbers")
        return tuple(self._positive(key, item, 0) for item in value)

    def word(self, key: str, default: str) -> str:
        """A string."""
        key = self._key(key)
        if self.data.get(key) is None:
            return str(self._assume(key, default))
        value = self.data[key]
        if not isinstance(value, str):
            raise SpecError(f"{self.where}: {key!r} is {value!r}, expected a string")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        """A nested object, empty where it is missing."""
        value = self.data.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise SpecError(f"{self.where}: {key!r} is {value!r}, expected an object")
        return value

    def _assume(self, key: str, default: Any) -> Any:
        if key:
            self.assumed.append(f"{key}={default}")
        return default

    def _positive(self, key: str, value: Any, at_least: int = 1) -> int:
        if isinstance(value, float) and value.is_integer() and value <= _MOST:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise SpecError(f"{self.where}: {key!r} is {value!r}, expected an integer of at least {at_least}")
        most = _MOST_LAYERS if "layer" in key else _MOST_EXPERTS if "experts" in key else _MOST
        if value > most:
            raise SpecError(f"{self.where}: {key!r} is {str(value)[:12]}..., expected at most {most}")
        return value


#: End of an architecture's class name -> head.
HEADS = {
    "ForCausalLM": "lm", "LMHeadModel": "lm", "ForConditionalGeneration": "lm", "ForMaskedLM": "lm",
    "ForPreTraining": "pretraining", "ForSequenceClassification": "classifier", "Model": "base", "Block": "none",
    "Encoder": "none", "DecoderLayer": "none",
}  # fmt: skip

#: Model type -> the class of a file that names none.
DEFAULT_ARCHITECTURE = {kind: traits.architecture for kind, traits in TRAITS.items()}


def common_fields(reader: Reader, model_type: str, name: str) -> dict[str, Any]:
    """Name, architecture, head and number of labels."""
    listed = reader.data.get("architectures")
    if listed:
        architecture = str(listed[0]) if isinstance(listed, list) else str(listed)
    else:
        architecture = DEFAULT_ARCHITECTURE[model_type]
        reader.assumed.append(f"architectures={architecture}")
    _check_family(reader, architecture, model_type)
    head = next((head for suffix, head in HEADS.items() if architecture.endswith(suffix)), None)
    if head is None or not architecture.isidentifier() or (head == "pretraining" and model_type != "bert"):
        known = DEFAULT_ARCHITECTURE[model_type]
        close = nearest(architecture, DEFAULT_ARCHITECTURE.values(), 1) or (known,)
        raise UnsupportedError(f"{reader.where}: unknown architecture {architecture!r}; nearest: {close[0]}")
    labels = 0
    if head == "classifier":
        id2label = reader.data.get("id2label")
        labels = len(id2label) if isinstance(id2label, dict) and id2label else reader.integer("num_labels", 2)
    return {
        "name": name, "model_type": model_type, "architecture": architecture, "head": head, "num_labels": labels,
    }  # fmt: skip


def _check_family(reader: Reader, architecture: str, model_type: str) -> None:
    """SpecError, one line, where the architecture is the class of another model type: one of the two is wrong."""
    stems = {kind: _stem(name) for kind, name in DEFAULT_ARCHITECTURE.items()}
    lowered = architecture.lower()
    family = max(
        (kind for kind, stem in stems.items() if lowered.startswith(stem)), key=lambda k: len(stems[k]), default=""
    )
    if stems[model_type] == stems.get(family, "") or not lowered.endswith(tuple(end.lower() for end in HEADS)):
        return  # what is no class of a model is another error
    raise SpecError(
        f"{reader.where}: 'architectures' says {architecture!r} and 'model_type' {model_type!r}, which contradict each"
        f" other; expected {DEFAULT_ARCHITECTURE[model_type]}" + (f", or model_type {family!r}" if family else "")
    )


def _stem(architecture: str) -> str:
    """What every class of a model begins with: "llama" of LlamaForCausalLM."""
    return next(architecture.removesuffix(end) for end in HEADS if architecture.endswith(end)).lower()


def head_width(reader: Reader, hidden: int, heads: int) -> int:
    """Width of a head where no key gives it. Raises SpecError where the heads do not divide the width."""
    if hidden % heads:
        raise SpecError(f"{reader.where}: width {hidden} is not a multiple of {heads} heads and there is no 'head_dim'")
    return hidden // heads
