"""What eager PyTorch runs beside a linear layer in a narrow dtype: a kernel that quantizes its input, a scale a token.

Engines quantize in the kernel before the product: `predictor.passes.fuse` takes these nodes away again.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.dtypes import bytes_of
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import WEIGHT, Tensor
from predictor.ops.elementwise import Elementwise
from predictor.ops.gemm import Gemm


def quantize(graph: Graph) -> Graph:
    """``graph`` with a node before every linear layer of less than 16 bits, whose input it brings into its dtype."""
    if not any(_is_narrow(node) for block in graph.blocks for node in block.nodes):
        return graph
    return Graph(tuple(replace(block, nodes=_with_inputs_quantized(block)) for block in graph.blocks))


def _is_narrow(node: Node) -> bool:
    """A narrow product with one weight; experts, whose weights have an axis more, take their tokens as they come."""
    if not isinstance(node.op, Gemm) or bytes_of(node.op.dtype) >= 2:
        return False
    weight = node.inputs[1]
    return weight.role == WEIGHT and len(weight.axes) == 2


def _with_inputs_quantized(block: Block) -> tuple[Node, ...]:
    nodes = []
    for node in block.nodes:
        if _is_narrow(node):
            x, *weights = node.inputs
            name, dtype = f"{node.name} quantize", node.op.dtype
            narrow = Tensor(name, x.axes, x.shape, dtype)
            op = Elementwise(dtype, "quantize", x.elements, in_dtype=x.dtype, grad=False)
            nodes.append(Node(op, name, (x,), (narrow,), node.count))
            node = replace(node, inputs=(narrow, *weights))
        nodes.append(node)
    return tuple(nodes)
