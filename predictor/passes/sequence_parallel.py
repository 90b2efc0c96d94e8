"""Sequence parallelism: what tensor parallelism leaves whole is split by sequence over the same GPUs (Korthikanti et
al., arXiv:2205.05198, section 4.2.2).

Norms, dropout and residual sums work on a part of every sequence. An all_gather brings their results together in front
of the products that are split by columns, a reduce_scatter shares out the sums of those that are split by rows; in the
backward pass each is the other's conjugate, and what a product saved is gathered again for its weight's gradient. All
of that follows from one soft rule (`predictor.passes.shard`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from predictor.errors import RequestError
from predictor.graph.graph import Graph, Node
from predictor.graph.tensor import GRADIENT
from predictor.ops.base import BACKWARD, FORWARD
from predictor.ops.collective import Collective
from predictor.ops.gemm import Gemm

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
    """The sharded ``graph`` with the collectives of user buffers (Transformer Engine): forward, and for gradients that
    a product reads, they run a piece at a time beside the product that needs or makes what they move; what a product
    saved is gathered whole, beside the product before it. Sums of gradients run whole, beside the weight's product
    where there is one. Source: Megatron Core model_parallel_config.py:265-318 (pipelined all_gather and reduce_scatter,
    bulk dgrad and wgrad are on, rs_dgrad is off)."""
    blocks = []
    for block in graph.blocks:
        nodes: list[Node] = []
        moved = False
        for node in block.nodes:
            op = node.op
            if not isinstance(op, Collective) or op.kind not in _MOVED:
                nodes.append(node)
                continue
            moved = True
            if node.phase == FORWARD or (op.kind == "all_gather" and node.inputs[0].role == GRADIENT):
                nodes.append(replace(node, op=replace(op, in_pieces=True)))
            else:
                nodes.insert(_before_product(nodes) if op.kind == "all_gather" else len(nodes), node)
        blocks.append(replace(block, nodes=tuple(nodes)) if moved else block)
    return Graph(tuple(blocks), graph.fused)


def _before_product(nodes: Sequence[Node]) -> int:
    """The place before the last product of ``nodes``, if nothing but its own kernels follows it; else their end."""
    last = len(nodes) - 1
    is_product = last >= 0 and isinstance(nodes[last].op, Gemm) and nodes[last].phase == BACKWARD
    return last if is_product else len(nodes)
