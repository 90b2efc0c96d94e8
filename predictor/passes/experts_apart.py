"""Experts in training: the kernels that a framework runs for them, in place of the one of a serving engine.

The fused kernels of serving engines have no backward pass. Frameworks that train run what `predictor.ops.MoE.apart`
lists, forward as backward: rows picked by expert, two grouped products with the activation between them, and the sum.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.graph.graph import Graph, Node
from predictor.graph.tensor import Tensor
from predictor.ops.moe import MoE

#: What the kernels are called behind the name of the layer.
_NAMES = ("permute", "up", "activation", "down", "unpermute")


def experts_apart(graph: Graph) -> Graph:
    """A joint ``graph`` with the kernels of its experts; the very same one where it has none.

    The backward pass is `MoE.backward`'s already. What a node kept for it, each kernel writes as its result.
    """
    blocks = tuple(
        replace(block, nodes=tuple(new for node in block.nodes for new in _apart(node, node.op)))
        if any(isinstance(node.op, MoE) for node in block.nodes)
        else block
        for block in graph.blocks
    )
    if all(new is old for new, old in zip(blocks, graph.blocks, strict=True)):
        return graph
    return replace(graph, blocks=blocks)


def _apart(node: Node, op: object) -> tuple[Node, ...]:
    if not isinstance(op, MoE):
        return (node,)
    inputs, result = node.inputs, node.outputs[0]
    x, *rest = inputs
    up, down = rest[1:2], rest[2:3]
    others = (*rest[:1], *rest[3:])
    kept = node.outputs[1:] or tuple(
        Tensor(f"{node.name} {made.name}", made.axes, made.shape, made.dtype) for made in op.kept()
    )
    gathered, widened, *activated, summed = kept
    reads = ((x, *others), (gathered, *up), (widened,), (activated[-1], *down), (summed, *others))
    makes = ((gathered,), (widened,), tuple(activated), (summed,), (result,))
    kernels = op.apart()
    calls = (max(1, node.host_calls - len(kernels) + 1), 1, 1, 1, 1)
    return tuple(
        replace(node, op=kernel, name=f"{node.name} {name}", inputs=read, outputs=made, host_calls=many)
        for kernel, name, read, made, many in zip(kernels, _NAMES, reads, makes, calls, strict=True)
    )
