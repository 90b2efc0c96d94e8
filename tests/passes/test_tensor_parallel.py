"""Tensor parallelism: degree 1 changes nothing, work is conserved, a GPU holds less, bad degrees end in one line."""

from __future__ import annotations

from dataclasses import replace

import pytest

import predictor
from predictor.errors import RequestError, UnsupportedError
from predictor.graph import Graph
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import default_system
from predictor.models.built import ModelConfig, Step, build, load_config, parameters
from predictor.ops import Attention, Gemm, MoE
from predictor.ops.collective import Collective
from predictor.passes.mesh import Mesh
from predictor.passes.shard import local_size, shard
from predictor.passes.tensor_parallel import TENSOR
from predictor.simulate.lower import Lowering, lower
from tests.catalogue import MODELS

H100 = load_gpu("h100")
NODE = default_system(H100)
PREFILL = Step("prefill", 2, 96, act_dtype="bf16", attention="flash", logits="last", experts="whole")
DECODE = Step("decode", 8, 1, 700, act_dtype="bf16", attention="flash", logits="last", experts="whole")
FORWARD = Step("forward", 2, 96, act_dtype="bf16", attention="math")


def mesh(tp: int) -> Mesh:
    return Mesh((("tp", tp),), NODE)


def works(config: ModelConfig, tp: int) -> bool:
    try:
        config.check_tensor(tp)
    except RequestError:
        return False
    return True


CASES = [(name, tp) for name in MODELS for tp in (2, 4, 8) if works(load_config(name), tp)]


def products(config: ModelConfig, step: Step, tp: int = 1) -> float:
    """FLOPs of matrix products on one GPU."""
    kinds = (Gemm, Attention, MoE)
    return sum(
        n.op.flops() * times for n, times in lower(Lowering(config, step, mesh(tp))).nodes() if isinstance(n.op, kinds)
    )


def written(graph: Graph) -> list[object]:
    """All that a graph says, with numbers for its tensors."""
    numbers: dict[int, int] = {}
    return [
        (block.name, block.repeat, node.op, node.name, node.count, node.host_calls, node.share,
         [(repr(t), numbers.setdefault(id(t.storage), len(numbers))) for t in (*node.inputs, *node.outputs)])
        for block in graph.blocks
        for node in block.nodes
    ]  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_degree_one_changes_nothing(name: str) -> None:
    graph = build(load_config(name), FORWARD)
    assert shard(graph, mesh(1), TENSOR) is graph
    assert written(lower(Lowering(load_config(name), FORWARD))) == written(graph)


@pytest.mark.parametrize(("name", "tp"), CASES)
def test_flops_are_conserved_over_the_gpus(name: str, tp: int) -> None:
    """The GPUs together do what one does, and again what each does for itself: routers, latent projections, KV heads
    that are fewer than the GPUs, poolers, padding of the vocabulary. That is at most what these take on one GPU."""
    config = load_config(name)
    whole, parts = products(config, FORWARD), tp * products(config, FORWARD, tp)
    assert parts >= whole * (1 - 1e-12)
    vocab = config.vocab % tp == 0 or config.head not in ("lm", "pretraining")
    shares = not config.experts and not config.is_mla and config.kv_heads % tp == 0 and not config.embed_width
    if vocab and shares and config.model_type != "bert":
        assert parts == pytest.approx(whole, rel=1e-12)
    else:
        assert parts < 1.35 * whole


@pytest.mark.parametrize("step", [PREFILL, DECODE])
def test_collectives_of_a_decoder(step: Step) -> None:
    """An all_reduce of tokens x hidden after attention and feed-forward of every layer and after the embedding, and an
    all_gather of the logits of the last tokens."""
    config = load_config("llama-3.1-70b")
    found = [
        (n.op, times) for n, times in lower(Lowering(config, step, mesh(4))).nodes() if isinstance(n.op, Collective)
    ]
    reduces = [(op, times) for op, times in found if op.kind == "all_reduce"]
    assert {op.size for op, _ in reduces} == {step.tokens * config.hidden * 2}
    assert sum(times for _, times in reduces) == 2 * config.layers + 1
    gathers = [(op, times) for op, times in found if op.kind == "all_gather"]
    assert [(op.size, times) for op, times in gathers] == [(step.batch * config.vocab * 2, 1)]
    assert {op.ranks for op, _ in found} == {4}


def test_few_kv_heads_are_copied() -> None:
    config = replace(load_config("llama-3.1-8b"), kv_heads=2)
    op = next(n.op for n, _ in lower(Lowering(config, DECODE, mesh(8))).nodes() if isinstance(n.op, Attention))
    assert (op.heads, op.kv_heads) == (4, 1)


def test_experts_are_split_by_width() -> None:
    config = load_config("mixtral-8x7b")
    op = next(n.op for n, _ in lower(Lowering(config, PREFILL, mesh(4))).nodes() if isinstance(n.op, MoE))
    assert (op.intermediate, op.tp, op.experts) == (config.moe_intermediate, 4, config.experts)


@pytest.mark.parametrize(("name", "tp"), [(n, tp) for n, tp in CASES if tp == 4])
def test_what_a_gpu_holds(name: str, tp: int) -> None:
    """By the counts of the parts, and by the tensors of the graph that it runs."""
    config = load_config(name)
    held = parameters(config, local_size(mesh(tp), TENSOR))
    assert parameters(config) / tp <= held < parameters(config)
    assert lower(Lowering(config, FORWARD, mesh(tp))).parameters() == held


def test_memory_and_time_fall_with_the_degree() -> None:
    runs = [
        predictor.predict("llama-3.1-70b", H100, mode="decode", context_len=2048, batch=16, execution="vllm", tp=tp)
        for tp in (1, 2, 4, 8)
    ]
    for more, fewer in zip(runs[1:], runs, strict=False):
        assert more.memory.total < fewer.memory.total
        assert more.memory.kv_cache == pytest.approx(fewer.memory.kv_cache / 2)
        assert more.latency_s < fewer.latency_s
        assert more.parameters == fewer.parameters
        assert more.flops == pytest.approx(fewer.flops, rel=0.01)
    assert runs[2].tokens_per_s_per_gpu == pytest.approx(runs[2].tokens_per_s / 4)
    assert not runs[0].memory.fits
    assert runs[3].memory.fits


def test_slower_links_cost_time() -> None:
    words = {"mode": "prefill", "seq_len": 2048, "execution": "vllm", "tp": 4}
    fast = predictor.predict("llama-3.1-70b", H100, **words)  # type: ignore[arg-type]
    slow = predictor.predict("llama-3.1-70b", H100, system="pcie-gen4", **words)  # type: ignore[arg-type]
    assert slow.latency_s > fast.latency_s
    assert slow.workload.system is not None
    assert slow.workload.system.id == "pcie-gen4"


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        ("gpt2", {"tp": 5}, ("--tp 5", "12 heads", "nearest valid: 4")),
        ("llama-3.1-8b", {"tp": 3}, ("32 heads", "8 kv_heads", "intermediate 14336", "nearest valid: 2")),
        ("gpt2", {"tp": 2, "num_gpus": 4}, ("--num-gpus 4", "--tp 4")),
        ("gpt2", {"num_gpus": 2}, ("--num-gpus 2", "--tp 2")),
        ("gpt2", {"tp": 2, "system": "dgx"}, ("dgx-h100",)),
    ],
)
def test_bad_degrees_end_in_one_line(model: str, words: dict[str, object], said: tuple[str, ...]) -> None:
    with pytest.raises(RequestError) as caught:
        predictor.predict(model, H100, **words)  # type: ignore[arg-type]
    assert all(part in str(caught.value) for part in said), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", [{"cp": 2}, {"pp": 2}])
def test_what_is_not_built_is_refused(words: dict[str, object]) -> None:
    with pytest.raises(UnsupportedError, match="not built"):
        predictor.predict("llama-3.1-70b", H100, **words)  # type: ignore[arg-type]
