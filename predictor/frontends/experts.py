"""Experts of transformers' classes as one kernel family, as serving engines and builders have them.

A class of experts keeps the matrices of all in two parameters (`use_experts_implementation` of transformers'
`integrations/moe.py`) and asks by name for what runs them; it finds `EXPERTS` here. What that does is told as one
operator, forward (`predictor.ops.MoE`: tokens by expert, two grouped products with the activation, the sum) and
backward (the gradients of both products).

Shape legend: n tokens, h width, k experts a token, e experts, f their width.
"""

from __future__ import annotations

from typing import Any

import torch

from predictor.frontends.recorder import Recorder
from predictor.networks.feed_forward import EXPERT_CALLS

#: Name under which transformers knows the experts that are noted as one kernel, and of the calls that are noted.
EXPERTS, BACKWARD = "tilecast", "fused_experts_backward"
FORWARD = "fused_experts"


def register_experts() -> None:
    """Makes `EXPERTS` known to transformers, where its release asks for experts by name."""
    try:
        from transformers.integrations import moe
    except ImportError:  # before 5.0 classes ran their experts one by one
        return
    if hasattr(moe, "ALL_EXPERTS_FUNCTIONS"):
        moe.ALL_EXPERTS_FUNCTIONS.register(EXPERTS, _run)


def ask_for_experts(config: Any) -> None:
    """Has the classes of ``config`` run `EXPERTS`, where they can be asked."""
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = EXPERTS


def _run(module: Any, x: Any, chosen: Any, shares: Any) -> Any:
    """The experts of ``module`` on x (n, h), by choices (n, k) and their shares (n, k)."""
    from transformers.integrations.moe import grouped_mm_experts_forward

    recorder = Recorder.active[-1] if Recorder.active else None
    if recorder is None or module.has_post_expert_norm or module._is_expert_parallel:
        return grouped_mm_experts_forward(module, x, chosen, shares)
    up = module.gate_up_proj if module.has_gate else module.up_proj
    return _Experts.apply(recorder, x, shares, up, module.down_proj, chosen, module.has_gate, module.is_transposed)


class _Experts(torch.autograd.Function):  # type: ignore[misc]
    """x (n, h), shares (n, k), up (e, 2 f or f, h) and down (e, h, f), each turned round where they are transposed."""

    @staticmethod
    def forward(
        ctx: Any, recorder: Recorder, x: Any, shares: Any, up: Any, down: Any, chosen: Any, gated: bool, turned: bool
    ) -> Any:
        n, k = chosen.shape
        f = down.shape[1 if turned else 2]
        words = {"top_k": k, "width": f, "gated": gated}
        with recorder.quiet():
            out = torch.empty_like(x)
            kept = _kept(x, n * k, f, gated) if ctx.needs_input_grad[1] or ctx.needs_input_grad[3] else ()
        recorder.mark(EXPERT_CALLS - 1)
        recorder.note(FORWARD, (x, shares, up, down, chosen), words, (out, *kept))
        ctx.save_for_backward(x, shares, up, down, chosen, *kept)
        ctx.recorder, ctx.words = recorder, words
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, shares, up, down, chosen, *kept = ctx.saved_tensors
        with ctx.recorder.quiet():
            made = tuple(torch.empty_like(t) for t in (x, shares, up, down))
        ctx.recorder.note(BACKWARD, (x, gradients[0], up, down, chosen, shares, *kept), ctx.words, made)
        return None, *made, None, None, None


def _kept(x: Any, rows: int, f: int, gated: bool) -> tuple[Any, ...]:
    """What the backward pass needs (`MoE.kept`): rows by expert, gate and up, the activation and its product with the
    other half, and results."""
    widths = (x.shape[1], *((2 * f, f, f) if gated else (f, f)), x.shape[1])
    return tuple(x.new_empty((rows, width)) for width in widths)
