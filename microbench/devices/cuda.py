"""An NVIDIA GPU as the device: CUDA events, CUDA graphs, an L2 flush sized from the board, NVML beside it.

`microbench.devices.hip` is the same for AMD's boards."""

from __future__ import annotations

import gc
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from microbench import libraries, management
from microbench.boards import catalogue_id
from microbench.devices.base import BenchDevice, DeviceState, Launch
from predictor.data.schema import CUDA_GRAPH, SUSTAINED

#: The GPU spins so long first that the host has queued behind it what is timed; longer where the host took longer for
#: the launch before, up to the second. The clocks of a second are those of a fast board. Chosen by hand, not from data.
_HEAD_START_S, _MOST_S, _CLOCKS_A_SECOND = 1e-4, 2e-2, 2e9
#: A pause after a throttled round: the power that a cap acts on is an average over some tens of milliseconds. Chosen by
#: hand, not from data.
_REST_S = 0.03
#: Errors of cuBLAS that refuse a call and leave the context as it was.
_HARMLESS = ("CUBLAS_STATUS_NOT_SUPPORTED", "CUBLAS_STATUS_INVALID_VALUE", "CUBLAS_STATUS_ALLOC_FAILED")


class CudaDevice(BenchDevice):
    """The one GPU that this process sees (CUDA_VISIBLE_DEVICES is set by the collector).

    All work runs on one side stream, the same in warm-up, timing and capture, so that autograd's kernels are on it too.
    """

    kind = "cuda"
    protocols = (CUDA_GRAPH, "eager_events", SUSTAINED)
    profiled_apart = True
    #: Of the memory, what may stay with PyTorch between cases: chosen by hand, not from data.
    kept_share = 0.5
    clocks_a_second = _CLOCKS_A_SECOND  # of the spin
    _host_s = 0.0  # that the last queued launch took on the host

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no CUDA device: expected a GPU and a CUDA build of torch")
        super().__init__()
        torch.cuda.init()
        self.properties = torch.cuda.get_device_properties(0)
        self.id = catalogue_id(self.properties.name)
        self.cache_bytes = int(getattr(self.properties, "L2_cache_size", 0)) or 50 * 2**20
        self.board = management.open_board(**self._address())
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self._flush_buffer: torch.Tensor | None = None
        self._sleep = getattr(torch.cuda, "_sleep", None)

    def _address(self) -> dict[str, Any]:
        """How the management library finds the same board, whatever CUDA_VISIBLE_DEVICES renumbered."""
        uuid = getattr(self.properties, "uuid", None)
        address: dict[str, Any] = {"uuid": f"GPU-{uuid}" if uuid is not None else ""}
        bus = getattr(self.properties, "pci_bus_id", None)
        if isinstance(bus, int):
            domain, slot = getattr(self.properties, "pci_domain_id", 0), getattr(self.properties, "pci_device_id", 0)
            address["pci_bus_id"] = f"{domain:08x}:{bus:02x}:{slot:02x}.0"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        address["index"] = int(visible) if visible.isdigit() else None
        return address

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def time_batch(self, launch: Launch, launches: int) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._begin(begin)
        for _ in range(launches):
            launch()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / launches

    def _head_start(self) -> None:
        """Keeps the GPU busy while the host queues the next launch."""
        if self._sleep is not None:
            self._sleep(int(min(max(_HEAD_START_S, 2 * self.head_start_s()), _MOST_S) * self.clocks_a_second))

    def head_start_s(self) -> float:
        """What the host needs to queue a launch, by the last; ranks agree on one."""
        return self._host_s

    def _begin(self, begin: torch.cuda.Event) -> None:
        """Where a time begins: on a rank behind what all ranks reach together, so that none waits for another in it."""
        if self.line_up is not None:
            self.line_up()
        begin.record()

    def _queued(self, launch: Launch) -> None:
        begin = time.perf_counter()
        launch()
        self._host_s = time.perf_counter() - begin

    def time_replays(self, replay: Launch, replays: int) -> float:
        """The graphs are queued while the GPU spins: the time to launch the first one is not theirs."""
        return self._replayed(replay, replays)()

    def queue_replays(self, replay: Launch, replays: int) -> Callable[[], float]:
        return self._replayed(replay, replays)

    def _replayed(self, replay: Launch, replays: int) -> Callable[[], float]:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._head_start()
        self._begin(begin)
        for _ in range(replays):
            self._queued(replay)
        end.record()

        def seconds() -> float:
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3 / replays

        return seconds

    def time_cold(self, launch: Launch, repeats: int) -> list[float]:
        """One pair of events a call. The launch is queued while the GPU still flushes, so its host time is hidden."""
        if self._flush_buffer is None:
            self._flush_buffer = torch.zeros(2 * self.cache_bytes // 4, dtype=torch.int32, device=self.torch_device)
        pairs = []
        for _ in range(repeats):
            self._head_start()
            self._flush_buffer.add_(1)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._begin(begin)
            self._queued(launch)
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
            cause: BaseException = error
            while cause.__context__ is not None:  # the end of the capture fails, too, and hides why
                cause = cause.__context__
            first = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
            raise RuntimeError(f"CUDA graph capture failed: {first}") from error
        replay: Launch = graph.replay
        return replay

    def state(self) -> DeviceState:
        if self.board is None:
            return DeviceState()
        board = self.board
        watts, source = board.power_w()
        return DeviceState(
            board.clock_hz(), board.clock_hz(memory=True), board.temperature_c(), watts, source, board.throttled()
        )

    def now(self) -> float:
        return time.perf_counter()

    def energy_j(self) -> float | None:
        return None if self.board is None else self.board.energy_j()

    def rest(self, state: DeviceState) -> DeviceState:
        time.sleep(_REST_S)
        return self.state()

    def release(self) -> None:
        """Gives cached memory back to the driver once ``kept_share`` of the board is taken: always would be slow."""
        if torch.cuda.memory_reserved() > self.kept_share * self.properties.total_memory:
            gc.collect()
            torch.cuda.empty_cache()

    def environment(self) -> dict[str, Any]:
        driver = self.board.driver() if self.board is not None else None
        facts = {
            "board_uuid": self.board.uuid() if self.board is not None else None,
            "torch_version": torch.__version__, "driver": driver, **self.software(),
        }  # fmt: skip
        return {name: value for name, value in facts.items() if value is not None}

    def software(self) -> dict[str, Any]:
        """Versions of the toolkit and of its libraries, by the columns of rows."""
        cudnn = torch.backends.cudnn.version()
        return {"cuda_version": torch.version.cuda, "cudnn_version": None if cudnn is None else str(cudnn)}

    def facts(self) -> dict[str, Any]:
        board = self.properties
        limit = self.board.power_limit_w() if self.board is not None else None
        return {
            "kind": "cuda", "id": self.id, "name": board.name, "memory_bytes": int(board.total_memory),
            "cache_bytes": self.cache_bytes, "units": board.multi_processor_count,
            "capability": [board.major, board.minor], "gpus": torch.cuda.device_count(),
            "stack": f"torch-{torch.__version__.split('+')[0]}_cuda-{torch.version.cuda}", "torch": torch.__version__,
            "pid": os.getpid(), "protocols": list(self.protocols), "power_limit_w": limit,
            "clock_hz": None if self.board is None else self.board.max_clock_hz(),
            "bandwidth": None if self.board is None else self.board.bandwidth(),
            "triton": has_triton(), "libraries": libraries.installed(),
        }  # fmt: skip

    def poisoned_by(self, error: BaseException) -> bool:
        """A lost context fails whatever is asked of it next, in whose words ever (Triton, cuDNN, NCCL): so ask."""
        text = str(error)
        if "capture failed" in text:
            return True
        if super().poisoned_by(error) and not any(name in text for name in _HARMLESS):
            return True
        try:
            torch.ones(2, device=self.torch_device).add_(1)
            torch.cuda.synchronize()
        except RuntimeError as after:
            return "out of memory" not in str(after)
        return False


def has_triton() -> bool:
    """Whether Triton is installed, without importing it."""
    return importlib.util.find_spec("triton") is not None
