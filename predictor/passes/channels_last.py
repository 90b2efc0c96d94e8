"""Convolutions of a compiled graph with the channels of a pixel side by side, where the compiler lays them so.

TorchInductor decides once for a graph (`decide_layout_opt` of torch/_inductor/graph.py, PyTorch 2.13): tensors that
convolutions of two dimensions read are then made channels last by the loops that make them. What no loop makes is
copied: the graph's inputs, the weights of windows in every call, and results of a convolution that leave the graph.
Elsewhere a convolution takes the layout that it finds.
"""

from __future__ import annotations

from collections.abc import Sequence

from predictor.files.records import replace
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.tensor import WEIGHT, Tensor
from predictor.ops.base import FORWARD
from predictor.ops.convolution import Convolution
from predictor.ops.elementwise import Elementwise

#: Time of a convolution with channels last over that without, which Inductor weighs FLOPs of an inference graph with;
#: nodes a convolution at most; channels that are few. Source: torch/_inductor/graph.py, decide_layout_opt.
_GROUPED, _FEW, _NARROWING, _OTHERS = 1.358, 0.783, 0.725, 0.823
_NODES, _FEW_CHANNELS = 300, 64
_PLANE = 4  # axes of a batch of planes with channels, by definition


def with_channels_last(graph: Graph) -> Graph:
    """``graph`` with convolutions and copies as Inductor has them; itself where it leaves layouts alone."""
    ahead = [
        (node, node.count * block.repeat)
        for block in graph.blocks if block.backward_of is None for node in block.nodes if node.phase == FORWARD
    ]  # fmt: skip
    forward = [(node.op, times) for node, times in ahead if isinstance(node.op, Convolution)]
    # A kernel here is one to ten nodes of Inductor's, whose graph has repeats written out.
    if sum(times for _, times in ahead) >= _NODES * sum(times for _, times in forward):
        return graph
    if not _pays(forward, any(block.backward_of is not None for block in graph.blocks)):
        return graph
    nodes = [node for block in graph.blocks for node in block.nodes]
    made = {id(t.storage) for node in nodes for t in node.outputs}
    read = {id(t.storage) for node in nodes for t in node.inputs}
    return replace(graph, blocks=tuple(_turned(block, made, read) for block in graph.blocks))


def _pays(ops: Sequence[tuple[Convolution, int]], trains: bool) -> bool:
    """Whether Inductor takes channels last for these convolutions of a forward pass, each as often as is said."""
    if trains:
        harmed = any(_is_grouped(op) or _narrows(op) for op, _ in ops)
        return not harmed and any(not _is_small(op) for op, _ in ops)
    flops = [op.flops() * times for op, times in ops]
    return sum(f * _rate(op) for f, (op, _) in zip(flops, ops, strict=True)) <= sum(flops)


def _rate(op: Convolution) -> float:
    if _is_grouped(op):
        return _GROUPED
    if _is_small(op):
        return _FEW
    return _NARROWING if _narrows(op) else _OTHERS


def _is_grouped(op: Convolution) -> bool:
    return op.groups > 1 and _weight_channels(op)[1] > 1


def _narrows(op: Convolution) -> bool:
    first, second = _weight_channels(op)
    return first * 2 <= second and op.kernel_h > 1


def _is_small(op: Convolution) -> bool:
    return max(_weight_channels(op)) <= _FEW_CHANNELS


def _weight_channels(op: Convolution) -> tuple[int, int]:
    """The first two sizes of the weight, as PyTorch stores it."""
    if op.transposed:
        return op.in_channels, op.out_channels // op.groups
    return op.out_channels, op.in_channels // op.groups


def _turned(block: Block, made: set[int], read: set[int]) -> Block:
    """A block with its convolutions of planes turned. ``made``, ``read``: ids of the storages that nodes of the graph
    make and read."""
    copies: dict[int, Tensor] = {}
    nodes: list[Node] = []
    for node in block.nodes:
        op = node.op
        if not isinstance(op, Convolution) or op.channels_last or len(node.inputs[0].shape) != _PLANE:
            nodes.append(node)
            continue
        inputs = []
        for t in node.inputs:
            copied = _is_window(t) if t.role == WEIGHT else len(t.shape) == _PLANE and id(t.storage) not in made
            if copied and id(t) not in copies:
                nodes.append(_copy(node, t))
                copies[id(t)] = nodes[-1].outputs[0]
            inputs.append(copies[id(t)] if copied else t)
        nodes.append(replace(node, op=replace(op, channels_last=True), inputs=tuple(inputs)))
        nodes += [_copy(node, t) for t in node.outputs if id(t.storage) not in read and op.phase == FORWARD]
    return replace(block, nodes=tuple(nodes))


def _is_window(weight: Tensor) -> bool:
    """Whether a weight lies otherwise with channels last: it has several taps and several channels."""
    return len(weight.shape) == _PLANE and weight.shape[1] > 1 and weight.shape[2] * weight.shape[3] > 1


def _copy(node: Node, t: Tensor) -> Node:
    out = Tensor(f"{t.name} channels last", t.axes, t.shape, t.dtype)
    op = Elementwise(t.dtype, "copy", t.elements)
    return Node(op, f"{node.name} layout".strip(), (t,), (out,), phase=node.phase, scope=node.scope)
