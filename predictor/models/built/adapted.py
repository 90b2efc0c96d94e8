"""Which linear layers of a model get adapters of low rank (``--lora-targets``).

"attention": the projections of attention, or of what mixes tokens in its place. "all": every linear layer of the
model's layers, as peft's "all-linear" (tuners/tuners_utils.py, _maybe_include_all_linear_layers: every nn.Linear and
Conv1D but the output layer). Routers and experts whose weights are one parameter are no linear layers, and get none
(transformers 5: nn.Parameter in models/mixtral/modeling_mixtral.py, MixtralExperts, MixtralTopKRouter). Names: layers
as the model's class calls them (q_proj, c_attn), or as --top lists them ("q" of "attention q").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from predictor.errors import UnsupportedError, nearest
from predictor.models.built.class_names import modules_of
from predictor.models.step import ALL_LINEAR, ATTENTION_LINEAR, Step

if TYPE_CHECKING:
    from predictor.models.base import Model
    from predictor.models.built.config import ModelConfig

#: Beginnings of the parts whose products are linear layers of a layer.
_LINEAR = ("attention.", "mlp.", "shared_experts")
#: A projection of the queries that is not called so: the gate is one half of q_proj. Source: transformers 5,
#: models/qwen3_next/modeling_qwen3_next.py, Qwen3NextAttention.
_HALF_OF_Q = "gate"
#: How the classes end the names of projections.
_ENDING = "_proj"


def is_adapted(targets: str, part: str, name: str, config: ModelConfig) -> bool:
    """Whether the linear layer ``name`` of a ``part`` (`predictor.formats.parts`) gets an adapter."""
    if not part.startswith(_LINEAR):
        return False
    return targets == ALL_LINEAR or not _names(part, name, config).isdisjoint(targets.split(","))


def check_targets(targets: str, config: ModelConfig) -> None:
    """UnsupportedError, one line, for a name that is none of the model's linear layers."""
    if targets in (ALL_LINEAR, ATTENTION_LINEAR):
        return
    layers = [_names(part, name, config) for part, name in _layers_of(config)]
    known = sorted({max(names, key=len) for names in layers} | {name for names in layers for name in names})
    for target in targets.split(","):
        if target not in known:
            close = "".join(f"; nearest: {name}" for name in nearest(target, known, n=1))
            raise UnsupportedError(
                f"--lora-targets {target}: no linear layer of {config.name}; expected all, attention, or some of"
                f" {', '.join(known)}{close}"
            )


def target_notes(targets: str, model: Model) -> tuple[str, ...]:
    """What "all" leaves out of this model."""
    if targets != ALL_LINEAR or not model.experts:
        return ()
    return ("Routers and experts get no adapters: their weights are parameters, not linear layers.",)


def _layers_of(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """(part, name) of every linear layer, as the forward pass of training has them."""
    step = Step(mode="train", seq_len=2, training=True, lora=1, lora_targets=ALL_LINEAR)
    for block in config.graph(step).blocks:
        for node in block.nodes:
            if node.part.startswith(_LINEAR):
                yield node.part, node.name


def _names(part: str, name: str, config: ModelConfig) -> frozenset[str]:
    """What a linear layer is called: by the model's class, and here."""
    short = name.rpartition(" ")[2]
    if part == "attention.qkv" and short == _HALF_OF_Q:
        short = "q"
    theirs = [module.rpartition(".")[2] for module in modules_of(part, config)]
    if len(theirs) > 1:
        theirs = [module for module in theirs if module.removesuffix(_ENDING) == short]
    return frozenset((short, *(theirs or (f"{short}{_ENDING}",))))
