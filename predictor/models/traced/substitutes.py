"""What a GPU would run in another way than the meta device: fused attention, recurrent layers, dropout, RMS norm,
softmax that widens, and autocast, which has no kernels for meta. Calls of torch's functions are replaced before
autograd sees them.

Sources: PyTorch 2.13 `aten/src/ATen/native/{Dropout,SoftMax,layer_norm,transformers/attention}.cpp` for what CUDA
tensors take, `aten/src/ATen/autocast_mode.h` for the lists of autocast.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from predictor.models.traced import recurrent
from predictor.models.traced.experts import loops
from predictor.models.traced.inputs import words_of
from predictor.models.traced.recorder import ATTENTION, ATTENTION_BACKWARD, Recorder

#: Functions that autocast runs in 16 bit, in fp32, and in the widest dtype of their operands: by the name of the
#: function. Source: AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32 and AT_FORALL_PROMOTE of autocast_mode.h.
NARROW = words_of(
    """
    linear matmul __matmul__ mm bmm addmm addbmm baddbmm addmv mv chain_matmul multi_dot conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution prelu einsum
    scaled_dot_product_attention rnn_tanh_cell rnn_relu_cell lstm_cell gru_cell lstm gru __rmatmul__ _grouped_mm
    """
)
WIDE = words_of(
    """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow __pow__ __rpow__ softplus
    layer_norm group_norm native_layer_norm norm nuclear_norm cosine_similarity poisson_nll_loss
    cosine_embedding_loss nll_loss nll_loss_nd hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss
    mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
    binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp softmax log_softmax cumprod cumsum prod
    sum cross_entropy_loss rms_norm upsample_nearest1d upsample_bilinear2d upsample_linear1d upsample_bicubic2d
    """
)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_HALF = (torch.float16, torch.bfloat16)


#: Functions that give a tensor other numbers and nothing else, by definition of torch.nn.init and torch.Tensor.
_NUMBERS = words_of(
    """
    normal_ uniform_ trunc_normal_ constant_ ones_ zeros_ kaiming_normal_ kaiming_uniform_ xavier_normal_
    xavier_uniform_ orthogonal_ fill_ zero_ random_ bernoulli_ exponential_ erfinv_ clamp_ mul_ add_ sub_ div_
    """
)

#: Dispatcher calls of fused attention: `scaled_dot_product_attention`, and the kernel's that it picks. Source: PyTorch
#: 2.13, aten/src/ATen/native/transformers/attention.cpp.
ATTENTION_CALLS = 2


class Unfilled(TorchFunctionMode):  # type: ignore[misc]
    """While a module is built on the meta device its weights get no numbers, which they cannot hold: PyTorch works out
    the shape of every step of that in Python, which takes longer than all else of building."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _NUMBERS:
            filled = args[0] if args else kwargs.get("tensor")
            if isinstance(filled, torch.Tensor) and filled.device.type == "meta":
                return filled
        return func(*args, **kwargs)


class Substitutes(TorchFunctionMode):  # type: ignore[misc]
    """Functions of torch as CUDA tensors take them. ``fused``: attention is one kernel."""

    def __init__(self, recorder: Recorder, fused: bool) -> None:
        super().__init__()
        self.recorder = recorder
        self.fused = fused
        self._casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":  # a property, of which a pass reads thousands
            return func(*args, **kwargs)
        if "device" in kwargs and _is_gpu(kwargs["device"]):
            kwargs = {**kwargs, "device": "meta"}
        if name in ("cuda", "to", "cpu") and args and isinstance(args[0], torch.Tensor):
            args = _stays(name, args)
            if args[1:] == () and name != "to":
                return args[0]
        if name in NARROW or name in WIDE:
            args, kwargs = self._autocast(name, args, kwargs)
        replaced = _SUBSTITUTES.get(name)
        if replaced is not None:
            out = replaced(self, func, args, kwargs)
            if out is not NotImplemented:
                return out
        return func(*args, **kwargs)

    def _autocast(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Operands in the dtype that autocast would choose; a weight is cast once a pass."""
        dtype = autocast_dtype()
        if dtype is None:
            self._casts.clear()
            return args, kwargs
        cast_to = dtype if name in NARROW else torch.float32

        def cast(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.dtype in _FLOATS and value.dtype != cast_to:
                if not (value.is_leaf and value.requires_grad):
                    return value.to(cast_to)
                if id(value) not in self._casts:
                    self._casts[id(value)] = (value, value.to(cast_to))
                return self._casts[id(value)][1]
            if type(value) in (list, tuple):
                return type(value)(cast(v) for v in value)
            return value

        return tuple(cast(a) for a in args), {k: cast(v) for k, v in kwargs.items()}


def autocast_dtype() -> torch.dtype | None:
    """The 16-bit dtype of the autocast that is on, None where none is."""
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
    return None


def _is_gpu(device: Any) -> bool:
    return str(device).split(":")[0] in ("cuda", "xpu", "hpu", "mps")


def _stays(name: str, args: Any) -> Any:
    """The arguments of a move between devices: there is one, and a tensor of the host goes there."""
    x, *rest = args
    if x.device.type == "meta":
        return (x, *(r for r in rest if not isinstance(r, torch.device | str))) if name == "to" else (x,)
    return (x, *("meta" if isinstance(r, torch.device | str) and _is_gpu(r) else r for r in rest))


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """Fused attention: q (b, a, s, d), k (b, g, t, d), v (b, g, t, e) -> (b, a, s, e), laid out as (b, s, a, e)."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, q: Any, k: Any, v: Any, words: dict[str, Any]) -> Any:
        with recorder.quiet():
            b, a, s, _ = q.shape
            out = q.new_empty((b, s, a, v.shape[-1])).transpose(1, 2)
            lse = q.new_empty((b, a, s), dtype=torch.float32)
        recorder.mark(ATTENTION_CALLS - 1)
        recorder.note(ATTENTION, (q, k, v), words, (out, lse))
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.recorder, ctx.words = recorder, words
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        with ctx.recorder.quiet():
            made = tuple(torch.empty_like(x) for x in (q, k, v))
        ctx.recorder.note(ATTENTION_BACKWARD, (q, k, v, out, gradients[0], lse), ctx.words, made)
        return None, *made, None


class _RMSNorm(torch.autograd.Function):  # type: ignore[misc]
    """RMS norm over the last axes of x (..., cols), in one kernel."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, x: Any, weight: Any, shape: list[int]) -> Any:
        with recorder.quiet():
            out = torch.empty_like(x)
            rstd = x.new_empty(x.shape[: x.dim() - len(shape)], dtype=torch.float32)
        recorder.note("_fused_rms_norm", (x, shape, weight), {}, (out, rstd))
        ctx.save_for_backward(x, weight, rstd)
        ctx.recorder, ctx.shape = recorder, shape
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight, rstd = ctx.saved_tensors
        with ctx.recorder.quiet():
            made = tuple(torch.empty_like(t) for t in (x, weight) if t is not None)
        ctx.recorder.note("_fused_rms_norm_backward", (gradients[0], x, ctx.shape, rstd, weight), {}, made)
        return None, made[0], made[1] if weight is not None else None, None


def attention(recorder: Recorder, q: Any, k: Any, v: Any, **words: Any) -> Any:
    """Fused attention, noted as one kernel; ``words``: causal, window, dropout."""
    return _Attention.apply(recorder, q, k, v, words)


def _sdpa(
    mode: Substitutes, func: Any, args: Any, kwargs: Any, /, *, at: tuple[str, ...] = (
        "query", "key", "value", "attn_mask", "dropout_p", "is_causal"
    ),
) -> Any:  # fmt: skip
    said = dict(zip(at, args, strict=False)) | kwargs
    q, k, v = said["query"], said["key"], said["value"]
    if not mode.fused or q.device.type != "meta":
        return NotImplemented
    flat = q.dim() == 3
    if flat:
        q, k, v = q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
    if q.dim() != 4 or k.dim() != 4 or q.shape[1] % k.shape[1]:
        return NotImplemented
    if q.shape[0] != k.shape[0]:
        k, v = k.expand(q.shape[0], *k.shape[1:]), v.expand(q.shape[0], *v.shape[1:])
    out = attention(mode.recorder, q, k, v, causal=bool(said.get("is_causal")), dropout=said.get("dropout_p", 0.0) > 0)
    return out.squeeze(1) if flat else out


def _dropout(mode: Substitutes, func: Any, args: Any, kwargs: Any) -> Any:
    x, p, train = (*args, *kwargs.values())[:3]
    if not isinstance(x, torch.Tensor) or x.device.type != "meta" or not train or not 0.0 < p < 1.0:
        return NotImplemented
    return torch.ops.aten.native_dropout(x, p, True)[0]


def _rms_norm(mode: Substitutes, func: Any, args: Any, kwargs: Any) -> Any:
    said = dict(zip(("input", "normalized_shape", "weight", "eps"), args, strict=False)) | kwargs
    x, weight = said["input"], said.get("weight")
    if x.device.type != "meta":
        return NotImplemented
    return _RMSNorm.apply(mode.recorder, x, weight, list(said["normalized_shape"]))


def _softmax(mode: Substitutes, func: Any, args: Any, kwargs: Any) -> Any:
    """Softmax of 16 bit into fp32 is one kernel."""
    x = args[0]
    dtype = kwargs.get("dtype", args[2] if len(args) > 2 else None)
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(dim, int) or dtype != torch.float32 or x.dtype not in _HALF or x.device.type != "meta":
        return NotImplemented
    op = torch.ops.aten._log_softmax if "log" in func.__name__ else torch.ops.aten._softmax
    return op(x, dim, True)


def _recurrent(mode: Substitutes, func: Any, args: Any, kwargs: Any) -> Any:
    """A stack of recurrent layers is one call of the library, a layer's kernels one after the other."""
    return NotImplemented if kwargs else recurrent.stack(mode.recorder, func.__name__, args)


_SUBSTITUTES: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": _sdpa, "dropout": _dropout, "dropout_": _dropout, "rms_norm": _rms_norm,
    "softmax": _softmax, "log_softmax": _softmax, **dict.fromkeys(recurrent.GATES, _recurrent),
}  # fmt: skip


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Python functions of torch run their bodies, whose calls are seen; autocast of CUDA is on without a GPU; no layer
    takes a fused path that meta tensors have no kernel for; optimizers work on lists of tensors."""
    from torch import _tensor, autograd, functional
    from torch.cuda.amp import common
    from torch.nn import functional as nn_functional
    from torch.optim import optimizer
    from torch.utils import _foreach_utils, checkpoint

    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    answers: list[tuple[Any, str, Any]] = [
        (m, n, False) for m in (functional, nn_functional, _tensor, autograd) for n in names if hasattr(m, n)
    ]
    answers += [
        (common, "amp_definitely_not_available", False), (torch.cuda, "is_bf16_supported", True),
        (checkpoint, "_infer_device_type", "cuda"),
    ]  # fmt: skip
    answers += _of_transformers()
    devices = [*_foreach_utils._get_foreach_kernels_supported_devices(), "meta"]
    answers.append((optimizer, "_get_foreach_kernels_supported_devices", devices))
    functions = [(module, name, _saying(answer)) for module, name, answer in answers] + loops()
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in functions]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for owner, name, function in functions:
            setattr(owner, name, function)
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)
        torch.backends.mha.set_fastpath_enabled(fast)


def _of_transformers() -> list[tuple[Any, str, Any]]:
    """Where transformers is loaded, it looks at no numbers: tensors count as those of a tracer, and a batch without
    positions of its own as one that packs no sequences."""
    utils, masks = (sys.modules.get(f"transformers.{name}") for name in ("utils.import_utils", "masking_utils"))
    answers = [(utils, "is_fake_tensor", True), (masks, "find_packed_sequence_indices", None)]
    return [(module, name, answer) for module, name, answer in answers if hasattr(module, name)]


def _saying(answer: Any) -> Any:
    """A function that always answers so."""
    return lambda *args, **kwargs: answer
