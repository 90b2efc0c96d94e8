"""Parts of a model that may keep their weights in number formats of their own: which format each one has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from predictor.files.records import dataclass, replace
from predictor.formats.quantization import weight_bytes

#: Parts of the layers. "attention.qkv" are the projections of plain attention; q_a, q_b, kv_a and kv_b those of latent
#: attention (q_b is the query's only one where it has no rank).
LAYER_PARTS = (
    "attention.qkv", "attention.q_a", "attention.q_b", "attention.kv_a", "attention.kv_b", "attention.out",
    "mlp.up", "mlp.down", "shared_experts", "experts",
)  # fmt: skip
#: Parts that stay in 16 bit or more unless a format is named for them.
HIGH_PARTS = ("router", "head", "embedding")
PARTS = (*LAYER_PARTS, *HIGH_PARTS)


class Format(NamedTuple):
    """In what a product computes, and the quantization scheme of its operands ("" for none)."""

    dtype: str
    quant: str = ""

    @property
    def weight_bytes(self) -> float:
        """Bytes of one stored weight, its scales included."""
        return weight_bytes(self.dtype, self.quant)


Named = tuple[tuple[str, Format], ...]


@dataclass(frozen=True, slots=True)
class Formats:
    """The format of every part. ``high`` is that of the products of activations and of `HIGH_PARTS`, ``linear`` that of
    the parts of the layers; ``own`` names parts that have another, ``layers`` those of single layers beyond that.
    """

    high: Format
    linear: Format
    own: Named = ()
    layers: tuple[tuple[int, Named], ...] = ()

    def of(self, part: str) -> Format:
        """The format of ``part``, one of `PARTS`."""
        for name, format_of_part in self.own:
            if name == part:
                return format_of_part
        return self.high if part in HIGH_PARTS else self.linear

    def at(self, layer: int) -> Formats:
        """The formats of one layer, which are those of all where nothing is said of it."""
        for number, named in self.layers:
            if number == layer:
                return replace(self, own=tuple((dict(self.own) | dict(named)).items()), layers=())
        return replace(self, layers=()) if self.layers else self

    def among(self, layers: Sequence[int]) -> tuple[tuple[Formats, tuple[int, ...]], ...]:
        """The formats that ``layers`` have, in order of first appearance, each with the numbers of its layers."""
        if not self.layers:
            return ((self, tuple(layers)),)
        apart, rest = {number for number, _ in self.layers}, self.at(-1)
        layers_of: dict[Formats, list[int]] = {}
        for layer in layers:
            layers_of.setdefault(self.at(layer) if layer in apart else rest, []).append(layer)
        return tuple((formats, tuple(alike)) for formats, alike in layers_of.items())


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint says of its numbers, in words of `--dtype` ("" is 16 bit).

    ``scheme``: the word of the parts of the layers, ``own``: the parts that have another, ``layers``:
    those of single layers beyond that, ``kv``: dtype of the KV cache ("": the engine's choice), ``method``: what the
    file calls the scheme, ``trouble``: why that has no word, one line, ``notes``: what an answer in it has to say.
    """

    scheme: str
    own: tuple[tuple[str, str], ...] = ()
    layers: tuple[tuple[int, tuple[tuple[str, str], ...]], ...] = ()
    kv: str = ""
    method: str = ""
    trouble: str = ""
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """Every word in use, the layers' first."""
        single = (word for _, named in self.layers for _, word in named)
        return tuple(word for word in dict.fromkeys((self.scheme, *(w for _, w in self.own), *single)) if word)


def plain(dtype: str) -> Formats:
    """Every part in one dtype."""
    return Formats(Format(dtype), Format(dtype))


def stored_bytes(counts: Mapping[str, int], formats: Formats) -> float:
    """Bytes of parameters counted by part; "" counts norms and biases, which are kept as embeddings are."""
    return sum(n * (formats.of(part) if part else formats.high).weight_bytes for part, n in counts.items())
