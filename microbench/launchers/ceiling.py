"""What a device sustains: products by dtype, reads and copies of memory and cache, the time of a launch."""

from __future__ import annotations

import torch

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers import gemm
from microbench.launchers.base import IllegalCase, Prepared, relative_error
from microbench.own_ops import Ceiling
from predictor.ops import Gemm


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Ceiling)
    if op.kind == "matmul":
        square = Gemm(op.dtype, op.size, op.size, op.size, layout="tn")
        return gemm.prepare(Case("gemm", square), device)
    if op.kind in ("copy", "read"):
        source = device.randn(max(1, op.size // 4))
        if op.kind == "read":
            return Prepared(lambda: source.sum(), None)
        target = torch.empty_like(source)

        def check() -> float:
            return relative_error(target.copy_(source)[:65536], source[:65536])

        return Prepared(lambda: target.copy_(source), check)
    if op.kind in ("launch", "dispatch"):
        x = device.randn(max(1, op.size))
        return Prepared(lambda: x.add_(1e-6), None)
    raise IllegalCase(f"no ceiling {op.kind!r}")
