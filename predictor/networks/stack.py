"""Transformer layers: decoders and BERT's encoder, and the two stacks of an encoder-decoder."""

from __future__ import annotations

from dataclasses import replace

from predictor.graph.graph import Block
from predictor.networks import heads
from predictor.networks.attention import cross_attention, self_attention
from predictor.networks.feed_forward import experts, feed_forward, switch_experts
from predictor.networks.latent import latent_attention
from predictor.networks.writer import Writer


def decoder_layer(w: Writer, sparse: bool, window: int) -> None:
    """One layer: attention and feed-forward, each with its norm, dropout and residual sum.

    In fused form a sum runs inside the norm that follows; what follows a layer is the first norm of the next one.
    An engine may end a layer with a sum of its own.
    """
    c, n = w.config, w.step.tokens
    h = c.hidden
    apart = w.step.engine.ends_in_sum and c.pre_norm
    if c.pre_norm:
        w.norm("attention norm", n, h, residual=not apart)
    if c.is_mla:
        latent_attention(w)
    else:
        self_attention(w, window)
    w.over_ranks("attention all_reduce", "all_reduce", n * h)
    w.dropout("attention out dropout", n * h, c.residual_dropout)
    _join(w, "attention", n)
    if c.pre_norm:
        w.norm("mlp norm", n, h, residual=True)
    if sparse:
        experts(w)
    else:
        feed_forward(w, c.intermediate)
    w.over_ranks("mlp all_reduce", "all_reduce", n * h)
    w.dropout("mlp dropout", n * h, c.residual_dropout)
    _join(w, "mlp", n)
    if apart:
        w.each("mlp residual", "add", n * h)


def _join(w: Writer, name: str, n: int) -> None:
    """The residual sum, with the norm after it (BERT) or before it (Gemma)."""
    c = w.config
    if c.post_norms:
        w.norm(f"{name} post norm", n, c.hidden)
    w.residual(f"{name} residual", n * c.hidden)
    if not c.pre_norm:  # what goes on is the norm's result: an engine's kernel does not write the sum
        w.norm(f"{name} norm", n, c.hidden, residual=True, sum_kept=not w.step.engine.serves)


def encoder_decoder(w: Writer) -> list[Block]:
    """Encoder and decoder of T5 and Switch; both see the step's tokens. In decode the encoder has run already."""
    c, step = w.config, w.step
    blocks = []
    source = max(1, step.context_len) if step.mode == "decode" else step.seq_len
    if step.mode != "decode":
        heads.relative_bias(w, "encoder", source, source)
        blocks.append(w.block("encoder positions"))
        encoder = Writer(c, replace(step, mode="forward", context_len=0) if step.cached else step)
        for sparse, _, count in c.layer_groups(encoder=True):
            _layer(encoder, sparse, 0, False)
            blocks.append(encoder.block("encoder moe layer" if sparse else "encoder layer", count))
        encoder.norm("encoder norm", encoder.step.tokens, c.hidden)
        encoder.keep_more(encoder.step.tokens * c.hidden)  # what every layer's cross attention projects
        encoder.dropout("encoder dropout", encoder.step.tokens * c.hidden, c.residual_dropout)
        blocks.append(encoder.block("encoder norm"))
    heads.relative_bias(w, "decoder", step.seq_len, step.kv_len)
    blocks.append(w.block("decoder positions"))
    for sparse, _, count in c.layer_groups():
        _layer(w, sparse, source, True)
        blocks.append(w.block("decoder moe layer" if sparse else "decoder layer", count))
    return blocks


def _layer(w: Writer, sparse: bool, source: int, decoder: bool) -> None:
    """One layer of an encoder (``source`` 0) or of a decoder that looks at ``source`` encoder tokens."""
    c, n = w.config, w.step.tokens
    w.norm("attention norm", n, c.hidden, residual=True)
    self_attention(w, 0, causal=decoder)
    w.over_ranks("attention all_reduce", "all_reduce", n * c.hidden)
    w.dropout("attention out dropout", n * c.hidden, c.residual_dropout)
    w.residual("attention residual", n * c.hidden)
    if decoder:
        w.norm("cross norm", n, c.hidden, residual=True)
        cross_attention(w, source)
        w.over_ranks("cross all_reduce", "all_reduce", n * c.hidden)
        w.dropout("cross out dropout", n * c.hidden, c.residual_dropout)
        w.residual("cross residual", n * c.hidden)
    w.norm("mlp norm", n, c.hidden, residual=True)
    if sparse and w.fused and not c.padded_experts:
        experts(w)
    elif sparse:
        switch_experts(w)
    else:
        feed_forward(w, c.intermediate)
    w.over_ranks("mlp all_reduce", "all_reduce", n * c.hidden)
    w.dropout("mlp dropout", n * c.hidden, c.residual_dropout)
    w.residual("mlp residual", n * c.hidden)
