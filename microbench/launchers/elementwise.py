"""Element-wise functions over ``elements`` outputs, with an out= tensor nowhere: as eager PyTorch runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional

from microbench.case import Case
from microbench.devices.base import TORCH_DTYPES, BenchDevice
from microbench.launchers.base import IllegalCase, Prepared, compiled, relative_error
from predictor.ops import Elementwise

_CHECKED = 65536  # elements held against the reference: chosen by hand, not from data
Function = Callable[..., torch.Tensor]

#: fn -> the call on its full-size inputs. Inputs are positive where the function asks for it (`_POSITIVE`). Scalars
#: were chosen by hand, not from data: no time depends on them.
_CALLS: dict[str, Function] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "max": torch.maximum, "pow": torch.pow,
    "add_scalar": lambda x: x + 1.5, "mul_scalar": lambda x: x * 1.5, "div_scalar": lambda x: x / 1.5,
    "pow_scalar": lambda x: x**3, "max_scalar": lambda x: x.clamp_min(0.5),
    "relu": torch.relu, "tanh": torch.tanh, "gelu": functional.gelu, "silu": functional.silu,
    "sigmoid": torch.sigmoid, "exp": torch.exp, "neg": torch.neg, "rsqrt": torch.rsqrt, "copy": torch.clone,
    "relu_backward": lambda g, x: torch.ops.aten.threshold_backward(g, x, 0),
    "tanh_backward": torch.ops.aten.tanh_backward, "sigmoid_backward": torch.ops.aten.sigmoid_backward,
    "gelu_backward": torch.ops.aten.gelu_backward, "silu_backward": torch.ops.aten.silu_backward,
}  # fmt: skip
_TWO = frozenset(
    ("add", "sub", "mul", "div", "max", "pow")
    + ("relu_backward", "tanh_backward", "sigmoid_backward", "gelu_backward", "silu_backward")
)
_POSITIVE = frozenset(("pow", "rsqrt", "div", "pow_scalar"))


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Elementwise)
    special = {"cast": _cast, "where": _where, "masked_fill": _masked_fill, "add_": _in_place, "fused": _fused}
    if op.fn in special:
        return special[op.fn](op, device)
    call = _CALLS.get(op.fn)
    if call is None:
        raise IllegalCase(f"no launch for the function {op.fn!r}")
    if op.inputs not in (-1, 2 if op.fn in _TWO else 1) or op.extra_bytes:
        raise IllegalCase(f"{op.fn} with other inputs than its own has no launch")
    inputs = [_values(op, device) for _ in range(2 if op.fn in _TWO else 1)]
    return Prepared(lambda: call(*inputs), lambda: _check(call, inputs))


def _values(op: Elementwise, device: BenchDevice) -> torch.Tensor:
    if op.fn in _POSITIVE:
        return device.uniform(op.elements, low=0.5, high=2.0, dtype=op.dtype)
    return device.randn(op.elements, dtype=op.dtype)


def _check(call: Function, inputs: list[torch.Tensor], *rest: Any) -> float:
    """The first elements against the same function in float64."""
    want = call(*(x[:_CHECKED].double() if x.is_floating_point() else x[:_CHECKED] for x in inputs), *rest)
    return relative_error(call(*inputs, *rest)[:_CHECKED], want)


def _cast(op: Elementwise, device: BenchDevice) -> Prepared:
    source = op.in_dtype or op.dtype
    x, kind = device.randn(op.elements, dtype=source), TORCH_DTYPES[op.dtype]
    if x.dtype == kind:
        raise IllegalCase("a cast to the same dtype launches nothing")
    return Prepared(lambda: x.to(kind), lambda: relative_error(x.to(kind)[:_CHECKED], x[:_CHECKED]))


def _where(op: Elementwise, device: BenchDevice) -> Prepared:
    mask = device.randn(op.elements, dtype="bool")
    x, y = device.randn(op.elements, dtype=op.dtype), device.randn(op.elements, dtype=op.dtype)
    return Prepared(lambda: torch.where(mask, x, y), lambda: _check(torch.where, [mask, x, y]))


def _masked_fill(op: Elementwise, device: BenchDevice) -> Prepared:
    x, mask = device.randn(op.elements, dtype=op.dtype), device.randn(op.elements, dtype="bool")

    def call(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(mask, -1.0)

    return Prepared(lambda: call(x, mask), lambda: _check(call, [x, mask]))


def _in_place(op: Elementwise, device: BenchDevice) -> Prepared:
    """A sum that stays where it is; the other operand is tiny, so that thousands of launches stay finite."""
    x, y = device.randn(op.elements, dtype=op.dtype), device.randn(op.elements, dtype=op.dtype, scale=1e-6)

    def check() -> float:
        want = x[:_CHECKED].double() + y[:_CHECKED].double()
        return relative_error(x.add_(y)[:_CHECKED], want)

    return Prepared(lambda: x.add_(y), check)


def _fused(op: Elementwise, device: BenchDevice) -> Prepared:
    """A chain of ``inputs`` operands in one kernel of torch.compile: x0 * x1 + x2 ..., then tanh."""
    if device.kind != "cuda":
        raise IllegalCase("fused chains are compiled for a GPU only")
    count = max(1, op.inputs)
    inputs = [device.randn(op.elements, dtype=op.dtype) for _ in range(count)]

    call = compiled(chain, (op.elements, count))

    def check() -> float:
        return relative_error(call(*inputs)[:_CHECKED], chain(*(x[:_CHECKED].double() for x in inputs)))

    return Prepared(lambda: call(*inputs), check, kernel_source="compile")


def chain(*values: torch.Tensor) -> torch.Tensor:
    """A chain over its operands, as an activation with residuals would be: all of it fuses into one kernel."""
    out = values[0] * 1.5
    for value in values[1:]:
        out = out * 0.5 + value
    return torch.tanh(out)
