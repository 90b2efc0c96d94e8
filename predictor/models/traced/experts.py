"""Experts of transformers' classes as one kernel family, as serving engines and builders have them.

A class of experts keeps the matrices of all in two parameters (`use_experts_implementation` of transformers'
`integrations/moe.py`) and asks by name for what runs them; it finds `EXPERTS` here. What that does is told as one
operator, forward (`predictor.ops.MoE`: tokens by expert, two grouped products with the activation, the sum) and
backward (the gradients of both products).

Classes that run experts one after the other, each on the rows that `nonzero` finds for it (Switch), are recorded with
rows as even routing has them: every expert is hit, by as many tokens of a sequence as its capacity leaves. LongCat's
and Step's, which loop as well, are recorded as the kernel family that engines run them with.

Shape legend: n tokens, h width, k experts a token, e experts, f their width.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from predictor.models.built.feed_forward import EXPERT_CALLS, NONZERO_CALLS
from predictor.models.traced.recorder import Recorder

#: Name under which transformers knows the experts that are noted as one kernel, and of the calls that are noted.
EXPERTS, BACKWARD = "tilecast", "fused_experts_backward"
FORWARD = "fused_experts"
#: Classes of experts in a loop that were made (`note_loops`).
_LOOPING: list[type] = []


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


def loops() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Where transformers has them loaded: classes whose results are as large as numbers say, each with a method and
    what that is while recording."""
    loaded: list[tuple[Any, str, Callable[..., Any]]] = [(each, "forward", _all_at_once) for each in _LOOPING]
    if (switch := _loaded("switch_transformers")) is not None:
        layer, experts = switch.SwitchTransformersSparseMLP, switch.SwitchTransformersExperts
        loaded += [(layer, "forward", _with_rows(layer.forward)), (experts, "forward", _one_by_one)]
    if (longcat := _loaded("longcat_flash")) is not None:
        loaded.append((longcat.LongcatFlashExperts, "forward", _beside_zero_experts))
    if (glm := _loaded("glm5_next")) is not None:
        indexer = glm.Glm5NextTextIndexer
        loaded.append((indexer, "get_pooled_states", _with_all_pools(indexer.get_pooled_states)))
    return loaded


def note_loops(model: Any) -> None:
    """Has `loops` list the classes of ``model`` that keep the matrices of all experts in two parameters and yet ask for
    no implementation by name (Step-3.7)."""
    for part in model.modules():
        matrices = [getattr(part, name, None) for name in ("gate_up_proj", "down_proj")]
        stacked = all(isinstance(each, torch.nn.Parameter) and each.dim() == 3 for each in matrices)
        if stacked and not hasattr(part, "has_gate") and type(part) not in _LOOPING:
            asked = [*inspect.signature(type(part).forward).parameters][1:]
            if asked == ["hidden_states", "top_k_index", "top_k_weights"]:
                _LOOPING.append(type(part))


def _all_at_once(module: Any, x: Any, chosen: Any, shares: Any) -> Any:
    """All experts on x (n, h), by choices (n, k) and their shares (n, k)."""
    turned = module.down_proj.shape[2] == x.shape[1] != module.down_proj.shape[1]
    words = (x, shares, module.gate_up_proj, module.down_proj, chosen)
    return _Experts.apply(Recorder.active[-1], *words, True, turned)


def _loaded(model_type: str) -> Any:
    return sys.modules.get(f"transformers.models.{model_type}.modeling_{model_type}")


def _beside_zero_experts(module: Any, x: Any, chosen: Any, shares: Any) -> Any:
    """LongCat's experts on x (n, h), by choices (n, k): "zero experts" among those hand a token on as it is, so that of
    even choices a share runs (its report, arXiv 2509.01322, section 2.1: 8 of 12, 512 experts beside 256)."""
    routed = module.num_routed_experts
    k = max(1, round(chosen.shape[1] * routed / module.total_experts))
    words = (x, shares[:, :k], module.gate_up_proj, module.down_proj, chosen[:, :k])
    return _Experts.apply(Recorder.active[-1], *words, True, False)


def leave_zero_experts(model: Any) -> None:
    """LongCat's class makes room for the first matrices of "zero experts", too, which no checkpoint has."""
    longcat = _loaded("longcat_flash")
    for part in model.modules() if longcat is not None else ():
        if isinstance(part, longcat.LongcatFlashExperts):
            part.gate_up_proj = torch.nn.Parameter(part.gate_up_proj.detach()[: part.num_routed_experts].clone())


class _AllTrue(TorchFunctionMode):  # type: ignore[misc]
    """An index that is a mask takes all there is; the host waits for its number as in `_nonzero`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        at = args[1] if getattr(func, "__name__", "") == "__getitem__" else ()
        masks = [each for each in at if getattr(each, "dtype", None) == torch.bool] if isinstance(at, tuple) else []
        if not masks:
            return func(*args, **(kwargs or {}))
        x, places = args[0], []
        for axis, each in enumerate(at):
            masked = any(each is mask for mask in masks)
            places.append(_nonzero(Recorder.active[-1], each, x.shape[axis]).squeeze(1) if masked else each)
        return func(x, tuple(places))


def _with_all_pools(plain: Callable[..., Any]) -> Callable[..., Any]:
    """GLM-5.3's pools of keys: all but those of places that nobody filled, of which a recorded cache has none."""

    def pools(indexer: Any, packed_states: Any) -> Any:
        with _AllTrue():
            return plain(indexer, packed_states)

    return pools


def _with_rows(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A sparse layer, x (b, s, h), that first tells its experts how many rows each has."""

    def forward(layer: Any, x: Any) -> Any:
        b, s = x.shape[:2]
        layer.experts.tilecast_rows = b * min(layer.router.expert_capacity, -(-s // layer.router.num_experts))
        return plain(layer, x)

    return forward


def _one_by_one(module: Any, x: Any, chosen: Any, shares: Any) -> Any:
    """The loop of transformers' class: x (n, h), chosen (n, 1, e) ones and zeros, shares (n, 1)."""
    recorder = Recorder.active[-1]
    out = torch.zeros_like(x)
    of_expert = chosen.permute(2, 1, 0)
    hit = _nonzero(recorder, torch.greater(of_expert.sum(dim=(-1, -2)), 0), len(module))
    for number, expert in zip(hit, module.values(), strict=True):
        place, row = _nonzero(recorder, of_expert[number].squeeze(0), module.tilecast_rows).unbind(1)
        recorder.mark(2)  # the expert's number comes to the host: a view and a copy
        y = expert(x[None, row].reshape(-1, x.shape[-1])) * shares[row, place, None]
        out.index_add_(0, row, y.to(x.dtype))
    return out


def _nonzero(recorder: Recorder, x: Any, count: int) -> Any:
    """Places (count, axes of x) of what is not zero; the host waits for their number between two kernels and more
    (`aten/src/ATen/native/cuda/Nonzero.cu`: a sum, a copy, a scan, the places)."""
    with recorder.quiet():
        out = x.new_empty((count, x.dim()), dtype=torch.int64)
    recorder.mark(NONZERO_CALLS - 1)
    recorder.note("nonzero", (x,), {}, out)
    return out


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
