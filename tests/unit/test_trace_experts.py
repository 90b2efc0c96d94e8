"""Experts of transformers' classes are one operator, forward and backward, as builders have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from predictor.forecast import forecast
from predictor.frontends.huggingface import traced_config
from predictor.networks import Step
from predictor.ops import Gemm, MoE
from predictor.request import Request

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


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_built_and_traced_experts_agree(mode: str, tmp_path: Path) -> None:
    """Parameters exactly, FLOPs within 0.5 %, bytes within 5 %, the GPU's time within 3 %."""
    path = tmp_path / "small_config.json"
    wide = {"hidden_size": 2048, "intermediate_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    path.write_text(json.dumps(MIXTRAL | wide))
    words: dict[str, Any] = {"mode": mode, "batch": 4, "seq_len": 512}
    both = [forecast(Request(name, "h100", **words).run()) for name in (path, f"traced:{path}")]
    graphs = [one.plan.stages[0].graph for one in both]
    built, traced = (one.summary() for one in both)
    assert built.parameters == traced.parameters
    flops, moved = ([sum(of(node.op) * times for node, times in graph.nodes()) for graph in graphs]
                    for of in (lambda op: op.flops(), lambda op: op.bytes_moved()))  # fmt: skip
    assert flops[1] == pytest.approx(flops[0], rel=0.005)
    assert moved[1] == pytest.approx(moved[0], rel=0.05)
    assert traced.gpu_busy_s == pytest.approx(built.gpu_busy_s, rel=0.03)


@pytest.mark.parametrize("data", [MIXTRAL, GPT_OSS])
def test_experts_are_one_operator_and_four_gradients(data: dict[str, Any]) -> None:
    source = traced_config(data, "small", "config.json").traces
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


def test_a_head_of_its_own_is_counted_where_a_config_says_so() -> None:
    """T5's class of transformers 5 ties every head, checkpoints of T5 1.1 have their own."""
    t5 = {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 64, "d_kv": 16, "d_ff": 128,
        "num_layers": 2, "num_heads": 4, "vocab_size": 1000, "feed_forward_proj": "gated-gelu",
    }  # fmt: skip
    tied, own = (
        traced_config({**t5, "tie_word_embeddings": tie}, "small", "config.json").traces.parameters()
        for tie in (True, False)
    )
    assert own - tied == 1000 * 64
