"""Time between the sizes that were measured: a line from one measured size to the next.

Trees are steps. What they say of 300 rows is what they learned of 257 or of 512, or of sizes as unaligned as 300 though
far smaller; somewhere between two measured sizes it jumps, where nothing was measured. So core and trees are asked at
measured sizes (knots, which a fit stores with the trees) alone, and between two of them the logarithm of the time goes
along a line in the logarithm of the size. At a knot the forecast is what was learned there, alignment included: 256 and
257 rows are both knots.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from predictor.files.records import dataclass, replace

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
S = TypeVar("S")

#: Answers that are kept for a GPU and kind of kernel: guards against memory without end, chosen by hand, not from data.
_KEPT = 65_536
#: Knots go on to here in octaves, by definition more than any size.
_OCTAVES = 48


@dataclass(frozen=True, slots=True)
class Knots:
    """Sizes of one column, rising (k,), with their logarithms and places."""

    sizes: FloatArray
    logs: FloatArray
    places: FloatArray

    @classmethod
    def of(cls, measured: Sequence[float]) -> Knots:
        """Measured sizes, rising; halved down to 1 below the least of them, doubled above the largest."""
        least, most = measured[0], measured[-1]
        below = {float(max(1, int(least) >> i)) for i in range(_OCTAVES)} - {least}
        sizes = np.array([*sorted(below), *measured, *(most * 2.0**i for i in range(1, _OCTAVES))], dtype=np.float64)
        return cls(sizes, np.log(sizes), np.arange(len(sizes), dtype=np.float64))


#: Knots of one booster, by column.
Grid = Mapping[str, Knots]


@dataclass(frozen=True, slots=True)
class Corners:
    """The knots around n sizes: u questions, and how their answers make those of the sizes.

    ``rows`` (u,): whose other columns a question has; ``sizes``: its knot in each column, (u,) each. ``weights`` (u,)
    sum to 1 over the questions of one size.
    """

    rows: IntArray
    sizes: Mapping[str, FloatArray]
    weights: FloatArray
    count: int

    @classmethod
    def around(cls, columns: Mapping[str, tuple[FloatArray, Knots]], rows: IntArray | None = None) -> Corners:
        """Of (sizes (n,), knots) by column; of ``rows`` of them alone where these are given."""
        count = len(next(iter(columns.values()))[0])
        rows = np.arange(count) if rows is None else rows
        weights = np.ones(len(rows))
        sizes: dict[str, FloatArray] = {}
        for name, (values, knots) in columns.items():
            position = np.interp(np.log(values.take(rows)), knots.logs, knots.places)
            below = position.astype(np.int64)
            share = position - below
            between = share.nonzero()[0]
            at = knots.sizes.take(below)
            if between.size:
                above = weights.take(between) * share.take(between)
                weights[between] -= above
                weights = np.concatenate((weights, above))
                rows = np.concatenate((rows, rows.take(between)))
                sizes = {other: np.concatenate((v, v.take(between))) for other, v in sizes.items()}
                at = np.concatenate((at, knots.sizes.take(below.take(between) + 1)))
            sizes[name] = at
        return cls(rows, sizes, weights, count)

    def table(self, shapes: Any) -> tuple[list[str], FloatArray]:
        """(names of the arrays of ``shapes``, a dataclass with slots, their values at the questions (names, u))."""
        names = [name for name in shapes.__slots__ if isinstance(getattr(shapes, name), np.ndarray)]
        table = np.array([getattr(shapes, name) for name in names]).take(self.rows, axis=1)
        for name, values in self.sizes.items():
            table[names.index(name)] = values
        return names, table

    def at(self, shapes: S) -> S:
        """``shapes``, whose arrays are of shape (n,), at the questions: (u,)."""
        names, table = self.table(shapes)
        return replace(shapes, **dict(zip(names, table, strict=True)))  # type: ignore[type-var]

    def joined(self, answers: FloatArray) -> FloatArray:
        """What ``answers`` (u,) make of the sizes, (n,)."""
        sums: FloatArray = np.bincount(self.rows, self.weights * answers, self.count).astype(np.float64, copy=False)
        return sums


def together(parts: Sequence[Corners]) -> Corners:
    """The questions of several groups of the same sizes, each of rows of its own."""
    if len(parts) == 1:
        return parts[0]
    rows, weights = (np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "weights"))
    sizes = {name: np.concatenate([part.sizes[name] for part in parts]) for name in parts[0].sizes}
    return Corners(rows, sizes, weights, parts[0].count)


class Answers:
    """Times at knots, kept: the points of a sweep share them."""

    def __init__(self) -> None:
        self._known: dict[Hashable, dict[bytes, float]] = {}

    def seconds(self, key: Hashable, shapes: S, corners: Corners, ask: Callable[[S], FloatArray]) -> FloatArray:
        """Seconds of ``shapes``, (n,), from what ``ask`` says of them at their knots.

        ``shapes`` is a dataclass with slots whose arrays are of shape (n,), ``key`` whatever else the answer depends
        on.
        """
        names, table = corners.table(shapes)
        questions: list[bytes] = np.ascontiguousarray(table.T).view(f"V{8 * len(names)}").ravel().tolist()
        known = self._known.setdefault(key, {})
        if len(known) + len(questions) > _KEPT:
            known.clear()
        new = {question: i for i, question in enumerate(questions) if question not in known}
        if new:
            few = table.take(list(new.values()), axis=1)
            asked = replace(shapes, **dict(zip(names, few, strict=True)))  # type: ignore[type-var]
            known.update(zip(new, np.log(ask(asked)).tolist(), strict=True))
        seconds: FloatArray = np.exp(corners.joined(np.array([known[question] for question in questions])))
        return seconds
