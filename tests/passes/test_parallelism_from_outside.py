"""A parallelism from outside the package: data parallelism as one rule, and nothing else."""

from __future__ import annotations

import pytest
from mlp_graphs import B, F, H, feed_forward

from predictor.graph import Graph
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import default_system
from predictor.ops import BACKWARD, Gemm, Norm
from predictor.ops.collective import Collective
from predictor.passes.mesh import Mesh
from predictor.passes.shard import shard

#: Every rank has samples of its own, and all of the weights: their gradients are partial sums.
DATA = {"batch": "dp"}
SYSTEM = default_system(load_gpu("h100"))


def data_parallel(graph: Graph, dp: int, tp: int = 1) -> Graph:
    return shard(graph, Mesh((("tp", tp), ("dp", dp)), SYSTEM), DATA)


@pytest.mark.parametrize("dp", [2, 4, 16])
def test_gradients_of_weights_are_reduced_and_nothing_else(dp: int) -> None:
    graph = data_parallel(feed_forward(joint=True, repeat=3), dp)
    found = [(n, times) for n, times in graph.nodes() if isinstance(n.op, Collective)]
    assert {(n.name, n.phase, n.op.size, times) for n, times in found if isinstance(n.op, Collective)} == {
        ("down all_reduce", BACKWARD, F * H * 2, 3),
        ("up all_reduce", BACKWARD, F * H * 2, 3),
        ("norm all_reduce", BACKWARD, H * 2, 3),
    }
    assert len(found) == 3


@pytest.mark.parametrize("dp", [2, 4, 16])
def test_samples_are_shared_out_and_weights_are_not(dp: int) -> None:
    whole = feed_forward(joint=True)
    local = data_parallel(whole, dp)
    assert local.parameters() == whole.parameters()
    for mine, all_of_it in zip(
        (n.op for n, _ in local.nodes() if isinstance(n.op, (Gemm, Norm))),
        (n.op for n, _ in whole.nodes() if isinstance(n.op, (Gemm, Norm))),
        strict=True,
    ):
        assert dp * mine.flops() == all_of_it.flops()
    assert [t.shape for t in local.blocks[0].carried or ()] == [(B // dp, H)] * 2


def test_beside_tensor_parallelism_its_groups_are_from_node_to_node() -> None:
    graph = data_parallel(feed_forward(joint=True), dp=4, tp=8)
    ops = [n.op for n, _ in graph.nodes() if isinstance(n.op, Collective)]
    assert {(op.ranks, op.ranks_per_node, op.stream) for op in ops} == {(4, 1, "network")}


def test_one_rank_is_the_graph_itself() -> None:
    graph = feed_forward(joint=True)
    assert data_parallel(graph, 1) is graph
