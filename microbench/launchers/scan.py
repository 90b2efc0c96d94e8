"""Sums up to every element (cumsum) of (rows, cols), along the columns or along the rows."""

from __future__ import annotations

import torch

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import Prepared, relative_error
from predictor.ops import Scan


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Scan)
    axis = 1 if op.inner else 0
    x = device.uniform(op.rows, op.cols, low=0.25, high=0.75)  # sums of 16 bits would run out of their range
    x = (x / x.shape[axis]).to(device.randn(1, dtype=op.dtype).dtype)

    def check() -> float:
        some = x[:16] if op.inner else x[:, :16]
        got = torch.cumsum(x, axis)
        return relative_error(got[:16] if op.inner else got[:, :16], torch.cumsum(some.double(), axis))

    return Prepared(lambda: torch.cumsum(x, axis), check)
