"""The sharding pass: one all_reduce each way, work and weights conserved, and nothing where nothing is split."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from mlp_graphs import B, F, H, feed_forward, node, tensor, weight

from predictor.engines import EAGER
from predictor.engines.pytorch.engine import COMPILE
from predictor.errors import RequestError, UnsupportedError
from predictor.graph import Block, Graph, Node, Tensor
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import default_system
from predictor.models.built import Step, build, load_config
from predictor.ops import BACKWARD, FORWARD, Attention, Elementwise, Embedding, Gemm, Norm, Op
from predictor.ops.collective import Collective
from predictor.passes.fuse import fuse
from predictor.passes.mesh import Mesh
from predictor.passes.shard import local_size, shard
from predictor.passes.tensor_parallel import TENSOR

SYSTEM = default_system(load_gpu("h100"))
FEW = ("llama-3.1-8b", "gpt2", "bloom-7b1", "mixtral-8x7b", "deepseek-v2-lite", "t5-small", "gemma-2-2b", "bert-base")


def mesh(**axes: int) -> Mesh:
    return Mesh(tuple(axes.items()), SYSTEM)


def collectives(graph: Graph, phase: str = "") -> list[tuple[str, str, int, float]]:
    return [
        (n.name, n.op.kind, n.op.size, times)
        for n, times in graph.nodes()
        if isinstance(n.op, Collective) and phase in ("", n.phase)
    ]


def cost(graph: Graph) -> Counter[tuple[str, Op]]:
    """How often every operator runs, by the name of its node."""
    found: Counter[tuple[str, Op]] = Counter()
    for n, times in graph.nodes():
        found[n.name, n.op] += round(times * 1e6)
    return found


def flops(graph: Graph) -> float:
    return sum(n.op.flops() * times for n, times in graph.nodes() if isinstance(n.op, Gemm))


# ------------------------------------------------------------------------------------------------ column, then row


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_one_all_reduce_each_way(degree: int) -> None:
    """Megatron's f and g: after the row-parallel product forward, after dA of the column-parallel one backward."""
    graph = shard(feed_forward(joint=True), mesh(tp=degree), TENSOR)
    size = B * H * 2
    assert collectives(graph, FORWARD) == [("down all_reduce", "all_reduce", size, 1)]
    assert collectives(graph, BACKWARD) == [("up all_reduce", "all_reduce", size, 1)]
    for block in graph.blocks:
        for before, after in zip(block.nodes, block.nodes[1:], strict=False):
            if isinstance(after.op, Collective):
                assert before.outputs == after.inputs
                assert after.name.startswith(before.name)


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_work_and_weights_are_conserved(degree: int) -> None:
    """All ranks together have every product and every weight once, and the norm's weight once each."""
    whole = feed_forward(joint=True)
    local = shard(whole, mesh(tp=degree), TENSOR)
    assert degree * flops(local) == flops(whole)
    assert degree * (local.parameters() - H) == whole.parameters() - H
    shapes = [(n.op.m, n.op.n, n.op.k) for n, _ in local.nodes() if isinstance(n.op, Gemm)]
    f = F // degree
    assert shapes == [(B, f, H), (B, H, f), (B, f, H), (H, f, B), (B, H, f), (f, H, B)]


def test_what_is_not_split_stays_the_same_object() -> None:
    graph = feed_forward(joint=True)
    assert shard(graph, mesh(tp=1), TENSOR) is graph
    assert shard(graph, mesh(tp=4), {"heads": "tp"}) is graph
    assert shard(graph, mesh(dp=4), TENSOR) is graph
    before = {n.name: n for n in graph.blocks[0].nodes}
    after = {n.name: n for n in shard(graph, mesh(tp=4), TENSOR).blocks[0].nodes}
    assert after["norm"] is before["norm"]
    assert after["residual"] is before["residual"]
    assert after["down"] is not before["down"]


def test_names_of_mesh_axes_mean_nothing() -> None:
    graph = feed_forward(joint=True)
    model = dict.fromkeys(TENSOR, "model")
    assert cost(shard(graph, mesh(tp=4), TENSOR)) == cost(shard(graph, mesh(model=4), model))
    one = shard(graph, mesh(a=4, b=2), {"mlp": "a", "batch": "b"})
    other = shard(graph, mesh(b=4, a=2), {"mlp": "b", "batch": "a"})
    assert cost(one) == cost(other)


def test_one_axis_after_the_other_is_both_at_once() -> None:
    graph, both = feed_forward(joint=True), mesh(tp=4, dp=2)
    at_once = shard(graph, both, {**TENSOR, "batch": "dp"})
    assert 8 * flops(at_once) == flops(graph)
    assert cost(shard(shard(graph, both, TENSOR), both, {"batch": "dp"})) == cost(at_once) == cost(
        shard(shard(graph, both, {"batch": "dp"}), both, TENSOR)
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- where sums meet


def test_a_sum_of_partial_sums_is_reduced_once() -> None:
    """Two branches of which each ends in a row-parallel product, as experts and shared experts."""
    x, total, out = (tensor(name, batch=B, hidden=H) for name in ("x", "sum", "out"))
    nodes: list[Node] = []
    ends = []
    for name in ("one", "two"):
        h, y = tensor(f"{name} h", batch=B, mlp=F), tensor(f"{name} y", batch=B, hidden=H)
        nodes.append(node(Gemm("bf16", B, F, H), f"{name} up", x, weight(f"{name} up", mlp=F, hidden=H), out=h))
        nodes.append(node(Gemm("bf16", B, H, F), f"{name} down", h, weight(f"{name} down", hidden=H, mlp=F), out=y))
        ends.append(y)
    nodes.append(node(Elementwise("bf16", "add", B * H), "both sum", *ends, out=total))
    nodes.append(node(Elementwise("bf16", "add", B * H), "residual", x, total, out=out))
    local = shard(Graph((Block("layer", tuple(nodes), 1, (x, out)),)), mesh(tp=4), TENSOR)
    assert [n.name for n in local.blocks[0].nodes][-3:] == ["both sum", "both all_reduce", "residual"]
    assert len(collectives(local)) == 1


def test_a_partial_sum_that_is_carried_is_reduced_in_its_block() -> None:
    """As where engines add the residual in the next layer's norm."""
    x, y = (tensor(name, batch=B, hidden=H) for name in "xy")
    h = tensor("h", batch=B, mlp=F)
    nodes = (
        node(Gemm("bf16", B, F, H), "up", x, weight("up", mlp=F, hidden=H), out=h),
        node(Gemm("bf16", B, H, F), "down", h, weight("down", hidden=H, mlp=F), out=y),
    )
    local = shard(Graph((Block("layer", nodes, 3, (x, y)),)), mesh(tp=2), TENSOR)
    assert [n.name for n in local.blocks[0].nodes] == ["up", "down", "down all_reduce"]
    assert local.blocks[0].carried == (x, y)
    assert collectives(local) == [("down all_reduce", "all_reduce", B * H * 2, 3)]


def test_a_vocabulary_is_padded_looked_up_in_parts_and_gathered() -> None:
    vocab, tokens = 103, B
    table, x = weight("table", vocab=vocab, hidden=H), tensor("x", tokens=tokens, hidden=H)
    logits = tensor("logits", tokens=tokens, vocab=vocab)
    graph = Graph(
        (
            Block("embedding", (Node(Embedding("bf16", tokens, H, vocab), "token embedding", (table,), (x,)),)),
            Block("head", (node(Gemm("bf16", tokens, vocab, H), "lm head", x, table, out=logits),)),
        )
    )
    local = shard(graph, mesh(tp=4), TENSOR)
    (look_up, reduced), (product, gathered) = (block.nodes for block in local.blocks)
    assert look_up.op == Embedding("bf16", tokens, H, 26)
    assert product.op == Gemm("bf16", tokens, 26, H)
    assert (reduced.name, gathered.name) == ("embedding all_reduce", "logits all_gather")
    assert gathered.outputs[0].shape == (tokens, 4 * 26)
    assert collectives(local)[1][2] == tokens * 4 * 26 * 2
    assert look_up.inputs[0] is product.inputs[1]  # tied


@pytest.mark.parametrize(("heads", "kv_heads", "tp"), [(32, 8, 4), (32, 8, 8), (32, 4, 8), (8, 1, 8), (8, 2, 4)])
def test_heads_of_keys_and_values_are_copied_where_ranks_outnumber_them(heads: int, kv_heads: int, tp: int) -> None:
    config = replace(load_config("llama-3.1-8b"), heads=heads, kv_heads=kv_heads, head_dim=128)
    kept = max(1, kv_heads // tp)
    for fused in (False, True):
        step = Step("prefill", 2, 16, act_dtype="bf16", attention="flash")
        local = shard(build(config, step), mesh(tp=tp), TENSOR)
        local = fuse(local, COMPILE) if fused else local
        op = next(n.op for n, _ in local.nodes() if isinstance(n.op, Attention))
        assert (op.heads, op.kv_heads) == (heads // tp, kept)
        widths = sum(n.op.n for n in local.blocks[1].nodes if isinstance(n.op, Gemm) and n.part == "attention.qkv")
        assert widths == (heads // tp + 2 * kept) * 128


# ------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize(("model", "fused"), [(model, fused) for model in FEW for fused in (False, True)])
def test_unrolled_is_repeated(model: str, fused: bool) -> None:
    """Sharding and writing out the repeats, in either order."""
    graph = build(load_config(model), Step("forward", 2, 16, act_dtype="bf16"))
    four, of = mesh(tp=4), COMPILE if fused else EAGER
    local = fuse(shard(graph, four, TENSOR), of).unrolled()
    assert cost(local) == cost(fuse(shard(graph.unrolled(), four, TENSOR), of))


@pytest.mark.parametrize(("model", "fused"), [(model, fused) for model in FEW for fused in (False, True)])
def test_what_a_local_node_reads_was_made_before_it(model: str, fused: bool) -> None:
    graph = shard(build(load_config(model), Step("forward", 2, 16, act_dtype="bf16")), mesh(tp=2), TENSOR)
    made: set[int] = set()
    for block in fuse(graph, COMPILE if fused else EAGER).blocks:
        made |= {id(block.branch[0])} if block.branch else set()  # of the run before, where there is one
        for n in block.nodes:
            assert {id(t.storage) for t in n.inputs if t.role == "activation"} <= made, n.name
            made |= {id(t) for t in n.outputs}


def test_products_have_the_shapes_of_their_local_tensors() -> None:
    for model in ("gpt2", "llama-3.1-8b", "deepseek-v2-lite", "t5-small", "phi-3-mini"):
        graph = shard(build(load_config(model), Step("forward", 2, 16, act_dtype="bf16")), mesh(tp=2), TENSOR)
        for n, _ in graph.nodes():
            if isinstance(n.op, Gemm) and n.inputs[1].role == "weight":
                x, b, out, op = n.inputs[0], n.inputs[1], n.outputs[0], n.op
                assert (x.elements, b.shape, out.elements) == (op.m * op.k, (op.n, op.k), op.m * op.n), n.name


def test_local_sizes() -> None:
    size = local_size(mesh(tp=4), TENSOR)
    assert [size("heads", 32), size("kv_heads", 2), size("vocab", 103), size("hidden", 64)] == [8, 1, 26, 64]
    assert local_size(None, TENSOR)("heads", 32) == 32


# ------------------------------------------------------------------------------------------------- refusals


@dataclass(frozen=True, slots=True)
class Sort(Elementwise):
    """An operator of somebody else's that says nothing of parts."""

    local = Op.local  # type: ignore[assignment]


def test_an_operator_that_knows_no_parts_is_refused_in_one_line() -> None:
    x, y = tensor("x", batch=B, mlp=F), tensor("y", batch=B, mlp=F)
    graph = Graph((Block("layer", (node(Sort("bf16", "copy", B * F), "sort", x, out=y),)),))
    with pytest.raises(UnsupportedError, match="Sort on a part of 'x': expected an operator with a rule `local`"):
        shard(graph, mesh(tp=2), TENSOR)


def test_rules_that_split_a_tensor_twice_over_one_axis_are_refused() -> None:
    with pytest.raises(RequestError, match="batch, mlp"):
        shard(feed_forward(), mesh(tp=2), {"mlp": "tp", "batch": "tp"})


def test_an_axis_of_which_some_segments_are_split_says_its_segments() -> None:
    x, out = tensor("x", batch=B, hidden=H), Tensor("y", ("batch", "mlp | rest"), (B, 96), "bf16")
    w = Tensor("w", ("mlp | rest", "hidden"), (96, H), "bf16", "weight", {"mlp | rest": ((64, 1), (32, 1))})
    graph = Graph((Block("layer", (node(Gemm("bf16", B, 96, H), "merged", x, w, out=out),)),))
    with pytest.raises(RequestError, match=r"segments of 'mlp \| rest'"):
        shard(graph, mesh(tp=2), TENSOR)
    out.segments = w.segments
    op = shard(graph, mesh(tp=2), TENSOR).blocks[0].nodes[0].op
    assert isinstance(op, Gemm)
    assert op.n == 32 + 32


def test_a_norm_reads_whole_rows() -> None:
    """Rows of heads are split, a row itself never."""
    x, y = tensor("x", tokens=B, heads=8, head_dim=16), tensor("y", tokens=B, heads=8, head_dim=16)
    graph = Graph((Block("b", (node(Norm("bf16", 8 * B, 16, "rms"), "q norm", x, weight("q", head_dim=16), out=y),)),))
    assert shard(graph, mesh(tp=4), TENSOR).blocks[0].nodes[0].op == Norm("bf16", 2 * B, 16, "rms")
