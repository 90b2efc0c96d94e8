"""Rows sorted, or their largest ``top_k`` elements, with positions."""

from __future__ import annotations

import torch

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import IllegalCase, Prepared, relative_error
from predictor.ops import Sort


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Sort)
    if op.top_k > op.cols:
        raise IllegalCase("top_k is more than a row has")
    x = device.randn(op.rows, op.cols, dtype=op.dtype)

    def launch() -> tuple[torch.Tensor, torch.Tensor]:
        values, places = torch.topk(x, op.top_k) if op.top_k else torch.sort(x, descending=True)
        return values, places

    def check() -> float:
        values, places = (result[:8] for result in launch())
        want = x[:8].cpu().double().sort(descending=True).values[:, : values.shape[1]]
        return max(relative_error(values, want), relative_error(x[:8].gather(1, places), want))

    return Prepared(launch, check)
