"""A recorded forward pass in the kernels of an engine that serves, before a compiler's rules fuse the rest of it.

A class of transformers is written for eager PyTorch: it joins a KV cache and the new token's keys to a new tensor in
every layer, rotates queries and keys in a dozen kernels, and multiplies one input by three weights. Engines write new
keys and values to their place in the cache within the attention call, rotate both in one kernel, and have one weight
for products that read the same. What depends on positions alone (tables of angles, masks) is there from the start.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from predictor.engines import DECODE, PREFILL, Engine
from predictor.files.records import replace
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import ACTIVATION, WEIGHT, Tensor
from predictor.ops.attention import Attention
from predictor.ops.base import FORWARD
from predictor.ops.elementwise import Elementwise, Reduce, Rotary
from predictor.ops.gemm import Gemm
from predictor.ops.norm import Norm
from predictor.passes.fuse_edges import Fusion
from predictor.passes.fuse_products import one_product

#: An activation function, and the kernel of it and the product behind it (`predictor.ops.elementwise`).
_GATES = {"silu": "swiglu", "gelu": "geglu"}
#: Of a tensor that is rotated, a table of angles has at most this share (it is the same for every head, of which there
#: are two or more). By definition.
_TABLE = 0.5


def as_served(graph: Graph, engine: Engine) -> Graph:
    """``graph``, a forward pass, with what ``engine`` does in kernels of its own.

    Nodes that quantize are gone by then (`predictor.passes.fuse`).
    """
    on = Fusion(engine)
    live = _live(graph)
    blocks = []
    for block in graph.blocks:
        nodes = [node for node in block.nodes if not live or any(id(t) in live for t in node.outputs)]
        nodes = _cached(nodes, on)
        nodes = _products(nodes, on)
        nodes = _rotated(nodes, on)
        blocks.append(_sum_first(replace(block, nodes=tuple(on.kept(node) for node in nodes)), on))
    read = Counter(id(t.storage) for block in blocks for node in block.nodes for t in node.inputs)
    for block in blocks:
        read.update(id(t.storage) for pair in (block.carried, block.branch) for t in pair or ())
    new = (tuple(_gated(_normed(block.nodes, read), read)) for block in blocks)
    return replace(graph, blocks=tuple(replace(block, nodes=nodes) for block, nodes in zip(blocks, new, strict=True)))


def _normed(nodes: Sequence[Node], read: Counter[int]) -> list[Node]:
    """With one kernel in place of each norm's chain, which does the residual sum that it reads. ``read``: by id of a
    storage, how often it is."""
    normed: list[Node] = []
    for _, run in groupby(nodes, key=lambda node: node.scope):
        chain = list(run)
        node = _norm_of(chain)
        normed += [node] if node is not None else chain
    summed: list[Node] = []
    for node in normed:
        ahead = summed[-1] if summed else None
        if isinstance(node.op, Norm) and ahead is not None and _is_sum(ahead) and _reads(node, ahead):
            kept = read[id(ahead.outputs[0])] > _times(node, ahead)
            op = Norm(node.op.dtype, node.op.rows, node.op.cols, node.op.kind, FORWARD, True, kept)
            rest = tuple(t for t in node.inputs if t.storage is not ahead.outputs[0])
            outputs = (ahead.outputs[0], node.outputs[0]) if kept else node.outputs[:1]
            summed[-1] = replace(node, op=op, inputs=(*ahead.inputs, *rest), outputs=outputs)
        else:
            summed.append(node)
    return summed


def _gated(nodes: Sequence[Node], read: Counter[int]) -> list[Node]:
    """With one kernel in place of an activation function and the product with the other half that alone reads it."""
    kept: list[Node] = []
    made: dict[int, int] = {}  # by id of a storage, the place of the activation function that makes it
    for node in nodes:
        op = node.op
        gate = next((made[id(t.storage)] for t in node.inputs if id(t.storage) in made), None)
        if gate is not None and isinstance(op, Elementwise) and op.fn == "mul" and len(node.inputs) == 2:
            ahead = kept[gate]
            other = next(t for t in node.inputs if t.storage is not ahead.outputs[0])
            if other.elements == op.elements and read[id(ahead.outputs[0])] == 1:
                kernel = Elementwise(op.dtype, _GATES[ahead.op.fn], op.elements)  # type: ignore[attr-defined]
                node = replace(node, op=kernel, inputs=(ahead.inputs[0], other))
                del kept[gate]
                made = {key: place - (place > gate) for key, place in made.items() if place != gate}
        elif isinstance(op, Elementwise) and op.fn in _GATES and len(node.inputs) == 1:
            made[id(node.outputs[0])] = len(kept)
        kept.append(node)
    return kept


def _norm_of(chain: list[Node]) -> Node | None:
    """The one kernel of a module's nodes that are an RMS norm: a mean of rows among element-wise ones, a weight at
    most, and a result as large as what is read."""
    reduces = [node.op for node in chain if isinstance(node.op, Reduce)]
    last = chain[-1]
    alone = all(isinstance(node.op, (Elementwise, Reduce)) for node in chain)
    if len(reduces) != 1 or not alone or reduces[0].axis != 1 or len(last.outputs) != 1:
        return None
    op, made = reduces[0], {id(t.storage) for node in chain for t in node.outputs}
    reads = {id(t): t for node in chain for t in node.inputs if id(t.storage) not in made}
    whole = [t for t in reads.values() if t.role != WEIGHT]
    if len(whole) != 1 or whole[0].elements != op.rows * op.cols or last.outputs[0].elements != op.rows * op.cols:
        return None
    kernel = Norm(last.op.dtype, op.rows, op.cols, "rms")
    return replace(last, op=kernel, inputs=(whole[0], *(t for t in reads.values() if t.role == WEIGHT)))


def _is_sum(node: Node) -> bool:
    return isinstance(node.op, Elementwise) and node.op.fn == "add" and len(node.inputs) == 2 and len(node.outputs) == 1


def _reads(node: Node, ahead: Node) -> bool:
    x = node.inputs[0]
    return x.storage is ahead.outputs[0] and all(t.elements == x.elements for t in ahead.inputs)


def _times(node: Node, ahead: Node) -> int:
    return sum(t.storage is ahead.outputs[0] for t in node.inputs)


def with_static_cache(graph: Graph, engine: Engine) -> Graph:
    """``graph``, a forward pass that is captured, with a cache whose size is that of the longest sequence, as what is
    captured has to have (transformers: cache_implementation "static"): new keys and values are copied into it."""
    on = Fusion(engine)
    blocks = []
    for block in graph.blocks:
        nodes = _cached(block.nodes, on)
        blocks.append(replace(block, nodes=tuple(on.kept(node) for node in nodes)))
    return replace(graph, blocks=tuple(blocks))


def _live(graph: Graph) -> set[int]:
    """Ids of results that depend on a weight, or on numbers that are given; empty where none does."""
    made = {id(t.storage) for block in graph.blocks for node in block.nodes for t in node.outputs}
    live: set[int] = set()
    for block in graph.blocks:
        for node in block.nodes:
            reads = any(
                t.role == WEIGHT or id(t.storage) in live or (t.role == ACTIVATION and id(t.storage) not in made)
                for t in node.inputs
            )
            if reads or (block.carried and any(t.storage is block.carried[0].storage for t in node.inputs)):
                live |= {id(t) for t in node.outputs} | {id(t.storage) for t in node.outputs}
    return live


def _is_join(node: Node) -> bool:
    return isinstance(node.op, Elementwise) and node.op.fn == "copy" and node.name.split()[-1] == "cat"


def _cached(nodes: Sequence[Node], on: Fusion) -> list[Node]:
    """Without the kernels that join a cache and new keys or values: the attention call writes these in their place, or
    a copy of them does."""
    made = {id(t.storage) for node in nodes for t in node.outputs}
    reads: dict[int, list[Node]] = {}
    for node in nodes:
        for t in node.inputs:
            reads.setdefault(id(t.storage), []).append(node)
    kept: list[Node] = []
    for node in nodes:
        new = [t for t in node.inputs if id(t.storage) in made]
        after = reads.get(id(node.outputs[0].storage), ()) if node.outputs else ()
        if not (_is_join(node) and len(new) == 1 and after and len(node.inputs) <= 2):
            kept.append(node)
            continue
        call = next((r.op for r in after if isinstance(r.op, Attention)), None)
        if call is None and not any(isinstance(r.op, Gemm) and r.op.kind == "bmm" for r in after):
            kept.append(node)
            continue
        step = DECODE if call is not None and call.q_len == 1 and call.kv_len > 1 else PREFILL
        if call is not None and on.engine.serves and step in on.engine.appends:
            on.stands_for[id(node.outputs[0])] = new[0]
            continue
        copy = Elementwise(node.op.dtype, "copy", new[0].elements, in_dtype=new[0].dtype)
        kept.append(replace(node, op=copy, inputs=(new[0],)))
    return kept


def _products(nodes: Sequence[Node], on: Fusion) -> list[Node]:
    """With one product in place of those of one module that read the same tensor in the same format."""
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in nodes:
        op = node.op
        if (
            isinstance(op, Gemm)
            and op.kind == "linear"
            and op.layout == "tn"
            and node.part not in ("", "head", "router")
        ):
            weight = node.inputs[1]
            if weight.role == WEIGHT and weight.shape == (op.n, op.k):
                key = (node.scope.rpartition(".")[0], op.dtype, op.quant, op.bias, id(on.of(node.inputs[0])))
                groups.setdefault(key, []).append(node)
    joined = {id(node): group for group in groups.values() if len(group) > 1 for node in group}
    kept: list[Node] = []
    for node in nodes:
        alike = joined.get(id(node))
        if alike is None:
            kept.append(node)
        elif alike[0] is node:
            scope = ".".join((node.scope.rpartition(".")[0], "+".join(n.scope.rpartition(".")[2] for n in alike)))
            kept.append(replace(one_product([replace(n, scope=scope.strip(".")) for n in alike], on), host_calls=1))
    return kept


def _rotated(nodes: Sequence[Node], on: Fusion) -> list[Node]:
    """With one kernel that rotates queries and keys, or with none where the attention call does."""
    kept = list(nodes)
    for call in nodes:
        if not isinstance(call.op, Attention) or len(call.inputs) < 2:
            continue
        scope = call.scope
        needed = {id(on.of(t).storage) for t in call.inputs[:2]}
        chain: list[Node] = []
        for node in reversed(kept[: kept.index(call)]):
            if node.scope != scope or not isinstance(node.op, Elementwise):
                continue
            if any(id(t.storage) in needed for t in node.outputs) and not any(t.role == WEIGHT for t in node.inputs):
                chain.insert(0, node)
                needed |= {id(on.of(t).storage) for t in node.inputs}
        fused = _rotary(chain, call, kept, on)
        if fused is not None:
            gone = {id(node) for node in chain}
            last = max(kept.index(node) for node in chain)
            kept = [
                new for i, node in enumerate(kept)
                for new in ([*fused] if i == last else [] if id(node) in gone else [node])
            ]  # fmt: skip
    return kept


def _rotary(chain: list[Node], call: Node, nodes: list[Node], on: Fusion) -> list[Node] | None:
    """What takes the place of a ``chain`` before an attention ``call``; None where it rotates nothing."""
    made = {id(t.storage) for node in chain for t in node.outputs}
    turning = [node for node in chain if node.op.fn == "mul" and any(_is_table(t, node) for t in node.inputs)]  # type: ignore[attr-defined]
    if len(turning) < 2:
        return None
    inside = {id(node) for node in chain}
    outside = [node for node in nodes if id(node) not in inside]
    read = {id(on.of(t).storage) for node in outside for t in node.inputs}
    outputs = tuple(t for node in chain for t in node.outputs if id(t.storage) in read)
    largest = max(t.elements for t in outputs) if outputs else 0
    sources = {
        id(t.storage): t.storage for node in chain for t in map(on.of, node.inputs)
        if id(t.storage) not in made and t.elements > 0 and not _is_table(t, node)
    }  # fmt: skip
    op = call.op
    assert isinstance(op, Attention)
    if not outputs or not sources or largest < op.batch * op.q_len:
        return None
    if on.engine.rotates and on.engine.serves and len(sources) == len(outputs):
        on.stands_for.update({id(t): x for t, x in zip(outputs, sources.values(), strict=True)})
        return []
    tokens, width = op.batch * op.q_len, op.head_dim
    elements = sum(t.elements for t in outputs)
    heads = max(1, elements // (tokens * width))
    turned = sum(node.op.elements for node in chain if node.op.fn in ("add", "sub"))  # type: ignore[attr-defined]
    turned = min(turned or elements, elements)
    fused = Rotary(chain[0].op.dtype, tokens, heads, max(1, turned // (tokens * heads)))
    name = f"{call.scope} rotary".strip()
    return [Node(fused, name, tuple(sources.values()), outputs, scope=call.scope)]


def _is_table(t: Tensor, node: Node) -> bool:
    """Whether an operand is smaller than what a kernel makes of it, as one that all heads share is."""
    made = max((out.elements for out in node.outputs), default=0)
    return t.elements <= _TABLE * made and math.prod(t.shape[:1]) <= made and not _halves(t, node)


def _halves(t: Tensor, node: Node) -> bool:
    """A part of a tensor, as one half of a head's width is."""
    return t.base is not None


def _sum_first(block: Block, on: Fusion) -> Block:
    """A block that repeats with the sum that ends a run done where the next run begins, in the kernel of its norm."""
    if block.carried is None or block.repeat < 2:
        return block
    last, (start, end) = block.nodes[-1], block.carried
    if not (isinstance(last.op, Elementwise) and last.op.fn == "add" and len(last.inputs) == 2):
        return block
    if last.outputs[0] is not end.storage or last.op.elements != start.storage.elements:
        return block
    first = {id(t.storage) for node in block.nodes if isinstance(node.op, Gemm) for t in node.outputs}
    left, right = last.inputs if id(last.inputs[1].storage) in first else last.inputs[::-1]
    if id(left.storage) in first or left.storage is start.storage:
        return block
    source = start.storage
    branch = Tensor("branch", source.axes, source.shape, source.dtype)
    total = Tensor("sum", source.axes, source.shape, source.dtype)
    ahead = replace(last, inputs=(source, branch), outputs=(total,))
    on.stands_for[id(source)] = total
    nodes = (ahead, *(on.kept(node) for node in block.nodes[:-1]))
    del on.stands_for[id(source)]
    on.stands_for[id(last.outputs[0])] = left.storage
    return replace(block, nodes=nodes, carried=(source, left.storage), branch=(branch, right))
