"""Pipeline parallelism: a joint graph is cut into chunks of layers, embedding and head on the chunks at its ends.

Layers are shared out as they are asked for, else evenly. Where that does not go, and the layers with the head as one
more do, the last has a layer less; where they do with embedding and head as two more, both ends have, none where the
others have one each (as Llama 3's pipelines, arXiv:2407.21783, section 3.3.2, and Megatron's flags,
`predictor.engines.launch.divided`). What a chunk passes on is what the layer before carries, and back its gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from predictor.engines.launch import divided
from predictor.errors import RequestError, UnsupportedError
from predictor.files.records import replace
from predictor.formats.dtypes import bytes_of
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import Tensor
from predictor.ops.base import Op
from predictor.ops.collective import over
from predictor.passes.offload import mixed
from predictor.passes.recompute import is_layer

if TYPE_CHECKING:
    from predictor.models.base import Stack
    from predictor.passes.mesh import Mesh


def stacks_of(config: Stack, vpp: int) -> tuple[tuple[int, ...], ...]:
    """The numbers of the layers that each block of layers stands for, the encoder's first; none of a single stack."""
    if not config.is_encoder_decoder:
        return ()
    if vpp > 1:
        raise UnsupportedError(
            f"--vpp {vpp}: an encoder-decoder ({config.name}) runs one chunk per stage; expected --vpp 1"
        )
    ahead = config.encoder_layers
    encoder = tuple(numbers for _, _, numbers in config.layers_alike(encoder=True))
    return encoder + tuple(tuple(ahead + n for n in numbers) for _, _, numbers in config.layers_alike())


def messages_of(config: Stack, ends: tuple[int, ...]) -> tuple[int, ...]:
    """How many tensors every stage of a pipeline sends the next, whose layers end at ``ends``."""
    return tuple(2 if config.is_encoder_decoder and end > config.encoder_layers else 1 for end in ends)


def tables_of(config: Stack, ends: tuple[int, ...]) -> set[int]:
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


class Chunk(NamedTuple):
    """The layers ``first`` to (not including) ``end`` of a model of so many ``layers``; whether the embedding is its
    (``opens``), and the head with the loss (``closes``); of its layers ``again`` run again in the backward pass (-1: as
    the graph has it). Of two ``stacks``, an encoder's and a decoder's: the layers of each of their blocks, and how many
    are ``ahead`` of the decoder's."""

    first: int
    end: int
    layers: int
    opens: bool
    closes: bool
    again: int = -1
    stacks: tuple[tuple[int, ...], ...] = ()
    ahead: int = 0

    @property
    def decodes(self) -> bool:
        """Whether the decoder begins in it."""
        return bool(self.stacks) and self.first <= self.ahead < self.end


def chunks_of(config: Stack, pp: int, vpp: int = 1, stage_layers: tuple[int, ...] = ()) -> tuple[Chunk, ...]:
    """The ``pp`` x ``vpp`` chunks of a model in order; chunk i is of stage i modulo ``pp`` and has ``stage_layers[i]``
    layers, where those are given: 0 at an end leaves the embedding, or the head, alone on it.

    RequestError, one line with the nearest degree that works, where layers cannot be shared out.
    """
    layers, parts = config.encoder_layers + config.layers, pp * vpp
    if parts == 1:
        return (Chunk(0, layers, layers, True, True),)
    stacks = stacks_of(config, vpp)
    sizes = stage_layers or _sizes(layers, parts)
    if sizes is not None and sum(sizes) != layers:
        shown = ",".join(map(str, sizes))
        raise RequestError(f"--stage-layers {shown}: {sum(sizes)} layers; expected the {layers} of {config.name}")
    if sizes is None:
        near = [n for n in range(1, layers + 1) if _sizes(layers, n * vpp)]
        loops = [v for v in range(2, layers // pp + 1) if vpp > 1 and _sizes(layers, pp * v)]
        fit = min(near, key=lambda n: (abs(n - pp), n)) if near else 1
        of = f" with --vpp {vpp}" if vpp > 1 else ""
        tail = f"--pp {fit}{of}, or --stage-layers" if near else "--pp 1 and no --vpp"
        if loops:
            tail = f"--vpp {min(loops, key=lambda v: (abs(v - vpp), v))}, or --stage-layers"
        raise RequestError(
            f"--pp {pp}{of}: does not divide the {layers} layers of {config.name}; nearest valid: {tail}"
        )
    ends = [sum(sizes[: i + 1]) for i in range(parts)]
    return tuple(
        Chunk(end - size, end, layers, i == 0, i == parts - 1, -1, stacks, config.encoder_layers)
        for i, (size, end) in enumerate(zip(sizes, ends, strict=True))
    )


@lru_cache(maxsize=4096)  # a search asks for the same ones thousands of times
def _sizes(layers: int, parts: int) -> tuple[int, ...] | None:
    sizes = divided(layers, parts)
    if sizes is None:
        return None
    each, first, last = sizes
    return (each - first, *[each] * (parts - 2), each - last) if parts > 1 else (each,)


def cut(graph: Graph, chunk: Chunk, full: Graph | None = None) -> Graph:
    """The blocks of ``chunk``, with so many runs of each layer as it has; the graph itself where it has all of them.

    ``full``: the same graph with every layer run again, of which ``chunk.again`` layers are taken, in the layers' order
    of running backward.
    """
    if chunk.opens and chunk.closes and full is None:
        return graph
    if chunk.stacks:
        graph = embedded(graph, chunk.opens, chunk.decodes)
        full = full and embedded(full, chunk.opens, chunk.decodes)
    runs = _runs(graph, chunk)
    recomputed = _again(graph, runs, chunk)
    blocks: list[Block] = []
    places: dict[int, int] = {}
    for b, block in enumerate(graph.blocks):
        of = block.backward_of
        if of is None:
            if runs[b]:
                places[b] = len(blocks)
                if full is not None and recomputed.get(b, 0):
                    block = mixed(block, full.blocks[b], recomputed[b] / runs[b])
                blocks.append(_with_runs(block, runs[b], None))
            continue
        if not runs[of]:
            continue
        more = recomputed.get(of, 0) if full is not None else 0
        if more and full is not None:
            blocks.append(_with_runs(full.blocks[b], more, places[of]))
        if runs[of] > more:
            blocks.append(_with_runs(block, runs[of] - more, places[of]))
    return replace(graph, blocks=tuple(blocks))


def _with_runs(block: Block, runs: int, backward_of: int | None) -> Block:
    if block.repeat == runs and block.backward_of == backward_of:
        return block
    return replace(block, repeat=runs, layers=block.layers[:runs], backward_of=backward_of)


def _layers(graph: Graph) -> list[int]:
    """The places of the blocks that are layers, forward."""
    return [b for b, block in enumerate(graph.blocks) if block.backward_of is None and is_layer(block)]


def _runs(graph: Graph, chunk: Chunk) -> list[int]:
    """How often a chunk runs each block of the graph."""
    layers = _layers(graph)
    middle = between(graph, layers) if chunk.stacks else range(0)
    runs = []
    for b, block in enumerate(graph.blocks):
        if b in layers:
            numbers = chunk.stacks[layers.index(b)] if chunk.stacks else block.layers or range(chunk.layers)
            runs.append(sum(chunk.first <= layer < chunk.end for layer in numbers))
        else:
            whole = chunk.opens if not layers or b < layers[0] else chunk.closes
            if b == 0:
                whole = whole or chunk.decodes
            elif b in middle:  # what follows the encoder's last layer, and what the decoder begins with
                whole = chunk.first < chunk.ahead <= chunk.end if block.carried else chunk.decodes
            runs.append(block.repeat if whole else 0)
    return runs


def _again(graph: Graph, runs: list[int], chunk: Chunk) -> dict[int, int]:
    """By place of a layer's block, how many of its runs are run again: in proportion, none lost to rounding."""
    layers = [b for b in _layers(graph) if runs[b]]
    left, whole, recomputed = max(chunk.again, 0), sum(runs[b] for b in layers), {}
    for b in layers:
        recomputed[b] = min(runs[b], -(-left * runs[b] // whole)) if whole else 0
        left, whole = left - recomputed[b], whole - runs[b]
    return recomputed


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


def check_stages(config: Stack, pp: int) -> None:
    """RequestError where a stage would have no layer, UnsupportedError for a model of two stacks."""
    if pp > 1 and config.is_encoder_decoder:
        raise UnsupportedError(f"--pp {pp}: not built for an encoder-decoder ({config.name}); expected 1")
    if pp > config.layers:
        raise RequestError(f"--pp {pp}: {config.name} has {config.layers} layers; expected at most {config.layers}")


def staged(graph: Graph, mesh: Mesh, layers: int, tokens: Any, hidden: int, dtype: str) -> Staged:
    """``graph`` of a model with ``layers`` as ``pp`` stages run it; ``tokens`` of a micro-batch, ``hidden`` wide; of a
    graph of many points, an array (points,)."""
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
        of_stage = tuple(layer for layer in block.layers if first <= layer < last)
        if len(of_stage) == len(block.layers):
            yield block
        elif of_stage:
            yield replace(block, repeat=len(of_stage), layers=of_stage)


def _sent(mesh: Mesh, stage: int, elements: Any, dtype: str) -> Block:
    """Hidden states on their way to a stage: each of the tp GPUs sends to its like."""
    stride, per_node = mesh.stride("pp"), mesh.system.gpus_per_node
    near = (stage * stride - 1) // per_node == (stage * stride) // per_node
    size: Any = elements * bytes_of(dtype)
    size = np.rint(size).astype(np.int64) if isinstance(size, np.ndarray) else round(size)
    op = over(mesh.system, "send_recv", dtype, size, 2, 2 if near else 1)
    axes, shape = ("tokens",), (elements,)
    ends = (Tensor(f"stage {stage} {what}", axes, shape, dtype) for what in ("sent", "received"))
    sent, received = ends
    return Block(f"to stage {stage}", (Node(op, "stage send_recv", (sent,), (received,)),))
