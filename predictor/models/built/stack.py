"""Transformer layers: decoders and BERT's encoder, and the two stacks of an encoder-decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.errors import UnsupportedError
from predictor.files.records import replace
from predictor.graph.graph import Block, Graph
from predictor.graph.tensor import Tensor
from predictor.models.built import heads
from predictor.models.built.attention import cross_attention, self_attention
from predictor.models.built.feed_forward import experts, feed_forward, switch_experts
from predictor.models.built.writer import Writer
from predictor.models.step import Step
from predictor.ops.elementwise import Reduce

if TYPE_CHECKING:
    from predictor.models.built.config import ModelConfig


def decoder_layer(w: Writer, x: Tensor, sparse: bool, window: int) -> Tensor:
    """One layer: what mixes tokens and a feed-forward, each with its norm, dropout and residual sum; in some types one
    of the two alone, in others side by side."""
    c = w.config
    leads = c.pre_norm and c.lead_norms
    if c.parallel:
        return _parallel(w, x, sparse, window)
    if c.mixer != "none":
        x = w.summed_at("attention residual", x)
        y = w.norm("attention norm", x) if leads else x.view()
        y = w.dropout("attention out dropout", _mixer(w, y, window), c.residual_dropout)
        x = _join(w, "attention", x, y)
    if not c.feed:
        return x
    x = w.summed_at("mlp residual", x)
    y = w.norm("mlp norm", x) if leads else x
    y = experts(w, y) if sparse else feed_forward(w, y, c.intermediate)
    y = w.dropout("mlp dropout", y, c.residual_dropout)
    return _join(w, "mlp", x, y)


def _mixer(w: Writer, x: Tensor, window: int) -> Tensor:
    """What mixes tokens, from the normed input to the output projection."""
    c = w.config
    if c.mixer != "attention":
        from predictor.models.built.linear_attention import LAYERS  # most models start without it

        return LAYERS[c.mixer](w, x)
    if c.is_mla:
        from predictor.models.built.latent import latent_attention  # most models start without it

        return latent_attention(w, x)
    return self_attention(w, x, window)


def _parallel(w: Writer, x: Tensor, sparse: bool, window: int) -> Tensor:
    """Attention and feed-forward of the same stream, with one norm or two, and both sums at the end."""
    c = w.config
    x = w.summed_at("attention residual", x)
    normed = w.norm("attention norm", x)
    if c.shared_norm:
        normed = w.summed_at("mlp residual", normed)
    y = w.dropout("attention out dropout", _mixer(w, normed, window), c.residual_dropout)
    if not c.shared_norm:
        normed = w.norm("mlp norm", x)
    z = experts(w, normed) if sparse else feed_forward(w, normed, c.intermediate)
    z = w.dropout("mlp dropout", z, c.residual_dropout)
    return _join(w, "mlp", _join(w, "attention", x, y), z)


def _join(w: Writer, name: str, x: Tensor, y: Tensor) -> Tensor:
    """The residual sum, with the norm after it (BERT) or before it (Gemma)."""
    c = w.config
    if c.post_norms:
        y = w.norm(f"{name} post norm", y)
    if c.residual_scale:
        y = w.each(f"{name} branch scale", "mul_scalar", y, scope=f"{name} branch scaling")
    y = w.each(f"{name} residual", "add", x, y)
    return y if c.pre_norm else w.norm(f"{name} norm", y)


def encoder_decoder(w: Writer, encoded: Tensor, x: Tensor) -> tuple[list[Block], Tensor]:
    """Encoder and decoder of T5 and Switch, which read the embeddings ``encoded`` and ``x``, and the decoder's output.

    Both see the step's tokens. In decode the encoder has run already.
    """
    c, step = w.config, w.step
    blocks = []
    source = max(1, step.context_len) if step.mode == "decode" else step.seq_len
    if step.mode != "decode":
        bias = heads.relative_bias(w, "encoder", source, source)
        blocks.append(w.block("encoder positions"))
        encoder = Writer(c, replace(step, mode="forward", context_len=0) if step.cached else step)
        for sparse, _, count in c.layer_groups(encoder=True):
            before, encoded = encoded, _layer(encoder, encoded, bias, sparse)
            name = "encoder moe layer" if sparse else "encoder layer"
            blocks.append(encoder.block(name, count, (before, encoded)))
        before, encoded = encoded, encoder.norm("encoder norm", encoded)
        encoded = encoder.dropout("encoder dropout", encoded, c.residual_dropout)
        blocks.append(encoder.block("encoder norm", 1, (before, encoded)))
    bias = heads.relative_bias(w, "decoder", step.seq_len, step.kv_len)
    if w.today:  # of cross attention, zeros that all layers add
        w.tiny("cross position bias", "fill", c.heads * step.seq_len * source, w.act)
    blocks.append(w.block("decoder positions"))
    for sparse, _, count in c.layer_groups():
        before, x = x, _layer(w, x, bias, sparse, encoded, source)
        blocks.append(w.block("decoder moe layer" if sparse else "decoder layer", count, (before, x)))
    return blocks, x


def _layer(w: Writer, x: Tensor, bias: Tensor, sparse: bool, encoded: Tensor | None = None, source: int = 0) -> Tensor:
    """One layer of an encoder, or of a decoder that looks at the ``source`` tokens that were ``encoded``: sublayers,
    each with its norm in front and its residual sum."""
    c = w.config
    x = w.summed_at("attention residual", x)
    y = w.norm("attention norm", x)
    y = self_attention(w, y, 0, causal=encoded is not None, bias=bias)
    y = w.dropout("attention out dropout", y, c.residual_dropout)
    x = _sublayer(w, "attention", x, y)
    if encoded is not None:
        x = w.summed_at("cross residual", x)
        y = w.norm("cross norm", x)
        y = cross_attention(w, y, encoded, source)
        y = w.dropout("cross out dropout", y, c.residual_dropout)
        x = _sublayer(w, "cross", x, y)
    x = w.summed_at("mlp residual", x)
    y = w.norm("mlp norm", x)
    if sparse and w.step.experts == "whole" and not c.padded_experts:
        y = experts(w, y)
    elif sparse:
        y = switch_experts(w, y)
    else:
        y = feed_forward(w, y, c.intermediate)
    y = w.dropout("mlp dropout", y, c.residual_dropout)
    return _sublayer(w, "mlp", x, y)


def _sublayer(w: Writer, name: str, x: Tensor, y: Tensor) -> Tensor:
    """The residual sum that ends a sublayer; in fp16 eager PyTorch clamps what overflows to the largest number (T5Block
    of transformers 5.24, modeling_t5.py, and Switch's): sizes, which are infinite, any, two limits, one of them, its
    negative, the clamp."""
    y = w.each(f"{name} residual", "add", x, y, scope=f"{name} sublayer")
    if w.act != "fp16" or w.step.experts != "loop":  # engines have code of their own
        return y
    w.scope = f"{name} clamp"
    sizes = w.table(f"{name} sizes", y.elements)
    w.each(f"{name} sizes", "neg", y, out=sizes, grad=False)
    infinite = w.table(f"{name} infinite", y.elements, "bool")
    w.each(f"{name} infinite", "max_scalar", sizes, out=infinite, dtype="bool", in_dtype=w.act, grad=False)
    w.put(Reduce("bool", 1, y.elements, 1), f"{name} any", (infinite,), w.table(f"{name} any", 1, "bool"))
    w.tiny(f"{name} limit", count=4)
    y = w.each(f"{name} clamp", "max_scalar", y)
    w.scope = ""
    return y


def build(config: ModelConfig, step: Step) -> Graph:
    """The forward graph of one pass in the step's dtype of activations, with the loss in mode "train".

    Layers that are alike are one block that repeats, so a graph costs the same whatever its depth. Raises
    UnsupportedError for a pass that the architecture has not (decode of an encoder).
    """
    if not config.causal and step.mode in ("prefill", "decode"):
        raise UnsupportedError(f"{config.name} ({config.model_type}) has no {step.mode}: expected forward or train")
    w = Writer(config, step)
    blocks: list[Block] = []
    x, encoded = heads.embedding(w)
    if config.head != "none":
        if not config.is_encoder_decoder:
            heads.made_once(w)
        blocks.append(w.block("embedding"))
    if config.is_encoder_decoder:
        stacks, x = encoder_decoder(w, encoded, x)
        blocks.extend(stacks)
    else:
        for sparse, window, layers in config.layers_alike():
            w.config = config.at(layers[0])
            before, x = x, decoder_layer(w, x, sparse, window)
            name = _layer_name(config, w.config, sparse, window)
            blocks.append(w.block(name, len(layers), (before, x), layers))
        w.config = config
    if config.head != "none":
        before, x = x, heads.head(w, x)
        blocks.append(w.block("head", 1, (before, x)))
    if step.mode == "train" and config.head not in ("none", "base"):
        heads.loss(w, x)
        blocks.append(w.block("loss"))
    return Graph(tuple(block for block in blocks if block.nodes))


def _layer_name(config: ModelConfig, kind: ModelConfig, sparse: bool, window: int) -> str:
    name = "moe layer" if sparse else "layer"
    if config.variants:
        name = f"{name} {config.variants.index(kind)}"
    return f"{name} window" if window and len(set(config.windows)) > 1 else name
