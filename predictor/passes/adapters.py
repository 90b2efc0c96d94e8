"""Adapters of low rank beside tensor-parallel layers as NeMo runs them, where sequences are split, too.

Megatron's own layers make the adapters, which work on whole sequences: the input of those beside layers split by
columns is gathered in 16 bit for them, and its gradient summed and shared out again; what those beside layers split by
rows make is gathered over its columns, and its gradient over its rows. Nothing runs beside these collectives. Where the
layer gathers its input at once, not in pieces, it does so in 16 bit, and adapters read that. Source: nemo_toolkit 2.0.0
nemo/collections/nlp/modules/common/megatron/adapters/parallel_adapters.py:155-360
(gather_from_sequence_parallel_region, gather_output, scatter_to_sequence_parallel_region; a2a_experimental off),
collections/llm/peft/lora.py:200-204.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.files.records import replace
from predictor.formats.dtypes import bytes_of
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import WEIGHT, Tensor
from predictor.ops.base import BACKWARD, FORWARD
from predictor.ops.collective import Collective
from predictor.ops.elementwise import Elementwise
from predictor.ops.gemm import Gemm
from predictor.passes.freeze import is_trained

if TYPE_CHECKING:
    from predictor.passes.mesh import Mesh


def on_whole_sequences(graph: Graph, mesh: Mesh, rows: int, in_pieces: bool) -> Graph:
    """The lowered ``graph`` of a rank, which has ``rows`` of a micro-batch's tokens between tensor-parallel layers,
    with the collectives of its adapters; ``in_pieces``: the layers' own run in pieces."""
    return replace(graph, blocks=tuple(_block(block, mesh, rows, in_pieces) for block in graph.blocks))


def _block(block: Block, mesh: Mesh, rows: int, in_pieces: bool) -> Block:
    split = [
        i for i, node in enumerate(block.nodes)
        if isinstance(node.op, Gemm) and node.op.m == rows and node.op.layout in ("tn", "nn")
        and any(t.role == WEIGHT and is_trained(t) for t in node.inputs)
    ]  # fmt: skip
    if not split:
        return block
    nodes = list(block.nodes)
    before: dict[int, list[Node]] = {}
    after: dict[int, list[Node]] = {}
    ahead = [i for i in split if nodes[i].phase == FORWARD]
    back = [i for i in split if nodes[i].phase == BACKWARD]
    reads: dict[int, Tensor] = {}
    for i in ahead:
        x, out = nodes[i].inputs[0], nodes[i].outputs[0]
        if not _is_wide(x, out):
            nodes[i], joined = _made(nodes[i], mesh, "all_gather")
            after[i] = [joined]
            continue
        whole = reads.get(id(x.storage))
        if not in_pieces:
            if whole is None:
                reads[id(x.storage)] = x
                _in_16_bits(nodes, i, x, before)
            continue
        if whole is None:
            whole = reads[id(x.storage)] = Tensor(x.name, x.axes, x.shape, x.dtype)
            before[i] = [_collective(nodes[i], mesh, "all_gather", x, whole)]
        nodes[i] = replace(nodes[i], inputs=(whole, *nodes[i].inputs[1:]))
    last = -1
    for i in back:
        x, out = nodes[i].inputs[0], nodes[i].outputs[0]
        if _is_wide(x, out):  # of the adapter's result
            whole = Tensor(x.name, x.axes, x.shape, x.dtype, x.role)
            before[i] = [_collective(nodes[i], mesh, "all_gather", x, whole)]
            nodes[i] = replace(nodes[i], inputs=(whole, *nodes[i].inputs[1:]))
        elif in_pieces:
            last = i
    if last >= 0:
        nodes[last], joined = _made(nodes[last], mesh, "reduce_scatter")
        # Compute waits for it: here it has the network before the layer's own, which follows the layer's product.
        of_ranks = (
            i for i in range(last, len(nodes)) if isinstance(nodes[i].op, Collective) and not _is_of_rank(nodes[i])
        )
        before.setdefault(next(of_ranks, last + 1), []).append(joined)
    ordered = (n for i, node in enumerate(nodes) for n in (*before.get(i, ()), node, *after.get(i, ())))
    return replace(block, nodes=tuple(ordered))


def _is_of_rank(node: Node) -> bool:
    """Whether a collective moves what is between the two products of an adapter."""
    return any("rank" in t.axes for t in node.outputs)


def _is_wide(x: Tensor, out: Tensor) -> bool:
    """Whether a product goes from the layer's width to the rank."""
    return x.shape[-1] > out.shape[-1]


def _collective(node: Node, mesh: Mesh, kind: str, x: Tensor, out: Tensor) -> Node:
    """What brings a whole tensor of ``x``, a rank's part."""
    op = mesh.collective(kind, "tp", x.dtype, round(x.nbytes * mesh.degree("tp")))
    name = f"{node.name.split(' ', 1)[0]} adapters {kind}"
    return Node(op, name, (x,), (out,), 1, node.phase, scope=name)


def _made(node: Node, mesh: Mesh, kind: str) -> tuple[Node, Node]:
    """A node whose result is there only behind a collective, and that."""
    out = node.outputs[0]
    before_sum = Tensor(out.name, out.axes, out.shape, out.dtype, out.role)
    return replace(node, outputs=(before_sum, *node.outputs[1:])), _collective(node, mesh, kind, before_sum, out)


def _in_16_bits(nodes: list[Node], end: int, x: Tensor, before: dict[int, list[Node]]) -> None:
    """The layer's own gather of ``x``, or of its copy in 8 bits, before the place ``end``, in 16 bit, and the cast
    behind it."""
    for i in range(end - 1, -1, -1):
        node, op = nodes[i], nodes[i].op
        if (
            not isinstance(op, Collective)
            or op.kind != "all_gather"
            or node.phase != FORWARD
            or bytes_of(op.dtype) >= 2
        ):
            continue
        if node.inputs[0].elements == x.elements and node.inputs[0].shape == x.shape:
            wide = replace(op, dtype=x.dtype, size=round(op.size * bytes_of(x.dtype) / bytes_of(op.dtype)))
            cast = Elementwise(op.dtype, "quantize", x.elements * op.ranks, -1, 0.0, x.dtype)
            whole = Tensor(x.name, x.axes, x.shape, x.dtype)
            nodes[i] = replace(node, op=wide, outputs=(whole,))
            name = f"{node.name} cast"
            before.setdefault(i + 1, []).insert(0, Node(cast, name, (whole,), node.outputs, phase=FORWARD, scope=name))
            return
