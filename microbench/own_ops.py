"""Shapes that the harness measures and no graph holds: the ceilings of a device.

They are rows of their own folders. Their fields have no column in the measurement schema, so they stand in the
harness's `shape` column as JSON, and an import leaves them out by name until the predictor has a class for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from predictor.ops import OPERATORS, Op


@dataclass(frozen=True, slots=True)
class Ceiling(Op):
    """What a device can sustain. ``kind`` and the meaning of ``size``:

    "matmul"    a square product of ``size`` rows: sustained FLOP/s of the dtype
    "read", "copy"  over ``size`` bytes: bandwidth of device memory, or of the cache where ``size`` fits into it
    "launch"    an empty-ish kernel in a stream of them: the time of one launch (``size`` elements)
    "dispatch"  the same, host side alone: the CPU time of one operator call
    """

    kind: str
    size: int

    family: ClassVar[str] = "ceiling"
    unit: ClassVar[str] = "matrix"

    def flops(self) -> float:
        return 2.0 * self.size**3 if self.kind == "matmul" else 0.0

    def bytes_read(self) -> float:
        if self.kind == "matmul":
            return 2.0 * self.size**2 * self.itemsize
        return float(self.size) if self.kind in ("read", "copy") else 0.0

    def bytes_written(self) -> float:
        if self.kind == "matmul":
            return self.size**2 * self.itemsize
        return float(self.size) if self.kind == "copy" else 0.0


OWN: dict[str, type[Op]] = {"ceiling": Ceiling}
KNOWN: dict[str, type[Op]] = {**OPERATORS, **OWN}
