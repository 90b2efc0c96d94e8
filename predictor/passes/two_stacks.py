"""Pipelines of encoder-decoders: the encoder's layers come first, then the decoder's, as one row of layers.

The decoder's embedding stands where the decoder begins, with a copy of the table; so does its relative bias, which
later stages would make anew (a look-up of a few rows). What ends the encoder stays with its last layer. The encoder's
output travels on with the hidden states to every later stage, and its gradient back: two messages in place of one
(megatron/core/pipeline_parallel/schedules.py, get_tensor_shapes). Chunks of a stage are not interleaved, as there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from predictor.errors import UnsupportedError
from predictor.graph.graph import Block, Graph, Node
from predictor.networks import ModelConfig
from predictor.ops.base import Op


def stacks_of(config: ModelConfig, vpp: int) -> tuple[tuple[int, ...], ...]:
    """The numbers of the layers that each block of layers stands for, the encoder's first; none of a single stack."""
    if not config.is_encoder_decoder:
        return ()
    if vpp > 1:
        raise UnsupportedError(
            f"--vpp {vpp}: pipelines of an encoder-decoder ({config.name}) have one chunk a stage; expected --vpp 1"
        )
    ahead = config.encoder_layers
    encoder = tuple(numbers for _, _, numbers in config.layers_alike(encoder=True))
    return encoder + tuple(tuple(ahead + n for n in numbers) for _, _, numbers in config.layers_alike())


def messages_of(config: ModelConfig, ends: tuple[int, ...]) -> tuple[int, ...]:
    """How many tensors every stage of a pipeline sends the next, whose layers end at ``ends``."""
    return tuple(2 if config.is_encoder_decoder and end > config.encoder_layers else 1 for end in ends)


def tables_of(config: ModelConfig, ends: tuple[int, ...]) -> set[int]:
    """Parts of a pipeline that have a copy of the token embedding: the first, the decoder's first, and the last where
    the head reads it."""
    starts, ahead = (0, *ends[:-1]), config.encoder_layers
    decodes = (s for s, (a, b) in enumerate(zip(starts, ends, strict=True)) if ahead and a <= ahead < b)
    return {0, *decodes, *((len(ends) - 1,) if config.tie_embeddings else ())}


def between(graph: Graph, layers: list[int]) -> range:
    """The places of the blocks between the two stacks, whose blocks of layers are at ``layers``."""
    last = next(a for a, b in pairwise(layers) if b != a + 1)
    return range(last + 1, layers[layers.index(last) + 1])


def embedded(graph: Graph, opens: bool, decodes: bool) -> Graph:
    """``graph`` with the embeddings of a stage: of the encoder's tokens (``opens``), of the decoder's (``decodes``).

    Both are the same operators on as many tokens each, one after the other: each stage has one of every pair.
    """
    if opens == decodes:
        return graph
    blocks = [
        replace(block, nodes=_one_of_each_pair(block, 0 if opens else 1)) if 0 in (b, block.backward_of) else block
        for b, block in enumerate(graph.blocks)
    ]
    return replace(graph, blocks=tuple(blocks))


def _one_of_each_pair(block: Block, which: int) -> tuple[Node, ...]:
    seen: Counter[tuple[str, Op]] = Counter()
    kept = []
    for node in block.nodes:
        if seen[node.name, node.op] % 2 == which:
            kept.append(node)
        seen[node.name, node.op] += 1
    return tuple(kept)
