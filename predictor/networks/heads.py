"""What comes before and after the layers: embeddings, masks and positions, final norm, heads, loss.

Shape legend: b sequences, s query tokens, t key positions, h width, n = b s tokens.
"""

from __future__ import annotations

from predictor.graph.graph import Node
from predictor.networks.writer import Writer
from predictor.ops.embedding import CrossEntropy, Embedding


def embedding(w: Writer) -> None:
    """Token, type and position embeddings, their sum, norm and dropout."""
    c, step = w.config, w.step
    n, h, s = step.tokens, c.hidden, step.seq_len
    if c.is_encoder_decoder:
        times = 1 if step.mode == "decode" else 2  # the encoder's tokens and the decoder's
        w.nodes.append(Node(Embedding(w.act, n, h, c.vocab), "token embedding", times, "forward", 2))
        for _ in range(times):
            w.over_ranks("embedding all_reduce", "all_reduce", n * h)
            w.dropout("embedding dropout", n * h, c.embed_dropout)
        return
    w.nodes.append(Node(Embedding(w.act, n, c.embed_width or h, c.vocab), "token embedding", 1, "forward", 3))
    w.over_ranks("embedding all_reduce", "all_reduce", n * (c.embed_width or h))
    if c.embed_width:
        w.linear("embedding", "embedding projection in", n, h, c.embed_width, saved=n * c.embed_width)
    if c.embed_scale:
        w.each("embedding scale", "mul_scalar", n * h)
    if c.type_vocab:
        w.nodes.append(Node(Embedding(w.act, n, h, c.type_vocab), "type embedding", 1, "forward", 3))
        w.each("embedding type sum", "add", n * h)
    if c.position == "learned":
        shared = c.model_type != "opt"  # OPT looks positions up for every sequence, the others once
        rows = s if shared else n
        if not w.fused:
            w.tiny("position ids", "fill", s, "int64", calls=3)
        w.nodes.append(Node(Embedding(w.act, rows, h, c.position_rows), "position embedding", 1, "forward", 1))
        if shared:
            w.each("embedding position sum", "add", n * h, 1, s * h * w.size)
        else:
            w.each("embedding position sum", "add", n * h)
    if c.embed_norm:
        w.norm("embedding norm", n, h)
    w.dropout("embedding dropout", n * h, c.embed_dropout)


def masks(w: Writer) -> None:
    """Masks and position tables that eager PyTorch makes once a pass."""
    c, step = w.config, w.step
    if w.fused:
        return
    b, s, t = step.batch, step.seq_len, step.kv_len
    if c.model_type == "bert":
        w.tiny("mask ones", "fill", b * t, w.act, calls=6)
        w.tiny("mask invert", "add_scalar", b * t, w.act)
        w.tiny("mask scale", "mul_scalar", b * t, w.act)
    elif c.model_type == "opt":
        _opt_masks(w, b, s, t)
    elif c.model_type in ("bloom", "mpt") or (c.position == "rotary" and step.attention == "math"):
        w.tiny("causal mask", "fill", s * t, w.act, count=2, calls=4)
        w.tiny("causal mask fill", "masked_fill", s * t, w.act, calls=2)
    if c.position == "rotary":
        table = b * s * (c.qk_rope_dim or c.rotary_dim or c.head_dim)
        w.tiny("rotary angles", "mul_scalar", table // 2, "fp32", calls=6)
        w.tiny("rotary table", "exp", table, "fp32", count=3)  # cat, cos, sin
        w.keep_more(2 * s * (c.qk_rope_dim or c.rotary_dim or c.head_dim) / 3)  # cos and sin, over the three
        if w.size < 4:
            w.each("rotary table cast", "cast", table, in_dtype="fp32", count=2, trainable=False)
    if c.position == "alibi":
        w.tiny("alibi slopes", "mul_scalar", b * c.heads * t, "fp32", calls=6)


def _opt_masks(w: Writer, b: int, s: int, t: int) -> None:
    """OPT of transformers 4.28: a causal and a padding mask, both expanded to (b, 1, s, t), and position ids."""
    w.tiny("mask ones", "fill", b * t, w.act)
    w.tiny("causal fill", "fill", s * s, w.act)
    w.tiny("causal positions", "add_scalar", s, "int64", calls=3)
    w.each("causal compare", "max_scalar", s * s, 0, 16.0 * s, dtype="bool", trainable=False)
    w.each("causal masked fill", "masked_fill", s * s, 1, s * s, trainable=False)
    full = b * s * t
    w.each("padding invert", "add_scalar", full, trainable=False, calls=5)
    for part in ("padding", "causal"):
        w.each(f"{part} to bool", "cast", full, dtype="bool", in_dtype=w.act, trainable=False)
        w.each(f"{part} masked fill", "masked_fill", full, 1, full, trainable=False, calls=2)
    w.tiny("positions", "cumsum", b * s, "int64", count=5)


def relative_bias(w: Writer, name: str, s: int, t: int) -> None:
    """T5's relative position bias: about a dozen kernels on (s, t) indices, a look-up, and the mask added."""
    c, b = w.config, w.step.batch
    w.tiny(f"{name} relative buckets", "add", s * t, "int64", count=8)
    w.tiny(f"{name} relative distance", "cast", s * t, "fp32", count=4)
    bias = Embedding(w.act, s * t, c.heads, c.relative_buckets)
    w.nodes.append(Node(bias, f"{name} position bias", 1, "forward", 4))
    w.each(f"{name} bias mask", "add", b * c.heads * s * t, 0, (c.heads + b) * s * t * w.size)


def head(w: Writer) -> None:
    """Final norm, and the projection to the vocabulary or to labels."""
    c, step = w.config, w.step
    n, h = step.tokens, c.hidden
    if c.model_type == "bert":
        _bert_head(w)
        return
    if c.final_norm:
        w.norm("final norm", n, h)
    if c.is_encoder_decoder:
        w.dropout("decoder dropout", n * h, c.residual_dropout)
        if c.tie_embeddings and not w.fused:
            w.each("output scale", "mul_scalar", n * h)
    if c.embed_width:
        w.linear("head", "projection out", n, c.embed_width, h, saved=n * h)
    width = c.embed_width or h
    rows = step.batch if step.logits == "last" else n
    if c.head == "classifier":
        w.linear("head", "classifier", n, c.num_labels, width, saved=n * width)
    elif c.head == "lm":
        w.linear("head", "lm head", rows, c.vocab, width, saved=rows * width)
        if c.final_softcap and not w.fused:
            w.each("logits softcap scale", "div_scalar", rows * c.vocab)
            w.each("logits softcap tanh", "tanh", rows * c.vocab, saved=rows * c.vocab)
            w.each("logits softcap unscale", "mul_scalar", rows * c.vocab)
        elif c.final_softcap:
            w.each("logits softcap", "fused", rows * c.vocab, 1, flops=10.0)
        w.over_ranks("logits all_gather", "all_gather", rows * c.vocab * step.tp)


def _bert_head(w: Writer) -> None:
    """Pooler, classifier, and the masked-language-model head with its transform."""
    c, step = w.config, w.step
    b, n, h = step.batch, step.tokens, c.hidden
    if c.head in ("classifier", "base", "pretraining"):
        w.linear("head", "pooler", b, h, h, True, saved=b * h, views=1)
        w.each("pooler activation", "tanh", b * h, saved=b * h)
    if c.head == "classifier":
        w.dropout("pooler dropout", b * h, c.residual_dropout)
        w.linear("head", "classifier", b, c.num_labels, h, True, saved=b * h)
    if c.head in ("lm", "pretraining"):
        w.linear("head", "head transform", n, h, h, True, saved=n * h)
        w.activation("head activation", n * h)
        w.norm("head norm", n, h)
        w.linear("head", "lm head", n, c.vocab, h, True, saved=n * h)
        w.over_ranks("logits all_gather", "all_gather", n * c.vocab * step.tp)
    if c.head == "pretraining":
        w.linear("head", "next sentence", b, 2, h, True)


def loss(w: Writer) -> None:
    """Cross-entropy over the logits, in fp32."""
    c, step = w.config, w.step
    rows, vocab = (step.batch, c.num_labels) if c.head == "classifier" else (step.tokens, c.vocab)
    if w.size < 4 and not w.fused:
        w.each("logits to fp32", "cast", rows * vocab, dtype="fp32", in_dtype=w.act)
    dtype = w.act if w.fused else "fp32"
    op = CrossEntropy(dtype, rows, vocab)
    kept = rows * vocab * op.itemsize if w.training else 0.0  # the log-softmax
    w.nodes.append(Node(op, "loss", 1, "forward", 4, kept))
