"""Rules of the table for operators over planes, rows in order, and tables: convolutions, norms of channels, pooling,
resizing, scans, sorts, indices, embedding bags."""

from __future__ import annotations

import math
from collections.abc import Sequence

from predictor.models.traced.aten_rules import Ops, Rule, kernel, opaque, values_of
from predictor.models.traced.inputs import Call, Operand
from predictor.ops.base import BACKWARD, FORWARD, Op
from predictor.ops.channel_norm import ChannelNorm
from predictor.ops.convolution import Convolution
from predictor.ops.elementwise import Elementwise, Reduce
from predictor.ops.ordering import Index, Scan, Sort
from predictor.ops.recurrent import Recurrence
from predictor.ops.resample import Interpolate, Pool
from predictor.ops.sparse import EmbeddingBag

_INDICES = ("int64", "int32", "int8", "bool")


def _channels_last(x: Operand) -> bool:
    """Whether channels of a pixel lie side by side."""
    return len(x.shape) > 2 and x.stride[1] == 1 and x.shape[1] > 1 and math.prod(x.shape[2:]) > 1


def convolution(call: Call) -> Ops:
    """aten.convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""
    x, weight = call.operands[:2]
    copies, (x,) = _turned((x,), weight)
    return (*copies, _convolution(call, x, weight, 3, isinstance(call.arg(2), Operand)))


def _turned(planes: Sequence[Operand], weight: Operand) -> tuple[list[Op], list[Operand]]:
    """The copies that a convolution makes of those ``planes`` that lie unlike its weight, where that has its channels
    last; and all of them as it then reads them."""
    copies: list[Op] = []
    read = list(planes)
    for i, x in enumerate(planes):
        turned = x._replace(stride=_last_strides(x.shape), key=0)
        alike = not suggests_last(weight.shape, weight.stride) or len(x.shape) != len(weight.shape)
        if not alike and _channels_last(turned) and not _channels_last(x):
            copies.append(kernel("copy", turned, (x,)))
            read[i] = turned
    return copies, read


def suggests_last(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether PyTorch takes a tensor of planes to have its channels last, and with it all operands of a convolution,
    of which it copies those that lie otherwise: its sizes may leave both layouts open (a weight of one tap). Source:
    PyTorch 2.13, c10/core/MemoryFormat.h (is_channels_last_strides_2d_s4) and aten/src/ATen/native/ConvUtils.h.

    >>> suggests_last((8, 4, 1, 1), (4, 1, 4, 4)), suggests_last((8, 4, 1, 1), (4, 1, 1, 1))
    (True, False)
    """
    if len(shape) not in (4, 5) or stride[1] == 0:
        return False
    least = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if stride[axis] < least or (axis == 0 and least == stride[1]):
            return False
        least = stride[axis] * max(shape[axis], 1)
    return True


def _last_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor whose channels lie last."""
    stride, step = [0] * len(shape), 1
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        stride[axis], step = step, step * shape[axis]
    return tuple(stride)


def _convolution(call: Call, x: Operand, weight: Operand, start: int, bias: bool, phase: str = FORWARD) -> Convolution:
    stride, padding, dilation, transposed, extra, groups = (call.arg(start + i) for i in range(6))
    shape = x.shape if len(x.shape) == len(weight.shape) else (1, *x.shape)
    return Convolution.of(
        x.dtype, shape, weight.shape, stride, padding, dilation, bool(transposed), extra or (0,), groups, bias,
        _channels_last(x), phase,
    )  # fmt: skip


def convolution_gradients(call: Call) -> Ops:
    """aten.convolution_backward(gradient, input, weight, bias_sizes, stride, ..., groups, output_mask)."""
    gradient, x, weight = call.operands[:3]
    asked = call.arg(10)
    ops, (gradient, x) = _turned((gradient, x), weight)
    forward = _convolution(call, x, weight, 4, bool(asked[2]))
    gradients = list(forward.backward())
    ops += [op for op, wants in zip(gradients[:2], asked[:2], strict=False) if wants]
    if asked[2]:
        channels = gradient.shape[1]
        ops.append(Reduce(gradient.dtype, gradient.elements // channels, channels, 0))
    return tuple(ops)


def batch_norm(call: Call) -> Ops:
    """native_batch_norm and its like; the result alone tells whether statistics are those of the batch."""
    x = call.operands[0]
    training = any(value is True for value in (*call.args[1:], *call.kwargs.values()))
    return (ChannelNorm(x.dtype, x.shape[0], x.shape[1], math.prod(x.shape[2:]), "batch", 1, training),)


def batch_norm_gradient(call: Call) -> Ops:
    x = call.operands[0]
    return (ChannelNorm(x.dtype, x.shape[0], x.shape[1], math.prod(x.shape[2:]), "batch", 1, True, BACKWARD),)


def group_norm(phase: str = FORWARD) -> Rule:
    """native_group_norm(input, weight, bias, N, C, HxW, group, eps); backward has mean and rstd before N."""

    def rule(call: Call) -> Ops:
        x = call.operands[0]
        numbers = [a for a in call.args if isinstance(a, int) and not isinstance(a, bool)]
        batch, channels, pixels, groups = numbers[:4]
        return (ChannelNorm(x.dtype, batch, channels, pixels, "group", groups, True, phase),)

    return rule


def pooled(kind: str, phase: str = FORWARD) -> Rule:
    """Pooling of planes; what has no window of its own (adaptive pooling) shares the plane out evenly."""

    def rule(call: Call) -> Ops:
        ahead = phase == FORWARD
        big, small = (call.operands[0], call.out) if ahead else (call.out, call.operands[0])
        dims = 3 if "3d" in call.name else 1 if "1d" in call.name else 2
        inside, outside = math.prod(big.shape[-dims:]), math.prod(small.shape[-dims:])
        maps = big.elements // max(inside, 1)
        window = call.arg(1 if ahead else 2)
        taps = max(1, round(inside / max(outside, 1)))
        if "adaptive" not in call.name and isinstance(window, list | tuple) and window:
            taps = math.prod(window if len(window) == dims else list(window) * dims)
        training = kind == "max" and (not ahead or len(call.outs) > 1)
        return (Pool(big.dtype, maps, inside, outside, taps, kind, training, phase),)

    return rule


def resized(kind: str, phase: str = FORWARD) -> Rule:
    """Interpolation of planes."""

    def rule(call: Call) -> Ops:
        ahead = phase == FORWARD
        x, made = (call.operands[0], call.out) if ahead else (call.out, call.operands[0])
        dims = len(x.shape) - 2
        inside, outside = math.prod(x.shape[2:]), math.prod(made.shape[2:])
        return (Interpolate(x.dtype, x.shape[0] * x.shape[1], inside, outside, kind, dims, phase),)

    return rule


def scanned(call: Call) -> Ops:
    """A running sum along an axis."""
    x, axis = call.operands[0], call.arg(1, "dim", -1)
    cols = x.shape[axis] if x.shape else 1
    inner = not x.shape or axis % len(x.shape) == len(x.shape) - 1
    return (Scan(call.out.dtype, x.elements // max(cols, 1), cols, inner),)


def nonzero(call: Call) -> Ops:
    """Places of what is not zero: a running sum of the mask says where each is written."""
    return (Scan("int64", 1, call.operands[0].elements),)


def ordered(top: bool) -> Rule:
    """A sort of rows, or the largest entries of each."""

    def rule(call: Call) -> Ops:
        x = call.operands[0]
        k = call.arg(1, "k", 0) if top else 0
        numbers = [a for a in (*call.args[1:], *call.kwargs.values()) if isinstance(a, int) and type(a) is not bool]
        axis = call.kwargs.get("dim", (numbers[1] if len(numbers) > 1 else -1) if top else (*numbers, -1)[0])
        cols = x.shape[axis] if x.shape else 1
        return (Sort(x.dtype, x.elements // max(cols, 1), cols, int(k) if top else 0),)

    return rule


def picked(call: Call) -> Ops:
    """Rows of a table that indices name: the axes behind the indexed ones lie side by side."""
    table, out = call.operands[0], call.out
    indices = [x for x in call.operands[1:] if x.dtype in _INDICES]
    if call.name in ("gather", "take", "take_along_dim") or not indices:
        width = 1
    elif call.name == "index_select":
        width = math.prod(table.shape[call.arg(1) % len(table.shape) + 1 :]) if table.shape else 1
    else:
        width = _behind(table.shape, call.arg(1))
    width = max(1, width)
    return (Index(table.dtype, max(1, out.elements // width), width, max(1, table.elements // width)),)


def _behind(shape: Sequence[int], indices: Sequence[object]) -> int:
    """Entries of a table behind its last indexed axis."""
    places = [i for i, x in enumerate(indices) if x is not None]
    return math.prod(shape[places[-1] + 1 :]) if places else 1


def placed(call: Call) -> Ops:
    """Rows written, or added, in their places; out of place, the table is copied first."""
    table, values = call.operands[0], values_of(call)
    plain = call.name.rstrip("_")
    if plain in ("index_put", "_index_put_impl", "_unsafe_index_put"):
        width = _behind(table.shape, call.arg(1))
        adds = call.arg(3, "accumulate", False) is True
        rows = max(1, values.elements // max(width, 1)) if values.unique > 1 else max(
            (x.elements for x in call.operands[1:] if x.dtype in _INDICES), default=1
        )  # fmt: skip
    else:
        axis = call.arg(1, "dim", 0)
        whole = plain.startswith("index")
        width = math.prod(table.shape[axis % len(table.shape) + 1 :]) if whole and table.shape else 1
        adds = "add" in plain or "reduce" in plain
        rows = max(1, values.elements // max(width, 1))
    width = max(1, width)
    op: Op = Index(table.dtype, rows, width, max(1, table.elements // width), "scatter_add" if adds else "scatter")
    return (op,) if call.name.endswith("_") else (kernel("copy", call.out, (table,)), op)


def bag(call: Call) -> Ops:
    """Sums of rows of a table; offsets say where a bag begins, and how many rows it has is a mean."""
    table, indices, offsets = call.operands[:3]
    bags = max(1, call.out.shape[0] if call.out.shape else offsets.elements)
    rows, width = table.shape
    return (EmbeddingBag(table.dtype, bags, max(1, round(indices.elements / bags)), width, rows),)


def bag_gradient(call: Call) -> Ops:
    gradient, indices = call.operands[:2]
    out = call.out
    bags = max(1, gradient.shape[0])
    if len(out.shape) != 2:
        return opaque(call)
    pooling = max(1, round(indices.elements / bags))
    return (EmbeddingBag(out.dtype, bags, pooling, out.shape[1], out.shape[0], 0.0, False, BACKWARD),)


def recurrent(call: Call) -> Ops:
    """What no operator of the house stands for, and is no unknown: its operands once."""
    return (Elementwise(call.out.dtype, "fused", call.out.elements, 1, chain_flops=1.0),)


def recurrent_layer(phase: str = FORWARD) -> Rule:
    """A layer as `predictor.models.traced.recurrent` notes it: x (steps, batch, inputs) first."""

    def rule(call: Call) -> Ops:
        x, said = call.operands[0], call.kwargs
        steps, batch, inputs = x.shape
        sizes = (said["hidden"], said["gates"], said["directions"])
        return (Recurrence(x.dtype, steps, batch, inputs, *sizes, phase),)

    return rule
