"""Rotary positions on queries and keys, kernel by kernel as the classes of transformers turn them.

Shape legend: b sequences, s query tokens a sequence, a heads, d head width. Calls and kernels are those of each class's
`apply_rotary_pos_emb`, `rotate_half` and attention in transformers 5.24, models/TYPE/modeling_TYPE.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from predictor.graph.tensor import Tensor
from predictor.models.built.writer import Writer
from predictor.ops.elementwise import Elementwise

if TYPE_CHECKING:
    from predictor.models.built.config import ModelConfig

#: Types that slice a head into what is turned and what is not, and join both again, even where all of it is turned.
_JOINED = ("phi3", "glm4", "minimax_m2")
#: Types that turn neighbours in place of halves: every other number is picked, and the pairs are stacked and flattened.
_NEIGHBOURS = ("cohere", "glm4")
#: Types that repeat each number of both tables in every layer: a slice of a half, and `repeat_interleave`.
_REPEATED = ("glm4",)
#: Types that turn in fp32: queries and keys are widened before. Those that leave the tables in fp32, which widens what
#: they are multiplied with: both cast the result back.
_WIDENED, _WIDE_TABLES = ("cohere",), ("olmo2",)
#: Types that take q, k and v from one product by three slices in place of one split: the two more come with q.
_SLICED_QKV = ("phi3",)
#: Calls of a `repeat_interleave` along the last axis beside its copy, the slice in front included. Source: PyTorch
#: 2.13, aten/src/ATen/native/Repeat.cpp.
_REPEAT_VIEWS = 4


def joins(config: ModelConfig) -> bool:
    """Whether queries and keys end in a concatenation of a part that is turned and one that is not."""
    turned = config.rotary_dim or config.head_dim
    return config.position == "rotary" and (config.model_type in _JOINED or turned < config.head_dim)


def wide_tables(config: ModelConfig) -> bool:
    """Whether cosines and sines stay in fp32."""
    return config.model_type in _WIDE_TABLES


def rotated(w: Writer, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """q and k with the first ``rotary_dim`` numbers of every head turned: x cos + rotate_half(x) sin."""
    c = w.config
    dim = c.rotary_dim or c.head_dim
    cos, sin = w.rotations or (w.table("rotary table", w.step.tokens * dim),) * 2
    if c.model_type in _REPEATED:
        cos, sin = (
            w.tiny(f"rotary {name} repeated", "copy", w.step.seq_len * dim, w.act, calls=1 + _REPEAT_VIEWS)
            for name in ("cos", "sin")
        )
    return _rotated_heads(w, "q", q, dim, cos, sin), _rotated_heads(w, "k", k, dim, cos, sin)


def _rotated_heads(w: Writer, which: str, whole: Tensor, dim: int, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries ("q") or keys ("k"), the first ``dim`` numbers of every head turned."""
    c = w.config
    shape, size = (*whole.shape[:-1], dim), w.size
    wide = "fp32" if size < 4 and c.model_type in (*_WIDENED, *_WIDE_TABLES) else w.act
    n, table = math.prod(shape), w.step.tokens * dim * (4 if wide_tables(c) else size)
    joined, partly = joins(c), dim < c.head_dim
    if w.training:  # slices' gradients lie head by head, and the products want tokens: copied
        whole = whole.view(gradient=(Elementwise(w.act, "copy", whole.elements),), at=f"rotary {which} neg")
    # A slice's gradient is copied into zeros for the whole.
    zeros = Elementwise(w.act, "fill", whole.elements)
    of_turned = (zeros, Elementwise(w.act, "copy", n)) if w.training and partly else ()
    x = whole.view(whole.axes, shape, of_turned, at=f"rotary {which} neg")
    if c.model_type in _WIDENED and wide != w.act:
        x = w.each(f"rotary {which} to fp32", "cast", x, dtype=wide, in_dtype=w.act).view()
    calls = (3 if which == "q" else 1) + (2 if joined else 0)  # the tables get an axis of heads once; two slices
    if c.model_type in _SLICED_QKV and which == "q":
        calls += 2
    narrow = (Elementwise(w.act, "cast", n, in_dtype=wide),) if w.training and wide != x.dtype else ()
    y = x.view(gradient=narrow) if narrow else x
    y = w.each(f"rotary {which} cos", "mul", y, cos, inputs=1, extra=table, calls=calls, dtype=wide)
    # Each half of the input is a slice, whose gradient is copied into zeros and then added to that of the other.
    each = (Elementwise(x.dtype, "fill", n), Elementwise(x.dtype, "copy", n // 2)) if w.training else ()
    halves = x.view(gradient=(*each, *each), at=f"rotary {which} neg")
    turned = Tensor(f"rotary {which} neg", x.axes, (*x.shape[:-1], dim // 2), x.dtype)
    w.each(f"rotary {which} neg", "neg", halves, out=turned, calls=3, dtype=x.dtype)
    turned = w.each(
        f"rotary {which} cat", "copy", turned, halves, out=Tensor("cat", x.axes, shape, x.dtype), grad=False,
        dtype=x.dtype,
    )  # fmt: skip
    flat = 2 if c.model_type in _NEIGHBOURS else 1  # neighbours are flattened first
    turned = w.each(
        f"rotary {which} sin", "mul", turned.view(gradient=narrow), sin, inputs=1, extra=table, calls=flat, dtype=wide
    )
    y = w.each(f"rotary {which} sum", "add", y, turned, dtype=wide)
    if wide != w.act:
        y = w.each(f"rotary {which} from fp32", "cast", y, in_dtype=wide)
    if not joined:
        return y
    out = Tensor("join", whole.axes, (*whole.shape[:-1], c.head_dim), w.act)
    if not partly:
        return w.each(f"rotary {which} join", "copy", y, out=out, grad=False)
    rest = (*whole.shape[:-1], c.head_dim - dim)
    of_rest = (zeros, Elementwise(w.act, "copy", math.prod(rest))) if w.training else ()
    kept = whole.view(whole.axes, rest, of_rest, at=f"rotary {which} neg")
    return w.each(f"rotary {which} join", "copy", y, kept, out=out, grad=False)
