"""Stages: what a run is made of, in every mode, and how those of a step of training on many GPUs go together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from predictor.engines import CAPTURED, Engine
from predictor.graph import OPTIMIZER, Block, Graph
from predictor.ops.base import COMPUTE
from predictor.request.workload import DEFAULT_LAUNCH_OVERHEAD_S
from predictor.simulate.timeline import NO_GAPS, Gaps

#: Phases of what replicas and stages of a pipeline exchange beside the layers' own collectives.
EXCHANGES = GRADIENTS, WEIGHTS, PIPELINE = "gradients", "weights", "pipeline"

#: Phases of speculative decoding beside the model's own passes: what makes drafts, and its pass over the prompts.
DRAFT, DRAFT_PROMPTS = "draft", "draft prompts"
#: Phase of the pass of images through a model's tower, ahead of the prompts'.
IMAGES = "images"


class Stage(NamedTuple):
    """Passes that are alike: ``graph``, run ``weight`` times.

    ``host`` is what the CPU does in each (`predictor.engines.HOSTS`), ``launch_s`` its time of one call or launch,
    ``waits`` what the GPU waits for after each, in words and seconds, ``gaps`` what passes between kernels. ``phase``
    is what the pass is to the run: a mode, or the optimizer's step. ``context``: tokens in the cache of a decode step
    that stands for others. ``forward``: the blocks that are the forward pass of training, whose backward pass follows.
    ``ends``: of a serving pipeline, how many blocks its stages up to each have, () without one; ``in_flight`` batches
    are on their way through them at a time. ``counted``: the pass without what pads it to the size of a captured one,
    whose FLOPs count; None where nothing does. ``layers_captured``: the host launches a graph for each layer. Of a
    column of runs (`predictor.simulate.columns`) ``weight``, ``context`` and ``waits`` have arrays (points,).
    """

    graph: Graph
    phase: str
    weight: Any = 1.0
    host: str = CAPTURED
    launch_s: float = DEFAULT_LAUNCH_OVERHEAD_S
    waits: tuple[tuple[str, float], ...] = ()
    gaps: Gaps = NO_GAPS
    context: int = 0
    forward: int = 0
    ends: tuple[int, ...] = ()
    in_flight: int = 1
    counted: Graph | None = None
    layers_captured: bool = False

    @property
    def captured(self) -> bool:
        """No launches: the CPU is free while the GPU runs."""
        return self.host == CAPTURED

    @property
    def overhead_s(self) -> float:
        """Seconds of `waits`."""
        return sum(seconds for _, seconds in self.waits)

    @property
    def label(self) -> str:
        """The stage in words."""
        if self.forward:
            return "forward and backward"
        if self.phase == OPTIMIZER:
            return "optimizer step"
        if self.phase in EXCHANGES:
            return self.phase
        name = "decode step" if self.phase == "decode" else self.phase
        return f"{name}, {self.context:,} tokens in the cache" if self.context else self.phase


class Rank(NamedTuple):
    """A stage of a pipeline, of its kind: places in ``Plan.stages``. ``chunks``: of its chunks, in order; ``reduce``
    and ``gather``: what its replicas exchange once a step (-1: nothing); ``update``: the optimizer's step (-1: none).
    ``parameters``: elements of its weights, ``trained`` of those that are trained; ``spared``: bytes that a base in few
    bits saves of them; ``experts`` and ``experts_trained``: of both, elements of experts that replicas of their own
    have."""

    chunks: tuple[int, ...]
    reduce: int
    gather: int
    update: int
    parameters: int
    trained: int
    spared: float = 0.0
    experts: int = 0
    experts_trained: int = 0


class Units(NamedTuple):
    """What sharded weights cost a pass of a chunk: places of stages whose blocks stand for the ``blocks`` of the chunk
    that have weights, by place there; each with what gathers its weights, and with what reduces their gradients."""

    gather: int
    reduce: int
    blocks: tuple[int, ...]


class Parallel(NamedTuple):
    """How the stages of a plan are one step of training on many GPUs.

    ``kinds``: the distinct stages of the pipeline; ``ranks``: the kind of each. ``message``: place of what a stage
    sends the next for a micro-batch (-1: nothing). ``units`` by place of the chunk, where weights are sharded;
    ``saved`` by that place, a function that gives the bytes which a micro-batch leaves for the backward pass;
    ``sends``: how many such messages each stage sends the next for a micro-batch.
    """

    kinds: tuple[Rank, ...]
    ranks: tuple[int, ...]
    message: int
    units: Mapping[int, Units]
    saved: Mapping[int, Callable[[], float]]
    sends: tuple[int, ...] = ()


class Plan(NamedTuple):
    """The stages of a run in order. The first holds the forward pass with the largest activations. ``parallel``: of
    training on many GPUs, how they make up the step; None where one follows the other."""

    stages: tuple[Stage, ...]
    parallel: Parallel | None = None

    @property
    def first(self) -> Graph:
        """That forward pass."""
        stage = self.stages[0]
        return Graph(stage.graph.blocks[: stage.forward]) if stage.forward else stage.graph


def collectives_beside(block: Block, engine: Engine) -> bool:
    """Whether collectives of the block run beside its computation, so that its time depends on which node reads what
    (`predictor.simulate.timeline`), not on its operators alone."""
    if all(node.op.stream == COMPUTE for node in block.nodes):
        return False
    return block.beside or (engine.training is not None and engine.training.tensor_overlaps)
