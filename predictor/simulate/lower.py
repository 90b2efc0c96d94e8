"""From a model and a pass to the graph that one GPU runs: the builder's, and the passes over it in their order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from predictor.graph import Graph
from predictor.networks import ModelConfig, Step, build
from predictor.parallel import rank_config
from predictor.parts import Formats, plain
from predictor.passes.quantize import quantize

if TYPE_CHECKING:
    from predictor.hardware.system import SystemSpec


def lower(config: ModelConfig, step: Step, tp: int, system: SystemSpec | None, formats: Formats | None = None) -> Graph:
    """The graph of one of ``tp`` GPUs of ``system``, in ``formats`` (None: all in the dtype of its activations).

    Raises RequestError, one line with the nearest degree that works, where ``tp`` does not divide the model.
    """
    formats = formats or plain(step.act_dtype)
    apart = config.is_mla and _latents_apart(config, formats)
    if (step.tp, step.system, step.latents_apart) != (tp, system, apart):
        step = replace(step, tp=tp, system=system, latents_apart=apart)
    return quantize(build(rank_config(config, tp) if tp > 1 else config, step), formats)


def _latents_apart(config: ModelConfig, formats: Formats) -> bool:
    """Whether the first projections of latent attention differ in format in some layer."""
    return any(of.of("attention.q_a") != of.of("attention.kv_a") for of, _ in formats.among(range(config.layers)))
