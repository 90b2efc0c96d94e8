"""Copies between a GPU and its host's memory, by the GPU's copy engines: no multiprocessor works on them."""

from __future__ import annotations

from typing import ClassVar

from predictor.files.records import dataclass
from predictor.ops.base import HOST, Op


@dataclass(frozen=True, slots=True)
class HostCopy(Op):
    """``size`` bytes to the host, or ``back``, over a link that carries ``bandwidth`` bytes/s in one direction."""

    size: int
    bandwidth: float
    back: bool = False

    family: ClassVar[str] = "host_copy"
    columns: ClassVar[tuple[str, ...]] = ("size", "bandwidth")

    @property
    def stream(self) -> str:
        """The link to the host; its two directions do not meet."""
        return HOST

    def flops(self) -> float:
        return 0.0

    def bytes_read(self) -> float:
        return 0.0 if self.back else float(self.size)

    def bytes_written(self) -> float:
        return float(self.size) if self.back else 0.0

    def kernels(self) -> int:
        """A copy is none."""
        return 0

    def link_seconds(self) -> float:
        return self.size / self.bandwidth
