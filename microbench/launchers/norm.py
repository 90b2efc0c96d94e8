"""Layer norm and RMS norm of (rows, cols), forward and backward (gradients of the input, weight and bias)."""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import IllegalCase, Prepared, relative_error, some_rows
from predictor.ops import Norm

_EPSILON = 1e-5  # PyTorch's default of layer_norm (source: its documentation); no time depends on it


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Norm)
    if op.residual:
        raise IllegalCase("eager PyTorch has no norm fused with a residual")
    grad = op.phase == "backward"
    x = device.randn(op.rows, op.cols, dtype=op.dtype).requires_grad_(grad)
    weight = device.uniform(op.cols, low=0.5, high=1.5, dtype=op.dtype).requires_grad_(grad)
    bias = device.randn(op.cols, dtype=op.dtype).requires_grad_(grad)
    shape, layer = (op.cols,), op.kind == "layer"

    def apply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if layer:
            return functional.layer_norm(x, shape, weight, bias, _EPSILON)
        return functional.rms_norm(x, shape, weight, _EPSILON)

    rows = some_rows(op.rows).to(x.device)
    if not grad:

        def check() -> float:
            want = apply(x[rows].double(), weight.double(), bias.double())
            return relative_error(apply(x, weight, bias)[rows], want)

        return Prepared(lambda: apply(x, weight, bias), check)
    inputs = (x, weight, bias) if layer else (x, weight)
    out = apply(x, weight, bias)
    gradient = device.randn(op.rows, op.cols, dtype=op.dtype)

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(out, inputs, gradient, retain_graph=True)

    def check_backward() -> float:
        copies = [t.detach().double() for t in (x[rows], weight, bias)]
        copies[0].requires_grad_()
        (want,) = torch.autograd.grad(apply(*copies), copies[:1], gradient[rows].double())
        return relative_error(backward()[0][rows], want)

    return Prepared(backward, check_backward)
