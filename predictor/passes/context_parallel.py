"""Context parallelism: every rank has a part of each sequence, and attention sees all of it.

ring        keys and values go round (Liu et al., arXiv:2310.01889): a rank attends to its own part while the next one's
            arrives, and joins what each part gave by its log-sum-exp. In the backward pass keys and values go round
            once more, with their gradients. Causal sequences are dealt out from both ends (zigzag, as Transformer
            Engine and Llama 3 do), so that every rank has as much to do: each step but the first is half of a full one.
all_to_all  heads are exchanged for positions before attention, and back after it (Ulysses, arXiv:2309.14509); attention
            that is not fused is built so (`predictor.models.built.attention`), and `linked` here

A ring of unfused attention is refused: it would have to give a log-sum-exp beside its result, and no framework has it.
Megatron Core asserts context_parallel_size 1 in its own attention (core/transformer/dot_product_attention.py),
Transformer Engine's unfused backend and PyTorch's context_parallel leave it out, too.

Everything else works on its tokens alone; gradients of weights are summed over these ranks with the replicas'. A graph
is built for a rank's part of the sequences; this pass gives its attention the rest.
"""

from __future__ import annotations

from predictor.errors import RequestError, UnsupportedError
from predictor.files.records import replace
from predictor.graph.graph import Graph, Node
from predictor.graph.tensor import Tensor
from predictor.models.base import Stack
from predictor.ops.attention import Attention
from predictor.ops.collective import Collective, over
from predictor.ops.elementwise import Elementwise
from predictor.passes.mesh import Mesh


def check_context(config: Stack, seq_len: int, cp: int, tp: int, comm: str, attention: str) -> None:
    """RequestError, one line, where ``cp`` ranks cannot share sequences (or heads) evenly; UnsupportedError for a
    ring of ``attention`` that is no fused kernel."""
    if comm == "ring" and attention == "math":
        raise UnsupportedError(
            f"--cp {cp} --cp-comm ring: no framework runs --attention math in a ring; expected flash, or --cp-comm"
            " all_to_all"
        )
    parts = 2 * cp if config.causal and comm == "ring" else cp
    if seq_len % parts:
        fit = max(parts, round(seq_len / parts) * parts)
        raise RequestError(f"--cp {cp}: {parts} parts do not divide --seq-len {seq_len}; nearest valid: {fit}")
    if comm != "ring" and (config.heads % (tp * cp) or config.kv_heads % (tp * cp)):
        raise RequestError(
            f"--cp {cp} --cp-comm {comm}: with --tp {tp} does not divide {config.heads} heads and {config.kv_heads}"
            f" kv_heads; expected --cp-comm ring{' with --attention flash' if attention == 'math' else ''}"
        )


def context(graph: Graph, mesh: Mesh, comm: str) -> Graph:
    """``graph`` of a rank's part of the sequences, with fused attention over the parts of all ranks along "cp"."""
    if mesh.degree("cp") == 1:
        return graph
    attends = _ring if comm == "ring" else _exchanged
    blocks = []
    for block in graph.blocks:
        changed = [new for node in block.nodes for new in (
            attends(node, node.op, mesh) if isinstance(node.op, Attention) else (node,)
        )]  # fmt: skip
        blocks.append(block if len(changed) == len(block.nodes) else replace(block, nodes=tuple(changed)))
    return replace(graph, blocks=tuple(blocks))


def linked(graph: Graph, mesh: Mesh) -> Graph:
    """A builder's graph whose exchanges of heads for positions take the links along "cp"; itself where it has none."""
    blocks = []
    for block in graph.blocks:
        nodes = tuple(_over_cp(node, node.op, mesh) for node in block.nodes)
        blocks.append(replace(block, nodes=nodes))
    return replace(graph, blocks=tuple(blocks))


def _over_cp(node: Node, op: object, mesh: Mesh) -> Node:
    if not isinstance(op, Collective) or op.system:
        return node
    return replace(node, op=mesh.collective(op.kind, "cp", op.dtype, op.size))


def _ring(node: Node, op: Attention, mesh: Mesh) -> list[Node]:
    """A rank's own part, then those of the others, each of which arrives while the one before is worked on."""
    cp = mesh.degree("cp")
    near = mesh.stride("cp") * cp <= mesh.system.gpus_per_node
    part = replace(op, kv_len=op.kv_len // 2, causal=False) if op.causal else op
    sent = _kv_bytes(op) * (2 if op.is_backward else 1)
    send = over(mesh.system, "send_recv", op.dtype, sent, 2, 2 if near else 1)
    elements = op.batch * op.heads * op.q_len * op.value_dim
    joins = Elementwise(op.dtype, "fused", elements, 2, chain_flops=4.0)
    made: list[Node] = []
    arrived = node.inputs[-1:]
    for step in range(cp):
        onward: tuple[Tensor, ...] = ()
        if step < cp - 1:
            onward = (arrived[-1].copied(arrived[-1].base),)
            made.append(_like(node, send, f"{node.name} send_recv", arrived[-1:], onward))
        outputs = node.outputs if step == 0 else tuple(t.copied(t.base) for t in node.outputs)
        inputs = node.inputs if step == 0 else (*node.inputs, arrived[-1])
        made.append(_like(node, op if step == 0 else part, node.name, inputs, outputs))
        if step:
            made.append(_like(node, joins, f"{node.name} join", outputs[:1], node.outputs[:1]))
        arrived = onward
    return made


def _exchanged(node: Node, op: Attention, mesh: Mesh) -> list[Node]:
    """Whole sequences of a part of the heads, between two exchanges."""
    cp = mesh.degree("cp")
    whole = replace(op, heads=op.heads // cp, kv_heads=op.kv_heads // cp, q_len=op.q_len * cp, kv_len=op.kv_len * cp)
    rows = op.batch * op.q_len
    queries = rows * op.heads * op.head_dim * op.itemsize
    into = queries + _kv_bytes(op) + (queries if op.is_backward else 0)
    out = queries + (_kv_bytes(op) if op.is_backward else 0)
    ahead = mesh.collective("all_to_all", "cp", op.dtype, round(into))
    behind = mesh.collective("all_to_all", "cp", op.dtype, round(out))
    arrived = tuple(t.copied(t.base) for t in node.inputs[:1])
    left = tuple(t.copied(t.base) for t in node.outputs[:1])
    name = f"{node.name} all_to_all"
    return [
        _like(node, ahead, name, node.inputs[:1], arrived),
        _like(node, whole, node.name, (*arrived, *node.inputs[1:]), (*left, *node.outputs[1:])),
        _like(node, behind, name, left, node.outputs[:1]),
    ]


def _kv_bytes(op: Attention) -> int:
    """Bytes of the keys and values of a rank's part."""
    return round(op.batch * op.kv_heads * op.kv_len * (op.head_dim + op.value_dim) * op.itemsize)


def _like(
    node: Node, op: Attention | Collective | Elementwise, name: str, inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
) -> Node:  # fmt: skip
    calls = 1 if op is not node.op else node.host_calls
    return Node(op, name, inputs, outputs, 1, node.phase, calls, 1.0, node.part, node.scope)
