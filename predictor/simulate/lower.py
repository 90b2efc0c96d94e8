"""From a model and a pass to the graph that one GPU runs: the builder's, and the passes over it in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.engines import EAGER, Engine
from predictor.graph import Graph
from predictor.networks import ModelConfig, Step, build
from predictor.parts import Formats, plain
from predictor.passes.fuse import fuse
from predictor.passes.quantize import quantize

if TYPE_CHECKING:
    from predictor.hardware.mesh import Mesh


def lower(
    config: ModelConfig, step: Step, mesh: Mesh | None = None, formats: Formats | None = None, engine: Engine = EAGER
) -> Graph:
    """The graph of one GPU, or of one rank of ``mesh``, in ``formats`` (None: all in the dtype of its activations) and
    the kernels of ``engine``.

    Raises RequestError, one line with the nearest degree that works, where a degree does not divide the model.
    """
    graph = quantize(build(config, step), formats or plain(step.act_dtype))
    if mesh is not None:
        from predictor.passes.shard import shard  # a forecast of one GPU starts without it
        from predictor.passes.tensor_parallel import TENSOR, check_tensor

        check_tensor(config, mesh.degree("tp"))
        graph = shard(graph, mesh, TENSOR)
    return fuse(graph, engine)
