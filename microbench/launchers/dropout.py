"""Dropout as native_dropout: the result and a mask of one byte an element."""

from __future__ import annotations

import torch

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import Prepared, relative_error
from predictor.ops import Dropout

_PROBABILITY = 0.1  # that BERT trains with (arXiv:1810.04805, appendix A.2)
_CHECKED = 65536  # elements held against the reference: chosen by hand, not from data


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Dropout)
    x = device.randn(op.elements, dtype=op.dtype)

    def launch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.native_dropout(x, _PROBABILITY, True)

    def check() -> float:
        out, mask = (result[:_CHECKED] for result in launch())
        return relative_error(out, x[:_CHECKED].double() * mask / (1.0 - _PROBABILITY))

    return Prepared(launch, check)
