"""Streams, events and graphs, strict about their order: what CUDA refuses is refused here, in its words."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from simulated_cuda.board import Board, Kernel, Lost

_IN_CAPTURE = "operation not permitted when stream is capturing"


class Runtime:
    """What a process knows of its device: the current stream, and what is being captured."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.default = Stream._of(self)
        self.stream = self.default
        self.graph: Any = None  # being captured
        self.spoiled: BaseException | None = None
        self.compiled: list[str] = []

    @property
    def capturing(self) -> bool:
        return self.graph is not None

    def refuse_in_capture(self, what: str) -> None:
        """Raises where ``what`` waits for the device amid a capture, and spoils the capture."""
        if self.capturing:
            self.spoiled = Lost(f"CUDA error: {_IN_CAPTURE} [{what}]")
            raise self.spoiled

    def launch(self, kernel: Kernel) -> None:
        if self.graph is None:
            self.board.launch(kernel, self.stream.number)
            return
        if self.stream is not self.graph.stream:
            self.spoiled = Lost(
                "CUDA error: operation would make the legacy stream depend on a capturing blocking stream"
            )
            raise self.spoiled
        self.board.host_s += self.board.launch_s
        self.graph.kernels.append(kernel)

    def synchronize(self, device: object = None) -> None:
        self.refuse_in_capture("synchronize")
        self.board.synchronize()


class Stream:
    """A queue of kernels."""

    runtime: Runtime
    count = 0
    device_index = 0
    device = "cuda:0"

    def __new__(cls, device: object = None, priority: int = 0) -> Stream:
        return cls._of(cls.runtime)

    def __init__(self, device: object = None, priority: int = 0) -> None:
        """Everything is made in `__new__`, so that the runtime makes its default stream by the same way."""

    @classmethod
    def _of(cls, runtime: Runtime) -> Stream:
        self = object.__new__(cls)
        self.number = Stream.count
        self.owner = runtime
        Stream.count += 1
        return self

    number: int
    owner: Runtime

    def is_capturing(self) -> bool:
        return self.owner.capturing

    def synchronize(self) -> None:
        self.owner.refuse_in_capture("stream.synchronize")
        self.owner.board.synchronize(self.number)

    def wait_stream(self, other: Stream) -> None:
        tails = self.owner.board.tails
        tails[self.number] = max(tails.get(self.number, 0.0), tails.get(other.number, 0.0))


class Event:
    """A point of a stream's time."""

    runtime: Runtime

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        self.timing = enable_timing
        self.at: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        board, runtime = self.runtime.board, self.runtime
        runtime.refuse_in_capture("an event with timing")
        board.check()
        board.host_s += 1e-6
        stream = stream or runtime.stream
        if stream is runtime.default:
            raise AssertionError("timed on the default stream, which waits for all others")
        self.at = max(board.tails.get(stream.number, 0.0), board.host_s)
        board.tails[stream.number] = self.at

    def query(self) -> bool:
        self.runtime.refuse_in_capture("event.query")
        return self.at is None or self.at <= self.runtime.board.host_s

    def synchronize(self) -> None:
        self.runtime.refuse_in_capture("event.synchronize")
        board = self.runtime.board
        board.check()
        if self.at is not None:
            board.host_s = max(board.host_s, self.at) + 1e-6

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds, as CUDA's."""
        if not (self.timing and other.timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.at is None or other.at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        self.runtime.board.check()
        if max(self.at, other.at) > self.runtime.board.host_s:
            raise ValueError("Both events must be completed before calculating elapsed time.")
        return (other.at - self.at) * 1e3


class CUDAGraph:
    """Kernels that are launched together."""

    runtime: Runtime

    def __init__(self, keep_graph: bool = False) -> None:
        self.kernels: list[Kernel] = []
        self.stream: Stream | None = None
        self.ready = False
        self._seen = False
        self._steady: tuple[float, float] | None = None  # seconds and watts of a warm replay

    def capture_begin(
        self, pool: object = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        runtime = self.runtime
        if runtime.stream is runtime.default:
            raise Lost("CUDA graphs must be captured on a non-default stream.")
        if runtime.capturing:
            raise Lost("CUDA error: operation not permitted when stream is capturing [a capture in a capture]")
        runtime.board.check()
        runtime.board.captures += 1
        self.stream, runtime.graph, runtime.spoiled = runtime.stream, self, None
        if runtime.board.captures in runtime.board.capture_faults:
            runtime.spoiled = Lost("CUDA error: out of resources for a graph node")

    def capture_end(self) -> None:
        runtime = self.runtime
        runtime.graph = None
        if runtime.spoiled is not None:
            raise Lost("CUDA error: operation failed due to a previous error during capture")
        if not self.kernels:
            raise Lost("the captured graph is empty: nothing was launched on the capturing stream")
        self.ready = True

    def replay(self) -> None:
        runtime = self.runtime
        runtime.refuse_in_capture("replay")
        if not self.ready:
            raise Lost("Called CUDAGraph::replay without a preceding successful capture.")
        board = runtime.board
        board.check()
        board.host_s += 6e-6
        board.replays += 1
        number = runtime.stream.number
        begin = max(board.tails.get(number, 0.0), board.host_s)
        steady = self._steady if not board.capped and board.trace is None and board.clock_share == 1.0 else None
        if steady is None:
            self._run(board, number, begin)
            return
        span, watts = steady
        board.idle(begin)
        board.power.pass_time(begin + span, watts)
        board.clock_share = board.power.governed(1.0, span)
        board.tails[number] = begin + span

    def _run(self, board: Board, number: int, begin: float) -> None:
        """Kernel by kernel; where all of them find what they touch in place, later replays are as long as this one."""
        free, energy = board.clock_share == 1.0, board.power.energy_j
        board.idle(begin)
        for kernel in self.kernels:
            board.run(kernel, number)
        span = board.tails[number] - begin
        if self._seen and free and board.clock_share == 1.0:
            self._steady = (span, (board.power.energy_j - energy) / span)
        self._seen = True


class graph:
    """`torch.cuda.graph`: the capture of a block on a stream of its own."""

    runtime: Runtime
    default_stream: Stream | None = None

    def __init__(
        self, cuda_graph: CUDAGraph, pool: object = None, stream: Stream | None = None,
        capture_error_mode: str = "global", **more: object,
    ) -> None:  # fmt: skip
        self.cuda_graph, self.stream = cuda_graph, stream or Stream()
        self.before: Stream | None = None

    def __enter__(self) -> None:
        runtime = self.runtime
        runtime.synchronize()
        self.before, runtime.stream = runtime.stream, self.stream
        self.cuda_graph.capture_begin()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        runtime = self.runtime
        if error is not None and runtime.spoiled is None:
            runtime.spoiled = error
        try:
            self.cuda_graph.capture_end()
        finally:
            assert self.before is not None
            runtime.stream = self.before
