"""The backward pass from the edges: sums where a tensor feeds several nodes, products of broadcast factors, views."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from backward import backward_blocks
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.engines import EAGER, Engine
from predictor.engines.pytorch.engine import COMPILE
from predictor.graph import Block, Graph, Node, Tensor
from predictor.graph.tensor import INDEX, STATE, WEIGHT
from predictor.models.built import Step, build, load_config
from predictor.ops import CrossEntropy, Elementwise, Reduce
from predictor.ops.base import Op
from predictor.passes.autograd import joint
from predictor.passes.fuse import fuse

SIZE = 8


def tensor(name: str, role: str = "activation", axes: tuple[str, ...] = ("tokens",), size: int = SIZE) -> Tensor:
    return Tensor(name, axes, (size,) if len(axes) == 1 else (2, size // 2), "fp32", role)


def ops_of(graph: Graph) -> Counter[Op]:
    return Counter(n.op for b in backward_blocks(graph) for n in b.nodes for _ in range(n.count * b.repeat))


def sums_of(graph: Graph, size: int = SIZE) -> int:
    return ops_of(graph)[Elementwise("fp32", "add", size)]


def arrivals(nodes: list[Node]) -> int:
    """Sums by brute force: gradients go backwards, each into what its tensor has of them already."""
    live: set[int] = set()
    for node in nodes:
        if any(t.role == WEIGHT or id(t.storage) in live for t in node.inputs):
            live |= {id(t) for t in node.outputs}
    got: Counter[int] = Counter()
    sums = 0
    for node in reversed(nodes):
        if id(node.outputs[0]) not in live:
            continue
        for t in node.inputs:
            if id(t.storage) in live:
                sums += got[id(t.storage)] > 0
                got[id(t.storage)] += 1
    return sums


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), min_size=1, max_size=12), st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_a_tensor_that_n_nodes_read_has_its_gradients_summed_n_minus_1_times(reads: list[list[int]], at: int) -> None:
    made = [tensor("weight", WEIGHT), tensor("input")]
    nodes: list[Node] = []
    for i, sources in enumerate(reads):
        inputs = tuple(made[s % len(made)] for s in sources)
        out = tensor(f"t{i}")
        # A sum makes no kernel of its own in the backward pass.
        nodes.append(Node(Elementwise("fp32", "add", SIZE), f"node {i}", inputs, (out,)))
        made.append(out)
    assert sums_of(Graph((Block("block", tuple(nodes)),))) == arrivals(nodes)


@pytest.mark.parametrize(
    "model", ["gpt2", "tinyllama-1.1b", "gemma-2-2b", "bert-base", "qwen3-0.6b", "phi-3-mini", "opt-350m"]
)
@pytest.mark.parametrize("engine", [EAGER, COMPILE])
def test_autograd_commutes_with_unrolling(model: str, engine: Engine) -> None:
    config = load_config(model)
    forward = fuse(build(config, Step("train", 2, 16, act_dtype="bf16", training=True)), engine)
    assert ops_of(forward) == ops_of(forward.unrolled())


def test_an_unrolled_layer_reads_what_the_layer_before_made() -> None:
    blocks = build(load_config("gpt2"), Step("train", 1, 16, training=True)).unrolled().blocks
    layers = [b for b in blocks if b.name.startswith("layer.")]
    for before, after in itertools.pairwise(layers):
        made = {id(t) for n in before.nodes for t in n.outputs}
        assert {id(t.storage) for n in after.nodes for t in n.inputs if t.role == "activation"} & made
        assert not made & {id(t) for n in after.nodes for t in n.outputs}


def test_what_repetitions_share_has_a_sum_in_each() -> None:
    """T5 adds one bias in every layer of a stack."""
    config = load_config("t5-small")
    step = Step("train", 2, 16, training=True)
    scores = 2 * config.heads * 16 * 16
    assert sums_of(build(config, step), scores) == config.layers + config.encoder_layers


@pytest.mark.parametrize(("model", "sums"), [("gpt2", 1), ("llama-3.1-8b", 0), ("t5-small", 2), ("flan-t5-small", 1)])
def test_gradients_of_a_tied_embedding_are_summed(model: str, sums: int) -> None:
    """Where each is added to one that is there already (micro-batches), nothing is left to sum."""
    config = load_config(model)
    forward = build(config, Step("train", 2, 16, training=True))
    table = config.vocab * config.hidden
    assert sums_of(forward, table) == sums
    again = [n.op.fn for b in joint(forward, True).blocks for n in b.nodes if isinstance(n.op, Elementwise)
             and n.op.elements == table]  # fmt: skip
    assert "add" not in again


@pytest.mark.parametrize(("model", "dtype"), [("gpt2", "fp32"), ("t5-small", "bf16"), ("bert-base", "bf16")])
def test_losses_are_in_the_dtype_of_their_classes(model: str, dtype: str) -> None:
    forward = build(load_config(model), Step("train", 2, 16, act_dtype="bf16", training=True))
    losses = [n.op for b in forward.blocks for n in b.nodes if isinstance(n.op, CrossEntropy)]
    assert [op.dtype for op in losses] == [dtype]


@pytest.mark.parametrize(("axes", "size", "reduced"), [
    (("hidden",), 4, Reduce("fp32", 2, 4, 0)), (("tokens",), 2, Reduce("fp32", 2, 4, 1)),
])  # fmt: skip
def test_a_broadcast_factor_gets_the_product_summed(axes: tuple[str, ...], size: int, reduced: Reduce) -> None:
    x, out = tensor("x", WEIGHT, ("tokens", "hidden")), tensor("y", axes=("tokens", "hidden"))
    product, by_factor = Elementwise("fp32", "mul", SIZE), Elementwise("fp32", "mul_scalar", SIZE, 1, 4.0 * size)

    def backward(role: str) -> list[Op]:
        op = Elementwise("fp32", "mul", SIZE, inputs=1, extra_bytes=4.0 * size)
        node = Node(op, "scale", (x, tensor("factor", role, axes, size)), (out,))
        return [n.op for n in backward_blocks(Graph((Block("block", (node,)),)))[0].nodes]

    assert backward(WEIGHT) == [by_factor, product, reduced]
    assert backward(STATE) == [by_factor]  # a table learns nothing


def test_slices_that_make_up_a_tensor_are_joined_not_summed() -> None:
    weight, whole = tensor("weight", WEIGHT), tensor("whole")
    join = Elementwise("fp32", "copy", SIZE)
    made = Node(Elementwise("fp32", "relu", SIZE), "made", (weight,), (whole,))

    def backward(part: bool) -> list[str]:
        base = whole.view(gradient=(join,))
        halves = [base.view(("tokens",), (SIZE // 2,), part=part) for _ in range(2)]
        readers = [Node(Elementwise("fp32", "add", 4), f"reader {i}", (t,), (tensor(f"r{i}"),))
                   for i, t in enumerate(halves)]  # fmt: skip
        graph = Graph((Block("block", (made, *readers)),))
        return [n.op.fn for n in backward_blocks(graph)[0].nodes if isinstance(n.op, Elementwise)]

    assert backward(True) == ["copy", "relu_backward"]
    assert backward(False) == ["copy", "add", "relu_backward"]


def test_gradients_stop_at_indices_and_at_what_is_detached() -> None:
    weight = tensor("weight", WEIGHT)
    x = tensor("x")
    nodes = [
        Node(Elementwise("fp32", "relu", SIZE), "made", (weight,), (x,)),
        Node(Elementwise("fp32", "tanh", SIZE), "chosen", (x,), (tensor("index", INDEX),)),
        Node(Elementwise("fp32", "gelu", SIZE), "aside", (x.detached(),), (tensor("y"),)),
        Node(Elementwise("fp32", "silu", SIZE), "on", (x,), (tensor("z"),)),
    ]
    names = [n.name for n in backward_blocks(Graph((Block("block", tuple(nodes)),)))[0].nodes]
    assert names == ["on", "made"]


def test_a_graph_of_fused_kernels_sums_within_them() -> None:
    config = load_config("tinyllama-1.1b")
    forward = build(config, Step("train", 1, 16, training=True))
    assert sums_of(forward, 16 * config.hidden) > 0
    assert sums_of(Graph(forward.blocks, fused=True), 16 * config.hidden) == 0


@pytest.mark.parametrize("view", [True, False])
def test_copies_of_gradients_stand_where_the_view_says(view: bool) -> None:
    weight, x = tensor("weight", WEIGHT), tensor("x")
    copy = Elementwise("fp32", "copy", SIZE)
    read = x.view(gradient=(copy,), at="second" if view else "")
    nodes = (
        Node(Elementwise("fp32", "relu", SIZE), "first", (weight,), (x,)),
        Node(Elementwise("fp32", "gelu", SIZE), "reader", (read,), (tensor("y"),)),
        Node(Elementwise("fp32", "silu", SIZE), "second", (read,), (tensor("z"),)),
    )
    names = {n.op: n.name for n in backward_blocks(Graph((Block("block", nodes),)))[0].nodes}
    assert names[copy] == ("second" if view else "reader")
