"""Shapes that the harness measures and no graph holds yet: convolution, and the ceilings of a device.

They are rows of their own folders. Their fields have no column in the measurement schema, so they stand in the
harness's `shape` column as JSON, and an import leaves them out by name until the predictor has a class for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from predictor.ops import OPERATORS, Op


@dataclass(frozen=True, slots=True)
class Conv(Op):
    """2-D convolution of x (batch, channels, height, width) with ``filters`` square kernels of ``kernel`` pixels."""

    batch: int
    channels: int
    height: int
    width: int
    filters: int
    kernel: int
    stride: int = 1
    groups: int = 1
    phase: str = "forward"

    family: ClassVar[str] = "conv"
    unit: ClassVar[str] = "matrix"

    @property
    def out_height(self) -> int:
        return (self.height + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    @property
    def out_width(self) -> int:
        return (self.width + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    def flops(self) -> float:
        """Zero: Winograd and FFT kernels need fewer FLOP than the direct form, so no count of it is a bound."""
        return 0.0

    def direct_flops(self) -> float:
        """FLOP of the direct form; the backward pass has two such products."""
        one = 2.0 * self.batch * self.out_height * self.out_width * self.filters
        return one * (self.channels // self.groups) * self.kernel**2 * (1 if self.phase == "forward" else 2)

    def _input(self) -> float:
        return self.batch * self.channels * self.height * self.width * self.itemsize

    def _weight(self) -> float:
        return self.filters * (self.channels // self.groups) * self.kernel**2 * self.itemsize

    def _output(self) -> float:
        return self.batch * self.filters * self.out_height * self.out_width * self.itemsize

    def bytes_read(self) -> float:
        # A strided 1x1 kernel skips pixels of its input: what it must read shrinks by stride^2.
        seen = self._input() / (self.stride**2 if self.kernel < self.stride else 1)
        return seen + self._weight() + (self._output() if self.phase == "backward" else 0.0)

    def bytes_written(self) -> float:
        return self._output() if self.phase == "forward" else self._input() + self._weight()


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


OWN: dict[str, type[Op]] = {"conv": Conv, "ceiling": Ceiling}
KNOWN: dict[str, type[Op]] = {**OPERATORS, **OWN}
