"""What runs once a step over a rank's parameters: the optimizer, and what a framework does to gradients and weights
before and after it."""

from __future__ import annotations

from predictor.engines.vintage import TrainingFramework
from predictor.files.records import replace
from predictor.graph.graph import OPTIMIZER, Graph, Node
from predictor.ops.base import Op
from predictor.ops.elementwise import Elementwise, Reduce
from predictor.passes.autograd import optimizer_graph

#: What PyTorch's foreach form is in one kernel, which frameworks that fuse run (apex FusedAdam).
_FUSED = {"adam": "adam_fused"}


def update_graph(parameters: int, kind: str, mixed: bool, training: TrainingFramework | None) -> Graph:
    """One step of the optimizer over ``parameters`` fp32 parameters; an empty graph for kind "none".

    ``training.norm_and_clip``: with fp32 main gradients, as Megatron's mixed-precision optimizer runs it (unscale and
    check, norm, clip, one fused kernel, copy to 16 bit, clear; megatron/optimizer/optimizer.py:372-414).
    """
    if training is None or not training.norm_and_clip:
        return optimizer_graph(parameters, kind, mixed)
    graph = optimizer_graph(parameters, _FUSED.get(kind, kind), False)
    if not graph.blocks:
        return graph
    (block,) = graph.blocks
    scaled = Elementwise("fp32", "mul_scalar", parameters)
    before: list[tuple[str, Op]] = [("unscale", scaled)] if mixed else []
    before += [("norm", Reduce("fp32", 1, parameters, 1)), ("clip", scaled)]
    after: list[tuple[str, Op]] = [("clear", Elementwise("fp32", "fill", parameters))]
    if mixed:
        after = [("copy", Elementwise("bf16", "cast", parameters, in_dtype="fp32")), *after]
    ahead, behind = (
        [Node(op, f"gradients {name}", phase=OPTIMIZER, host_calls=1) for name, op in ops] for ops in (before, after)
    )
    return Graph((replace(block, nodes=(*ahead, *block.nodes, *behind)),))
