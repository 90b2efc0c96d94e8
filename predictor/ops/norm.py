"""Layer norm, RMS norm and softmax: one pass over every row of a (rows, cols) matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from predictor.files.records import dataclass, replace
from predictor.ops.base import BACKWARD, FORWARD, Gradient, Kept, Op, Piece, StreamingOp
from predictor.ops.elementwise import Elementwise


@dataclass(frozen=True, slots=True)
class Norm(StreamingOp):
    """``kind`` is "layer" (mean and variance, weight and bias) or "rms" (mean square, weight).

    ``residual`` marks the fused form that adds a residual first and writes the sum back as well, where it is
    ``sum_kept``. ``in_reduction``: in the kernel of the all_reduce before it, which has one term at hand and writes the
    sum in place of its own result.
    """

    rows: int
    cols: int
    kind: str = "layer"
    phase: str = FORWARD
    residual: bool = False
    sum_kept: bool = True
    in_reduction: bool = False

    family: ClassVar[str] = "norm"
    columns: ClassVar[tuple[str, ...]] = ("rows", "cols", "read_bytes", "write_bytes")

    @property
    def label(self) -> str:
        return "layer norm" if self.kind == "layer" else "rms norm"

    @property
    def _parameters(self) -> int:
        return 2 if self.kind == "layer" else 1

    @property
    def _statistics(self) -> int:
        return 2 if self.kind == "layer" else 1

    @property
    def statistics_bytes(self) -> float:
        """Bytes of the rows' statistics in fp32, which the backward pass wants again."""
        return self._statistics * self.rows * 4.0

    @property
    def read_bytes(self) -> float:
        n = self.rows * self.cols
        if self.phase == FORWARD:
            terms = 2 if self.residual and not self.in_reduction else 1
            return (n * terms + self._parameters * self.cols) * self.itemsize
        return (2 * n + self.cols) * self.itemsize + self.statistics_bytes

    @property
    def write_bytes(self) -> float:
        n = self.rows * self.cols
        if self.phase == FORWARD:
            written = 2 if self.residual and self.sum_kept and not self.in_reduction else 1
            return n * written * self.itemsize + self.statistics_bytes
        return (n + self._parameters * self.cols) * self.itemsize

    def weights(self) -> int:
        """Weight, and bias of a layer norm."""
        return self._parameters * self.cols

    def flops(self) -> float:
        per_element = (8 if self.kind == "layer" else 4) * (1 if self.phase == FORWARD else 2)
        return float(self.rows * self.cols * per_element)

    def backward(self) -> tuple[Op, ...]:
        if self.phase == BACKWARD:
            return ()
        return (Norm(self.dtype, self.rows, self.cols, self.kind, BACKWARD, self.residual),)

    def gradients(self) -> tuple[Gradient, ...]:
        """The input's, the weight's and the bias's in one operator; of a residual form, both terms', from the sum."""
        if self.phase == BACKWARD:
            return ()
        if self.residual:
            return _OF_SUM if self.sum_kept else _OF_KEPT_SUM
        return _OF_INPUT

    def kept(self) -> tuple[Kept, ...]:
        """Mean and deviation of every row ("rms": the deviation alone), and a sum that is made within the kernel."""
        if self.phase == BACKWARD:
            return ()
        statistics = Kept("statistics", "fp32", drop=1, axes=("statistic",), shape=(self._statistics,))
        return (statistics, Kept("sum")) if self.residual and not self.sum_kept else (statistics,)

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Norm:
        """Its rows: a row is never split."""
        rows = outputs[0].share(self.rows)
        return replace(self, rows=rows)

    def kernels(self) -> int:
        if self.in_reduction:
            return 0
        return 1 if self.phase == FORWARD else 2  # the input's gradient, and the parameters'


#: Which inputs and outputs each gradient reads: places in the operator's, by definition.
_OF_INPUT = (Gradient((0, 1, 2), (0, 1), kept=(0,)),)
_OF_SUM = (Gradient((0, 1, 2, 3), (2,), (0,), (0,)),)
_OF_KEPT_SUM = (Gradient((0, 1, 2, 3), (2,), kept=(0, 1)),)


@dataclass(frozen=True, slots=True)
class Softmax(StreamingOp):
    """Softmax over the last axis of (rows, cols). ``wide``: its result is fp32, which the gradient's kernels read."""

    rows: int
    cols: int
    phase: str = FORWARD
    wide: bool = False

    family: ClassVar[str] = "softmax"
    columns: ClassVar[tuple[str, ...]] = ("rows", "cols", "read_bytes", "write_bytes")

    @property
    def read_bytes(self) -> float:
        return self.rows * self.cols * self.itemsize * (1 if self.phase == FORWARD else 2)

    @property
    def write_bytes(self) -> float:
        return self.rows * self.cols * self.itemsize

    def flops(self) -> float:
        return 5.0 * self.rows * self.cols if self.phase == FORWARD else 4.0 * self.rows * self.cols

    def backward(self) -> tuple[Op, ...]:
        """PyTorch multiplies gradient and output first, then runs the row kernel: 24 bytes an element in fp32."""
        if self.phase == BACKWARD:
            return ()
        dtype = "fp32" if self.wide else self.dtype
        return Elementwise(dtype, "mul", self.rows * self.cols), Softmax(dtype, self.rows, self.cols, BACKWARD)

    def gradients(self) -> tuple[Gradient, ...]:
        return () if self.phase == BACKWARD else _OF_OUTPUT

    def backward_in_one(self) -> tuple[tuple[Op, ...], tuple[Gradient, ...]]:
        """One kernel reads gradient and output."""
        if self.phase == BACKWARD:
            return (), ()
        return (Softmax(self.dtype, self.rows, self.cols, BACKWARD),), (Gradient((0,), outputs=(0,)),)

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Softmax:
        """Its rows: a row is never split."""
        return Softmax(self.dtype, outputs[0].share(self.rows), self.cols, self.phase, self.wide)


_OF_OUTPUT = (Gradient(outputs=(0,)), Gradient((0,), outputs=(0,), incoming=False, before=True))
