"""Model types as data: what the configuration class of each says, an entry a type of ``model_types.json``.

An entry names the class, its defaults, what of a `ModelConfig` is fixed (``fields``) and what keys of a config.json say
(``keys``: field -> [key, default]; of keys with "|" between them the first that is there; "?" at the end: a missing key
is not noted). ``like`` lists what an entry takes over: shared groups and other types, whose values its own replace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from predictor.files.read import read_json

TABLE = Path(__file__).parent / "model_types.json"


@dataclass(frozen=True, slots=True)
class Traits:
    """One model type. ``kv_heads`` None: all attention heads; ``head_dim`` 0: width over heads.

    ``windows``: which layers have a sliding window: "" none; else those that "layer_types" names, and in a file without
    them "all", "even" ones, "5 of 6" or "late" ones. ``switch``: the key that has to be true for windows at all.
    ``layers``: the rule of layers that differ in more than experts and windows (`predictor.models.built.layer_rules`).
    """

    architecture: str
    intermediate: int
    positions: int
    kv_heads: int | None = None
    head_dim: int = 0
    tie: bool = False
    activation: str = "silu"
    activation_key: str = "hidden_act"
    windows: str = ""
    window: int = 0
    switch: str = ""
    rotary: float = 1.0  # share of a head that is rotated, where no key says so
    fields: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, tuple[str, Any]] = field(default_factory=dict)
    layers: str = ""


def _merged(entries: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An entry with all that it takes over."""
    entry = dict(entries[name])
    merged: dict[str, Any] = {"fields": {}, "keys": {}}
    for part in (*(_merged(entries, other) for other in entry.pop("like", ())), entry):
        fields, keys = merged["fields"] | part.get("fields", {}), merged["keys"] | part.get("keys", {})
        merged |= {**part, "fields": fields, "keys": keys}
    return merged


def _traits() -> dict[str, Traits]:
    table = read_json(TABLE)
    entries = table["shared"] | table["types"]
    return {name: Traits(**_merged(entries, name)) for name in table["types"]}


TRAITS: Mapping[str, Traits] = _traits()
