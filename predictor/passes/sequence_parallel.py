"""Sequence parallelism: what tensor parallelism leaves whole is split by sequence over the same GPUs (Korthikanti et
al., arXiv:2205.05198, section 4.2.2).

Norms, dropout and residual sums work on a part of every sequence. An all_gather brings their results together in front
of the products that are split by columns, a reduce_scatter shares out the sums of those that are split by rows; in the
backward pass each is the other's conjugate, and what a product saved is gathered again for its weight's gradient. All
of that follows from one soft rule (`predictor.passes.shard`).
"""

from __future__ import annotations

from collections.abc import Sequence

from predictor.errors import RequestError
from predictor.files.records import replace
from predictor.graph.graph import Graph, Node
from predictor.graph.tensor import ACTIVATION, GRADIENT, WEIGHT, Tensor
from predictor.ops.base import BACKWARD, FORWARD
from predictor.ops.collective import Collective
from predictor.ops.gemm import Gemm
from predictor.passes.freeze import is_trained

#: What moves activations between sequences split and whole.
_MOVED = ("all_gather", "reduce_scatter")

#: Logical axis -> axis of the mesh, for tensors that tensor parallelism does not split.
SEQUENCE = {"sequence": "tp"}


def check_sequence(seq_len: int, tp: int) -> None:
    """RequestError that names the sizes where ``tp`` ranks cannot share sequences evenly."""
    if seq_len % tp:
        fit = max(tp, round(seq_len / tp) * tp)
        raise RequestError(f"--sp with --tp {tp}: does not divide --seq-len {seq_len}; nearest valid: {fit}")


def beside_products(graph: Graph) -> Graph:
    """The sharded ``graph`` with the collectives of user buffers (Transformer Engine): forward, and for gradients that
    a product reads, they run a piece at a time beside the product that needs or makes what they move; what a product
    saved is gathered whole, beside the product before it. Sums of gradients run whole, beside the weight's product
    where there is one. Source: Megatron Core model_parallel_config.py:265-318 (pipelined all_gather and reduce_scatter,
    bulk dgrad and wgrad are on, rs_dgrad is off)."""
    blocks = []
    for block in graph.blocks:
        nodes: list[Node] = []
        moved = False
        for node in block.nodes:
            op = node.op
            if not isinstance(op, Collective) or op.kind not in _MOVED:
                nodes.append(node)
                continue
            moved = True
            if node.phase == FORWARD or (op.kind == "all_gather" and node.inputs[0].role == GRADIENT):
                nodes.append(replace(node, op=replace(op, in_pieces=True)))
            else:
                nodes.insert(_before_product(nodes) if op.kind == "all_gather" else len(nodes), node)
        blocks.append(replace(block, nodes=tuple(nodes)) if moved else block)
    return replace(graph, blocks=tuple(blocks))


def read_again(graph: Graph) -> Graph:
    """A fused joint ``graph`` whose weights' products read what the backward pass gathers again, and not what the
    forward pass gathered, which nothing keeps: fusing writes a product's backward pass from its forward one."""
    blocks = list(graph.blocks)
    for b, block in enumerate(graph.blocks):
        if block.backward_of is None:
            continue
        ahead = {
            id(node.inputs[0].storage): node.outputs[0] for node in blocks[block.backward_of].nodes if gathers(node)
        }
        nodes: list[Node] = []
        instead: dict[int, Tensor] = {}
        for node in block.nodes:
            if gathers(node) and (whole := ahead.get(id(node.inputs[0].storage))) is not None:
                instead[id(whole)] = node.outputs[0]
            elif any(id(t) in instead for t in node.inputs):
                node = replace(node, inputs=tuple(instead.get(id(t), t) for t in node.inputs))
            nodes.append(node)
        if instead:
            blocks[b] = replace(block, nodes=tuple(nodes))
    return replace(graph, blocks=tuple(blocks))


def gathers(node: Node) -> bool:
    """Whether a node brings ranks' parts of an activation together."""
    return isinstance(node.op, Collective) and node.op.kind == "all_gather" and node.inputs[0].role == ACTIVATION


def products_beside(nodes: Sequence[Node]) -> dict[int, int]:
    """The place of the product beside which each collective in pieces moves: the first that reads what it gathers, the
    one that makes what it reduces. Those without one are left out."""
    pieces = [i for i, node in enumerate(nodes) if isinstance(node.op, Collective) and node.op.in_pieces]
    if not pieces:
        return {}
    maker = {id(t.storage): i for i, node in enumerate(nodes) for t in node.outputs}
    reader: dict[int, int] = {}
    for i, node in enumerate(nodes):
        if node.op.unit == "matrix":
            for t in node.inputs:
                reader.setdefault(id(t.storage), i)
    beside_of = {}
    for i in pieces:
        node = nodes[i]
        gathers = isinstance(node.op, Collective) and node.op.kind == "all_gather"
        tensors, places = (node.outputs, reader) if gathers else (node.inputs, maker)
        beside = next((places[id(t.storage)] for t in tensors if id(t.storage) in places), None)
        if beside is not None and nodes[beside].op.unit == "matrix":
            beside_of[i] = beside
    return beside_of


#: Pieces of a product whose result is reduced. Source: Transformer Engine 1.13 pytorch/module/base.py:279-307 (method
#: "pipeline", num_splits), as of nemo_toolkit 2.0.0 llm/recipes/tp_overlap_configs/userbuffers.py.
_SPLITS = 4


def pieces_of(op: Collective) -> int:
    """How many pieces a collective in pieces moves: one a rank where it gathers (ring exchange), else `_SPLITS`."""
    return op.ranks if op.kind == "all_gather" else _SPLITS


def products_in_pieces(graph: Graph) -> Graph:
    """The lowered ``graph`` with the products that run in pieces of their rows beside a collective. Adapters' products
    run whole, behind whole collectives (NeMo's are Megatron's own layers)."""
    blocks = []
    for block in graph.blocks:
        nodes = list(block.nodes)
        pieces: dict[int, Gemm] = {}
        counts: dict[int, int] = {}
        for i, beside in products_beside(nodes).items():
            collective, product = nodes[i].op, nodes[beside].op
            assert isinstance(collective, Collective)
            if not isinstance(product, Gemm) or any(t.role == WEIGHT and is_trained(t) for t in nodes[beside].inputs):
                nodes[i] = replace(nodes[i], op=replace(collective, in_pieces=False))
            elif product.m % (count := pieces_of(collective)) == 0:
                pieces[beside] = replace(product, m=product.m // count)
                counts[beside] = count
        whole = [
            part
            for i, node in enumerate(nodes)
            for part in ([replace(node, op=pieces[i]) for _ in range(counts[i])] if i in pieces else [node])
        ]
        blocks.append(block if whole == list(block.nodes) else replace(block, nodes=tuple(whole)))
    return replace(graph, blocks=tuple(blocks))


def _before_product(nodes: Sequence[Node]) -> int:
    """The place before the last product of ``nodes``, if nothing but its own kernels follows it; else their end."""
    last = len(nodes) - 1
    is_product = last >= 0 and isinstance(nodes[last].op, Gemm) and nodes[last].phase == BACKWARD
    return last if is_product else len(nodes)
