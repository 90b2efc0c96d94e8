"""From a model and a pass to the graph that one GPU runs: the builder's, and the passes over it in their order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from predictor.engines import EAGER, Engine
from predictor.graph import Graph
from predictor.networks import ModelConfig, Step, build
from predictor.parallel import rank_config
from predictor.passes.fuse import fuse
from predictor.passes.quantize import quantize

if TYPE_CHECKING:
    from predictor.hardware.system import SystemSpec


def lower(config: ModelConfig, step: Step, tp: int, system: SystemSpec | None, engine: Engine = EAGER) -> Graph:
    """The graph of one of ``tp`` GPUs of ``system``, in the kernels of ``engine``: inputs quantized and collectives
    included.

    Raises RequestError, one line with the nearest degree that works, where ``tp`` does not divide the model.
    """
    if (step.tp, step.system) != (tp, system):
        step = replace(step, tp=tp, system=system)
    return fuse(quantize(build(rank_config(config, tp) if tp > 1 else config, step)), engine)
