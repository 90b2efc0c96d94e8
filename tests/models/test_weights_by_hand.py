"""Bytes of the weights of every published quantized checkpoint, counted from its config.json by hand: each matrix by
the name that the checkpoint gives it, in 16 bit where the file excludes that name, else in bits and scales of its
format.

Nothing here is read off the package: sizes are those of the file, names those of the checkpoints' indices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import pytest

from predictor.hardware.gpu import load_gpu
from predictor.models.built import load_config
from predictor.models.built.load import PUBLISHED
from predictor.models.built.parameters import weight_bytes
from predictor.request.precision import checkpoint_precision

#: Bytes of a weight with its share of the scales: one for a tensor (or a row), 32 bits for 128 x 128, 8 bits for 16
#: (nvfp4) or 32 (mxfp4), 16 bits for 32 (int4).
BYTES = {"fp8": 1.0, "fp8_block": 1 + 4 / 128**2, "nvfp4": 0.5 + 1 / 16, "mxfp4": 0.5 + 1 / 32, "int4": 0.5 + 2 / 32}
NAMES = sorted(
    path.stem for path in PUBLISHED.glob("*.json") if '"quantization' in path.read_text(encoding="utf-8")
)  # fmt: skip
Matrix = tuple[str, int]  # its name below model.layers.N, or the whole name; elements


def test_there_are_twenty_eight_of_them() -> None:
    assert len(NAMES) >= 28


def attention(c: Mapping[str, Any]) -> Iterator[Matrix]:
    h, heads, wide = c["hidden_size"], c["num_attention_heads"], c.get("head_dim")
    if "kv_lora_rank" in c:
        nope, rope, value, rank = (c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
        yield "self_attn.q_a_proj", h * c["q_lora_rank"]
        yield "self_attn.q_b_proj", c["q_lora_rank"] * heads * (nope + rope)
        yield "self_attn.kv_a_proj_with_mqa", h * (rank + rope)
        yield "self_attn.kv_b_proj", rank * heads * (nope + value)
        yield "self_attn.o_proj", heads * value * h
        if "index_n_heads" in c:
            yield "self_attn.indexer.wq_b", c["q_lora_rank"] * c["index_n_heads"] * c["index_head_dim"]
            yield "self_attn.indexer.wk", h * c["index_head_dim"]
        return
    wide = wide or h // heads
    kv = c["num_key_value_heads"] * wide
    gate = 2 if c["model_type"].startswith("qwen3_5") else 1  # the gate of attention comes out of the same matrix
    yield from (("self_attn.q_proj", h * heads * wide * gate), ("self_attn.k_proj", h * kv))
    yield from (("self_attn.v_proj", h * kv), ("self_attn.o_proj", heads * wide * h))


def gated(name: str, h: int, width: int) -> Iterator[Matrix]:
    yield from ((f"{name}.{part}_proj", h * width) for part in ("gate", "up", "down"))


def experts(c: Mapping[str, Any]) -> Iterator[Matrix]:
    h, kind = c["hidden_size"], c["model_type"]
    count = c.get("n_routed_experts") or c.get("num_local_experts") or c["num_experts"]
    width = c.get("moe_intermediate_size") or c["intermediate_size"]
    block = {"minimax_m2": "block_sparse_moe", "llama4_text": "feed_forward"}.get(kind, "mlp")
    yield f"{block}.{'router' if kind in ('gpt_oss', 'llama4_text') else 'gate'}", count * h
    names = ("w1", "w2", "w3") if kind == "minimax_m2" else ("gate_proj", "up_proj", "down_proj")
    yield from ((f"{block}.experts.0.{name}", count * h * width) for name in names)  # no file tells experts apart
    if kind == "llama4_text":
        yield from gated("feed_forward.shared_expert", h, width)
    if c.get("n_shared_experts"):
        yield from gated("mlp.shared_experts", h, c["n_shared_experts"] * width)
    if c.get("shared_expert_intermediate_size"):
        yield from gated("mlp.shared_expert", h, c["shared_expert_intermediate_size"])


def mamba(c: Mapping[str, Any]) -> Iterator[Matrix]:
    inner = c["mamba_num_heads"] * c["mamba_head_dim"]
    into = 2 * inner + 2 * c["n_groups"] * c["ssm_state_size"] + c["mamba_num_heads"]
    yield from (("mixer.in_proj", c["hidden_size"] * into), ("mixer.out_proj", inner * c["hidden_size"]))


def nemotron(c: Mapping[str, Any], letter: str) -> Iterator[Matrix]:
    h = c["hidden_size"]
    if letter == "M":
        yield from mamba(c)
    elif letter == "*":
        wide = c["head_dim"]
        q, kv = c["num_attention_heads"] * wide, c["num_key_value_heads"] * wide
        yield from (
            ("mixer.q_proj", h * q),
            ("mixer.k_proj", h * kv),
            ("mixer.v_proj", h * kv),
            ("mixer.o_proj", q * h),
        )
    else:
        inner = c.get("moe_latent_size") or h
        for name in ("up_proj", "down_proj"):
            yield f"mixer.experts.0.{name}", c["n_routed_experts"] * inner * c["moe_intermediate_size"]
        for name in ("up_proj", "down_proj"):
            yield f"mixer.shared_experts.{name}", h * c["moe_shared_expert_intermediate_size"]
        if inner != h:
            yield from ((f"mixer.fc{i}_latent_proj", h * inner) for i in (1, 2))
        yield "mixer.gate", h * c["n_routed_experts"]


def delta(c: Mapping[str, Any]) -> Iterator[Matrix]:
    h, values = c["hidden_size"], c["linear_num_value_heads"] * c["linear_value_head_dim"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    yield from (("linear_attn.in_proj_qkv", h * (2 * keys + values)), ("linear_attn.in_proj_z", h * values))
    yield "linear_attn.out_proj", values * h


def mimo(c: Mapping[str, Any], i: int) -> Iterator[Matrix]:
    h, near = c["hidden_size"], "swa_" if c["hybrid_layer_pattern"][i] else ""
    heads, kv = c[f"{near}num_attention_heads"], c[f"{near}num_key_value_heads"]
    wide, value = c[f"{near}head_dim"], c[f"{near}v_head_dim"]
    yield from (("self_attn.q_proj", h * heads * wide), ("self_attn.k_proj", h * kv * wide))
    yield from (("self_attn.v_proj", h * kv * value), ("self_attn.o_proj", heads * value * h))
    if c["moe_layer_freq"][i]:
        yield from experts({**c, "n_shared_experts": 0})
    else:
        yield from gated("mlp", h, c["intermediate_size"])


def layer(c: Mapping[str, Any], i: int) -> Iterator[Matrix]:
    kind = c["model_type"]
    if kind == "nemotron_h":
        yield from nemotron(c, c["hybrid_override_pattern"][i])
        return
    if kind == "mimo_v2_flash":
        yield from mimo(c, i)
        return
    yield from delta(c) if c.get("layer_types", [""] * (i + 1))[i] == "linear_attention" else attention(c)
    if kind == "llama" or kind == "qwen3" or i < c.get("first_k_dense_replace", 0):
        yield from gated("mlp", c["hidden_size"], c["intermediate_size"])
    else:
        yield from experts(c)


class Said:
    """The format of a config, and the names that it leaves as they were."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        inner = data.get("text_config") or {}
        said = data.get("quantization_config") or data.get("quantization") or inner["quantization_config"]
        text = json.dumps(said).lower()
        weights = next(iter(said.get("config_groups", {"": {}}).values())).get("weights", {})
        self.format = (
            "mxfp4" if "mxfp4" in text else "nvfp4" if "nvfp4" in text or weights.get("group_size") == 16
            else "int4" if weights.get("type") == "int" else "fp8_block" if "weight_block_size" in text else "fp8"
        )  # fmt: skip
        keys = ("ignore", "exclude_modules", "modules_to_not_convert")
        names = [
            name.replace("language_model.", "").replace("backbone.", "model.")
            for key in keys
            for name in said.get(key) or []
        ]
        self.plain = {name.removeprefix("model.") for name in names if "*" not in name and not name.startswith("re:")}
        self.globs = [name.removeprefix("model.") for name in names if "*" in name and not name.startswith("re:")]
        self.patterns = [re.compile(name[3:]) for name in names if name.startswith("re:")]
        self.experts_alone = self.format == "mxfp4"

    def keeps(self, name: str) -> bool:
        """Whether the matrix ``name`` (layers.N. ...) stays in 16 bit; embedding, head and router always do."""
        if re.search(r"(?:\.gate|\.router)$", name) or (self.experts_alone and ".experts." not in name):
            return True
        parts = name.split(".")
        above = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
        return bool(above & self.plain) or any(fnmatchcase(name, glob) for glob in self.globs) or any(
            pattern.match(f"model.{name}") for pattern in self.patterns
        )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_the_weights_are_those_of_each_matrix(name: str) -> None:
    data = json.loads((PUBLISHED / f"{name}.json").read_text(encoding="utf-8"))
    text = data.get("text_config") or {}
    c = {"model_type": data["model_type"], **{k: v for k, v in data.items() if k != "text_config"}, **text}
    said = Said(data)
    tables = 1 if c.get("tie_word_embeddings") else 2
    total = 2.0 * tables * c["vocab_size"] * c["hidden_size"]
    packed = 0
    for i in range(c["num_hidden_layers"]):
        for matrix, elements in layer(c, i):
            keeps = said.keeps(f"layers.{i}.{matrix}")
            total += elements * (2.0 if keeps else BYTES[said.format])
            packed += 0 if keeps else elements
    assert packed > 0.5 * total / 2  # most of the model is in few bits
    config = load_config(name)
    assert config.checkpoint is not None
    ours = weight_bytes(config, checkpoint_precision(config.checkpoint, load_gpu("b200")).formats)
    assert ours == pytest.approx(total, rel=0.01), f"{ours / 2**30:.1f} GiB, by hand {total / 2**30:.1f}"
