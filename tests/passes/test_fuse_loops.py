"""Recorded graphs as a compiler runs them: fewer kernels, the same work, never more bytes."""

from __future__ import annotations

from typing import Any

import pytest

import predictor
from predictor.engines import engine
from predictor.graph import Graph
from predictor.models.built import Step
from predictor.ops import Attention, Elementwise, Gemm
from predictor.passes.fuse import fuse

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
nn = torch.nn


class Gated(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(64)
        self.gate, self.up, self.down = (nn.Linear(64, 64, bias=False) for _ in range(3))

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def both(module: Any, words: str, mode: str = "forward") -> tuple[Graph, Graph]:
    """The recorded graph, and the fused one."""
    step = Step(mode, act_dtype="bf16", attention="flash", training=mode == "train")
    graph = predictor.trace(module, words).source.record(step, False if mode == "train" else None).graph
    return graph, fuse(graph, engine("compile"))


def moved(graph: Graph) -> float:
    return sum(node.op.bytes_moved() * times for node, times in graph.nodes())


def test_a_gated_layer_is_three_loops() -> None:
    """The norm; the activation with its product; the residual sum. As Inductor (`benchmarks/inductor_kernels.py`)."""
    eager, fused = both(Gated, "float[2,16,64]")
    assert [type(n.op).__name__ for n, _ in fused.nodes()] == [
        "Norm",
        "Gemm",
        "Gemm",
        "Elementwise",
        "Gemm",
        "Elementwise",
    ]
    chain = next(n.op for n, _ in fused.nodes() if isinstance(n.op, Elementwise))
    assert (chain.bytes_read(), chain.bytes_written()) == (2 * 2 * 16 * 64 * 2, 2 * 16 * 64 * 2)
    assert moved(fused) < moved(eager)


def test_fusing_keeps_flops_and_never_moves_more() -> None:
    for mode in ("forward", "train"):
        eager, fused = both(lambda: nn.Sequential(*(Gated() for _ in range(4))), "float[2,16,64]", mode)
        assert fused.flops() == pytest.approx(eager.flops())
        assert moved(fused) < moved(eager)
        assert sum(n for _, n in fused.nodes()) < sum(n for _, n in eager.nodes())
        for kind in (Gemm, Attention):
            counts = [sum(n for node, n in g.nodes() if isinstance(node.op, kind)) for g in (eager, fused)]
            assert counts[0] == counts[1]


def test_every_tensor_is_made_before_it_is_read() -> None:
    """Whatever was joined, no kernel waits for one that comes after it."""
    _, fused = both(lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), "float[2,16,64]", "train")
    made: set[int] = set()
    theirs = {id(t.storage) for block in fused.blocks for node in block.nodes for t in node.outputs}
    for block in fused.blocks:
        for node in block.nodes:
            assert all(id(t.storage) in made or id(t.storage) not in theirs for t in node.inputs), node.name
            made |= {id(t.storage) for t in node.outputs}


def test_an_engine_that_fuses_nothing_changes_nothing() -> None:
    graph, _ = both(Gated, "float[2,16,64]")
    assert fuse(graph, engine("eager")) is graph


def test_a_compiled_forecast_is_faster() -> None:
    model = predictor.trace(lambda: nn.Sequential(*(Gated() for _ in range(4))), "float[64,512,64]")
    for mode in ("forward", "train"):
        plain, compiled = (predictor.predict(model, "h100", mode=mode, execution=e) for e in ("eager", "compile"))
        assert compiled.gpu_busy_s < plain.gpu_busy_s
        assert compiled.memory.activations <= plain.memory.activations


class Written(nn.Module):  # type: ignore[misc]
    """Attention of 4 heads, written out; its weights are a second result where ``shown``."""

    def __init__(self, masked: bool = False, shown: bool = False) -> None:
        super().__init__()
        self.masked, self.shown = masked, shown

    def forward(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = q @ k.transpose(-1, -2) * 0.125
        weights = torch.softmax(scores + mask if self.masked else scores, -1)
        return (weights @ v, weights.tanh()) if self.shown else weights @ v


QKV = "q:float[2,4,16,64] k:float[2,4,32,64] v:float[2,4,32,64] mask:float[16,32]"


def test_attention_that_is_written_out_is_one_kernel_where_nothing_else_reads_its_parts() -> None:
    for masked in (False, True):
        graph, fused = both(Written(masked), QKV)
        (op,) = (node.op for node, _ in fused.nodes() if isinstance(node.op, Attention))
        assert (op.batch * op.heads, op.q_len, op.kv_len, op.head_dim, op.causal) == (8, 16, 32, 64, False)
        products = sum(node.op.flops() for node, _ in graph.nodes() if isinstance(node.op, Gemm))
        assert 2 * 2 * 8 * 16 * 32 * 64 == products <= op.flops() and moved(fused) < moved(graph)
    _, fused = both(Written(shown=True), QKV)
    assert not any(isinstance(node.op, Attention) for node, _ in fused.nodes())
