"""What a graph says of a model by its tensors alone, against what is counted elsewhere."""

from __future__ import annotations

import pytest

from predictor.engines.pytorch.engine import COMPILE
from predictor.graph import Graph, Node
from predictor.models.built import Step, build, load_config, parameters
from predictor.ops import Gemm
from predictor.passes.fuse import fuse
from tests.catalogue import MODELS

EAGER = Step("forward", 2, 16, act_dtype="bf16")


@pytest.mark.parametrize("model", MODELS)
def test_the_weights_of_a_graph_are_the_models_parameters(model: str) -> None:
    """The Hugging Face class's count, a tied matrix once, from the tensors that the nodes read."""
    config = load_config(model)
    assert build(config, EAGER).parameters() == parameters(config)
    fused = Step("forward", 2, 16, act_dtype="bf16", attention="flash", experts="whole")
    assert fuse(build(config, fused), COMPILE).parameters() == parameters(config)


def linear_nodes(graph: Graph) -> list[Node]:
    return [n for b in graph.blocks for n in b.nodes if isinstance(n.op, Gemm) and n.inputs[1].role == "weight"]


@pytest.mark.parametrize(
    "model", ["gpt2", "llama-3.1-8b", "bert-base", "deepseek-v2-lite", "t5-small", "phi-3-mini", "gemma-2-2b"]
)
def test_products_have_the_shapes_of_their_tensors(model: str) -> None:
    for node in linear_nodes(build(load_config(model), EAGER)):
        x, weight, out, op = node.inputs[0], node.inputs[1], node.outputs[0], node.op
        assert isinstance(op, Gemm)
        assert (x.elements, weight.shape, out.elements) == (op.m * op.k, (op.n, op.k), op.m * op.n), node.name
        assert (weight.axes[1], weight.axes[0]) == (x.axes[-1], out.axes[-1]), node.name


def test_what_a_node_reads_was_made_before_it() -> None:
    for model in ("gpt2", "llama-3.1-8b", "mixtral-8x7b", "t5-small", "deepseek-v2-lite"):
        made: set[int] = set()
        for block in build(load_config(model), EAGER).blocks:
            for node in block.nodes:
                read = {id(t.storage) for t in node.inputs if t.role == "activation"}
                assert read <= made, f"{model}: {node.name}"
                made |= {id(t) for t in node.outputs}
