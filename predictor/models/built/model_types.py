"""Model types as data: what the configuration class of each says, one entry a type.

An entry names the class, its defaults, what of a `ModelConfig` is fixed (``fields``) and what keys of a config.json say
(``keys``: field -> (key, default); of keys with "|" between them the first that is there). Layers that differ in more
than experts and windows have a rule of `predictor.models.built.layer_rules`. Source: configuration_*.py and
modeling_*.py of transformers 5, a pair for each type, or of the checkpoint's own repository (mimo, kimi_k2,
nemotron-nas).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Field of a `ModelConfig` -> (key of a config.json, default).
Keys = dict[str, tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Traits:
    """One model type. ``kv_heads`` None: all attention heads; ``head_dim`` 0: width over heads.

    ``windows``: which layers have a sliding window: "" none; "types" those that "layer_types" names, else the rest of
    the word says ("types all", "types even", "types 5 of 6", "types late"). ``switch``: the key that has to be true for
    windows at all. ``merged``: fields that a merged checkpoint has. ``inner``: of a "text_config" the text alone.
    """

    architecture: str
    intermediate: int
    positions: int
    kv_heads: int | None = None
    head_dim: int = 0
    tie: bool = False
    activation: str = "silu"
    activation_key: str = "hidden_act"
    windows: str = ""
    window: int = 0
    switch: str = ""
    rotary: float = 1.0  # share of a head that is rotated, where no key says so
    fields: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, tuple[str, Any]] = field(default_factory=dict)
    layers: str = ""


# What several entries share; numbers by definition of the types' configuration classes (source: see above).
_BIAS: Keys = {"qkv_bias": ("attention_bias", False), "out_bias": ("attention_bias", False)}
_GEMMA = {"norm_plus_one": True, "embed_scale": True}
_LAYER_NORM = {"norm": "layer", "norm_bias": True}
_PLAIN_MLP = {"gated": False, "qkv_bias": True, "out_bias": True, "mlp_bias": True}
_TANH: dict[str, Any] = {"activation": "gelu_pytorch_tanh", "activation_key": "hidden_activation"}
_QWEN_MOE: Keys = {
    "experts": ("num_local_experts|num_experts", 128), "top_k": ("num_experts_per_tok", 8),
    "moe_intermediate": ("moe_intermediate_size", 768), "sparse_step": ("decoder_sparse_step", 1),
    "dense_layers": ("mlp_only_layers", ()),
}  # fmt: skip
_SHARED: Keys = {"shared_width": ("shared_expert_intermediate_size", 512)}
_DELTA: Keys = {
    "state_heads": ("linear_num_key_heads", 16), "state_v_heads": ("linear_num_value_heads", 32),
    "state_dim": ("linear_key_head_dim", 128), "state_v_dim": ("linear_value_head_dim", 128),
    "taps": ("linear_conv_kernel_dim", 4),
}  # fmt: skip
_NEXT = {"norm_plus_one": True, "qk_norm": True, "attention_gate": True}
_LATENT: Keys = {
    "q_lora_rank": ("q_lora_rank", 1536), "kv_lora_rank": ("kv_lora_rank", 512),
    "qk_nope_dim": ("qk_nope_head_dim", 128), "qk_rope_dim": ("qk_rope_head_dim", 64),
    "v_head_dim": ("v_head_dim", 128),
}  # fmt: skip
_V3_EXPERTS: Keys = {
    "experts": ("n_routed_experts", 256), "top_k": ("num_experts_per_tok", 8),
    "moe_intermediate": ("moe_intermediate_size", 2048), "shared_experts": ("n_shared_experts", 1),
    "first_dense": ("first_k_dense_replace", 3),
}  # fmt: skip
_V3 = Traits("DeepseekV3ForCausalLM", 18432, 4096, keys=_BIAS | _LATENT | _V3_EXPERTS)
_INDEX: Keys = {
    "index_heads": ("index_n_heads", 64),
    "index_dim": ("index_head_dim", 128),
    "index_topk": ("index_topk", 2048),
}

#: Every number by definition of the type's configuration class (source: see above).
TRAITS: Mapping[str, Traits] = {
    "llama": Traits("LlamaForCausalLM", 11008, 2048, keys=_BIAS | {"mlp_bias": ("mlp_bias", False)}),
    "mistral": Traits("MistralForCausalLM", 14336, 131072, 8, windows="types all", window=4096),
    "qwen2": Traits("Qwen2ForCausalLM", 22016, 32768, 32, windows="types late", window=4096,
                    switch="use_sliding_window", fields={"qkv_bias": True}),
    "qwen3": Traits("Qwen3ForCausalLM", 22016, 32768, 32, 128, windows="types late", window=4096,
                    switch="use_sliding_window", fields={"qk_norm": True}, keys=_BIAS),
    "phi3": Traits("Phi3ForCausalLM", 8192, 4096, windows="types all",
                   fields={"merged_qkv": True, "merged_gate_up": True},
                   keys={"residual_dropout": ("resid_pdrop", 0.0)}),
    "gemma2": Traits("Gemma2ForCausalLM", 9216, 8192, 4, 256, True, **_TANH, windows="types even", window=4096,
                     fields=_GEMMA | {"post_norms": True},
                     keys=_BIAS | {"attention_softcap": ("attn_logit_softcapping", 50.0),
                                   "final_softcap": ("final_logit_softcapping", 30.0)}),
    "gemma3_text": Traits("Gemma3ForCausalLM", 9216, 131072, 4, 256, True, **_TANH, windows="types 5 of 6", window=4096,
                          fields=_GEMMA | {"post_norms": True, "qk_norm": True},
                          keys=_BIAS | {"attention_softcap": ("attn_logit_softcapping?", 0.0),
                                        "final_softcap": ("final_logit_softcapping?", 0.0)}),
    "mixtral": Traits("MixtralForCausalLM", 14336, 131072, 8, windows="types all",
                      keys={"experts": ("num_local_experts", 8), "top_k": ("num_experts_per_tok", 2),
                            "moe_intermediate": ("intermediate_size", 14336)}),
    "qwen3_moe": Traits("Qwen3MoeForCausalLM", 6144, 32768, 4, windows="types all", window=4096,
                        switch="use_sliding_window", fields={"qk_norm": True}, keys=_BIAS | _QWEN_MOE),
    "deepseek_v2": Traits("DeepseekV2ForCausalLM", 11008, 2048,
                          keys=_BIAS | _LATENT | {"experts": ("n_routed_experts", 64),
                                                  "top_k": ("num_experts_per_tok", None),
                                                  "moe_intermediate": ("moe_intermediate_size", 1407),
                                                  "shared_experts": ("n_shared_experts", 2),
                                                  "first_dense": ("first_k_dense_replace", 0),
                                                  "mlp_bias": ("mlp_bias?", False)}),
    "deepseek_v3": _V3,
    # Llama-like dense types.
    "granite": Traits("GraniteForCausalLM", 11008, 2048, fields={"embed_scale": True, "residual_scale": True},
                      keys=_BIAS | {"mlp_bias": ("mlp_bias", False)}),
    "olmo2": Traits("Olmo2ForCausalLM", 11008, 2048,
                    fields={"lead_norms": False, "post_norms": True, "qk_norm": True, "qk_norm_all": True}, keys=_BIAS),
    "smollm3": Traits("SmolLM3ForCausalLM", 11008, 32768, 4, tie=True, windows="types late",
                      switch="use_sliding_window", keys=_BIAS | {"mlp_bias": ("mlp_bias", False)}, layers="no rotary"),
    "starcoder2": Traits("Starcoder2ForCausalLM", 12288, 4096, 2, tie=True, activation="gelu_pytorch_tanh",
                         windows="types all", fields=_LAYER_NORM | {"gated": False},
                         keys=dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), ("use_bias", True))
                         | {"residual_dropout": ("residual_dropout", 0.0),
                            "embed_dropout": ("embedding_dropout", 0.0)}),
    "stablelm": Traits("StableLmForCausalLM", 6912, 4096, rotary=0.25, fields=_LAYER_NORM,
                       keys={"qkv_bias": ("use_qkv_bias", False), "parallel": ("use_parallel_residual", False),
                             "residual_dropout": ("hidden_dropout", 0.0)}),
    "mimo": Traits("MiMoForCausalLM", 22016, 32768, 32, fields={"qkv_bias": True}),
    "gemma": Traits("GemmaForCausalLM", 24576, 8192, 16, 256, True, **_TANH, fields=_GEMMA, keys=_BIAS),
    "glm4": Traits("Glm4ForCausalLM", 13696, 131072, 2, 128, rotary=0.5,
                   fields={"post_norms": True, "merged_gate_up": True}, keys={"qkv_bias": ("attention_bias", False)}),
    "phi": Traits("PhiForCausalLM", 8192, 2048, activation="gelu_new", rotary=0.5,
                  fields=_LAYER_NORM | _PLAIN_MLP | {"parallel": True, "shared_norm": True, "head_bias": True},
                  keys={"residual_dropout": ("resid_pdrop", 0.0), "embed_dropout": ("embd_pdrop", 0.0)}),
    "nemotron": Traits("NemotronForCausalLM", 24576, 4096, activation="relu2", rotary=0.5,
                       fields=_LAYER_NORM | {"gated": False, "norm_plus_one": True},
                       keys=_BIAS | {"mlp_bias": ("mlp_bias", False)}),
    "cohere": Traits("CohereForCausalLM", 22528, 8192, tie=True,
                     fields={"norm": "layer", "parallel": True, "shared_norm": True, "logit_scale": True,
                             "qk_norm_all": True},
                     keys=_BIAS | {"qk_norm": ("use_qk_norm", False)}),
    # Experts.
    "gpt_oss": Traits("GptOssForCausalLM", 2880, 131072, 8, 64, windows="types even", window=128,
                      fields={"sinks": True, "qkv_bias": True, "out_bias": True, "router_bias": True,
                              "expert_bias": True},
                      keys={"experts": ("num_local_experts", 128), "top_k": ("num_experts_per_tok", 4),
                            "moe_intermediate": ("intermediate_size", 2880)}),
    "qwen2_moe": Traits("Qwen2MoeForCausalLM", 5632, 32768, 16, windows="types late", window=4096,
                        switch="use_sliding_window", fields={"shared_gate": True},
                        keys={**_QWEN_MOE, "experts": ("num_experts", 60), "top_k": ("num_experts_per_tok", 4),
                              "moe_intermediate": ("moe_intermediate_size", 1408),
                              "shared_width": ("shared_expert_intermediate_size", 5632),
                              "qkv_bias": ("qkv_bias", True)}),
    "minimax_m2": Traits("MiniMaxM2ForCausalLM", 1536, 196608, 8, 128,
                         fields={"qk_norm": True, "qk_norm_all": True},
                         keys={"experts": ("num_local_experts", 256), "top_k": ("num_experts_per_tok", 8),
                               "moe_intermediate": ("intermediate_size", 1536), "rotary_dim": ("rotary_dim?", 0)}),
    "mimo_v2_flash": Traits("MiMoV2FlashForCausalLM", 16384, 262144, 4, 192, rotary=0.334, windows="types all",
                            window=128, layers="mimo",
                            keys={"v_head_dim": ("v_head_dim", 128), "experts": ("n_routed_experts", 256),
                                  "top_k": ("num_experts_per_tok", 8),
                                  "moe_intermediate": ("moe_intermediate_size", 2048)}),
    "llama4": Traits("Llama4ForConditionalGeneration", 8192, 4096 * 32, 8, 128, layers="llama4",
                     fields={"shared_experts": 1},
                     keys=_BIAS | {"experts": ("num_local_experts", 16), "top_k": ("num_experts_per_tok", 1),
                                   "moe_intermediate": ("intermediate_size", 8192), "qk_norm": ("use_qk_norm", True),
                                   "sparse_step": ("interleave_moe_layer_step", 1)}),
    # Text of vision and language.
    "qwen3_vl": Traits("Qwen3VLForConditionalGeneration", 22016, 128000, 32, 128, fields={"qk_norm": True}, keys=_BIAS),
    "qwen3_vl_moe": Traits("Qwen3VLMoeForConditionalGeneration", 5632, 128000, 16, fields={"qk_norm": True},
                           keys=_BIAS | {**_QWEN_MOE, "experts": ("num_local_experts|num_experts", 60),
                                         "top_k": ("num_experts_per_tok", 4),
                                         "moe_intermediate": ("moe_intermediate_size", 1408)}),
    # Linear attention.
    "qwen3_next": Traits("Qwen3NextForCausalLM", 5632, 32768, 2, 256, rotary=0.25, layers="interval",
                         fields=_NEXT | {"shared_gate": True, "delta_merged": True},
                         keys=_BIAS | _DELTA | _SHARED | {**_QWEN_MOE,
                                                          "experts": ("num_local_experts|num_experts", 512),
                                                          "top_k": ("num_experts_per_tok", 10),
                                                          "moe_intermediate": ("moe_intermediate_size", 512)}),
    "qwen3_5": Traits("Qwen3_5ForConditionalGeneration", 12288, 32768, 4, 256, rotary=0.25, layers="interval",
                      fields=_NEXT, keys=_BIAS | _DELTA),
    "qwen3_5_moe": Traits("Qwen3_5MoeForConditionalGeneration", 5632, 32768, 2, 256, rotary=0.25, layers="interval",
                          fields=_NEXT | {"shared_gate": True},
                          keys=_BIAS | _DELTA | _SHARED | {"experts": ("num_local_experts|num_experts", 256),
                                                           "top_k": ("num_experts_per_tok", 8),
                                                           "moe_intermediate": ("moe_intermediate_size", 512)}),
    "nemotron_h": Traits("NemotronHForCausalLM", 21504, 4096, 8, activation="relu2", activation_key="mlp_hidden_act",
                         layers="nemotron_h", fields={"gated": False, "position": "none"},
                         keys=_BIAS | {"mlp_bias": ("mlp_bias", False), "state_heads": ("n_groups", 8),
                                       "state_v_heads": ("mamba_num_heads", 128), "state_dim": ("ssm_state_size", 128),
                                       "state_v_dim": ("mamba_head_dim", 64), "taps": ("conv_kernel", 4),
                                       "taps_bias": ("use_conv_bias", True), "state_bias": ("mamba_proj_bias", False),
                                       "experts": ("n_routed_experts?", 0), "top_k": ("num_experts_per_tok?", 0),
                                       "moe_intermediate": ("moe_intermediate_size?", 0),
                                       "shared_width": ("moe_shared_expert_intermediate_size?", 0),
                                       "moe_latent": ("moe_latent_size?", 0)}),
    # Sparse and latent attention.
    "deepseek_v32": Traits("DeepseekV32ForCausalLM", 18432, 4096, keys=_V3.keys | _INDEX),
    "glm_moe_dsa": Traits("GlmMoeDsaForCausalLM", 12288, 202752,
                          keys=_V3.keys | _INDEX | {"q_lora_rank": ("q_lora_rank", 2048),
                                                    "qk_nope_dim": ("qk_nope_head_dim", 192),
                                                    "v_head_dim": ("v_head_dim", 256),
                                                    "index_heads": ("index_n_heads", 32)}),
    "kimi_k2": _V3,
    "kimi_k25": Traits("KimiK25ForConditionalGeneration", 18432, 4096, keys=_V3.keys),
    # Layers found by search.
    "nemotron-nas": Traits("DeciLMForCausalLM", 0, 131072, layers="nas",
                           keys=_BIAS | {"mlp_bias": ("mlp_bias", False)}),
}  # fmt: skip
