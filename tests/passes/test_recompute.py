"""Activations made again: FLOPs go up by what runs again, saved bytes down to what it starts from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from predictor.engines.pytorch.engine import COMPILE
from predictor.errors import UnknownNameError
from predictor.graph import Graph
from predictor.graph.saved import saved_tensors
from predictor.models.built import Step, build, load_config
from predictor.ops import Attention
from predictor.ops.base import Op
from predictor.passes.autograd import joint
from predictor.passes.fuse import fuse
from predictor.passes.recompute import attend_again, is_layer, recompute

MODELS = ["gpt2", "llama-3.2-1b", "bert-base", "opt-350m", "gemma-2-2b", "mixtral-8x7b", "deepseek-v2-lite", "t5-small"]


def trained(model: str, attention: str = "math") -> Graph:
    step = Step("train", 2, 64, act_dtype="bf16", attention=attention, training=True)
    return build(load_config(model), step)


def saved_bytes(graph: Graph) -> float:
    return sum(entry.nbytes for entry in saved_tensors(graph))


@pytest.mark.parametrize("kind", ["selective", "full"])
def test_a_recorded_graph_stays_one(kind: str) -> None:
    """Else its modules would be fused by the rules for graphs that a reader built."""
    graph = replace(joint(trained("gpt2")), recorded=True)
    rerun = recompute(graph, kind)
    assert rerun is not graph
    assert rerun.recorded


def layer_flops(graph: Graph) -> float:
    return sum(n.op.flops() * n.count * b.repeat for b in graph.blocks if is_layer(b) for n in b.nodes)


@pytest.mark.parametrize("model", MODELS)
def test_full_runs_the_layers_once_more(model: str) -> None:
    forward = trained(model)
    graph = joint(forward)
    assert layer_flops(forward) > 0.3 * forward.flops()
    assert recompute(graph, "full").flops() - graph.flops() == pytest.approx(layer_flops(forward), rel=1e-12)


def test_full_saves_the_inputs_of_layers() -> None:
    config = load_config("gpt2")
    graph = joint(trained("gpt2"))
    again = recompute(graph, "full")
    layers = [b for b in graph.blocks if b.name == "layer"]
    of_layers = {id(t.storage) for b in layers for n in b.nodes for t in n.outputs}
    kept = [entry for entry in saved_tensors(again) if id(entry.tensor) in of_layers]
    hidden = 2 * 64 * config.hidden * 2
    assert [(entry.tensor.name, entry.nbytes) for entry in kept] == [("mlp residual", config.layers * hidden)]
    rest = [entry for entry in saved_tensors(graph) if id(entry.tensor) not in of_layers]
    assert saved_bytes(again) == sum(entry.nbytes for entry in rest) + config.layers * hidden


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("model", ["gpt2", "llama-3.2-1b", "mixtral-8x7b", "deepseek-v2-lite"])
def test_fused_attention_runs_again_and_nothing_else(model: str, fused: bool) -> None:
    forward = trained(model, "flash")
    graph = joint(fuse(forward, COMPILE) if fused else forward)
    rerun = attend_again(graph)
    attention = [n.op.flops() * b.repeat for b in forward.blocks for n in b.nodes if isinstance(n.op, Attention)]
    assert rerun.flops() - graph.flops() == pytest.approx(sum(attention), rel=1e-12)
    names = [(n.name, n.op) for b in rerun.blocks for n in b.nodes]
    assert len(names) == sum(len(b.nodes) for b in graph.blocks) + len(attention)
    for block in rerun.blocks:
        for before, node in pairwise(block.nodes):
            if isinstance(node.op, Attention) and block.backward_of is not None and node.op.is_backward:
                assert isinstance(before.op, Attention) and not before.op.is_backward
                assert id(before.outputs[-1]) in {id(t) for t in node.inputs}  # the log-sum-exp


def test_what_follows_attention_saves_its_result() -> None:
    """A checkpoint around core attention drops the log-sum-exp; the product behind attention reads what it made."""
    graph = joint(trained("llama-3.2-1b", "flash"))
    rerun = attend_again(graph)
    dropped = {e.tensor.name for e in saved_tensors(graph)} - {e.tensor.name for e in saved_tensors(rerun)}
    assert dropped == {"attention core log-sum-exp"}


def test_none_changes_nothing() -> None:
    graph = joint(trained("gpt2"))
    assert recompute(graph, "none") is graph


def test_selective_drops_what_grows_with_the_square_of_the_sequence() -> None:
    """Korthikanti: softmax (2 bytes), mask (1) and dropout (2) of a s s b scores a layer; one product runs again."""
    config = load_config("gpt2")
    graph = joint(trained("gpt2"))
    again = recompute(graph, "selective")
    scores = 2 * config.heads * 64 * 64
    assert saved_bytes(graph) - saved_bytes(again) == config.layers * scores * 5
    added = Counter(n.name for b in again.blocks for n in b.nodes) - Counter(
        n.name for b in graph.blocks for n in b.nodes
    )
    assert set(added) == {
        "attention scores", "attention scale", "attention mask", "attention softmax", "attention dropout",
    }  # fmt: skip


def test_selective_leaves_flash_attention_as_it_is() -> None:
    graph = joint(trained("llama-3.2-1b", attention="flash"))
    assert recompute(graph, "selective") is graph


@pytest.mark.parametrize("kind", ["selective", "full"])
@pytest.mark.parametrize(
    "model", [name for name in MODELS if name != "deepseek-v2-lite"]
)  # whose nodes run several times in a row
def test_it_commutes_with_unrolling(model: str, kind: str) -> None:
    def ops(graph: Graph) -> Counter[tuple[Op, str]]:
        return Counter((n.op, n.phase) for b in graph.blocks for n in b.nodes for _ in range(n.count * b.repeat))

    graph = joint(trained(model))
    before, after = recompute(graph.unrolled(), kind), recompute(graph, kind).unrolled()
    assert ops(before) == ops(after) == ops(recompute(graph, kind))
    assert saved_bytes(before) == saved_bytes(after) == saved_bytes(recompute(graph, kind))


@pytest.mark.parametrize("kind", ["selective", "full"])
@pytest.mark.parametrize("model", MODELS)
def test_what_runs_again_reads_what_is_there(model: str, kind: str) -> None:
    made: set[int] = set()
    for block in recompute(joint(trained(model)), kind).blocks:
        made |= {id(block.carried[0].storage)} if block.carried else set()
        for node in block.nodes:
            assert all(id(t.storage) in made for t in node.inputs if t.role == "activation"), (block.name, node.name)
            made |= {id(t.storage) for t in node.outputs}


def test_an_unknown_kind_is_an_error_of_one_line() -> None:
    with pytest.raises(UnknownNameError, match="recompute"):
        recompute(joint(trained("gpt2")), "some")
