"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): expanded in prefill, absorbed in decode.

Shape legend: n query tokens, h width, a heads, r rank of the latent vector. In decode the key up-projection is absorbed
into the query and the value up-projection into the output: all heads share one latent vector a token, r + rope wide.
"""

from __future__ import annotations

from predictor.graph.graph import Node
from predictor.networks.attention import core
from predictor.networks.writer import Writer
from predictor.ops.attention import Attention
from predictor.ops.elementwise import Rotary


def latent_attention(w: Writer) -> None:
    """From the normed input to the output projection."""
    c, step = w.config, w.step
    n, h, a, latent = step.tokens, c.hidden, c.heads, c.kv_lora_rank + c.qk_rope_dim
    query = a * (c.qk_nope_dim + c.qk_rope_dim)
    joined = c.q_lora_rank > 0 and w.fused and w.formats.of("attention.q_a") == w.formats.of("attention.kv_a")
    if joined:
        w.linear("attention.q_a", "attention q_a kv_a", n, c.q_lora_rank + latent, h, c.qkv_bias, saved=n * h)
    elif c.q_lora_rank:
        w.linear("attention.q_a", "attention q_a", n, c.q_lora_rank, h, c.qkv_bias, saved=n * h)
    if c.q_lora_rank:
        w.norm("attention q_a norm", n, c.q_lora_rank)
        w.linear("attention.q_b", "attention q_b", n, query, c.q_lora_rank, saved=n * c.q_lora_rank)
    else:
        w.linear("attention.q_b", "attention q", n, query, h, saved=n * h)
    if not joined:
        w.linear("attention.kv_a", "attention kv_a", n, latent, h, c.qkv_bias)
    w.norm("attention kv_a norm", n, c.kv_lora_rank)
    _rotary(w, n)
    if step.cached:
        _append(w, latent)
    if step.mode == "decode":
        _absorbed(w, n)
    else:
        _expanded(w)
    w.linear("attention.out", "attention out", n, h, a * c.v_head_dim, c.out_bias, saved=n * a * c.v_head_dim)


def _rotary(w: Writer, n: int) -> None:
    """The rotary part of every query head and of the one shared key."""
    c = w.config
    if w.fused:
        w.nodes.append(Node(Rotary(w.act, n, c.heads + 1, c.qk_rope_dim), "rotary"))
        return
    table = n * c.qk_rope_dim * w.size
    for which, heads in (("q", c.heads), ("k", 1)):
        elements = n * heads * c.qk_rope_dim
        w.each(f"rotary {which} products", "mul", elements // 2, 1, table, count=4, calls=2)
        w.each(f"rotary {which} sums", "add", elements // 2, count=2)
        w.each(f"rotary {which} cat", "copy", elements)
    w.each("query cat", "copy", n * c.heads * (c.qk_nope_dim + c.qk_rope_dim))


def _append(w: Writer, latent: int) -> None:
    """The new latent vectors into the cache: in place, or by concatenation in eager PyTorch."""
    step = w.step
    tokens = step.tokens if w.fused else step.kv_tokens
    dtype = step.kv_dtype or w.act
    w.each("cache append", "copy", tokens * latent, dtype=dtype, in_dtype=w.act, calls=2, trainable=False)


def _expanded(w: Writer) -> None:
    """Keys and values of every head from the latent vectors of all positions."""
    c, step = w.config, w.step
    rows = step.kv_tokens
    width = c.heads * (c.qk_nope_dim + c.v_head_dim)
    w.linear("attention.kv_b", "attention kv_b", rows, width, c.kv_lora_rank, saved=rows * c.kv_lora_rank)
    w.each("key assembly", "copy", rows * c.heads * (c.qk_nope_dim + c.qk_rope_dim), calls=5)
    core(w, "attention", step.seq_len, step.kv_len, True, 0, step.cached)


def _absorbed(w: Writer, n: int) -> None:
    """One latent vector a token serves every head: (a, r + rope) queries against it, values are its first r entries."""
    c, step = w.config, w.step
    a, r, t = c.heads, c.kv_lora_rank, step.kv_len
    w.bmm("attention absorb key", a, n, r, c.qk_nope_dim, "nn")
    if step.attention == "flash":
        op = Attention(
            w.high, step.batch, a, 1, 1, t, r + c.qk_rope_dim, r, True, 0, step.kv_dtype, "forward", True, False
        )
        w.attend("attention core", op)
    else:
        w.bmm("attention scores", step.batch, a, t, r + c.qk_rope_dim, "tn")
        if not w.fused:
            w.each("attention scale", "mul_scalar", step.batch * a * t)
        w.softmax("attention softmax", step.batch * a, t, upcast=True)
        w.bmm("attention context", step.batch, a, r, t, "nn")
    w.bmm("attention absorb value", a, n, c.v_head_dim, r, "nn")
