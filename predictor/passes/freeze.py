"""Adapters of low rank on a frozen model: nothing but the adapters has gradients (LoRA, Hu et al., arXiv:2106.09685).

What makes gradients of frozen weights alone is left out of the joint graph, what adds them up too. Norms keep their one
kernel, which makes the gradient of what they read.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import GRADIENT, WEIGHT, Tensor
from predictor.networks.writer import ADAPTER
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
            blocks.append(block if len(nodes) == len(block.nodes) else replace(block, nodes=tuple(nodes)))
    return Graph(tuple(blocks), graph.fused)


def _is_of_weight(node: Node) -> bool:
    """Whether a node is the product that makes a weight's gradient."""
    return isinstance(node.op, Gemm) and node.op.kind == "linear" and node.op.layout == "nt"
