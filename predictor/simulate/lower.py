"""From a model and a pass to the graph that one GPU runs: the builder's, and the passes over it in their order."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from predictor.graph import Graph
from predictor.networks import ModelConfig, Step, build
from predictor.parts import Formats, plain
from predictor.passes.quantize import quantize
from predictor.workload import Parallelism, Workload

if TYPE_CHECKING:
    from predictor.hardware.mesh import Mesh
    from predictor.hardware.system import SystemSpec


def mesh_of(work: Workload) -> Mesh | None:
    """The GPUs of a run, an axis a parallelism; None for one GPU."""
    degrees = work.parallelism
    return None if degrees.num_gpus == 1 or work.system is None else _mesh(degrees, work.system)


@lru_cache(maxsize=256)
def _mesh(degrees: Parallelism, system: SystemSpec) -> Mesh:
    from predictor.hardware.mesh import Mesh  # a forecast of one GPU starts without it

    return Mesh((("tp", degrees.tp),), system)


def lower(config: ModelConfig, step: Step, mesh: Mesh | None = None, formats: Formats | None = None) -> Graph:
    """The graph of one GPU, or of one rank of ``mesh``, in ``formats`` (None: all in the dtype of its activations).

    Raises RequestError, one line with the nearest degree that works, where a degree does not divide the model.
    """
    formats = formats or plain(step.act_dtype)
    apart = config.is_mla and _latents_apart(config, formats)
    if step.latents_apart != apart:
        step = replace(step, latents_apart=apart)
    graph = quantize(build(config, step), formats)
    if mesh is None:
        return graph
    from predictor.passes.shard import shard  # a forecast of one GPU starts without it
    from predictor.passes.tensor_parallel import TENSOR, check_tensor

    check_tensor(config, mesh.degree("tp"))
    return shard(graph, mesh, TENSOR)


def _latents_apart(config: ModelConfig, formats: Formats) -> bool:
    """Whether the first projections of latent attention differ in format in some layer."""
    return any(of.of("attention.q_a") != of.of("attention.kv_a") for of, _ in formats.among(range(config.layers)))
