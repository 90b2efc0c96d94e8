"""Memory over time: what is alive after each node of a joint graph."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.engines.pytorch.engine import COMPILE
from predictor.graph import Block, Graph, Node, Tensor
from predictor.graph.saved import saved_tensors
from predictor.graph.tensor import WEIGHT
from predictor.models.built import Step, build, load_config
from predictor.ops import Elementwise, Gemm
from predictor.passes.autograd import joint
from predictor.passes.fuse import fuse
from predictor.passes.recompute import recompute
from predictor.simulate.lives import Lives

MODELS = ["gpt2", "llama-3.2-1b", "bert-base", "phi-3-mini", "gemma-2-2b", "opt-350m", "mixtral-8x7b", "t5-small"]


def trained(model: str, fused: bool, attention: str = "math") -> Graph:
    step = Step("train", 2, 16, act_dtype="bf16", attention=attention, training=True)
    graph = build(load_config(model), step)
    return fuse(graph, COMPILE) if fused else graph


@pytest.mark.parametrize("kind", ["none", "selective", "full"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("model", ["gpt2", "llama-3.2-1b", "bert-base", "gemma-2-2b", "t5-small"])
def test_a_run_of_a_repeat_is_what_the_unrolled_graph_has_there(model: str, fused: bool, kind: str) -> None:
    graph = recompute(joint(trained(model, False), accumulate=True), kind)
    graph = fuse(graph, COMPILE) if fused else graph
    short, long = Lives(graph), Lives(graph.unrolled())
    at = 0
    for b, block in enumerate(graph.blocks):
        for run in range(block.repeat):
            if all(node.count == 1 for node in block.nodes):
                assert np.allclose(short.after(b, run), long.after(at), rtol=1e-12), (block.name, run)
            at += 1
    assert short.peak == pytest.approx(long.peak)


@pytest.mark.parametrize("attention", ["math", "flash"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("model", [*MODELS, "deepseek-v2-lite", "switch-base-8"])
def test_the_backward_pass_begins_with_what_was_saved_and_ends_with_nothing(
    model: str, fused: bool, attention: str
) -> None:
    forward = trained(model, fused, attention)
    graph = joint(forward)
    lives, last = Lives(graph), len(forward.blocks) - 1
    begins = lives.after(last, forward.blocks[last].repeat - 1)[-1]
    assert begins == pytest.approx(sum(entry.nbytes for entry in saved_tensors(graph)))
    assert lives.after(len(graph.blocks) - 1, graph.blocks[-1].repeat - 1)[-1] == pytest.approx(0.0, abs=1e-3)
    assert lives.peak >= begins
    for b, block in enumerate(graph.blocks):
        assert lives.after(b, block.repeat - 1).min() > -1e-3, block.name


def test_two_products_by_hand() -> None:
    """x (32 bytes) comes from outside; y = x W1, z = gelu(y), out = z W2."""

    def tensor(name: str, role: str = "activation") -> Tensor:
        shape = (4, 4) if role == WEIGHT else (2, 4)
        return Tensor(name, ("tokens", "hidden"), shape, "fp32", role)

    x, y, z, out = (tensor(name) for name in ("x", "y", "z", "out"))
    nodes = (
        Node(Gemm("fp32", 2, 4, 4), "first", (x, tensor("w1", WEIGHT)), (y,)),
        Node(Elementwise("fp32", "gelu", 8), "gelu", (y,), (z,)),
        Node(Gemm("fp32", 2, 4, 4), "second", (z, tensor("w2", WEIGHT)), (out,)),
    )
    lives = Lives(joint(Graph((Block("block", nodes),))))
    assert lives.after(0).tolist() == [64.0, 96.0, 96.0]  # x, y; and z; what is made last is read by nothing
    # dz beside x, y and z; dW2 was the last to read z; dy is there in place of dz and y; x until dW1
    assert lives.after(1).tolist() == [128.0, 96.0, 64.0, 64.0, 0.0]
    assert lives.peak == 128.0


def test_a_hundred_layers_cost_what_two_do() -> None:
    """Of every layer more, its saved tensors are alive at the peak."""

    def layers(repeat: int) -> tuple[float, float, int]:
        x, y = (Tensor(name, ("tokens", "hidden"), (2, 4), "fp32") for name in ("x", "y"))
        out = Tensor("out", ("tokens", "hidden"), (2, 4), "fp32")
        weight = Tensor("w", ("hidden", "hidden"), (4, 4), "fp32", WEIGHT)
        nodes = (
            Node(Gemm("fp32", 2, 4, 4), "product", (x, weight), (y,)),
            Node(Elementwise("fp32", "gelu", 8), "gelu", (y,), (out,)),
        )
        graph = joint(Graph((Block("layer", nodes, repeat, (x, out)),)))
        lives = Lives(graph)
        return lives.peak, sum(entry.nbytes for entry in saved_tensors(graph)), len(lives._lives)

    (few, kept, entries), (many, more, same) = layers(3), layers(100)
    assert many - few == more - kept == 97 * 64
    assert entries == same
