"""What training with products of 8 bits and fewer runs beside them: operands are cast, as Transformer Engine does
(transformer_engine/pytorch/module/layernorm_linear.py and linear.py, common/recipe/__init__.py at d0067d0d).

fp8      a scale for every tensor that is known from steps before (delayed scaling); operands are copied transposed
mxfp8    a scale for 32 elements: a cast writes both directions at once, a norm too, and nothing is transposed
nvfp4    a scale for 16 elements below one of the tensor, whose largest magnitude is read first; both directions

A product reads its operands along the axis that it contracts, the two of the backward pass along others, and 8-bit
tensor cores of Hopper take one layout alone: every operand is there twice. A norm writes its result in 8 bits itself;
its transposed copy is a kernel. Other activations, and gradients, are read once and written twice. Weights are cast for
every micro-batch, but for frozen ones, which are stored so. AMD's kernels and boards of other generations are taken to
run the same.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.dtypes import bytes_of
from predictor.graph.graph import Graph, Node
from predictor.ops.base import BACKWARD, FORWARD
from predictor.ops.elementwise import Elementwise
from predictor.ops.gemm import Gemm
from predictor.ops.norm import Norm
from predictor.passes.freeze import is_trained


def with_casts(graph: Graph, frozen: bool) -> Graph:
    """A fused joint ``graph`` with the casts of its 8-bit linear layers; itself where it has none. ``frozen``: no
    weight but the adapters' is trained, so that no product wants a transposed operand."""
    blocks = []
    for block in graph.blocks:
        normed = {id(t.storage) for node in block.nodes if isinstance(node.op, Norm) for t in node.outputs}
        moved = {id(t.storage): id(node.inputs[0].storage) for node in block.nodes
                 if node.op.family == "collective" for t in node.outputs}  # fmt: skip
        done: set[int] = set()
        nodes: list[Node] = []
        for node in block.nodes:
            op = node.op
            if isinstance(op, Gemm) and op.kind == "linear" and bytes_of(op.dtype) < 2:
                key = id(node.inputs[0].storage)
                if op.layout in ("tn", "nn") and key not in done:
                    done.add(key)
                    from_norm = moved.get(key, key) in normed
                    nodes += _casts(node, op, frozen, from_norm and node.phase == FORWARD)
                node = replace(node, op=replace(op, quantized=True))
            nodes.append(node)
        blocks.append(block if nodes == list(block.nodes) else replace(block, nodes=tuple(nodes)))
    return Graph(tuple(blocks), graph.fused)


#: Reads of a tensor in 16 bit before its cast, to find its scale, and whether a norm writes both directions itself.
#: Source: Transformer Engine's docs/features/low_precision_training, as the recipes above.
_AMAX_READS = {"nvfp4": 1}
_NORM_WRITES_BOTH = ("mxfp8",)


def _casts(node: Node, op: Gemm, frozen: bool, from_norm: bool) -> list[Node]:
    """Of what a product reads: its activation or gradient, and forward its weight."""
    narrow = bytes_of(op.dtype)
    found: list[tuple[str, int, bool]] = []
    if not (from_norm and (frozen or op.dtype in _NORM_WRITES_BOTH)):
        found.append(("cast", op.m * op.k, from_norm))
    if node.phase != BACKWARD and not frozen and not any(is_trained(t) for t in node.inputs):
        found.append(("weight cast", op.n * op.k, False))
    return [
        Node(
            Elementwise(op.dtype, "quantize", elements, -1, _beside(op.dtype, elements, narrow, frozen, is_copy),
                        op.dtype if is_copy else "bf16"),
            f"{node.name} {name}", phase=node.phase, scope=f"{node.name} {name}",
        )
        for name, elements, is_copy in found
    ]  # fmt: skip


def _beside(dtype: str, elements: int, narrow: float, frozen: bool, is_copy: bool) -> float:
    """Bytes of a cast beside one read and one write: the other direction, and what is read for the scale."""
    if is_copy:
        return 0.0
    return elements * ((0.0 if frozen else narrow) + _AMAX_READS.get(dtype, 0) * bytes_of("bf16"))
