"""Tensor parallelism: every layer shared by ``tp`` GPUs, as Megatron-LM does it (Shoeybi et al., 2019, section 3).

Column parallel, then row parallel: a GPU has heads / tp of the attention heads and intermediate / tp of the
feed-forward's width, so that the projections into them are split by columns and those out of them by rows. What the
rows give are partial sums: an all_reduce of tokens x hidden follows attention and feed-forward. KV heads are split,
too, and copied where there are fewer of them than GPUs. Every expert's width is split. Embedding and head are split by
the vocabulary, padded to a multiple of ``tp``: an all_reduce follows the look-up (a GPU finds zeros for what it has
not), an all_gather joins the logits.

On every GPU the same: norms, residual sums, routers, learned positions, the latent projections of MLA, poolers and
classifiers. All of that follows from the rules (`predictor.passes.shard`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.files.records import replace
from predictor.ops.collective import Collective

if TYPE_CHECKING:
    from predictor.graph import Graph
    from predictor.passes.mesh import Mesh

#: Logical axis -> axis of the mesh.
TENSOR = {"heads": "tp", "kv_heads": "tp", "mlp": "tp", "vocab": "tp", "expert_mlp": "tp", "state_heads": "tp"}


def joined(graph: Graph, mesh: Mesh) -> Graph:
    """``graph``, recorded on one rank of ``mesh`` (`predictor.models.traced.tensor_plan`), with the links that its
    collectives have along "tp"."""
    blocks = tuple(
        replace(block, nodes=tuple(
            replace(node, op=mesh.collective(op.kind, "tp", op.dtype, op.size))
            if isinstance(op := node.op, Collective) and not op.system else node
            for node in block.nodes
        ))
        for block in graph.blocks
    )  # fmt: skip
    return replace(graph, blocks=blocks)
