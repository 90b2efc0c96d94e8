"""Selective checkpointing of PyTorch's trainers: which products of a layer run again, and what is saved for them."""

from __future__ import annotations

from collections import Counter

import pytest

from predictor.engines import EAGER, Engine, engine
from predictor.graph import Graph
from predictor.graph.saved import saved_tensors
from predictor.hardware.system import load_system
from predictor.models.built import Step, load_config
from predictor.ops.attention import Attention
from predictor.ops.collective import Collective
from predictor.ops.gemm import Gemm
from predictor.passes.mesh import Mesh
from predictor.passes.recompute import runs_again
from predictor.request.parallelism import Parallelism
from predictor.simulate.lower import Lowering, lower, placed

COMPILE = engine("compile")
ENGINES = [EAGER, COMPILE]
LLAMA = load_config("llama-3.1-8b")
TOKENS = 2 * 64


def joint(runs: Engine, recompute: str, mesh: Mesh | None = None) -> Graph:
    step = Step("train", 2, 64, act_dtype="bf16", attention="flash", training=True)
    return lower(Lowering(LLAMA, step, mesh, None, runs, False, recompute, sequences=mesh is not None))


def rerun(graph: Graph, kind: type = Gemm) -> Counter[str]:
    blocks = (block for block in graph.blocks if block.backward_of is not None)
    return Counter(n.name for b in blocks for n in b.nodes if runs_again(n) and isinstance(n.op, kind))


@pytest.mark.parametrize("runs", ENGINES)
def test_every_second_product_runs_again(runs: Engine) -> None:
    """Of q, k, v, out, gate, up, down: k, out and up. Attention is saved."""
    graph = joint(runs, "selective")
    assert set(rerun(graph)) == {"attention k", "attention out", "mlp up"}
    assert not rerun(graph, Attention)
    h, kv, f = LLAMA.hidden, LLAMA.kv_heads * LLAMA.head_dim, LLAMA.intermediate
    added = sum(n.op.flops() * b.repeat for b in graph.blocks for n in b.nodes if isinstance(n.op, Gemm)) - sum(
        n.op.flops() * b.repeat for b in joint(runs, "none").blocks for n in b.nodes if isinstance(n.op, Gemm)
    )
    assert added == 2 * TOKENS * LLAMA.layers * (h * kv + h * h + h * f)


@pytest.mark.parametrize("runs", ENGINES)
def test_saved_is_what_the_products_and_attention_made(runs: Engine) -> None:
    """Of a layer's tokens, in bf16: its input, q, v, gate and attention's result, with a log-sum-exp a head."""
    kept = [entry for entry in saved_tensors(joint(runs, "selective")) if entry.times >= LLAMA.layers - 1]
    h, kv, f = LLAMA.hidden, LLAMA.kv_heads * LLAMA.head_dim, LLAMA.intermediate
    width = {h: 0, kv: 0, f: 0} | Counter(round(e.nbytes / e.times / TOKENS / 2) for e in kept)
    assert (width[h], width[kv], width[f]) == (3, 1, 1)
    assert sum(width.values()) == 6  # and the log-sum-exp


def test_what_ranks_summed_is_saved_and_not_made_again() -> None:
    """The reduce_scatter behind attention's output, so that its product has no reader; inputs are gathered again."""
    mesh = placed(Parallelism(tp=2, num_gpus=2), load_system("dgx-h100"))
    graph = joint(COMPILE, "selective", mesh)
    assert set(rerun(graph)) == {"attention k", "mlp up"}
    layers = [block for block in graph.blocks if block.name == "layer backward"]
    links = [n.op.kind for b in layers for n in b.nodes if isinstance(n.op, Collective) and runs_again(n)]
    assert links == ["all_gather", "all_gather"]


@pytest.mark.parametrize("runs", ENGINES)
def test_what_runs_again_reads_what_is_there(runs: Engine) -> None:
    made: set[int] = set()
    for block in joint(runs, "selective").blocks:
        made |= {id(t.storage) for t in (*(block.carried or ()), *(block.branch or ()))}
        for node in block.nodes:
            assert all(id(t.storage) in made for t in node.inputs if t.role == "activation"), (block.name, node.name)
            made |= {id(t.storage) for t in node.outputs}


def test_a_compiler_leaves_linear_layers_of_one_input_apart_in_training() -> None:
    names = {n.name for b in joint(COMPILE, "none").blocks for n in b.nodes}
    assert {"attention q", "attention k", "mlp gate", "mlp up"} <= names
    assert "attention qkv" not in names
