"""Context parallelism of a traced forward pass: the tokens of an image or a video over several GPUs.

Every rank runs the model on its part of the tokens. Which operators meet those of the others shows where the graph of a
rank's part (`part`) is held against that of all of them (`whole`): an attention that has more keys there sees the parts
of all ranks (one that has as many reads a text, which all have), a product that sums more there leaves partial sums,
and a convolution over a longer side needs its neighbours' rims.

Of cp ranks, groups of `ulysses` exchange heads for positions (arXiv:2309.14509), and the groups are a ring in which
keys and values go round (arXiv:2310.01889), as xDiT joins both (arXiv:2405.07719). Tokens that all ranks have beside
their own (a text in the same attention) keep their keys where they are; their queries go along.
"""

from __future__ import annotations

from collections.abc import Iterator

from predictor.errors import RequestError, UnsupportedError
from predictor.files.records import replace
from predictor.graph.graph import Graph, Node
from predictor.graph.tensor import Tensor
from predictor.ops.attention import Attention
from predictor.ops.base import Op
from predictor.ops.collective import over
from predictor.ops.convolution import Convolution
from predictor.ops.elementwise import Elementwise
from predictor.ops.gemm import Gemm
from predictor.ops.norm import Softmax
from predictor.passes.mesh import Mesh

#: Copies that an exchange needs: heads of a rank are brought side by side before it, positions after it. Source: xDiT
#: 0.4.5, xfuser/model_executor/layers/usp.py.
_COPIES = 2
#: Operators that may meet tokens of other ranks. What else differs between the graphs (positions that are made anew for
#: another size) is the model's own.
_MEETING = (Attention, Convolution, Gemm, Softmax)


def split_tokens(whole: Graph, part: Graph, mesh: Mesh, ulysses: int) -> Graph:
    """``part`` as a rank of ``mesh`` runs it beside the others along "cp", ``ulysses`` of which exchange heads.

    RequestError, one line, where the heads cannot be shared; UnsupportedError where the graphs are not alike, or where
    attention is no fused kernel.
    """
    cp = mesh.degree("cp")
    if cp == 1:
        return part
    blocks = []
    if [block.repeat for block in whole.blocks] != [block.repeat for block in part.blocks]:
        raise _unlike(cp)
    for a, b in zip(whole.blocks, part.blocks, strict=True):
        over_all = [node.op for node in a.nodes if isinstance(node.op, _MEETING)]
        if [type(op) for op in over_all] != [type(n.op) for n in b.nodes if isinstance(n.op, _MEETING)]:
            raise _unlike(cp)
        of = iter(over_all)
        nodes: list[Node] = []
        for node in b.nodes:
            nodes += _met(next(of), node, mesh, ulysses) if isinstance(node.op, _MEETING) else (node,)
        blocks.append(b if len(nodes) == len(b.nodes) else replace(b, nodes=tuple(nodes)))
    last = blocks[-1].nodes[-1]
    size = round(last.outputs[0].elements * cp * last.op.itemsize)
    gather = _beside(last, mesh.collective("all_gather", "cp", last.op.dtype, size), last.outputs[:1], "all_gather")
    blocks[-1] = replace(blocks[-1], nodes=(*blocks[-1].nodes, gather))
    return replace(part, blocks=tuple(blocks))


def _unlike(cp: int) -> UnsupportedError:
    return UnsupportedError(f"--cp {cp}: the model runs different operators on a part of its input; expected --cp 1")


def _met(whole: Op, node: Node, mesh: Mesh, ulysses: int) -> Iterator[Node]:
    """A node of a rank's part, and what it exchanges with the others, by what it is on all tokens."""
    op = node.op
    if isinstance(op, Attention) and isinstance(whole, Attention) and whole.kv_len != op.kv_len:
        yield from _attention(node, op, whole.kv_len, mesh, ulysses)
        return
    if isinstance(op, Softmax) and isinstance(whole, Softmax) and whole.cols != op.cols:
        raise UnsupportedError("--cp: does not support --attention math; expected flash")
    if isinstance(op, Convolution) and isinstance(whole, Convolution):
        rim = _rim(op, whole)
        if rim:
            yield _beside(node, _message(mesh, op.dtype, rim), node.inputs[:1], "rims")
    yield node
    if isinstance(op, Gemm) and isinstance(whole, Gemm) and whole.k != op.k:
        sums = mesh.collective("all_reduce", "cp", op.dtype, round(op.bytes_written()))
        yield _beside(node, sums, node.outputs[:1], "all_reduce")


def _attention(node: Node, op: Attention, all_keys: int, mesh: Mesh, ulysses: int) -> Iterator[Node]:
    """Attention of a rank's queries over the keys of all ranks."""
    cp = mesh.degree("cp")
    ring = cp // ulysses
    if op.heads % ulysses or op.kv_heads % ulysses:
        raise RequestError(f"--cp {cp}: {ulysses} ranks do not divide {op.heads} heads; expected --cp-comm ring")
    joint = max(0, (cp * op.kv_len - all_keys) // (cp - 1))  # keys that every rank has
    text = op.kv_len - joint
    queries = op.batch * op.heads * op.q_len * op.head_dim
    keys = op.batch * op.kv_heads * text * op.head_dim
    step = replace(op, heads=op.heads // ulysses, kv_heads=op.kv_heads // ulysses, q_len=op.q_len * ulysses,
                   kv_len=text * ulysses)  # fmt: skip
    if ulysses > 1:
        for elements in (queries, keys, keys * op.value_dim // op.head_dim):
            yield from _exchange(node, mesh, op, elements, ulysses, node.inputs[:1])
    yield _as(node, replace(step, kv_len=step.kv_len + joint), node.host_calls)
    sent = _message(mesh, op.dtype, round(step.batch * step.kv_heads * step.kv_len * (op.head_dim + op.value_dim)
                                          * op.itemsize))  # fmt: skip
    outputs = step.batch * step.heads * step.q_len * op.value_dim
    for _ in range(ring - 1):
        yield _beside(node, sent, node.inputs[-1:], "send_recv")
        yield _as(node, step, node.host_calls)
        yield _beside(node, Elementwise("fp32", "fused", outputs, 2, chain_flops=4.0), node.outputs[:1], "join")
    if ulysses > 1:
        yield from _exchange(node, mesh, op, queries * op.value_dim // op.head_dim, ulysses, node.outputs[:1])


def _exchange(
    node: Node, mesh: Mesh, op: Attention, elements: int, ranks: int, of: tuple[Tensor, ...]
) -> Iterator[Node]:
    """An all_to_all of ``ranks`` GPUs, between the copies that bring what goes to one of them side by side."""
    copy = Elementwise(op.dtype, "copy", elements)
    yield _beside(node, copy, of, "pack")
    local = max(1, min(ranks, mesh.system.gpus_per_node // mesh.stride("cp")))
    yield _beside(node, over(mesh.system, "all_to_all", op.dtype, round(elements * op.itemsize), ranks, local), of,
                  "all_to_all")  # fmt: skip
    for _ in range(_COPIES - 1):
        yield _beside(node, copy, of, "unpack")


def _message(mesh: Mesh, dtype: str, size: int) -> Op:
    """What a rank sends to its neighbour."""
    near = mesh.stride("cp") * mesh.degree("cp") <= mesh.system.gpus_per_node
    return over(mesh.system, "send_recv", dtype, size, 2, 2 if near else 1)


def _rim(op: Convolution, whole: Convolution) -> int:
    """Bytes of the rows beyond its part that a convolution reads, of one side; 0 where windows do not overlap."""
    rim_bytes = 0
    for side, kernel in (("in_d", op.kernel_d), ("in_h", op.kernel_h), ("in_w", op.kernel_w)):
        size = getattr(op, side)
        if getattr(whole, side) != size and kernel > op.stride:
            rows = op.batch * op.in_channels * op.in_d * op.in_h * op.in_w // size
            rim_bytes += round(rows * (kernel - op.stride) * op.itemsize)
    return rim_bytes


def _as(node: Node, op: Op, calls: int) -> Node:
    """The node with another operator."""
    return replace(node, op=op, host_calls=calls)


def _beside(node: Node, op: Op, of: tuple[Tensor, ...], word: str) -> Node:
    """A node that brings tensors of another one where they are needed."""
    made = tuple(t.copied(t.base) for t in of)
    return Node(op, f"{node.name} {word}", of, made, node.count, node.phase, 1, node.share, "", node.scope)
