"""The backward pass of a graph: every block in reverse, every operator replaced by what autograd runs for it."""

from __future__ import annotations

from predictor.graph.graph import OPTIMIZER, Block, Graph, Node
from predictor.ops.base import BACKWARD
from predictor.ops.optimizer import OptimizerStep


def backward_graph(forward: Graph) -> Graph:
    """Blocks and nodes in reverse order; nodes that no gradient flows through are left out.

    Autograd's engine calls one function a node from C++, so a backward kernel costs the CPU one framework call.
    """
    blocks = []
    for block in reversed(forward.blocks):
        nodes = [
            Node(op, node.name, node.count, BACKWARD)
            for node in reversed(block.nodes)
            if node.trainable
            for op in node.op.backward()
        ]
        if nodes:
            blocks.append(Block(f"{block.name} backward", tuple(nodes), block.repeat))
    return Graph(tuple(blocks))


def optimizer_graph(parameters: int, kind: str, mixed: bool) -> Graph:
    """One step of the optimizer over ``parameters`` fp32 parameters; an empty graph for kind "none"."""
    if kind == "none":
        return Graph(())
    step = OptimizerStep("fp32", parameters, kind, mixed)
    node = Node(step, f"{kind} step", 1, OPTIMIZER, host_calls=step.kernels())
    return Graph((Block("optimizer", (node,)),))
