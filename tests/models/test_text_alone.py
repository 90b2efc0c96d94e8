"""Classes that have no pass without images, or with results as large as numbers say, have a forecast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import predictor
from predictor.models.step import Step
from predictor.models.traced.huggingface import traced_config
from predictor.ops.moe import MoE

pytest.importorskip("torch", reason="the extra torch is not installed")

DECODE = Step("decode", 3, context_len=64, act_dtype="bf16", attention="flash", logits="last")
TEXT: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300,
    "intermediate_size": 128, "head_dim": 16, "num_key_value_heads": 4,
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "cache"))


def test_a_model_of_images_whose_tower_cannot_be_made_is_its_language_model(tmp_path: Path) -> None:
    """Seven heads do not divide the tower's width; the second run finds the recording, and says the same."""
    tower = {"model_type": "siglip_vision_model", "hidden_size": 64, "num_attention_heads": 7}
    data = {"model_type": "llava", "text_config": TEXT, "vision_config": tower, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "config.json").write_text(json.dumps(TEXT), encoding="utf-8")
    text = predictor.predict(str(tmp_path / "text"), "h100", mode="decode", batch=2, context_len=64)
    for _ in range(2):
        answer = predictor.predict(str(tmp_path), "h100", mode="decode", batch=2, context_len=64)
        assert answer.parameters == text.parameters
        assert any("is forecast from its language model" in note for note in answer.notes)


def test_numbers_that_json_has_no_sign_for_are_read(tmp_path: Path) -> None:
    data = {
        "model_type": "falcon_h1", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 16,
        "num_key_value_heads": 2, "vocab_size": 300, "intermediate_size": 128, "mamba_d_ssm": 64, "mamba_n_heads": 4,
        "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1,
        "time_step_limit": [0.0, {"__float__": "Infinity"}],
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
    assert predictor.predict(str(tmp_path), "h100", mode="decode", batch=2, context_len=64).latency_s > 0.0


def test_tokens_that_choose_zero_experts_pass_none() -> None:
    """LongCat: of six choices two fall on the four zero experts beside eight, whose matrices nobody has."""
    data = {
        "model_type": "longcat_flash", "hidden_size": 64, "num_layers": 1, "num_attention_heads": 4, "vocab_size": 300,
        "ffn_hidden_size": 128, "expert_ffn_hidden_size": 32, "n_routed_experts": 8, "zero_expert_num": 4,
        "moe_topk": 6, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 16, "head_dim": 8,
    }  # fmt: skip
    source = traced_config(data, "small", "config.json").source
    recording = source.record(DECODE, None)
    experts = [node.op for node, _ in recording.graph.nodes() if isinstance(node.op, MoE)]
    assert [(op.top_k, op.experts) for op in experts] == [(4, 8)]
    assert source.module.model.layers[0].mlp.experts.gate_up_proj.shape == (8, 64, 64)


def test_a_language_model_without_a_class_is_made_in_that_of_its_images() -> None:
    """Step-3.5, whose class is that of Step-3.7 with images; its experts loop over what `nonzero` finds."""
    data = {
        "model_type": "step3p5", "architectures": ["Step3p5ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300, "sliding_window": 32,
        "intermediate_size": 128, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "share_expert_dim": 32, "layer_types": ["full_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse"],
    }  # fmt: skip
    source = traced_config(data, "small", "config.json").source
    experts = [node.op for node, _ in source.record(DECODE, None).graph.nodes() if isinstance(node.op, MoE)]
    assert [(op.top_k, op.experts) for op in experts] == [(2, 8)]
    assert not any("vision" in name for name, _ in source.module.named_parameters())


def test_two_stacks_inside_a_model_of_images_decode() -> None:
    """Florence 2: the width of what its encoder made is that of the language model inside."""
    text = {
        "model_type": "florence_language", "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 300,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
    }  # fmt: skip
    data = {"model_type": "florence2", "text_config": {**text, "model_type": "bart"}}
    recording = traced_config(data, "small", "config.json").source.record(DECODE, None)
    assert recording.mode == "decode" and not recording.notes
