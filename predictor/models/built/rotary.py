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


#: Types whose layers with windows turn by angles of their own.
_OWN_ANGLES = ("gemma3_text", "mimo_v2_flash")
#: Types whose positions have three axes (time, height, width), whose angles are put side by side.
_THREE_AXES = ("qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe", "qwen3_vl_moe_text")
#: Types that turn the two halves of a head one after the other, by tables of a half.
_HALVES = ("gpt_oss",)

#: Types that turn neighbours as one complex number, in fp32. Source: transformers 5.24, modeling_llama4.py.
_COMPLEX = ("llama4", "llama4_text")


def joins(config: ModelConfig) -> bool:
    """Whether queries and keys end in a concatenation of a part that is turned and one that is not."""
    turned = config.rotary_dim or config.head_dim
    return config.position == "rotary" and (config.model_type in _JOINED or turned < config.head_dim)


def wide_tables(config: ModelConfig) -> bool:
    """Whether cosines and sines stay in fp32."""
    return config.model_type in _WIDE_TABLES


def tables(w: Writer) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles of every position, one row for all sequences (transformers 5.24, the forward of
    LlamaRotaryEmbedding in modeling_llama.py): position, frequency, both side by side, scaled."""
    c, s = w.config, w.step.seq_len
    dim = c.qk_rope_dim or c.rotary_dim or c.head_dim
    w.tiny("position ids", "fill", s, "int64")
    w.tiny("position ids after the cache", "add_scalar", s, "int64")
    if w.today and c.model_type in _THREE_AXES:
        return _three_axes(w, dim)
    kinds = len({bool(window) for window in c.windows}) if w.today and c.model_type in _OWN_ANGLES else 1
    for _ in range(kinds - 1):
        _tables(w, s, dim)
    return _tables(w, s, dim)


def _tables(w: Writer, s: int, dim: int) -> tuple[Tensor, Tensor]:
    name, wide = "rotary table", w.size < 4
    width = dim // 2 if w.today and w.config.model_type in _HALVES else dim
    w.tiny("rotary positions", "cast", s, "fp32", calls=3)
    if wide:
        w.tiny("rotary frequencies", "cast", dim // 2, "fp32")
    angles = w.tiny("rotary angles", "mul_scalar", s * dim // 2, "fp32")
    if width == dim:
        angles = w.tiny(name, "copy", s * dim, "fp32")
    both = []
    for _ in range(2):
        x = w.put(Elementwise("fp32", "exp", s * width), name, (angles,), w.table(name, s * width, "fp32"))
        scale = Elementwise("fp32", "mul_scalar", s * width)
        both.append(w.put(scale, f"{name} scale", (x,), w.table(f"{name} scale", s * width, "fp32")))
    return _narrowed(w, both)


def _three_axes(w: Writer, dim: int) -> tuple[Tensor, Tensor]:
    """The same of positions of three axes, of which every sequence has its own: angles of all three, and in the table
    of the first those of the other two in their places (transformers 5.24, apply_interleaved_mrope of
    modeling_qwen3_vl.py)."""
    n, name = w.step.tokens, "rotary table"
    w.tiny("rotary positions", "cast", 3 * n, "fp32", calls=7)
    if w.size < 4:
        w.tiny("rotary frequencies", "cast", dim // 2, "fp32")
    angles = w.tiny("rotary angles", "mul_scalar", 3 * n * dim // 2, "fp32")
    each = []
    for _ in range(2):
        x = w.table(name, 3 * n * dim // 2, "fp32")
        x = w.put(Elementwise("fp32", "exp", x.elements), name, (angles,), x)
        each.append(w.each(f"{name} scale", "mul_scalar", x, dtype="fp32"))
    both = []
    for x in each:
        for axis, calls in (("height", 5), ("width", 4)):
            w.tiny(f"{name} {axis}", "copy", n * dim // 6, "fp32", calls=calls)
        out = w.table(name, n * dim, "fp32")
        both.append(w.put(Elementwise("fp32", "copy", n * dim), name, (x,), out))
    return _narrowed(w, both)


def _narrowed(w: Writer, both: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Both tables in the dtype of the activations, unless they stay in fp32."""
    if w.size < 4 and not wide_tables(w.config):
        name = "rotary table cast"
        both = [w.each(name, "cast", x, out=w.table(name, x.elements), in_dtype="fp32") for x in both]
    return both[0], both[1]


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
    if w.today and c.model_type in _HALVES:
        return _rotated_halves(w, "q", q, cos, sin), _rotated_halves(w, "k", k, cos, sin)
    if w.today and c.model_type in _COMPLEX:
        return _rotated_pairs(w, "q", q, dim, cos), _rotated_pairs(w, "k", k, dim, cos)
    return _rotated_heads(w, "q", q, dim, cos, sin), _rotated_heads(w, "k", k, dim, cos, sin)


def _rotated_pairs(w: Writer, which: str, x: Tensor, dim: int, turns: Tensor) -> Tensor:
    """Queries ("q") or keys ("k") whose neighbours are complex numbers, times one of every position (transformers 5.24,
    apply_rotary_emb of modeling_llama4.py)."""
    cast = w.size < 4
    if cast:
        x = w.each(f"rotary {which} to fp32", "cast", x, dtype="fp32", in_dtype=w.act)
    # As a real kernel on both parts: 8 bytes a complex number, 6 FLOP.
    table = w.step.seq_len * dim * 4.0
    calls = 5  # views as pairs and as complex numbers, forth and back
    y = w.each(f"rotary {which} turned", "mul", x, turns, inputs=1, extra=table, calls=calls, dtype="fp32", flops=3.0)
    return w.each(f"rotary {which} from fp32", "cast", y, in_dtype="fp32") if cast else y


def _rotated_halves(w: Writer, which: str, whole: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Both halves of queries ("q") or keys ("k"): first cos - second sin, second cos + first sin, side by side
    (transformers 5.24, _apply_rotary_emb of modeling_gpt_oss.py)."""
    dim = w.config.head_dim
    shape, table = (*whole.shape[:-1], dim // 2), w.step.tokens * dim // 2 * w.size
    joined = (Elementwise(w.act, "copy", whole.elements),) if w.training else ()  # the halves' gradients
    whole = whole.view(at=f"rotary {which} first cos", gradient=joined)
    first, second = (whole.view(whole.axes, shape, part=True) for _ in range(2))
    calls = 4 if which == "q" else 2  # the halves, and of the tables an axis of heads
    parts = []
    for of_cos, of_sin, fn, name in ((first, second, "sub", "first"), (second, first, "add", "second")):
        x = w.each(f"rotary {which} {name} cos", "mul", of_cos, cos, inputs=1, extra=table, calls=calls)
        y = w.each(f"rotary {which} {name} sin", "mul", of_sin, sin, inputs=1, extra=table)
        parts.append(w.each(f"rotary {which} {name}", fn, x, y))
        calls = 1
    out = Tensor(f"rotary {which} join", whole.axes, whole.shape, w.act)
    return w.each(out.name, "copy", *parts, out=out, grad=False)


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
    y = w.each(f"rotary {which} sum", "add", y, turned, dtype=wide, offsets=w.step.seq_len > 1)
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
