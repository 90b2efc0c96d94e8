"""Activations that are made again in the backward pass in place of being saved.

"full": every layer's forward pass runs again before its backward pass, so that a layer saves no more than its input
(Chen et al., arXiv:1604.06174). "selective": of attention that is no fused kernel, the scores and what is made of them
(mask, softmax, dropout) run again: they grow with the square of the sequence and cost little (Korthikanti et al.,
arXiv:2205.05198, section 5); Megatron Core runs a fused kernel again, too (`attend_again`). What runs again counts as
backward; saved is what the joint graph's edges then say.
"""

from __future__ import annotations

from predictor.errors import unknown_name
from predictor.files.records import replace
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import ACTIVATION, GRADIENT, Tensor
from predictor.ops.attention import Attention
from predictor.ops.base import BACKWARD

NONE, SELECTIVE, FULL = "none", "selective", "full"
KINDS = (NONE, SELECTIVE, FULL)


def recompute(graph: Graph, kind: str) -> Graph:
    """The joint ``graph`` with what ``kind`` says run again; itself where there is nothing to do.

    Raises UnknownNameError for a kind that is not one of `KINDS`.
    """
    if kind not in KINDS:
        raise unknown_name("recompute", kind, KINDS)
    if kind == NONE:
        return graph
    blocks = list(graph.blocks)
    changed = False
    for b, block in enumerate(blocks):
        forward = block if block.backward_of is None else blocks[block.backward_of]
        if forward is block or not is_layer(forward):
            continue
        nodes = [node for node in forward.nodes if kind == FULL or _is_of_scores(node)]
        if nodes:
            changed = True
            blocks[b] = Block(
                block.name, _with_again(block.nodes, nodes), block.repeat, block.carried, block.layers,
                block.backward_of, block.running,
            )  # fmt: skip
    return replace(graph, blocks=tuple(blocks)) if changed else graph


def attend_again(graph: Graph) -> Graph:
    """A joint ``graph`` whose fused attention runs again ahead of its backward pass, which reads what that makes: a
    checkpoint around core attention. What follows attention saves its result all the same. Source:
    megatron/core/transformer/attention.py at d98e8a64, `checkpoint_core_attention`."""
    blocks = list(graph.blocks)
    for b, block in enumerate(graph.blocks):
        if block.backward_of is None or not is_layer(blocks[block.backward_of]):
            continue
        ahead = {(node.scope, node.name): node for node in blocks[block.backward_of].nodes if _attends(node)}
        nodes: list[Node] = []
        copies: dict[int, Tensor] = {}
        for node in block.nodes:
            forward = ahead.pop((node.scope, node.name), None) if _attends(node) else None
            if forward is not None:
                copies = {id(t): t.copied() for t in forward.outputs}
                made = tuple(copies[id(t)] for t in forward.outputs)
                nodes.append(replace(forward, outputs=made, phase=BACKWARD))
            if _attends(node):
                node = replace(node, inputs=tuple(instead(copies, t) for t in node.inputs))
            nodes.append(node)
        blocks[b] = replace(block, nodes=tuple(nodes))
    return replace(graph, blocks=tuple(blocks))


def _attends(node: Node) -> bool:
    return isinstance(node.op, Attention)


def is_layer(block: Block) -> bool:
    """A block that makes of a tensor another one with the same axes, by products."""
    if block.carried is None:
        return False
    first, last = block.carried
    same = first.axes == last.axes and first.shape == last.shape
    return same and any(node.op.unit == "matrix" for node in block.nodes)


def _is_of_scores(node: Node) -> bool:
    if not node.outputs:  # of a recorded graph: a kernel that writes where something was
        return False
    made = node.outputs[0]
    return made.role == ACTIVATION and "sequence" in made.axes and "kv" in made.axes


def _with_again(backward: tuple[Node, ...], forward: list[Node]) -> tuple[Node, ...]:
    """The backward nodes with the ``forward`` ones before the first that reads what those make, all of them reading
    the tensors that were made again."""
    copies: dict[int, Tensor] = {}
    first: list[Node] = []
    made: set[int] = set()
    for node in forward:
        inputs = tuple(instead(copies, t) for t in node.inputs)
        for t in node.outputs:
            copies[id(t)] = t.copied()
            made.add(id(t))
        outputs = tuple(copies[id(t)] for t in node.outputs)
        first.append(
            Node(
                node.op, node.name, inputs, outputs, node.count, BACKWARD, node.host_calls, node.share, node.part,
                node.scope,
            )
        )  # fmt: skip
    at = next((i for i, node in enumerate(backward) if any(id(t.storage) in made for t in node.inputs)), len(backward))
    rest = [
        Node(
            node.op, node.name, tuple(instead(copies, t) for t in node.inputs), node.outputs, node.count, node.phase,
            node.host_calls, node.share, node.part, node.scope,
        )
        for node in backward[at:]
    ]  # fmt: skip
    return (*backward[:at], *first, *rest)


def runs_again(node: Node) -> bool:
    """Whether a node of a backward block is one of the forward pass that runs again."""
    return GRADIENT not in [t.role for t in node.outputs]


def instead(copies: dict[int, Tensor], tensor: Tensor) -> Tensor:
    """What stands for a tensor that was made again, or for a view of one; else the tensor itself."""
    copy = copies.get(id(tensor))
    if copy is None:
        copy = tensor
        if tensor.base is not None:
            base = instead(copies, tensor.base)
            copy = tensor if base is tensor.base else tensor.copied(base)
        copies[id(tensor)] = copy
    return copy
