"""Look-up of rows in a table, and its backward pass (a dense gradient of the whole table)."""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import Prepared, relative_error
from predictor.ops import Embedding


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Embedding)
    index = device.randint(0, op.vocab, (op.tokens,))
    if op.phase == "forward":
        table = device.randn(op.vocab, op.width, dtype=op.dtype)

        def check() -> float:
            return relative_error(functional.embedding(index, table)[:64], table[index[:64]])

        return Prepared(lambda: functional.embedding(index, table), check)
    gradient = device.randn(op.tokens, op.width, dtype=op.dtype)

    def backward() -> torch.Tensor:
        call = torch.ops.aten.embedding_dense_backward
        return call(gradient, index, op.vocab, -1, False)

    def check_backward() -> float:
        some = index[:16].unique()
        want = torch.stack([gradient[index == row].double().sum(0) for row in some])
        return relative_error(backward()[some], want)

    return Prepared(backward, check_backward)
