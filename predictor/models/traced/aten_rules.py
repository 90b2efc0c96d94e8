"""Rules of the table of aten operators: a call -> the operators of the house that a GPU runs for it, in order.

Shape legend: n elements of the result; a matrix product is C[M, N] = A[M, K] B[K, N].
"""

from __future__ import annotations

import math
from collections.abc import Callable

from predictor.hardware.gpu import FETCH_BYTES
from predictor.models.traced.inputs import Call, Operand
from predictor.ops.attention import Attention
from predictor.ops.base import BACKWARD, FORWARD, Op
from predictor.ops.collective import Collective
from predictor.ops.elementwise import FUNCTIONS, Copy, Dropout, Elementwise, Reduce
from predictor.ops.embedding import CrossEntropy, Embedding
from predictor.ops.gemm import Gemm
from predictor.ops.moe import MoE
from predictor.ops.norm import Norm, Softmax
from predictor.ops.opaque import Opaque
from predictor.ops.routing import RANDOM

Ops = tuple[Op, ...]
Rule = Callable[[Call], Ops]


def free(call: Call) -> Ops:
    """A view, or bookkeeping of the host: no kernel runs."""
    return ()


def opaque(call: Call) -> Ops:
    """What has no entry: its operands once, its results once."""
    read = sum(x.unique * x.itemsize for x in call.operands)
    written = sum(x.nbytes for x in call.outs)
    return (Opaque(call.out.dtype if call.outs else "fp32", call.name, read, written),)


# -- element by element ------------------------------------------------------------------------------------------------


def pointwise(fn: str, flops: float = 0.0) -> Rule:
    """A kernel over every element of the result. ``fn`` of `FUNCTIONS`; with ``flops`` it is none of them, and costs so
    many an element. A scalar operand makes it "add_scalar", where there is such a function."""

    def rule(call: Call) -> Ops:
        return (kernel(fn, call.out, call.operands, flops),)

    return rule


def kernel(fn: str, out: Operand, operands: tuple[Operand, ...], flops: float = 0.0) -> Elementwise:
    """The element-wise kernel that makes ``out`` of ``operands``."""
    n = out.elements
    read = [x for i, x in enumerate(operands) if (x.shape or not out.shape) and not (x.key and x in operands[:i])]
    if flops == 0.0 and len(read) < 2 and f"{fn}_scalar" in FUNCTIONS:
        fn = f"{fn}_scalar"
    full = [x for x in read if x.unique == n]
    first = full[0].dtype if full else out.dtype
    alike = [x for x in full if x.dtype == first]
    rest = [x for x in read if not any(x is y for y in alike)]
    extra = float(sum(x.unique * x.itemsize for x in rest))
    reread, passed = _read_again(out, rest, len(full))
    stride, apart = _strided(out, read)
    return Elementwise(
        out.dtype, fn, n, len(alike), extra, "" if first == out.dtype else first, flops, True, reread,
        max(passed, apart), stride, _unlike(out, read),
    )  # fmt: skip


#: Formats that a kernel whose result is fp32 casts one by one, by definition of PyTorch's `LoadWithCast`.
_NARROW = ("bf16", "fp16", "fp8")


def _unlike(out: Operand, operands: list[Operand]) -> bool:
    """Whether the operands lie in memory unlike the result, or are cast as they are read: where PyTorch's kernel works
    out the place of each element (CUDALoops.cuh). A cast to 16 bits has a kernel of vectors (Copy.cu)."""
    for x in operands:
        if x.shape != out.shape or _apart(x.stride, out.stride, out.shape):
            return True
        if x.dtype in _NARROW and out.dtype == "fp32":
            return True
    return out.unique != out.elements


def _apart(a: tuple[int, ...], b: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether tensors of a shape with these strides lie in memory unlike each other."""
    return any(x != y and size > 1 for x, y, size in zip(a, b, shape, strict=True))


def _read_again(out: Operand, smaller: list[Operand], full: int) -> tuple[float, float]:
    """Bytes of broadcast operands that are read again, and those that pass in between: the innermost axis over which
    the largest of them is broadcast decides."""
    broadcast = [x for x in smaller if 1 < x.unique < out.elements]
    if not broadcast:
        return 0.0, 0.0
    x = max(broadcast, key=lambda y: y.unique * y.itemsize)
    lead = len(out.shape) - len(x.shape)
    axes = [d for d, size in enumerate(out.shape)
            if size > 1 and (d < lead or x.shape[d - lead] == 1 or x.stride[d - lead] == 0)]  # fmt: skip
    if not axes:
        return 0.0, 0.0
    inner = math.prod(out.shape[axes[-1] + 1 :])
    if inner == 1:
        return 0.0, 0.0
    return (out.elements - x.unique) * x.itemsize, inner * ((1 + full) * out.itemsize + x.itemsize)


def _strided(out: Operand, operands: list[Operand]) -> tuple[float, float]:
    """How far apart in memory neighbours of an operand lie whose layout is not the result's, and the bytes that pass
    before the rest of what was fetched with one is wanted; 0 where all lie side by side."""
    axis = _fastest(out)
    if axis is None:
        return 0.0, 0.0
    for x in operands:
        lead = len(out.shape) - len(x.shape)
        inner = _fastest(x)
        if axis < lead or inner is None or inner + lead == axis or x.shape[axis - lead] == 1:
            continue
        step = x.stride[axis - lead]
        if step > 1:
            passed = math.prod(out.shape[inner + lead + 1 :]) * (2.0 * out.itemsize + FETCH_BYTES)
            return step * x.itemsize, passed
    return 0.0, 0.0


def _fastest(x: Operand) -> int | None:
    """The axis along which entries lie side by side."""
    for axis in range(len(x.shape) - 1, -1, -1):
        if x.stride[axis] == 1 and x.shape[axis] > 1:
            return axis
    return None


def infinite(call: Call) -> Ops:
    """The sizes of all entries, then which of them are infinite: two kernels (PyTorch 2.13,
    aten/src/ATen/native/TensorCompare.cpp, isinf)."""
    x = call.operands[0]
    return (kernel("fused", x, (x,), 1.0), kernel("fused", call.out, (x,), 1.0))


def copied(call: Call) -> Ops:
    """A cast, a copy into another layout, or one from the host."""
    out, source = call.out, next(iter(call.operands[-1:] if call.name == "copy_" else call.operands[:1]), None)
    if source is None:
        return fill(call)
    if call.kwargs.get("from_host"):
        return (Copy(out.dtype, int(out.nbytes), "host_to_device"),)
    return (kernel("copy" if source.dtype == out.dtype else "cast", out, (source,)),)


def contiguous(call: Call) -> Ops:
    """A clone, or a reshape that has to copy."""
    return (kernel("copy", call.out, call.operands[:1]),)


def joined(call: Call) -> Ops:
    """Tensors side by side: every byte read once and written once, a broadcast one's bytes once in all."""
    offsets = any(_apart(x.stride, _packed(x.shape), x.shape) for x in call.operands)  # else by vectors (Shape.cu)
    if all(x.unique == x.elements for x in call.operands):
        return (Elementwise(call.out.dtype, "copy", call.out.elements, offsets=offsets),)
    read = sum(x.unique * x.itemsize for x in call.operands)
    return (Elementwise(call.out.dtype, "copy", call.out.elements, 0, read, offsets=offsets),)


def fill(call: Call) -> Ops:
    """A tensor of one value, or of random or running numbers."""
    return (Elementwise(call.out.dtype, "fill", call.out.elements),) if call.outs else ()


def sliced_gradient(call: Call) -> Ops:
    """The gradient of a slice: zeros, into which it is copied."""
    part = call.operands[0]
    return (
        Elementwise(call.out.dtype, "fill", call.out.elements),
        kernel("copy", part._replace(stride=_packed(part.shape)), (part,)),
    )


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def values_of(call: Call) -> Operand:
    """What a scatter writes: its last operand that is no index; of a scalar, as many as there are indices."""
    floats = [x for x in call.operands[1:] if x.dtype not in ("int64", "int32", "bool")]
    if floats:
        return floats[-1]
    rest = call.operands[1:]
    return rest[-1]._replace(dtype=call.out.dtype) if rest else call.out


# -- rows and columns --------------------------------------------------------------------------------------------------


def reduced(call: Call) -> Ops:
    """A sum, mean or extreme over axes: over the last ones every row by itself, else down the columns."""
    x, out = call.operands[0], call.out
    n, kept = x.elements, max(1, out.elements)
    if n == 0:
        return ()
    axes = call.arg(1, "dim")
    rank = len(x.shape)
    if axes is None or axes == [] or not isinstance(axes, int | list | tuple):
        axes = list(range(rank))
    places = sorted(a % rank for a in ([axes] if isinstance(axes, int) else axes)) if rank else []
    last = places == list(range(rank - len(places), rank))
    dtype = x.dtype
    if x.unique < n:  # the gradient of a sum is one number, as many times as there are terms
        return (Elementwise(out.dtype, "fused", kept, 0, x.unique * x.itemsize, chain_flops=n / kept),)
    return (Reduce(dtype, kept, n // kept, 1) if last else Reduce(dtype, n // kept, kept, 0),)


def normed(kind: str, phase: str = FORWARD) -> Rule:
    """A norm of rows, forward or backward."""

    def rule(call: Call) -> Ops:
        x = call.operands[0]
        cols = math.prod(call.arg(2 if phase == BACKWARD else 1)) or 1
        return (Norm(x.dtype, x.elements // cols, cols, kind, phase),)

    return rule


def softmaxed(phase: str = FORWARD) -> Rule:
    """Softmax over an axis. Backward, PyTorch multiplies gradient and output first, then runs the row kernel."""

    def rule(call: Call) -> Ops:
        x = call.operands[0]
        axis = call.arg(1 if phase == FORWARD else 2, "dim", -1)
        cols = x.shape[axis] if x.shape else 1
        op = Softmax(x.dtype, x.elements // max(cols, 1), cols, phase)
        if phase == FORWARD or call.name.startswith("_log"):
            return (op,)
        return (Elementwise(x.dtype, "mul", x.elements), op)

    return rule


def nll(phase: str = FORWARD) -> Rule:
    """The picked entries of log-softmax; backward, zeros with an entry a row."""

    def rule(call: Call) -> Ops:
        x = call.operands[0] if phase == FORWARD else call.operands[1]
        rows = x.shape[0] if x.shape else 1
        if phase == FORWARD:
            return (Elementwise(x.dtype, "gather", rows, extra_bytes=8.0 * rows),)
        return (Elementwise(x.dtype, "fill", x.elements), Elementwise(x.dtype, "scatter", rows))

    return rule


def cross_entropy(rows: int, vocab: int, dtype: str, phase: str) -> Op:
    """Log-softmax and the loss that reads it, which are told as one operator."""
    return CrossEntropy(dtype, rows, vocab, phase)


def looked_up(call: Call) -> Ops:
    """Rows of a table."""
    table, index = call.operands[0], call.operands[1]
    return (Embedding(table.dtype, index.elements, table.shape[-1], table.shape[0]),)


def looked_up_gradient(call: Call) -> Ops:
    """Rows of a gradient added into a table of zeros."""
    out, index = call.out, call.operands[1]
    return (Embedding(out.dtype, index.elements, out.shape[-1], out.shape[0], BACKWARD),)


def dropped(call: Call) -> Ops:
    """Dropout that makes a result and a mask."""
    x = call.operands[0]
    return (Dropout(x.dtype, x.elements),)


def dropped_gradient(call: Call) -> Ops:
    """The gradient times its mask, in one kernel."""
    return (kernel("mul", call.out, call.operands),)


# -- products ----------------------------------------------------------------------------------------------------------


def product(call: Call) -> Ops:
    """A (M, K) times B (K, N)."""
    a, b = call.operands[-2:]
    return (_linear(a, b, call.out, False),)


def product_with_bias(call: Call) -> Ops:
    """The same with a row added in the kernel; a whole matrix to add is copied into the result first."""
    c, a, b = call.operands[:3]
    if len(c.shape) == 1 or c.unique < call.out.elements:
        return (_linear(a, b, call.out, True),)
    return (kernel("copy", call.out, (c,)), _linear(a, b, call.out, False))


def _linear(a: Operand, b: Operand, out: Operand, bias: bool) -> Op:
    m, k = a.shape[-2:]
    return Gemm(out.dtype, m, b.shape[-1], k, 1, "linear", bias, _layout(a, b))


def _layout(a: Operand, b: Operand) -> str:
    """How A and B lie, as BLAS says it (`Gemm.layout`)."""
    if a.column_major:
        return "nt"
    return "tn" if b.column_major else "nn"


def batched(call: Call) -> Ops:
    """``batch`` products of activations; of one operand that all of them share (its batch has stride 0), its bytes
    once: as one product with the rows, or the columns, of all."""
    *start, a, b = call.operands[:3]
    batch, m, k = a.shape
    n, kind = b.shape[-1], "bmm"
    if batch > 1 and b.stride[0] == 0:
        batch, m, kind = 1, batch * m, "linear" if b.is_weight else "bmm"
    elif batch > 1 and a.stride[0] == 0:
        batch, n = 1, batch * n
    op = Gemm(call.out.dtype, m, n, k, batch, kind, False, _layout(a, b))
    return (kernel("copy", call.out, tuple(start)), op) if start and start[0].unique > 1 else (op,)


def matrix_vector(call: Call) -> Ops:
    """A matrix times a vector, or two vectors."""
    a = call.operands[-2]
    m, k = (1, a.shape[0]) if len(a.shape) == 1 else a.shape
    return (Gemm(call.out.dtype, m, 1, k, 1, "linear", False, "nn"),)


def grouped(call: Call) -> Ops:
    """Experts' products: rows of a group each, or of one group all."""
    a, b = call.operands[:2]
    if len(a.shape) == 2 and len(b.shape) == 3:
        experts, k, n = b.shape
        rows = a.shape[0]
        used = max(1, min(experts, rows))
        return (Gemm(call.out.dtype, -(-rows // used), n, k, used, "grouped", False, _layout(a, b)),)
    if len(a.shape) == 2:  # the weights' gradient: groups along what is summed
        experts, m, n = call.out.shape
        k = max(1, a.shape[1] // experts)
        return (Gemm(call.out.dtype, m, n, k, experts, "grouped", False, _layout(a, b)),)
    experts, m, k = a.shape
    return (Gemm(call.out.dtype, m, b.shape[-1], k, experts, "grouped", False, _layout(a, b)),)


# -- fused attention ---------------------------------------------------------------------------------------------------


def attended(phase: str = FORWARD) -> Rule:
    """Fused attention of q (b, a, s, d), k (b, g, t, d) and v (b, g, t, e): with a causal mask, a window, or none. KV
    heads that are copies of one (stride 0) are that one. What a mask that is a tensor adds to the bytes is left out."""

    def rule(call: Call) -> Ops:
        q, k, v = call.operands[:3]
        causal, window = bool(call.kwargs.get("causal")), int(call.kwargs.get("window") or 0)
        kv_heads = 1 if k.stride[1] == v.stride[1] == 0 else k.shape[1]
        op = Attention(
            q.dtype, q.shape[0], q.shape[1], kv_heads, q.shape[2], k.shape[2], q.shape[3],
            0 if v.shape[3] == q.shape[3] else v.shape[3], causal, window, "", phase, False,
            bool(call.kwargs.get("dropout")),
        )  # fmt: skip
        return (op,)

    return rule


# -- experts -----------------------------------------------------------------------------------------------------------


def expert_layer(phase: str = FORWARD) -> Rule:
    """Experts as `predictor.models.traced.experts` notes them: x (n, h) first, of four matrices' gradients backward."""

    def rule(call: Call) -> Ops:
        x, up = call.operands[0], call.operands[2]
        n, h = x.shape
        words = call.kwargs
        op = MoE(x.dtype, n, h, words["width"], up.shape[0], words["top_k"], words["gated"], distribution=RANDOM)
        return (op,) if phase == FORWARD else op.backward()

    return rule


# -- the optimizer -----------------------------------------------------------------------------------------------------


def each_of_list(reads: int, flops: float = 1.0) -> Rule:
    """One multi-tensor kernel over lists of tensors: ``reads`` of them are read at most, each once; one is written."""

    def rule(call: Call) -> Ops:
        first = call.args[0]
        if not first:
            return ()
        n = sum(x.elements for x in first)
        lists = {a[0] for a in call.args if isinstance(a, list) and a and isinstance(a[0], Operand)}
        return (Elementwise(first[0].dtype, "fused", n, min(reads, len(lists)), chain_flops=flops),)

    return rule


def collective(kind: str) -> Rule:
    """A collective whose result is the whole buffer, over links that are not known yet (`tensor_parallel.joined`)."""
    return lambda call: (Collective(call.out.dtype, kind, round(call.out.nbytes), int(call.kwargs["ranks"])),)
