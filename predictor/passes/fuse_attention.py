"""Attention as engines run it: rotary positions in one kernel, the cache written in place, no mask and no copy of
operands between the products; or all of that within the one call of fused attention.

Shape legend: b sequences, s query tokens a sequence, t key positions, a heads, d head width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from predictor.engines import DECODE, PREFILL
from predictor.files.records import replace
from predictor.graph.graph import Block, Node
from predictor.graph.tensor import ACTIVATION, Tensor
from predictor.ops.attention import Attention
from predictor.ops.base import FORWARD
from predictor.ops.elementwise import Elementwise, Rotary
from predictor.ops.gemm import Gemm
from predictor.ops.norm import Softmax
from predictor.passes.fuse_edges import Fusion, outside


def _served(module: str, on: Fusion) -> Attention | None:
    """The attention of a module that is a serving engine's one call."""
    return on.calls.get(module) if on.engine.serves else None


def _is_decode(call: Attention) -> bool:
    """One query a sequence, and tokens in the cache before it."""
    return call.q_len == 1 and call.kv_len > 1


def rotary(nodes: list[Node], on: Fusion) -> list[Node]:
    """Rotary positions on queries and keys: one kernel for both, or done by the attention call."""
    scope = nodes[0].scope
    read = {id(t.storage) for node in nodes for t in node.inputs}
    outputs = tuple(t for node in nodes for t in node.outputs if id(t) not in read)
    made = {id(t) for node in nodes for t in node.outputs}
    rotated: dict[int, Tensor] = {}
    turned = 0
    for node in nodes:
        op = node.op
        assert isinstance(op, Elementwise)
        x = node.inputs[0] if node.inputs else None
        if x is not None and op.fn in ("mul", "cast") and x.base is not None and id(x.storage) not in made:
            whole = x.base  # of what comes from outside, the part that is rotated; copies of gradients are no kernels
            while whole.base is not None and whole.gradient:
                whole = whole.base
            rotated[id(whole)] = whole
        elif op.fn == "add":
            turned += op.elements * node.count
    inputs = tuple(rotated.values())
    if on.engine.rotates and _served(scope.rpartition(" ")[0], on) and len(outputs) == len(inputs):
        on.stands_for.update({id(out): x for out, x in zip(outputs, inputs, strict=True)})
        return []
    tokens = math.prod(inputs[0].shape[:-2])
    heads = sum(-(-x.elements // (tokens * x.shape[-1])) for x in inputs)
    fused = Rotary(nodes[0].op.dtype, tokens, heads, turned // (tokens * heads))
    return [Node(fused, "rotary", tuple(map(on.of, inputs)), outputs, scope=scope)]


def cache(nodes: list[Node], on: Fusion) -> list[Node]:
    """New keys and values go to their place in the cache, or the attention call takes them there."""
    node = nodes[0]  # the others concatenate the same
    call = _served(node.scope.rpartition(" ")[0], on) if len(node.outputs) == len(node.inputs) else None
    if call is not None and (DECODE if _is_decode(call) else PREFILL) in on.engine.appends:
        on.stands_for.update({id(made): x for made, x in zip(node.outputs, node.inputs, strict=True)})
        return []
    inputs = on.inputs(node)
    op = Elementwise(node.op.dtype, "copy", sum(x.elements for x in inputs), in_dtype=inputs[0].dtype)
    return [Node(op, node.name, inputs, node.outputs, 1, FORWARD, 1, 1.0, "", node.scope)]


def qkv(nodes: list[Node], on: Fusion) -> list[Node]:
    """After a merged projection, the kernel that adds its bias and lays out the heads, where the engine has one."""
    nodes = [on.kept(node) for node in nodes]
    node = nodes[-1]
    op, merged = node.op, node.outputs[0]
    call = _served(node.scope.rpartition(" ")[0], on)
    if not (on.engine.adds_qkv_bias and isinstance(op, Gemm) and op.bias and call) or _is_decode(call):
        return nodes
    name = f"{node.scope} bias"
    added = Tensor(name, merged.axes, merged.shape, merged.dtype)
    on.stands_for[id(merged)] = added
    chain = Elementwise(merged.dtype, "fused", merged.elements, 1, chain_flops=1.0)
    return [*nodes, Node(chain, name, (merged,), (added,), scope=node.scope)]


def core(nodes: list[Node], on: Fusion) -> list[Node]:
    """From queries, keys and values to the heads' results: one call, or two products with a softmax between them."""
    if isinstance(nodes[0].op, Attention):
        return [_without_copy(on.kept(node), on) for node in nodes]
    made, products = [], [node for node in nodes if isinstance(node.op, Gemm)]
    i = nodes.index(products[0])
    for node in nodes[:i]:  # copies of operands
        on.gone(node)
    if len(products) == 2:
        made += _heads_split(products, on)
    made.append(on.kept(nodes[i]))
    start = i + 1
    while not isinstance(nodes[i].op, Softmax):
        i += 1
    more = [t for t in outside(nodes[start:i]) if t.role == ACTIVATION and t.storage is not products[0].outputs[0]]
    node, rest = nodes[i], nodes[i + 1 :]
    out, op = node.outputs[0], node.op
    if rest and isinstance(rest[0].op, Elementwise) and rest[0].op.fn == "cast":
        out, rest = rest[0].outputs[0], rest[1:]
    inputs = (products[0].outputs[0], *map(on.of, more))
    made.append(Node(op, node.name, inputs, (out,), 1, FORWARD, node.host_calls, 1.0, "", node.scope))
    made.extend(on.kept(node) for node in rest)
    return made


def _without_copy(node: Node, on: Fusion) -> Node:
    """Attention whose output is what the next layer reads, without a copy of it."""
    if len(node.outputs) == 1:
        return node
    out, *copies = node.outputs
    for copy in copies:
        on.stands_for[id(copy)] = out
    return replace(node, outputs=(out,))


def _heads_split(products: list[Node], on: Fusion) -> list[Node]:
    """One kernel that brings q, k and v of several sequences into the products' layout, (b a, rows, d) each.

    One that adds the bias, too, runs for one sequence as well.
    """
    if on.engine.views_heads:
        return []
    scores, context = products
    made, first, second = scores.outputs[0], scores.op, context.op
    assert isinstance(first, Gemm) and isinstance(second, Gemm)
    if "sequence" not in made.axes or first.m == 1 or (made.shape[0] == 1 and not on.engine.adds_qkv_bias):
        return []
    operands = (*scores.inputs, context.inputs[1])
    name = f"{scores.scope.rpartition(' ')[0]} split heads"
    elements = first.batch * (first.m + first.n) * first.k + second.batch * second.k * second.n
    total = Tensor(name, ("tokens",), (elements,), made.dtype)
    inputs = tuple(map(on.of, operands))
    for x in operands:
        on.stands_for[id(x)] = total.view(x.axes, x.shape, part=True)
    op = Elementwise(made.dtype, "copy", elements)
    return [Node(op, name, inputs, (total,), scope=scores.scope)]


#: By id of a storage, the nodes that read it: (block, place).
Readers = Mapping[int, set[tuple[int, int]]]
#: What may stand between the scores and their softmax: a scale, a mask that is added.
_BETWEEN = ("mul", "mul_scalar", "div", "add")


class _Found(NamedTuple):
    """Places of the first and the last product, and of what lies between them."""

    scores: int
    between: tuple[int, ...]
    values: int


def with_attention(block: Block, readers: Readers) -> Block:
    """``block`` with every such chain as one node, where its last product was; itself where there is none."""
    made = {id(t.storage): i for i, node in enumerate(block.nodes) for t in node.outputs}
    attentions = [
        attention for i, node in enumerate(block.nodes) if (attention := _around(block, i, node, made, readers))
    ]
    if not attentions:
        return block
    gone = {place for attention in attentions for place in (attention.scores, *attention.between)}
    new = {attention.values: _kernel(block, attention) for attention in attentions}
    nodes = tuple(new.get(i, node) for i, node in enumerate(block.nodes) if i not in gone)
    return replace(block, nodes=nodes)


def _around(block: Block, place: int, node: Node, made: Mapping[int, int], readers: Readers) -> _Found | None:
    """The chain around a softmax, each of whose results only the next one reads."""
    if not isinstance(node.op, Softmax) or node.op.phase != FORWARD or node.phase != FORWARD:
        return None
    after = _only_reader(node, readers)
    if after is None or not _is_batched(block.nodes[after]):
        return None
    between, at = [place], node
    for _ in range(3):  # a scale, a mask, the product
        before = next((made[id(t.storage)] for t in at.inputs if id(t.storage) in made), None)
        if before is None or _only_reader(block.nodes[before], readers) is None:
            return None
        at = block.nodes[before]
        if _is_batched(at):
            return _Found(before, tuple(between), after)
        if not isinstance(at.op, Elementwise) or at.op.fn not in _BETWEEN:
            return None
        between.append(before)
    return None


def _is_batched(node: Node) -> bool:
    return isinstance(node.op, Gemm) and node.op.kind == "bmm"


def _only_reader(node: Node, readers: Readers) -> int | None:
    """The place of the one node that reads a node's result."""
    places = readers.get(id(node.outputs[0].storage), set())
    return next(iter(places))[1] if len(node.outputs) == len(places) == 1 else None


def _kernel(block: Block, attention: _Found) -> Node:
    first, last = block.nodes[attention.scores], block.nodes[attention.values]
    scores, values = first.op, last.op
    assert isinstance(scores, Gemm) and isinstance(values, Gemm)
    op = Attention(
        scores.dtype, 1, scores.batch, scores.batch, scores.m, scores.n, scores.k,
        0 if values.n == scores.k else values.n, False,
    )  # fmt: skip
    inside = {id(t.storage) for place in (attention.scores, *attention.between) for t in block.nodes[place].outputs}
    read: list[Tensor] = [
        t for place in (attention.scores, *attention.between, attention.values) for t in block.nodes[place].inputs
        if id(t.storage) not in inside
    ]  # fmt: skip
    return replace(last, op=op, inputs=tuple(read))
