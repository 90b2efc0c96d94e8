"""Pooling of planes, forward and backward: square windows without overlap, or the whole plane (avg)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as functional

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import IllegalCase, Prepared, relative_error
from predictor.ops import Pool


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Pool)
    side, out, window = (math.isqrt(n) for n in (op.in_pixels, op.pixels, op.taps))
    square = side**2 == op.in_pixels and out**2 == op.pixels and window**2 == op.taps
    if not square or out * window != side or op.kind not in ("max", "avg"):
        raise IllegalCase("square windows that tile a square plane have a launch, and no other")
    grad = op.phase == "backward"
    x = device.randn(1, op.maps, side, side, dtype=op.dtype).requires_grad_(grad)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(x, window) if op.kind == "max" else functional.avg_pool2d(x, window)

    if not grad:
        return Prepared(lambda: forward(x), lambda: relative_error(forward(x)[:, :8], forward(x[:, :8].double())))
    y = forward(x)
    gradient = torch.randn_like(y)

    def backward() -> torch.Tensor:
        return torch.autograd.grad(y, (x,), gradient, retain_graph=True)[0]

    def check() -> float:
        some = x.detach()[:, :8].double().requires_grad_()
        (want,) = torch.autograd.grad(forward(some), (some,), gradient[:, :8].double())
        return relative_error(backward()[:, :8], want)

    return Prepared(backward, check)
