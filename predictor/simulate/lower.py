"""From a model and a pass to the graph that one GPU runs: the builder's, and the passes over it in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from predictor.graph import Graph
from predictor.graph.template import Templates
from predictor.networks import ModelConfig, Step, build
from predictor.parallel import rank_config
from predictor.parts import Formats, plain
from predictor.passes.quantize import quantize

if TYPE_CHECKING:
    from predictor.hardware.system import SystemSpec

#: What of a step a template leaves open: sizes, and the system, of which a graph holds the links' numbers.
_OPEN = ("batch", "seq_len", "context_len", "system")
_structure_of = attrgetter(*(each.name for each in fields(Step) if each.name not in _OPEN))
_TEMPLATES = Templates(most=512)


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


def lower_alike(
    config: ModelConfig, step: Step, tokens: Sequence[int], tp: int, system: SystemSpec | None, formats: Formats
) -> list[Graph] | None:
    """The graphs of passes like ``step`` with other ``tokens``: of the context in decode, else query tokens a sequence.

    As `lower` makes them, without tensors, from a template; None where there is none, which is so where the structure
    comes for the first time, in training, and of ragged batches.
    """
    if step.lens or step.training:
        return None
    last, rest = ("context_len", step.seq_len) if step.mode == "decode" else ("seq_len", step.context_len)
    structure = (config, tp, formats, rest, _structure_of(step))
    batch = step.batch

    def make(system: SystemSpec | None = None, **sizes: Any) -> Graph:
        return lower(config, replace(step, system=system, **sizes), tp, system, formats)

    if system is None:
        return _TEMPLATES.graphs((*structure, None), ("batch", last), [(batch, n) for n in tokens], make)
    return _TEMPLATES.graphs(structure, ("batch", "system", last), [(batch, system, n) for n in tokens], make)
