"""Serving on many GPUs: pipelines, attention data parallelism, experts over GPUs; conservation, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from predictor.errors import RequestError
from predictor.forecast.forecast import forecast
from predictor.graph import Graph
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import default_system, load_system
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.models.built import Step, build, load_config
from predictor.ops.base import Op
from predictor.ops.collective import Collective
from predictor.ops.exchange import Exchange
from predictor.ops.gemm import Gemm
from predictor.ops.moe import MoE
from predictor.passes.expert_parallel import spread_experts
from predictor.passes.mesh import Mesh
from predictor.passes.pipeline import layers_of, staged
from predictor.passes.shard import shard
from predictor.passes.tensor_parallel import TENSOR
from predictor.request.request import Request
from predictor.simulate.answer import Prediction
from predictor.simulate.stage import PIPELINE
from predictor.simulate.times import GAPS

MOE, DENSE = "qwen3-30b-a3b", "llama-3.1-8b"
H200 = default_system(load_gpu("h200"))


def asked(model: str = DENSE, gpu: str = "h200", **words: object) -> Prediction:
    given = {"mode": "decode", "batch": 64, "execution": "vllm", "artifacts": "roofline"} | words
    if given["mode"] == "decode":
        given.setdefault("context_len", 2000)
    return forecast(Request(model, gpu, **given).run()).prediction  # type: ignore[arg-type]


def mesh(ep: int = 1, exchange: str = "allgather", **degrees: int) -> Mesh:
    return Mesh(tuple(degrees.items()), H200, ep, exchange)


def of_experts(graph: Graph) -> list[MoE]:
    return [node.op for node, _ in graph.nodes() if isinstance(node.op, MoE)]


# ------------------------------------------------------------------------------------------------- degree 1, conserved


@pytest.mark.parametrize("model", [MOE, DENSE])
def test_degree_1_is_the_very_same_graph(model: str) -> None:
    graph = build(load_config(model), Step("decode", 8, 1, context_len=100, act_dtype="bf16", experts="whole"))
    one = mesh(tp=1)
    assert spread_experts(graph, one, False) is graph
    assert staged(graph, one, load_config(model).layers, 8, 64, "bf16").graph is graph
    assert asked(model).latency_s == asked(model, pp=1, dp=1, ep=1, all_to_all="deepep").latency_s


@pytest.mark.parametrize("degrees", [(8, 1, 8), (8, 1, 2), (1, 8, 8), (2, 4, 8), (1, 8, 1), (2, 4, 2)])
def test_the_work_of_experts_is_conserved(degrees: tuple[int, int, int]) -> None:
    """FLOPs, rows and weights of the experts of all GPUs together are those of one, whoever has which."""
    tp, dp, ep = degrees
    config = load_config(MOE)
    whole = build(config, Step("decode", 64, 1, context_len=100, act_dtype="bf16", experts="whole"))
    (one,) = set(of_experts(whole))
    own = build(config, Step("decode", 64 // dp, 1, context_len=100, act_dtype="bf16", experts="whole"))
    over = mesh(ep=ep, **{name: n for name, n in (("tp", tp), ("dp", dp)) if n > 1})
    (local,) = set(of_experts(spread_experts(shard(own, over, TENSOR), over, False)))
    gpus = tp * dp
    assert local.flops() * gpus == pytest.approx(one.flops())
    assert local.weights() * gpus == one.weights()
    assert (local.tp * local.ep, local.ep) == (gpus, ep)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
def test_experts_compute_the_rows_that_they_receive(engine: str) -> None:
    """64 H200, 128 sequences each, DeepEP: 8,192 tokens pick 8 of 256 experts, so that 1,024 rows come to the 4 experts
    of a GPU. By hand: 4 x 3 x 7168 x 2048 weights of a byte take 37 us at 4.8 TB/s, 1,024 rows of them 46 us at 1,979
    TFLOP/s. DeepGEMM's own groups of 4 x 256 rows run at 932 and 815 TFLOP/s on H800, 64.5 and 36.9 us (README.md of
    deepseek-ai/DeepGEMM@a6d97a1c). Where all tokens are on all GPUs, kernels pass over the rows of the others."""
    words = {"mode": "decode", "batch": 8192, "context_len": 4096, "dp": 64, "ep": 64, "dtype": "fp8"}

    def experts(way: str, kind: type[Op]) -> list[tuple[Any, float, float]]:
        found = forecast(Request("deepseek-v3", "h200", execution=engine, all_to_all=way, **words).run())
        (timed,) = found.timed
        table = timed.table
        times = [(item.op, float(table.latency_s[item.index]), float(table.lower_bound_s[item.index]))
                 for item in timed.op_times() if isinstance(item.op, kind)]  # fmt: skip
        return [each for each in times if getattr(each[0], "kind", "grouped") == "grouped"]

    ((op, everywhere, bound),) = experts("allgather", MoE)
    assert (op.tokens, op.expert_rows, op.dispatched) == (8192, 1024, False)
    assert not experts("deepep", MoE)
    products = experts("deepep", Gemm)
    assert {(each.batch, each.m, each.n, each.k) for each, _, _ in products} == {
        (4, 256, 4096, 7168), (4, 256, 7168, 2048),
    }  # fmt: skip
    assert sum(each.flops() for each, _, _ in products) == op.flops()
    assert sum(least for _, _, least in products) == pytest.approx(bound, rel=0.02) == pytest.approx(46e-6, rel=0.02)
    for product, seconds, _ in products:
        assert seconds == pytest.approx(64.5e-6 if product.k == 7168 else 36.9e-6, rel=0.25)
    assert sum(seconds for _, seconds, _ in products) < everywhere
    mine = replace(op, dispatched=True).received()
    assert (mine.tokens, mine.experts, mine.top_k, mine.ep) == (1024, 4, 1, 1)
    assert mine.flops() == op.flops() and mine.weights() == op.weights()


def test_what_deepep_brings_is_sorted_by_expert_in_decode_alone() -> None:
    """Prompts' rows are sorted by expert before the products, and summed behind them."""
    config = load_config(MOE)
    graph = build(config, Step("decode", 16, 1, context_len=100, act_dtype="bf16", experts="whole"))
    over = mesh(ep=8, exchange="deepep", dp=8)
    names = {
        prompts: [n.op.label for n, _ in spread_experts(graph, over, prompts).nodes() if n.name.startswith("experts")]
        for prompts in (False, True)
    }
    way = "expert exchange"
    assert names[False] == [way, "grouped", "element-wise", "grouped", way]
    assert names[True] == [way, "gather", "grouped", "element-wise", "grouped", "scatter add", way]
    before, after = (sum(t.nbytes for t, _ in g.weights()) for g in (
        spread_experts(graph, mesh(ep=8, exchange=way, dp=8), False) for way in ("nccl", "deepep")))  # fmt: skip
    assert before == after > 0


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_others_receive_costs_nothing_here(engine: str) -> None:
    """Twice the GPUs with twice the tokens and experts: the same rows of as many experts on each."""
    small = MoE("fp8", 4096, 7168, 2048, 128, 8, ep=32, distribution="random", dispatched=True)
    large = replace(small, tokens=8192, experts=256, ep=64)
    table = predict_kernels([small, large], load_gpu("h200"), load_artifacts(None), engine)
    assert table.latency_s[0] == pytest.approx(table.latency_s[1], rel=1e-12)
    for op in (small, large, replace(small, distribution="zipf:1"), replace(small, ep=2), replace(small, tokens=8)):
        mine = op.received()
        assert mine.tokens * mine.top_k == pytest.approx(op.expert_rows * op.skew, rel=0.01)
        assert mine.experts == op.local_experts and mine.top_k <= mine.experts
    assert replace(small, ep=1).received() == replace(small, ep=1)


@pytest.mark.parametrize("degrees", [{"pp": 2}, {"pp": 4, "tp": 2}, {"dp": 4}, {"dp": 2, "tp": 2, "pp": 2}])
def test_flops_of_a_run_are_those_of_one_gpu(degrees: dict[str, int]) -> None:
    for mode in ("prefill", "decode", "generate"):
        words = {"mode": mode} | ({} if mode == "decode" else {"seq_len": 512})
        assert asked(**words, **degrees).flops == pytest.approx(asked(**words).flops, rel=0.01)


def test_dp_of_a_dense_model_is_replicas() -> None:
    """Nothing to exchange: each rank is one GPU with its share of the batch."""
    both, one = asked(dp=4, batch=64), asked(batch=16)
    assert both.latency_s == one.latency_s
    assert both.memory.kv_cache == one.memory.kv_cache
    assert both.memory.largest_batch == pytest.approx(4 * (one.memory.largest_batch or 0), rel=0.01)  # less for NCCL


# --------------------------------------------------------------------------------------------------------- pipelines


@pytest.mark.parametrize("sizes", [(64, 4), (62, 4), (61, 8), (3, 3)])
def test_every_layer_is_on_one_stage(sizes: tuple[int, int]) -> None:
    layers, pp = sizes
    ranges = [layers_of(stage, layers, pp) for stage in range(pp)]
    assert [layer for first, last in ranges for layer in range(first, last)] == list(range(layers))
    each_has = [last - first for first, last in ranges]
    assert max(each_has) - min(each_has) <= 1


def test_a_pipeline_by_hand() -> None:
    """Decode steps wait for the slowest stage or for their own way; prompts pass once, one behind the other."""
    run = Request(DENSE, "h200", mode="decode", batch=64, context_len=2000, execution="vllm", pp=4).run()
    (timed,) = forecast(run).stages
    stages = [timeline.total_s for timeline in timed.pipeline]
    assert len(stages) == 4
    assert timed.passed_s == max(sum(stages), 4 * max(stages))
    assert timed.stage.in_flight == 4
    (prompts,) = forecast(
        Request(DENSE, "h200", mode="prefill", batch=8, seq_len=512, execution="vllm", pp=4).run()
    ).stages
    stages = [timeline.total_s for timeline in prompts.pipeline]
    assert prompts.passed_s == pytest.approx(sum(stages) + 3 * max(stages))


def test_what_holds_up_a_pipeline_adds_up() -> None:
    for words in ({"mode": "decode", "batch": 2}, {"mode": "prefill", "batch": 8, "seq_len": 512}):
        (timed,) = forecast(Request(DENSE, "h200", execution="vllm", pp=4, **words).run()).stages
        between = timed.between_s
        assert timed.kernels_s + sum(between.values()) == pytest.approx(timed.each_s)
        assert between[PIPELINE] > 0 and between[GAPS] > 0


def test_a_pipeline_sends_its_hidden_states() -> None:
    """Once a boundary, tokens x hidden in 16 bit; over the network where the stages are in different nodes."""
    config = load_config(DENSE)
    graph = build(config, Step("decode", 16, 1, context_len=100, act_dtype="bf16"))
    cut = staged(graph, mesh(tp=4, pp=4), config.layers, 16, config.hidden, "bf16")
    sent = [node.op for node, _ in cut.graph.nodes() if isinstance(node.op, Collective)]
    assert [op.size for op in sent] == [16 * config.hidden * 2] * 3
    assert [op.local_ranks for op in sent] == [2, 1, 2]
    assert cut.graph.flops() == graph.flops()
    assert sum(block.repeat for block in cut.graph.blocks if block.layers) == config.layers
    assert len(cut.ends) == 4 and cut.ends[-1] == len(cut.graph.blocks)


def test_a_pipeline_that_waits_is_not_bound_by_the_cpu() -> None:
    answer = asked(mode="prefill", seq_len=2048, batch=8, pp=2, artifacts=None)
    assert answer.between_s[PIPELINE] > 0.1 * answer.latency_s
    assert not answer.launch_bound and answer.host_s < 0.05 * answer.latency_s


def test_a_stage_keeps_its_layers() -> None:
    one, four = asked("qwen3-32b", pp=1), asked("qwen3-32b", pp=4)
    assert 0.25 < four.memory.weights / one.memory.weights < 0.28  # and the embedding, or the head
    assert four.memory.kv_cache == pytest.approx(one.memory.kv_cache / 4)


# ----------------------------------------------------------------------------------------------------------- experts


def test_tokens_come_to_experts_by_the_way_that_is_asked_for() -> None:
    config = load_config(MOE)
    graph = build(config, Step("decode", 16, 1, context_len=100, act_dtype="bf16", experts="whole"))

    def sent(how: str, prompts: bool = False) -> list[Collective]:
        spread = spread_experts(graph, mesh(ep=8, exchange=how, dp=8), prompts)
        return [node.op for node, _ in spread.nodes() if isinstance(node.op, Collective)][:2]

    assert [op.kind for op in sent("allgather")] == ["all_gather", "reduce_scatter"]
    assert [op.kind for op in sent("nccl")] == ["all_to_all", "all_to_all"]
    assert sent("nccl")[0].size == 16 * config.top_k * config.hidden * 2
    there = sent("deepep")[0]
    assert isinstance(there, Exchange) and there.way == "direct"
    assert [op.way for op in sent("deepep", True) if isinstance(op, Exchange)] == ["forwarded", "forwarded"]


def test_popular_experts_hold_up_all() -> None:
    """A skewed router loads one GPU more than the others: experts and exchange take longer than with an even one."""
    words = {"dp": 8, "ep": 8, "batch": 512, "all_to_all": "deepep", "artifacts": None}
    even, skewed = asked(MOE, **words), asked(MOE, **words, routing="zipf:1.2")

    def seconds(answer: Prediction, op: str) -> float:
        return sum(row.latency_s for row in answer.breakdown if row.op == op)

    for op in ("grouped", "expert exchange"):
        assert seconds(skewed, op) > 1.02 * seconds(even, op)


def test_experts_leave_memory_for_the_cache() -> None:
    one, eight = asked(MOE), asked(MOE, dp=8, ep=8)
    assert eight.memory.weights < one.memory.weights / 4
    assert eight.memory.weights > one.memory.weights / 8  # attention is on every rank
    assert eight.memory.weights == pytest.approx(asked(MOE, dp=8, ep=1).memory.weights, rel=0.01)


def test_tp_goes_over_nodes() -> None:
    """Over a rack of one NVLink network, or over two nodes and their network, which takes longer."""
    rack = load_system("gb200-nvl72")
    nodes = replace(rack, id="two-nodes", gpus_per_node=8, nics_per_node=8)
    one, two = (asked("llama-3.1-405b", "gb200", tp=16, batch=16, artifacts=None, system=own) for own in (rack, nodes))
    assert one.memory.weights < 0.51 * asked("llama-3.1-405b", "gb200", tp=8, batch=16).memory.weights
    assert one.latency_s < two.latency_s


def test_ragged_batches_are_dealt_to_ranks() -> None:
    lens = (4000, 100, 100, 4000)
    both = asked(batch=None, context_len=None, prompt_lens=lens, dp=2)
    assert both.latency_s == asked(batch=None, context_len=None, prompt_lens=(4000, 100)).latency_s


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        (DENSE, {"dp": 2, "ep": 2}, "--ep 2: llama-3.1-8b has no experts; expected 1"),
        (MOE, {"tp": 4, "ep": 8}, "--ep 8: does not divide the 4 ranks of --tp x --dp; nearest valid: 4"),
        (
            MOE,
            {"dp": 8, "ep": 2, "all_to_all": "deepep"},
            "needs whole experts, but 4 GPUs split each; expected --ep 8",
        ),
        (DENSE, {"dp": 3}, "--batch 64: the 3 ranks of --dp do not divide it; nearest valid: 63"),
        (DENSE, {"pp": 64, "batch": 64}, "--pp 64: llama-3.1-8b has 32 layers; expected at most 32"),
        ("flan-t5-xl", {"pp": 2}, "--pp 2: not built for an encoder-decoder .flan-t5-xl.; expected 1"),
        ("switch-base-8", {"dp": 2, "ep": 2, "execution": "eager"}, "switch-base-8 runs experts one by one"),
        (DENSE, {"cp": 2}, "--cp 2: not built yet for --mode decode"),
        (MOE, {"dp": 2, "ep": 2, "all_to_all": "nvshmem"}, "--all-to-all 'nvshmem': expected one of allgather"),
        (DENSE, {"tp": 16, "gpu": "h100-nvl"}, "has no network: expected at most 4 GPUs"),
    ],
)
def test_one_line_for_what_cannot_be(model: str, words: dict[str, object], said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        asked(model, **words)
    assert "\n" not in str(caught.value)


def test_each_stage_has_a_host_of_its_own() -> None:
    """Where launches are what takes time, four stages launch at a time: a quarter, but for filling and draining."""
    words = {"mode": "prefill", "seq_len": 512, "batch": 8, "launch_overhead": 5e-4}  # no pieces
    alone, four = asked(**words), asked(**words, pp=4)
    launched = four.latency_s / alone.latency_s
    assert 4 * 0.25 < launched < 7 * 0.25 + 0.1  # four passes, each of a quarter of the launches, seven at the end
