"""Small config.json dictionaries of the model types of the table, for tests that build them."""

from __future__ import annotations

from typing import Any

_SMALL: dict[str, Any] = {
    "hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 512,
    "intermediate_size": 384, "max_position_embeddings": 512, "pad_token_id": None,
}  # fmt: skip
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
_SHARED = {"shared_expert_intermediate_size": 160}
_DELTA = {
    "head_dim": 32, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}  # fmt: skip
_SPARSE = {
    "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 32,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "n_shared_experts": 1,
    "first_k_dense_replace": 2, "index_n_heads": 4, "index_head_dim": 32, "index_topk": 16, "num_key_value_heads": 8,
    "num_hidden_layers": 5, "n_group": 4, "topk_group": 2,
}  # fmt: skip
#: Model type, as a text config names it -> what its config.json has beside `_SMALL`.
_MORE: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("granite", "olmo2", "smollm3", "starcoder2", "stablelm", "phi", "nemotron", "cohere")},
    **{name: {"head_dim": 32} for name in ("gemma", "glm4", "qwen3_vl_text")},
    "gpt_oss": {"head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": {**_EXPERTS, **_SHARED},
    "minimax_m2": {"head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3_next": {**_EXPERTS, **_SHARED, **_DELTA},
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": {**_EXPERTS, **_SHARED, **_DELTA},
    "qwen3_vl_moe_text": {**_EXPERTS, "head_dim": 32},
    "llama4_text": {
        "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 512,
        "interleave_moe_layer_step": 2,
    },
    "glm_moe_dsa": _SPARSE,
    "deepseek_v32": _SPARSE,
    "kimi_linear": {
        "q_lora_rank": None, "kv_lora_rank": 64, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 32,
        "num_experts": 8, "num_experts_per_token": 2, "moe_intermediate_size": 96, "num_shared_experts": 1,
        "first_k_dense_replace": 1, "num_key_value_heads": 8, "model_max_length": 512,
        "linear_attn_config": {"kda_layers": [1, 2, 3, 5, 6, 7], "full_attn_layers": [4, 8], "num_heads": 4,
                               "head_dim": 16, "short_conv_kernel_size": 4},
    },
    "nemotron_h": {
        "hybrid_override_pattern": "M-M*EM-E", "head_dim": 32, "mamba_num_heads": 8, "mamba_head_dim": 16,
        "ssm_state_size": 32, "n_groups": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 96, "moe_shared_expert_intermediate_size": 160,
    },
    "mimo_v2_flash": {
        "head_dim": 32, "v_head_dim": 16, "swa_head_dim": 32, "swa_v_head_dim": 16, "swa_num_attention_heads": 8,
        "swa_num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
        "layer_types": [f"{kind}_attention" for kind in ("full", *["sliding"] * 4, "full", *["sliding"] * 2)],
        "mlp_layer_types": ["dense", *["sparse"] * 7],
    },
}  # fmt: skip
TYPES = tuple(_MORE)
#: Types whose classes are in their checkpoints' repositories alone.
ELSEWHERE: dict[str, dict[str, Any]] = {
    "mimo": {},
    "kimi_k2": {**_SPARSE, "architectures": ["DeepseekV3ForCausalLM"]},
    "nemotron-nas": {
        "block_configs": [
            {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 1.5}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 0.5}},
        ] * 3 + [{"attention": {"no_op": True}, "ffn": {"no_op": True}}] * 2,
    },
}  # fmt: skip


def small(model_type: str) -> dict[str, Any]:
    """The keys of a small model of a type."""
    of = _MORE.get(model_type, ELSEWHERE.get(model_type))
    assert of is not None, model_type
    return {**_SMALL, **of, "model_type": model_type}
