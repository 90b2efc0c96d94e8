"""Selective checkpointing as PyTorch's trainers have it: of a layer, fused attention, what ranks summed by
reduce_scatter or exchanged, and every second linear layer are saved, the first included; the rest runs again.

Source: pytorch/torchtitan@73a0e697, torchtitan/distributed/activation_checkpoint.py, option "op", in call order q, k,
v, out, gate, up, down; a router's product always runs again and is not counted. Products of 8 bits are `_scaled_mm`,
which its list does not have: they run again. A compiler runs again what the backward pass reads alone; eager PyTorch
stops behind the last such operator (`early_stop` of torch/utils/checkpoint.py).
"""

from __future__ import annotations

from predictor.files.records import replace
from predictor.formats.dtypes import bytes_of
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import Tensor
from predictor.ops.attention import Attention
from predictor.ops.collective import Collective
from predictor.ops.gemm import Gemm
from predictor.passes.recompute import instead, runs_again

#: Results of collectives that are saved; source: the list of that file.
_SAVED = ("reduce_scatter", "all_to_all")


def keep_products(graph: Graph) -> Graph:
    """A joint ``graph`` whose layers run again in full, with what is saved read where the forward pass left it."""
    blocks = list(graph.blocks)
    for b, block in enumerate(blocks):
        if block.backward_of is not None and any(map(runs_again, block.nodes)):
            blocks[b] = replace(block, nodes=_without_saved(block, blocks[block.backward_of], graph.fused))
    return replace(graph, blocks=tuple(blocks))


def _without_saved(block: Block, forward: Block, fused: bool) -> tuple[Node, ...]:
    """The nodes of a backward block without those of ``forward`` that are saved, or that nothing reads."""
    saved: dict[tuple[str, str], tuple[Tensor, ...]] = {}
    products = 0
    for node in forward.nodes:
        linear = isinstance(node.op, Gemm) and node.op.kind == "linear" and not node.scope.endswith("router")
        keep = isinstance(node.op, Attention) or (isinstance(node.op, Collective) and node.op.kind in _SAVED)
        if linear and bytes_of(node.op.dtype) >= 2:
            products += 1
            keep = products % 2 == 1
        if keep:
            saved[node.scope, node.name] = node.outputs
    originals: dict[int, Tensor] = {}
    left: list[Node] = []
    for node in block.nodes:
        outputs = saved.get((node.scope, node.name)) if runs_again(node) else None
        if outputs is None:
            left.append(replace(node, inputs=tuple(instead(originals, t) for t in node.inputs)) if originals else node)
        else:
            originals |= {id(made): kept for made, kept in zip(node.outputs, outputs, strict=True)}
    read: set[int] = set()
    needed: list[Node] = []
    for node in reversed(left):
        rerun = runs_again(node)
        if rerun and not any(id(t.storage) in read for t in node.outputs) and (fused or not _behind(needed)):
            continue
        read |= {id(t.storage) for t in node.inputs}
        needed.append(node)
    return tuple(needed[::-1])


def _behind(needed: list[Node]) -> bool:
    """Whether the last of the nodes, which come from behind, runs again."""
    return bool(needed) and runs_again(needed[-1])
