"""Where a traced model's class does not run: the model that a reader builds runs in its place."""

from __future__ import annotations

from predictor.engines import Engine
from predictor.models.base import Model
from predictor.models.traced.model import CLASS_PLAN, Alone, TracedModel


def run_as_built(config: Model, engine: Engine, mode: str, tp: int) -> tuple[Model, str] | None:
    """The model that a reader builds, and why it runs in place of a traced model's class, in a line for the answer;
    None where the class itself runs, and for a type that no reader knows.

    A class says what eager PyTorch runs on one GPU. Engines that fuse have model code of their own, or fuse modules,
    which a reader names; a layer is shared out over GPUs as Megatron-LM does it, not as classes' plans do, which leave
    parts of it whole. Linear attention runs the kernels of its libraries, without which a class writes it out
    (transformers 5.24, is_fast_path_available of modeling_qwen3_next.py); sparse attention reads the keys that it
    picks, where a class makes all scores and masks the others. Steps that find latent vectors in a cache multiply by
    what they are made with, where a class keeps every head's keys and values; and classes of encoder-decoders make
    logits of all tokens of a prompt, or have no such pass."""
    built = config.source.built if isinstance(config, TracedModel) else None
    if built is None:
        return None
    if engine.fuses:
        why = f"--execution {engine.name} fuses by modules"
    elif isinstance(tp, int) and tp > 1:
        why = f"--tp {tp} splits layers as Megatron-LM does (--tp-plan {CLASS_PLAN} splits them as the class does)"
    elif any(kind.mixer in ("delta", "scan") for kind in (built, *built.variants)):
        why = "linear attention runs the kernels of its libraries (flash-linear-attention, causal-conv1d)"
    elif built.index_heads:
        why = "sparse attention reads only the keys that it picks"
    elif built.is_mla and mode in ("decode", "generate"):
        why = f"--mode {mode} keeps latent vectors"
    elif built.is_encoder_decoder and mode in ("prefill", "decode", "generate"):
        why = f"--mode {mode} of an encoder-decoder computes logits of the last token only"
    else:
        return None
    return built, f"{config.name} is forecast from its config, not from its class: {why}"


def general_rules(config: Model, engine: Engine) -> tuple[str, ...]:
    """The line for the answer of an engine whose own code of a traced model is not known."""
    if not engine.serves or not isinstance(config, TracedModel) or isinstance(config.source, Alone):
        return ()
    return (
        f"{engine.name} has its own code for {config.name}, which Tilecast does not know. The forecast runs"
        f" the model's class with the kernels of {engine.name} (a fused QKV projection, an in-place KV cache, one"
        " kernel per norm).",
    )
