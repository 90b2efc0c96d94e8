"""Context and expert parallelism, adapters, products in pieces, casts: work is conserved, exchanges are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import predictor
from predictor.engines.attention_ages import FLASH_1, library_s
from predictor.errors import RequestError, UnsupportedError
from predictor.forecast.forecast import Forecast, forecast
from predictor.graph import Graph
from predictor.graph.graph import Block, Node
from predictor.graph.tensor import WEIGHT, Tensor
from predictor.hardware.gpu import load_gpu
from predictor.ops import Attention, Gemm
from predictor.ops.base import COMPUTE
from predictor.ops.collective import Collective
from predictor.ops.elementwise import Elementwise
from predictor.ops.exchange import Exchange
from predictor.ops.moe import MoE
from predictor.passes.expert_parallel import experts_apart
from predictor.request.request import Request

BASE: dict[str, Any] = {"mode": "train", "seq_len": 2048, "batch": 8, "micro_batch": 1, "execution": "megatron"}


def ask(model: str = "llama-3.2-1b", gpu: str = "h100", **words: Any) -> Forecast:
    return forecast(Request(model, gpu, **(BASE | words)).run(), intervals=False)


def nodes_of(found: Forecast, *kinds: type) -> list[tuple[Any, float]]:
    return [(n, times) for n, times in found.timed[0].stage.graph.nodes() if isinstance(n.op, kinds)]


@pytest.mark.parametrize("comm", ["ring", "all_to_all"])
@pytest.mark.parametrize("cp", [2, 4])
def test_attention_of_all_ranks_is_that_of_one(comm: str, cp: int) -> None:
    """In a ring of causal parts, but for the diagonal."""
    whole, found = ask(), ask(cp=cp, cp_comm=comm)
    pairs = [sum(n.op.flops() * times for n, times in nodes_of(each_, Attention)) for each_ in (whole, found)]
    assert cp * pairs[1] == pytest.approx(pairs[0], rel=2e-3)
    assert cp * found.flops == pytest.approx(whole.flops, rel=0.01)
    sent = [(n.op.kind, n.op.size, times) for n, times in nodes_of(found, Collective)]
    kinds = {kind for kind, _, _ in sent}
    assert kinds == ({"send_recv"} if comm == "ring" else {"all_to_all"})
    if comm == "ring":
        keys = 2 * 2048 // cp * 8 * 64 * 2  # keys and values, 8 heads of 64 in 16 bit
        layers, (forward, backward) = 16, (keys, 2 * keys)
        assert sum(size * times for _, size, times in sent) == layers * (cp - 1) * (forward + backward)


@pytest.mark.parametrize(("words", "said"), [
    ({"cp": 3, "batch": 8}, "--cp 3: 6 parts do not divide --seq-len 2048; nearest valid: 2046"),
    ({"cp": 16, "cp_comm": "all_to_all"}, "--cp 16 --cp-comm all_to_all: with --tp 1 does not divide 32 heads and 8"
     " kv_heads; expected --cp-comm ring"),
    ({"dp": 4, "ep": 4}, "--ep 4: llama-3.2-1b has no experts to spread; expected 1"),
    ({"tp": 2, "tp_overlap": True}, "--tp-overlap: needs --sp, whose collectives it overlaps; expected --sp"),
    ({"dp": 4, "ep_overlap": True}, "--ep-overlap: needs --ep, whose exchanges it overlaps; expected --ep 2 or more"),
    ({"model": "mixtral-8x7b", "dp": 8, "ep": 8, "ep_overlap": True}, "--ep-overlap: nothing runs beside the only"
     " micro-batch; expected 2 or more (--micro-batch)"),
    ({"lora": -1}, "--lora -1: expected 0 or more"),
])  # fmt: skip
def test_what_cannot_be_is_one_line(words: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        ask(**words)
    assert str(caught.value) == said


def test_unfused_attention_exchanges_heads_and_has_no_ring() -> None:
    with pytest.raises(UnsupportedError, match="no framework runs --attention math in a ring; expected flash, or"):
        ask(cp=2, attention="math")
    words = {"attention": "math", "cp_comm": "all_to_all", "recompute": "none"}
    for execution in ("eager", "megatron"):
        whole, found = ask(execution=execution, **words | {"cp_comm": "ring"}), ask(execution=execution, cp=4, **words)
        assert 4 * found.flops == pytest.approx(whole.flops, rel=2e-3)
        scores = [sum(n.op.flops() * times for n, times in nodes_of(each_, Gemm) if n.op.kind == "bmm")
                  for each_ in (whole, found)]  # fmt: skip
        assert 4 * scores[1] == scores[0] > 0
        sent = [n.op for n, _ in nodes_of(found, Collective)]
        tokens, q, kv = 2048 // 4, 32 * 64 * 2, 8 * 64 * 2
        assert sorted(op.size for op in sent) == sorted([tokens * n for n in (q, kv, kv, q)] * 2), "and back"
        assert all(op.kind == "all_to_all" and op.system for op in sent)
        assert found.memory.activations < 0.3 * whole.memory.activations


def test_experts_are_shared_out_and_tokens_sent_there_and_back() -> None:
    whole, found = ask("mixtral-8x7b", dp=8, batch=8), ask("mixtral-8x7b", dp=8, ep=8, batch=8)
    assert found.flops == pytest.approx(whole.flops, rel=0.01), "as many rows a rank, of fewer experts"
    products = [n.op for n, _ in nodes_of(found, Gemm) if n.op.kind == "grouped" and n.op.layout == "tn"]
    assert len(products) == 2 and all((op.batch, op.m) == (1, 2048 * 2) for op in products)
    sent = [(n.phase, n.op.size) for n, _ in nodes_of(found, Collective)]
    assert sent == [("forward", 2048 * 2 * 4096 * 2)] * 2 + [("backward", 2048 * 2 * 4096 * 2)] * 2
    kept = [each_.plan.parallel.kinds[0].parameters for each_ in (whole, found) if each_.plan.parallel]
    experts = 32 * 8 * 3 * 4096 * 14336
    assert kept[0] - kept[1] == experts * 7 // 8


@pytest.mark.parametrize("execution", ["megatron", "compile"])
def test_experts_take_half_as_long_forward_as_backward(execution: str) -> None:
    """Both run the same grouped products: half the FLOPs, and half the time with the kernels around them."""
    found = ask("mixtral-8x7b", dp=8, batch=8, ep=1 if execution == "compile" else 8, execution=execution)
    seconds, flops = {"forward": 0.0, "backward": 0.0}, {"forward": 0.0, "backward": 0.0}
    (timed,) = (stage for stage in found.timed if stage.stage.forward)
    for item in timed.op_times():
        if item.name.startswith("experts") and item.op.stream == COMPUTE:
            seconds[item.phase] += item.times * float(timed.table.latency_s[item.index])
            flops[item.phase] += item.times * item.op.flops()
    assert flops["forward"] == pytest.approx(0.5 * flops["backward"], rel=1e-3)
    assert 0.45 * seconds["backward"] < seconds["forward"] < 0.6 * seconds["backward"]


def test_experts_in_kernels_keep_the_edges_of_the_layer() -> None:
    """What a kernel of the layer reads is an input of the layer, or what one before it made; FLOPs are the layer's."""
    x = Tensor("x", ("tokens", "hidden"), (512, 64), "bf16")
    chosen = Tensor("routing", ("tokens", "expert"), (512, 2), "fp32")
    up = Tensor("experts up", ("expert", "mlp | mlp", "hidden"), (8, 256, 64), "bf16", WEIGHT)
    down = Tensor("experts down", ("expert", "hidden", "mlp"), (8, 64, 128), "bf16", WEIGHT)
    y = Tensor("experts", ("tokens", "hidden"), (512, 64), "bf16")
    op = MoE("bf16", 512, 64, 128, 8, 2)
    node = Node(op, "experts", (x, chosen, up, down), (y,), host_calls=26, part="experts", scope="experts")
    plain = Graph((Block("layer", (node,)),))
    (block,) = experts_apart(plain).blocks
    known = {id(t) for t in node.inputs}
    for each_ in block.nodes:
        assert {id(t) for t in each_.inputs} <= known, each_.name
        known |= {id(t) for t in each_.outputs}
    assert block.nodes[-1].outputs == (y,) and sum(n.host_calls for n in block.nodes) == 26
    products = [n.op for n in block.nodes if isinstance(n.op, Gemm)]
    assert sum(each_.flops() for each_ in products) == op.flops() == 2 * 512 * 2 * 3 * 64 * 128
    dense = Graph((Block("layer", (replace(node, op=Gemm("bf16", 512, 64, 64)),)),))
    assert experts_apart(dense) is dense


@pytest.mark.parametrize("execution", ["eager", "megatron"])
def test_adapters_alone_are_trained(execution: str) -> None:
    words = {"seq_len": 256, "batch": 1, "execution": execution}
    whole, found = ask(**words), ask(**words, lora=16)
    made = [n for n, _ in nodes_of(found, Gemm) if n.op.layout == "nt" and n.op.kind == "linear"]
    assert made and all("adapter" in n.name for n in made)
    trained = 16 * (16 * ((2048 + 2048) + 2 * (2048 + 512) + (2048 + 2048)))
    state = found.memory.optimizer
    assert state == pytest.approx(8 * trained)
    assert found.memory.gradients < 0.02 * whole.memory.gradients
    assert found.latency_s < 0.8 * whole.latency_s


def test_products_in_pieces_hide_what_they_wait_for() -> None:
    words = {"tp": 4, "sp": True, "seq_len": 4096}
    plain, pieces = ask("llama-3.1-8b", **words), ask("llama-3.1-8b", **words, tp_overlap=True)
    before, after = plain.summary().exposed_s["tensor"], pieces.summary().exposed_s["tensor"]
    assert 0 < after < 0.6 * before
    assert plain.flops == pieces.flops


def test_products_of_8_bits_are_cast_for_and_share_what_they_gather() -> None:
    found = ask("llama-3.1-8b", tp=2, sp=True, dtype="fp8")
    casts = [n for n, _ in nodes_of(found, Elementwise) if n.op.fn == "quantize"]
    assert {n.phase for n in casts} == {"forward", "backward"}
    gathers = [n for n, _ in nodes_of(found, Collective) if n.op.kind == "all_gather" and n.phase == "forward"]
    assert len([n for n in gathers if n.name.startswith(("attention", "mlp"))]) == 2
    assert not [n for n, _ in nodes_of(ask("llama-3.1-8b", tp=2, sp=True), Elementwise) if n.op.fn == "quantize"]


@pytest.mark.parametrize(("gpu", "peak"), [("a100-sxm-80gb", 312e12), ("v100-sxm-16gb", 125e12)])
def test_older_attention_has_its_published_rate(gpu: str, peak: float) -> None:
    """82 TFLOP/s with a width of 128, 8k tokens, not causal, on A100; as much of another board's peak."""
    board = load_gpu(gpu)
    op = Attention("fp16", 2, 16, 16, 8192, 8192, 128, 0, False)
    assert op.flops() / library_s(FLASH_1, op, board) == pytest.approx(82e12 * peak / 312e12, rel=0.02)
    assert library_s("flash 9", op, board) == 0.0


def test_software_of_2023_attends_slower() -> None:
    words = {"mode": "train", "batch": 8, "seq_len": 8192, "dp": 8, "shard": "zero3", "micro_batch": 1}
    old, new = (
        predictor.predict("mpt-7b", "a100-sxm-80gb", software=f"torch fsdp {year}", **words) for year in (2023, 2025)
    )
    assert old.latency_s > 1.1 * new.latency_s


def test_context_and_experts_are_shared_by_the_same_ranks() -> None:
    """Ranks along cp are among those that share the experts: they send the tokens of their part of each sequence."""
    words = {"seq_len": 4096, "batch": 8, "dp": 4}
    whole, found = ask("mixtral-8x7b", **words), ask("mixtral-8x7b", **words, cp=2, ep=4)
    sent = [n.op for n, _ in nodes_of(found, Collective) if n.op.kind == "all_to_all"]
    assert {op.ranks for op in sent} == {4}
    assert {op.size for op in sent} == {4096 // 2 * 2 * 4096 * 2}  # tokens of a part, two copies of each, in 16 bit
    assert 2 * found.flops == pytest.approx(whole.flops, rel=0.01)
    assert {n.op.batch for n, _ in nodes_of(found, Gemm) if n.op.kind == "grouped"} == {8 // 4}
    wide = ask("mixtral-8x7b", **words, cp=2)
    assert found.memory.weights < 0.5 * wide.memory.weights


BERT: dict[str, Any] = {"seq_len": 512, "batch": 16, "micro_batch": 0, "execution": "cuda_graph"}


def test_a_head_on_masked_tokens_works_out_their_logits_alone() -> None:
    whole, found = ask("bert-large", **BERT), ask("bert-large", **BERT, masked_tokens=76)
    assert ask("bert-large", **BERT, masked_tokens=0).latency_s == whole.latency_s
    h, vocab, rows = 1024, 30522, 16 * (512 - 76)
    less = 3 * 2 * rows * h * (vocab + h)  # products of the head and its transform, forward and twice backward
    assert whole.flops - found.flops == pytest.approx(less, rel=0.02)
    assert found.latency_s < whole.latency_s
    logits = rows * vocab * 2  # in 16 bit
    assert whole.memory.activations - found.memory.activations > 2 * logits  # of them, and what the loss saves


def test_packed_sequences_have_their_real_tokens_alone() -> None:
    packed, short = ask("bert-large", **BERT, mean_len=256), ask("bert-large", **BERT | {"seq_len": 256})
    assert (packed.latency_s, packed.tokens, packed.flops) == (short.latency_s, short.tokens, short.flops)
    assert packed.summary().workload.seq_len == 512
    every = ask("bert-large", **BERT, mean_len=512)
    assert every.latency_s == ask("bert-large", **BERT).latency_s


@pytest.mark.parametrize(("words", "said"), [
    ({"mean_len": 4096}, "--mean-len 4096: expected at most --seq-len 2048"),
    ({"masked_tokens": -1}, "--masked-tokens -1: expected 0 or more"),
    ({"masked_tokens": 300, "mean_len": 256}, "--masked-tokens 300: a sequence has 256 tokens; expected at most that"),
    ({"masked_tokens": 76}, "--masked-tokens 76: llama-3.2-1b has no masked-language-model head; expected a model that"
     " has one, such as bert-large, or 0"),
    ({"mode": "forward", "micro_batch": 0, "mean_len": 4}, "--mean-len 4: only --mode train takes it"),
])  # fmt: skip
def test_words_of_packed_and_masked_tokens_say_what_is_wrong(words: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        ask(**words)
    assert str(caught.value) == said


@pytest.mark.parametrize("degrees", [(4, 2, 4), (4, 2, 8), (2, 2, 4), (4, 2, 1), (4, 1, 4)])
def test_experts_fold_over_the_ranks_of_tp(degrees: tuple[int, int, int]) -> None:
    """--etp 1: ep of the tp x dp ranks have whole experts, each the tokens of its part of the sequences; FLOPs of all
    ranks are those of one, and a token is sent and brought back once."""
    tp, dp, ep = degrees
    words = {"seq_len": 4096, "batch": 8, "sp": True, "artifacts": "roofline"}
    found = ask("mixtral-8x7b", **words, tp=tp, dp=dp, ep=ep, etp=1)
    whole = ask("mixtral-8x7b", **words, tp=tp, dp=dp)
    products = [n.op for n, _ in nodes_of(found, Gemm) if n.op.kind == "grouped"]
    assert {op.batch for op in products} == {8 // ep}
    rows = 4096 * 2 // tp  # of the experts of a rank, as many as it sends
    forward = [op for op in products if op.layout == "tn"]
    assert {op.batch * op.m for op in forward} == {rows} and {op.n for op in forward} == {2 * 14336, 4096}
    flops, plain = (sum(n.op.flops() for n, _ in nodes_of(each_, Gemm) if n.op.kind == "grouped")
                    for each_ in (found, whole))  # fmt: skip
    assert flops == pytest.approx(plain, rel=1e-9), "whole experts on a part of the tokens, or a part on all of them"
    sent = [(n.op.ranks, n.op.size) for n, _ in nodes_of(found, Collective) if n.op.kind == "all_to_all"]
    assert sent == ([(ep, 4096 // tp * 2 * 4096 * 2)] * 4 if ep > 1 else [])
    assert found.plan.parallel is not None and whole.plan.parallel is not None
    mine, others = (each_.plan.parallel.kinds[0].parameters for each_ in (found, whole))  # type: ignore[union-attr]
    experts = 32 * 8 * 3 * 4096 * 14336
    assert mine - experts // ep == others - experts // tp


def test_etp_of_the_rule_changes_nothing_and_others_are_refused() -> None:
    words = {"seq_len": 1024, "batch": 8, "tp": 4, "sp": True, "dp": 2, "artifacts": "roofline"}
    plain = ask("mixtral-8x7b", **words, ep=2)
    assert ask("mixtral-8x7b", **words, ep=2, etp=4).latency_s == plain.latency_s
    for more, said in (
        ({"ep": 8}, "--ep 8: does not divide the 2 ranks of --dp x --cp; nearest valid: 2, or --etp 1 --sp, which"),
        ({"ep": 2, "etp": 2}, "--etp 2: 4 GPUs split the width of an expert here; expected 4 or 1"),
        ({"ep": 2, "etp": 1, "sp": False}, "--etp 1 with --tp 4: needs split sequences; expected"),
    ):  # fmt: skip
        with pytest.raises(RequestError) as caught:
            ask("mixtral-8x7b", **(words | more))
        assert str(caught.value).startswith(said)
    with pytest.raises(RequestError, match="has no experts; leave it out"):
        ask("llama-3.2-1b", etp=1)


#: Elements of mixtral-8x7b's experts, and of all its other weights, by hand: two tables, and by layer the matrices of
#: attention, the router and two norms; and the last norm.
EXPERTS = 32 * 8 * 3 * 4096 * 14336
OTHERS = 2 * 32000 * 4096 + 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 8 + 2 * 4096) + 4096


def once_a_step(found: Forecast) -> dict[str, tuple[int, int, int]]:
    """By name of what replicas exchange once a step: its ranks, those of a node, and its bytes over all buckets."""
    assert found.plan.parallel is not None
    (rank,) = found.plan.parallel.kinds
    stages = [found.timed[place].stage.graph for place in (rank.reduce, rank.gather) if place >= 0]
    return {
        n.name: (n.op.ranks, n.op.ranks_per_node, n.op.size * times)
        for graph in stages for n, times in graph.nodes() if isinstance(n.op, Collective)
    }  # fmt: skip


@pytest.mark.parametrize(("degrees", "replicas", "near"), [
    ({"dp": 8, "ep": 8}, 1, 1), ({"dp": 8, "ep": 4}, 2, 2), ({"dp": 16, "ep": 4}, 4, 2), ({"dp": 8}, 8, 8),
    ({"dp": 2, "cp": 4, "ep": 4}, 2, 2), ({"tp": 4, "sp": True, "dp": 2, "ep": 4, "etp": 1}, 2, 2),
    ({"tp": 4, "sp": True, "dp": 4, "ep": 2}, 2, 1), ({"tp": 8, "sp": True, "ep": 2, "etp": 1}, 4, 4),
])  # fmt: skip
def test_experts_have_replicas_of_their_own(degrees: dict[str, Any], replicas: int, near: int) -> None:
    """Of num_gpus / (pp x etp x ep) ranks: so many sum the gradients of the same experts, and share their optimizer
    state, beside the dp x cp ranks of all other weights."""
    words = {"batch": 16, "seq_len": 1024, "artifacts": "roofline", "recompute": "full"}
    found = ask("mixtral-8x7b", **words, **degrees, shard="zero1")
    tp, dense = degrees.get("tp", 1), degrees.get("dp", 1) * degrees.get("cp", 1)
    mine = EXPERTS // degrees.get("ep", 1) // (1 if "etp" in degrees else tp)
    memory = found.memory
    assert memory.optimizer == pytest.approx(8 * (OTHERS / tp / dense + mine / replicas), rel=2e-3)
    assert memory.gradients == pytest.approx(4 * (OTHERS / tp + mine), rel=2e-3)
    assert memory.weights == pytest.approx(2 * (OTHERS / tp + mine) + memory.optimizer / 2, rel=2e-3)
    sent = once_a_step(found)
    if degrees == {"dp": 8}:  # all weights have the same replicas
        assert sent["gradients reduce_scatter"] == (8, 8, pytest.approx(4 * (OTHERS + EXPERTS), rel=1e-3))
        return
    if dense > 1:
        assert sent["gradients reduce_scatter"][0] == sent["weights all_gather"][0] == dense
        assert sent["gradients reduce_scatter"][2] == pytest.approx(4 * OTHERS / tp, rel=5e-3)
    if replicas == 1:
        assert not [name for name in sent if name.startswith("experts")]
    else:
        assert sent["experts gradients reduce_scatter"] == (replicas, near, pytest.approx(4 * mine, rel=1e-3))
        assert sent["experts weights all_gather"] == (replicas, near, pytest.approx(2 * mine, rel=1e-3))


@pytest.mark.parametrize(("shard", "inner", "outer"), [("zero3", 4, 1), ("zero2", 4, 1), ("hsdp", 2, 2)])
def test_sharded_experts_are_gathered_from_their_replicas(shard: str, inner: int, outer: int) -> None:
    """16 replicas, 4 of them share the experts: 4 have the same ones, with hsdp 2 in each of 2 nodes."""
    words = {"batch": 16, "seq_len": 1024, "artifacts": "roofline", "execution": "eager"}
    found = ask("mixtral-8x7b", **words, dp=16, ep=4, shard=shard)
    assert found.plan.parallel is not None
    (unit,) = found.plan.parallel.units.values()
    layer = next(i for i, block in enumerate(found.plan.stages[unit.gather].graph.blocks) if block.repeat == 32)
    mine, others = EXPERTS // 32 // 4, 2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 8 + 2 * 4096
    gathers, reduces = (
        {n.name: (n.op.ranks, n.op.size) for n in found.plan.stages[place].graph.blocks[layer].nodes
         if isinstance(n.op, Collective)} for place in (unit.gather, unit.reduce)
    )  # fmt: skip
    dense = 16 // outer
    assert gathers == {"weights all_gather": (dense, 2 * others), "experts weights all_gather": (inner, 2 * mine)}
    wide = {"gradients reduce_scatter": (dense, 2 * others), "experts gradients reduce_scatter": (inner, 2 * mine)}
    if outer > 1:
        wide |= {
            "gradients all_reduce": (outer, 2 * others // dense), "experts gradients all_reduce": (outer, mine),
        }  # fmt: skip
    assert reduces == wide
    state = OTHERS / dense + 32 * mine / inner
    assert found.memory.optimizer == pytest.approx(8 * state, rel=1e-3)
    if shard != "zero2":  # a master copy with a part of the weights, and two layers at once
        assert found.memory.weights == pytest.approx(6 * state + 2 * 2 * (others + mine), rel=0.02)


def test_every_element_is_updated_once() -> None:
    """What the ranks of a step keep of the optimizer's state adds up to that of the whole model, however experts are
    spread; without replicas that share it, as often as ranks have the same."""
    words = {"batch": 16, "seq_len": 1024, "artifacts": "roofline"}
    for degrees in ({"dp": 16, "ep": 8}, {"tp": 2, "dp": 8, "ep": 4, "sp": True}, {"dp": 8, "cp": 2, "ep": 2},
                    {"tp": 4, "dp": 4, "ep": 8, "sp": True, "etp": 1}):  # fmt: skip
        over = ask("mixtral-8x7b", **words, **degrees, shard="zero1")
        assert over.memory.optimizer * 16 == pytest.approx(8 * (OTHERS + EXPERTS), rel=2e-3), degrees


#: DeepSeek-V3 on 2,048 H800: 15,360 sequences of 4,096 tokens a step, pp 16, ep 64 over 8 nodes, zero1, fp8
#: (arXiv:2412.19437, sections 3.2 and 4.2).
V3: dict[str, Any] = {
    "model": "deepseek-v3", "gpu": "h800", "batch": 15360, "seq_len": 4096, "pp": 16, "dp": 128, "ep": 64,
    "shard": "zero1", "stage_layers": (4,) * 15 + (1,), "dtype": "fp8_block", "all_to_all": "deepep",
}  # fmt: skip


def test_deepep_sends_a_token_once_to_each_node_that_it_picks_from() -> None:
    """DeepSeek-V3 picks from 4 of 8 groups of experts, a node each: 8 picks of 4 nodes alike fall on 3.6 of them. By
    hand, over the network: 4,096 x 3.6 x 7/8 rows of 7,168 bytes with a scale of 4 bytes for 128 of these; back in 16
    bit. An all_to_all sends a copy for each of the 8 picks."""
    found, copies = ask(**V3), ask(**V3 | {"all_to_all": "allgather"})
    sizes = {n.name: n.op.net_bytes() / n.op.local_ranks for n, _ in nodes_of(found, Exchange)}
    there = 4096 * 4 * (1 - 0.75**8) * 7 / 8 * 7168
    assert sizes["dispatch all_to_all"] == pytest.approx(there * (1 + 4 / 128), rel=1e-6)
    assert sizes["combine all_to_all"] == pytest.approx(there * 2, rel=1e-6)
    (every,) = {n.op.size for n, _ in nodes_of(copies, Collective) if n.op.kind == "all_to_all"}
    assert every == 4096 * 8 * 7168 * 2


def test_the_recipe_of_deepseek_v3_takes_what_its_report_says() -> None:
    """180,000 GPU hours for 10^12 tokens are 19.9 s for the 62.9 M tokens of a step."""
    published = 180e3 * 3600 / 2048 / (1e12 / (15360 * 4096))
    assert published == pytest.approx(19.9, abs=0.05)
    step, waits, copies = ask(**V3, ep_overlap=True), ask(**V3), ask(**V3 | {"all_to_all": "allgather"})
    assert step.latency_s == pytest.approx(published, rel=0.15)
    assert step.latency_s < 0.9 * waits.latency_s < 0.6 * copies.latency_s


def test_what_is_hidden_is_at_most_what_compute_covers() -> None:
    """Over slow links the exchanges of a pair of passes take longer than its compute, and the rest is waited for."""
    words: dict[str, Any] = {"batch": 64, "seq_len": 2048, "dp": 32, "ep": 8, "artifacts": "roofline"}
    for gpu in ("h100", "a100"):
        plain, beside = ask("mixtral-8x7b", gpu, **words), ask("mixtral-8x7b", gpu, **words, ep_overlap=True)
        sent = plain.summary().exposed_s["expert"]
        assert plain.latency_s - sent <= beside.latency_s * (1 + 1e-9), "compute is there"
        assert max(plain.latency_s - sent, sent) * (1 - 1e-9) <= beside.latency_s < plain.latency_s
        assert 0.0 < beside.summary().exposed_s["expert"] < sent, "compute takes longer beside it"


@pytest.mark.parametrize("gpu", ["h100", "a100"])
def test_exchanges_that_outlast_compute_are_waited_for(gpu: str) -> None:
    """Small experts over the network, two micro-batches: the pair of passes that run together hides no more than the
    compute of one of them."""
    words: dict[str, Any] = {"batch": 64, "seq_len": 2048, "dp": 32, "ep": 32, "artifacts": "roofline"}
    plain, beside = ask("qwen3-30b-a3b", gpu, **words), ask("qwen3-30b-a3b", gpu, **words, ep_overlap=True)
    sent, left = (answer.summary().exposed_s["expert"] for answer in (plain, beside))
    compute = plain.latency_s - sum(plain.summary().exposed_s.values())
    assert sent > compute
    assert left >= sent - compute / 2
