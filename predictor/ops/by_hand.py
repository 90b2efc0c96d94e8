"""Functions whose classes write their backward pass by hand, kernel by kernel, in place of autograd's."""

from __future__ import annotations

from predictor.files.records import dataclass
from predictor.ops.base import Gradient, Op
from predictor.ops.elementwise import Elementwise

#: Kernels of the gradient g of x (n,): tanh(0.79788456 x (1 + 0.044715 x x)) in six, then
#: 0.5 x ((1 - t t) (0.79788456 + 0.1070322243 x x)) + 0.5 (1 + t), times g; t t reads one tensor. Source: transformers
#: `models/bloom/modeling_bloom.py`, bloom_gelu_back. "fused": the sum of two terms, which autograd's sums are not.
_GELU = (
    "mul_scalar", "mul_scalar", "mul", "add_scalar", "mul", "tanh",
    "mul_scalar", "mul_scalar", "add_scalar", "mul_scalar", "mul", "add_scalar", "mul", "mul", "add_scalar",
    "mul_scalar", "fused", "mul",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HandGelu(Elementwise):
    """The product that ends Bloom's GELU of its first input, whose whole gradient is made here."""

    def backward(self) -> tuple[Op, ...]:
        return tuple(Elementwise(self.dtype, fn, self.elements, 2 if fn == "fused" else -1) for fn in _GELU)

    def gradients(self) -> tuple[Gradient, ...]:
        step = Gradient(inputs=(0,), incoming=False)
        return (step, *(step._replace(before=True),) * (len(_GELU) - 2), Gradient((0,), (0,), before=True))
