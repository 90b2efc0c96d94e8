"""A norm that an all_reduce does in its kernel: what it adds to the bytes stays, its launch and its reading do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from predictor.graph.graph import Block, Graph, Node
from predictor.ops.collective import Collective
from predictor.ops.norm import Norm


def norms_in_reductions(graph: Graph, takes: Callable[[Collective, int], bool]) -> Graph:
    """``graph`` with the norms behind an all_reduce in its kernel, where ``takes`` (collective, tokens) says so; the
    very same one where it takes none.

    The norm adds the residual first, and follows its all_reduce at once: in the block, or as the first node of its next
    repetition, or of the block behind it.
    """
    blocks, last = [], None
    for block in graph.blocks:
        before = block.nodes[-1] if block.repeat > 1 else last
        blocks.append(_joined(block, before, takes))
        last = block.nodes[-1]
    changed = any(new is not old for new, old in zip(blocks, graph.blocks, strict=True))
    return replace(graph, blocks=tuple(blocks)) if changed else graph


def _joined(block: Block, before: Node | None, takes: Callable[[Collective, int], bool]) -> Block:
    nodes = list(block.nodes)
    for i, node in enumerate(nodes):
        op, previous = node.op, nodes[i - 1] if i else before
        if not isinstance(op, Norm) or not op.residual or op.in_reduction or previous is None:
            continue
        reduced = previous.op
        if isinstance(reduced, Collective) and reduced.kind == "all_reduce" and takes(reduced, op.rows):
            nodes[i] = replace(node, op=replace(op, in_reduction=True), host_calls=0)
    return replace(block, nodes=tuple(nodes)) if nodes != list(block.nodes) else block
