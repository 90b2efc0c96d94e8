"""Modules that run as one kernel: norms, activations, soft caps, routers, the loss; tables that no kernel makes.

A rule takes a module's nodes (one scope, in order) and gives those of an engine in their place. What is made keeps its
tensors, so that its readers need not know.
"""

from __future__ import annotations

from collections.abc import Callable

from predictor.files.records import replace
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import WEIGHT, Tensor
from predictor.ops.base import FORWARD
from predictor.ops.collective import Collective
from predictor.ops.elementwise import Dropout, DropoutSum, Elementwise, Reduce
from predictor.ops.embedding import CrossEntropy
from predictor.ops.moe import Routing
from predictor.ops.norm import Norm
from predictor.passes.fuse_edges import Fusion, outside

#: FLOP an element of the activation functions that are one kernel in eager PyTorch, too; of all others, and of chains.
#: Nominal, by hand, not from data: the bytes decide.
_FLOPS, _CHAIN_FLOPS = {"relu": 1.0, "silu": 8.0}, 10.0


def norm(nodes: list[Node], on: Fusion, terms: tuple[Tensor, Tensor, Tensor] | None = None, kept: bool = True) -> Node:
    """The chain of an RMS norm or a layer norm, or a layer norm that is one kernel already, as one kernel.

    ``terms``: of the sum that it reads and does first, (stream, branch, sum), which it writes where the sum is
    ``kept``.
    """
    first, last = nodes[0], nodes[-1]
    op, made = first.op, last.outputs[0]
    outputs: tuple[Tensor, ...]
    if isinstance(op, Norm):
        kind, rows, cols = op.kind, op.rows, op.cols
    else:
        means = sum(isinstance(node.op, Reduce) for node in nodes)  # a layer norm takes that of the squares, too
        kind, cols = "layer" if means > 1 else "rms", made.shape[-1]
        rows = made.elements // cols
    reads = tuple(t for node in nodes for t in node.inputs if t.role == WEIGHT)
    op = Norm(last.op.dtype, rows, cols, kind, FORWARD, terms is not None, kept)
    if terms is None:
        x = on.inputs(first)
        inputs, outputs = (x[0], *x[len(first.inputs) :], *reads), (made,)
    else:
        inputs, outputs = (*terms[:2], *reads), (terms[2], made) if kept else (made,)
    scope = last.scope
    return Node(op, scope, inputs, outputs, 1, FORWARD, 1, 1.0, last.part, scope)


def activation(nodes: list[Node], on: Fusion) -> list[Node]:
    """An activation function, or that of a gate and its product with the other half."""
    first, last = nodes[0], nodes[-1]
    op, made = first.op, last.outputs[0]
    assert isinstance(op, Elementwise)
    reads, n = outside(nodes), made.elements
    inputs: tuple[Tensor, ...]
    if len({id(_undetached(t)) for t in reads}) > 1:
        fn = "swiglu" if op.fn == "silu" else "geglu"
        fused = Elementwise(op.dtype, fn, n)
        inputs = (on.of(first.inputs[0]), on.of(last.inputs[1]))
    else:
        flops = _FLOPS.get(op.fn, _CHAIN_FLOPS) if len(nodes) == 1 else _CHAIN_FLOPS
        fused = Elementwise(op.dtype, "fused", n, 1, chain_flops=flops)
        inputs = (on.of(_undetached(reads[0])),)
    return [Node(fused, last.scope, inputs, (made,), 1, FORWARD, 1, 1.0, "", last.scope)]


def _undetached(tensor: Tensor) -> Tensor:
    """What a detached view is of."""
    return tensor.base if tensor.base is not None and tensor.gradient is None else tensor


def softcap(nodes: list[Node], on: Fusion) -> list[Node]:
    """c tanh(x / c) in one kernel."""
    first, last = nodes[0], nodes[-1]
    made = last.outputs[0]
    op = Elementwise(last.op.dtype, "fused", made.elements, 1, chain_flops=_CHAIN_FLOPS)
    return [Node(op, last.scope, on.inputs(first), (made,), 1, FORWARD, 1, 1.0, "", last.scope)]


def dropout_sum(before: list[Node], nodes: list[Node], on: Fusion) -> list[Node]:
    """What runs ``before`` a residual sum, and the sum: with the dropout of the branch in it, where there is one."""
    *others, node = nodes
    branch, op = before[-1] if before else None, node.op
    kept_nodes = [*before, *(on.kept(other) for other in others)]
    if others or branch is None or not isinstance(branch.op, Dropout):
        return [*kept_nodes, on.kept(node)]
    inputs = on.inputs(node)
    read = {id(t.storage) for t in inputs}
    if branch.count != 1 or len(inputs) != 2 or id(branch.outputs[0]) not in read:
        return [*kept_nodes, on.kept(node)]
    residual = next(t for t in inputs if t.storage is not branch.outputs[0])
    fused = DropoutSum(op.dtype, branch.op.elements)
    scope = branch.scope
    kept_nodes[-1] = Node(fused, scope, (branch.inputs[0], residual), node.outputs, 1, FORWARD, 1, 1.0, "", scope)
    return kept_nodes


def scaling(nodes: list[Node], on: Fusion) -> list[Node]:
    """A factor of what a product reads is the product's own."""
    for node in nodes:
        on.gone(node)
    return []


def tables(nodes: list[Node], on: Fusion) -> list[Node]:
    """Masks and tables of positions, which kernels find by themselves."""
    return []


def router(nodes: list[Node], on: Fusion) -> list[Node]:
    """Scores and choices in the dtype of the activations: nothing is cast on the way."""
    made = []
    for node in nodes:
        op = node.op
        if isinstance(op, Elementwise) and op.fn == "cast":
            on.gone(node)
        elif isinstance(op, Routing):
            narrow = Routing(node.inputs[0].dtype, op.tokens, op.experts, op.top_k)
            made.append(
                Node(narrow, node.name, on.inputs(node), node.outputs, 1, FORWARD, node.host_calls, 1.0,
                     node.part, node.scope)
            )  # fmt: skip
        else:
            made.append(on.kept(node))
    return made


def loss(nodes: list[Node], on: Fusion) -> list[Node]:
    """Cross-entropy reads the logits as they are, and widens them within, unless they are gathered in between; as a
    framework of training has it, kernel by kernel in fp32."""
    *casts, node = nodes
    op = node.op
    if not isinstance(op, CrossEntropy):
        return [on.kept(node) for node in nodes]
    if on.engine.trains:
        op = replace(op, in_passes=True)
        ahead = [on.kept(cast) for cast in casts]
        return [*ahead, replace(on.kept(node), op=op)]
    for cast in casts:
        on.gone(cast)
    inputs = on.inputs(node)
    op = CrossEntropy(inputs[0].dtype, op.rows, op.vocab)
    return [Node(op, node.name, inputs, node.outputs, 1, FORWARD, node.host_calls, 1.0, "", node.scope)]


def norms_in_reductions(graph: Graph, takes: Callable[[Collective, int], bool]) -> Graph:
    """``graph`` with the norms behind an all_reduce in its kernel, where ``takes`` (collective, tokens) says so; the
    very same one where it takes none.

    The norm adds the residual first, and follows its all_reduce at once: in the block, or as the first node of its next
    repetition, or of the block behind it.
    """
    blocks, last = [], None
    for block in graph.blocks:
        before = block.nodes[-1] if block.repeat > 1 else last
        blocks.append(_joined(block, before, takes))
        last = block.nodes[-1]
    changed = any(new is not old for new, old in zip(blocks, graph.blocks, strict=True))
    return replace(graph, blocks=tuple(blocks)) if changed else graph


def _joined(block: Block, before: Node | None, takes: Callable[[Collective, int], bool]) -> Block:
    nodes = list(block.nodes)
    for i, node in enumerate(nodes):
        op, previous = node.op, nodes[i - 1] if i else before
        if not isinstance(op, Norm) or not op.residual or op.in_reduction or previous is None:
            continue
        reduced = previous.op
        if isinstance(reduced, Collective) and reduced.kind == "all_reduce" and takes(reduced, op.rows):
            nodes[i] = replace(node, op=replace(op, in_reduction=True), host_calls=0)
    return replace(block, nodes=tuple(nodes)) if nodes != list(block.nodes) else block
