"""scaled_dot_product_attention with the backend chosen by the case: flash, efficient, cudnn or math.

Shapes: q (batch, heads, q_len, head_dim), k and v (batch, kv_heads, kv_len, head_dim).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import IllegalCase, Prepared, relative_error
from predictor.ops import Attention

#: Scores of one head beyond which the reference would not fit; a smaller shape of the same kernel is checked instead.
#: Guards against references of more than 32 MiB a head in float64.
_CHECK_SCORES = 2**22


def choose_backend(name: str) -> None:
    """Leaves SDPA no other backend than ``name``; every case chooses for itself. A shape it cannot do is an error."""
    switches: dict[str, Any] = {
        "flash": torch.backends.cuda.enable_flash_sdp, "efficient": torch.backends.cuda.enable_mem_efficient_sdp,
        "math": torch.backends.cuda.enable_math_sdp, "cudnn": getattr(torch.backends.cuda, "enable_cudnn_sdp", None),
    }  # fmt: skip
    if switches.get(name) is None:
        raise IllegalCase(f"this PyTorch has no attention backend {name!r}")
    for candidate, switch in switches.items():
        if switch is not None:
            switch(candidate == name)


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Attention)
    _refuse(op)
    name = str(case.option("impl", "flash"))
    choose_backend(name)
    grad = op.is_backward
    q = device.randn(op.batch, op.heads, op.q_len, op.head_dim, dtype=op.dtype).requires_grad_(grad)
    k = device.randn(op.batch, op.kv_heads, op.kv_len, op.head_dim, dtype=op.dtype).requires_grad_(grad)
    v = device.randn(op.batch, op.kv_heads, op.kv_len, op.value_dim, dtype=op.dtype).requires_grad_(grad)
    # One query sees its whole cache: a causal mask hides nothing, and SDPA would align it at the wrong corner.
    options: dict[str, Any] = {"is_causal": op.causal and op.q_len > 1}
    if op.heads != op.kv_heads:
        if "enable_gqa" not in (functional.scaled_dot_product_attention.__doc__ or ""):
            raise IllegalCase("fewer heads of keys than of queries need PyTorch 2.5: enable_gqa")
        options["enable_gqa"] = True

    def forward(k: torch.Tensor = k, v: torch.Tensor = v) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, **options)

    prepared = Prepared(
        forward, lambda: _check_forward(op, forward, q, k, v), kernel_source=f"sdpa_{name}",
        flag="unfused" if name == "math" else "", held=(k, v) if op.is_decode else (),
    )  # fmt: skip
    if grad:
        out = forward()
        gradient = torch.randn_like(out)

        def backward() -> tuple[torch.Tensor, ...]:
            return torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

        prepared.launch = backward
        prepared.check = lambda: _check_backward(op, backward, (q, k, v), gradient)
    return prepared


def _refuse(op: Attention) -> None:
    if op.window:
        raise IllegalCase("scaled_dot_product_attention has no sliding window")
    if op.kv_dtype and op.kv_dtype != op.dtype:
        raise IllegalCase("scaled_dot_product_attention takes keys and values in the dtype of the queries")
    if op.causal and op.q_len not in (1, op.kv_len):
        raise IllegalCase("a causal mask over a part of the queries is aligned at the wrong corner by SDPA")
    if op.heads % op.kv_heads:
        raise IllegalCase("heads is no multiple of kv_heads")


def _reference(op: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q k^T / sqrt(d)) v in the dtype of its inputs: q (g, q_len, d), k and v (kv_len, d)."""
    scores = q @ k.transpose(-1, -2) * op.head_dim**-0.5
    if op.causal and op.q_len > 1:
        hidden = torch.ones(op.q_len, op.kv_len, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ v


def _check_forward(op: Attention, launch: Callable[[], torch.Tensor], *inputs: torch.Tensor) -> float | None:
    """The query heads of the first key head of the last sequence against float64."""
    if op.q_len * op.kv_len > _CHECK_SCORES:
        return None
    group = op.heads // op.kv_heads
    q, k, v = (t.detach() for t in inputs)
    want = _reference(op, q[-1, :group].double(), k[-1, 0].double(), v[-1, 0].double())
    return relative_error(launch().detach()[-1, :group], want)


def _check_backward(
    op: Attention, launch: Callable[[], tuple[torch.Tensor, ...]], inputs: tuple[torch.Tensor, ...], out: torch.Tensor
) -> float | None:
    if op.q_len * op.kv_len > _CHECK_SCORES:
        return None
    group = op.heads // op.kv_heads
    q, k, v = inputs
    copies = [t.detach().double().requires_grad_() for t in (q[-1, :group], k[-1, 0], v[-1, 0])]
    want = torch.autograd.grad(_reference(op, *copies), copies, out[-1, :group].double())
    dq, dk, dv = launch()
    got = (dq[-1, :group], dk[-1, 0], dv[-1, 0])
    return max(relative_error(ours, theirs) for ours, theirs in zip(got, want, strict=True))
