"""Layers of a decoder that are alike: in what they hold, and in the number formats that they hold it in."""

from __future__ import annotations

from collections.abc import Iterator

from predictor.networks.config import ModelConfig
from predictor.parts import Formats

#: (sparse, sliding window, how many layers, their formats)
Group = tuple[bool, int, int, Formats]


def layers_alike(config: ModelConfig, formats: Formats) -> Iterator[Group]:
    """Groups of layers in order of first appearance, as `ModelConfig.layer_groups`, told apart by formats too."""
    if not formats.layers:
        yield from ((*group, formats) for group in config.layer_groups())
        return
    apart = {number for number, _ in formats.layers}
    rest = formats.at(-1)
    found: dict[tuple[bool, int, Formats], int] = {}
    for layer in range(config.layers):
        window = config.windows[layer] if config.windows else 0
        key = (config.is_sparse(layer), window, formats.at(layer) if layer in apart else rest)
        found[key] = found.get(key, 0) + 1
    yield from ((sparse, window, count, of) for (sparse, window, of), count in found.items())
