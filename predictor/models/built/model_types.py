"""Model types as data: what the configuration class of each says, an entry a type of ``model_types.json``.

An entry names the class, its defaults, what of a `ModelConfig` is fixed (``fields``) and what keys of a config.json say
(``keys``: field -> [key, default]; of keys with "|" between them the first that is there; "?" at the end: a missing key
is not noted). ``like`` lists shared groups and other types that an entry takes over; its own values replace theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from predictor.files.read import read_json
from predictor.files.records import dataclass

TABLE = Path(__file__).parent / "model_types.json"


@dataclass(frozen=True, slots=True)
class Traits:
    """One model type. ``kv_heads`` None: all attention heads; ``head_dim`` 0: width over heads. ``intermediate`` is the
    width of the feed-forward, or ``expansion`` that width over the model's; without both every layer says its own.
    ``names``: what the type calls keys that most have (`predictor.models.built.reader.Reader`).

    ``windows``: which layers have a sliding window: "" none; else those that "layer_types" names, and in a file without
    them "all", "even" ones, "5 of 6" or "late" ones. ``switch``: the key that has to be true for windows at all.
    ``layers``: the rule of layers that differ in more than experts and windows (`predictor.models.built.layer_rules`).
    """

    architecture: str
    positions: int
    intermediate: int = 0
    expansion: int = 0
    kv_heads: int | None = None
    head_dim: int = 0
    tie: bool = False
    activation: str = "silu"
    windows: str = ""
    window: int = 0
    switch: str = ""
    rotary: float = 1.0  # share of a head that is rotated, where no key says so
    fields: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, tuple[str, Any]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    layers: str = ""


def _merged(entries: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An entry with all that it takes over."""
    entry = dict(entries[name])
    merged: dict[str, Any] = {}
    for part in (*(_merged(entries, other) for other in entry.pop("like", ())), entry):
        for key, said in part.items():
            merged[key] = merged.get(key, {}) | said if isinstance(said, dict) else said
    return merged


def _traits() -> dict[str, Traits]:
    table = read_json(TABLE)
    entries = table["shared"] | table["types"]
    return {name: Traits(**_merged(entries, name)) for name in table["types"]}


TRAITS: Mapping[str, Traits] = _traits()
