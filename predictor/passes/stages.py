"""A pipeline of a serving engine: layers in order over ``pp`` stages, with the hidden states sent from one to the next.

Layers are shared out evenly, what does not divide goes to the first stages; the embedding is the first stage's, head
and sampler the last one's. The graph stays that of all stages, one after the other, as a micro-batch passes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from predictor.dtypes import bytes_of
from predictor.errors import RequestError, UnsupportedError
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import Tensor
from predictor.ops.collective import over

if TYPE_CHECKING:
    from predictor.hardware.mesh import Mesh
    from predictor.networks import ModelConfig


class Staged(NamedTuple):
    """A graph cut into stages: ``ends``, how many of its blocks the stages up to each have."""

    graph: Graph
    ends: tuple[int, ...]


def layers_of(stage: int, layers: int, pp: int) -> tuple[int, int]:
    """The layers [from, to) of a stage.

    >>> [layers_of(stage, 62, 4) for stage in range(4)]
    [(0, 16), (16, 32), (32, 47), (47, 62)]
    """
    each, more = divmod(layers, pp)
    first = stage * each + min(stage, more)
    return first, first + each + (stage < more)


def check_stages(config: ModelConfig, pp: int) -> None:
    """RequestError where a stage would have no layer, UnsupportedError for a model of two stacks."""
    if pp > 1 and config.is_encoder_decoder:
        raise UnsupportedError(f"--pp {pp}: not built for an encoder-decoder ({config.name}); expected 1")
    if pp > config.layers:
        raise RequestError(f"--pp {pp}: {config.name} has {config.layers} layers; expected at most {config.layers}")


def staged(graph: Graph, mesh: Mesh, layers: int, tokens: int, hidden: int, dtype: str) -> Staged:
    """``graph`` of a model with ``layers`` as ``pp`` stages run it; ``tokens`` of a micro-batch, ``hidden`` wide."""
    pp = mesh.degree("pp")
    if pp == 1:
        return Staged(graph, (len(graph.blocks),))
    numbered = [i for i, block in enumerate(graph.blocks) if block.layers]
    blocks: list[Block] = []
    ends = []
    for stage in range(pp):
        first, last = layers_of(stage, layers, pp)
        if stage:
            blocks.append(_sent(mesh, stage, tokens * hidden, dtype))
        else:
            blocks += graph.blocks[: numbered[0]]
        blocks += _part(graph.blocks[numbered[0] : numbered[-1] + 1], first, last)
        if stage == pp - 1:
            blocks += graph.blocks[numbered[-1] + 1 :]
        ends.append(len(blocks))
    return Staged(replace(graph, blocks=tuple(blocks)), tuple(ends))


def _part(blocks: tuple[Block, ...], first: int, last: int) -> Iterator[Block]:
    """What of the blocks between the first and the last layer the layers [first, last) are; those without a number go
    with the first stage."""
    for block in blocks:
        if not block.layers:
            if not first:
                yield block
            continue
        own = tuple(layer for layer in block.layers if first <= layer < last)
        if len(own) == len(block.layers):
            yield block
        elif own:
            yield replace(block, repeat=len(own), layers=own)


def _sent(mesh: Mesh, stage: int, elements: int, dtype: str) -> Block:
    """Hidden states on their way to a stage: each of the tp GPUs sends to its like."""
    stride, per_node = mesh.stride("pp"), mesh.system.gpus_per_node
    near = (stage * stride - 1) // per_node == (stage * stride) // per_node
    op = over(mesh.system, "send_recv", dtype, round(elements * bytes_of(dtype)), 2, 2 if near else 1)
    axes, shape = ("tokens",), (elements,)
    ends = (Tensor(f"stage {stage} {what}", axes, shape, dtype) for what in ("sent", "received"))
    sent, received = ends
    return Block(f"to stage {stage}", (Node(op, "stage send_recv", (sent,), (received,)),))
