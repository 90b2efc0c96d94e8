"""A frozen base in few bits under adapters (QLoRA, Dettmers et al., arXiv:2305.14314).

Every product of a linear layer of the base has a kernel ahead of it that unpacks the weight to 16 bit, in the forward
pass and again in the backward pass, as bitsandbytes runs it where rows are many (0.50.2, autograd/_functions.py,
MatMul4Bit; backends/cuda/ops.py:585-620). A forward pass of a checkpoint of bitsandbytes does so, too.
Embedding, head, norms and adapters stay in 16 bit; fused experts do, too, whose weights are no linear layer's.
"""

from __future__ import annotations

from predictor.files.records import replace
from predictor.formats.quantization import weight_bytes
from predictor.graph.graph import Graph, Node
from predictor.graph.tensor import WEIGHT, Tensor
from predictor.ops.elementwise import Elementwise
from predictor.ops.gemm import Gemm

_NAME = "dequantize"
#: Framework calls of it: scales of the scales, their offset, the weight itself. Source: bitsandbytes 0.50.2
#: functional.py:1052-1070.
_CALLS = 3


def unpack(graph: Graph, alone: bool = True) -> Graph:
    """A ``graph`` whose products have a weight-only scheme, with the kernels that unpack it; itself where none has.

    ``alone`` False: a product of one row reads the packed weight itself, as bitsandbytes' gemv_4bit does.
    """
    packed = {
        (node.inputs[1].name, node.inputs[1].axes): node.op.quant
        for block in graph.blocks for node in block.nodes
        if isinstance(node.op, Gemm) and node.op.quant and (alone or node.op.m > 1)
    }  # fmt: skip
    if not packed:
        return graph
    blocks = []
    for block in graph.blocks:
        nodes: list[Node] = []
        for node in block.nodes:
            places = [i for i, t in enumerate(node.inputs) if t.role == WEIGHT and (t.name, t.axes) in packed]
            if isinstance(node.op, Gemm) and places:
                weight = node.inputs[places[0]]
                wide, kernel = _unpacked(node, weight, packed[weight.name, weight.axes])
                inputs = tuple(wide if t is weight else t for t in node.inputs)
                nodes += [kernel, replace(node, op=replace(node.op, quant=""), inputs=inputs)]
            else:
                nodes.append(node)
        blocks.append(replace(block, nodes=tuple(nodes)))
    return replace(graph, blocks=tuple(blocks))


def _unpacked(node: Node, weight: Tensor, quant: str) -> tuple[Tensor, Node]:
    """The weight in 16 bit, and the kernel that makes it."""
    dtype, name = node.op.dtype, f"{node.name} {_NAME}"
    wide = Tensor(name, weight.axes, weight.shape, dtype, segments=weight.segments)
    stored = weight.elements * weight_bytes(dtype, quant)
    op = Elementwise(dtype, "cast", weight.elements, 0, stored, grad=False)
    return wide, Node(op, name, (weight,), (wide,), phase=node.phase, host_calls=_CALLS, scope=name)


def spared_bytes(graph: Graph, itemsize: float) -> float:
    """Bytes by which the stored weights of a graph, one copy for each run of a block, are fewer than with ``itemsize``
    bytes an element."""
    spared = {
        id(node.inputs[0]): (node.op.elements * itemsize - node.op.read_bytes) * block.repeat
        for block in graph.blocks if block.backward_of is None for node in block.nodes
        if isinstance(node.op, Elementwise) and node.name.endswith(_NAME)
    }  # fmt: skip
    return sum(spared.values())
