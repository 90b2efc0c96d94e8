"""Quantization of activations: the kernels that run before a product of narrow operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from predictor.files.records import dataclass, replace
from predictor.formats.dtypes import bytes_of
from predictor.ops.base import Piece, StreamingOp

SCALE_BYTES = 4  # by definition of fp32, in which scales are


@dataclass(frozen=True, slots=True)
class Quantize(StreamingOp):
    """(rows, cols) of ``in_dtype`` to ``dtype``, one scale a row.

    ``kind`` is "scale" (the largest magnitude of every row, and the scale from it), "cast" (divide by scales that are
    known, round, write) or "dynamic" (both in one kernel, or in two where rows share a scale). ``group``: elements that
    share a scale where it is not a row of them: 128 of block scales, rows x cols for one of the whole tensor.
    """

    rows: int
    cols: int
    kind: str = "dynamic"
    in_dtype: str = "bf16"
    group: int = 0

    family: ClassVar[str] = "quantize"
    columns: ClassVar[tuple[str, ...]] = ("rows", "cols", "read_bytes", "write_bytes")

    @property
    def label(self) -> str:
        return "quantize"

    @property
    def scales(self) -> int:
        """How many there are; a row that ends within a group has one of its own for what is left."""
        if not self.group:
            return self.rows
        if self.group <= self.cols:
            return self.rows * -(-self.cols // self.group)
        return -(-self.rows * self.cols // self.group)

    def kernels(self) -> int:
        """Two where a scale waits for rows of several blocks."""
        return 2 if self.kind == "dynamic" and self.group > self.cols else 1

    @property
    def read_bytes(self) -> float:
        known = self.scales * SCALE_BYTES if self.kind == "cast" else 0
        return self.rows * self.cols * bytes_of(self.in_dtype) + known

    @property
    def write_bytes(self) -> float:
        scale_bytes = 0 if self.kind == "cast" else self.scales * SCALE_BYTES
        return scale_bytes + (0.0 if self.kind == "scale" else self.rows * self.cols * self.itemsize)

    def flops(self) -> float:
        """A magnitude and a maximum an element to find the scale; a product and a rounding to apply it."""
        return (4.0 if self.kind == "dynamic" else 2.0) * self.rows * self.cols

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Quantize:
        """Its rows, or its part of every row."""
        x = inputs[0]
        cols = x.share(self.cols, x.whole.axes[-1])
        return replace(self, rows=x.share(self.rows * self.cols) // cols, cols=cols)
