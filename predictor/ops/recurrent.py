"""Recurrent layers as libraries run them: a call of cuDNN's (or MIOpen's) for a layer, not an operator a step.

A layer projects the inputs of all its steps in one product, then walks its steps: a product of the state and a kernel
of all gates each (Appleyard et al., arXiv:1604.01946). Backward walks them back with the transposed product; gradients
of the inputs and of both weights are products over all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from predictor.files.records import dataclass, replace
from predictor.ops.base import BACKWARD, FORWARD, Op, Piece

#: Widths up to which a kernel that stays on its SMs keeps the state's weights in registers, forward and backward: of
#: gated layers, and of plain ones. Source: PyTorch aten/src/ATen/native/cudnn/RNN.cpp, get_algo and
#: use_rnn_persist_small_h (PERSIST_STATIC_SMALL_H).
_PERSISTENT = {False: (384, 256), True: (192, 128)}


@dataclass(frozen=True, slots=True)
class Recurrence(Op):
    """One layer of an RNN (``gates`` 1), a GRU (3) or an LSTM (4) over ``steps`` of ``batch`` sequences.

    Shapes: input (steps, batch, inputs), state (batch, hidden), weights (gates hidden, inputs) and (gates hidden,
    hidden), result (steps, batch, directions hidden). ``directions`` run one after the other, each with weights of its
    own. cuDNN's PERSIST_STATIC of fp16 is not modelled: it counts as the standard algorithm.
    """

    steps: int
    batch: int
    inputs: int
    hidden: int
    gates: int
    directions: int = 1
    phase: str = FORWARD

    family: ClassVar[str] = "recurrence"
    columns: ClassVar[tuple[str, ...]] = ("steps", "batch", "inputs", "hidden", "gates", "directions")
    unit: ClassVar[str] = "matrix"

    @property
    def label(self) -> str:
        return "recurrent layer"

    @property
    def wide(self) -> int:
        """Columns of a direction's products: all gates."""
        return self.gates * self.hidden

    @property
    def is_persistent(self) -> bool:
        """Whether one kernel walks all steps, with weights in registers."""
        return self.hidden <= _PERSISTENT[self.gates > 1][self.phase == BACKWARD]

    @property
    def inputs_products(self) -> tuple[tuple[int, int, int], ...]:
        """(m, n, k) of a direction's products over all steps at once."""
        rows = self.steps * self.batch
        if self.phase == FORWARD:
            return ((rows, self.wide, self.inputs),)
        return (rows, self.inputs, self.wide), (self.wide, self.inputs, rows), (self.wide, self.hidden, rows)

    @property
    def step_product(self) -> tuple[int, int, int]:
        """(m, n, k) of a step's product with the state, or with the gradient of the gates."""
        if self.phase == FORWARD:
            return self.batch, self.wide, self.hidden
        return self.batch, self.hidden, self.wide

    @property
    def step_bytes(self) -> float:
        """Bytes that a step's kernel of the gates reads and writes: gates, and the state before and after it."""
        return self.batch * (self.wide + 2.0 * self.hidden) * self.itemsize

    def weights(self) -> int:
        """Both matrices and both biases of every direction, as cuDNN keeps them."""
        return self.directions * self.wide * (self.inputs + self.hidden + 2)

    def flops(self) -> float:
        """Two for a multiply-add of every product; as many again backward, where there are twice the products."""
        every = self.directions * self.steps * self.batch * 2.0 * self.wide * (self.inputs + self.hidden)
        return every if self.phase == FORWARD else 2.0 * every

    def bytes_read(self) -> float:
        rows = self.steps * self.batch
        read = rows * self.inputs + self.weights()
        if self.phase == BACKWARD:
            read += rows * self.directions * (self.wide + self.hidden)
        return read * self.itemsize

    def bytes_written(self) -> float:
        rows = self.steps * self.batch
        if self.phase == BACKWARD:
            return (rows * self.inputs + self.weights()) * self.itemsize
        return rows * self.directions * self.hidden * self.itemsize

    def kernels(self) -> int:
        """A product before the steps, and two kernels a step (one in all, where it is persistent)."""
        return self.directions * (len(self.inputs_products) + (1 if self.is_persistent else 2 * self.steps))

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Recurrence:
        """Its sequences."""
        return replace(self, batch=outputs[0].share(self.batch))
