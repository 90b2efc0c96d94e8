"""What is measured on: everything that differs between a GPU and a processor stands behind `BenchDevice`."""

from __future__ import annotations

from microbench.devices.base import BenchDevice, DeviceState

__all__ = ["BenchDevice", "DeviceState", "open_device"]


def open_device(kind: str, threads: int = 0) -> BenchDevice:
    """The device of this worker process: "cpu", or "cuda" for the one GPU that the process sees. Imports torch."""
    if kind == "cpu":
        from microbench.devices.cpu import CpuDevice

        return CpuDevice(threads)
    import torch

    if torch.version.hip:
        from microbench.devices.hip import HipDevice

        return HipDevice()
    from microbench.devices.cuda import CudaDevice

    return CudaDevice()
