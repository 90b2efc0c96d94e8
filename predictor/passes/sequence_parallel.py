"""Sequence parallelism: what tensor parallelism leaves whole is split by sequence over the same GPUs (Korthikanti et
al., arXiv:2205.05198, section 4.2.2).

Norms, dropout and residual sums work on a part of every sequence. An all_gather brings their results together in front
of the products that are split by columns, a reduce_scatter shares out the sums of those that are split by rows; in the
backward pass each is the other's conjugate, and what a product saved is gathered again for its weight's gradient. All
of that follows from one soft rule (`predictor.passes.shard`).
"""

from __future__ import annotations

from dataclasses import replace

from predictor.errors import RequestError
from predictor.graph.graph import Graph
from predictor.ops.collective import Collective

#: What moves activations between sequences split and whole.
_MOVED = ("all_gather", "reduce_scatter")

#: Logical axis -> axis of the mesh, for tensors that tensor parallelism does not split.
SEQUENCE = {"sequence": "tp"}


def check_sequence(seq_len: int, tp: int) -> None:
    """RequestError that names the sizes where ``tp`` ranks cannot share sequences evenly."""
    if seq_len % tp:
        fit = max(tp, round(seq_len / tp) * tp)
        raise RequestError(f"--sp with --tp {tp}: does not divide --seq-len {seq_len}; nearest that it does: {fit}")


def beside_products(graph: Graph) -> Graph:
    """The sharded ``graph`` with collectives that run a piece at a time beside the product that needs or makes what
    they move (Transformer Engine's overlap of GEMMs and communication in user buffers)."""
    blocks = []
    for block in graph.blocks:
        nodes = [
            replace(node, op=replace(node.op, in_pieces=True))
            if isinstance(node.op, Collective) and node.op.kind in _MOVED else node
            for node in block.nodes
        ]  # fmt: skip
        blocks.append(replace(block, nodes=tuple(nodes)))
    return Graph(tuple(blocks), graph.fused)
