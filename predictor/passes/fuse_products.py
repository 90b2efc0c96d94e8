"""Products as engines run them: what they read is brought into few bits by their own call, and layers that read the
same are one product."""

from __future__ import annotations

from predictor.files.records import replace
from predictor.formats.quantization import STATIC
from predictor.graph.graph import Node
from predictor.graph.tensor import WEIGHT, Tensor
from predictor.ops.base import FORWARD
from predictor.ops.elementwise import Elementwise
from predictor.ops.gemm import Gemm
from predictor.ops.quantize import Quantize
from predictor.passes.fuse_edges import Fusion


def quantizes(node: Node) -> bool:
    return isinstance(node.op, Elementwise) and node.op.fn == "quantize"


def without_quantizing(nodes: tuple[Node, ...], on: Fusion) -> tuple[Node, ...]:
    """The nodes without those that quantize: products do it by themselves, as the kernels of engines were measured.

    Where a checkpoint gives the scales, the kernel before does, or one that casts, as the engine has it; one that
    nobody read looks for scales all the same.
    """
    release = on.engine.vintage()
    rule = release.quantizing if release is not None else None
    static = {
        id(node.inputs[0]): node.op for node in nodes
        if rule is not None and isinstance(node.op, Gemm) and node.op.quantized and node.op.quant == STATIC
    }  # fmt: skip
    made = {id(t): node.scope for node in nodes for t in node.outputs}
    casts: dict[int, Tensor] = {}  # by id of what is cast
    fused: list[Node] = []
    for node in nodes:
        op = node.op
        if not quantizes(node):
            narrow = isinstance(op, Gemm) and op.quantized and id(node.inputs[0]) not in static
            fused.append(replace(node, op=replace(op, quantized=False)) if narrow else node)  # type: ignore[call-arg]
            continue
        x, product = node.inputs[0].storage, static.get(id(node.outputs[0]))
        if product is None or rule is None or rule.fuses(made.get(id(x), "")):
            on.gone(node)
        elif id(x) in casts:
            on.stands_for[id(node.outputs[0])] = casts[id(x)]
        else:
            cast = Quantize(product.dtype, product.batch * product.m, product.k, "cast")
            casts[id(x)] = node.outputs[0]
            fused.append(replace(on.kept(node), op=cast))
    return tuple(fused)


def one_product(group: list[Node], on: Fusion) -> Node:
    """Linear layers of one input side by side; their results are slices of its result."""
    first = group[0]
    op, scope = first.op, first.scope
    assert isinstance(op, Gemm)
    weights = [node.inputs[1] for node in group]
    made = [node.outputs[0] for node in group]
    axis = " | ".join(t.axes[-1] for t in made)
    n = sum(weight.shape[0] for weight in weights)
    product = Gemm(op.dtype, op.m, n, op.k, op.batch, op.kind, op.bias, op.layout, op.quant, op.quantized)
    weight = Tensor(scope, (axis, weights[0].axes[1]), (n, op.k), weights[0].dtype, WEIGHT)
    out = Tensor(scope, (*made[0].axes[:-1], axis), (*made[0].shape[:-1], n), made[0].dtype)
    inputs: tuple[Tensor, ...] = (on.of(first.inputs[0]), weight)
    if op.bias:
        inputs = (*inputs, Tensor(scope, (axis,), (n,), first.inputs[2].dtype, WEIGHT))
    for t in made:
        on.stands_for[id(t)] = out.view(t.axes, t.shape, part=True)
    calls = sum(node.host_calls for node in group)
    return Node(product, scope, inputs, (out,), first.count, FORWARD, calls, 1.0, first.part, scope)
