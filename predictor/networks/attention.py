"""Self and cross attention: projections, positions, cache, the core (math or flash), the output projection.

Shape legend: b sequences, s query tokens a sequence, t key positions, h width, a heads, d head width, n = b s tokens.
The eager chains are those of the Hugging Face classes: torch.matmul copies an operand whose batch and head axes do not
lie one after the other in memory, which a batch of one never has to do.
"""

from __future__ import annotations

from predictor.engines import DECODE, PREFILL
from predictor.graph.graph import Node
from predictor.networks.writer import Writer
from predictor.ops.attention import Attention
from predictor.ops.elementwise import Elementwise, Reduce, Rotary

#: What a strided read brings in from DRAM (`predictor.estimators.memory_bound`).
FETCH_BYTES = 64.0


def self_attention(w: Writer, window: int, name: str = "attention", causal: bool | None = None) -> None:
    """Attention over the step's own tokens and its cache, from the normed input to the output projection.

    An engine's attention call writes the new keys and values into its cache, and was measured so; it may rotate them,
    too, or add the bias of q, k and v (`predictor.engines`).
    """
    c, step = w.config, w.step
    n, h, q, kv = step.tokens, c.hidden, c.heads * c.head_dim, c.kv_heads * c.head_dim
    if w.fused or c.merged_qkv:
        w.linear("attention.qkv", f"{name} qkv", n, q + 2 * kv, h, c.qkv_bias, saved=n * h, views=7)
    else:
        w.linear("attention.qkv", f"{name} q", n, q, h, c.qkv_bias, saved=n * h, views=2)
        w.fork(n * h, 2)
        if c.model_type == "opt" and step.attention == "math":
            w.each(f"{name} q scale", "mul_scalar", n * q)
        w.linear("attention.qkv", f"{name} k", n, kv, h, c.qkv_bias, views=2)
        w.linear("attention.qkv", f"{name} v", n, kv, h, c.qkv_bias, views=2)
    if c.qk_norm:
        w.norm(f"{name} q norm", n * c.heads, c.head_dim)
        w.norm(f"{name} k norm", n * c.kv_heads, c.head_dim)
    one_call = step.attention == "flash" and step.engine.serves
    if step.engine.adds_qkv_bias and one_call and step.mode != "decode" and c.qkv_bias:
        w.each(f"{name} qkv bias", "fused", n * (q + 2 * kv), 1, flops=1.0)
    if c.position == "rotary" and not (step.engine.rotates and one_call):
        rotary(w, n, c.heads, c.kv_heads, c.rotary_dim or c.head_dim)
    cached = step.cached and c.causal
    writes = one_call and (DECODE if step.mode == "decode" else PREFILL) in step.engine.appends
    if cached and not writes:
        cache_append(w, kv)
    causal = c.causal if causal is None else causal
    core(w, name, step.seq_len, step.kv_len, causal, window, cached)
    w.linear("attention.out", f"{name} out", n, h, q, c.out_bias, saved=n * q)


def cross_attention(w: Writer, kv_len: int) -> None:
    """Attention over the encoder's output of ``kv_len`` tokens; its keys and values are made anew except in decode."""
    c, step = w.config, w.step
    n, h, q = step.tokens, c.hidden, c.heads * c.head_dim
    w.linear("attention.qkv", "cross q", n, q, h, saved=n * h, views=2)
    if step.mode != "decode":
        rows = step.batch * kv_len
        if w.fused:
            w.linear("attention.qkv", "cross kv", rows, 2 * q, h)
        else:
            w.linear("attention.qkv", "cross k", rows, q, h, views=2)
            w.fork(rows * h, 2)  # keys, values, and the layer before
            w.linear("attention.qkv", "cross v", rows, q, h, views=2)
    core(w, "cross", step.seq_len, kv_len, False, 0, step.mode == "decode")
    w.linear("attention.out", "cross out", n, h, q, saved=n * q)


def rotary(w: Writer, n: int, q_heads: int, kv_heads: int, dim: int) -> None:
    """Rotary positions on q and k: one kernel, or x cos + rotate_half(x) sin in five each."""
    if w.fused:
        w.nodes.append(Node(Rotary(w.act, n, q_heads + kv_heads, dim), "rotary"))
        return
    table = n * dim * w.size
    for which, heads in (("q", q_heads), ("k", kv_heads)):
        elements = n * heads * dim
        w.each(f"rotary {which} cos", "mul", elements, 1, table, calls=3)
        w.each(f"rotary {which} neg", "neg", elements // 2, calls=3)
        # Each half of the input is a slice, whose gradient is copied into zeros; then three gradients are added up.
        halves = (Elementwise(w.act, "fill", elements), Elementwise(w.act, "copy", elements // 2))
        w.gradient(*halves, *halves)
        w.fork(elements, 2)
        w.each(f"rotary {which} cat", "copy", elements, calls=1, trainable=False)
        w.each(f"rotary {which} sin", "mul", elements, 1, table)
        w.each(f"rotary {which} sum", "add", elements)
        if w.config.model_type == "phi3":  # the part that is not rotated, empty or not, is joined on
            w.each(f"rotary {which} join", "copy", n * heads * w.config.head_dim, trainable=False)


def cache_append(w: Writer, kv_width: int) -> None:
    """New keys and values into the cache: a serving engine writes them in place, eager PyTorch concatenates anew."""
    step = w.step
    dtype = step.kv_dtype or w.act
    if w.fused:
        w.each("cache append", "copy", 2 * step.tokens * kv_width, dtype=dtype, in_dtype=w.act, trainable=False)
    else:
        w.each("cache append", "copy", step.kv_tokens * kv_width, dtype=dtype, count=2, trainable=False)


def core(w: Writer, name: str, s: int, t: int, causal: bool, window: int, cached: bool) -> None:
    """Scores, mask, softmax and weighted sum for the heads of the config."""
    c, step = w.config, w.step
    if step.attention == "flash":
        drop = w.training and c.attention_dropout > 0
        kv_dtype = step.kv_dtype if cached else ""
        op = Attention(
            w.high, step.batch, c.heads, c.kv_heads, s, t, c.head_dim, c.v_head_dim, causal, window, kv_dtype,
            "forward", False, drop,
        )  # fmt: skip
        w.attend(f"{name} core", op, _kept(w, s, t))
        return
    math_core(w, name, s, t, causal, cached)


def _kept(w: Writer, s: int, t: int) -> float:
    """Elements that fused attention keeps: q, k, v and the fp32 log-sum-exp of every row.

    Its output is what the projection after it keeps, unless q was joined of parts: its heads then lie apart, the output
    takes that layout, and the projection's input is a copy. A v that is a slice keeps all of the projection alive.
    """
    c = w.config
    q, k, v = s * c.heads * c.head_dim, t * c.kv_heads * c.head_dim, t * c.kv_heads * c.value_dim
    kept = q + k + v + s * c.heads * 4 / w.size
    if not w.fused and c.model_type == "phi3":
        kept += q + k
    if not w.fused and (c.model_type == "phi3" or c.is_mla):
        kept += s * c.heads * c.value_dim
    return w.step.batch * kept


def math_core(w: Writer, name: str, s: int, t: int, causal: bool, cached: bool) -> None:
    """The unfused chain: bmm, scale, mask, softmax, dropout, bmm, heads merged."""
    c, b = w.config, w.step.batch
    a, d, dv = c.heads, c.head_dim, c.value_dim
    scores = b * a * s * t
    _operand_copies(w, name, s, t, cached)
    copied = b > 1 or c.model_type == "opt"
    w.bmm(f"{name} scores", b * a, s, t, d, "tn", saved=b * a * (s + t) * d, calls=3 if copied else 7)
    _gradient_copies(w, s, t)
    if not w.fused:
        _scale_and_mask(w, name, s, t, causal)
    w.softmax(f"{name} softmax", b * a * s, t, upcast=c.model_type not in ("gpt2", "bert"))
    w.dropout(f"{name} dropout", scores, c.attention_dropout)
    dropped = scores if w.training and c.attention_dropout > 0 else 0
    w.bmm(f"{name} context", b * a, s, dv, t, "nn", saved=b * a * t * dv + dropped, calls=4 if copied else 6)
    if s > 1:
        # Its gradient is a view again; only a batch of two or more has to be copied for the product.
        w.each(f"{name} merge heads", "copy", b * s * a * dv, calls=3, trainable=b > 1)


def _gradient_copies(w: Writer, s: int, t: int) -> None:
    """Copies of the gradients of q, k and v from (b, a, rows, d) to (b, rows, a d), where the views need them.

    The product leaves dK transposed, which a batch of one can take as it is. Where q, k and v are parts of one
    projection their gradients are joined; where heads share keys and values, the heads' gradients are summed first.
    """
    c, b = w.config, w.step.batch
    q, k, v = b * s * c.heads * c.head_dim, b * t * c.kv_heads * c.head_dim, b * t * c.kv_heads * c.value_dim
    if c.kv_heads < c.heads:
        w.gradient(*(Reduce(w.act, c.heads // c.kv_heads, n) for n in (k, v)))
    elif b == 1 or c.merged_qkv:
        k = 0
    w.gradient(*(Elementwise(w.act, "copy", n) for n in (q, k, v) if n))
    if c.merged_qkv:
        w.gradient(Elementwise(w.act, "copy", q + v + b * t * c.kv_heads * c.head_dim))


def _operand_copies(w: Writer, name: str, s: int, t: int, cached: bool) -> None:
    """Copies that bring q, k and v into (b a, rows, d) before the products."""
    c, b = w.config, w.step.batch
    q, k, v = b * s * c.heads * c.head_dim, b * t * c.heads * c.head_dim, b * t * c.heads * c.value_dim
    if w.fused:
        if s > 1 and (b > 1 or w.step.engine.adds_qkv_bias):  # whose kernel adds the bias, too
            w.each(f"{name} split heads", "copy", q + k + v, calls=1)
        return
    if c.model_type == "opt":  # contiguous() whatever the batch
        for which, elements in (("k", k), ("v", v), ("q", q)):
            w.each(f"{name} {which} contiguous", "copy", elements, calls=4, trainable=False)
        return
    if c.kv_heads < c.heads:  # repeat_kv
        w.each(f"{name} repeat k", "copy", k, calls=5, trainable=False)
        w.each(f"{name} repeat v", "copy", v, calls=5, trainable=False)
    if b == 1:
        return
    joined = c.model_type == "phi3"  # its rotary part ends in a concatenation
    if s > 1 and not joined:
        w.each(f"{name} q copy", "copy", q, calls=3, trainable=False)
    if c.kv_heads == c.heads and not cached:
        if not joined:
            w.each(f"{name} k copy", "copy", k, calls=3, trainable=False)
        w.each(f"{name} v copy", "copy", v, calls=3, trainable=False)


def _scale_and_mask(w: Writer, name: str, s: int, t: int, causal: bool) -> None:
    """What happens to the scores between the product and the softmax, by architecture."""
    c, b = w.config, w.step.batch
    scores, kind = b * c.heads * s * t, c.model_type
    # A mask of a sequence is read again for every head, after a head's scores (read and written) and itself.
    again, reuse = (scores - b * s * t) * w.size, 3.0 * s * t * w.size
    if kind == "gpt2":  # scores / full(sqrt d); where(mask, scores, full(min))
        w.tiny(f"{name} scale value", dtype=w.act)
        w.each(f"{name} scale", "div_scalar", scores)
        w.tiny(f"{name} mask value", dtype=w.act, calls=2)
        w.each(f"{name} mask", "where", scores, 1, s * t)  # a mask of bytes stays in L2 from head to head
    elif kind == "bert":
        w.each(f"{name} scale", "div_scalar", scores)
        w.each(f"{name} mask", "add", scores, 1, b * t * w.size)
    elif kind == "opt":  # the mask is added, then max(scores, finfo.min) guards against overflow
        w.each(f"{name} mask", "add", scores, 1, b * s * t * w.size, again=again, reuse=reuse)
        w.tiny(f"{name} lowest value", dtype=w.act)
        w.each(f"{name} lowest", "max_scalar", scores)
    elif kind in ("t5", "switch_transformers"):  # no scaling; the bias holds the mask
        if name == "cross":  # a bias of zeros, made in order, that learns nothing
            w.each(f"{name} position bias", "add_", scores)
            return
        # The bias of self attention is a look-up of (s, t, heads), permuted: along t, heads lie between neighbours, and
        # the next head's values are wanted after a whole head.
        passing = s * t * (2.0 * w.size + FETCH_BYTES)
        w.each(f"{name} position bias", "add_", scores, reuse=passing, stride=c.heads * w.size)
        w.fork(scores)  # every layer adds the same bias
    elif kind == "bloom":  # baddbmm starts from the alibi bias, copied out to the scores' shape
        w.each(f"{name} alibi", "copy", scores, 0, b * c.heads * t * w.size, trainable=False)
        w.each(f"{name} mask", "add", scores, 1, b * s * t * w.size, again=again, reuse=reuse)
    else:
        w.each(f"{name} scale", "mul_scalar", scores)
        if c.attention_softcap:
            w.each(f"{name} softcap scale", "div_scalar", scores)
            w.each(f"{name} softcap tanh", "tanh", scores, saved=scores)
            w.each(f"{name} softcap unscale", "mul_scalar", scores)
        if c.position == "alibi":
            w.each(f"{name} alibi", "add", scores, 1, c.heads * t * w.size)
        if kind == "mpt":
            w.each(f"{name} mask", "masked_fill", scores, 1, b * s * t)
        elif causal:
            w.each(f"{name} mask", "add", scores, 1, b * s * t * w.size, again=again, reuse=reuse)
