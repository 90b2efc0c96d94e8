"""Sums of a (rows, cols) matrix over its rows (axis 0: a bias gradient) or its columns (axis 1)."""

from __future__ import annotations

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import Prepared, relative_error
from predictor.ops import Reduce


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Reduce)
    # Up to 65536 values a sum, which has to stay below the largest number of fp16, 65504.
    x = device.uniform(op.rows, op.cols, low=0.25, high=0.75, dtype=op.dtype)
    axis = 0 if op.axis == 0 else 1

    def check() -> float:
        part = x[:, :64] if axis == 0 else x[:64]
        got = x.sum(axis)[:64]
        return relative_error(got, part.double().sum(axis))

    return Prepared(lambda: x.sum(axis), check)
