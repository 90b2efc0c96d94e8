"""A plan with its answer."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.files.records import dataclass, replace
from predictor.kernels.artifact import ArtifactSet, RooflineOnly
from predictor.request.options import INTERLEAVED, ONE_F_ONE_B
from predictor.request.request import Request
from predictor.request.run import Run
from predictor.search.training.space import ParallelPlan


@dataclass(frozen=True, slots=True)
class Priced:
    """A plan and its answer: seconds of a step, ``parts_s`` that add up to it, bytes of the fullest GPU and what that
    may use, ``bubble_s`` and ``exposed_s``. ``exact``: by a forecast of its own, else by the screening.
    ``energy_j``: joules of a step on all GPUs, where a forecast of its own says it."""

    plan: ParallelPlan
    latency_s: float
    mfu: float
    memory_bytes: float
    usable_bytes: float
    bubble_s: float
    exposed_s: float
    parts_s: Mapping[str, float]
    exact: bool = True
    energy_j: float | None = None

    @property
    def fits(self) -> bool:
        """Whether every GPU has room for it."""
        return self.memory_bytes <= self.usable_bytes

    @property
    def bubble_share(self) -> float:
        """What of the step a stage of the pipeline idles."""
        return self.bubble_s / self.latency_s

    @property
    def schedule(self) -> str:
        """The order of its pipeline."""
        return self.plan.schedule or (INTERLEAVED if self.plan.vpp > 1 else ONE_F_ONE_B)


def run_of(asked: Request, plan: ParallelPlan, selector: ArtifactSet | RooflineOnly) -> Run:
    """The run of a plan, as `predict` of its words makes it."""
    return replace(asked, num_gpus=None, **plan.words).run(selector)
