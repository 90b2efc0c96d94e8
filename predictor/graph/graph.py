"""A model as operators: blocks that repeat, each a sequence of nodes. Layers are structure, never found by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from predictor.ops.base import FORWARD, Op

OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of a block, run ``count`` times in a row.

    ``host_calls`` is the number of framework calls on the CPU that come with it in eager execution, views included.
    ``saved_bytes`` is what autograd keeps of its inputs and outputs until the backward pass. ``trainable`` is False
    where no gradient flows through. ``grads`` are operators that the backward pass runs after the node's own: sums of
    gradients where the node's input feeds others, too, copies into the layout that a view needs. ``share`` is how much
    of the operator's work one run does: below 1 where several nodes are one kernel together (a ragged batch).
    """

    op: Op
    name: str = ""
    count: int = 1
    phase: str = FORWARD
    host_calls: int = 1
    saved_bytes: float = 0.0
    trainable: bool = True
    grads: tuple[Op, ...] = ()
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Block:
    """A sequence of nodes that runs ``repeat`` times (a transformer layer, the embedding, the head)."""

    name: str
    nodes: tuple[Node, ...]
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class Graph:
    """Blocks in the order in which they run."""

    blocks: tuple[Block, ...]

    def nodes(self) -> Iterator[tuple[Node, float]]:
        """Every node with how often it runs in all (its own count and share times its block's repeats)."""
        for block in self.blocks:
            for node in block.nodes:
                yield node, node.count * block.repeat * node.share

    def flops(self) -> float:
        """FLOPs of one run."""
        return sum(node.op.flops() * times for node, times in self.nodes())

    def unrolled(self) -> Graph:
        """The same graph with every repeat written out; it must cost the same."""
        blocks: list[Block] = []
        for block in self.blocks:
            single = tuple(replace(n, count=1) for n in block.nodes for _ in range(n.count))
            blocks.extend(Block(f"{block.name}.{i}", single) for i in range(block.repeat))
        return Graph(tuple(blocks))
