"""What several calls of aten are one operator of the house for: the log-softmax of logits and the loss behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from predictor.graph.graph import Node
from predictor.ops.base import BACKWARD
from predictor.ops.elementwise import Elementwise
from predictor.ops.embedding import CrossEntropy
from predictor.ops.norm import Softmax


def joined_losses(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with one cross-entropy in place of a log-softmax and the loss that alone reads it, and the same
    backward."""
    readers: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        for t in node.inputs:
            readers.setdefault(id(t.storage), []).append(i)
    found = list(nodes)
    gone: set[int] = set()
    for i, node in enumerate(nodes):
        if not (isinstance(node.op, Softmax) and node.name.endswith("_log_softmax")):
            continue
        after = [j for j in readers.get(id(node.outputs[0]), ()) if j > i and nodes[j].phase != BACKWARD]
        if len(after) != 1 or not nodes[after[0]].name.split()[-1].startswith("nll_loss"):
            continue
        loss = nodes[after[0]]
        op = CrossEntropy(node.op.dtype, node.op.rows, node.op.cols)
        found[i] = replace(
            node, op=op, name=_named(node.name), outputs=(*loss.outputs, *node.outputs),
            inputs=(*node.inputs, *(t for t in loss.inputs if t.storage is not node.outputs[0])),
            host_calls=node.host_calls + loss.host_calls,
        )  # fmt: skip
        gone.add(after[0])
    for i, node in enumerate(nodes):
        if not (isinstance(node.op, Softmax) and node.name.endswith("_log_softmax_backward_data")):
            continue
        start = [j for j in range(max(0, i - 4), i) if nodes[j].name.split()[-1].startswith("nll_loss")]
        last = start[-1] if start else -1
        if last < 0 or not any(t is o for t in node.inputs for o in nodes[last].outputs):
            continue
        inputs = tuple(dict.fromkeys(t for j in start for t in nodes[j].inputs))
        made = {id(t) for j in start for t in nodes[j].outputs}
        found[i] = replace(
            node, op=CrossEntropy(node.op.dtype, node.op.rows, node.op.cols, BACKWARD), name=_named(node.name),
            inputs=(*(t for t in inputs if id(t) not in made), *(t for t in node.inputs if id(t) not in made)),
        )  # fmt: skip
        gone.update(j for j in start if isinstance(nodes[j].op, Elementwise))
    return [node for i, node in enumerate(found) if i not in gone]


def _named(name: str) -> str:
    return f"{name.rpartition(' ')[0]} cross_entropy".strip()
