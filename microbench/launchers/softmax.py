"""Softmax over the last axis of (rows, cols). The backward pass takes the output and its gradient."""

from __future__ import annotations

import torch

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import Prepared, relative_error, some_rows
from predictor.ops import Softmax


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Softmax)
    x = device.randn(op.rows, op.cols, dtype=op.dtype)
    rows = some_rows(op.rows).to(x.device)
    if op.phase == "forward":

        def check() -> float:
            return relative_error(torch.softmax(x, -1)[rows], torch.softmax(x[rows].double(), -1))

        return Prepared(lambda: torch.softmax(x, -1), check)
    y, gradient = torch.softmax(x, -1), device.randn(op.rows, op.cols, dtype=op.dtype)

    def backward() -> torch.Tensor:
        return torch.ops.aten._softmax_backward_data(gradient, y, -1, y.dtype)

    def check_backward() -> float:
        p, g = y[rows].double(), gradient[rows].double()
        return relative_error(backward()[rows], p * (g - (p * g).sum(-1, keepdim=True)))

    # On a GPU this call multiplies gradient and output in a kernel of its own first; a graph counts that one apart.
    return Prepared(backward, check_backward, flag="includes_mul" if device.kind == "cuda" else "")
