"""Operators bound by memory: element-wise functions and fused chains of them, dropout, rotary, casts, copies, sums."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from predictor.files.records import dataclass, replace
from predictor.formats.dtypes import bytes_of
from predictor.ops.base import EVERY, Gradient, Kept, Op, Piece, StreamingOp

# fn -> (full-size inputs, FLOP per element). The output is one full-size tensor. FLOP of a transcendental function are
# nominal (by hand, not from data): the memory traffic decides, and the table makes the count the same everywhere.
FUNCTIONS: dict[str, tuple[int, int]] = {
    "add": (2, 1), "sub": (2, 1), "mul": (2, 1), "div": (2, 1), "max": (2, 1), "pow": (2, 8), "where": (2, 1),
    "add_scalar": (1, 1), "mul_scalar": (1, 1), "div_scalar": (1, 1), "pow_scalar": (1, 8), "max_scalar": (1, 1),
    "relu": (1, 1), "tanh": (1, 8), "gelu": (1, 10), "silu": (1, 8), "sigmoid": (1, 8), "exp": (1, 8), "neg": (1, 1),
    "rsqrt": (1, 2), "swiglu": (2, 9), "geglu": (2, 11), "copy": (1, 0), "cast": (1, 0), "fill": (0, 0),
    "fused": (1, 1),
    "relu_backward": (2, 1), "tanh_backward": (2, 3), "gelu_backward": (2, 20), "silu_backward": (2, 10),
    "sigmoid_backward": (2, 3), "masked_fill": (1, 1), "gather": (1, 0), "scatter": (1, 0), "cumsum": (1, 1),
    "add_": (2, 1), "quantize": (1, 2), "topk": (1, 4),
}  # fmt: skip

# Functions whose gradient needs one kernel that reads the incoming gradient and one saved tensor.
_SAVED_GRADIENT = {fn: f"{fn}_backward" for fn in ("relu", "tanh", "gelu", "silu", "sigmoid")}

# Of functions whose backward pass reads something: what its kernels make and read, one after the other.
_OF_INPUT, _OF_OUTPUT = (Gradient((0,), (0,)),), (Gradient((0,), outputs=(0,)),)
_GRADIENTS: dict[str, tuple[Gradient, ...]] = {
    **dict.fromkeys(("gelu", "silu"), _OF_INPUT), "fused": (Gradient(EVERY, EVERY),),
    **dict.fromkeys(("relu", "tanh", "sigmoid", "exp"), _OF_OUTPUT),
    **dict.fromkeys(("swiglu", "geglu", "pow"), (Gradient((0, 1), (0, 1)),)),
    **dict.fromkeys(("where", "masked_fill"), (Gradient((0,), (1,)),)),
    "mul": (Gradient((0,), (1,)), Gradient((1,), (0,))),
    "div": (Gradient((0,), (1,)), Gradient(inputs=(0,)), Gradient((1,), (1,), incoming=False, before=True)),
    "pow_scalar": (
        Gradient(inputs=(0,), incoming=False), Gradient(incoming=False, before=True), Gradient((0,), before=True),
    ),
    "rsqrt": (
        Gradient(outputs=(0,), incoming=False), Gradient(incoming=False, before=True), Gradient((0,), before=True),
    ),
    "max": (Gradient(inputs=(0, 1), incoming=False), Gradient((0, 1), before=True)),
    # A guard against overflow, which never bites and which newer classes leave out: nothing is saved for it.
    "max_scalar": (Gradient(incoming=False), Gradient((0,), before=True)),
}  # fmt: skip
_OF_NOTHING = (Gradient(EVERY),)


@dataclass(frozen=True, slots=True)
class Elementwise(StreamingOp):
    """``elements`` outputs of ``fn``; ``inputs`` full-size tensors are read (-1 = as many as ``fn`` takes).

    ``extra_bytes`` counts what is read beside them (a broadcast operand, a mask of another dtype). ``in_dtype`` is the
    inputs' where it differs from the output's (a cast). A fused chain has fn "fused" and says how many inputs it reads
    and how many FLOP an element costs (``chain_flops``).

    What costs beyond the compulsory bytes is told, too; an estimator decides where it is read from. A broadcast operand
    is read again for ``again_bytes`` in all, each time after ``reuse_bytes`` have passed. Of an operand whose layout is
    not the output's, neighbours lie ``stride_bytes`` apart (0: side by side); the rest of what was fetched with one is
    wanted after ``reuse_bytes``. ``offsets``: PyTorch's kernel works out where each element lies, and moves one a
    thread, as an operand is broadcast, lies in another order or is cast on the way (CUDALoops.cuh, gpu_kernel_impl).
    """

    fn: str
    elements: int
    inputs: int = -1
    extra_bytes: float = 0.0
    in_dtype: str = ""
    chain_flops: float = 0.0
    grad: bool = True  # False where autograd does not follow the operand (a mask, an index)
    again_bytes: float = 0.0
    reuse_bytes: float = 0.0
    stride_bytes: float = 0.0
    offsets: bool = False

    family: ClassVar[str] = "elementwise"
    columns: ClassVar[tuple[str, ...]] = (
        "elements", "read_bytes", "write_bytes", "flop_count", "again_bytes", "reuse_bytes", "stride_bytes",
    )  # fmt: skip

    @property
    def label(self) -> str:
        return "element-wise"

    @property
    def read_bytes(self) -> float:
        count = FUNCTIONS[self.fn][0] if self.inputs < 0 else self.inputs
        return self.elements * count * bytes_of(self.in_dtype or self.dtype) + self.extra_bytes

    @property
    def write_bytes(self) -> float:
        return self.elements * self.itemsize

    @property
    def flop_count(self) -> float:
        return self.elements * (self.chain_flops or FUNCTIONS[self.fn][1])

    def flops(self) -> float:
        return self.flop_count

    def backward(self) -> tuple[Op, ...]:
        """What eager autograd runs: nothing for a sum, a kernel for a unary function, one per operand of a product."""
        n, dt = self.elements, self.dtype
        if not self.grad or self.fn in ("add", "sub", "add_scalar", "fill", "add_"):
            return ()
        if self.fn in _SAVED_GRADIENT:
            return (Elementwise(dt, _SAVED_GRADIENT[self.fn], n),)
        if self.fn == "mul" and self.inputs == 1:  # by a factor that was broadcast, whose own gradient the graph makes
            return (Elementwise(dt, "mul_scalar", n, 1, self.extra_bytes, offsets=self.offsets),)
        if self.fn == "mul":
            return (Elementwise(dt, "mul", n),) * 2
        if self.fn == "div":
            return (Elementwise(dt, "div", n), Elementwise(dt, "mul", n), Elementwise(dt, "div", n))
        if self.fn in ("pow_scalar", "rsqrt"):  # grad * (exponent * x ** (exponent - 1)), -0.5 grad y ** 3
            return (
                Elementwise(dt, "pow_scalar", n), Elementwise(dt, "mul_scalar", n), Elementwise(dt, "mul", n),
            )  # fmt: skip
        if self.fn in ("swiglu", "geglu"):
            return (Elementwise(dt, "fused", 2 * n, inputs=1, extra_bytes=n * self.itemsize, chain_flops=10),)
        if self.fn in ("cast", "copy"):
            wide = self.fn == "cast" and self.in_dtype == "fp32"
            offsets = wide or (self.fn == "copy" and self.offsets)
            return (Elementwise(self.in_dtype or dt, self.fn, n, in_dtype=dt, offsets=offsets),)
        if self.fn == "where":
            return (Elementwise(dt, "where", n, inputs=1, extra_bytes=n),)
        if self.fn == "masked_fill":
            return (Elementwise(dt, "masked_fill", n, extra_bytes=n),)
        if self.fn in ("max", "max_scalar"):  # a mask of ties, its product with the gradient
            return (
                Elementwise("bool", "max_scalar", n, in_dtype=dt), Elementwise(dt, "masked_fill", n, extra_bytes=n),
            )  # fmt: skip
        return (Elementwise(dt, self.fn if self.fn in ("mul_scalar", "div_scalar") else "copy", n),)

    def gradients(self) -> tuple[Gradient, ...]:
        """Of indices nothing is counted as saved. Of a broadcast factor no gradient is made here: the graph adds it."""
        rules = _GRADIENTS.get(self.fn, _OF_NOTHING)
        return rules[:1] if self.fn == "mul" and self.inputs == 1 else rules

    def backward_in_one(self) -> tuple[tuple[Op, ...], tuple[Gradient, ...]]:
        """Of a chain, one that reads what it read, and the gradient."""
        if self.fn != "fused" or not self.grad:
            return self.backward(), self.gradients()
        read = 1 if self.inputs < 0 else self.inputs
        chain = Elementwise(self.dtype, "fused", self.elements, read + 1, chain_flops=2.0 * self.chain_flops)
        return (chain,), self.gradients()

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Elementwise:
        """Its outputs, and what the rank has of the operands beside the full-size ones."""
        out = outputs[0]
        elements, extra, reread, stride = (
            out.share(self.elements),
            self.extra_bytes,
            self.again_bytes,
            self.stride_bytes,
        )
        if extra or stride:
            full = FUNCTIONS[self.fn][0] if self.inputs < 0 else self.inputs
            beside = inputs[full:] if extra else ()
            if beside and (
                not any(piece.split for piece in beside) or sum(piece.whole.nbytes for piece in beside) == extra
            ):
                missing = sum(piece.whole.nbytes - piece.local.nbytes for piece in beside if piece.split)
            else:  # something that grows with the result
                missing = extra * (1.0 - elements / self.elements)
            extra -= missing
            if reread:
                reread -= out.whole.nbytes - out.local.nbytes - missing
            if stride and len(inputs) > 1:
                stride *= inputs[1].local.elements / inputs[1].whole.elements
        return Elementwise(
            self.dtype, self.fn, elements, self.inputs, extra, self.in_dtype, self.chain_flops, self.grad, reread,
            self.reuse_bytes, stride, self.offsets,
        )  # fmt: skip

    def stays_partial(self, partial: Sequence[bool]) -> bool:
        """A sum of partial sums; rows of one that are weighted, or written in their places, one by one."""
        if self.fn in ("add", "add_"):
            return all(partial)
        return (self.fn == "scatter" or (self.fn == "mul" and self.inputs == 1)) and list(partial[:2]) == [True, False]


@dataclass(frozen=True, slots=True)
class Accumulate(Elementwise):
    """Gradients of several weights, each added to what is there of its own."""

    def made_of(self, output: int) -> Sequence[int]:
        return (output,)

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Accumulate:
        """What the rank has of all of them."""
        return replace(self, elements=sum(piece.local.elements for piece in outputs))


@dataclass(frozen=True, slots=True)
class PlainElementwise(StreamingOp):
    """What the element-wise estimator answers besides `Elementwise`: every operand is read once, side by side."""

    fn: ClassVar[str]
    family: ClassVar[str] = "elementwise"
    columns: ClassVar[tuple[str, ...]] = Elementwise.columns
    again_bytes: ClassVar[float] = 0.0
    reuse_bytes: ClassVar[float] = 0.0
    stride_bytes: ClassVar[float] = 0.0

    @property
    @abstractmethod
    def flop_count(self) -> float:
        """Floating-point operations of one call."""

    def flops(self) -> float:
        return self.flop_count


@dataclass(frozen=True, slots=True)
class Dropout(PlainElementwise):
    """Dropout over ``elements``: reads x, writes the result and a mask of one byte an element."""

    elements: int

    fn: ClassVar[str] = "dropout"

    @property
    def label(self) -> str:
        return "dropout"

    @property
    def read_bytes(self) -> float:
        return self.elements * self.itemsize

    @property
    def write_bytes(self) -> float:
        return self.elements * (self.itemsize + 1)

    @property
    def flop_count(self) -> float:
        return self.elements * 2.0

    def backward(self) -> tuple[Op, ...]:
        """The gradient where the mask keeps it, scaled: one kernel. Source: PyTorch 2.13
        aten/src/ATen/native/cuda/Dropout.cu, native_dropout_backward_cuda, which runs masked_scale_kernel alone."""
        return (Elementwise(self.dtype, "mul", self.elements, 1, float(self.elements)),)

    def gradients(self) -> tuple[Gradient, ...]:
        return (Gradient((0,), kept=(0,)),)

    def kept(self) -> tuple[Kept, ...]:
        """The mask, a byte an element."""
        return _MASK

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Dropout:
        return replace(self, elements=outputs[0].share(self.elements))


@dataclass(frozen=True, slots=True)
class DropoutSum(Dropout):
    """A residual plus what dropout leaves of a branch, in one kernel: reads both, writes the sum and the mask."""

    @property
    def read_bytes(self) -> float:
        return 2 * self.elements * self.itemsize

    @property
    def flop_count(self) -> float:
        return self.elements * 3.0


_MASK = (Kept("mask", "bool"),)


@dataclass(frozen=True, slots=True)
class Rotary(StreamingOp):
    """Rotary position embedding of q and k in one kernel: ``heads`` counts query and key heads together."""

    tokens: int
    heads: int
    head_dim: int
    inverse: bool = False

    family: ClassVar[str] = "rotary"
    columns: ClassVar[tuple[str, ...]] = ("tokens", "heads", "head_dim", "read_bytes", "write_bytes")

    @property
    def read_bytes(self) -> float:
        """q, k and one row of cosines and sines a token."""
        return self.tokens * (self.heads + 1) * self.head_dim * self.itemsize

    @property
    def write_bytes(self) -> float:
        return self.tokens * self.heads * self.head_dim * self.itemsize

    def flops(self) -> float:
        return 3.0 * self.tokens * self.heads * self.head_dim  # per pair: four products and two sums

    def backward(self) -> tuple[Op, ...]:
        return (Rotary(self.dtype, self.tokens, self.heads, self.head_dim, True),)

    def gradients(self) -> tuple[Gradient, ...]:
        return _OF_NOTHING

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Rotary:
        """Its heads of q and of k, and its tokens."""
        tokens, heads = self.tokens, self.heads
        for axis in ("heads", "kv_heads"):
            for piece in outputs:
                if axis in piece.split:
                    part, whole = piece.split[axis]
                    heads -= whole - part
        for axis, (part, whole) in outputs[0].split.items():
            if axis not in ("heads", "kv_heads"):
                tokens = tokens * part // whole
        return Rotary(self.dtype, tokens, heads, self.head_dim, self.inverse)

    def made_of(self, output: int) -> Sequence[int]:
        """q of q, k of k."""
        return (output,)


@dataclass(frozen=True, slots=True)
class Reduce(PlainElementwise):
    """Sum of a (rows, cols) matrix over its rows (a bias gradient) or, with ``axis`` 1, over its columns."""

    rows: int
    cols: int
    axis: int = 0

    fn: ClassVar[str] = "sum"

    @property
    def label(self) -> str:
        return "reduction"

    @property
    def elements(self) -> int:
        return self.rows * self.cols

    @property
    def read_bytes(self) -> float:
        return self.rows * self.cols * self.itemsize

    @property
    def write_bytes(self) -> float:
        return (self.cols if self.axis == 0 else self.rows) * self.itemsize

    @property
    def flop_count(self) -> float:
        return float(self.rows * self.cols)

    def backward(self) -> tuple[Op, ...]:
        return (Elementwise(self.dtype, "copy", self.rows * self.cols, inputs=0),)

    def gradients(self) -> tuple[Gradient, ...]:
        return _OF_NOTHING

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Reduce:
        """What the result keeps is split as that, what is summed as the rest of the input."""
        kept, summed = (self.cols, self.rows) if self.axis == 0 else (self.rows, self.cols)
        elements, kept = inputs[0].share(kept * summed), outputs[0].share(kept)
        summed = elements // kept
        return Reduce(self.dtype, *((summed, kept) if self.axis == 0 else (kept, summed)), self.axis)


@dataclass(frozen=True, slots=True)
class Copy(Op):
    """Copy of ``size`` bytes within the device ("device") or over PCIe ("host_to_device", "device_to_host")."""

    size: int
    kind: str = "device"

    family: ClassVar[str] = "copy"
    columns: ClassVar[tuple[str, ...]] = ("size",)

    def flops(self) -> float:
        return 0.0

    def bytes_read(self) -> float:
        return float(self.size)

    def bytes_written(self) -> float:
        return float(self.size)


#: Kernels of the gradient g of x (n,): tanh(0.79788456 x (1 + 0.044715 x x)) in six, then
#: 0.5 x ((1 - t t) (0.79788456 + 0.1070322243 x x)) + 0.5 (1 + t), times g; t t reads one tensor. Source: transformers
#: `models/bloom/modeling_bloom.py`, bloom_gelu_back. "fused": the sum of two terms, which autograd's sums are not.
_GELU = (
    "mul_scalar", "mul_scalar", "mul", "add_scalar", "mul", "tanh",
    "mul_scalar", "mul_scalar", "add_scalar", "mul_scalar", "mul", "add_scalar", "mul", "mul", "add_scalar",
    "mul_scalar", "fused", "mul",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HandGelu(Elementwise):
    """The product that ends Bloom's GELU of its first input, whose whole gradient is made here: the class writes its
    backward pass by hand, kernel by kernel, in place of autograd's."""

    def backward(self) -> tuple[Op, ...]:
        return tuple(Elementwise(self.dtype, fn, self.elements, 2 if fn == "fused" else -1) for fn in _GELU)

    def gradients(self) -> tuple[Gradient, ...]:
        step = Gradient(inputs=(0,), incoming=False)
        return (step, *(step._replace(before=True),) * (len(_GELU) - 2), Gradient((0,), (0,), before=True))
