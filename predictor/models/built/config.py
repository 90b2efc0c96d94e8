"""ModelConfig: one set of normalised fields for every architecture that is known."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from predictor.errors import RequestError
from predictor.files.records import dataclass, replace
from predictor.formats.parts import Checkpoint, Formats
from predictor.graph.graph import Graph
from predictor.graph.recording import Recording
from predictor.models.base import Feature, Local, Model, whole
from predictor.models.built.parameters import heaviest_stage_bytes, kv_cache_bytes, parameters, weight_bytes
from predictor.models.built.stack import build
from predictor.models.step import Step

if TYPE_CHECKING:
    from predictor.models.built.vision import VisionTower

#: The model_type of a vision tower as a model of its own, which no config.json has.
VISION = "vision tower"
#: Mixers that keep a state in place of keys and values: gated delta nets, Kimi delta attention, Mamba2's scan, and
#: linear attention that decays by the head (Lightning).
LINEAR = ("delta", "kda", "scan", "lightning")
#: Types whose publisher has MODEL-FP8 beside MODEL, in blocks of 128 x 128. Source: config.json of Qwen/Qwen3-32B-FP8,
#: Qwen/Qwen3-235B-A22B-FP8 and zai-org/GLM-5-FP8; of the other Qwen types as recalled of their pages, unverified.
_FP8_IN_BLOCKS = (
    "qwen3", "qwen3_moe", "glm_moe_dsa", "qwen3_next", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelConfig(Model):
    """One transformer. Counts are of the model, sizes in elements; 0, "" and False mean "has none".

    ``layers`` counts the decoder's layers where there is an encoder too (``encoder_layers``). ``head``: "lm",
    "pretraining" (BERT), "classifier", "base" (embeddings and layers) or "none" (the layers alone). ``position``:
    "learned", "rotary", "alibi", "relative" or "none". ``norm``: "layer" or "rms".
    """

    name: str
    model_type: str
    architecture: str
    head: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    activation: str
    gated: bool = False
    norm: str = "rms"
    norm_bias: bool = False
    tie_embeddings: bool = False
    position: str = "rotary"
    position_rows: int = 0  # rows of a learned table
    type_vocab: int = 0
    embed_width: int = 0  # width of the token embedding where it is not the model's (OPT-350m)
    embed_norm: bool = False
    embed_scale: bool = False  # embeddings times sqrt(hidden)
    pre_norm: bool = True
    final_norm: bool = True
    lead_norms: bool = True  # a norm in front of attention and feed-forward (Olmo 2 has none)
    post_norms: bool = False  # a norm after attention and after the feed-forward too (Gemma)
    norm_plus_one: bool = False  # norms multiply by 1 + weight
    parallel: bool = False  # attention and feed-forward read the same stream, and both are added to it
    shared_norm: bool = False  # ... and share the norm in front
    residual_scale: bool = False  # branches are scaled before they are added (Granite)
    logit_scale: str = ""  # what scales the logits: "mul_scalar", "div_scalar"
    head_bias: bool = False
    qk_norm: bool = False
    qk_norm_all: bool = False  # its weight is as wide as all heads together
    qk_norm_bare: bool = False  # it has no weight
    tuned_queries: bool = False  # queries are scaled by their positions (Llama 4)
    attention_gate: bool = False  # the result is multiplied by a sigmoid of a second query projection
    sinks: bool = False  # a score a head that no key has
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    merged_qkv: bool = False  # one matrix for q, k and v in the checkpoint
    merged_gate_up: bool = False
    conv1d: bool = False  # GPT-2 stores its weights transposed
    residual_dropout: float = 0.0
    attention_dropout: float = 0.0
    embed_dropout: float = 0.0
    activation_dropout: float = 0.0
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    windows: tuple[int, ...] = ()  # sliding window of every layer, 0 = sees everything; () = no layer has one
    rotary_dim: int = 0
    scaled_positions: int = 0  # positions that scaled rotary embeddings were stretched to, where beyond max_positions
    experts: int = 0
    top_k: int = 0
    moe_intermediate: int = 0
    expert_groups: int = 0  # groups of experts that are neighbours, and
    top_groups: int = 0  # of how many of them a token picks; 0: of any
    shared_experts: int = 0
    first_dense: int = 0  # layers before the first with experts
    dense_layers: tuple[int, ...] = ()  # further layers without experts
    sparse_step: int = 0  # every so many layers has experts
    encoder_sparse_step: int = 0
    expert_capacity: int = 0
    padded_experts: bool = False  # every expert runs on a block padded to its capacity
    every_expert: bool = False  # the class runs all experts on all tokens, whatever these pick
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_dim: int = 0
    qk_rope_dim: int = 0
    v_head_dim: int = 0
    router_bias: bool = False
    expert_bias: bool = False
    shared_width: int = 0  # of the shared experts together, where a key says it
    shared_gate: bool = False  # their result is multiplied by a sigmoid
    moe_latent: int = 0  # width that experts work in, where it is not the model's
    index_heads: int = 0  # sparse attention: heads and width of the indexer, and keys that it picks
    index_dim: int = 0
    index_topk: int = 0
    mixer: str = "attention"  # what a layer mixes tokens by: "attention", one of `LINEAR` or "none"
    feed: bool = True  # whether it has a feed-forward
    state_heads: int = 0  # linear attention: key heads (groups of B and C), value heads, and their widths
    state_v_heads: int = 0
    state_dim: int = 0
    state_v_dim: int = 0
    state_bias: bool = False
    taps: int = 0
    taps_bias: bool = False
    variants: tuple[ModelConfig, ...] = ()  # kinds of layers that differ in more than experts and windows
    pattern: tuple[int, ...] = ()  # of every layer, its place in ``variants``
    encoder_layers: int = 0
    relative_buckets: int = 0
    num_labels: int = 0
    draft_layers: int = 0  # that guess further tokens (multi-token prediction), no part of ``layers``
    tower: VisionTower | None = None  # what images pass
    assumed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()  # keys of its config that nobody knows
    notes: tuple[str, ...] = ()  # what an answer says of how it stands for its config
    checkpoint: Checkpoint | None = None  # numbers of a quantized one

    def __hash__(self) -> int:  # of a few fields that tell models apart: caches ask for it at every point of a sweep
        return hash((self.name, self.heads, self.intermediate, self.layers))

    @property
    def is_encoder_decoder(self) -> bool:
        return self.encoder_layers > 0

    @property
    def is_mla(self) -> bool:
        """True for multi-head latent attention."""
        return self.kv_lora_rank > 0

    @property
    def trained_positions(self) -> int:
        """Longest sequence that the model was made for: what its config says, or what its RoPE scaling stretches it to.

        As vLLM derives its longest sequence, as we understand it: "linear", "dynamic" and "yarn" multiply
        (`predictor.models.built.type_reader.scaled_positions`); "llama3" and "longrope" files say the stretched length.
        """
        return max(self.max_positions, self.scaled_positions)

    @property
    def value_dim(self) -> int:
        """Width of a value head."""
        return self.v_head_dim or self.head_dim

    @property
    def causal(self) -> bool:
        """True where a position sees no later one."""
        return self.model_type not in ("bert", VISION)

    @property
    def masked_head(self) -> bool:
        """True for BERT's head, which predicts masked tokens alone."""
        return self.model_type == "bert" and self.head in ("lm", "pretraining")

    @property
    def head_width(self) -> int:
        return self.head_dim

    @property
    def shared_intermediate(self) -> int:
        """Width of the shared experts together."""
        return self.shared_width or self.shared_experts * self.moe_intermediate

    def at(self, layer: int) -> ModelConfig:
        """The model as if all its layers were like that one."""
        return self.variants[self.pattern[layer]] if self.variants else self

    @property
    def state_elements(self) -> int:
        """What linear attention keeps of a sequence in a layer: states, and the last inputs of its convolution."""
        if self.mixer not in LINEAR:
            return 0
        return self.state_v_heads * self.state_dim * self.state_v_dim + (self.taps - 1) * self.state_channels

    @property
    def state_channels(self) -> int:
        """Channels of the convolution in front of linear attention: keys, queries and values."""
        return 2 * self.state_heads * self.state_dim + self.state_v_heads * self.state_v_dim

    def is_sparse(self, layer: int, encoder: bool = False) -> bool:
        """True where layer number ``layer`` has experts in place of the dense feed-forward."""
        if self.variants:
            return self.at(layer).experts > 0
        if not self.experts:
            return False
        if self.is_encoder_decoder:
            step = self.encoder_sparse_step if encoder else self.sparse_step
            return step == 1 or (step > 0 and layer % step == 1)
        if layer < self.first_dense or layer in self.dense_layers:
            return False
        return self.sparse_step <= 1 or (layer + 1) % self.sparse_step == 0

    def layer_groups(self, encoder: bool = False) -> tuple[tuple[bool, int, int], ...]:
        """Layers that differ, in order of first appearance: (sparse, window, how many of them)."""
        if not self.experts and not self.windows and not self.variants:
            return ((False, 0, self.encoder_layers if encoder else self.layers),)
        return tuple((sparse, window, len(layers)) for sparse, window, layers in self.layers_alike(encoder))

    def layers_alike(self, encoder: bool = False) -> tuple[tuple[bool, int, tuple[int, ...]], ...]:
        """Layers that differ, in order of first appearance: (sparse, window, their numbers)."""
        return _alike(self, encoder, self.encoder_layers if encoder else self.layers)

    # -- `Model` -------------------------------------------------------------------------------------------------------

    def refusal(self, feature: Feature) -> str:
        """Axes have names, so that every pass can cut them; a forward pass over several GPUs is not built."""
        if feature in (Feature.CONTEXT_OF_A_PASS, Feature.REPLICAS_OF_A_PASS):
            return "not built yet for --mode forward; expected --mode train"
        if feature is Feature.PLAN:
            return (
                f"{self.name} is built, and shared out as Megatron-LM does; expected a traced model"
                f" (traced:{self.name}), or no --tp-plan"
            )
        return ""

    def check_adapters(self, targets: str) -> None:
        from predictor.models.built.adapted import check_targets  # names of classes: few runs have any

        check_targets(targets, self)

    def check_tensor(self, tp: int, spread: bool = False) -> None:
        """RequestError that names every size that ``tp`` does not divide, and the nearest degree that works."""
        wrong = self._undivided(tp, spread)
        if wrong:
            fit = [n for n in range(1, self.heads + 1) if not self._undivided(n, spread)]
            close = min(fit, key=lambda n: (abs(n - tp), n))
            raise RequestError(
                f"--tp {tp}: does not divide {' and '.join(wrong)} of {self.name}; nearest valid: {close}"
            )

    def _undivided(self, tp: int, spread: bool) -> list[str]:
        """What ``tp`` GPUs cannot share evenly."""
        undivided = []
        if self.heads % tp:
            undivided.append(f"{self.heads} heads")
        if any(kind.state_v_heads % tp for kind in self.variants):
            undivided.append(f"{self.state_v_heads} value heads of linear attention")
        if not self.is_mla and self.kv_heads % tp and tp % self.kv_heads:
            undivided.append(f"{self.kv_heads} kv_heads")
        dense = not self.experts or any(not sparse for sparse, _, _ in self.layer_groups())
        if self.intermediate % tp and (dense or self.is_encoder_decoder):
            undivided.append(f"intermediate {self.intermediate}")
        if self.experts and self.moe_intermediate % tp and not spread:
            undivided.append(f"moe_intermediate {self.moe_intermediate}")
        return undivided

    def graph(self, step: Step, accumulate: bool | None = None, tp: int = 1) -> Graph:
        """The forward pass with whole axes, by name; the passes cut them and make the backward pass."""
        if self.model_type != VISION:
            return build(self, step)
        from predictor.models.built.vision import build as build_tower  # models that see nothing start without it

        return build_tower(self, step)

    def recording(self, step: Step, accumulate: bool | None, tp: int, dtype: str) -> Recording:
        count = parameters(self)
        return Recording(
            self.name, step.mode, dtype, self.graph(step), count, count, count * 2.0,
            inputs=(f"tokens:int64[{step.batch},{step.seq_len}]",), batch=step.batch, tokens=step.seq_len,
            attention=step.attention, source="built",
        )  # fmt: skip

    def logits(self, graph: Graph, step: Step) -> int:
        return self.vocab if self.head == "lm" else 0

    def stack(self, graph: Graph | None = None) -> ModelConfig:
        return self

    def parameters(self, tp: int = 1) -> int:
        return parameters(self)

    def weight_bytes(self, formats: Formats, local: Local = whole, tp: int = 1) -> float:
        return weight_bytes(self, formats, local)

    def weight_bytes_of_stage(self, formats: Formats, local: Local, share: float) -> float:
        return heaviest_stage_bytes(self, formats, local, share)

    def tower_model(self) -> ModelConfig:
        assert self.tower is not None
        return of_tower(self.tower, self.name)

    def seeing(self) -> ModelConfig:
        return replace(self, assumed=tuple(said for said in self.assumed if not said.startswith("vision_config")))

    @property
    def published_fp8(self) -> str:
        return "fp8_block" if self.model_type.removesuffix("_text") in _FP8_IN_BLOCKS else ""

    def kv_bytes(self, batch: int, tokens: int, kv_dtype: str, local: Local = whole, tp: int = 1) -> float:
        return kv_cache_bytes(self, batch, tokens, kv_dtype, local)


def of_tower(tower: VisionTower, name: str) -> ModelConfig:
    """The layers of the tower of the model ``name`` as a model of their own, with what is before and after them."""
    return ModelConfig(
        f"{name} tower", VISION, "", "none", tower.hidden, tower.layers, tower.heads, tower.heads,
        tower.hidden // tower.heads, tower.intermediate, 0, 0, "silu" if tower.gated else "gelu",
        tower.gated, "rms" if tower.gated else "layer", not tower.gated,
        position="rotary" if tower.rotary else "none", qkv_bias=not tower.gated, out_bias=not tower.gated,
        mlp_bias=not tower.gated, tower=tower,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _alike(config: ModelConfig, encoder: bool, count: int) -> tuple[tuple[bool, int, tuple[int, ...]], ...]:
    if not config.experts and not config.windows and not config.variants:
        return ((False, 0, tuple(range(count))),)
    groups: dict[tuple[bool, int, int], list[int]] = {}
    for layer in range(count):
        kind = config.pattern[layer] if config.variants else 0
        key = (config.is_sparse(layer, encoder), config.windows[layer] if config.windows else 0, kind)
        groups.setdefault(key, []).append(layer)
    return tuple((sparse, window, tuple(layers)) for (sparse, window, _), layers in groups.items())
