"""Embedding look-up and its backward pass, and cross-entropy over a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from predictor.files.records import dataclass
from predictor.ops.base import BACKWARD, FORWARD, Gradient, Kept, Op, Piece, StreamingOp

INDEX_BYTES = 8  # by definition of int64, with which PyTorch indexes


@dataclass(frozen=True, slots=True)
class Embedding(StreamingOp):
    """Look-up of ``tokens`` rows of width ``width`` in a table of ``vocab`` rows.

    The backward pass of a dense table fills a gradient of the whole table with zeros and adds the rows into it.
    """

    tokens: int
    width: int
    vocab: int
    phase: str = FORWARD

    family: ClassVar[str] = "embedding"
    columns: ClassVar[tuple[str, ...]] = ("tokens", "width", "vocab", "read_bytes", "write_bytes")
    called: ClassVar[Mapping[str, str]] = {"vocab": "table length"}  # of positions, too

    @property
    def read_bytes(self) -> float:
        rows = self.tokens if self.phase == BACKWARD else min(self.tokens, self.vocab)
        return rows * self.width * self.itemsize + self.tokens * INDEX_BYTES

    @property
    def write_bytes(self) -> float:
        if self.phase == FORWARD:
            return self.tokens * self.width * self.itemsize
        return self.vocab * self.width * self.itemsize

    def activation_bytes(self) -> float:
        return self.write_bytes

    def weights(self) -> int:
        """The table: its gradient is dense."""
        return self.vocab * self.width

    def flops(self) -> float:
        return 0.0 if self.phase == FORWARD else float(self.tokens * self.width)

    def backward(self) -> tuple[Op, ...]:
        if self.phase == BACKWARD:
            return ()
        return (Embedding(self.dtype, self.tokens, self.width, self.vocab, BACKWARD),)

    def gradients(self) -> tuple[Gradient, ...]:
        """The table's."""
        return () if self.phase == BACKWARD else (Gradient((0,)),)

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Embedding:
        """Its rows of the table, or its columns; all tokens are looked up, and found where their rows are."""
        rows, table = (inputs[0], outputs[0]) if self.phase == BACKWARD else (outputs[0], inputs[0])
        row, column = table.whole.axes
        width = table.share(self.width, column)
        tokens = rows.share(self.tokens * self.width) // width
        return Embedding(self.dtype, tokens, width, table.share(self.vocab, row), self.phase)

    def kernels(self) -> int:
        return 1 if self.phase == FORWARD else 2  # fill with zeros, then add


@dataclass(frozen=True, slots=True)
class CrossEntropy(StreamingOp):
    """Mean cross-entropy of (rows, vocab) logits: log-softmax, then the picked entries; the gradient is as large.

    ``in_passes``: as Megatron-LM's vocabulary-parallel loss runs it (mpu/cross_entropy.py:32-71 of a8d172b31e92): a
    kernel for the maximum, the difference in place, the exponential, its sum and the quotient; backward, the scaling
    of what is left.
    """

    rows: int
    vocab: int
    phase: str = FORWARD
    in_passes: bool = False

    family: ClassVar[str] = "cross_entropy"
    columns: ClassVar[tuple[str, ...]] = ("rows", "vocab", "read_bytes", "write_bytes")

    @property
    def label(self) -> str:
        return "cross-entropy"

    @property
    def read_bytes(self) -> float:
        n = self.rows * self.vocab * self.itemsize
        if self.phase == FORWARD:
            return (5 if self.in_passes else 1) * n + self.rows * INDEX_BYTES
        return n if self.in_passes else 2 * n

    @property
    def write_bytes(self) -> float:
        n = self.rows * self.vocab * self.itemsize
        return 3 * n if self.in_passes and self.phase == FORWARD else n

    def flops(self) -> float:
        return 5.0 * self.rows * self.vocab

    def backward(self) -> tuple[Op, ...]:
        if self.phase == BACKWARD:
            return ()
        return (CrossEntropy(self.dtype, self.rows, self.vocab, BACKWARD, self.in_passes),)

    def gradients(self) -> tuple[Gradient, ...]:
        return () if self.phase == BACKWARD else (Gradient((0,), kept=(0,)),)

    def kept(self) -> tuple[Kept, ...]:
        """The log-softmax of the logits."""
        return () if self.phase == BACKWARD else (Kept("log-softmax", self.dtype, of_input=True),)

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> CrossEntropy:
        """Its rows, and its part of the vocabulary."""
        logits = outputs[0] if self.phase == BACKWARD else inputs[0]
        vocab = logits.share(self.vocab, logits.whole.axes[-1])
        rows = logits.share(self.rows * self.vocab) // vocab
        return CrossEntropy(self.dtype, rows, vocab, self.phase, self.in_passes)

    def kernels(self) -> int:
        return 5 if self.in_passes and self.phase == FORWARD else 2
