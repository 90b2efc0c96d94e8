"""One step of torch.optim over parameters that are cut into tensors as a model has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import Prepared, relative_error
from predictor.ops import OptimizerStep

#: Elements of one parameter tensor: a 1024 x 1024 weight. What is left over is one more tensor. Chosen by hand, not
#: from data.
_TENSOR = 2**20


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, OptimizerStep)
    whole, rest = divmod(op.parameters, _TENSOR)
    sizes = [_TENSOR] * whole + ([rest] if rest else [])
    parameters = [torch.nn.Parameter(device.randn(size)) for size in sizes]
    for parameter in parameters:
        parameter.grad = device.randn(parameter.numel())
    optimizer = _make(op.kind, parameters, capturable=case.protocol == "cuda_graph")
    optimizer.step()  # makes the state
    step = _mixed(optimizer, parameters) if op.mixed else optimizer.step

    def check() -> float | None:
        if op.kind == "sgd":
            before = parameters[0].detach().double().clone()
            grad = parameters[0].grad
            assert grad is not None
            optimizer.step()
            return relative_error(parameters[0], before - 1e-3 * grad.double())
        state = optimizer.state[parameters[0]]
        expected = _adam(parameters[0], state)
        optimizer.step()
        return relative_error(parameters[0], expected)

    return Prepared(step, check, kernel_source={"adam": "foreach", "adam_fused": "fused"}.get(op.kind, "sgd"))


def _mixed(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> Callable[[], None]:
    """A step over fp32 state with 16-bit gradients on their way in and 16-bit weights on their way out."""
    given = [cast(torch.Tensor, p.grad).to(torch.bfloat16) for p in parameters]
    grads = [cast(torch.Tensor, p.grad) for p in parameters]
    weights = [p.detach().to(torch.bfloat16) for p in parameters]
    masters = [p.detach() for p in parameters]

    def step() -> None:
        torch._foreach_copy_(grads, given)
        optimizer.step()
        torch._foreach_copy_(weights, masters)

    return step


def _make(kind: str, parameters: list[torch.nn.Parameter], capturable: bool) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3, foreach=True)
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=1e-3, foreach=True, capturable=capturable)
    return torch.optim.Adam(parameters, lr=1e-3, fused=True, capturable=capturable)


def _adam(parameter: torch.nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
    """The parameter after the next step (Kingma and Ba, algorithm 1), in float64."""
    step = float(state["step"]) + 1.0
    assert parameter.grad is not None
    grad = parameter.grad.double()
    first = 0.9 * state["exp_avg"].double() + 0.1 * grad
    second = 0.999 * state["exp_avg_sq"].double() + 0.001 * grad**2
    scale = (second / (1.0 - 0.999**step)).sqrt() + 1e-8
    return parameter.detach().double() - 1e-3 * first / (1.0 - 0.9**step) / scale
