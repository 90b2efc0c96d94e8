"""An operator that nothing is known of but its name and what it moves: the roofline answers for it."""

from __future__ import annotations

from typing import ClassVar

from predictor.files.records import dataclass
from predictor.ops.base import Op


@dataclass(frozen=True, slots=True)
class Opaque(Op):
    """A call of ``name`` (as PyTorch or ONNX calls it) that the table of a frontend has no entry for.

    ``read`` and ``written`` are the bytes of its operands and results, ``flop_count`` its FLOPs where they were counted
    (0: unknown). No estimator answers for the family, so that its interval is that of the roofline alone.
    """

    name: str
    read: float
    written: float
    flop_count: float = 0.0

    family: ClassVar[str] = "opaque"
    columns: ClassVar[tuple[str, ...]] = ("read", "written", "flop_count")

    @property
    def label(self) -> str:
        return self.name

    def flops(self) -> float:
        return self.flop_count

    def bytes_read(self) -> float:
        return self.read

    def bytes_written(self) -> float:
        return self.written
