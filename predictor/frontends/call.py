"""A call of an operator as a frontend sees it: sizes, dtypes and strides of what it reads and makes, and its numbers.

Nothing here knows of torch: tables of operators (`predictor.frontends.aten`) work on these alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from predictor.dtypes import bytes_of
from predictor.graph.tensor import WEIGHT


def words_of(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


class Operand(NamedTuple):
    """A tensor of a call: ``stride`` in elements, ``dtype`` one of `predictor.dtypes`, ``role`` one of `ROLES`. ``key``
    tells its memory from that of others (0: unknown)."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    role: str
    key: int = 0

    @property
    def elements(self) -> int:
        """Entries, those that an expanded axis repeats among them."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> float:
        return bytes_of(self.dtype)

    @property
    def nbytes(self) -> float:
        return self.elements * self.itemsize

    @property
    def unique(self) -> int:
        """Entries that lie in memory: an expanded axis (stride 0) counts once."""
        return math.prod(size for size, step in zip(self.shape, self.stride, strict=True) if step or size == 0)

    @property
    def is_weight(self) -> bool:
        return self.role == WEIGHT

    @property
    def column_major(self) -> bool:
        """Of a matrix (its last two axes): whether a column's entries lie side by side, and a row's do not."""
        return len(self.shape) > 1 and self.stride[-2] == 1 and self.stride[-1] != 1 and self.shape[-1] > 1


class Call(NamedTuple):
    """One call. ``args`` and ``kwargs`` hold operands where the framework's have tensors, lists of them too."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[Operand, ...]

    def arg(self, place: int, name: str = "", default: Any = None) -> Any:
        """The argument at ``place``, or by ``name``."""
        if place < len(self.args):
            return self.args[place]
        return self.kwargs.get(name, default)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Every tensor that it reads, in order."""
        return tuple(_operands((*self.args, *self.kwargs.values())))

    @property
    def out(self) -> Operand:
        return self.outs[0]


def _operands(values: Any) -> Iterator[Operand]:
    for value in values:
        if isinstance(value, Operand):
            yield value
        elif isinstance(value, list | tuple):
            yield from _operands(value)
