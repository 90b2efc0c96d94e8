"""The backward pass of what was fused: a kernel's gradients in place of those of the nodes that it stands for."""

from __future__ import annotations

from predictor.graph.graph import Block, Node

#: By name of a block, the nodes of each of its modules, for every block of that name in their order.
Modules = dict[str, list[dict[str, list[Node]]]]


def modules_of(block: Block, modules: Modules) -> None:
    found: dict[str, list[Node]] = {}
    for node in block.nodes:
        found.setdefault(node.scope, []).append(node)
    modules.setdefault(block.name, []).append(found)


def backward_block(block: Block, modules: Modules) -> Block:
    return block
