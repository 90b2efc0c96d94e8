"""The backward pass of what was fused: a kernel's gradients in place of those of the nodes that it stands for.

A module's nodes carry its scope there, too. Sums of gradients and copies into the layout of what a view is of are done
within kernels.
"""

from __future__ import annotations

from predictor.graph.graph import Block, Node
from predictor.graph.tensor import ACTIVATION, WEIGHT, Tensor
from predictor.ops.base import BACKWARD, Op
from predictor.ops.elementwise import Elementwise
from predictor.ops.gemm import output_dtype

#: By scope, a block's fused nodes in order.
Modules = dict[str, list[Node]]


def modules_of(block: Block) -> Modules:
    """The modules of a fused forward block."""
    found: Modules = {}
    for node in block.nodes:
        found.setdefault(node.scope, []).append(node)
    return found


def accumulates(block: Block) -> bool:
    """Whether a backward block adds the gradients of its weights to those that are there."""
    return any(isinstance(node.op, Elementwise) and node.op.fn == "add_" for node in block.nodes)


def backward_nodes(nodes: tuple[Node, ...], modules: Modules, accumulate: bool) -> tuple[Node, ...]:
    """The backward pass of a block, of whose forward pass these are the fused ``modules``.

    A module's stands where the last of its gradients is worked out: before that, those of its results are not all
    there.
    """
    groups: dict[str, list[Node]] = {}
    place: dict[str, int] = {}
    for i, node in enumerate(nodes):
        groups.setdefault(node.scope, []).append(node)
        if node.scope not in place or not _is_sum(node.op):
            place[node.scope] = i
    out: list[Node] = []
    for i, node in enumerate(nodes):
        if place[node.scope] == i:
            out.extend(_of_module(modules.get(node.scope, []), groups[node.scope], accumulate))
    return tuple(out)


def _is_sum(op: Op) -> bool:
    """A sum of two gradients of one tensor."""
    return isinstance(op, Elementwise) and op.fn == "add"


def _of_module(forward: list[Node], eager: list[Node], accumulate: bool) -> list[Node]:
    """What runs in place of a module's ``eager`` backward nodes."""
    found = []
    for node in reversed(forward):
        if not _is_live(node):
            continue
        ops = node.op.backward()
        weights = node.op.weights() if accumulate else 0
        if weights:
            ops = (*ops, Elementwise(output_dtype(node.op.dtype), "add_", weights))
        found += [Node(op, node.name, (), (), node.count, BACKWARD, part=node.part, scope=node.scope) for op in ops]
    inputs, outputs = _edges(eager)
    if found and (inputs or outputs):
        found = [
            Node(n.op, n.name, inputs, outputs if n is found[-1] else (), n.count, BACKWARD, part=n.part, scope=n.scope)
            for n in found
        ]
    return found


def _is_live(node: Node) -> bool:
    """Whether gradients flow through a node: not if it works on tables and indices alone."""
    return any(t.role in (WEIGHT, ACTIVATION) for t in node.inputs) and any(t.role == ACTIVATION for t in node.outputs)


def _edges(nodes: list[Node]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """What nodes read together and do not make, and what they make and do not read."""
    read = {id(t.storage): t for node in nodes for t in node.inputs}
    made = {id(t.storage): t for node in nodes for t in node.outputs}
    inputs = tuple(t for key, t in read.items() if key not in made)
    return inputs, tuple(t for key, t in made.items() if key not in read)
