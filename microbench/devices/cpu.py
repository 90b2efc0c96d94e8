"""A processor as the device: the same path as a GPU's, with a clock in place of CUDA events."""

from __future__ import annotations

import math
import os
import time
from typing import Any

import torch

from microbench.devices.base import BenchDevice, DeviceState, Launch
from microbench.environment import cpu_clock_hz, cpu_name, last_level_cache_bytes, memory_bytes, slug

#: Random values, repeated: a prime, so that rows of a matrix are not repeated in step with its columns. Chosen by hand,
#: not from data.
_BLOCK = 1_000_003


class CpuDevice(BenchDevice):
    """The processor with ``threads`` threads of PyTorch (0: as many as PyTorch takes by itself).

    A call returns when its work is done, so host time is the time of the call: protocol "eager_events", with
    perf_counter_ns around the batch.
    """

    kind = "cpu"

    def __init__(self, threads: int = 0) -> None:
        super().__init__()
        if threads:
            torch.set_num_threads(threads)
        self.threads = torch.get_num_threads()
        self.id = f"cpu-{slug(cpu_name())}-{self.threads}t"
        self.cache_bytes = last_level_cache_bytes()
        self._flush_buffer: torch.Tensor | None = None

    def normal(self, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
        """A million values drawn, and repeated to fill the shape: a processor draws 50 million a second."""
        count = math.prod(shape)
        block = torch.randn(min(count, _BLOCK), generator=self._generator).to(kind)
        if count <= _BLOCK:
            return block.view(shape)
        out = torch.empty(count, dtype=kind)
        whole = count // _BLOCK * _BLOCK
        out[:whole].view(-1, _BLOCK).copy_(block)
        out[whole:].copy_(block[: count - whole])
        return out.view(shape)

    def synchronize(self) -> None:
        """Nothing is ever outstanding."""

    def time_batch(self, launch: Launch, launches: int) -> float:
        begin = time.perf_counter_ns()
        for _ in range(launches):
            launch()
        return (time.perf_counter_ns() - begin) / launches / 1e9

    def time_cold(self, launch: Launch, repeats: int) -> list[float]:
        if self._flush_buffer is None:
            self._flush_buffer = torch.zeros(2 * self.cache_bytes, dtype=torch.uint8)
        times = []
        for _ in range(repeats):
            self._flush_buffer.add_(1)
            begin = time.perf_counter_ns()
            launch()
            times.append((time.perf_counter_ns() - begin) / 1e9)
        return times

    def state(self) -> DeviceState:
        return DeviceState(sm_clock_hz=cpu_clock_hz())

    def environment(self) -> dict[str, Any]:
        return {"torch_version": torch.__version__}

    def facts(self) -> dict[str, Any]:
        return {
            "kind": "cpu", "id": self.id, "name": cpu_name(), "memory_bytes": memory_bytes(),
            "cache_bytes": self.cache_bytes, "units": self.threads, "capability": None, "gpus": 0,
            "stack": f"torch-{torch.__version__.split('+')[0]}_cpu", "torch": torch.__version__,
            "pid": os.getpid(), "protocols": list(self.protocols), "triton": False,
        }  # fmt: skip
