"""What a configuration class of transformers makes of a config.json: which keys it knows, which sizes it assumes."""

from __future__ import annotations

import contextlib
from typing import Any


def keys_of(cls: Any) -> set[str]:
    """Keys that a class knows: what it writes with its defaults, its fields, and its other names of them."""
    found = set(getattr(cls, "__dataclass_fields__", ())) | set(cls.attribute_map) | set(cls.attribute_map.values())
    with contextlib.suppress(Exception):  # a class that has no defaults
        found |= set(cls().to_dict())
    return {key for key in found if not key.startswith("_")} | set(getattr(cls, "sub_configs", ()))
