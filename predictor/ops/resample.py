"""Pooling and interpolation: every result is made of a window of the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from predictor.files.records import dataclass, replace
from predictor.ops.base import BACKWARD, FORWARD, Gradient, Kept, Op, Piece
from predictor.ops.elementwise import PlainElementwise

#: Inputs that a result of an interpolation is made of along one dimension, by mode. By definition of the modes.
SUPPORT = {"nearest": 1, "linear": 2, "bilinear": 2, "trilinear": 2, "bicubic": 4}
_INDEX_BYTES = 8  # by definition of int64, in which max pooling keeps where its maxima are


@dataclass(frozen=True, slots=True)
class Pool(PlainElementwise):
    """Pooling of ``maps`` planes (batch x channels) of ``in_pixels`` into ``pixels`` results of ``taps`` inputs each.

    ``kind`` is "max" (writes where each maximum is, too, in ``training``) or "avg", global pooling a window of the
    whole plane.
    """

    maps: int
    in_pixels: int
    pixels: int
    taps: int
    kind: str = "max"
    training: bool = False
    phase: str = FORWARD

    fn: ClassVar[str] = "pool"

    @property
    def label(self) -> str:
        return "pooling"

    @property
    def elements(self) -> int:
        """Of what it writes."""
        return self.maps * (self.in_pixels if self.phase == BACKWARD else self.pixels)

    @property
    def _indices(self) -> float:
        return float(self.maps * self.pixels * _INDEX_BYTES) if self.kind == "max" and self.training else 0.0

    @property
    def read_bytes(self) -> float:
        if self.phase == BACKWARD:
            return self.maps * self.pixels * self.itemsize + self._indices
        return self.maps * min(self.in_pixels, self.pixels * self.taps) * self.itemsize

    @property
    def write_bytes(self) -> float:
        return self.elements * self.itemsize + (self._indices if self.phase == FORWARD else 0.0)

    @property
    def flop_count(self) -> float:
        return float(self.maps * self.pixels * self.taps)

    def backward(self) -> tuple[Op, ...]:
        return () if self.phase == BACKWARD else (replace(self, phase=BACKWARD),)

    def gradients(self) -> tuple[Gradient, ...]:
        if self.phase == BACKWARD:
            return ()
        return (Gradient((0,), (0,), kept=(0,)),) if self._indices else (Gradient((0,)),)

    def kept(self) -> tuple[Kept, ...]:
        """Where the maxima are."""
        return (Kept("indices", "int64"),) if self._indices and self.phase == FORWARD else ()

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Pool:
        """Its planes."""
        return replace(self, maps=outputs[0].share(self.maps))


@dataclass(frozen=True, slots=True)
class Interpolate(PlainElementwise):
    """Resizes ``maps`` planes of ``in_pixels`` to ``pixels`` each; ``kind`` is a mode of `SUPPORT`, in ``dims``
    dimensions."""

    maps: int
    in_pixels: int
    pixels: int
    kind: str = "nearest"
    dims: int = 2
    phase: str = FORWARD

    fn: ClassVar[str] = "interpolate"

    @property
    def label(self) -> str:
        return "interpolation"

    @property
    def elements(self) -> int:
        """Of what it writes."""
        return self.maps * (self.in_pixels if self.phase == BACKWARD else self.pixels)

    @property
    def _taps(self) -> int:
        return int(SUPPORT.get(self.kind, 2) ** self.dims)

    @property
    def read_bytes(self) -> float:
        if self.phase == BACKWARD:
            return self.maps * self.pixels * self.itemsize
        return self.maps * min(self.in_pixels, self.pixels * self._taps) * self.itemsize

    @property
    def write_bytes(self) -> float:
        return self.elements * self.itemsize

    @property
    def flop_count(self) -> float:
        return self.maps * self.pixels * (2.0 * self._taps if self._taps > 1 else 0.0)

    def backward(self) -> tuple[Op, ...]:
        return () if self.phase == BACKWARD else (replace(self, phase=BACKWARD),)

    def gradients(self) -> tuple[Gradient, ...]:
        return () if self.phase == BACKWARD else (Gradient((0,)),)

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Interpolate:
        """Its planes."""
        return replace(self, maps=outputs[0].share(self.maps))
