"""Mean cross-entropy of (rows, vocab) logits; the backward pass gives (rows, vocab)."""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import Prepared, relative_error
from predictor.ops import CrossEntropy


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, CrossEntropy)
    grad = op.phase == "backward"
    logits = device.randn(op.rows, op.vocab, dtype=op.dtype).requires_grad_(grad)
    target = device.randint(0, op.vocab, (op.rows,))
    if not grad:

        def check() -> float | None:
            if op.rows * op.vocab > 2**24:
                return None
            want = functional.cross_entropy(logits.double(), target)
            return relative_error(functional.cross_entropy(logits, target), want)

        return Prepared(lambda: functional.cross_entropy(logits, target), check)
    loss = functional.cross_entropy(logits, target)

    def backward() -> torch.Tensor:
        return torch.autograd.grad(loss, (logits,), retain_graph=True)[0]

    def check_backward() -> float:
        rows = slice(0, min(16, op.rows))
        want = torch.softmax(logits.detach()[rows].double(), -1)
        want[torch.arange(want.shape[0], device=want.device), target[rows]] -= 1.0
        return relative_error(backward()[rows], want / op.rows)

    return Prepared(backward, check_backward)
