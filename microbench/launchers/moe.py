"""The expert layers of a mixture of experts: tokens sorted by expert, grouped products, the weighted sum back.

The tokens' choices are made once, before the timing: in turn ("balanced") or drawn ("random", "zipf:1.2"). "loop" runs
one product an expert, as eager Hugging Face models do; "grouped_mm" runs all experts in one kernel and can be captured
in a graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as functional

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import IllegalCase, Prepared, relative_error
from predictor.ops import MoE
from predictor.ops.routing import BALANCED, zipf_exponent


def choices(op: MoE, device: BenchDevice) -> torch.Tensor:
    """Expert of every (token, choice), of shape (tokens * top_k,)."""
    total = op.tokens * op.top_k
    if op.distribution == BALANCED:
        return torch.arange(total, device=device.torch_device) % op.experts
    exponent = zipf_exponent(op.distribution)
    if exponent is None:
        raise IllegalCase(f"no way to draw experts by {op.distribution!r}")
    share = torch.arange(1, op.experts + 1, device=device.torch_device, dtype=torch.float32).pow(-exponent)
    scores = device.uniform(op.tokens, op.experts, low=1e-6).log() / share  # exponential clocks: no expert twice
    return scores.topk(op.top_k, dim=-1).indices.flatten()


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, MoE)
    if op.tp != 1 or op.ep != 1:
        raise IllegalCase("one GPU measures the experts of one GPU: tp and ep are 1")
    scale = op.hidden**-0.5
    x = device.randn(op.tokens, op.hidden, dtype=op.dtype)
    up = device.randn(op.experts, (2 if op.gated else 1) * op.intermediate, op.hidden, dtype=op.dtype, scale=scale).mT
    down = device.randn(op.experts, op.hidden, op.intermediate, dtype=op.dtype, scale=op.intermediate**-0.5).mT
    expert = choices(op, device)
    order = expert.argsort(stable=True)
    token = order // op.top_k
    counts = torch.bincount(expert, minlength=op.experts)
    weights = device.uniform(op.tokens * op.top_k, 1, low=0.1, dtype=op.dtype)
    implementation = str(case.option("impl", "loop"))
    product = _grouped(counts) if implementation == "grouped_mm" else _loop(counts)

    def layer(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        hidden = product(x[token], up)
        if op.gated:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = functional.silu(gate) * value
        else:
            hidden = functional.gelu(hidden)
        return torch.zeros_like(x).index_add_(0, token, product(hidden, down) * weights)

    def check() -> float | None:
        if up.numel() > 2**26:
            return None
        exact = _loop(counts)
        nonlocal product
        ours, product = product, exact
        want = layer(x.double(), up.double(), down.double(), weights.double())
        product = ours
        return relative_error(layer(x, up, down, weights), want)

    def launch(up: torch.Tensor = up, down: torch.Tensor = down) -> torch.Tensor:
        return layer(x, up, down, weights)

    return Prepared(launch, check, kernel_source=implementation, held=(up, down))


def _loop(counts: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    sizes = counts.tolist()

    def product(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        parts = rows.split(sizes)
        return torch.cat([part @ weight for part, weight in zip(parts, weights, strict=True) if part.shape[0]])

    return product


def _grouped(counts: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    call = getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if call is None:
        raise IllegalCase("this PyTorch has no grouped_mm")
    ends = counts.cumsum(0).to(torch.int32)
    return lambda rows, weights: call(rows, weights, offs=ends)
