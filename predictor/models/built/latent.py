"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): expanded in prefill, absorbed in decode.

Shape legend: n query tokens, h width, a heads, r rank of the latent vector. In decode the key up-projection is absorbed
into the query and the value up-projection into the output: all heads share one latent vector a token, r + rope wide.
"""

from __future__ import annotations

from predictor.graph.tensor import WEIGHT, Tensor
from predictor.models.built.attention import core
from predictor.models.built.writer import Writer
from predictor.ops.attention import Attention
from predictor.ops.norm import Norm
from predictor.ops.ordering import Sort
from predictor.ops.sparse import Indexer

#: Types that rotate complex numbers, with other views. Calls of all others are counted in transformers 5.24,
#: models/deepseek_v3/modeling_deepseek_v3.py: `DeepseekV3Attention.forward`, `expand_kv`.
_COMPLEX = ("deepseek_v2",)


def latent_attention(w: Writer, x: Tensor) -> Tensor:
    """From the normed input to the output projection."""
    c, step = w.config, w.step
    h, a, latent = c.hidden, c.heads, c.kv_lora_rank + c.qk_rope_dim
    width = c.qk_nope_dim + c.qk_rope_dim
    down = "attention q_a kv_a" if c.q_lora_rank else ""
    if c.q_lora_rank:
        q = w.linear("attention.q_a", "attention q_a", x, c.q_lora_rank, "latent", c.qkv_bias, scope=down)
        q = down_q = w.norm("attention q_a norm", q)
        q = w.linear("attention.q_b", "attention q_b", q, a * width, "heads")
    else:
        down_q = x
        q = w.linear("attention.q_b", "attention q", x, a * width, "heads")
    kv = w.linear("attention.kv_a", "attention kv_a", x, latent, "latent", c.qkv_bias, scope=down)
    c_kv = w.norm("attention kv_a norm", _slice(kv, "latent", c.kv_lora_rank, part=True))
    q = q.view((*q.axes[:-1], "heads", "head_dim"), (*q.shape[:-1], a, width))
    rope = _slice(kv, "head_dim", c.qk_rope_dim, part=True)
    if c.position == "rotary":
        q, rope = _rotary(w, q, rope)
    if step.cached:
        c_kv = _append(w, c_kv, rope, latent)
    if c.index_heads:
        _index(w, x, down_q)
    y = _absorbed(w, q, c_kv) if step.mode == "decode" else _expanded(w, q, c_kv, rope)
    return w.linear("attention.out", "attention out", y, h, "hidden", c.out_bias)


def _slice(x: Tensor, axis: str, size: int, part: bool = False) -> Tensor:
    """``size`` entries of the last axis."""
    return x.view((*x.axes[:-1], axis), (*x.shape[:-1], size), part=part)


def _rotary(w: Writer, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The rotary part of every query head and of the one shared key."""
    c, n = w.config, w.step.tokens
    w.scope = "latent rotary"
    cos, sin = w.rotations or (w.table("rotary table", n * c.qk_rope_dim),) * 2
    size = n * c.qk_rope_dim * w.size
    rotated = []
    for which, x in (("q", q), ("k", k)):
        part = _slice(x, "head_dim", c.qk_rope_dim, part=True)
        half = Tensor("half", part.axes, (*part.shape[:-1], c.qk_rope_dim // 2), w.act)
        # With those of q come its views and slices, and slices of both tables; with those of k the views of what it and
        # the latent vectors were split from, and of the keys that are put together.
        calls = 4 if which == "q" and c.model_type not in _COMPLEX else 2
        y = w.each(
            f"rotary {which} products", "mul", part, cos, sin, out=half, inputs=1, extra=size, count=4, calls=calls
        )
        y = w.each(f"rotary {which} sums", "add", y, y.detached(), count=2)
        whole = Tensor("rotated", part.axes, part.shape, w.act)
        rotated.append(w.each(f"rotary {which} cat", "copy", y, out=whole))
    query = Tensor("query cat", q.axes, q.shape, w.act)
    w.each("query cat", "copy", rotated[0], _slice(q, "head_dim", c.qk_nope_dim, part=True), out=query,
           calls=1 if c.model_type in _COMPLEX else 3)  # fmt: skip
    w.scope = ""
    return query, rotated[1]


def _append(w: Writer, latent: Tensor, rope: Tensor, width: int) -> Tensor:
    """The new latent vectors joined to the cached ones, by concatenation."""
    dtype = w.step.kv_dtype or w.act
    out = w.table("cache", w.step.kv_tokens * width, dtype)
    return w.each(
        "cache append", "copy", latent, rope, out=out, dtype=dtype, in_dtype=w.act, calls=2, scope="latent cache"
    )


def _index(w: Writer, x: Tensor, q: Tensor) -> None:
    """DeepSeek-V3.2-Exp's lightning indexer (section 2.1 of its report): which keys attention sees. Queries from the
    query's latent, one key a token in a cache of its own, a weight a head; scores of all keys, the best of each query.
    """
    c, step = w.config, w.step
    heads, width = c.index_heads, c.index_dim
    x, q = x.detached(), q.detached()  # it learns by a loss of its own
    queries = w.linear("attention.q_b", "indexer q", q, heads * width, "index_heads")
    keys = w.linear("router", "indexer k", x, width, "index_dim", scope="indexer kw")
    weights = w.linear("router", "indexer weights", x, heads, "index_heads", scope="indexer kw")
    scale = Tensor("indexer k norm", ("index_dim",), (width,), w.act, WEIGHT)
    made = Tensor("indexer k norm", keys.axes, keys.shape, w.act)
    keys = w.put(Norm(w.act, step.tokens, width, "layer"), "indexer k norm", (keys, scale, scale), made)
    w.scope = "indexer rotary and cast"
    table = w.rotations or ()
    narrow = step.tokens * width * w.size  # keys are written beside the queries
    queries = w.each("indexer rotary", "fused", queries, keys, *table, inputs=1, extra=narrow, flops=6.0, calls=8)
    if step.cached:
        keys = w.state("indexer cache", kv=step.kv_tokens, index_dim=width)
    w.scope = ""
    scores = Tensor("indexer scores", (*w.axes, "kv"), (*w.shape, step.kv_len), "fp32")
    for i, (batch, q_len, kv_len, share) in enumerate(step.parts(step.seq_len, step.kv_len, True, 0)):
        op = Indexer(w.act, batch, heads, q_len, kv_len, width)
        w.put(op, "indexer scores", (queries, keys, weights), scores, 1, 6 if i == 0 else 0, share)
    picked = Tensor("indexer picks", (*w.axes, "picked"), (*w.shape, min(c.index_topk, step.kv_len)), "int64")
    sort = Sort("fp32", step.tokens, step.kv_len, min(c.index_topk, step.kv_len))
    w.put(sort, "indexer top-k", (scores,), picked)


def _expanded(w: Writer, q: Tensor, latent: Tensor, rope: Tensor) -> Tensor:
    """Keys and values of every head from the latent vectors of all positions."""
    c, step = w.config, w.step
    rows, a = step.kv_tokens, c.heads
    # without a cache there are the tokens of this pass alone, whose axes say which a rank has (sequence parallelism)
    kept = latent.view(("kv", "latent"), (rows, c.kv_lora_rank)) if step.cached else latent
    width = c.qk_nope_dim + c.v_head_dim
    kv = w.linear("attention.kv_b", "attention kv_b", kept, a * width, "heads")
    kv = kv.view(("kv", "heads", "head_dim"), (rows, a, width))
    key = Tensor("key assembly", ("kv", "heads", "head_dim"), (rows, a, c.qk_nope_dim + c.qk_rope_dim), w.act)
    w.each("key assembly", "copy", _slice(kv, "head_dim", c.qk_nope_dim, part=True), rope, out=key, calls=5)
    value = _slice(kv, "head_dim", c.v_head_dim, part=True)
    window = c.index_topk if c.index_heads else 0  # the keys that are picked are as many as a window's
    return core(w, "attention", (q, key, value), step.seq_len, step.kv_len, True, window, step.cached)


def _absorbed(w: Writer, q: Tensor, cache: Tensor) -> Tensor:
    """One latent vector a token serves every head: (a, r + rope) queries against it, values are its first r entries."""
    c, step = w.config, w.step
    n, a, r, t = step.tokens, c.heads, c.kv_lora_rank, step.kv_len
    axes = ("heads", "tokens", "latent")
    key, value = (Tensor(name, ("heads", "latent", "head_dim"), (a, r, width), w.act, WEIGHT)
                  for name, width in (("absorb key", c.qk_nope_dim), ("absorb value", c.v_head_dim)))  # fmt: skip
    y = Tensor("attention absorb key", axes, (a, n, r), w.act)
    q = w.bmm("attention absorb key", q, key, y, a, c.qk_nope_dim, "nn", part="attention.kv_b")
    w.scope = "attention core"
    if step.attention == "flash":
        window = c.index_topk if c.index_heads else 0
        op = Attention(
            w.act, step.batch, a, 1, 1, t, r + c.qk_rope_dim, r, True, window, step.kv_dtype, "forward", True, False
        )
        y = w.attend("attention core", op, (q, cache))
    else:
        scores = Tensor("attention scores", ("batch", "heads", "kv"), (step.batch, a, t), w.act)
        x = w.bmm("attention scores", q, cache, scores, step.batch, r + c.qk_rope_dim, "tn")
        x = w.each("attention scale", "mul_scalar", x)
        x = w.softmax("attention softmax", x, upcast=True)
        y = Tensor("attention context", ("batch", "heads", "latent"), (step.batch, a, r), w.act)
        y = w.bmm("attention context", x, cache, y, step.batch, t, "nn")
    w.scope = ""
    out = Tensor("attention absorb value", ("heads", "tokens", "head_dim"), (a, n, c.v_head_dim), w.act)
    y = w.bmm("attention absorb value", y, value, out, a, r, "nn", part="attention.kv_b")
    return y.view((*w.axes, "heads"), (*w.shape, a * c.v_head_dim))
