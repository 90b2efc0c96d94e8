"""What a quantized checkpoint says of a model whose modules no reader names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.networks.checkpoint import MODULES, rules_of
from predictor.parts import Checkpoint

#: Layers whose modules are looked at: the first two, which mixed stacks have otherwise, and one within. Chosen by hand,
#: not from data.
_LAYERS = (0, 1, 7)


def checkpoint_of_any(data: Mapping[str, Any], where: str) -> Checkpoint | None:
    """The checkpoint of a config.json (`predictor.networks.checkpoint.read_checkpoint`): one word for all linear layers
    of the layers. Where some of these have words of their own, or stay as they were, that is its ``trouble``."""
    rules = rules_of(data, where)
    if rules is None or isinstance(rules, Checkpoint):
        return rules
    names = [f"model.layers.{i}.{name}" for i in _LAYERS for part in MODULES.values() for name in part]
    if rules.single or any(rules.of(name) != rules.word for name in names):
        trouble = f"{where}: some layers have formats of their own, and no reader knows this model_type"
        return Checkpoint("", method=rules.method, trouble=trouble)
    return Checkpoint(rules.word, (("head", rules.word),) if rules.head else (), (), rules.kv, rules.method)
