"""Tensors: what flows along the edges of a graph, with a logical name for each axis.

Axis names: batch, sequence, tokens (of a ragged batch, packed), hidden, heads, kv_heads, head_dim, kv (positions that
attention sees), mlp, vocab, expert, latent. An axis that holds several segments side by side names them all: "heads |
kv_heads | kv_heads" is the merged projection of q, k and v. What such an axis, or one of heads whose widths lie side by
side, is made of stands in ``Tensor.segments``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from predictor.formats.dtypes import bytes_of
from predictor.ops.base import Op

#: What a tensor is to the model.
ROLES = WEIGHT, ACTIVATION, STATE, INDEX, GRADIENT = "weight", "activation", "state", "index", "gradient"


#: Name of an axis -> (how many, how wide each) of its segments.
Segments = Mapping[str, tuple[tuple[int, int], ...]]
_WHOLE: Segments = MappingProxyType({})


class Tensor:
    """One tensor; two are the same only if they are one object. Nothing writes to one after it was made.

    ``axes`` names the axes, ``shape`` has their sizes. ``role`` is one of `ROLES`; gradients flow through weights and
    activations, not through an index or a state (a mask, a table, a cache). A gradient has the name, the axes and the
    shape of the tensor that it is the gradient of. ``segments`` of an axis are what it is made of where that is more
    than entries side by side: (how many, how wide each), as ((32, 128), (8, 128), (8, 128)) of the merged projection of
    q, k and v.
    """

    __slots__ = ("axes", "dtype", "name", "role", "segments", "shape")

    #: What a `View` says beside that.
    base: Tensor | None = None
    gradient: tuple[Op, ...] | None = ()
    part: bool = False
    at: str = ""

    def __init__(
        self, name: str, axes: tuple[str, ...], shape: tuple[int, ...], dtype: str, role: str = ACTIVATION,
        segments: Segments = _WHOLE,
    ) -> None:  # fmt: skip
        self.name = name
        self.axes = axes
        self.shape = shape
        self.dtype = dtype
        self.role = role
        self.segments = segments

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in zip(self.axes, self.shape, strict=True))
        return f"Tensor({self.name!r}, {axes}, {self.dtype}, {self.role})"

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> float:
        """Bytes of its elements."""
        return math.prod(self.shape) * bytes_of(self.dtype)

    @property
    def storage(self) -> Tensor:
        """The tensor that holds the memory: itself, or what it is a view of in the end."""
        base = self
        while base.base is not None:
            base = base.base
        return base

    @property
    def depth(self) -> int:
        """How many views lie between it and its storage."""
        return 0 if self.base is None else 1 + self.base.depth

    def view(
        self,
        axes: tuple[str, ...] = (),
        shape: tuple[int, ...] = (),
        gradient: tuple[Op, ...] | None = (),
        part: bool = False,
        at: str = "",
    ) -> Tensor:
        """A view of this tensor: other axes, a slice, another order; the same axes where none are given."""
        axes, shape = (axes, shape) if axes else (self.axes, self.shape)
        return View(self, axes, shape, self.role, gradient, part, at, self.segments if axes is self.axes else _WHOLE)

    def detached(self) -> Tensor:
        """A view that autograd does not follow."""
        return View(self, self.axes, self.shape, STATE, None, segments=self.segments)

    def copied(self, base: Tensor | None = None) -> Tensor:
        """Another tensor that says the same of itself; of a view, one of ``base``."""
        if base is None:
            return Tensor(self.name, self.axes, self.shape, self.dtype, self.role, self.segments)
        return View(base, self.axes, self.shape, self.role, self.gradient, self.part, self.at, self.segments)


class View(Tensor):
    """Another look at a ``base``, whose storage it shares.

    ``gradient`` are the operators that bring its gradient into the layout of the base: none for a view whose gradient
    is a view again, None where nothing is added to the base's. ``part``: it is one of the slices that make up the base,
    so that their gradients are joined, not added.
    ``at``: the node of the block whose name those operators have, and the sums of this tensor's gradients (where the
    block has none: the first that reads it). They run when the last gradient has arrived, whatever their name.
    """

    __slots__ = ("at", "base", "gradient", "part")

    def __init__(
        self,
        base: Tensor,
        axes: tuple[str, ...],
        shape: tuple[int, ...],
        role: str,
        gradient: tuple[Op, ...] | None = (),
        part: bool = False,
        at: str = "",
        segments: Segments = _WHOLE,
    ) -> None:
        self.name = base.name
        self.axes = axes
        self.shape = shape
        self.dtype = base.dtype
        self.role = role
        self.base = base
        self.gradient = gradient
        self.part = part
        self.at = at
        self.segments = segments
