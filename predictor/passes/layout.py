"""Where rules split the axes of tensors over a mesh (`predictor.passes.shard` makes a rank's graph of it)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from predictor.errors import RequestError

#: Logical axis -> axis of the mesh.
Rules = Mapping[str, str]


class Cut(NamedTuple):
    """An axis of a tensor that rules split."""

    place: int
    name: str
    degrees: tuple[int, ...]  # of its segments
    degree: int  # of all of them, 0 where they differ
    over: tuple[str]  # the axis of the mesh
    soft: bool = False


class Layout:
    """What rules do to the axes of tensors, kept from graph to graph."""

    def __init__(
        self, axes: tuple[tuple[str, int], ...], rules: tuple[tuple[str, str], ...],
        soft: tuple[tuple[str, str], ...] = (),
    ) -> None:  # fmt: skip
        degrees = dict(axes)
        self.soft = {axis: (degrees[to], to) for axis, to in soft if degrees.get(to, 1) > 1}
        self.degrees = {axis: (degrees[to], to) for axis, to in rules if to in degrees}
        self.known: dict[tuple[str, ...], tuple[Cut, ...]] = {}

    def cuts(self, axes: tuple[str, ...]) -> tuple[Cut, ...]:
        """The axes that are split, of a tensor that has these."""
        cuts: list[Cut] = []
        taken: set[str] = set()
        for place, name in enumerate(axes):
            ruled = [self.degrees.get(part, (1, "")) for part in name.split(" | ")]
            over = {axis for degree, axis in ruled if degree > 1}
            if len(over) > 1 or over & taken:
                raise RequestError(f"axes {', '.join(axes)}: expected rules that split one over {', '.join(over)}")
            if over:
                taken |= over
                degrees = tuple(degree for degree, _ in ruled)
                cuts.append(Cut(place, name, degrees, degrees[0] if len(set(degrees)) == 1 else 0, (over.pop(),)))
        for place, name in enumerate(axes):
            degree, to = self.soft.get(name, (1, ""))
            if degree > 1 and to not in taken:
                taken.add(to)
                cuts.append(Cut(place, name, (degree,), degree, (to,), True))
        self.known[axes] = tuple(cuts)
        return self.known[axes]


#: Guards against memory without end; chosen by hand, not from data.
layout_of = lru_cache(maxsize=256)(Layout)
