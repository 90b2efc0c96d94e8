"""Router scores (tokens, experts) to the top k: softmax, then topk, then the weights made to sum to one."""

from __future__ import annotations

import torch

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import Prepared, relative_error
from predictor.ops import Routing


def route(scores: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and indices of the chosen experts, each of shape (tokens, top_k)."""
    weights, chosen = torch.topk(torch.softmax(scores, -1), top_k, dim=-1)
    return weights / weights.sum(-1, keepdim=True), chosen


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Routing)
    scores = device.randn(op.tokens, op.experts, dtype=op.dtype)

    def check() -> float:
        got, chosen = route(scores, op.top_k)
        picked = torch.softmax(scores.double(), -1).gather(1, chosen)
        return relative_error(got, picked / picked.sum(-1, keepdim=True))

    return Prepared(lambda: route(scores, op.top_k), check)
