"""Masks that unfused attention adds to its scores, and the buckets of relative positions, as eager PyTorch makes them
once a pass.

Shape legend: b sequences, s query tokens, t key positions. Kernels are those of transformers 5.24 (masking_utils.py,
and T5's `compute_bias` in modeling_t5.py), of a release of 2023 those of 4.28.
"""

from __future__ import annotations

from predictor.models.built.model_types import TRAITS
from predictor.models.built.writer import Writer
from predictor.ops.elementwise import Elementwise

#: Types that write attention out whatever is asked, as their positions are added to the scores.
_WRITTEN_OUT = ("bloom", "mpt")
#: Types whose class makes a mask of ones and hands it on, though no token is padding (transformers 5.24,
#: modeling_switch_transformers.py).
_ONES = ("switch_transformers",)
#: Types whose windows are chunks: two positions see one another where both, over the chunk's size, are one number.
_CHUNKED = ("llama4", "llama4_text")
#: Calls of a mask over b, heads, s and t: three axes for each of the four positions, and its first kernel. Source:
#: transformers 5.24, sdpa_mask of masking_utils.py.
_AXES_CALLS = 13
#: Buckets of relative positions: what follows the distance of two positions, where both signs count and where past
#: ones alone do, and what both have in the end. (function, dtype, dtype read.) Source: transformers 5.24,
#: `_relative_position_bucket` of modeling_t5.py.
_BOTH_SIGNS = (
    ("max_scalar", "bool", "int64"), ("cast", "int64", "bool"), ("mul_scalar", "int64", ""),
    ("add_scalar", "int64", ""), ("neg", "int64", ""),
)  # fmt: skip
_PAST_ALONE = (("fill", "int64", ""), ("max", "int64", ""), ("neg", "int64", ""))
_BUCKETS = (
    ("max_scalar", "bool", "int64"), ("cast", "fp32", "int64"), ("div_scalar", "fp32", ""), ("exp", "fp32", ""),
    ("div_scalar", "fp32", ""), ("mul_scalar", "fp32", ""), ("cast", "int64", "fp32"), ("add_scalar", "int64", ""),
    ("fill", "int64", ""), ("max", "int64", ""), ("where", "int64", ""), ("add", "int64", ""),
)  # fmt: skip


def masks(w: Writer) -> None:
    """The masks of all layers: one, or one of layers with windows and one of those without. A class that has both kinds
    makes both, whatever layers there are."""
    c, step = w.config, w.step
    b, s, t, kind = step.batch, step.seq_len, step.kv_len, c.model_type
    if step.attention != "math" and kind not in _WRITTEN_OUT:
        return
    if kind == "bert":  # today's class has none where no token is padding
        if not w.today:
            w.tiny("mask ones", "fill", b * t, w.act, calls=6)
            w.tiny("mask invert", "add_scalar", b * t, w.act)
            w.tiny("mask scale", "mul_scalar", b * t, w.act)
    elif kind == "opt" and not w.today:
        _opt_masks(w, b, s, t)
    elif kind in _WRITTEN_OUT or c.position == "rotary" or (c.position == "learned" and w.today):
        alike = not w.today or not any(c.windows)
        traits = TRAITS.get(kind)
        if alike or 0 in c.windows or traits is None or traits.windows != "all" or traits.layers:
            causal_mask(w, b, s, t)
        if not alike:
            window = max(c.windows)
            _window_mask(w, b, s, min(t, window) if step.context_len else t)


def causal_mask(w: Writer, b: int, s: int, t: int) -> None:
    """Which positions see which, and 0 or the lowest number for each (`eager_mask`)."""
    _positions(w, "", b, t)
    w.tiny("causal mask", "max_scalar", s * t, "bool", calls=_AXES_CALLS)
    _values(w, "causal mask", b * s * t)
    if w.config.model_type == "mpt":
        w.tiny("causal mask to bool", "cast", b * s * t, "bool")


def _window_mask(w: Writer, b: int, s: int, t: int) -> None:
    """The same of layers whose positions see a window, or a chunk, alone: ones, what is near, and what is past."""
    name, each = "window mask", s * t
    _positions(w, "window ", b, t)
    w.tiny(f"{name} ones", "fill", 1, "bool", calls=_AXES_CALLS)
    if w.config.model_type in _CHUNKED:
        each = b * s * t
        w.tiny(f"{name} padding", "fill", b, "int64")
        for which, count in (("keys", b * t), ("queries", b * s)):
            w.tiny(f"{name} padding of {which}", "gather", b, "int64")
            w.tiny(f"{name} {which}", "sub", count, "int64")
            w.tiny(f"{name} chunks of {which}", "div_scalar", count, "int64")
    else:
        w.tiny(f"{name} first", "sub", s, "int64")
    w.tiny(f"{name} near", "max_scalar", each, "bool")
    w.tiny(f"{name} near alone", "mul", each, "bool")
    w.tiny(f"{name} past", "max_scalar", s * t, "bool")
    w.tiny(f"{name} both", "mul", each, "bool")
    _values(w, name, b * s * t)


def _positions(w: Writer, name: str, b: int, t: int) -> None:
    """Numbers of the sequences and of the positions, queries' and keys'."""
    w.tiny(f"{name}mask sequences", "fill", max(b, 1), "int64", count=2)
    w.tiny(f"{name}mask positions", "fill", t, "int64", count=2)
    w.tiny(f"{name}mask positions after the cache", "add_scalar", t, "int64", count=2)


def _values(w: Writer, name: str, elements: int) -> None:
    """0 or the lowest number, by a mask."""
    w.tiny("mask values", "fill", 1, w.act, count=2)
    w.tiny(f"{name} fill", "where", elements, w.act, calls=2)


def ones(w: Writer, name: str, t: int, decoder: bool = False) -> None:
    """The mask of ones of a class that makes one (`_ONES`), of a stack called ``name``: 0 or the lowest number for each
    position of an encoder; a ``decoder`` gathers from it."""
    b, s = w.step.batch, w.step.seq_len
    if w.today and w.config.model_type in _ONES:
        w.tiny(f"{name} ones", "fill", b * t)
        if decoder:
            w.tiny(f"{name} ones to bool", "cast", b * t, "bool")
        else:
            if w.size < 4:
                w.tiny(f"{name} ones in numbers", "cast", b * t, w.act, calls=3)
            w.tiny(f"{name} mask invert", "add_scalar", b * t, w.act)
            w.tiny(f"{name} mask scale", "mul_scalar", b * t, w.act)
    if w.today and decoder and w.step.attention == "math":
        causal_mask(w, b, s, t)
        if w.config.model_type in _ONES:
            w.tiny("mask ones of the heads", "fill", 1, "bool")
            w.tiny("causal mask both", "mul", s * t, "bool")
            w.tiny("mask of keys", "gather", b * t, "bool")
            w.tiny("causal mask and ones", "mul", b * s * t, "bool")


def masked(w: Writer, decoder: bool) -> bool:
    """Whether the scores of a stack of an encoder-decoder have a mask added to them."""
    return decoder or w.config.model_type in _ONES


def buckets(w: Writer, name: str, s: int, t: int, past: bool) -> None:
    """The bucket that every distance of a query and a key is in; ``past``: of keys that came before alone."""
    w.tiny(f"{name} queries", "fill", s, "int64")
    w.tiny(f"{name} queries after the cache", "add_scalar", s, "int64", calls=2)
    w.tiny(f"{name} keys", "fill", t, "int64")
    w.tiny(f"{name} distances", "sub", s * t, "int64", calls=2)
    for fn, dtype, read in (*(_PAST_ALONE if past else _BOTH_SIGNS), *_BUCKETS):
        out = w.table(f"{name} buckets", s * t, dtype)
        w.put(Elementwise(dtype, fn, s * t, in_dtype=read), out.name, (), out)


def _opt_masks(w: Writer, b: int, s: int, t: int) -> None:
    """OPT of transformers 4.28: a causal and a padding mask, both expanded to (b, 1, s, t)."""
    ones = w.tiny("mask ones", "fill", b * t, w.act)
    causal = w.tiny("causal fill", "fill", s * s, w.act)
    positions = w.tiny("causal positions", "add_scalar", s, "int64", calls=3)
    later = w.table("causal compare", s * s, "bool")
    w.each("causal compare", "max_scalar", positions, out=later, inputs=0, extra=16.0 * s, dtype="bool")
    out = w.table("causal masked fill", s * s)
    causal = w.each("causal masked fill", "masked_fill", causal, later, out=out, inputs=1, extra=s * s)
    full = b * s * t
    padding = w.each("padding invert", "add_scalar", ones, out=w.table("padding invert", full), calls=5)
    for part, mask in (("padding", padding), ("causal", causal)):
        out = w.table(f"{part} to bool", full, "bool")
        chosen = w.each(f"{part} to bool", "cast", mask, out=out, dtype="bool", in_dtype=w.act)
        out = w.table(f"{part} masked fill", full)
        w.each(f"{part} masked fill", "masked_fill", mask, chosen, out=out, inputs=1, extra=full, calls=2)
