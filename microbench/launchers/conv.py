"""2-D convolution with padding kernel // 2, forward and backward (gradients of the input and the filters)."""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from microbench.case import Case
from microbench.devices.base import Device
from microbench.launchers.base import Prepared, relative_error
from microbench.own_ops import Conv


def prepare(case: Case, device: Device) -> Prepared:
    op = case.op
    assert isinstance(op, Conv)
    grad = op.phase == "backward"
    fan_in = op.channels // op.groups * op.kernel**2
    x = device.randn(op.batch, op.channels, op.height, op.width, dtype=op.dtype).requires_grad_(grad)
    filters = device.randn(
        op.filters, op.channels // op.groups, op.kernel, op.kernel, dtype=op.dtype, scale=fan_in**-0.5
    ).requires_grad_(grad)

    def apply(x: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, filters.to(x.dtype), None, op.stride, op.kernel // 2, 1, op.groups)

    if not grad:
        return Prepared(lambda: apply(x), lambda: relative_error(apply(x)[:1], apply(x[:1].double())))
    out = apply(x)
    gradient = torch.randn_like(out)

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(out, (x, filters), gradient, retain_graph=True)

    def check() -> float:
        one = x.detach()[:1].double().requires_grad_()
        (want,) = torch.autograd.grad(apply(one), (one,), gradient[:1].double())
        return relative_error(backward()[0][:1], want)

    return Prepared(backward, check)
