"""What a configuration class of transformers makes of a config.json: keys it knows, sizes it assumes, sizes it takes.

Classes take any key and any number; a layer count of -3 is a model without layers, and a missing width that of the
class. Here the first is an error, and the second is named as assumed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from predictor.errors import SpecError, printable
from predictor.models.built.keys import ANY, unknown_keys

#: Keys that say sizes, by their last words. Source: names of the classes of transformers 5.
_SIZE = re.compile(
    r"(?:^|_)(?:layers|heads?|size|sizes|dim|dims|depths?|width|channels|embd|inner|model|ff|kv|ffn|blocks?|vocab"
    r"|positions|experts|kernel|stride|groups)$|^num_hidden_groups$|^n_layers?$|^n_heads?$"
)
#: Of these the number of passes through a layer that are recorded one by one.
_LAYERS = re.compile(r"(?:^|_)(?:layers?|depths?|blocks)$")
#: Sizes that may be 0, where a model has none of what they size.
_MAY_BE_ZERO = re.compile(r"expert|type_vocab|window|pad|rank|memory|cache|adapter|prefix|nextn|mtp|block_size")
#: Layers of a traced model at most, each of which is recorded by itself: a guard, chosen by hand, not from data.
MOST_LAYERS = 1000
#: Most that a size may be, as of built models: a slip of the keyboard.
_MOST = 10**9


class ConfigReading(NamedTuple):
    """Keys that nobody knows, and what the class assumes of sizes: "hidden_size=6144"."""

    ignored: tuple[str, ...]
    assumed: tuple[str, ...]


def keys_of(cls: Any) -> set[str]:
    """Keys that a class knows: what it writes with its defaults, its fields, and its other names of them."""
    keys = set(getattr(cls, "__dataclass_fields__", ())) | set(cls.attribute_map) | set(cls.attribute_map.values())
    with contextlib.suppress(Exception):  # a class that has no defaults
        keys |= set(cls().to_dict())
    return {key for key in keys if not key.startswith("_")} | set(getattr(cls, "sub_configs", ()))


def read_of(cls: Any, data: Mapping[str, Any], where: str, classes: Mapping[str, Any]) -> ConfigReading:
    """What the class makes of ``data``, and those of the configs inside it, which ``classes`` has by model type.

    Raises SpecError, one line, for a misspelt key and for a size that is none.
    """
    ignored = list(unknown_keys(data, keys_of(cls), where))
    other = {**{name: alias for alias, name in cls.attribute_map.items()}, **cls.attribute_map}
    defaults: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # a class that has no defaults
        defaults = cls().to_dict()
    for key, value in data.items():
        if key not in ANY or key in defaults:
            _check_size(key, value, defaults.get(key), where)
    assumed = [
        f"{key}={default}"
        for key, default in defaults.items()
        if _SIZE.search(key) and key not in data and other.get(key) not in data and _is_size(default)
    ]
    for name, inner in getattr(cls, "sub_configs", {}).items():
        if name not in data:
            assumed.append(f"{name} of the class")
        elif isinstance(data[name], Mapping):
            named = classes.get(str(data[name].get("model_type"))) if "model_type" in data[name] else None
            kind = named or inner
            if hasattr(kind, "attribute_map"):
                below = read_of(kind, data[name], f"{where} {name}", classes)
                ignored += (f"{name}.{key}" for key in below.ignored)
                assumed += (f"{name}.{key}" for key in below.assumed)
    return ConfigReading(tuple(ignored), tuple(assumed))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _numbers(value: Any) -> Iterator[float]:
    """The numbers of a value, of a list of them, too."""
    for number in value if isinstance(value, list | tuple) else (value,):
        if isinstance(number, int | float) and not isinstance(number, bool):
            yield number


def _check_size(key: str, value: Any, default: Any, where: str) -> None:
    """SpecError for a size below 1, or one that no model has."""
    if not _SIZE.search(key):
        return
    listed = isinstance(value, list | tuple)  # of layers, their places
    may_be_zero = listed or _MAY_BE_ZERO.search(key) is not None or default in (0, None)
    for number in _numbers(value):
        least = 0 if may_be_zero else 1
        most = MOST_LAYERS if _LAYERS.search(key) else _MOST
        if default == number:
            continue
        if not number >= least:
            raise SpecError(f"{where}: {printable(key)!r} is {number!r}, expected an integer of at least {least}")
        if number > most:
            raise SpecError(
                f"{where}: {printable(key)!r} is {str(number)[:12]}, expected at most {most:,}"
                + " layers in a model that is traced" * (most == MOST_LAYERS)
            )
