"""Attention that a model writes out, as TorchInductor finds it: softmax(q kT * scale [+ mask]) v becomes one kernel.

Source: the patterns 1, 2 and 5 of torch/_inductor/fx_passes/fuse_attention.py (PyTorch 2.13), which are tried before
anything is lowered. Those with dropout, casts, and of a backward pass are not looked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from predictor.graph.graph import Block, Node
from predictor.graph.tensor import Tensor
from predictor.ops.attention import Attention
from predictor.ops.base import FORWARD
from predictor.ops.elementwise import Elementwise
from predictor.ops.gemm import Gemm
from predictor.ops.norm import Softmax

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
    found = [one for i, node in enumerate(block.nodes) if (one := _around(block, i, node, made, readers))]
    if not found:
        return block
    gone = {place for one in found for place in (one.scores, *one.between)}
    new = {one.values: _kernel(block, one) for one in found}
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
    found = readers.get(id(node.outputs[0].storage), set())
    return next(iter(found))[1] if len(node.outputs) == len(found) == 1 else None


def _kernel(block: Block, found: _Found) -> Node:
    first, last = block.nodes[found.scores], block.nodes[found.values]
    scores, values = first.op, last.op
    assert isinstance(scores, Gemm) and isinstance(values, Gemm)
    op = Attention(
        scores.dtype, 1, scores.batch, scores.batch, scores.m, scores.n, scores.k,
        0 if values.n == scores.k else values.n, False,
    )  # fmt: skip
    own = {id(t.storage) for place in (found.scores, *found.between) for t in block.nodes[place].outputs}
    read: list[Tensor] = [
        t for place in (found.scores, *found.between, found.values) for t in block.nodes[place].inputs
        if id(t.storage) not in own
    ]  # fmt: skip
    return replace(last, op=op, inputs=tuple(read))
