"""A model_type that nobody knows is forecast as the nearest decoder that its keys describe, and the answer says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import predictor
from predictor.errors import RequestError, UnsupportedError
from predictor.models.built import config_from_dict, parameters
from predictor.models.built.stand_in import stand_in
from tests.model_types import small

PLAIN: dict[str, Any] = {
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 512,
    "intermediate_size": 384, "max_position_embeddings": 512, "head_dim": 32,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
#: Keys of an unknown type -> the known type with the same layers, and what it calls them.
ALIKE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (PLAIN, {**PLAIN, "model_type": "llama"}),
    "qwen3": ({**PLAIN, "use_qk_norm": True, "rms_norm_eps": 1e-6}, {**PLAIN, "model_type": "qwen3"}),
    "qwen3_moe": ({**PLAIN, **EXPERTS, "qk_norm": True}, {**PLAIN, **EXPERTS, "model_type": "qwen3_moe"}),
    "names": (
        {"n_embd": 256, "n_layer": 4, "n_head": 8, "multi_query_group_num": 2, "padded_vocab_size": 512,
         "ffn_hidden_size": 384, "seq_length": 512, "kv_channels": 32},
        {**PLAIN, "model_type": "llama"},
    ),
    "a list of sparse layers": (
        {**PLAIN, "moe_num_experts": 8, "moe_top_k": 2, "moe_intermediate_size": 96, "moe_layers_enum": "1,3",
         "qk_norm": True},
        {**PLAIN, **EXPERTS, "mlp_only_layers": [0, 2], "model_type": "qwen3_moe"},
    ),
    **{kind: (small(kind), small(kind)) for kind in ("deepseek_v32", "qwen3_next", "qwen3_5_text", "nemotron_h")},
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_its_layers_are_those_of_the_type_that_has_its_keys(name: str) -> None:
    keys, known = ALIKE[name]
    config = stand_in({**keys, "model_type": "zeta"}, "small", "config.json")
    assert parameters(config) == parameters(config_from_dict(known, "small"))
    assert config.notes[0].startswith("Nobody knows model_type 'zeta': ")


@pytest.mark.parametrize(
    ("more", "linear"),
    [({"attn_type_list": [0, 0, 1, 0]}, 3), ({"layer_group_size": 3, "linear_silu": True}, 2), ({}, 0)],
)
def test_lightning_layers_have_a_gate_and_a_state(more: dict[str, Any], linear: int) -> None:
    """Of MiniMax's list and of Ring's groups, whose rest has attention: q, k, v and a gate are as wide as all heads,
    8 x 32, in place of 8 + 2 x 2 heads; a norm weight of that width; a state of 32 x 32 a head, no KV cache."""
    keys = {**PLAIN, **EXPERTS, "layernorm_mlp_alpha": 3.5}
    config = stand_in({**keys, **more, "model_type": "zeta"}, "small", "config.json")
    plain = stand_in({**keys, "model_type": "zeta"}, "small", "config.json")
    assert parameters(config) - parameters(plain) == linear * (256 * (4 - 1.5) * 256 + 256)
    assert config.kv_bytes(2, 10, "bf16") == (4 - linear) * 2 * 10 * 2 * 2 * 32 * 2 + linear * 2 * 8 * 32 * 32 * 4
    assert ("Lightning attention" in config.notes[0]) == bool(linear)


@pytest.mark.parametrize("more", [{"attn_mode": "chunk"}, {"decay_low_rank_dim": 96}])
def test_layers_of_flash_linear_attention_are_no_plain_decoder(more: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=f"change what its layers run: {next(iter(more))}"):
        stand_in({**PLAIN, **more, "model_type": "rwkv7"}, "small", "config.json")


def test_kimi_delta_layers_under_another_name() -> None:
    keys = small("kimi_linear")
    config = stand_in({**keys, "model_type": "zeta"}, "small", "config.json")
    known = config_from_dict(keys, "small")
    assert [config.at(layer).mixer for layer in range(8)] == [known.at(layer).mixer for layer in range(8)]
    assert [known.at(layer).mixer for layer in (0, 3)] == ["kda", "attention"]
    assert config.notes[0].endswith("(latent attention and Kimi delta attention).")


SCAN: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 2}


def test_known_ideas_under_new_keys() -> None:
    """Windows in a list, sizes in lists, parts in objects of their own, a gate of attention's result, chunks."""

    def read(**more: Any) -> Any:
        return stand_in({**PLAIN, "model_type": "zeta", **more}, "small", "config.json")

    plain = read()
    assert read(sliding_window=[64, 0, 64, None]).windows == (64, 0, 64, 0)
    chunks = ["chunked_attention", "full_attention"] * 2
    assert read(layer_types=chunks, attention_chunk_size=128).windows == (128, 0, 128, 0)
    assert parameters(read(num_key_value_heads=[2] * 4, intermediate_size=[384] * 4)) == parameters(plain)
    gated = read(use_output_gate=True)
    assert gated.attention_gate and parameters(gated) - parameters(plain) == 4 * 256 * 8 * 32
    inside = read(
        ffn_config={"ffn_hidden_size": 96, "moe_num_experts": 8, "moe_top_k": 2}, attn_config={"kv_n_heads": 4}
    )
    assert (inside.experts, inside.top_k, inside.moe_intermediate, inside.kv_heads) == (8, 2, 96, 2)
    for more in ({"num_key_value_heads": [2, 2, 4, 4]}, {"sliding_window": [64, 32, 64, 32]}):
        with pytest.raises(UnsupportedError, match=r"differs|several"):
            read(**more)


def test_lists_of_mamba2_layers() -> None:
    """A list with feed-forwards has one thing a layer, one without has a feed-forward in each."""
    for kinds, letters, more in (
        (["mamba", "attention", "mlp", "mamba"], "M*-M", {}),
        (["mamba", "full_attention", "mamba", "mamba2"], "M-*-M-M-", {}),
        (["mamba", "attention", "mamba", "moe"], "M*ME", EXPERTS),
        (["mamba", "attention", "mamba", "mamba"], "ME*EMEME", EXPERTS),
    ):
        config = stand_in(
            {**PLAIN, **SCAN, **more, "model_type": "zeta", "layers_block_type": kinds}, "s", "config.json"
        )
        of = {"scan": "M", "attention": "*", "none": "-"}
        made = ["E" if config.at(i).experts else of[config.at(i).mixer] for i in range(config.layers)]
        assert "".join(made) == letters and config.gated and config.at(0).state_v_heads == 8
    with pytest.raises(UnsupportedError):  # without the sizes of the scan
        stand_in({**PLAIN, "model_type": "zeta", "layers_block_type": ["mamba", "attention"] * 2}, "s", "config.json")


def test_layers_without_experts_by_their_number() -> None:
    keys = {**PLAIN, **EXPERTS, "model_type": "zeta"}
    for said, dense in (
        ({"first_k_dense_replace": 1}, [0]), ({"mlp_layer_types": ["dense", "sparse", "sparse", "dense"]}, [0, 3]),
        ({"moe_layer_freq": [0, 1, 1, 1]}, [0]), ({"moe_layer_freq": 2}, [1, 3]), ({"decoder_sparse_step": 2}, [0, 2]),
    ):  # fmt: skip
        config = stand_in({**keys, **said}, "small", "config.json")
        assert [layer for layer in range(4) if not config.is_sparse(layer)] == dense, said


def test_latent_attention_without_experts() -> None:
    latent = {"kv_lora_rank": 64, "q_lora_rank": 96, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 32}
    config = stand_in({**PLAIN, **latent, "model_type": "zeta"}, "small", "config.json")
    assert config.is_mla and not any(config.is_sparse(layer) for layer in range(4))


def test_a_class_that_it_names_goes_before_its_keys() -> None:
    data = {**PLAIN, "model_type": "zeta", "architectures": ["Qwen3ForCausalLM"]}
    config = stand_in(data, "small", "config.json")
    assert config.qk_norm and "read as those of qwen3" in config.notes[0]


def test_what_is_not_read_is_named_or_refused() -> None:
    config = stand_in({**PLAIN, "model_type": "zeta", "num_mtp_modules": 2}, "small", "config.json")
    assert "These keys of the config are not read: num_mtp_modules." in config.notes
    for said, words in (
        ({"mamba_d_state": 16}, "change what its layers run: mamba_d_state"),
        ({"cross_attention_layers": [1]}, "change what its layers run: cross_attention_layers"),
        ({"layer_types": ["linear_attention"] * 4}, "'layer_types' has linear_attention"),
        ({"vocab_size": None}, "a plain decoder needs vocab_size, too"),
    ):
        with pytest.raises(UnsupportedError, match=words) as error:
            stand_in({**PLAIN, **said, "model_type": "zeta"}, "small", "config.json")
        assert "\n" not in str(error.value)
    with pytest.raises(RequestError, match="'num_attention_heads' is 'many'"):
        stand_in({**PLAIN, "num_attention_heads": "many", "model_type": "zeta"}, "small", "config.json")


def test_its_number_format_and_windows_count() -> None:
    types = ["sliding_attention", "full_attention"] * 2
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}
    data = {**PLAIN, "model_type": "zeta", "sliding_window": 64, "layer_types": types, "quantization_config": fp8}
    config = stand_in(data, "small", "config.json")
    assert config.windows == (64, 0, 64, 0)
    assert config.checkpoint is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ({**PLAIN, "model_type": "zeta_text"}, "plain decoder"),
        ({**PLAIN, "model_type": "qwen3"}, "read as those of qwen3"),
        ({**PLAIN, "model_type": "olmo3", "pad_token_id": 0}, "is forecast as olmo3"),
    ],
)
def test_its_language_model_is_forecast(text: dict[str, Any], said: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra torch is not installed")
    data = {"model_type": "zeta", "architectures": ["ZetaForConditionalGeneration"], "llm_config": text}
    (tmp_path / "config.json").write_text(json.dumps({**data, "vision_config": {"hidden_size": 64}}))
    answer = predictor.predict(str(tmp_path), "h100", mode="decode", batch=2, context_len=64)
    assert answer.latency_s > 0.0
    assert said in answer.notes[0] and "Nobody knows model_type 'zeta'" in answer.notes[0]
