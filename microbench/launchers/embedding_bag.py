"""Sums of bags of rows of a table, picked by a power law, and the dense gradient of the table."""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import IllegalCase, Prepared, relative_error
from predictor.ops import EmbeddingBag

_CHECKED = 16  # bags held against the reference: chosen by hand, not from data


def picks(device: BenchDevice, count: int, rows: int, skew: float) -> torch.Tensor:
    """``count`` rows, the r-th with a probability that goes as r^-skew, by inverting the continuous law."""
    u = device.uniform(count, low=1e-6, high=1.0).double()
    if skew == 0.0:
        drawn = u * rows
    elif abs(skew - 1.0) < 1e-6:
        drawn = (rows + 1.0) ** u - 1.0
    else:
        drawn = (1.0 + u * ((rows + 1.0) ** (1.0 - skew) - 1.0)) ** (1.0 / (1.0 - skew)) - 1.0
    return drawn.long().clamp_(0, rows - 1)


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, EmbeddingBag)
    backward = op.phase == "backward"
    if backward and op.sparse:
        raise IllegalCase("PyTorch has no update fused with the gradient of a bag: sparse is false here")
    table = device.randn(op.rows, op.width, dtype=op.dtype).requires_grad_(backward)
    index = picks(device, op.bags * op.pooling, op.rows, op.skew)
    offsets = torch.arange(0, op.bags * op.pooling, op.pooling, device=index.device)

    def forward() -> torch.Tensor:
        return functional.embedding_bag(index, table, offsets, mode="sum")

    some = index.view(op.bags, op.pooling)[:_CHECKED]
    if not backward:
        return Prepared(forward, lambda: relative_error(forward()[:_CHECKED], table[some].double().sum(1)))
    out = forward()
    gradient = torch.randn_like(out)

    def gradients() -> torch.Tensor:
        return torch.autograd.grad(out, (table,), gradient, retain_graph=True)[0]

    def check() -> float:
        row = index[0]
        of_bags = gradient.repeat_interleave(op.pooling, 0)[index == row].double().sum(0)
        return relative_error(gradients()[row], of_bags)

    return Prepared(gradients, check)
