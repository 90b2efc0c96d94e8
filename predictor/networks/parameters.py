"""Parameters of a model, exactly as its Hugging Face class counts them, and the size of its KV cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from predictor.dtypes import bytes_of
from predictor.networks.config import ModelConfig
from predictor.networks.traced import recorded
from predictor.parts import Formats, stored_bytes

#: (logical axis, size) -> what one GPU of a mesh has of it (`predictor.passes.shard.local_size`).
Local = Callable[[str, int], int]


def whole(axis: str, size: int) -> int:
    """All of an axis: the model on one GPU."""
    return size


@dataclass(frozen=True, slots=True)
class ParameterSplit:
    """Unique parameters by place. ``embedding`` holds the tables (a tied head's too), ``layers`` what is in the layers
    beside the experts, ``experts`` the routed experts, ``head`` the final norm and what follows."""

    embedding: int
    layers: int
    experts: int
    head: int

    @property
    def total(self) -> int:
        return self.embedding + self.layers + self.experts + self.head


def parameters(config: ModelConfig, local: Local = whole) -> int:
    """Unique parameters (a tied matrix counts once)."""
    source = recorded(config)
    return parameter_split(config, local).total if source is None else source.parameters()


def parameter_split(config: ModelConfig, local: Local = whole) -> ParameterSplit:
    """Unique parameters by place; see ParameterSplit."""
    dense = experts = 0
    for encoder in (False, True) if config.is_encoder_decoder else (False,):
        for sparse, _, count in config.layer_groups(encoder):
            of_layer = layer_parameters(config, sparse, encoder, local)
            dense += of_layer[0] * count
            experts += of_layer[1] * count
    dense += _relative_bias(config, local)
    if config.head == "none":
        return ParameterSplit(0, dense, experts, 0)
    return ParameterSplit(_embedding(config, local), dense, experts, _head(config, local))


def layer_parameters(
    config: ModelConfig, sparse: bool = False, encoder: bool = False, local: Local = whole
) -> tuple[int, int]:
    """Parameters of one layer: (all but the routed experts, the routed experts)."""
    counts = _layer_parts(config, sparse, encoder, local)
    experts = counts["experts"]
    return counts.total() - experts, experts


def weight_bytes(config: ModelConfig, formats: Formats, local: Local = whole) -> float:
    """Bytes of all weights, each part's in its own format; norms and biases are kept as embeddings are."""
    source = recorded(config)
    if source is not None:
        return source.parameters() * formats.high.weight_bytes
    split, norms = parameter_split(config, local), _final_norms(config)
    total = split.embedding * formats.of("embedding").weight_bytes
    total += stored_bytes({"head": split.head - norms, "": norms}, formats)
    if not config.is_encoder_decoder:
        for sparse, _, layers in config.layers_alike():
            counts = _layer_parts(config, sparse, False, local)
            total += sum(len(alike) * stored_bytes(counts, of) for of, alike in formats.among(layers))
        return total
    for encoder in (False, True):
        for sparse, _, count in config.layer_groups(encoder):
            total += count * stored_bytes(_layer_parts(config, sparse, encoder, local), formats)
    return total + _relative_bias(config, local) * formats.high.weight_bytes


def _layer_parts(config: ModelConfig, sparse: bool, encoder: bool, local: Local) -> Counter[str]:
    """Parameters of one layer by part (`predictor.parts`); "" counts norms and biases."""
    attention = _latent_attention(config, local) if config.is_mla else _attention(config, local)
    norms = 4 if config.post_norms else 2
    if config.is_encoder_decoder and not encoder:
        attention, norms = attention + attention, 3
    counts = attention + Counter({"": norms * _norm(config, config.hidden)})
    if not sparse:
        return counts + _feed_forward(config, local("mlp", config.intermediate))
    counts["router"] = config.experts * config.hidden
    if config.shared_experts:
        shared = _feed_forward(config, local("mlp", config.shared_intermediate))
        counts["shared_experts"] = shared["mlp.up"] + shared["mlp.down"]
        counts[""] += shared[""]
    matrices = 3 if config.gated else 2
    width = local("expert_mlp", config.moe_intermediate)
    counts["experts"] = local("expert", config.experts) * matrices * config.hidden * width
    return counts


def active_parameters(config: ModelConfig) -> int:
    """Parameters that one token meets: all but the experts that it is not routed to."""
    split = parameter_split(config)
    routed = split.experts * config.top_k // config.experts if config.experts else 0
    return split.total - split.experts + routed


def kv_bytes_per_token(config: ModelConfig, kv_dtype: str) -> float:
    """Bytes that one token adds to the self-attention KV cache of all (decoder) layers; 0 for an encoder alone."""
    if not config.causal:
        return 0.0
    return config.layers * _kv_elements(config) * bytes_of(kv_dtype)


def kv_cache_bytes(config: ModelConfig, batch: int, tokens: int, kv_dtype: str, local: Local = whole) -> float:
    """Bytes of the KV cache of ``batch`` sequences of ``tokens`` each; a layer with a window keeps only the window."""
    source = recorded(config)
    if source is not None:
        return source.cache_bytes(batch, tokens, kv_dtype)
    if not config.causal:
        return 0.0
    kept = sum(count * (min(tokens, window) if window else tokens) for _, window, count in config.layer_groups())
    if config.is_encoder_decoder:
        kept *= 2  # keys and values of the encoder's output, as long as the decoder's
    return batch * kept * _kv_elements(config, local) * bytes_of(kv_dtype)


def _kv_elements(config: ModelConfig, local: Local = whole) -> int:
    if config.is_mla:
        return config.kv_lora_rank + config.qk_rope_dim
    return 2 * local("kv_heads", config.kv_heads) * config.head_dim


def _norm(config: ModelConfig, width: int) -> int:
    return width * (2 if config.norm_bias else 1)


def _relative_bias(config: ModelConfig, local: Local) -> int:
    """T5's tables of relative positions: the first layer of each stack owns one."""
    return 2 * config.relative_buckets * local("heads", config.heads)


def _attention(config: ModelConfig, local: Local) -> Counter[str]:
    hidden, heads, kv_heads = config.hidden, local("heads", config.heads), local("kv_heads", config.kv_heads)
    q, kv = heads * config.head_dim, kv_heads * config.head_dim
    small = (q + 2 * kv) if config.qkv_bias else 0
    small += hidden if config.out_bias else 0
    small += 2 * config.head_dim if config.qk_norm else 0
    return Counter({"attention.qkv": hidden * (q + 2 * kv), "attention.out": q * hidden, "": small})


def _latent_attention(config: ModelConfig, local: Local) -> Counter[str]:
    hidden, heads = config.hidden, local("heads", config.heads)
    q = heads * (config.qk_nope_dim + config.qk_rope_dim)
    latent = config.kv_lora_rank + config.qk_rope_dim
    small = (latent if config.qkv_bias else 0) + config.kv_lora_rank + (hidden if config.out_bias else 0)
    counts = Counter(
        {
            "attention.q_b": (config.q_lora_rank or hidden) * q,
            "attention.kv_a": hidden * latent,
            "attention.kv_b": config.kv_lora_rank * heads * (config.qk_nope_dim + config.v_head_dim),
            "attention.out": heads * config.v_head_dim * hidden,
        }
    )
    if config.q_lora_rank:
        counts["attention.q_a"] = hidden * config.q_lora_rank
        small += config.q_lora_rank * (2 if config.qkv_bias else 1)
    counts[""] = small
    return counts


def _feed_forward(config: ModelConfig, width: int) -> Counter[str]:
    """By part of a dense layer; "" counts the biases."""
    into = 2 if config.gated else 1
    bias = into * width + config.hidden if config.mlp_bias else 0
    return Counter({"mlp.up": into * config.hidden * width, "mlp.down": config.hidden * width, "": bias})


def _embedding(config: ModelConfig, local: Local) -> int:
    hidden, width = config.hidden, config.embed_width or config.hidden
    total = local("vocab", config.vocab) * width + (config.position_rows + config.type_vocab) * hidden
    if config.embed_width:
        total += hidden * width  # project_in
    return total + (_norm(config, hidden) if config.embed_norm else 0)


def _head(config: ModelConfig, local: Local) -> int:
    hidden, width = config.hidden, config.embed_width or config.hidden
    total = _final_norms(config)
    if config.embed_width:
        total += hidden * width  # project_out
    if config.model_type == "bert":
        return total + _bert_head(config, local("vocab", config.vocab))
    if config.head == "classifier":
        return total + config.num_labels * width
    if config.head == "lm" and not config.tie_embeddings:
        return total + local("vocab", config.vocab) * width
    return total


def _final_norms(config: ModelConfig) -> int:
    if not config.final_norm or config.head == "none":
        return 0
    return _norm(config, config.hidden) * (2 if config.is_encoder_decoder else 1)


def _bert_head(config: ModelConfig, vocab: int) -> int:
    hidden = config.hidden
    pooler = hidden * hidden + hidden
    if config.head == "base":
        return pooler
    if config.head == "classifier":
        return pooler + config.num_labels * (hidden + 1)
    total = hidden * hidden + hidden + _norm(config, hidden) + vocab  # transform, its norm, the decoder's bias
    if not config.tie_embeddings:
        total += vocab * hidden
    return total + (pooler + 2 * (hidden + 1) if config.head == "pretraining" else 0)
