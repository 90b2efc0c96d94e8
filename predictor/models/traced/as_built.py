"""Where a traced model's class does not run: the model that a reader builds runs in its place."""

from __future__ import annotations

from predictor.engines import Engine
from predictor.models.built.config import ModelConfig
from predictor.models.built.traced import CLASS_PLAN, Alone, recorded


def run_as_built(config: ModelConfig, engine: Engine, mode: str, tp: int) -> tuple[ModelConfig, str] | None:
    """The model that a reader builds, and why it runs in place of a traced model's class, in a line for the answer;
    None where the class itself runs, and for a type that no reader knows.

    A class says what eager PyTorch runs on one GPU. Engines that fuse have model code of their own, or fuse modules,
    which a reader names; a layer is shared out over GPUs as Megatron-LM does it, not as classes' plans do, which leave
    parts of it whole. Linear attention runs the kernels of its libraries, without which a class writes it out
    (transformers 5.24, is_fast_path_available of modeling_qwen3_next.py); sparse attention reads the keys that it
    picks, where a class makes all scores and masks the others. Steps that find latent vectors in a cache multiply by
    what they are made with, where a class keeps every head's keys and values; and classes of encoder-decoders make
    logits of all tokens of a prompt, or have no such pass."""
    source = recorded(config)
    built = source.built if source is not None else None
    if built is None:
        return None
    if engine.fuses:
        why = f"--execution {engine.name} fuses by modules"
    elif isinstance(tp, int) and tp > 1:
        why = f"--tp {tp} shares layers out as Megatron-LM does (--tp-plan {CLASS_PLAN}: as the class does)"
    elif any(kind.mixer in ("delta", "scan") for kind in (built, *built.variants)):
        why = "linear attention runs the kernels of its libraries (flash-linear-attention, causal-conv1d)"
    elif built.index_heads:
        why = "sparse attention reads the keys that it picks alone"
    elif built.is_mla and mode in ("decode", "generate"):
        why = f"--mode {mode} keeps latent vectors"
    elif built.is_encoder_decoder and mode in ("prefill", "decode", "generate"):
        why = f"--mode {mode} of an encoder-decoder makes logits of the last token alone"
    else:
        return None
    return built, f"{why}: {config.name} runs as the built model, not as its class"


def general_rules(config: ModelConfig, engine: Engine) -> tuple[str, ...]:
    """The line for the answer of an engine whose own code of a traced model is not known."""
    if not engine.serves or isinstance(recorded(config), Alone):
        return ()
    return (
        f"--execution {engine.name} has model code of its own, which no reader knows of {config.name}: its class runs"
        " with the engine's kernels (one product of q, k and v, the cache in place, one kernel a norm)",
    )
