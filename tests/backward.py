"""The backward pass of a graph."""

from __future__ import annotations

from predictor.graph.graph import Block, Graph
from predictor.passes.autograd import joint


def backward_blocks(forward: Graph, accumulate: bool = False) -> tuple[Block, ...]:
    """The blocks that `joint` adds to ``forward``."""
    return tuple(block for block in joint(forward, accumulate).blocks if block.backward_of is not None)
