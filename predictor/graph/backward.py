"""The backward pass of a graph: every block in reverse, every operator replaced by what autograd runs for it."""

from __future__ import annotations

from predictor.graph.graph import OPTIMIZER, Block, Graph, Node
from predictor.ops.base import BACKWARD, Op
from predictor.ops.elementwise import Elementwise
from predictor.ops.gemm import output_dtype
from predictor.ops.optimizer import OptimizerStep


def backward_graph(forward: Graph, accumulate: bool = False) -> Graph:
    """Blocks and nodes in reverse order; nodes that no gradient flows through are left out.

    Autograd's engine calls one function a node from C++, so a backward kernel costs the CPU one framework call.
    With ``accumulate`` the parameters have a gradient already, and the new one is added to it (AccumulateGrad): in
    every pass but the first after the gradients were cleared.
    """
    blocks = []
    for block in reversed(forward.blocks):
        nodes = [
            Node(op, node.name, node.count, BACKWARD)
            for node in reversed(block.nodes)
            for op in _gradients(node, accumulate)
        ]
        if nodes:
            blocks.append(Block(f"{block.name} backward", tuple(nodes), block.repeat))
    return Graph(tuple(blocks))


def _gradients(node: Node, accumulate: bool) -> tuple[Op, ...]:
    """What autograd runs for one node: its own operators, those beside them, the sum into a parameter's gradient."""
    own = node.op.backward() if node.trainable else ()
    weights = node.op.weights() if accumulate and node.trainable else 0
    added = (Elementwise(output_dtype(node.op.dtype), "add_", weights),) if weights else ()
    return (*own, *node.grads, *added)


def optimizer_graph(parameters: int, kind: str, mixed: bool) -> Graph:
    """One step of the optimizer over ``parameters`` fp32 parameters; an empty graph for kind "none"."""
    if kind == "none":
        return Graph(())
    step = OptimizerStep("fp32", parameters, kind, mixed)
    node = Node(step, f"{kind} step", 1, OPTIMIZER, host_calls=step.kernels())
    return Graph((Block("optimizer", (node,)),))
