"""From a model and a pass to the graph that one GPU runs: the builder's, and the passes over it in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.graph import Graph
from predictor.networks import ModelConfig, Step, build
from predictor.passes.quantize import quantize

if TYPE_CHECKING:
    from predictor.hardware.mesh import Mesh


def lower(config: ModelConfig, step: Step, mesh: Mesh | None = None) -> Graph:
    """The graph of one GPU, or of one rank of ``mesh``: inputs quantized, collectives included.

    Raises RequestError, one line with the nearest degree that works, where a degree does not divide the model.
    """
    if mesh is None:
        return quantize(build(config, step))
    from predictor.passes.shard import shard  # a forecast of one GPU starts without it
    from predictor.passes.tensor_parallel import TENSOR, check_tensor

    check_tensor(config, mesh.degree("tp"))
    return shard(quantize(build(config, step)), mesh, TENSOR)
