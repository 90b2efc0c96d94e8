"""A call as a profiler recorded it -> the operators of the house that a GPU runs for it.

The profiler records operands (`record_shapes`): dtype, sizes, strides, and what is no tensor as text. What a call
makes follows from aten's rules, by name. `predictor.models.traced.aten`, the table of aten operators,
does the rest; beside it stand the calls that it never sees, because PyTorch's graphs hold what is above or below them:
attention by each of its kernels, collectives, and the operators that engines' libraries register. Those are known by
the name behind "::" alone, whichever library has it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

from predictor.errors import TilecastError
from predictor.graph.tensor import ACTIVATION
from predictor.models.traced import aten
from predictor.models.traced.aten_shapes import _convolution as convolution_of
from predictor.models.traced.inputs import Call, Operand
from predictor.ops.attention import Attention
from predictor.ops.base import BACKWARD, FORWARD, Op
from predictor.ops.collective import Collective
from predictor.ops.elementwise import Copy, Elementwise, Rotary
from predictor.ops.gemm import Gemm
from predictor.ops.norm import Norm
from predictor.ops.opaque import Opaque
from predictor.ops.ordering import Index

#: Names of dtypes as the profiler writes them; source: c10/util/typeid.cpp and caffe2's TypeMeta names.
_DTYPES: Mapping[str, str] = {
    "c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32", "double": "fp64", "long int": "int64",
    "long": "int64", "int": "int32", "bool": "bool", "signed char": "int8", "unsigned char": "int8",
    "c10::Float8_e4m3fn": "fp8", "c10::Float8_e4m3fnuz": "fp8", "c10::Float8_e5m2": "fp8",
    "c10::Float8_e5m2fnuz": "fp8",
}  # fmt: skip
#: The same of collectives, which have c10's names of scalar types.
_SCALARS: Mapping[str, str] = {
    "BFloat16": "bf16", "Half": "fp16", "Float": "fp32", "Double": "fp64", "Long": "int64", "Int": "int32",
    "Byte": "int8", "Char": "int8", "Bool": "bool",
}  # fmt: skip
#: Axes, and entries of one, that an operand may have: guards against numbers that no GPU has memory for.
_MOST_AXES, _LARGEST = 16, 2**44
Ops = tuple[Op, ...]


class Around(NamedTuple):
    """What is known of a call beside what was recorded of it: the dtype that its kernel's name tells, or that most
    calls of the trace have (lists of tensors are recorded without), and of a decode step, sequences and how many
    keys all of them have (0: not known)."""

    dtype: str = ""
    sequences: int = 0
    keys: int = 0


_NOTHING = Around()


class Signature:
    """A call's name, and its arguments: operands where it has tensors, else numbers, lists and truths."""

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        self.whole = name
        self.name = name.rsplit("::", 1)[-1]
        dims, types = _listed(arguments, "Input Dims"), _listed(arguments, "Input type")
        strides, texts = _listed(arguments, "Input Strides"), _listed(arguments, "Concrete Inputs")
        self.args = tuple(
            _argument(d, str(_at(types, i) or ""), _at(strides, i), _at(texts, i)) for i, d in enumerate(dims)
        )
        self.more = arguments

    @property
    def tensors(self) -> list[Operand]:
        """Its operands, in order."""
        return list(Call(self.name, self.args, {}, ()).operands)

    def with_dtype(self, dtype: str) -> Signature:
        """The same with ``dtype`` of operands of lists, whose dtypes the profiler leaves out."""
        if not any(x.dtype == "" for x in self.tensors):
            return self
        other = copy(self)
        other.args = tuple(
            [x._replace(dtype=x.dtype or dtype) for x in a] if isinstance(a, list) and a and isinstance(a[0], Operand)
            else a for a in self.args
        )  # fmt: skip
        return other


def _listed(arguments: Mapping[str, Any], key: str) -> list[Any]:
    value = arguments.get(key)
    return value if isinstance(value, list) else []


def _at(values: list[Any], place: int) -> Any:
    return values[place] if place < len(values) else None


def _argument(dims: Any, kind: str, strides: Any, text: Any) -> Any:
    if kind in _DTYPES:
        return _operand(dims, kind, strides)
    if kind in ("TensorList", "GenericList") and isinstance(dims, list) and dims and isinstance(dims[0], list):
        steps = strides if isinstance(strides, list) else []
        return [_operand(d, "", _at(steps, i)) for i, d in enumerate(dims)]
    return _number(text)


def _operand(dims: Any, kind: str, strides: Any) -> Operand:
    shape = tuple(dims) if isinstance(dims, list) else ()
    if len(shape) > _MOST_AXES or any(type(n) is not int or not 0 <= n < _LARGEST for n in shape):
        raise ValueError("sizes that no tensor has")
    stride = tuple(strides) if isinstance(strides, list) else ()
    if len(stride) != len(shape) or any(type(n) is not int or not 0 <= n < _LARGEST for n in stride):
        stride = packed(shape)
    return Operand(shape, stride, _DTYPES.get(kind, ""), ACTIVATION)


def packed(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor whose entries lie side by side."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _number(text: Any) -> Any:
    """What the text of a scalar, or of a list of them, says; None where it says nothing."""
    if not isinstance(text, str) or not text:
        return None
    try:
        return {"True": True, "False": False}[text] if text in ("True", "False") else _json(text)
    except ValueError:
        return None


def _json(text: str) -> Any:
    if text.startswith("["):
        return [_number(part.strip()) for part in text[1:-1].split(",")] if text != "[]" else []
    return json.loads(text + "0" if text.endswith(".") else text)


# -- what a call makes -------------------------------------------------------------------------------------------------

_TRUTHS = frozenset((
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor", "isnan", "isinf",
    "isfinite", "any", "all",
))  # fmt: skip
_PLACES = frozenset(("argmax", "argmin"))
_ROWS = frozenset((
    "sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "any", "all", "norm", "var", "std",
    "linalg_vector_norm", "var_mean", "std_mean", "logsumexp", "nansum", "aminmax", "count_nonzero",
))  # fmt: skip
_ORDER = ("bool", "int8", "int32", "int64", "fp8", "fp16", "bf16", "fp32", "fp64")  # by torch.promote_types, in short


def outputs_of(call: Signature) -> tuple[Operand, ...]:
    """What ``call`` makes, by aten's rule for its name; ValueError, IndexError or TypeError where it has none."""
    x, name = call.tensors, call.name.rstrip("_")
    args = call.args
    if name in _MADE:
        shape, dtype = _MADE[name](x, args)
    elif name in _ROWS:
        shape, dtype = _kept(x[0], args), x[0].dtype
        dtype = "int64" if name in _PLACES else "bool" if name in _TRUTHS else dtype
    elif call.name.endswith("_") or name.endswith("_backward_data"):
        shape, dtype = x[0].shape, x[0].dtype
    else:
        shape, dtype = _spread(x), _promoted(x)
        dtype = "bool" if name in _TRUTHS else dtype
    return (Operand(tuple(shape), _stride(tuple(shape), x), dtype, ACTIVATION),)


def _stride(shape: tuple[int, ...], x: list[Operand]) -> tuple[int, ...]:
    """An element-wise result lies as the first operand of its shape that is dense."""
    dense = (y for y in x if y.shape == shape and sorted(y.stride) == sorted(packed(shape)) and y.unique == y.elements)
    first = next(dense, None)
    return packed(shape) if first is None else first.stride


def _spread(x: list[Operand]) -> tuple[int, ...]:
    """The shape that operands are broadcast to."""
    rank = max(len(y.shape) for y in x)
    wide = [(1,) * (rank - len(y.shape)) + y.shape for y in x]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*wide, strict=True))


def _promoted(x: list[Operand]) -> str:
    ranked = [y for y in x if y.shape] or x
    return max((y.dtype for y in ranked), key=lambda name: _ORDER.index(name) if name in _ORDER else 0)


def _kept(x: Operand, args: Sequence[Any]) -> tuple[int, ...]:
    """The shape that is left of ``x`` by a reduction over the axes that its arguments name."""
    axes = args[1] if len(args) > 1 else None
    if type(axes) is int:
        axes = [axes]
    if not isinstance(axes, list) or not axes or any(type(a) is not int for a in axes):
        return ()
    gone = {a % len(x.shape) for a in axes} if x.shape else set()
    keep = len(args) > 2 and args[2] is True
    return tuple(1 if i in gone else n for i, n in enumerate(x.shape) if keep or i not in gone)


def _joined(x: list[Operand], args: Sequence[Any]) -> tuple[tuple[int, ...], str]:
    axis = (args[1] or 0) % len(x[0].shape)
    shape = list(x[0].shape)
    shape[axis] = sum(y.shape[axis] for y in x if len(y.shape) == len(shape))
    return tuple(shape), x[0].dtype


def _ranged(x: list[Operand], args: Sequence[Any]) -> tuple[tuple[int, ...], str]:
    numbers = [a for a in args if isinstance(a, int | float) and not isinstance(a, bool)]
    start, end = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    return (max(0, math.ceil(end - start)),), "int64"


def _sized(x: list[Operand], args: Sequence[Any]) -> tuple[tuple[int, ...], str]:
    sizes = args[0] if not x else x[0].shape
    if not isinstance(sizes, list | tuple):
        raise ValueError("no sizes")
    return tuple(sizes), x[0].dtype if x else "fp32"


def _planes(x: list[Operand], args: Sequence[Any]) -> tuple[tuple[int, ...], str]:
    """A pooled plane: window, stride, padding and, of max_pool, dilation; ceil_mode is left out."""
    dims = len(args[1])
    window, step = args[1], args[2] or args[1]
    pad = args[3] if len(args) > 3 and isinstance(args[3], list) else [0] * dims
    sizes = x[0].shape[-dims:]
    out = [(n + 2 * p - w) // s + 1 for n, w, s, p in zip(sizes, window, step, pad, strict=True)]
    return (*x[0].shape[:-dims], *out), x[0].dtype


_Made = Callable[[list[Operand], Sequence[Any]], tuple[tuple[int, ...], str]]
_first: _Made = lambda x, args: (x[0].shape, x[0].dtype)  # noqa: E731
_second: _Made = lambda x, args: (x[1].shape, x[1].dtype)  # noqa: E731
_MADE: Mapping[str, _Made] = {
    "mm": lambda x, args: ((x[0].shape[0], x[1].shape[1]), x[0].dtype),
    "addmm": lambda x, args: ((x[1].shape[0], x[2].shape[1]), x[1].dtype),
    "bmm": lambda x, args: ((*x[0].shape[:2], x[1].shape[2]), x[0].dtype),
    "baddbmm": lambda x, args: ((*x[1].shape[:2], x[2].shape[2]), x[1].dtype),
    "mv": lambda x, args: ((x[0].shape[0],), x[0].dtype), "dot": lambda x, args: ((), x[0].dtype),
    "addmv": lambda x, args: (x[0].shape, x[0].dtype),
    "cat": _joined, "arange": _ranged,
    "stack": lambda x, args: ((len(x), *x[0].shape), x[0].dtype),
    **dict.fromkeys(("zeros", "ones", "full", "rand", "randn", "empty"), _sized),
    **dict.fromkeys(("copy", "fill", "zero", "clone", "contiguous", "native_layer_norm", "_fused_rms_norm", "_softmax",
                     "_log_softmax", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "cumsum",
                     "native_dropout", "native_group_norm", "masked_fill", "index_put", "_index_put_impl", "scatter",
                     "scatter_add", "index_add", "index_copy", "batch_norm_backward", "sort", "zeros_like",
                     "ones_like", "full_like", "rand_like", "flip", "roll", "_softmax_backward_data"), _first),
    **dict.fromkeys(("native_batch_norm_backward", "convolution_backward", "native_layer_norm_backward",
                     "max_pool2d_with_indices_backward", "avg_pool2d_backward", "native_group_norm_backward",
                     "nll_loss_backward"), _second),
    "embedding": lambda x, args: ((*x[1].shape, x[0].shape[-1]), x[0].dtype),
    "embedding_dense_backward": lambda x, args: ((args[2], x[0].shape[-1]), x[0].dtype),
    "index_select": lambda x, args: (
        tuple(x[1].elements if i == args[1] % len(x[0].shape) else n for i, n in enumerate(x[0].shape)), x[0].dtype
    ),
    "gather": lambda x, args: (x[1].shape, x[0].dtype),
    "topk": lambda x, args: ((*x[0].shape[:-1], args[1]), x[0].dtype),
    "repeat": lambda x, args: (
        tuple(n * r for n, r in zip((1,) * (len(args[1]) - len(x[0].shape)) + x[0].shape, args[1], strict=True)),
        x[0].dtype,
    ),
    "nll_loss_forward": lambda x, args: ((), x[0].dtype), "mse_loss": lambda x, args: ((), x[0].dtype),
    **dict.fromkeys(("max_pool2d_with_indices", "avg_pool2d", "max_pool2d"), _planes),
    **dict.fromkeys(("_adaptive_avg_pool2d", "adaptive_avg_pool2d"),
                    lambda x, args: ((*x[0].shape[:-2], *args[1]), x[0].dtype)),
    "threshold_backward": _second, "where": lambda x, args: (_spread(x), x[-1].dtype),
}  # fmt: skip


# -- calls that the table of aten never sees ---------------------------------------------------------------------------


def _attended(q: Operand, k: Operand, v: Operand, causal: bool, phase: str = FORWARD, heads_last: bool = False) -> Ops:
    """Attention of q (batch, heads, tokens, width), or of (batch, tokens, heads, width) where ``heads_last``."""
    h, s = (2, 1) if heads_last else (1, 2)
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        raise ValueError("attention of a packed batch, whose lengths are not told")
    return (
        Attention(
            q.dtype, q.shape[0], q.shape[h], k.shape[h], q.shape[s], k.shape[s], q.shape[3],
            0 if v.shape[3] == q.shape[3] else v.shape[3], causal, 0, "", phase,
        ),
    )  # fmt: skip


def _truth(args: Sequence[Any]) -> bool:
    """Whether the first truth among the arguments, which is `is_causal` in every one of these calls, is True."""
    return next((a for a in args if isinstance(a, bool)), False)


def _sdpa(phase: str = FORWARD, heads_last: bool = False) -> Callable[[Signature], Ops]:
    def rule(call: Signature) -> Ops:
        x = call.tensors[1:4] if phase == BACKWARD else call.tensors[:3]
        q, k, v = x
        return _attended(q, k, v, _causal(call), phase, heads_last)

    return rule


def _causal(call: Signature) -> bool:
    """`is_causal`; of the memory-efficient kernels, which compute the log-sum-exp first, the second truth."""
    truths = [a for a in call.args if isinstance(a, bool)]
    if "efficient" in call.name:
        return bool(truths) and (truths[-1] if "backward" in call.name else truths[1:2] == [True])
    return bool(truths) and truths[0]


def _paged_prefill(call: Signature) -> Ops:
    """Attention of sequences side by side over a paged cache: offsets tell how many, a number how long the longest is.
    They are taken for alike, with no more cached than the queries."""
    q, k, v = call.tensors[:3]
    offsets = next(x for x in call.tensors[3:] if len(x.shape) == 1 and x.dtype in ("int32", "int64"))
    longest = [a for a in call.args if type(a) is int and a > 1][:2]
    batch = max(1, offsets.shape[0] - 1)
    tokens, heads, width = q.shape[-3:]
    kv_len = longest[-1] if longest else tokens // batch
    return (
        Attention(
            q.dtype, batch, heads, k.shape[-2], max(1, tokens // batch), max(kv_len, tokens // batch), width,
            0 if v.shape[-1] == width else v.shape[-1], _truth([a for a in call.args if a is True]),
        ),
    )  # fmt: skip


def _paged_decode(call: Signature, around: Around) -> Ops:
    """One query a sequence over a paged cache, whose sizes tell heads alone; how long sequences are says the step."""
    q = call.tensors[0]
    cache = next(x for x in call.tensors[1:] if len(x.shape) == 4)
    batch, heads, width = q.shape
    if around.sequences != batch or around.keys < batch:
        return ()
    return (Attention(q.dtype, batch, heads, cache.shape[-2], 1, max(1, round(around.keys / batch)), width),)


def _gathered(call: Signature) -> Ops:
    """Entries that indices name; axes along which the index is one number (stride 0) are rows that lie in one."""
    table, index = call.tensors[:2]
    width = 1
    for size, step in zip(reversed(index.shape), reversed(index.stride), strict=True):
        if step:
            break
        width *= size
    width = max(1, width)
    return (Index(table.dtype, max(1, index.elements // width), width, max(1, table.elements // width)),)


def _rms(residual: bool) -> Callable[[Signature], Ops]:
    def rule(call: Signature) -> Ops:
        x = call.tensors[0]
        return (Norm(x.dtype, x.elements // x.shape[-1], x.shape[-1], "rms", FORWARD, residual),)

    return rule


def _gated(fn: str) -> Callable[[Signature], Ops]:
    """The activation of one half times the other: the result is first, or is half of what is."""

    def rule(call: Signature) -> Ops:
        least = min(call.tensors, key=lambda x: x.elements)
        n = least.elements if len(call.tensors) > 1 else least.elements // 2
        return (Elementwise(least.dtype, fn, n),)

    return rule


def _rotated(call: Signature) -> Ops:
    floats = [x for x in call.tensors if x.dtype not in ("int64", "int32") and len(x.shape) > 1]
    width = next((a for a in call.args if type(a) is int and a > 1), floats[0].shape[-1])
    tokens = max(x.elements for x in call.tensors if x.dtype in ("int64", "int32"))
    heads = sum(x.elements // tokens // width for x in floats[:2] if x.elements % (tokens * width) == 0)
    return (Rotary(floats[0].dtype, tokens, heads, width),)


def _cached(call: Signature) -> Ops:
    """New keys and values into their places of the cache."""
    places = next(x for x in call.tensors if x.dtype in ("int64", "int32"))
    new, table = call.tensors[0], max(call.tensors, key=lambda x: x.elements)
    width = new.elements // max(1, places.elements)
    op = Index(new.dtype, places.elements, width, max(1, table.elements // max(1, width)), "scatter")
    return (op, op)


def _transposed_product(call: Signature) -> Ops:
    """A (M, K) times a weight (N, K)."""
    a, b = call.tensors[:2]
    return (Gemm(a.dtype, a.elements // a.shape[-1], b.shape[-2], a.shape[-1]),)


def _library_convolution(call: Signature) -> Ops:
    """A vendor library's convolution: (input, weight, [bias,] padding, stride, dilation, groups, ...)."""
    lists = [a for a in call.args if isinstance(a, list)]
    groups = next(a for a in call.args if type(a) is int)
    padding, stride, dilation = lists[:3]
    x, weight = call.tensors[:2]
    args = (x, weight, None, stride, padding, dilation, False, [0], groups)
    return (convolution_of(Call(call.name, args, {}, ()), x, weight, 3, len(call.tensors) > 2),)


def _each_copied(call: Signature) -> Ops:
    return (Elementwise(call.tensors[0].dtype, "copy", sum(x.elements for x in call.args[0])),)


def _communicated(call: Signature) -> Ops:
    """A collective; its links are those of the system, which a trace does not tell."""
    kind = _COLLECTIVES.get(re.sub(r"[^a-z]", "", str(call.more.get("Collective name", "")).lower()))
    ranks, count = call.more.get("Group size"), call.more.get("In msg nelems")
    dtype = _SCALARS.get(str(call.more.get("dtype")))
    if kind is None or dtype is None or type(ranks) is not int or type(count) is not int or ranks < 2 or count < 1:
        return ()
    out = call.more.get("Out msg nelems")
    count = max(count, out) if type(out) is int and kind in ("all_gather", "reduce_scatter") else count
    op = Collective(dtype, kind, 1, ranks)
    return (Collective(dtype, kind, round(count * op.itemsize), ranks),)


#: How collectives are called, without what is no letter; source: c10d's ProcessGroupNCCL, record_param_comms.
_COLLECTIVES: Mapping[str, str] = {
    "allreduce": "all_reduce", "allreducecoalesced": "all_reduce", "allgather": "all_gather",
    "allgatherbase": "all_gather", "allgatherintotensorcoalesced": "all_gather", "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter", "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all", "alltoallv": "all_to_all", "alltoallbase": "all_to_all", "broadcast": "broadcast",
    "send": "send_recv", "recv": "send_recv",
}  # fmt: skip
_RULES: Mapping[str, Callable[[Signature], Ops]] = {
    "_flash_attention_forward": _sdpa(heads_last=True), "_efficient_attention_forward": _sdpa(heads_last=True),
    "_flash_attention_backward": _sdpa(BACKWARD, heads_last=True),
    "_efficient_attention_backward": _sdpa(BACKWARD, heads_last=True),
    **dict.fromkeys(("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
                     "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu",
                     "scaled_dot_product_attention"), _sdpa()),
    **dict.fromkeys(("_scaled_dot_product_flash_attention_backward",
                     "_scaled_dot_product_efficient_attention_backward",
                     "_scaled_dot_product_cudnn_attention_backward",
                     "_scaled_dot_product_flash_attention_for_cpu_backward"), _sdpa(BACKWARD)),
    "mha_batch_prefill": _paged_prefill,
    **dict.fromkeys(("rmsnorm", "rms_norm", "gemma_rmsnorm"), _rms(False)),
    **dict.fromkeys(("add_rmsnorm", "fused_add_rmsnorm", "fused_add_rms_norm"), _rms(True)),
    "silu_and_mul": _gated("swiglu"), "gelu_and_mul": _gated("geglu"), "gelu_tanh_and_mul": _gated("geglu"),
    **dict.fromkeys(("rotary_embedding", "apply_rope_pos_ids_cos_sin_cache"), _rotated),
    **dict.fromkeys(("store_cache", "reshape_and_cache", "reshape_and_cache_flash"), _cached),
    "gemm_a16w16": _transposed_product, "linear": _transposed_product,
    **dict.fromkeys(("cudnn_convolution", "miopen_convolution", "mkldnn_convolution"), _library_convolution),
    "gather": _gathered, "_foreach_copy_": _each_copied, "record_param_comms": _communicated,
}  # fmt: skip


#: Calls whose indices are a list that may hold none, which the profiler records without sizes.
_INDEXED = frozenset(("index", "index_put", "_index_put_impl", "_unsafe_index"))


def operators(call: Signature, around: Around = _NOTHING) -> Ops:
    """What a GPU runs for ``call``; empty where it is a view, not known, or its sizes were not recorded."""
    try:
        call = call.with_dtype(around.dtype)
        if "paged_attention" in call.name:
            return _paged_decode(call, around)
        rule = _RULES.get(call.name)
        if rule is not None:
            return rule(call)
        if aten.rule_of(call.name) is None or call.name in aten.FREE:
            return ()
        if call.name.rstrip("_") in _INDEXED and not any(x.dtype in ("int64", "int32") for x in call.tensors[1:]):
            return ()
        made = aten.operators(Call(call.name, call.args, {}, outputs_of(call)))
        return () if any(isinstance(op, Opaque) for op in made) else made
    except (TilecastError, ArithmeticError, AttributeError, IndexError, KeyError, StopIteration, TypeError, ValueError):
        return ()


def copied(name: str, size: int) -> Ops:
    """A copy between memories, by the name of its event ("Memcpy HtoD (Pageable -> Device)"), of ``size`` bytes."""
    kind = {"HtoD": "host_to_device", "DtoH": "device_to_host", "DtoD": "device"}.get(name[7:11])
    return () if kind is None or size < 1 else (Copy("int8", size, kind),)
