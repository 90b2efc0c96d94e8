"""Experts over GPUs: what goes out comes back, work is that of one GPU, and degree 1 changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.graph import Graph
from predictor.hardware.system import load_system
from predictor.models.built import Step, build, load_config
from predictor.ops.base import COMPUTE
from predictor.ops.collective import Collective
from predictor.ops.exchange import DIRECT, FORWARDED, WAYS, Exchange, rows_sent
from predictor.passes.expert_parallel import share_experts, spread_experts
from predictor.passes.mesh import Mesh

MODELS = ("qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v2-lite")
SYSTEM = load_system("dgx-h100")
DEGREES = st.sampled_from((2, 4, 8))
HOW = st.sampled_from(("nccl", "deepep"))
FEW = settings(max_examples=12, deadline=None)


def _graph(model: str, mode: str, batch: int) -> Graph:
    tokens = {"seq_len": 256} if mode == "train" else {"seq_len": 1, "context_len": 256}
    return build(load_config(model), Step(mode, batch, act_dtype="bf16", experts="whole", **tokens))


def _experts_flops(graph: Graph) -> float:
    return sum(
        node.op.flops() * times
        for node, times in graph.nodes()
        if node.name.startswith("experts") and node.op.stream == COMPUTE
    )


def _sent(graph: Graph) -> tuple[list[Collective], list[Collective]]:
    ops = [(node.name, node.op) for node, _ in graph.nodes() if isinstance(node.op, Collective)]
    return [op for name, op in ops if "dispatch" in name], [op for name, op in ops if "combine" in name]


@FEW
@given(model=st.sampled_from(MODELS), ep=DEGREES, how=HOW, batch=st.integers(1, 16), prompts=st.booleans())
def test_serving_conserves_tokens_and_work(model: str, ep: int, how: str, batch: int, prompts: bool) -> None:
    """Dispatched bytes are combined bytes in 16 bit; all GPUs together compute what one does for their tokens."""
    own, all_of_them = _graph(model, "decode", batch), _graph(model, "decode", batch * ep)
    spread = spread_experts(own, Mesh((("dp", ep),), SYSTEM, ep, how), prompts)
    there, back = _sent(spread)
    assert there and [op.size for op in there] == [op.size for op in back]
    assert [(op.link_bytes(), op.net_bytes()) for op in there] == [(op.link_bytes(), op.net_bytes()) for op in back]
    # Products hold whole rows of every expert: as many as come, to the nearest.
    assert ep * _experts_flops(spread) == pytest.approx(
        _experts_flops(all_of_them), rel=0.5 if batch * ep < 64 else 0.1
    )


@FEW
@given(model=st.sampled_from(MODELS), ep=DEGREES, how=HOW)
def test_training_conserves_tokens_and_work(model: str, ep: int, how: str) -> None:
    """Each rank has as many rows as before, so that a rank computes what it did, and sends what it gets."""
    own = _graph(model, "train", 1)
    shared = share_experts(own, Mesh((("tp", 1), ("cp", 1)), SYSTEM, ep, how))
    there, back = _sent(shared)
    assert there and [op.size for op in there] == [op.size for op in back]
    assert all(isinstance(op, Exchange) == (how == "deepep") for op in (*there, *back))
    assert _experts_flops(shared) == pytest.approx(_experts_flops(own), rel=1e-9)
    weights = [sum(w.elements * times for w, times in graph.weights()) for graph in (own, shared)]
    assert weights[1] < weights[0]


@FEW
@given(model=st.sampled_from(MODELS), how=HOW)
def test_degree_one_is_the_very_same_graph(model: str, how: str) -> None:
    for mode in ("decode", "train"):
        graph, alone = _graph(model, mode, 4), Mesh((("tp", 1), ("dp", 1)), SYSTEM, 1, how)
        assert share_experts(graph, alone) is graph
        assert spread_experts(graph, alone, False) is graph


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 4096), top_k=st.integers(1, 16), local=st.sampled_from((1, 2, 4, 8)),
    nodes=st.sampled_from((1, 2, 4, 8, 16)), reach=st.sampled_from((0.25, 0.5, 1.0)),
)  # fmt: skip
def test_rows_on_their_way(tokens: int, top_k: int, local: int, nodes: int, reach: float) -> None:
    """No network within a node; never more rows than picks; a limited router never sends more."""
    ranks = local * nodes
    for way in WAYS:
        near, far = rows_sent(way, tokens, top_k, ranks, local, reach)
        assert near >= 0 <= far <= tokens * top_k
        assert (far > 0) == (nodes > 1)
        assert (near > 0) == (local > 1)
    direct, forwarded = (rows_sent(way, tokens, top_k, ranks, local) for way in (DIRECT, FORWARDED))
    assert forwarded[1] <= direct[1] * (1 + 1e-9)
    limited = rows_sent(FORWARDED, tokens, top_k, ranks, local, reach)
    assert limited[1] <= forwarded[1] * (1 + 1e-9)
