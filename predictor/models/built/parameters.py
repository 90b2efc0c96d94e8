"""Parameters of a model, exactly as its Hugging Face class counts them, and the size of its KV cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from predictor.files.records import dataclass
from predictor.formats.dtypes import bytes_of
from predictor.formats.parts import Formats, stored_bytes
from predictor.models.base import Local, whole

if TYPE_CHECKING:
    from predictor.models.built.config import ModelConfig


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
    return parameter_split(config, local).total


def parameter_split(config: ModelConfig, local: Local = whole) -> ParameterSplit:
    """Unique parameters by place; see ParameterSplit."""
    dense = experts = 0
    for encoder in (False, True) if config.is_encoder_decoder else (False,):
        for sparse, _, layers in config.layers_alike(encoder):
            of_layer = layer_parameters(config.at(layers[0]), sparse, encoder, local)
            dense += of_layer[0] * len(layers)
            experts += of_layer[1] * len(layers)
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
    split, norms = parameter_split(config, local), _final_norms(config)
    total = split.embedding * formats.of("embedding").weight_bytes
    total += stored_bytes({"head": split.head - norms, "": norms}, formats)
    if not config.is_encoder_decoder:
        for sparse, _, layers in config.layers_alike():
            counts = _layer_parts(config.at(layers[0]), sparse, False, local)
            total += sum(len(alike) * stored_bytes(counts, of) for of, alike in formats.among(layers))
        return total
    for encoder in (False, True):
        for sparse, _, count in config.layer_groups(encoder):
            total += count * stored_bytes(_layer_parts(config, sparse, encoder, local), formats)
    return total + _relative_bias(config, local) * formats.high.weight_bytes


def heaviest_stage_bytes(config: ModelConfig, formats: Formats, local: Local, share: float) -> float:
    """Bytes of the weights of the stage of a pipeline that has most: a ``share`` of the layers, and an end."""
    split = parameter_split(config, local)
    table = split.embedding * formats.of("embedding").weight_bytes
    head = split.head * formats.of("head").weight_bytes
    last = table if config.tie_embeddings else head  # a tied matrix stands at both ends
    return (weight_bytes(config, formats, local) - table - head) * share + max(table, last)


def _layer_parts(config: ModelConfig, sparse: bool, encoder: bool, local: Local) -> Counter[str]:
    """Parameters of one layer by part (`predictor.formats.parts`); "" counts norms and biases."""
    attention = _MIXERS[config.mixer](config, local)
    if config.mixer == "attention" and config.is_mla:
        attention = _latent_attention(config, local)
    norms = (config.mixer != "none") + config.feed
    if config.parallel and config.shared_norm:
        norms = 1
    norms *= config.lead_norms + config.post_norms
    if config.is_encoder_decoder and not encoder:
        attention, norms = attention + attention, 3
    counts = attention + Counter({"": norms * _norm(config, config.hidden)})
    if not config.feed:
        return counts
    if not sparse:
        return counts + _feed_forward(config, local("mlp", config.intermediate))
    return counts + _experts(config, local)


def _experts(config: ModelConfig, local: Local) -> Counter[str]:
    """Router, routed and shared experts by part."""
    counts = Counter({"router": config.experts * config.hidden})
    counts[""] += config.experts if config.router_bias else 0
    if config.shared_intermediate:
        shared = _feed_forward(config, local("mlp", config.shared_intermediate))
        counts["shared_experts"] = shared["mlp.up"] + shared["mlp.down"]
        counts[""] += shared[""]
        counts["router"] += config.hidden if config.shared_gate else 0
    matrices, hidden = 3 if config.gated else 2, config.moe_latent or config.hidden
    if config.moe_latent:
        counts["mlp.up"] = counts["mlp.down"] = config.hidden * hidden
    width, experts = local("expert_mlp", config.moe_intermediate), local("expert", config.experts)
    counts["experts"] = experts * matrices * hidden * width
    counts["experts"] += experts * ((matrices - 1) * width + hidden) if config.expert_bias else 0
    return counts


def active_parameters(config: ModelConfig) -> int:
    """Parameters that one token meets: all but the experts that it is not routed to."""
    split = parameter_split(config)
    of = next((kind for kind in config.variants if kind.experts), config)
    routed = split.experts * of.top_k // of.experts if of.experts else 0
    return split.total - split.experts + routed


def kv_bytes_per_token(config: ModelConfig, kv_dtype: str) -> float:
    """Bytes that one token adds to the self-attention KV cache of all (decoder) layers; 0 for an encoder alone."""
    if not config.causal:
        return 0.0
    return sum(_kv_elements(config.at(i)) for i in range(config.layers)) * bytes_of(kv_dtype)


def kv_cache_bytes(config: ModelConfig, batch: int, tokens: int, kv_dtype: str, local: Local = whole) -> float:
    """Bytes of the KV cache of ``batch`` sequences of ``tokens`` each, and of what linear attention keeps in its place;
    a layer with a window keeps only the window."""
    if not config.causal:
        return 0.0
    kept = states = 0
    for _, window, layers in config.layers_alike():
        kind = config.at(layers[0])
        kept += len(layers) * (min(tokens, window) if window else tokens) * _kv_elements(kind, local)
        states += len(layers) * local("state_heads", kind.state_elements)
    if config.is_encoder_decoder:
        kept *= 2  # keys and values of the encoder's output, as long as the decoder's
    if not states:
        return batch * (kept * bytes_of(kv_dtype))
    from predictor.ops.linear_attention import STATE_BYTES  # models that keep keys and values start without it

    return batch * (kept * bytes_of(kv_dtype) + states * float(STATE_BYTES))


def _kv_elements(config: ModelConfig, local: Local = whole) -> int:
    """Elements that a token adds to a layer's cache."""
    if config.mixer != "attention":
        return 0
    if config.is_mla:  # the indexer's keys are fp8 beside a latent vector in 16 bit, whose share they count here
        return config.kv_lora_rank + config.qk_rope_dim + config.index_dim
    return local("kv_heads", config.kv_heads) * (config.head_dim + config.value_dim)


def _norm(config: ModelConfig, width: int) -> int:
    return width * (2 if config.norm_bias else 1)


def _relative_bias(config: ModelConfig, local: Local) -> int:
    """T5's tables of relative positions: the first layer of each stack owns one."""
    return 2 * config.relative_buckets * local("heads", config.heads)


def _attention(config: ModelConfig, local: Local) -> Counter[str]:
    hidden, heads, kv_heads = config.hidden, local("heads", config.heads), local("kv_heads", config.kv_heads)
    q, k, out = heads * config.head_dim, kv_heads * config.head_dim, heads * config.value_dim
    into = q + k + kv_heads * config.value_dim + (out if config.attention_gate else 0)
    small = into if config.qkv_bias else 0
    small += hidden if config.out_bias else 0
    small += heads if config.sinks else 0
    if config.qk_norm and not config.qk_norm_bare:
        small += q + k if config.qk_norm_all else 2 * config.head_dim
    return Counter({"attention.qkv": hidden * into, "attention.out": out * hidden, "": small})


def _delta_net(config: ModelConfig, local: Local) -> Counter[str]:
    """Of the gated delta net: a decay and a step's shift a value head, and the norm of a head, beside the matrices."""
    hidden, channels, heads = config.hidden, local("state_heads", config.state_channels), config.state_v_heads
    width = local("state_heads", heads * config.state_v_dim)
    small = channels * config.taps + 2 * local("state_heads", heads) + config.state_v_dim
    rates = 2 * local("state_heads", heads) * hidden
    into, out = hidden * (channels + width), width * hidden
    return Counter({"attention.qkv": into, "router": rates, "attention.out": out, "": small})


def _kimi_delta(config: ModelConfig, local: Local) -> Counter[str]:
    """Of Kimi delta attention: two bottlenecks and a step a head; a decay's scale a head, its shift a channel."""
    hidden, channels, heads = config.hidden, local("state_heads", config.state_channels), config.state_v_heads
    keys, width = (local("state_heads", heads * each) for each in (config.state_dim, config.state_v_dim))
    small = channels * config.taps + local("state_heads", heads) + keys + config.state_v_dim
    rates = config.state_dim * (hidden + keys) + config.state_v_dim * (hidden + width)
    rates += local("state_heads", heads) * hidden
    into, out = hidden * channels, width * hidden
    return Counter({"attention.qkv": into, "router": rates, "attention.out": out, "": small})


def _lightning(config: ModelConfig, local: Local) -> Counter[str]:
    """Of Lightning attention: q, k, v and the gate; the norm of the result."""
    hidden, channels = config.hidden, local("state_heads", config.state_channels)
    width = local("state_heads", config.state_v_heads * config.state_v_dim)
    return Counter({"attention.qkv": hidden * (channels + width), "attention.out": width * hidden, "": width})


def _state_space(config: ModelConfig, local: Local) -> Counter[str]:
    """Of Mamba2: a decay, a shift and a skip a head, the convolution's taps and the norm of the result."""
    hidden, channels, heads = config.hidden, local("state_heads", config.state_channels), config.state_v_heads
    width, local_heads = local("state_heads", heads * config.state_v_dim), local("state_heads", heads)
    into = channels + width + local_heads
    small = channels * (config.taps + config.taps_bias) + 3 * local_heads + width
    small += into + hidden if config.state_bias else 0
    return Counter({"attention.qkv": hidden * into, "attention.out": width * hidden, "": small})


def _nothing(config: ModelConfig, local: Local) -> Counter[str]:
    return Counter()


_MIXERS: Mapping[str, Callable[[ModelConfig, Local], Counter[str]]] = {
    "attention": _attention, "delta": _delta_net, "kda": _kimi_delta, "scan": _state_space, "lightning": _lightning,
    "none": _nothing,
}  # fmt: skip


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
    if config.index_heads:  # queries from the query's latent, keys with a layer norm, a weight a head
        heads, width = config.index_heads, config.index_dim
        counts["attention.q_b"] += config.q_lora_rank * heads * width
        counts["router"] += hidden * (width + heads)
        small += 2 * width
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
        total += local("vocab", config.vocab) * width
    return total + (config.vocab if config.head == "lm" and config.head_bias else 0)


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
