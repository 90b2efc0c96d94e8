"""Time between the sizes that were measured: a line from one measured size to the next.

Trees are steps. What they say of 300 rows is what they learned of 257 or of 512, or of sizes as unaligned as 300 though
far smaller; somewhere between two measured sizes it jumps, where nothing was measured. So core and trees are asked at
measured sizes (knots) alone, and between two of them the logarithm of the time goes along a line in the logarithm of
the size. At a knot the forecast is what was learned there, alignment included: 256 and 257 rows are both knots.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
S = TypeVar("S")

#: Answers that are kept for a GPU and kind of kernel: guards against memory without end, chosen by hand, not from data.
_KEPT = 65_536


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
    def around(cls, columns: Mapping[str, tuple[FloatArray, FloatArray]]) -> Corners:
        """Of (sizes (n,), rising knots) by column; a size beyond the last knot is asked at the last."""
        count = len(next(iter(columns.values()))[0])
        rows, weights = np.arange(count, dtype=np.int64), np.ones(count)
        sizes: dict[str, FloatArray] = {}
        for name, (values, knots) in columns.items():
            at = values[rows]
            upper = np.clip(np.searchsorted(knots, at), 1, len(knots) - 1)
            low, high = knots[upper - 1], knots[upper]
            share: FloatArray = np.clip(np.log(at / low) / np.log(high / low), 0.0, 1.0)
            both = np.concatenate([1.0 - share, share])
            kept = both > 0.0
            rows = np.tile(rows, 2)[kept]
            weights = np.tile(weights, 2)[kept] * both[kept]
            sizes = {other: np.tile(v, 2)[kept] for other, v in sizes.items()}
            sizes[name] = np.concatenate([low, high])[kept]
        return cls(rows, sizes, weights, count)

    def joined(self, answers: FloatArray) -> FloatArray:
        """What ``answers`` (u,) make of the sizes, (n,)."""
        found: FloatArray = np.bincount(self.rows, self.weights * answers, self.count).astype(np.float64)
        return found


class Knots:
    """Times at knots, kept: the points of a sweep share them."""

    def __init__(self) -> None:
        self._known: dict[Hashable, dict[bytes, float]] = {}

    def seconds(self, key: Hashable, shapes: S, corners: Corners, ask: Callable[[S], FloatArray]) -> FloatArray:
        """Seconds of ``shapes``, (n,), from what ``ask`` says of them at their knots.

        ``shapes`` is a dataclass whose arrays are of shape (n,), ``key`` whatever else the answer depends on.
        """
        columns = _columns(shapes, corners)
        table = np.stack(list(columns.values()), axis=1)
        names: list[bytes] = table.view(f"V{8 * len(columns)}").ravel().tolist()
        known = self._known.setdefault(key, {})
        if len(known) + len(names) > _KEPT:
            known.clear()
        new = {name: i for i, name in enumerate(names) if name not in known}
        if new:
            at = list(new.values())
            asked: dict[str, Any] = {name: column[at] for name, column in columns.items()}
            known.update(zip(new, np.log(ask(replace(shapes, **asked))).tolist(), strict=True))  # type: ignore[type-var]
        found: FloatArray = np.exp(corners.joined(np.array([known[name] for name in names])))
        return found


def _columns(shapes: Any, corners: Corners) -> dict[str, FloatArray]:
    """The arrays of ``shapes`` at the questions, by name, (u,) each."""
    every = ((field.name, getattr(shapes, field.name)) for field in fields(shapes))
    columns = {name: values[corners.rows] for name, values in every if isinstance(values, np.ndarray)}
    return {**columns, **corners.sizes}
