"""What a module of a kind has in it. A saved graph may call any nodes so; they run as they are, kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable

from predictor.graph.graph import Node
from predictor.graph.tensor import WEIGHT
from predictor.ops.attention import Attention
from predictor.ops.elementwise import Elementwise, Reduce
from predictor.ops.gemm import Gemm
from predictor.ops.norm import Norm, Softmax
from predictor.passes.fuse_backward import is_sum
from predictor.passes.fuse_edges import outside


def sums_two(nodes: list[Node]) -> bool:
    """A residual sum, behind what scales the branch."""
    return is_sum(nodes[-1]) and len(nodes[-1].inputs) == 2


def _norm(nodes: list[Node]) -> bool:
    """The chain of a norm, or one that is one kernel already, of one activation."""
    first, last = nodes[0], nodes[-1]
    chain = isinstance(first.op, Norm) or _elementwise(nodes)
    return chain and bool(first.inputs) and first.inputs[0].role != WEIGHT and bool(last.outputs[0].shape)


def _elementwise(nodes: list[Node]) -> bool:
    return all(isinstance(node.op, Elementwise | Reduce) for node in nodes)


def _activation(nodes: list[Node]) -> bool:
    """A function of one tensor, or its product with another."""
    reads = outside(nodes)
    two = len(nodes[-1].inputs) > 1 or len({id(t.storage) for t in reads}) == 1
    return all(isinstance(node.op, Elementwise) for node in nodes) and bool(reads) and bool(nodes[0].inputs) and two


def _rotary(nodes: list[Node]) -> bool:
    """Products, sums and copies of parts of queries and keys."""
    read = {id(t.storage) for node in nodes for t in node.inputs}
    outputs = [t for node in nodes for t in node.outputs if id(t) not in read]
    made = {id(t) for node in nodes for t in node.outputs}
    turned = [node for node in nodes if isinstance(node.op, Elementwise) and node.op.fn in ("mul", "cast")]
    of = [t for node in turned for t in node.inputs[:1] if t.base is not None and id(t.storage) not in made]
    return all(isinstance(node.op, Elementwise) for node in nodes) and bool(outputs) and bool(of)


def _core(nodes: list[Node]) -> bool:
    """Fused attention, or a product and a softmax behind it."""
    if isinstance(nodes[0].op, Attention):
        return all(node.outputs for node in nodes)
    product = next((i for i, node in enumerate(nodes) if isinstance(node.op, Gemm)), len(nodes))
    return any(isinstance(node.op, Softmax) for node in nodes[product:])


def _reads(nodes: list[Node]) -> bool:
    return all(node.inputs for node in nodes)


def _plain(nodes: list[Node]) -> bool:
    """What reads and writes elements, and computes nothing that a product could not do on the way."""
    return _reads(nodes) and _elementwise(nodes)


#: By kind, the last word of a module's scope, what holds of its nodes; kinds that are not here may have any.
HOLDS: dict[str, Callable[[list[Node]], bool]] = {
    "activation": _activation, "cache": _plain, "core": _core, "loss": _reads, "norm": _norm, "residual": sums_two,
    "rotary": _rotary, "router": _reads, "scaling": _plain, "softcap": _plain, "sublayer": sums_two,
}  # fmt: skip
