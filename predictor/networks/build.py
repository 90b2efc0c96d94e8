"""ModelConfig + Step -> Graph: the forward pass of every architecture in the catalogue."""

from __future__ import annotations

from predictor.errors import UnsupportedError
from predictor.graph.graph import Block, Graph
from predictor.networks import heads, stack
from predictor.networks.config import ModelConfig
from predictor.networks.step import Step
from predictor.networks.writer import Writer


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
            heads.masks(w)
        blocks.append(w.block("embedding"))
    if config.is_encoder_decoder:
        stacks, x = stack.encoder_decoder(w, encoded, x)
        blocks.extend(stacks)
    else:
        for sparse, window, layers in config.layers_alike():
            w.config = config.at(layers[0])
            before, x = x, stack.decoder_layer(w, x, sparse, window)
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
