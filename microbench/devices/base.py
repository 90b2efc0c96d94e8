"""The device layer: timing a batch of launches, flushing the cache, reading clocks. All times are in seconds."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Launch = Callable[[], object]

TORCH_DTYPES: dict[str, torch.dtype] = {
    "fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16,
    "bf16": torch.bfloat16, "int8": torch.int8, "int32": torch.int32, "int64": torch.int64, "bool": torch.bool,
    "fp8": torch.float8_e4m3fn,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeviceState:
    """Clocks and sensors at one moment; None where the device does not say. `throttled` names the active reasons,
    `power_source` what the power is: "instant", or "average" of a second."""

    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_source: str = ""
    throttled: tuple[str, ...] = field(default=())


class BenchDevice(ABC):
    """One device, owned by one worker process.

    `id` is the catalogue's where the board is in it. `facts` go into meta.yaml and decide which cases it can run.
    """

    kind: str = ""
    id: str = ""
    cache_bytes: int = 0
    protocols: tuple[str, ...] = ("eager_events",)
    line_up: Launch | None = None  # of a rank: queues what ends on all ranks at once, before a time begins
    fp8: torch.dtype = torch.float8_e4m3fn  # the form of e4m3 that its matrix units take
    gfx: str = ""  # AMD's instruction set
    profiled_apart: bool = False  # whether a look at kernels' names disturbs every later time of the process

    def __init__(self) -> None:
        self.torch_device = torch.device(self.kind)
        self._generator = torch.Generator(device=self.torch_device).manual_seed(20240229)

    # ------------------------------------------------------------------------------------------------------- data

    def randn(self, *shape: int, dtype: str = "fp32", scale: float = 1.0) -> torch.Tensor:
        """Normally distributed values: never zeros, whose products cost a GPU less power and so more clock."""
        kind = self.fp8 if dtype == "fp8" else TORCH_DTYPES[dtype]
        if kind in (torch.int8, torch.int32, torch.int64):
            return self.randint(-100, 100, shape, kind)
        made = kind if kind.itemsize >= 2 and kind.is_floating_point else torch.float32
        out = self.normal(shape, made)
        if scale != 1.0:
            out.mul_(scale)
        if kind == torch.bool:
            return out > 0
        return out if made is kind else out.to(kind)

    def normal(self, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
        return torch.randn(shape, dtype=kind, device=self.torch_device, generator=self._generator)

    def randint(self, low: int, high: int, shape: tuple[int, ...], kind: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(low, high, shape, dtype=kind, device=self.torch_device, generator=self._generator)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0, dtype: str = "fp32") -> torch.Tensor:
        out = torch.rand(shape, dtype=torch.float32, device=self.torch_device, generator=self._generator)
        return (out * (high - low) + low).to(TORCH_DTYPES[dtype])

    # ----------------------------------------------------------------------------------------------------- timing

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until the device has run everything that was launched."""

    @abstractmethod
    def time_batch(self, launch: Launch, launches: int) -> float:
        """Seconds of one call, from ``launches`` of them in a row; what stands in the cache stays there (warm)."""

    @abstractmethod
    def time_cold(self, launch: Launch, repeats: int) -> list[float]:
        """Seconds of ``repeats`` calls, each after the cache was flushed; the flush is outside of the time."""

    def time_replays(self, replay: Launch, replays: int) -> float:
        """Seconds of one replay of a captured graph, from ``replays`` in a row, without the host's time."""
        return self.time_batch(replay, replays)

    def queue_replays(self, replay: Launch, replays: int) -> Callable[[], float]:
        """`time_replays` in two steps: queued at once, told when what is returned is called."""
        seconds = self.time_replays(replay, replays)
        return lambda: seconds

    def capture(self, launch: Launch, launches: int) -> Launch:
        """A call that replays ``launches`` launches as one graph. Raises RuntimeError where it cannot be captured."""
        raise RuntimeError(f"a {self.kind} device captures no graphs")

    # ------------------------------------------------------------------------------------------------------ state

    def state(self) -> DeviceState:
        return DeviceState()

    def now(self) -> float:
        """Seconds of the host's clock."""
        return time.perf_counter()

    def energy_j(self) -> float | None:
        """Energy that the device has taken so far, None where it does not say."""
        return None

    def rest(self, state: DeviceState) -> DeviceState:
        """Called after a round that saw throttling: lets the device recover; returns its state then."""
        return state

    def release(self) -> None:  # noqa: B027 - a processor has nothing to give back
        """Gives back the memory of the last case."""

    @abstractmethod
    def environment(self) -> dict[str, Any]:
        """What stands in every row (driver, cuda_version, torch_version, cudnn_version) and more for meta.yaml."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """kind, id, name, memory_bytes, cache_bytes, capability, dtypes, gpus: what decides which cases can run."""

    def poisoned_by(self, error: BaseException) -> bool:
        """Whether the device cannot be used any more in this process after `error`."""
        text = str(error)
        return ("CUDA error" in text or "HIP error" in text) and "out of memory" not in text
