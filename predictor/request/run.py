"""A run, checked: what every part after the request reads. Names are specs here, and words numbers."""

from __future__ import annotations

from predictor.files.records import dataclass, replace
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.artifact import ArtifactSet, RooflineOnly
from predictor.models.base import Model
from predictor.request.precision import Precision
from predictor.request.workload import Workload


@dataclass(frozen=True, slots=True)
class Run:
    """One run; `predictor.request.request.Request.run` makes it of words, `dataclasses.replace` another one of it.

    ``numbers`` are the formats of its weights, activations and KV cache; ``selector`` the estimators; ``top`` the
    operators that the answer lists, ``explain`` the one that it explains; ``strict``: an operator that no table knows
    is an error; ``power``: the answer says what the GPUs draw; ``draft``: the run of a model that makes drafts.
    """

    config: Model
    gpu: GPUSpec
    work: Workload
    numbers: Precision
    selector: ArtifactSet | RooflineOnly
    top: int = 0
    explain: str | None = None
    strict: bool = False
    power: bool = False
    draft: Run | None = None

    def noted(self, remarks: tuple[str, ...]) -> Run:
        """The same run, whose answer begins its notes with ``remarks``."""
        return replace(self, numbers=replace(self.numbers, notes=remarks + self.numbers.notes)) if remarks else self
