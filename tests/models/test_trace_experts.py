"""Experts of transformers' classes are one operator, forward and backward, as builders have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from predictor.errors import UnsupportedError
from predictor.forecast.forecast import forecast
from predictor.models.built import Step
from predictor.models.traced.huggingface import traced_config
from predictor.ops import Gemm, MoE
from predictor.request.request import Request

pytest.importorskip("torch", reason="the extra torch is not installed")
pytest.importorskip("transformers", reason="the extra torch is not installed")

SIZES = {
    "hidden_size": 512, "intermediate_size": 768, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "vocab_size": 2000, "num_hidden_layers": 3, "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **SIZES, "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
#: Its matrices stand transposed, gate and up in turns.
GPT_OSS = {
    "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], **SIZES, "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
#: All of them run on all tokens, as two batched products.
LLAMA4 = {
    "model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"], **SIZES, "num_local_experts": 8,
    "num_experts_per_tok": 1, "intermediate_size_mlp": 768, "interleave_moe_layer_step": 1,
}  # fmt: skip


#: Experts one after the other, each on rows that numbers say.
SWITCH = {
    "model_type": "switch_transformers", "architectures": ["SwitchTransformersForConditionalGeneration"],
    "d_model": 512, "d_kv": 64, "d_ff": 8192, "num_layers": 2, "num_decoder_layers": 2, "num_sparse_encoder_layers": 1,
    "num_sparse_decoder_layers": 1, "num_heads": 8, "num_experts": 4, "expert_capacity": 64, "vocab_size": 2000,
    "dropout_rate": 0.1, "router_bias": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize("data", [MIXTRAL, SWITCH, LLAMA4], ids=["mixtral", "switch", "llama4"])
def test_built_and_traced_experts_agree(data: dict[str, Any], mode: str, tmp_path: Path) -> None:
    """Parameters exactly, FLOPs within 0.5 %, bytes within 5 %, the GPU's time within 3 % (a small Switch: 6 %)."""
    path = tmp_path / "small_config.json"
    wide = {"hidden_size": 2048, "intermediate_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    path.write_text(json.dumps(data | (wide if data is not SWITCH else {})))
    words: dict[str, Any] = {"mode": mode, "batch": 4, "seq_len": 512, "dtype": "bf16"}
    both = [forecast(Request(name, "h100", **words).run()) for name in (path, f"traced:{path}")]
    graphs = [one.plan.stages[0].graph for one in both]
    built, traced = (one.summary() for one in both)
    assert built.parameters == traced.parameters
    flops, moved = ([sum(of(node.op) * times for node, times in graph.nodes()) for graph in graphs]
                    for of in (lambda op: op.flops(), lambda op: op.bytes_moved()))  # fmt: skip
    assert flops[1] == pytest.approx(flops[0], rel=0.005)
    assert moved[1] == pytest.approx(moved[0], rel=0.05)
    close = 0.03 if data is not SWITCH else 0.06  # the class has two or three small kernels more a block
    assert traced.gpu_busy_s == pytest.approx(built.gpu_busy_s, rel=close)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_sublayer_of_t5_clamps_what_overflows_in_fp16(dtype: str, tmp_path: Path) -> None:
    """Kernels over all entries that T5Block adds to a sublayer in fp16: sizes, infinite ones, any, the clamp."""
    t5 = {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 512, "d_kv": 64, "d_ff": 1024,
        "num_layers": 2, "num_heads": 8, "vocab_size": 1000, "dropout_rate": 0.1,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(t5))
    words: dict[str, Any] = {"mode": "forward", "batch": 2, "seq_len": 128, "dtype": dtype}
    both = [forecast(Request(name, "h100", **words).run()) for name in (path, f"traced:{path}")]
    read = [
        sum(times for node, times in one.plan.stages[0].graph.nodes()
            if getattr(node.op, "elements", 0) == 2 * 128 * 512 and node.op.dtype == "bool")
        for one in both
    ]  # fmt: skip
    assert read == [2 * 2 * 5 if dtype == "fp16" else 0] * 2  # two layers of two sublayers, two of three
    built, traced = (one.summary() for one in both)
    assert traced.latency_s == pytest.approx(built.latency_s, rel=0.05)  # indices of the relative bias differ


def test_logits_that_are_divided_are_another_tensor(tmp_path: Path) -> None:
    """Granite's class divides the logits (modeling_granite.py), which are the largest tensors of a pass."""
    granite = {"model_type": "granite", "architectures": ["GraniteForCausalLM"], **SIZES, "vocab_size": 50000}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(granite))
    words: dict[str, Any] = {"mode": "forward", "batch": 4, "seq_len": 256, "dtype": "bf16"}
    built, traced = (forecast(Request(name, "h100", **words).run()) for name in (path, f"traced:{path}"))
    assert built.memory.activations == traced.memory.activations == 2 * 4 * 256 * 50000 * 2.0


@pytest.mark.parametrize("data", [MIXTRAL, GPT_OSS])
def test_experts_are_one_operator_and_four_gradients(data: dict[str, Any]) -> None:
    source = traced_config(data, "small", "config.json").source
    found = source.record(Step("train", 2, 128, act_dtype="bf16", attention="flash", training=True), False)
    nodes = [(node, times) for node, times in found.graph.nodes() if node.scope.endswith("experts")]
    whole = [(node.op, times) for node, times in nodes if isinstance(node.op, MoE)]
    assert {op for op, _ in whole} == {MoE("bf16", 256, 512, 768, 8, 2, distribution="random")}
    assert sum(times for _, times in whole) == 3
    back = [node.op for node, times in nodes for _ in range(int(times)) if isinstance(node.op, Gemm)]
    assert len(back) == 12 and sum(op.flops() for op in back) == pytest.approx(2 * 3 * whole[0][0].flops())
    gradients = {t.shape for node, _ in nodes for t in node.outputs if t.role == "gradient"}
    matrices = [p for p in source.module.parameters() if p.dim() == 3]
    assert {tuple(p.shape) for p in matrices} <= gradients


def test_experts_of_llama_4_all_run_on_all_tokens_where_the_class_does(tmp_path: Path) -> None:
    """Eight experts of 2 x 3 x 512 x 768 FLOP a token each (Llama4TextExperts); an engine runs the picked one."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA4))

    def experts(execution: str, **words: Any) -> list[Any]:
        (stage,) = forecast(Request(path, "h100", execution=execution, **words).run()).plan.stages
        nodes = [(node, times) for node, times in stage.graph.nodes() if node.part == "experts"]
        return [(node.op, node.phase) for node, times in nodes for _ in range(round(times))]

    words: dict[str, Any] = {"mode": "forward", "batch": 2, "seq_len": 64, "dtype": "bf16"}
    products = [op for op, _ in experts("eager", **words)]
    assert {(op.batch, op.m, op.n, op.k, op.kind) for op in products} == {
        (8, 128, 2 * 768, 512, "bmm"), (8, 128, 512, 768, "bmm"),
    }  # fmt: skip
    assert sum(op.flops() for op in products) == 3 * 8 * 128 * 2 * 3 * 512 * 768
    (picked,) = {op for op, _ in experts("vllm", **words | {"mode": "prefill"})}
    assert isinstance(picked, MoE) and (picked.experts, picked.top_k) == (8, 1)
    narrow = forecast(Request(path, "h100", **words | {"dtype": "fp8"}).run())
    assert {op.dtype for op, _ in experts("eager", **words | {"dtype": "fp8"})} == {"bf16"}
    assert any("stay in bf16: its class runs all as one product" in note for note in narrow.run.numbers.notes)
    assert narrow.memory.weights > 3 * 8 * 3 * 512 * 768 * 2.0


@pytest.mark.parametrize("words", [{"mode": "train", "ep": 2, "dp": 2}, {"mode": "decode", "dp": 2, "tp": 1}])
def test_experts_that_a_class_runs_on_all_tokens_are_not_spread(words: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA4))
    with pytest.raises(UnsupportedError, match=r"on all tokens,? here; expected"):
        forecast(Request(path, "h100", execution="eager", batch=2, **words).run())


@pytest.mark.parametrize(("tokens", "rows"), [(64, 32), (512, 128)])
def test_experts_in_a_loop_have_even_rows_up_to_their_capacity(tokens: int, rows: int) -> None:
    """Two sequences over four experts: 16 rows of each sequence, or the 64 that an expert takes of one."""
    source = traced_config(SWITCH, "small", "config.json").source
    found = source.record(Step("forward", 2, tokens, act_dtype="bf16", attention="flash"), None)
    products = [n.op for n, times in found.graph.nodes() for _ in range(int(times)) if ".experts.expert_" in n.scope]
    sizes = {(op.m, op.n, op.k) for op in products if isinstance(op, Gemm)}
    assert sizes == {(rows, 8192, 512), (rows, 512, 8192)}
    assert sum(isinstance(op, Gemm) for op in products) == 2 * 4 * 2  # two sparse layers, four experts, two products


def test_a_head_of_its_own_is_counted_where_a_config_says_so() -> None:
    """T5's class of transformers 5 ties every head, checkpoints of T5 1.1 have their own."""
    t5 = {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 64, "d_kv": 16, "d_ff": 128,
        "num_layers": 2, "num_heads": 4, "vocab_size": 1000, "feed_forward_proj": "gated-gelu",
    }  # fmt: skip
    tied, own = (
        traced_config({**t5, "tie_word_embeddings": tie}, "small", "config.json").source.parameters()
        for tie in (True, False)
    )
    assert own - tied == 1000 * 64


@pytest.mark.parametrize(("execution", "casts"), [("eager", 0), ("megatron", 2)])
def test_a_router_of_groups_costs_the_host_the_calls_of_its_class(execution: str, casts: int) -> None:
    """DeepSeek-V3's router, counted while transformers' class runs it: 26 or 27 calls, both casts among them.
    Megatron Core 0.16.1 (moe_utils.py: topk_routing_with_score_function, group_limited_topk) makes 29 behind its
    product, so that a decode step under Megatron is held back by no fewer."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    class Calls(TorchDispatchMode):  # type: ignore[misc]
        count = 0

        def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += 1
            return call(*args, **(kwargs or {}))

    router = DeepseekV3TopkRouter(DeepseekV3Config(hidden_size=64)).to(torch.bfloat16)
    with torch.no_grad(), Calls() as calls:
        router(torch.zeros(2, 1, 64, dtype=torch.bfloat16))
    words = {"mode": "decode", "execution": execution, "batch": 1, "context_len": 1024}
    (stage,) = forecast(Request("deepseek-v3", "h200", **words).run()).plan.stages  # type: ignore[arg-type]
    block = next(block for block in stage.graph.blocks if block.repeat > 3)
    ours = sum(node.host_calls for node in block.nodes if node.scope == "router")
    assert abs(ours - (calls.count - casts)) <= 2
