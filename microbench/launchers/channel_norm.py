"""Batch norm and group norm of (batch, channels, pixels), forward and backward."""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import Prepared, relative_error
from predictor.ops import ChannelNorm

_CHECKED = 2**24  # elements beyond which the reference would take longer than the case; chosen by hand, not from data


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, ChannelNorm)
    grad = op.phase == "backward"
    x = device.randn(op.batch, op.channels, op.pixels, dtype=op.dtype).requires_grad_(grad)
    kind = op.dtype if op.kind == "group" else "fp32"  # batch norm's parameters and statistics stay in fp32
    weight = device.uniform(op.channels, low=0.5, high=1.5, dtype=kind).requires_grad_(grad)
    bias = device.randn(op.channels, dtype=kind).requires_grad_(grad)
    mean, variance = device.randn(op.channels), device.uniform(op.channels, low=0.5, high=1.5)

    def apply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if op.kind == "group":
            return functional.group_norm(x, op.groups, weight, bias)
        if op.training:
            return functional.batch_norm(x, None, None, weight, bias, True)
        return functional.batch_norm(x, mean.to(weight.dtype), variance.to(weight.dtype), weight, bias, False)

    def exact() -> list[torch.Tensor]:
        return [t.detach().double().requires_grad_(grad) for t in (x, weight, bias)]

    if not grad:

        def check() -> float | None:
            if x.numel() > _CHECKED:
                return None
            return relative_error(apply(x, weight, bias), apply(*exact()))

        return Prepared(lambda: apply(x, weight, bias), check)
    out = apply(x, weight, bias)
    gradient = torch.randn_like(out)

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(out, (x, weight, bias), gradient, retain_graph=True)

    def check_backward() -> float | None:
        if x.numel() > _CHECKED:
            return None
        inputs = exact()
        (want,) = torch.autograd.grad(apply(*inputs), inputs[:1], gradient.double())
        return relative_error(backward()[0], want)

    return Prepared(backward, check_backward)
