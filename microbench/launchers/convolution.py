"""Convolutions of one to three dimensions: plain, grouped, depthwise, transposed, channels last; all three passes."""

from __future__ import annotations

import torch

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import IllegalCase, Prepared, relative_error
from predictor.ops import Convolution

#: By dimensions of the tensor, by definition of PyTorch's memory formats.
_MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def _spatial(op: Convolution) -> int:
    """Dimensions that the case has: the first ones are of size 1 where it has fewer than three."""
    return 3 if op.in_d * op.kernel_d > 1 else 2 if op.in_h * op.kernel_h > 1 else 1


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Convolution)
    n = _spatial(op)
    sizes = [(op.in_d, op.out_d, op.kernel_d), (op.in_h, op.out_h, op.kernel_h), (op.in_w, op.out_w, op.kernel_w)][-n:]
    padding = [_padding(op, *size) for size in sizes]
    into, out = op.in_channels, op.out_channels
    weights = (into, out // op.groups) if op.transposed else (out, into // op.groups)
    taps = [k for _, _, k in sizes]
    x = device.randn(op.batch, into, *(i for i, _, _ in sizes), dtype=op.dtype)
    w = device.randn(*weights, *taps, dtype=op.dtype, scale=(into // op.groups * op.taps) ** -0.5)
    if op.channels_last:
        if x.dim() not in _MEMORY_FORMATS:
            raise IllegalCase("channels last are of two and three dimensions")
        x, w = (t.to(memory_format=_MEMORY_FORMATS[x.dim()]) for t in (x, w))
    bias = device.randn(out, dtype=op.dtype) if op.bias else None
    stride, dilation, none = [op.stride] * n, [op.dilation] * n, [0] * n

    def forward(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.convolution(x, w, bias, stride, padding, dilation, op.transposed, none, op.groups)

    if tuple(forward(x, w, bias).shape[2:]) != tuple(o for _, o, _ in sizes):
        raise IllegalCase("no padding gives these sizes")
    if op.phase == "forward":

        def check() -> float:
            exact = None if bias is None else bias.double()
            return relative_error(forward(x, w, bias)[:1], forward(x[:1].double(), w.double(), exact))

        return Prepared(lambda: forward(x, w, bias), check)
    gradient = torch.randn_like(forward(x, w, bias))
    mask = [op.phase == "dgrad", op.phase == "wgrad", False]

    def backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        call = torch.ops.aten.convolution_backward
        gradients = call(g, x, w, None, stride, padding, dilation, op.transposed, none, op.groups, mask)
        result: torch.Tensor = gradients[0 if mask[0] else 1]
        return result

    def check_backward() -> float | None:
        if op.flops() > _CHECKED_FLOP:
            return None
        return relative_error(backward(gradient, x, w), backward(gradient.double(), x.double(), w.double()))

    return Prepared(lambda: backward(gradient, x, w), check_backward)


#: Largest gradient that is held against float64: a processor's second. Chosen by hand, not from data.
_CHECKED_FLOP = 4e9


def _padding(op: Convolution, into: int, out: int, taps: int) -> int:
    """The padding of a dimension that gives its size. Raises IllegalCase where none does."""
    reach = op.dilation * (taps - 1) + 1
    twice = (into - 1) * op.stride + reach - out if op.transposed else (out - 1) * op.stride + reach - into
    if not op.transposed and twice < 0:
        twice = 0  # the stride leaves pixels over
    if twice < 0:
        raise IllegalCase("no padding gives these sizes")
    return -(-twice // 2)
