"""Adapters of low rank on a frozen model: nothing but the adapters has gradients (LoRA, Hu et al., arXiv:2106.09685).

What makes gradients of frozen weights alone is left out of the joint graph, what adds them up too. Norms keep their one
kernel, which makes the gradient of what they read.
"""

from __future__ import annotations

from predictor.files.records import replace
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import GRADIENT, WEIGHT, Tensor
from predictor.models.built.writer import ADAPTER
from predictor.ops.elementwise import Elementwise
from predictor.ops.gemm import Gemm


def is_trained(weight: Tensor) -> bool:
    """Whether a weight is an adapter's."""
    return ADAPTER in weight.name


def freeze(graph: Graph) -> Graph:
    """A joint ``graph`` whose adapters alone get gradients; blocks that make none are left out."""
    weights = {
        (t.name, t.axes) for block in graph.blocks for node in block.nodes for t in node.inputs if t.role == WEIGHT
    }
    blocks: list[Block] = []
    for block in graph.blocks:
        if block.backward_of is None:
            blocks.append(block)
            continue
        nodes: list[Node] = []
        for node in block.nodes:
            frozen = [t.role == GRADIENT and (t.name, t.axes) in weights and not is_trained(t) for t in node.outputs]
            if not frozen or not (all(frozen) or (frozen[0] and _is_of_weight(node) and nodes)):
                nodes.append(node)
                continue
            left = tuple(t for t, is_frozen in zip(node.outputs, frozen, strict=True) if not is_frozen)
            if left:  # what a module's last kernel stands for is its other kernel's then
                nodes[-1] = replace(nodes[-1], outputs=(*nodes[-1].outputs, *left))
        if nodes:
            ordered = _adapters_last(nodes)
            same = len(nodes) == len(block.nodes) and ordered == nodes
            blocks.append(block if same else replace(block, nodes=tuple(ordered)))
    return replace(graph, blocks=tuple(blocks))


def _adapters_last(nodes: list[Node]) -> list[Node]:
    """The nodes with sums of gradients that take what comes through adapters last: of an input that several projections
    share (q, k, v: one product in frameworks), what comes through the projections is one sum, over ranks too."""
    maker = {id(t.storage): i for i, node in enumerate(nodes) for t in node.outputs}
    chains: dict[int, tuple[list[Tensor], list[int]]] = {}
    for i, node in enumerate(nodes):
        op = node.op
        if not isinstance(op, Elementwise) or op.fn != "add" or node.outputs[0].role != GRADIENT:
            continue
        terms: list[Tensor] = []
        adds: list[int] = []
        for t in node.inputs:
            before = chains.pop(id(t.storage), None)
            terms += before[0] if before is not None else [t]
            adds += before[1] if before is not None else []
        chains[id(node.outputs[0].storage)] = (terms, [*adds, i])
    reordered = list(nodes)
    for terms, adds in chains.values():
        made = [maker.get(id(t.storage), -1) for t in terms]
        if len(adds) < 2 or max(made) > adds[0] or any(len(nodes[i].inputs) != 2 for i in adds):
            continue
        through = [place >= 0 and ADAPTER in nodes[place].name for place in made]
        ordered = [t for adapter in (False, True) for t, it in zip(terms, through, strict=True) if it == adapter]
        total = ordered[0]
        for i, term in zip(adds, ordered[1:], strict=True):
            reordered[i] = replace(nodes[i], inputs=(total, term))
            total = nodes[i].outputs[0]
    return reordered


def _is_of_weight(node: Node) -> bool:
    """Whether a node is the product that makes a weight's gradient."""
    return isinstance(node.op, Gemm) and node.op.kind == "linear" and node.op.layout == "nt"
