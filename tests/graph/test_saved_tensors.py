"""What autograd keeps, by the edges of the joint graph: each storage once, as often as there are runs."""

from __future__ import annotations

import json

import pytest

from predictor.engines.pytorch.engine import COMPILE
from predictor.graph import Block, Graph, Node, Tensor
from predictor.graph.saved import saved_tensors
from predictor.graph.tensor import STATE, WEIGHT
from predictor.models.built import Step, build, config_from_dict, load_config
from predictor.models.built.load import CONFIGS
from predictor.ops import Dropout, Elementwise, Gemm
from predictor.passes.autograd import joint
from predictor.passes.fuse import fuse

MODELS = [
    "gpt2", "llama-3.2-1b", "bert-base", "opt-350m", "phi-3-mini", "gemma-2-2b", "bloom-560m", "mixtral-8x7b",
    "t5-small",
]  # fmt: skip


def saved_bytes(graph: Graph) -> float:
    return sum(entry.nbytes for entry in saved_tensors(graph))


def trained(model: str, fused: bool = False, attention: str = "math", batch: int = 2) -> Graph:
    step = Step("train", batch, 16, act_dtype="bf16", attention=attention, training=True)
    graph = build(load_config(model), step)
    return fuse(graph, COMPILE) if fused else graph


def test_a_layer_saves_what_korthikanti_says() -> None:
    """arXiv:2205.05198, equation 1: s b h (34 + 5 a s / h) bytes a layer in 16 bit, dropout everywhere.

    The paper leaves out the statistics of the norms: two of them, mean and deviation of every row in fp32.
    """
    data = {**json.loads((CONFIGS / "gpt2-xl.json").read_text()), "activation_function": "gelu"}
    config, more = (config_from_dict({**data, "n_layer": layers}, "gpt2-xl") for layers in (48, 49))
    b, s, h, a = 4, 1024, config.hidden, config.heads
    graph, deeper = (joint(build(model, Step("train", b, s, 0, "fp16", training=True))) for model in (config, more))
    assert saved_bytes(deeper) - saved_bytes(graph) == s * b * h * (34 + 5 * a * s / h) + 2 * 2 * 4 * s * b


@pytest.mark.parametrize("attention", ["math", "flash"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_repeats_save_what_the_unrolled_graph_saves(model: str, fused: bool, attention: str) -> None:
    graph = trained(model, fused, attention)
    expected = saved_bytes(joint(graph))
    assert saved_bytes(joint(graph).unrolled()) == expected
    assert saved_bytes(joint(graph.unrolled())) == expected


def weight(name: str = "w") -> Tensor:
    return Tensor(name, ("hidden", "hidden"), (4, 4), "fp32", WEIGHT)


def activation(name: str, rows: int = 2) -> Tensor:
    return Tensor(name, ("tokens", "hidden"), (rows, 4), "fp32")


def linear(x: Tensor, name: str) -> tuple[Node, Tensor]:
    out = activation(name, x.shape[0])
    return Node(Gemm("fp32", x.shape[0], 4, 4), name, (x, weight(name)), (out,)), out


def names(nodes: list[Node], fused: bool = False) -> dict[str, float]:
    graph = joint(Graph((Block("block", tuple(nodes)),), fused))
    return {entry.tensor.name: entry.nbytes for entry in saved_tensors(graph)}


def test_what_two_products_read_is_saved_once() -> None:
    first, x = linear(activation("input"), "x")
    nodes = [first, linear(x, "a")[0], linear(x, "b")[0]]
    assert names(nodes) == {"input": 32.0, "x": 32.0}


def test_relu_saves_its_result_and_dropout_a_mask() -> None:
    first, x = linear(activation("input"), "x")
    rectified, dropped = activation("relu"), activation("dropped")
    nodes = [
        first,
        Node(Elementwise("fp32", "relu", 8), "relu", (x,), (rectified,)),
        Node(Dropout("fp32", 8), "dropout", (rectified,), (dropped,)),
        linear(dropped, "y")[0],
    ]
    assert names(nodes) == {"input": 32.0, "relu": 32.0, "dropout mask": 8.0, "dropped": 32.0}


def test_a_sum_saves_nothing_and_a_table_that_no_node_makes_is_not_counted() -> None:
    first, x = linear(activation("input"), "x")
    table = Tensor("table", ("tokens", "hidden"), (2, 4), "fp32", STATE)
    y, z = activation("y"), activation("z")
    nodes = [
        first,
        Node(Elementwise("fp32", "add", 8), "add", (x, table), (y,)),
        Node(Elementwise("fp32", "mul", 8, 1), "mul", (y, table), (z,)),
    ]
    assert names(nodes) == {"input": 32.0}
    made = Node(Elementwise("fp32", "exp", 8), "made", (), (table,))
    assert names([made, *nodes]) == {"input": 32.0, "table": 32.0}, "one that the pass makes is"


@pytest.mark.parametrize(("fused", "expected"), [(False, 32.0), (True, 16.0)])
def test_a_slice_keeps_all_of_its_storage_unless_a_compiler_chooses(fused: bool, expected: float) -> None:
    first, whole = linear(activation("input"), "whole")
    half = whole.view(("tokens", "hidden"), (1, 4), part=True)
    nodes = [first, linear(half.view(("hidden",), (4,)).view(("tokens", "hidden"), (1, 4)), "y")[0]]
    assert names(nodes, fused)["whole"] == expected


def test_of_what_layers_hand_on_each_keeps_its_input() -> None:
    """The first input comes from outside; the last output is read by nothing."""
    x = activation("x")
    node, out = linear(x, "y")
    graph = joint(Graph((Block("layer", (node,), 5, (x, out)),)))
    assert {entry.tensor.name: entry.times for entry in saved_tensors(graph)} == {"x": 1, "y": 4}
    last = Block("head", (linear(out, "z")[0],))
    graph = joint(Graph((Block("layer", (node,), 5, (x, out)), last)))
    assert {entry.tensor.name: entry.times for entry in saved_tensors(graph)} == {"x": 1, "y": 5}


def test_of_a_loop_every_turn_is_kept_and_its_result_once() -> None:
    """Four experts, one after the other, each with an activation; they write into one result, which is scaled."""
    first, x = linear(activation("input"), "x")
    up, active, result, out = (activation(name) for name in ("up", "active", "result", "out"))
    factor = Tensor("factor", ("tokens", "hidden"), (2, 4), "fp32", WEIGHT)
    nodes = [
        first,
        Node(Gemm("fp32", 2, 4, 4), "up", (x, weight("up")), (up,), 4),
        Node(Elementwise("fp32", "gelu", 8), "gelu", (up,), (active,), 4),
        Node(Elementwise("fp32", "scatter", 8), "scatter", (active,), (result,), 4),
        Node(Elementwise("fp32", "mul", 8), "scaled", (result, factor), (out,)),
    ]
    assert names(nodes) == {"input": 32.0, "x": 32.0, "up": 4 * 32.0, "result": 32.0}


def test_the_encoders_output_is_kept_once_for_all_layers_of_the_decoder() -> None:
    kept = [entry for entry in saved_tensors(joint(trained("t5-small"))) if entry.tensor.name == "encoder dropout"]
    assert [entry.times for entry in kept] == [1]


def test_cosines_and_sines_are_kept_once_for_all_layers() -> None:
    config = load_config("llama-3.2-1b")
    kept = [entry for entry in saved_tensors(joint(trained("llama-3.2-1b"))) if "rotary table" in entry.tensor.name]
    assert sum(entry.nbytes for entry in kept) == 2 * 16 * config.head_dim * 2
