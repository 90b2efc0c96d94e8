"""An NVIDIA GPU as the device: CUDA events, CUDA graphs, an L2 flush sized from the board, NVML beside it."""

from __future__ import annotations

import os
from typing import Any

import torch

from microbench import nvml
from microbench.boards import catalogue_id
from microbench.devices.base import Device, Launch, State

#: The GPU waits this many clocks (about 0.1 ms) before a flush, so that the host has queued the launch behind it.
_HEAD_START_CLOCKS = 200_000


class CudaDevice(Device):
    """The one GPU that this process sees (CUDA_VISIBLE_DEVICES is set by the collector).

    All work runs on one side stream, the same in warm-up, timing and capture, so that autograd's kernels are on it too.
    """

    kind = "cuda"
    protocols = ("cuda_graph", "eager_events")

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no CUDA device: expected a GPU and a CUDA build of torch")
        super().__init__()
        torch.cuda.init()
        self.properties = torch.cuda.get_device_properties(0)
        self.id = catalogue_id(self.properties.name)
        self.cache_bytes = int(getattr(self.properties, "L2_cache_size", 0)) or 50 * 2**20
        self.board = nvml.open_board(**self._address())
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self._flush_buffer: torch.Tensor | None = None
        self._sleep = getattr(torch.cuda, "_sleep", None)

    def _address(self) -> dict[str, Any]:
        """How the management library finds the same board, whatever CUDA_VISIBLE_DEVICES renumbered."""
        uuid = getattr(self.properties, "uuid", None)
        found: dict[str, Any] = {"uuid": f"GPU-{uuid}" if uuid is not None else ""}
        bus = getattr(self.properties, "pci_bus_id", None)
        if isinstance(bus, int):
            domain, slot = getattr(self.properties, "pci_domain_id", 0), getattr(self.properties, "pci_device_id", 0)
            found["pci_bus_id"] = f"{domain:08x}:{bus:02x}:{slot:02x}.0"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        found["index"] = int(visible) if visible.isdigit() else None
        return found

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def time_batch(self, launch: Launch, launches: int) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(launches):
            launch()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / launches

    def time_cold(self, launch: Launch, repeats: int) -> list[float]:
        """One pair of events a call. The launch is queued while the GPU still flushes, so its host time is hidden."""
        if self._flush_buffer is None:
            self._flush_buffer = torch.zeros(2 * self.cache_bytes // 4, dtype=torch.int32, device=self.torch_device)
        pairs = []
        for _ in range(repeats):
            if self._sleep is not None:
                self._sleep(_HEAD_START_CLOCKS)
            self._flush_buffer.add_(1)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            launch()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
        return [float(begin.elapsed_time(end)) / 1e3 for begin, end in pairs]

    def capture(self, launch: Launch, launches: int) -> Launch:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                for _ in range(launches):
                    launch()
        except Exception as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise RuntimeError(f"CUDA graph capture failed: {first}") from error
        replay: Launch = graph.replay
        return replay

    def state(self) -> State:
        if self.board is None:
            return State()
        board = self.board
        return State(
            board.clock_hz(), board.clock_hz(memory=True), board.temperature_c(), board.power_w(), board.throttled()
        )

    def release(self) -> None:
        """Gives cached memory back to the driver once half of the board is taken: doing it always would be slow."""
        if torch.cuda.memory_reserved() > self.properties.total_memory // 2:
            torch.cuda.empty_cache()

    def environment(self) -> dict[str, Any]:
        cudnn = torch.backends.cudnn.version()
        driver = self.board.driver() if self.board is not None else None
        found = {
            "torch_version": torch.__version__, "cuda_version": torch.version.cuda, "driver": driver,
            "cudnn_version": None if cudnn is None else str(cudnn),
        }  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}

    def facts(self) -> dict[str, Any]:
        import importlib.util

        board = self.properties
        limit = self.board.power_limit_w() if self.board is not None else None
        return {
            "kind": "cuda", "id": self.id, "name": board.name, "memory_bytes": int(board.total_memory),
            "cache_bytes": self.cache_bytes, "units": board.multi_processor_count,
            "capability": [board.major, board.minor], "gpus": torch.cuda.device_count(),
            "stack": f"torch-{torch.__version__.split('+')[0]}_cuda-{torch.version.cuda}", "torch": torch.__version__,
            "pid": os.getpid(), "protocols": list(self.protocols), "power_limit_w": limit,
            "triton": importlib.util.find_spec("triton") is not None,
        }  # fmt: skip

    def poisoned_by(self, error: BaseException) -> bool:
        return "capture failed" in str(error) or super().poisoned_by(error)
