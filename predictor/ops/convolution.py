"""Convolutions of one to three dimensions, plain, grouped, depthwise or transposed, and their two gradients.

Shapes: input (batch, in_channels, in_d, in_h, in_w), weight (out_channels, in_channels / groups, kernel_d, kernel_h,
kernel_w) (transposed: (in_channels, out_channels / groups, ...)), result (batch, out_channels, out_d, out_h, out_w).
Missing dimensions have size 1. All three passes are products of the same FLOPs (`Convolution.product`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from predictor.errors import RequestError
from predictor.files.records import dataclass, replace
from predictor.ops.base import FORWARD, Gradient, Op, Piece
from predictor.ops.elementwise import Reduce

#: Phases beside `FORWARD`: the gradient of the input and that of the weight.
DGRAD, WGRAD = "dgrad", "wgrad"
_SPATIAL = 3  # dimensions at most, by definition of the class
_TILE = 4  # results of a tile of the largest Winograd form that libraries have; source: cuDNN's winogradForwardData4x4


@dataclass(frozen=True, slots=True)
class Convolution(Op):
    """One convolution, or one of its gradients (``phase`` "forward", "dgrad" or "wgrad").

    ``stride`` and ``dilation`` are the largest of the dimensions'. ``channels_last``: channels of a pixel lie side by
    side in memory (NHWC), else pixels of a channel do (NCHW). Padding shows in the sizes alone.
    """

    batch: int
    in_channels: int
    out_channels: int
    in_d: int
    in_h: int
    in_w: int
    out_d: int
    out_h: int
    out_w: int
    kernel_d: int = 1
    kernel_h: int = 1
    kernel_w: int = 1
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    bias: bool = False
    transposed: bool = False
    channels_last: bool = False
    phase: str = FORWARD

    family: ClassVar[str] = "convolution"
    columns: ClassVar[tuple[str, ...]] = ("batch", "in_channels", "out_channels", "pixels", "taps", "stride", "groups")

    @classmethod
    def of(
        cls, dtype: str, shape: Sequence[int], weight: Sequence[int], stride: Sequence[int] = (1,),
        padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,), transposed: bool = False,
        output_padding: Sequence[int] = (0,), groups: int = 1, bias: bool = False, channels_last: bool = False,
        phase: str = FORWARD,
    ) -> Convolution:  # fmt: skip
        """From the arguments of aten's ``convolution``: ``shape`` (batch, channels, *spatial) of the input, that of the
        ``weight`` as PyTorch stores it. Lists of one entry hold for all dimensions. RequestError for what fits not."""
        dims = len(shape) - 2
        wide = [list(v) * dims if len(v) == 1 else list(v) for v in (stride, padding, dilation, output_padding)]
        if not 1 <= dims <= _SPATIAL or len(weight) != dims + 2 or any(len(v) != dims for v in wide):
            raise RequestError(
                f"convolution of {tuple(shape)} with {tuple(weight)}: expected 1 to 3 dimensions of both"
            )
        steps, pads, holes, extra = wide
        reach = [hole * (k - 1) + 1 for hole, k in zip(holes, weight[2:], strict=True)]
        if transposed:
            out = [
                (n - 1) * s - 2 * p + r + e for n, s, p, r, e in zip(shape[2:], steps, pads, reach, extra, strict=True)
            ]
            channels, outs = weight[0], weight[1] * groups
        else:
            out = [(n + 2 * p - r) // s + 1 for n, s, p, r in zip(shape[2:], steps, pads, reach, strict=True)]
            channels, outs = weight[1] * groups, weight[0]
        if channels != shape[1] or min(out) < 1:
            raise RequestError(f"convolution of {tuple(shape)} with {tuple(weight)}: the sizes do not go together")
        in_d, in_h, in_w, out_d, out_h, out_w, kernel_d, kernel_h, kernel_w = (
            size for sizes in (shape[2:], out, weight[2:]) for size in ([1] * (_SPATIAL - dims) + list(sizes))
        )
        return cls(
            dtype, shape[0], channels, outs, in_d, in_h, in_w, out_d, out_h, out_w, kernel_d, kernel_h, kernel_w,
            max(steps), max(holes), groups, bias, transposed, channels_last, phase,
        )  # fmt: skip

    @property
    def label(self) -> str:
        kind = "depthwise convolution" if self.is_depthwise else "convolution"
        return kind if self.phase == FORWARD else f"{kind} {self.phase}"

    @property
    def is_depthwise(self) -> bool:
        """Every input channel by itself: no product for tensor cores."""
        return self.groups > 1 and self.groups == (self.out_channels if self.transposed else self.in_channels)

    @property
    def unit(self) -> str:  # type: ignore[override]
        return "vector" if self.is_depthwise else "matrix"

    @property
    def taps(self) -> int:
        """Positions of the window."""
        return self.kernel_d * self.kernel_h * self.kernel_w

    @property
    def in_pixels(self) -> int:
        """Positions of the input of one sample."""
        return self.in_d * self.in_h * self.in_w

    @property
    def pixels(self) -> int:
        """Positions of the result of one sample."""
        return self.out_d * self.out_h * self.out_w

    @property
    def dimensions(self) -> int:
        """Dimensions along which the window or the data has any extent, at least 1."""
        sizes = zip((self.in_d, self.in_h, self.in_w), (self.kernel_d, self.kernel_h, self.kernel_w), strict=True)
        return max(1, sum(n > 1 or k > 1 for n, k in sizes))

    @property
    def product(self) -> tuple[int, int, int, int]:
        """(groups, m, n, k) of the product that an implicit GEMM computes, with the FLOPs of the whole.

        m counts pixels (of the weight's gradient: output channels); k is a mean where a stride lets positions see
        fewer taps.
        """
        into, out = self.in_channels // self.groups, self.out_channels // self.groups
        if self.phase == WGRAD:
            rows, cols = (into, out) if self.transposed else (out, into)
            return (
                self.groups,
                rows,
                cols * self.taps,
                self.batch * (self.in_pixels if self.transposed else self.pixels),
            )
        back = self.phase == DGRAD
        m = self.batch * (self.in_pixels if back else self.pixels)
        n = into if back else out
        return self.groups, m, n, max(1, round(self.flops() / (2.0 * self.groups * m * n)))

    def flops(self) -> float:
        """2 FLOPs for each pixel, output channel, tap and input channel of the group; alike in all three phases.

        A window that reaches over the border counts in full, as torch.utils.flop_counter counts it.
        """
        pixels = self.in_pixels if self.transposed else self.pixels
        return 2.0 * self.batch * pixels * self.taps * self.in_channels * self.out_channels / self.groups

    def least_flops(self) -> float:
        """Of Winograd's F(4, r) along every dimension of a window with stride 1: 4 r results' taps in 3 + r products
        (Lavin and Gray, arXiv:1509.09308, section 4); an FFT's products of a long window do as well."""
        if self.stride > 1 or self.dilation > 1 or self.is_depthwise:
            return self.flops()
        return self.flops() / prod(_TILE * r / (_TILE + r - 1.0) for r in (self.kernel_d, self.kernel_h, self.kernel_w))

    @property
    def input_bytes(self) -> float:
        """Of the input's pixels that a window sees: a stride beyond the window skips some."""
        seen = self.in_pixels
        if not self.transposed:
            dims = ("d", "h", "w")
            seen = prod(
                min(getattr(self, f"in_{d}"), getattr(self, f"out_{d}") * getattr(self, f"kernel_{d}")) for d in dims
            )
        return self.batch * self.in_channels * seen * self.itemsize

    @property
    def result_bytes(self) -> float:
        """Of the whole result."""
        return self.batch * self.out_channels * self.pixels * self.itemsize

    @property
    def weight_bytes(self) -> float:
        """Of the weight, without a bias."""
        return self.in_channels * self.out_channels // self.groups * self.taps * self.itemsize

    def bytes_read(self) -> float:
        if self.phase == WGRAD:
            return self.input_bytes + self.result_bytes
        if self.phase == DGRAD:
            return self.result_bytes + self.weight_bytes
        return self.input_bytes + self.weight_bytes + (self.out_channels * self.itemsize if self.bias else 0.0)

    def bytes_written(self) -> float:
        if self.phase == WGRAD:
            return self.weight_bytes
        return (
            self.batch * self.in_channels * self.in_pixels * self.itemsize if self.phase == DGRAD else self.result_bytes
        )

    def activation_bytes(self) -> float:
        return self.bytes_moved() - self.weight_bytes

    def weights(self) -> int:
        """The weight, and the bias where there is one."""
        of_bias = self.out_channels if self.bias else 0
        return self.in_channels * self.out_channels // self.groups * self.taps + of_bias

    def backward(self) -> tuple[Op, ...]:
        """The input's gradient, the weight's and, with a bias, its sum over pixels."""
        if self.phase != FORWARD:
            return ()
        both = replace(self, phase=DGRAD, bias=False), replace(self, phase=WGRAD, bias=False)
        rows = self.batch * self.pixels
        return (*both, Reduce(self.dtype, rows, self.out_channels)) if self.bias else both

    def gradients(self) -> tuple[Gradient, ...]:
        if self.phase != FORWARD:
            return ()
        return _GRADIENTS if self.bias else _GRADIENTS[:2]

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Convolution:
        """Its samples: channels and pixels are never split here."""
        whole = outputs[0] if self.phase != WGRAD else inputs[0]
        return replace(self, batch=whole.share(self.batch))


_GRADIENTS = (Gradient((0,), (1,)), Gradient((1,), (0,)), Gradient((2,)))
