"""Quantization: the builders' graph, which computes in the dtype of its activations throughout, in the number formats
of a run.

A product has the format of the part of the model that its weight is of; products of activations have the high one, and
so do weights that latent attention absorbs. Where a product is narrow, eager PyTorch runs a kernel before it that
quantizes its input, a scale a token. Engines do that in the kernel before the product: `predictor.passes.fuse` takes
these nodes away again.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby

from predictor.files.records import replace
from predictor.formats.dtypes import bytes_of
from predictor.formats.parts import Format, Formats
from predictor.formats.quantization import weight_bytes
from predictor.graph.graph import Block, Graph, Node, renewed
from predictor.graph.tensor import WEIGHT, Tensor
from predictor.ops.attention import Attention
from predictor.ops.base import BACKWARD
from predictor.ops.elementwise import Elementwise
from predictor.ops.embedding import Embedding
from predictor.ops.gemm import Gemm
from predictor.ops.moe import MoE

#: Operators that a format can be set for.
_PRODUCTS = Gemm, MoE, Attention


def quantize(graph: Graph, formats: Formats) -> Graph:
    """``graph`` in ``formats``; the very same one where it computes in them already."""
    if not formats.layers and not any(_format(n, formats) for b in graph.blocks for n in b.nodes):
        return graph
    tables = {id(t) for b in graph.blocks for n in b.nodes if isinstance(n.op, Embedding) for t in n.inputs}
    blocks = [replace(block, nodes=_in_formats(block, of, tables)) for block, of in _split(graph.blocks, formats)]
    return replace(graph, blocks=tuple(blocks))


def _format(node: Node, formats: Formats) -> Format | None:
    """The format that a product has to be brought into; None for what has it, and for what is no product.

    A product that the model has wider than all others stays as wide (Switch's router), and one that it has narrower
    than the run's numbers as narrow (autocast in a run of fp32).
    """
    op = node.op
    if op.unit != "matrix" or not isinstance(op, _PRODUCTS):
        return None
    form = formats.of(node.part) if node.part and op.label != "bmm" else formats.high
    if node.phase == BACKWARD:  # of a recording: gradients have no scheme of their own (`Gemm.backward`)
        form = Format(form.dtype)
    if (op.dtype, getattr(op, "quant", "")) == form or bytes_of(op.dtype) > bytes_of(formats.high.dtype):
        return None
    return None if bytes_of(op.dtype) < bytes_of(form.dtype) else form


def _of_its_layer(node: Node, formats: Formats) -> Formats:
    """The formats of a node of a recorded layer that stands alone, whose block has no number: by its weight's path."""
    paths = [t.name.split(".") for t in node.inputs if t.role == WEIGHT] if formats.layers else []
    numbers = [int(part) for path in paths for part in path if part.isdecimal()]
    return formats.at(numbers[0]) if numbers else formats


def _in_formats(block: Block, formats: Formats, tables: set[int]) -> tuple[Node, ...]:
    """The nodes of a block in their formats. ``tables``: ids of the weights that embeddings read, too, which stay."""
    nodes: list[Node] = []
    weights: dict[int, Tensor] = {}
    for node in block.nodes:
        form = _format(node, formats if block.layers else _of_its_layer(node, formats))
        if form is None:
            nodes.append(node)
            continue
        inputs = []
        for t in node.inputs:
            if t.role == WEIGHT and len(t.axes) > 1 and id(t) not in tables:  # not a bias
                if id(t) not in weights:
                    weights[id(t)] = Tensor(t.name, t.axes, t.shape, form.dtype, WEIGHT)
                t = weights[id(t)]
            inputs.append(t)
        if _is_narrow(node, form):
            nodes.append(_quantized_input(node, form.dtype))
            inputs[0] = nodes[-1].outputs[0]
        nodes.append(replace(node, op=_computing_in(node, form), inputs=tuple(inputs)))
    return tuple(nodes)


def _is_narrow(node: Node, form: Format) -> bool:
    """A narrow product with one weight; experts, whose weights have an axis more, take their tokens as they come, and
    products of a recorded backward pass bring the gradients that they read into few bits themselves, as those that
    `predictor.passes.autograd` writes do."""
    if not isinstance(node.op, Gemm) or bytes_of(form.dtype) >= 2 or node.phase == BACKWARD:
        return False
    weight = node.inputs[1]
    return weight.role == WEIGHT and len(weight.axes) == 2


def _quantized_input(node: Node, dtype: str) -> Node:
    """The kernel that brings a product's input into ``dtype``."""
    x, name = node.inputs[0], f"{node.name} quantize"
    op = Elementwise(dtype, "quantize", x.elements, in_dtype=x.dtype, grad=False)
    return Node(op, name, (x,), (Tensor(name, x.axes, x.shape, dtype),), node.count, scope=node.scope)


def _computing_in(node: Node, form: Format) -> Gemm | MoE | Attention:
    """A node's operator, one of `_PRODUCTS`, in another format."""
    op = node.op
    if isinstance(op, Gemm):
        return replace(op, dtype=form.dtype, quant=form.quant, quantized=_is_narrow(node, form))
    if isinstance(op, MoE):
        return replace(op, dtype=form.dtype, quant=form.quant)
    assert isinstance(op, Attention)
    return replace(op, dtype=form.dtype)


def _split(blocks: tuple[Block, ...], formats: Formats) -> list[tuple[Block, Formats]]:
    """The blocks with their formats; one whose layers have several is split, and its parts take their places among the
    other layers by their first one."""
    parts: list[tuple[Block, Formats]] = []
    for numbered, stretch in groupby(blocks, lambda block: bool(block.layers)):
        if not numbered or not formats.layers:
            parts.extend((block, formats) for block in stretch)
            continue
        parts_of_node = [
            (Block(_name(block, of, formats), block.nodes, len(layers), block.carried, layers), of)
            for block in stretch
            for of, layers in formats.among(block.layers)
        ]
        parts.extend(parts_of_node)
    if len(parts) == len(blocks):
        return parts
    return _chained(parts)


def _name(block: Block, formats: Formats, whole: Formats) -> str:
    return f"{block.name} in other formats" if formats.own != whole.own else block.name


def _chained(parts: list[tuple[Block, Formats]]) -> list[tuple[Block, Formats]]:
    """Blocks that may be copies of one another, each on tensors and weights of its own, one layer behind the other."""
    stands_for: dict[int, Tensor] = {}
    last: Tensor | None = None
    chained = []
    for _, stretch in groupby(parts, lambda part: bool(part[0].layers)):
        for block, formats in sorted(stretch, key=lambda part: part[0].layers[:1]):
            made: set[int] = set()
            if block.layers and block.carried:
                if last is not None:
                    stands_for[id(block.carried[0])] = last
                made = {id(t) for n in block.nodes for t in n.outputs}
                made |= {id(t) for n in block.nodes for t in n.inputs if t.role == WEIGHT}
            new = partial(renewed, {}, stands_for, made)
            nodes = tuple(
                replace(n, inputs=tuple(map(new, n.inputs)), outputs=tuple(map(new, n.outputs))) for n in block.nodes
            )
            carried = (new(block.carried[0]), new(block.carried[1])) if block.carried else None
            if block.layers and carried and block.carried:
                last = stands_for[id(block.carried[1])] = carried[1]
            chained.append((Block(block.name, nodes, block.repeat, carried, block.layers), formats))
    return chained


def saved_bytes(graph: Graph, formats: Formats) -> float:
    """Bytes by which the weights of a recorded ``graph`` in narrow formats are fewer than in the high one."""
    seen: set[int] = set()
    total = 0.0
    for block in graph.blocks:
        for node in block.nodes:
            op = node.op
            if not node.part or not isinstance(op, (Gemm, MoE)) or (isinstance(op, Gemm) and op.kind == "bmm"):
                continue
            less = formats.high.weight_bytes - weight_bytes(op.dtype, op.quant)
            for t in node.inputs:
                if t.role == WEIGHT and len(t.axes) > 1 and id(t) not in seen:
                    seen.add(id(t))
                    total += t.elements * block.repeat * less
    return total
