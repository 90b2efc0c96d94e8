"""What comes before and after the layers: embeddings, masks and positions, final norm, heads, loss.

Shape legend: b sequences, s query tokens, t key positions, h width, n = b s tokens.
"""

from __future__ import annotations

from predictor.graph.tensor import WEIGHT, Tensor
from predictor.models.built.masks import buckets, masks, ones
from predictor.models.built.rotary import tables
from predictor.models.built.writer import Writer
from predictor.models.step import Step
from predictor.ops.elementwise import Elementwise
from predictor.ops.embedding import CrossEntropy, Embedding
from predictor.ops.ordering import Index, Scan


def embedding(w: Writer) -> tuple[Tensor, Tensor]:
    """Token, type and position embeddings, their sum, norm and dropout: of the decoder's tokens, and of the encoder's
    where there is one."""
    c, step = w.config, w.step
    h, s = c.hidden, step.seq_len
    if c.head == "none":  # the layers alone
        return w.hidden("input"), w.hidden("input")
    if c.is_encoder_decoder:
        return _two_embeddings(w)
    width = c.embed_width or h
    looked_up = 1 if c.position in ("rotary", "alibi") else 2 if w.today else 3
    x = _look_up(w, "token embedding", w.hidden("token embedding", width), c.vocab, "vocab", looked_up)
    if c.embed_width:
        x = w.linear("embedding", "embedding projection in", x, h, "hidden")
    if c.embed_scale:
        x = w.each("embedding scale", "mul_scalar", x)
    if c.type_vocab:
        if w.today:  # of a batch that names none they are picked from a buffer
            n = step.tokens
            w.put(Index("int64", 1, n, n), "type ids", (), w.table("type ids", n, "int64"), calls=3)
        calls = 1 if w.today else 3
        types = _look_up(w, "type embedding", w.hidden("type embedding"), c.type_vocab, "type", calls)
        x = w.each("embedding type sum", "add", x, types)
    if c.position == "learned":
        w.scope = "position tables"
        calls = _position_ids(w)
        w.scope = ""
        name = "embedding position sum"
        if c.model_type == "opt":  # it looks positions up for every sequence, the others once
            rows = _look_up(w, "position embedding", w.hidden("position embedding"), c.position_rows, "position", 1)
            x = w.each(name, "add", x, rows)
        else:
            rows = Tensor("position embedding", ("sequence", "hidden"), (s, h), w.act)
            rows = _look_up(w, "position embedding", rows, c.position_rows, "position", calls)
            x = w.each(name, "add", x, rows, inputs=1, extra=s * h * w.size)
    if c.embed_norm:
        x = w.norm("embedding norm", x)
    x = w.dropout("embedding dropout", x, c.embed_dropout)
    return x, x


def _position_ids(w: Writer) -> int:
    """Numbers of the positions that learned embeddings are looked up by, as each class makes them; and the calls of
    that look-up. A buffer's take no kernel."""
    s, n, kind = w.step.seq_len, w.step.tokens, w.config.model_type
    if not w.today:
        w.tiny("position ids", "fill", s, "int64", calls=3)
        return 1
    if kind == "bert":
        return 1
    if kind == "opt":  # counted in a mask of ones
        t = w.step.batch * w.step.kv_len
        w.tiny("position ones", "fill", t)
        counted = w.table("position counts", t)
        w.put(Scan("fp32", w.step.batch, w.step.kv_len), counted.name, (), counted)
        w.tiny("position counts of tokens", "mul", t)
        w.tiny("position ids", "add_scalar", t)
        w.tiny("position ids in int64", "cast", t, "int64")
        w.tiny("position ids after the offset", "add_scalar", n, "int64")
        return 1
    w.tiny("position ids", "fill", s, "int64")
    w.tiny("position ids after the cache", "add_scalar", s, "int64")
    return 2


def _look_up(w: Writer, name: str, out: Tensor, rows: int, axis: str, calls: int) -> Tensor:
    """A row of a table of ``rows`` for every token of ``out``."""
    width = out.shape[-1]
    table = Tensor(name, (axis, out.axes[-1]), (rows, width), w.act, WEIGHT)
    if axis == "vocab" and w.config.tie_embeddings:
        w.tied = table
    return w.put(Embedding(w.act, out.elements // width, width, rows), name, (table,), out, 1, calls)


def _two_embeddings(w: Writer) -> tuple[Tensor, Tensor]:
    """The decoder's tokens and the encoder's in one table; in decode the encoder has run already."""
    c, step = w.config, w.step
    times = 1 if step.mode == "decode" else 2
    outs = [w.hidden("token embedding") for _ in range(times)]
    table = Tensor("token embedding", ("vocab", "hidden"), (c.vocab, c.hidden), w.act, WEIGHT)
    w.tied = table if c.tie_embeddings else None
    op = Embedding(w.act, step.tokens, c.hidden, c.vocab)
    for x in outs:
        w.put(op, "token embedding", (table,), x, calls=2)
    for i, x in enumerate(outs):
        outs[i] = w.dropout("embedding dropout", x, c.embed_dropout)
    return outs[0], outs[-1]


def made_once(w: Writer) -> None:
    """Masks and position tables that eager PyTorch makes once a pass."""
    c, step = w.config, w.step
    w.scope = "mask tables"
    masks(w)
    if c.model_type == "opt" and not w.today:
        w.tiny("positions", "cumsum", step.batch * step.seq_len, "int64", count=5)
    if c.position == "rotary":
        w.rotations = tables(w)
    if c.position == "alibi":
        _slopes(w, step.batch, step.kv_len)
    w.scope = ""


def _slopes(w: Writer, b: int, t: int) -> None:
    """Alibi of every head and position: the slopes, and their products with the positions (transformers 5.24,
    build_mpt_alibi_tensor of modeling_mpt.py, build_alibi_tensor of modeling_bloom.py)."""
    c = w.config
    if c.model_type == "mpt":  # of all positions that the model has
        w.tiny("alibi positions", "fill", c.max_positions, "int32")
        w.tiny("alibi powers", "pow_scalar", c.heads, count=6, calls=1)
        out = w.state("alibi slopes", "fp32", heads=c.heads, kv=c.max_positions)
        w.tiny("alibi slopes", "mul_scalar", calls=4, out=out)
        return
    w.tiny("alibi powers", "pow_scalar", c.heads, count=3)
    w.tiny("alibi positions", "fill", t, "int64", calls=3)
    w.tiny("alibi products", "mul_scalar", c.heads * t)
    w.tiny("alibi copies", "copy", b * c.heads * t)
    w.tiny("alibi slopes", "cast", out=w.state("alibi slopes", batch=b, heads=c.heads, kv=t))


def relative_bias(w: Writer, name: str, s: int, t: int) -> Tensor:
    """T5's relative position bias: kernels on (s, t) indices and a look-up. What 2023's class adds the mask to at once,
    today's adds to the scores apart from it."""
    c, b = w.config, w.step.batch
    looked_up = Tensor(f"{name} position bias", ("sequence", "kv", "heads"), (s, t, c.heads), w.act)
    decoder = name == "decoder"
    if w.today:
        buckets(w, name, s, t, decoder)
        looked_up = _look_up(w, f"{name} position bias", looked_up, c.relative_buckets, "bucket", 3)
        ones(w, name, t, decoder)
        return looked_up
    w.tiny(f"{name} relative buckets", "add", s * t, "int64", count=8)
    w.tiny(f"{name} relative distance", "cast", s * t, "fp32", count=4)
    looked_up = _look_up(w, f"{name} position bias", looked_up, c.relative_buckets, "bucket", 4)
    bias = Tensor(f"{name} bias mask", ("batch", "heads", "sequence", "kv"), (b, c.heads, s, t), w.act)
    mask = w.table("mask", b * s * t)
    extra = looked_up.nbytes + mask.nbytes
    return w.each(f"{name} bias mask", "add", looked_up, mask, out=bias, inputs=0, extra=extra)


def head(w: Writer, x: Tensor) -> Tensor:
    """Final norm, and the projection to the vocabulary or to labels."""
    c, step = w.config, w.step
    n, h = step.tokens, c.hidden
    if c.model_type == "bert":
        return _bert_head(w, x)
    if c.final_norm:
        x = w.norm("final norm", x)
    if c.is_encoder_decoder:
        x = w.dropout("decoder dropout", x, c.residual_dropout)
        if c.tie_embeddings:
            x = w.each("output scale", "mul_scalar", x, scope="head scaling")
    if c.embed_width:
        x = w.linear("head", "projection out", x, c.embed_width, "hidden")
    width = c.embed_width or h
    rows = step.batch if step.logits == "last" else n
    if c.head == "classifier":
        return w.linear("head", "classifier", x, c.num_labels, "label")
    if c.head == "lm":
        x = x.view(("batch", "hidden"), (rows, width)) if step.logits == "last" else x
        x = w.linear("head", "lm head", x, c.vocab, "vocab", c.head_bias, weight=w.tied)
        if c.logit_scale:
            x = w.each("logits scale", c.logit_scale, x)
        if c.final_softcap:
            w.scope = "logits softcap"
            x = w.each("logits softcap scale", "div_scalar", x)
            x = w.each("logits softcap tanh", "tanh", x)
            x = w.each("logits softcap unscale", "mul_scalar", x)
            w.scope = ""
    return x


def _bert_head(w: Writer, x: Tensor) -> Tensor:
    """Pooler, classifier, and the masked-language-model head with its transform."""
    c, step = w.config, w.step
    b, n, h = step.batch, step.tokens, c.hidden
    pooled = x
    if c.head in ("classifier", "base", "pretraining"):
        # The gradient of its first tokens is copied into zeros.
        zeros = (Elementwise(w.act, "fill", n * h), Elementwise(w.act, "copy", b * h)) if w.training else ()
        first = x.view(("batch", "hidden"), (b, h), zeros)
        pooled = w.linear("head", "pooler", first, h, "hidden", True, views=1)
        pooled = w.each("pooler activation", "tanh", pooled)
    if c.head == "classifier":
        pooled = w.dropout("pooler dropout", pooled, c.residual_dropout)
        return w.linear("head", "classifier", pooled, c.num_labels, "label", True)
    if c.head in ("lm", "pretraining"):
        if step.masked:  # the gradient of the others is zero
            rows = b * step.masked
            zeros = (Elementwise(w.act, "fill", n * h), Elementwise(w.act, "copy", rows * h)) if w.training else ()
            x = w.each("head masked tokens", "copy", x.view(("tokens", "hidden"), (rows, h), zeros), grad=False)
        x = w.linear("head", "head transform", x, h, "hidden", True)
        x = w.activation("head activation", x)
        x = w.norm("head norm", x)
        x = w.linear("head", "lm head", x, c.vocab, "vocab", True, weight=w.tied)
    if c.head == "pretraining":
        w.linear("head", "next sentence", pooled, 2, "label", True)
    return x


def predicted(step: Step) -> int:
    """Positions of which there are logits in training."""
    return step.batch * step.masked if step.masked else step.tokens


def loss(w: Writer, logits: Tensor) -> None:
    """Cross-entropy over the logits: of a decoder in fp32, of the others in the dtype that they have, as their classes
    run it (transformers 5.23: ForCausalLMLoss of loss/loss_utils.py, T5's and BERT's forward)."""
    c, step = w.config, w.step
    rows, vocab = (step.batch, c.num_labels) if c.head == "classifier" else (predicted(step), c.vocab)
    w.scope = "loss"
    dtype = "fp32" if c.causal and not c.is_encoder_decoder else w.act
    if w.act != dtype and w.size < 4:
        wide = Tensor("logits to fp32", ("tokens", "vocab"), (rows, vocab), dtype)
        logits = w.each("logits to fp32", "cast", logits, out=wide, dtype=dtype, in_dtype=w.act)
    w.put(CrossEntropy(dtype, rows, vocab), "loss", (logits,), Tensor("loss", (), (), dtype), 1, 4)
    w.scope = ""
