"""Batch norm and group norm: statistics of each channel, or group of channels, over pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from predictor.files.records import dataclass, replace
from predictor.ops.base import BACKWARD, FORWARD, Gradient, Kept, Op, Piece
from predictor.ops.elementwise import PlainElementwise


@dataclass(frozen=True, slots=True)
class ChannelNorm(PlainElementwise):
    """Batch norm (``kind`` "batch") or group norm ("group") of (batch, channels, pixels).

    ``training``: batch norm finds its statistics in the batch, which group norm always does; else it scales and shifts
    by running ones. Statistics take a pass over the data before the one that writes: what it reads is read again, after
    a whole channel of the batch, or group of a sample, has passed (PyTorch's Normalization.cuh and
    group_norm_kernel.cu). Backward is alike: sums over both operands, then the gradient.
    """

    batch: int
    channels: int
    pixels: int
    kind: str = "batch"
    groups: int = 1
    training: bool = False
    phase: str = FORWARD

    fn: ClassVar[str] = "channel_norm"

    @property
    def label(self) -> str:
        return "batch norm" if self.kind == "batch" else "group norm"

    @property
    def elements(self) -> int:
        """Of the tensor that is normalized."""
        return self.batch * self.channels * self.pixels

    @property
    def _reduces(self) -> bool:
        return self.kind == "group" or self.training or self.phase == BACKWARD

    @property
    def _statistics(self) -> int:
        """Means and deviations."""
        return 2 * (self.channels if self.kind == "batch" else self.batch * self.groups)

    @property
    def _parameter_bytes(self) -> float:
        return 2.0 * self.channels * 4.0

    @property
    def read_bytes(self) -> float:
        operands = 2.0 if self.phase == BACKWARD else 1.0
        return self.elements * operands * self.itemsize + self._parameter_bytes + self._statistics * 4.0

    @property
    def write_bytes(self) -> float:
        beside = self._parameter_bytes if self.phase == BACKWARD else self._statistics * 4.0 if self._reduces else 0.0
        return self.elements * self.itemsize + beside

    @property
    def again_bytes(self) -> float:  # type: ignore[override]
        """Read once more where there are sums to take first."""
        return self.elements * (2.0 if self.phase == BACKWARD else 1.0) * self.itemsize if self._reduces else 0.0

    @property
    def reuse_bytes(self) -> float:  # type: ignore[override]
        """All of it: blocks of every channel run side by side."""
        return self.again_bytes

    @property
    def flop_count(self) -> float:
        return self.elements * (8.0 if self._reduces else 2.0) * (2.0 if self.phase == BACKWARD else 1.0)

    def kernels(self) -> int:
        """Statistics, what scales them, and the result, where there are statistics to take."""
        return 3 if self.kind == "group" else 2 if self._reduces else 1

    def weights(self) -> int:
        """Scale and shift."""
        return 2 * self.channels

    def backward(self) -> tuple[Op, ...]:
        return () if self.phase == BACKWARD else (replace(self, phase=BACKWARD),)

    def gradients(self) -> tuple[Gradient, ...]:
        return () if self.phase == BACKWARD else (Gradient((0, 1, 2), (0, 1), kept=(0,)),)

    def kept(self) -> tuple[Kept, ...]:
        """Means and deviations in fp32."""
        if self.phase == BACKWARD:
            return ()
        return (Kept("statistics", "fp32", drop=-1, axes=("statistic",), shape=(self._statistics,)),)

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> ChannelNorm:
        """Its samples."""
        return replace(self, batch=outputs[0].share(self.batch))
