"""Recorded nodes become blocks: what repeats is one, what differs stays apart, and nothing of the work is lost."""

from __future__ import annotations

from predictor.graph import Node, Tensor
from predictor.graph.fold import folded
from predictor.graph.tensor import GRADIENT, WEIGHT
from predictor.ops import Elementwise, Gemm
from predictor.ops.base import BACKWARD, FORWARD


def tensor(name: str, role: str = "activation") -> Tensor:
    return Tensor(name, ("d0", "d1"), (4, 8), "bf16", role)


def layer(number: int, x: Tensor, beside: Tensor) -> tuple[list[Node], Tensor]:
    """A product and a sum with something from outside the layers."""
    scope, weight, mid, out = f"net.layers.{number}", tensor("w", WEIGHT), tensor("mid"), tensor("out")
    return [
        Node(Gemm("bf16", 4, 8, 8), f"{scope}.fc mm", (x, weight), (mid,), scope=f"{scope}.fc"),
        Node(Elementwise("bf16", "add", 32), f"{scope} add", (mid, beside), (out,), scope=scope),
    ], out


def stack(count: int, besides: list[Tensor] | None = None) -> list[Node]:
    mask, x = tensor("mask"), tensor("x")
    nodes = [Node(Elementwise("bf16", "copy", 32), "net.embed copy", (tensor("in"),), (x,), scope="net.embed")]
    for number in range(count):
        made, x = layer(number, x, besides[number] if besides else mask)
        nodes += made
    return [*nodes, Node(Elementwise("bf16", "relu", 32), "net.head relu", (x,), (tensor("y"),), scope="net.head")]


def backward(nodes: list[Node]) -> list[Node]:
    """Gradients of a stack, last layer first."""
    gradient, found = tensor("dy", GRADIENT), []
    for node in reversed(nodes):
        made = tensor("d", GRADIENT)
        found.append(Node(node.op, node.name, (gradient, *node.inputs), (made,), 1, BACKWARD, scope=node.scope))
        gradient = made
    return found


def test_layers_that_are_alike_become_one_block() -> None:
    graph = folded(stack(5))
    assert [(block.name, block.repeat) for block in graph.blocks] == [("net", 1), ("net.layers", 5), ("net", 1)]
    block = graph.blocks[1]
    assert block.carried is not None
    assert block.carried[0] is graph.blocks[0].nodes[0].outputs[0] and block.carried[1] is block.nodes[-1].outputs[0]
    assert graph.blocks[2].nodes[0].inputs[0] is block.carried[1]
    assert [node.scope for node in block.nodes] == ["fc", ""]


def test_layers_that_read_different_tensors_stay_apart() -> None:
    a, b, c = (tensor(name) for name in "abc")
    graph = folded(stack(5, [a, b, c, b, a]))
    assert all(block.repeat == 1 for block in graph.blocks)


def test_layers_that_read_a_tensor_each_fold() -> None:
    """As each its cache: nothing else reads it."""
    graph = folded(stack(4, [tensor(f"m{i}") for i in range(4)]))
    assert [block.repeat for block in graph.blocks] == [1, 4, 1]


def test_a_pattern_of_two_layers_folds() -> None:
    """Layers that look at two masks in turn."""
    masks = [tensor("near"), tensor("far")]
    graph = folded(stack(8, [masks[i % 2] for i in range(8)]))
    assert [block.repeat for block in graph.blocks] == [1, 4, 1]
    assert len(graph.blocks[1].nodes) == 4


def test_backward_passes_fold_with_their_layers() -> None:
    ahead = stack(6)
    nodes = [*ahead, *backward(ahead)]
    graph = folded(nodes)
    assert [(b.repeat, b.backward_of) for b in graph.blocks] == [
        (1, None),
        (6, None),
        (1, None),
        (1, 2),
        (6, 1),
        (1, 0),
    ]
    assert graph.flops() == sum(node.op.flops() for node in nodes)
    back = graph.blocks[4]
    assert back.carried is not None and back.carried[0] is graph.blocks[3].nodes[-1].outputs[0]
    assert graph.blocks[5].nodes[0].inputs[0] is back.carried[1]
    # what it saved of its own input is what the forward block reads from the run before
    forward = graph.blocks[1]
    assert forward.carried is not None and forward.carried[0] in back.nodes[1].inputs


def test_unrolled_it_costs_the_same() -> None:
    ahead = stack(6)
    graph = folded([*ahead, *backward(ahead)])
    assert graph.unrolled().flops() == graph.flops()
    assert sum(n for _, n in graph.nodes()) == len(ahead) * 2
    assert {node.phase for node, _ in graph.nodes()} == {FORWARD, BACKWARD}
