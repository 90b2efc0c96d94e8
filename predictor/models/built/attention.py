"""Self and cross attention: projections, positions, cache, the core (math or flash), the output projection.

Shape legend: b sequences, s query tokens a sequence, t key positions, h width, a heads, d head width, n = b s tokens.
The eager chains are those of the Hugging Face classes: torch.matmul copies an operand whose batch and head axes do not
lie one after the other in memory, which a batch of one never has to do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from predictor.errors import UnsupportedError
from predictor.files.records import replace
from predictor.graph.graph import Node
from predictor.graph.tensor import Tensor
from predictor.hardware.gpu import FETCH_BYTES
from predictor.models.built.masks import masked
from predictor.models.built.rotary import joins, rotated
from predictor.models.built.writer import Writer
from predictor.ops.attention import Attention
from predictor.ops.collective import Collective
from predictor.ops.elementwise import Elementwise, Reduce
from predictor.ops.ordering import Index

if TYPE_CHECKING:
    from predictor.models.built.config import ModelConfig

#: The axis of the merged projection of q, k and v.
MERGED = "heads | kv_heads | kv_heads"


def self_attention(
    w: Writer, x: Tensor, window: int, name: str = "attention", causal: bool | None = None, bias: Tensor | None = None
) -> Tensor:
    """Attention over the step's own tokens and its cache, from the normed input to the output projection.

    ``bias``: of relative positions, added to the scores.
    """
    c, step = w.config, w.step
    q, k, v = _projections(w, x, name)
    gate = _gate(w, x, name) if c.attention_gate else None
    if c.qk_norm and not c.qk_norm_bare:
        q, k = _normed(w, f"{name} q norm", q, "heads"), _normed(w, f"{name} k norm", k, "kv_heads")
    if w.today and c.model_type in _SCALED_VALUES:
        v = w.each(f"{name} v scale", "mul_scalar", v, scope=f"{name} v scaling")
    if c.position == "rotary":
        w.scope = f"{name} rotary"
        q, k = rotated(w, q, k)
    if c.qk_norm and c.qk_norm_bare:
        q, k = (_bare_norm(w, f"{name} {which} scaled", x) for which, x in (("q", q), ("k", k)))
    if w.today and c.tuned_queries:
        q = _tuned(w, name, q)
    w.scope = f"{name} cache"
    cached = step.cached and c.causal
    if cached:
        k, v = cache_append(w, k, v, window)
    w.scope = ""
    causal = c.causal if causal is None else causal
    keys = seen(w, window) if step.attention == "math" else step.kv_len
    y = core(w, name, (q, k, v), step.seq_len, keys, causal, window, cached, bias)
    if gate is not None:
        w.scope = f"{name} gate activation"
        y = w.each(f"{name} gated", "mul", w.each(f"{name} gate", "sigmoid", gate), y)
        w.scope = ""
    return w.linear("attention.out", f"{name} out", y, c.hidden, "hidden", c.out_bias)


def _gate(w: Writer, x: Tensor, name: str) -> Tensor:
    """A second query projection, whose sigmoid the result is multiplied by."""
    c = w.config
    width = c.heads * c.value_dim
    return w.linear("attention.qkv", f"{name} gate", x, width, "heads", c.qkv_bias, scope=f"{name} qkv")


def _normed(w: Writer, name: str, x: Tensor, axis: str) -> Tensor:
    """The norm of queries or keys: of each head, or of all heads side by side."""
    if not w.config.qk_norm_all:
        return w.norm(name, x)
    flat = x.view((*x.axes[:-2], axis), (*x.shape[:-2], x.shape[-2] * x.shape[-1]))
    return w.norm(name, flat).view(x.axes, x.shape)


def _bare_norm(w: Writer, name: str, x: Tensor) -> Tensor:
    """x / sqrt(mean(x^2) + eps) of every head, without a weight."""
    w.scope = f"{name} norm"
    rows, apart = x.elements // x.shape[-1], w.today and w.size < 4
    if apart:
        x = w.each(f"{name} to fp32", "cast", x, dtype="fp32", in_dtype=w.act)
    square = w.each(f"{name} square", "pow_scalar", x, dtype="fp32", in_dtype="" if apart else w.act)
    mean = Tensor(f"{name} mean", x.axes[:-1], x.shape[:-1], "fp32")
    w.put(Reduce("fp32", rows, x.shape[-1], 1), f"{name} mean", (square,), mean)
    if w.today:
        mean = w.each(f"{name} eps", "add_scalar", mean, dtype="fp32")
    root = w.each(f"{name} rsqrt", "rsqrt", mean, dtype="fp32")
    y = w.each(name, "mul", x, root, inputs=1, extra=rows * 4.0, dtype="fp32" if apart else "")
    if apart:
        y = w.each(f"{name} from fp32", "cast", y, in_dtype="fp32")
    w.scope = ""
    return y


def _tuned(w: Writer, name: str, q: Tensor) -> Tensor:
    """Queries scaled by what their positions say, in fp32 (transformers 5.24, Llama4TextAttention of
    modeling_llama4.py): log(floor((position + 1) / scale) + 1) times a number, plus 1."""
    w.scope = f"{name} temperature"
    s, numbers = w.step.seq_len, f"{name} temperatures"
    w.tiny(f"{name} positions", "fill", s, "int64")
    w.tiny(f"{name} positions after the cache", "add_scalar", s, "int64")
    for fn in ("cast", "add_scalar", "div_scalar", "neg", "exp", "mul_scalar", "add_scalar"):
        by = w.tiny(numbers, fn, s)
    x = w.each(f"{name} q tuned", "mul", q, by, inputs=1, extra=s * 4.0, calls=3, dtype="fp32", in_dtype=w.act)
    if w.size < 4:
        x = w.each(f"{name} q tuned from fp32", "cast", x, in_dtype="fp32")
    w.scope = ""
    return x


#: Types whose softmax is that of the activations' dtype, in releases of 2023 and today; others widen it to fp32.
#: Source: transformers 4.28 and 5.24, eager_attention_forward of models/TYPE/modeling_TYPE.py.
_NARROW = ("gpt2", "bert")
#: Source: transformers 5.24, as above.
_LARGEST_FIRST = ("gpt_oss", "mimo_v2_flash")
#: Source: transformers 5.24, as above.
_NARROW_TODAY = (*_NARROW, *_LARGEST_FIRST, "t5", "switch_transformers")
#: Types that scale values as they are projected. Source: transformers 5.24, modeling_mimo_v2_flash.py.
_SCALED_VALUES = ("mimo_v2_flash",)
#: Types whose class of 2023 had a chain of its own between the products (transformers 4.28).
_CHAINS_OF_2023 = ("gpt2", "bert", "opt", "t5", "switch_transformers")
#: Types whose class slices a merged projection, or selects from it, in place of a split. Source: transformers 5,
#: modeling_phi3.py and modeling_bloom.py.
_SLICED = ("phi3", "bloom")


def _projections(w: Writer, x: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of every head, from one projection or three."""
    c, step = w.config, w.step
    q, kv, of_values = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.value_dim
    scope = f"{name} qkv"
    if c.merged_qkv:
        merged = w.linear(
            "attention.qkv", scope, x, q + 2 * kv, MERGED, c.qkv_bias, views=7, segments=_merged_segments(c)
        )
        apart = step.attention == "math" and c.model_type not in _SLICED  # whose gradients are
        if w.training and apart:
            joined = (Elementwise(w.act, "copy", merged.elements),)
            merged = merged.view(at=f"{name} scores", gradient=joined)
        return (
            _part(w, merged, "heads", c.heads), _part(w, merged, "kv_heads", c.kv_heads),
            _part(w, merged, "kv_heads", c.kv_heads),
        )  # fmt: skip
    of_q = ((c.heads, c.head_dim),)
    query = w.linear("attention.qkv", f"{name} q", x, q, "heads", c.qkv_bias, views=2, segments=of_q, scope=scope)
    if c.model_type == "opt":
        query = w.each(f"{name} q scale", "mul_scalar", query, scope=f"{name} q scaling")
    key, value = (
        w.linear(
            "attention.qkv", each, x, wide, "kv_heads", c.qkv_bias, views=2,
            segments=((c.kv_heads, wide // c.kv_heads),), scope=scope,
        )
        for each, wide in ((f"{name} k", kv), (f"{name} v", of_values))
    )  # fmt: skip
    return (
        _heads(w, query, "heads", c.heads),
        _heads(w, key, "kv_heads", c.kv_heads),
        _heads(w, value, "kv_heads", c.kv_heads, width=c.value_dim),
    )


def _merged_segments(c: ModelConfig) -> tuple[tuple[int, int], ...]:
    """What `MERGED` is made of: heads, how many and how wide."""
    return (c.heads, c.head_dim), (c.kv_heads, c.head_dim), (c.kv_heads, c.head_dim)


def _part(w: Writer, merged: Tensor, axis: str, heads: int) -> Tensor:
    """q, k or v of a merged projection, each one's gradient copied into zeros for all where it is `_SLICED`."""
    if w.config.model_type not in _SLICED or not w.training:
        return _heads(w, merged, axis, heads, part=True)
    axes, shape = (*w.axes, axis, "head_dim"), (*w.shape, heads, w.config.head_dim)
    copied = Elementwise(w.act, "fill", merged.elements), Elementwise(w.act, "copy", math.prod(shape))
    return merged.view(axes, shape, copied)


def _heads(w: Writer, x: Tensor, axis: str, heads: int, part: bool = False, width: int = 0) -> Tensor:
    """(..., heads, head_dim) of (..., width)."""
    return x.view((*w.axes, axis, "head_dim"), (*w.shape, heads, width or w.config.head_dim), part=part)


def cross_attention(w: Writer, x: Tensor, encoded: Tensor, kv_len: int) -> Tensor:
    """Attention over the encoder's output of ``kv_len`` tokens; its keys and values are made anew except in decode."""
    c, step = w.config, w.step
    width = c.heads * c.head_dim
    q = w.linear("attention.qkv", "cross q", x, width, "heads", views=2)
    if step.mode == "decode":
        k = v = w.state("cross cache", batch=step.batch, kv=kv_len, kv_heads=c.heads, head_dim=c.head_dim)
    else:
        w.scope = "cross kv"
        k, v = (
            _heads(w, w.linear("attention.qkv", name, encoded, width, "kv_heads", views=2), "kv_heads", c.heads)
            for name in ("cross k", "cross v")
        )
        w.scope = ""
    y = core(w, "cross", (_heads(w, q, "heads", c.heads), k, v), step.seq_len, kv_len, False, 0, step.mode == "decode")
    return w.linear("attention.out", "cross out", y, c.hidden, "hidden")


def cache_append(w: Writer, k: Tensor, v: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """New keys and values joined to the cached ones: both are concatenated anew. Of a layer with a ``window`` the last
    that it sees are sliced from them, and the first pass brings the window's size to the GPU (transformers 5.24,
    cache_utils.py, DynamicSlidingWindowLayer)."""
    step, c = w.step, w.config
    dtype = step.kv_dtype or w.act
    tokens = min(step.kv_tokens, step.batch * seen(w, window))
    keys, values = (
        w.state(name, dtype, kv=tokens, kv_heads=c.kv_heads, head_dim=width)
        for name, width in (("key cache", c.head_dim), ("value cache", c.value_dim))
    )
    # One token's heads lie as the cache's do, but where they are a slice.
    offsets = step.seq_len > 1 or (c.merged_qkv and step.batch > 1)
    op = Elementwise(dtype, "copy", (keys.elements + values.elements) // 2, offsets=offsets)
    calls = 2 if window else 1
    w.nodes.append(Node(op, "cache append", (k, v), (keys, values), 2, host_calls=calls, scope=w.scope))
    if window and not step.context_len:
        w.tiny("cache window", "copy", 1, "int64")
    return keys, values


def seen(w: Writer, window: int) -> int:
    """Keys of a sequence that a layer keeps: today's class slices those in the cache of a layer with a ``window``."""
    kept = w.today and window and w.step.context_len
    return min(w.step.kv_len, window) if kept else w.step.kv_len


def core(
    w: Writer, name: str, qkv: tuple[Tensor, Tensor, Tensor], s: int, t: int, causal: bool, window: int, cached: bool,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Scores, mask, softmax and weighted sum for the heads of the config; the heads' results side by side."""
    c, step = w.config, w.step
    w.scope = f"{name} core"
    if step.attention == "flash":
        drop = w.training and c.attention_dropout > 0
        kv_dtype = step.kv_dtype if cached else ""
        op = Attention(
            w.act, step.batch, c.heads, c.kv_heads, s, t, c.head_dim, c.v_head_dim, causal, window, kv_dtype,
            "forward", False, drop,
        )  # fmt: skip
        # Of a q that was joined of parts the heads lie apart, and so do those of the result.
        copied = w.training and (c.model_type == "phi3" or c.is_mla)
        y = w.attend(f"{name} core", op, qkv, copied)
    elif step.exchanges > 1:
        y = _exchanged_core(w, name, qkv, s, t, causal, bias)
    else:
        y = math_core(w, name, qkv, s, t, causal, cached, bias)
    w.scope = ""
    return y.view((*w.axes, "heads"), (*w.shape, c.heads * c.value_dim))


def _exchanged_core(
    w: Writer, name: str, qkv: tuple[Tensor, Tensor, Tensor], s: int, t: int, causal: bool, bias: Tensor | None
) -> Tensor:
    """The unfused chain on whole sequences of a part of the heads, between two exchanges (Jacobs et al.,
    arXiv:2309.14509, whose local attention may be any)."""
    c, n = w.config, w.step.exchanges
    if bias is not None:
        raise UnsupportedError(f"--cp {n}: a position bias of {c.name} is not shared out; expected --cp 1")
    w.config = replace(c, heads=c.heads // n, kv_heads=c.kv_heads // n)
    parts = [_exchange(w, name, x, n, 1) for x in qkv]
    y = math_core(w, name, (parts[0], parts[1], parts[2]), s * n, t * n, causal, False)
    w.config = c
    flat = y.view((*w.axes, "heads"), (w.shape[0], w.shape[1] * n, c.heads // n * c.value_dim))
    return _exchange(w, name, flat, 1, n)


def _exchange(w: Writer, name: str, x: Tensor, positions: int, heads: int) -> Tensor:
    """``x`` with so many times the positions, or the heads, and fewer of the others: an all_to_all, whose links the
    mesh says later."""
    sizes = {"sequence": (positions, heads), "heads": (heads, positions), "kv_heads": (heads, positions)}
    shape = tuple(n * sizes[a][0] // sizes[a][1] if a in sizes else n for a, n in zip(x.axes, x.shape, strict=True))
    out = Tensor(f"{name} all_to_all", x.axes, shape, x.dtype)
    core, w.scope = w.scope, f"{name} all_to_all"
    y = w.put(Collective(x.dtype, "all_to_all", round(x.nbytes), w.step.exchanges), out.name, (x,), out)
    w.scope = core
    return y


def math_core(
    w: Writer, name: str, qkv: tuple[Tensor, Tensor, Tensor], s: int, t: int, causal: bool, cached: bool,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The unfused chain: bmm, scale, mask, softmax, dropout, bmm, heads merged."""
    c, b = w.config, w.step.batch
    a, d, dv = c.heads, c.head_dim, c.value_dim
    first = len(w.nodes)
    q, k, v = _operand_copies(w, name, _head_views(w, name, qkv, s, t), s, t, cached)
    copied = [node.name.split()[-2] for node in w.nodes[first:] if not node.name.startswith(f"{name} repeat")]
    x = Tensor(f"{name} scores", ("batch", "heads", "sequence", "kv"), (b, a, s, t), w.act)
    x = w.bmm(x.name, q, k, x, b * a, d, "tn", calls=_product_calls(c, copied, "qk"))
    x = _scale_and_mask(w, name, x, s, t, causal, bias)
    if w.today and c.model_type in _LARGEST_FIRST:
        x = _less_the_largest(w, name, x)
    x = w.softmax(f"{name} softmax", x, upcast=c.model_type not in (_NARROW_TODAY if w.today else _NARROW))
    if x.shape[-1] > t:  # without the sinks, a slice: its gradient is copied into zeros
        sliced = Elementwise(w.act, "fill", x.elements), Elementwise(w.act, "copy", b * a * s * t)
        x = x.view(x.axes, (b, a, s, t), sliced if w.training else ())
    x = w.dropout(f"{name} dropout", x, c.attention_dropout)
    y = Tensor(f"{name} context", ("batch", "heads", "sequence", "head_dim"), (b, a, s, dv), w.act)
    y = w.bmm(y.name, x, v, y, b * a, t, "nn", calls=_product_calls(c, copied, "v"))
    bloom = c.model_type == "bloom"  # views heads of sequences apart first
    if s > 1:
        # Its gradient is a view again; only a batch of two or more has to be copied for the product.
        y = w.each(f"{name} merge heads", "copy", y, calls=3 + bloom, grad=b > 1)
    else:  # heads of one token lie side by side: a transpose and a view of them
        w.nodes[-1].host_calls += 2 + bloom
    return y


def _less_the_largest(w: Writer, name: str, x: Tensor) -> Tensor:
    """Scores less the largest of each query, a sink beside those of the keys where there are sinks (transformers 5.24,
    eager_attention_forward of modeling_gpt_oss.py and modeling_mimo_v2_flash.py)."""
    if w.config.sinks:
        out = Tensor(f"{name} sinks", x.axes, (*x.shape[:-1], x.shape[-1] + 1), x.dtype)
        x = w.each(out.name, "copy", x, out=out, calls=3, grad=False)
    rows, n = x.elements // x.shape[-1], x.elements
    if w.training:  # the largest's gradient is what was taken from all, put in its place and added to theirs
        back = Elementwise(w.act, "neg", n), Reduce(w.act, rows, x.shape[-1], 1), Elementwise(w.act, "fill", n)
        x = x.view(gradient=(*back, Index(w.act, rows, 1, n, "scatter"), Elementwise(w.act, "add", n)))
    largest = w.table(f"{name} largest", rows)
    w.put(Reduce(w.act, rows, x.shape[-1], 1), largest.name, (x,), largest)
    return w.each(f"{name} less the largest", "sub", x, largest, inputs=1, extra=largest.nbytes)


def _product_calls(c: ModelConfig, copied: list[str], operands: str) -> int:
    """Calls that come with a product of four axes (torch.matmul): of each operand an expansion and a view, which come
    with its copy where it is ``copied``; the keys' transpose, the product, and a view of the result. Bloom's own, of
    three axes, does not expand (transformers 5.24, modeling_bloom.py)."""
    bare = c.model_type == "bloom"
    whole = (5 if bare else 7) if operands == "qk" else (2 if bare else 6)
    if bare and operands == "v":  # viewed with q and k
        return whole
    counted = [which for which in copied if which in (("q", "k", "v") if bare else tuple(operands))]
    return whole - (1 if bare else 2) * len(counted)


def _head_views(w: Writer, name: str, qkv: tuple[Tensor, Tensor, Tensor], s: int, t: int) -> tuple[Tensor, ...]:
    """q, k and v as (b, heads, rows, d). Their gradients are copied back to (b, rows, heads d) where views need that.

    The product leaves dK transposed, which a batch of one can take as it is. Where heads share keys and values, the
    heads' gradients are summed first.
    """
    c, b = w.config, w.step.batch
    views = []
    for i, (x, axis, heads, rows, width) in enumerate(
        zip(
            qkv, ("heads", "kv_heads", "kv_heads"), (c.heads, c.kv_heads, c.kv_heads), (s, t, t),
            (c.head_dim, c.head_dim, c.value_dim), strict=True,
        )
    ):  # fmt: skip
        free = i == 1 and c.kv_heads == c.heads and (b == 1 or c.merged_qkv)
        copy = (Elementwise(w.act, "copy", b * rows * heads * width),) if w.training and not free else ()
        at = f"{name} scores"
        shared_axis = "heads" if heads == c.heads else axis
        x = x.view(
            ("batch", shared_axis, "sequence" if i == 0 else "kv", "head_dim"), (b, heads, rows, width), copy, at=at
        )
        if heads < c.heads:
            sums = (Reduce(w.act, c.heads // heads, x.elements),) if w.training else ()
            x = x.view(("batch", "heads", "kv", "head_dim"), (b, c.heads, rows, width), sums, at=at)
        views.append(x)
    return tuple(views)


def _operand_copies(
    w: Writer, name: str, qkv: tuple[Tensor, ...], s: int, t: int, cached: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Copies that bring q, k and v into (b a, rows, d) before the products."""
    c, b = w.config, w.step.batch
    q, k, v = qkv
    if c.model_type == "opt" and not w.today:  # contiguous() whatever the batch
        k, v, q = (
            w.each(f"{name} {which} contiguous", "copy", x, calls=4, grad=False)
            for which, x in (("k", k), ("v", v), ("q", q))
        )
        return q, k, v
    if c.kv_heads < c.heads:  # repeat_kv
        k = w.each(f"{name} repeat k", "copy", k, calls=4, grad=False)  # a new axis, an expansion, the copy, a view
        v = w.each(f"{name} repeat v", "copy", v, calls=4, grad=False)
    if b == 1:
        return q, k, v
    joined = joins(c)
    calls = 2 if c.model_type == "bloom" else 3  # it does not expand
    # One token's heads lie in a row, unless q is a part of a longer row (Bloom's heads have theirs side by side).
    apart = s > 1 or (c.merged_qkv and c.model_type != "bloom")
    if apart and not joined:
        q = w.each(f"{name} q copy", "copy", q, calls=calls, grad=False)
    if c.kv_heads == c.heads and not cached:
        if not joined:
            k = w.each(f"{name} k copy", "copy", k, calls=calls, grad=False)
        v = w.each(f"{name} v copy", "copy", v, calls=calls, grad=False)
    return q, k, v


def _masked(w: Writer, name: str, fn: str, x: Tensor, mask: Tensor, reread: float = 0.0, reuse: float = 0.0) -> Tensor:
    """``fn`` of the scores and a smaller mask, of which ``reread`` bytes are read again after ``reuse`` others."""
    return w.each(f"{name} mask", fn, x, mask, inputs=1, extra=mask.nbytes, reread=reread, reuse=reuse, dtype=x.dtype)


def _scale_and_mask(w: Writer, name: str, x: Tensor, s: int, t: int, causal: bool, bias: Tensor | None) -> Tensor:
    """What happens to the scores between the product and the softmax, by architecture."""
    c, b = w.config, w.step.batch
    scores, kind = b * c.heads * s * t, c.model_type
    if w.today and kind in _CHAINS_OF_2023:
        kind = ""
    # A mask of a sequence is read again for every head, after a head's scores (read and written) and itself.
    reread, reuse = (scores - b * s * t) * w.size, 3.0 * s * t * w.size
    if kind == "gpt2":  # scores / full(sqrt d); where(mask, scores, full(min))
        w.tiny(f"{name} scale value", dtype=w.act)
        x = w.each(f"{name} scale", "div_scalar", x)
        w.tiny(f"{name} mask value", dtype=w.act, calls=2)
        x = _masked(w, name, "where", x, w.table("mask", s * t, "bool"))  # stays in L2 from head to head
    elif kind == "bert":
        x = w.each(f"{name} scale", "div_scalar", x)
        x = _masked(w, name, "add", x, w.table("mask", b * t))
    elif kind == "opt":  # the mask is added, then max(scores, finfo.min) guards against overflow
        x = _masked(w, name, "add", x, w.table("mask", b * s * t), reread, reuse)
        w.tiny(f"{name} lowest value", dtype=w.act)
        x = w.each(f"{name} lowest", "max_scalar", x)
    elif kind in ("t5", "switch_transformers"):  # no scaling; the bias holds the mask
        if name == "cross":  # a bias of zeros, made in order, that learns nothing
            zeros = w.state("zeros", batch=b, heads=c.heads, sequence=s, kv=t)
            return w.each(f"{name} position bias", "add_", x, zeros)
        # The bias of self attention is a look-up of (s, t, heads), permuted: along t, heads lie between neighbours, and
        # the next head's values are wanted after a whole head.
        passing = s * t * (2.0 * w.size + FETCH_BYTES)
        assert bias is not None  # every layer adds the same
        x = w.each(f"{name} position bias", "add_", x, bias, reuse=passing, stride=c.heads * w.size)
    elif kind == "bloom":  # baddbmm starts from the alibi bias, copied out to the scores' shape
        slopes = w.state("alibi", batch=b, heads=c.heads, kv=t)
        out = w.state("alibi", batch=b, heads=c.heads, sequence=s, kv=t)
        w.each(f"{name} alibi", "copy", slopes, out=out, inputs=0, extra=slopes.nbytes)
        x = _masked(w, name, "add", x, w.table("mask", b * s * t), reread, reuse)
    else:
        x = w.each(f"{name} scale", "mul_scalar", x)
        if c.is_encoder_decoder:
            return _biased(w, name, x, causal, bias)
        if c.attention_softcap:
            x = w.each(f"{name} softcap scale", "div_scalar", x)
            x = w.each(f"{name} softcap tanh", "tanh", x)
            x = w.each(f"{name} softcap unscale", "mul_scalar", x)
        if c.position == "alibi":
            alibi = w.state("alibi", "fp32", heads=c.heads, kv=t)  # scores are fp32 from here on
            x = w.each(  # a slice of the positions that there are, added
                f"{name} alibi", "add", x, alibi, inputs=1, extra=alibi.nbytes, dtype="fp32", in_dtype=w.act, calls=2
            )
        if kind == "mpt":
            x = _masked(w, name, "masked_fill", x, w.table("mask", b * s * t, "bool"))
        elif causal:
            x = _masked(w, name, "add", x, w.table("mask", b * s * t), reread, reuse)
    return x


def _biased(w: Writer, name: str, x: Tensor, causal: bool, bias: Tensor | None) -> Tensor:
    """Scores of T5 and Switch with the bias of their positions, which all sequences share (zeros of cross attention),
    and with a mask where a stack has one (transformers 5.24, eager_attention_forward of modeling_t5.py)."""
    b, heads, s, t = x.shape
    stride = 0.0 if bias is None else heads * w.size  # a look-up of (s, t, heads), permuted
    if bias is None:
        bias = w.state("zeros", heads=heads, sequence=s, kv=t)
    passing = 3.0 * bias.elements * w.size  # a sequence's scores, read and written, and the bias itself
    x = w.each(
        f"{name} position bias", "add", x, bias, inputs=1, extra=bias.nbytes, reread=(b - 1) * bias.nbytes,
        reuse=passing, stride=stride,
    )  # fmt: skip
    if name == "cross" or not masked(w, causal):
        return x
    mask = w.table("mask", b * t * (s if causal else 1))
    return _masked(w, name, "add", x, mask, (x.elements - b * s * t) * w.size, 3.0 * s * t * w.size)
