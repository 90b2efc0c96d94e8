"""A mesh: the GPUs of a run along named axes, one for each parallelism, and which of them share a node.

GPUs are numbered node by node. The first axis is the innermost: its neighbours have neighbouring numbers, so that
tensor parallelism, which talks most, stays within a node: `Mesh((("tp", 8), ("dp", 4)), system)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.errors import RequestError
from predictor.files.records import dataclass, replace

if TYPE_CHECKING:
    from predictor.hardware.system import SystemSpec
    from predictor.ops.collective import Collective


@dataclass(frozen=True, slots=True)
class Mesh:
    """``axes``: (name, degree) from the innermost on, over the GPUs of ``system``. Axes of degree 1 vanish. ``ep`` of
    the tp x dp GPUs have whole experts, to which ``exchange`` brings tokens (`predictor.passes.expert_parallel`);
    ``reach``: the share of the experts that a token picks from; ``folds``: in training, the ranks along tp are among
    those that share experts.

    Raises RequestError, one line, where a degree or a name is no good, or where the groups of an axis would share nodes
    in different ways.
    """

    axes: tuple[tuple[str, int], ...]
    system: SystemSpec
    ep: int = 1
    exchange: str = ""
    folds: bool = False
    reach: float = 1.0

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(set(names)) < len(names):
            raise RequestError(f"mesh {self}: expected every axis once")
        if any(degree < 1 for _, degree in self.axes):
            raise RequestError(f"mesh {self}: expected degrees from 1 on")
        object.__setattr__(self, "axes", tuple((name, degree) for name, degree in self.axes if degree > 1))
        per_node = self.system.gpus_per_node
        if self.gpus <= per_node:
            return
        if self.system.network is None:
            raise RequestError(f"mesh {self}: {self.system.id} has no network: expected at most {per_node} GPUs")
        inner = 1
        for name, degree in self.axes:
            inner *= degree
            if inner % per_node and per_node % inner:
                raise RequestError(
                    f"mesh {self}: {inner} GPUs up to {name} do not fit nodes of {per_node} ({self.system.id}): "
                    f"expected a divisor or a multiple of {per_node}"
                )

    def __str__(self) -> str:
        return " x ".join(f"{name} {degree}" for name, degree in self.axes) or "of one GPU"

    @property
    def gpus(self) -> int:
        """GPUs of the mesh: the product of the degrees."""
        count = 1
        for _, degree in self.axes:
            count *= degree
        return count

    def degree(self, axis: str) -> int:
        """GPUs along ``axis``; 1 where the mesh has no such axis."""
        return next((degree for name, degree in self.axes if name == axis), 1)

    def within(self, axis: str) -> Mesh | None:
        """The mesh of the axes within ``axis``, which are all there is in one place along it; None for one GPU."""
        names = [name for name, _ in self.axes]
        if axis not in names:
            return self
        inner = self.axes[: names.index(axis)]
        return replace(self, axes=inner) if inner else None

    def stride(self, axis: str) -> int:
        """How far apart the numbers of neighbours along ``axis`` are: the product of the degrees within it."""
        stride = 1
        for name, degree in self.axes:
            if name == axis:
                break
            stride *= degree
        return stride

    def ranks_per_node(self, axis: str) -> int:
        """GPUs of one group along ``axis`` that are in the same node."""
        return max(1, min(self.degree(axis), self.system.gpus_per_node // self.stride(axis)))

    def collective(self, kind: str, axis: str, dtype: str, size: int) -> Collective:
        """The collective of a group along ``axis`` on ``size`` bytes (`predictor.ops.collective`)."""
        from predictor.ops.collective import over

        return over(self.system, kind, dtype, size, self.degree(axis), self.ranks_per_node(axis))
