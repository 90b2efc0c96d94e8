"""Rotary position embedding of q and k together, in place over pairs, as one kernel of torch.compile on a GPU.

Eager PyTorch has no such kernel: Hugging Face models run five or more element-wise ones in its place. On a processor
the complex product is the nearest single operator.
"""

from __future__ import annotations

import torch

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import IllegalCase, Prepared, compiled, relative_error
from predictor.ops import Rotary


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x (tokens, heads, d); cos and sin (tokens, 1, d/2): the halves of every head are turned against each other."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Rotary)
    if op.head_dim % 2:
        raise IllegalCase("head_dim is odd")
    angle = device.uniform(op.tokens, 1, op.head_dim // 2, low=-3.0, high=3.0)
    if device.kind == "cpu":
        if op.dtype != "fp32":
            raise IllegalCase("the complex product of a processor is fp32")
        pairs = device.randn(op.tokens, op.heads, op.head_dim // 2, 2)
        z, turn = torch.view_as_complex(pairs), torch.polar(torch.ones_like(angle), angle)

        def check() -> float:
            return relative_error(
                torch.view_as_real(z * turn), torch.view_as_real(z.to(torch.complex128) * turn.to(torch.complex128))
            )

        return Prepared(lambda: z * turn, check, kernel_source="complex")
    x = device.randn(op.tokens, op.heads, op.head_dim, dtype=op.dtype)
    sign = -1.0 if op.inverse else 1.0
    cos, sin = angle.cos().to(x.dtype), (sign * angle.sin()).to(x.dtype)
    turn_both = compiled(rotate, (op.tokens, op.heads, op.head_dim))

    def check_compiled() -> float:
        want = rotate(x[:64].double(), cos[:64].double(), sin[:64].double())
        return relative_error(turn_both(x, cos, sin)[:64], want)

    return Prepared(lambda: turn_both(x, cos, sin), check_compiled, kernel_source="compile")
