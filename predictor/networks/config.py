"""A Hugging Face config.json as a ModelConfig: one set of normalised fields for every architecture that is known.

A missing size (layers, width, heads, vocabulary) or an unknown model_type is an error, never a guess. Any other missing
key takes the default of the Hugging Face configuration class and is listed in ``ModelConfig.assumed``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictor.errors import SpecError, UnsupportedError, nearest, unknown_name

CONFIGS = Path(__file__).parent / "configs"

#: Other names under which people know a model of the catalogue.
ALIASES = {
    "bert-base-uncased": "bert-base", "bert-large-uncased": "bert-large", "gpt3-175b": "gpt3", "gpt3-1.3b": "gpt3-xl",
    "gpt3-small": "gpt3-125m", "gpt3-medium": "gpt3-350m", "gpt3-large": "gpt3-760m",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelConfig:
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
    post_norms: bool = False  # a norm after attention and after the feed-forward too (Gemma)
    qk_norm: bool = False
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
    experts: int = 0
    top_k: int = 0
    moe_intermediate: int = 0
    shared_experts: int = 0
    first_dense: int = 0  # layers before the first with experts
    dense_layers: tuple[int, ...] = ()  # further layers without experts
    sparse_step: int = 0  # every so many layers has experts
    encoder_sparse_step: int = 0
    expert_capacity: int = 0
    padded_experts: bool = False  # every expert runs on a block padded to its capacity
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_dim: int = 0
    qk_rope_dim: int = 0
    v_head_dim: int = 0
    encoder_layers: int = 0
    relative_buckets: int = 0
    num_labels: int = 0
    assumed: tuple[str, ...] = ()

    @property
    def is_encoder_decoder(self) -> bool:
        return self.encoder_layers > 0

    @property
    def is_mla(self) -> bool:
        """True for multi-head latent attention."""
        return self.kv_lora_rank > 0

    @property
    def value_dim(self) -> int:
        """Width of a value head."""
        return self.v_head_dim or self.head_dim

    @property
    def causal(self) -> bool:
        """True where a position sees no later one."""
        return self.model_type != "bert"

    @property
    def shared_intermediate(self) -> int:
        """Width of the shared experts together."""
        return self.shared_experts * self.moe_intermediate

    def is_sparse(self, layer: int, encoder: bool = False) -> bool:
        """True where layer number ``layer`` has experts in place of the dense feed-forward."""
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
        count = self.encoder_layers if encoder else self.layers
        if not self.experts and not self.windows:
            return ((False, 0, count),)
        groups: dict[tuple[bool, int], int] = {}
        for layer in range(count):
            key = (self.is_sparse(layer, encoder), self.windows[layer] if self.windows else 0)
            groups[key] = groups.get(key, 0) + 1
        return tuple((sparse, window, n) for (sparse, window), n in groups.items())


def catalogue() -> tuple[str, ...]:
    """Names of the models that come with the package, sorted."""
    return tuple(sorted(path.stem for path in CONFIGS.glob("*.json")))


def load_config(name_or_path: str | Path) -> ModelConfig:
    """The model of a catalogue name, of a config.json, or of a folder that holds one.

    Raises UnknownNameError with the nearest names, SpecError for a file that is no valid config and UnsupportedError
    for an architecture that is not known.
    """
    text = str(name_or_path)
    name = text.strip().lower()
    path = CONFIGS / f"{ALIASES.get(name, name)}.json"
    if "/" in text or not path.is_file():
        path = Path(text).expanduser()
        if path.is_dir():
            path = path / "config.json"
        if not path.is_file():
            raise unknown_name("model", text, catalogue(), "a name of `tilecast models` or a path to a config.json")
    return config_from_dict(read_json(path), _name_of(path), str(path))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises SpecError with the line of a syntax error."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise SpecError(f"{path}: line {error.lineno}: not valid JSON ({error.msg})") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as a config.json ({error})") from error
    if not isinstance(data, dict):
        raise SpecError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


def config_from_dict(data: Mapping[str, Any], name: str = "model", where: str = "config.json") -> ModelConfig:
    """The ModelConfig of the dictionary of a config.json; ``where`` names it in errors.

    Raises SpecError for a missing or impossible value and UnsupportedError for an unknown model_type.
    """
    from predictor.networks.families import FAMILIES  # it imports ModelConfig

    model_type = data.get("model_type")
    if not isinstance(model_type, str):
        raise SpecError(f"{where}: missing 'model_type', expected one of {', '.join(sorted(FAMILIES))}")
    family = FAMILIES.get(model_type)
    if family is None:
        close = nearest(model_type, FAMILIES)
        tail = f"; nearest: {', '.join(close)}" if close else ""
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedError(f"{where}: unknown model_type {model_type!r}: expected one of {known}{tail}")
    config = family(data, name, f"{where} ({model_type})")
    check(config, where)
    return config


def check(config: ModelConfig, where: str) -> None:
    """Raises SpecError where the sizes do not go together."""
    if config.heads % config.kv_heads:
        raise SpecError(f"{where}: {config.heads} attention heads are not a multiple of {config.kv_heads} KV heads")
    if config.experts and not 1 <= config.top_k <= config.experts:
        raise SpecError(f"{where}: {config.top_k} experts a token, expected 1 to {config.experts}")
    for field in ("residual_dropout", "attention_dropout", "embed_dropout", "activation_dropout"):
        if getattr(config, field) > 1.0:
            raise SpecError(f"{where}: {field} is {getattr(config, field)}, expected 0 to 1")


def _name_of(path: Path) -> str:
    return path.parent.name if path.stem == "config" and path.parent.name else path.stem
