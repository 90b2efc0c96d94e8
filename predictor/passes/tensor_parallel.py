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

from dataclasses import replace
from typing import TYPE_CHECKING

from predictor.errors import RequestError
from predictor.ops.collective import Collective

if TYPE_CHECKING:
    from predictor.graph import Graph
    from predictor.models.built import ModelConfig
    from predictor.passes.mesh import Mesh

#: Logical axis -> axis of the mesh.
TENSOR = {"heads": "tp", "kv_heads": "tp", "mlp": "tp", "vocab": "tp", "expert_mlp": "tp", "state_heads": "tp"}


def check_tensor(config: ModelConfig, tp: int, spread: bool = False) -> None:
    """RequestError that names every size that ``tp`` does not divide, and the nearest degree that works. ``spread``:
    experts are shared out otherwise (`predictor.passes.expert_parallel`)."""
    wrong = _undivided(config, tp, spread)
    if wrong:
        fit = [n for n in range(1, config.heads + 1) if not _undivided(config, n, spread)]
        close = min(fit, key=lambda n: (abs(n - tp), n))
        raise RequestError(f"--tp {tp}: does not divide {' and '.join(wrong)} of {config.name}; nearest valid: {close}")


def _undivided(config: ModelConfig, tp: int, spread: bool) -> list[str]:
    """What ``tp`` GPUs cannot share evenly."""
    found = []
    if config.heads % tp:
        found.append(f"{config.heads} heads")
    if any(kind.state_v_heads % tp for kind in config.variants):
        found.append(f"{config.state_v_heads} value heads of linear attention")
    if not config.is_mla and config.kv_heads % tp and tp % config.kv_heads:
        found.append(f"{config.kv_heads} kv_heads")
    dense = not config.experts or any(not sparse for sparse, _, _ in config.layer_groups())
    if config.intermediate % tp and (dense or config.is_encoder_decoder):
        found.append(f"intermediate {config.intermediate}")
    if config.experts and config.moe_intermediate % tp and not spread:
        found.append(f"moe_intermediate {config.moe_intermediate}")
    return found


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
