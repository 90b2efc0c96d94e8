"""What training with products of 8 bits runs beside them: operands are cast, and copied transposed, as Transformer
Engine does with a scale for every tensor that is known from steps before (delayed scaling;
transformer_engine/pytorch/module/layernorm_linear.py and linear.py at d0067d0d).

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


def _casts(node: Node, op: Gemm, frozen: bool, from_norm: bool) -> list[Node]:
    """Of what a product reads: its activation or gradient, and forward its weight."""
    narrow = bytes_of(op.dtype)
    found: list[tuple[str, int, bool]] = []
    if not (from_norm and frozen):
        found.append(("cast", op.m * op.k, from_norm))
    if node.phase != BACKWARD and not frozen and not any(is_trained(t) for t in node.inputs):
        found.append(("weight cast", op.n * op.k, False))
    return [
        Node(
            Elementwise(op.dtype, "quantize", elements, -1, 0.0 if frozen or is_copy else elements * narrow,
                        op.dtype if is_copy else "bf16"),
            f"{node.name} {name}", phase=node.phase, scope=f"{node.name} {name}",
        )
        for name, elements, is_copy in found
    ]  # fmt: skip
