"""Copies within the device, and between pinned host memory and the device."""

from __future__ import annotations

import torch

from microbench.case import Case
from microbench.devices.base import BenchDevice
from microbench.launchers.base import IllegalCase, Prepared, relative_error
from predictor.ops import Copy


def prepare(case: Case, device: BenchDevice) -> Prepared:
    op = case.op
    assert isinstance(op, Copy)
    if op.kind != "device" and device.kind != "cuda":
        raise IllegalCase("a processor has no host apart from itself")
    source = device.randint(0, 255, (op.size,), torch.uint8)
    if op.kind == "host_to_device":
        source = source.cpu().pin_memory()
    target = torch.zeros(
        op.size, dtype=torch.uint8, device="cpu" if op.kind == "device_to_host" else device.torch_device
    )
    if op.kind == "device_to_host":
        target = target.pin_memory()

    def launch() -> torch.Tensor:
        return target.copy_(source, non_blocking=True)

    def check() -> float:
        launch()
        device.synchronize()
        return relative_error(target[:65536], source[:65536])

    return Prepared(launch, check, kernel_source=op.kind)
