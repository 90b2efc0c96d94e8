"""A simulated CUDA device: PyTorch's CUDA interface and NVML over a virtual clock, on a processor.

`install(board)` puts it in the place of `torch.cuda` and of the management library, `Installed.remove` takes it away.
`site/sitecustomize.py` installs it in every process that has SIMULATED_CUDA set. Values are computed by the processor;
times, clocks, power, throttling, caches and faults are the board's (`board.py`). It is strict about what CUDA is strict
about: the order of records, waits and reads of events, what may happen amid a capture, devices of operands, handles and
types of NVML. It cannot show what a real driver does beyond that.
"""

from __future__ import annotations

import json
import os
import types
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional

from simulated_cuda import amd, streams, triton_stub
from simulated_cuda.board import Board, Kernel, Lost
from simulated_cuda.nvml import Library
from simulated_cuda.tensors import Devices, Kernels, on_board

__all__ = ["Board", "Installed", "Kernel", "Library", "Lost", "install", "on_board"]
SITE = Path(__file__).parent / "site"


class Clock:
    """`time` for the modules that time the device: the board's host, in virtual seconds."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def perf_counter(self) -> float:
        return self._board.now()

    def perf_counter_ns(self) -> int:
        return round(self._board.now() * 1e9)

    def sleep(self, seconds: float) -> None:
        self._board.wait(seconds)


class Installed:
    """What was put in place of what; `remove` undoes it."""

    def __init__(self, board: Board, library: Library) -> None:
        self.board, self.library = board, library
        self._before: list[tuple[Any, str, Any]] = []
        self.runtime = streams.Runtime(board)
        self.kernels = Kernels(self.runtime)
        self.devices = Devices(self.kernels)
        self.sdpa: dict[str, bool] = {}

    def put(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, getattr(owner, name, None)))
        setattr(owner, name, value)

    def enter(self) -> None:
        self.kernels.__enter__()
        self.devices.__enter__()

    def remove(self) -> None:
        self.devices.__exit__(None, None, None)
        self.kernels.__exit__(None, None, None)
        for owner, name, value in reversed(self._before):
            setattr(owner, name, value)


def install(board: Board | None = None, library: Library | None = None) -> Installed:
    """Puts the simulated board in the place of `torch.cuda`, NVML, Triton and the profiler of this process."""
    board = board or board_of_environment()
    library = library or Library([board])
    done = Installed(board, library)
    runtime = done.runtime
    for cls in (streams.Stream, streams.Event, streams.CUDAGraph, streams.graph):
        cls.runtime = runtime
    _cuda(done)
    _attention(done)
    _profiler(done)
    _compiler(done)
    triton_stub.install(done)
    from microbench import amd_smi, nvml
    from microbench.devices import cuda

    if board.gfx:
        done.put(nvml, "load_library", lambda: None)
        smi = amd.package([board])
        done.put(amd_smi, "load_library", lambda: smi if smi.amdsmi_init() is None else None)
    else:
        done.put(nvml, "load_library", lambda: library if library.nvmlInit_v2() == 0 else None)
    done.put(cuda, "time", Clock(board))
    done.enter()
    return done


def board_of_environment() -> Board:
    """The board that CUDA_VISIBLE_DEVICES names, with the faults of SIMULATED_CUDA (JSON: fields of `Board`, and
    `dead`: entries at which no context can be made)."""
    said = json.loads(os.environ.get("SIMULATED_CUDA") or "{}")
    entry = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    dead = [str(one) for one in said.pop("dead", [])]
    said.pop("boards", None)
    faults = {int(number): kind for number, kind in said.pop("fault_at", {}).items()}
    board = Board(uuid=uuid_of(entry), fault_at=faults, capture_faults=set(said.pop("capture_faults", ())), **said)
    if entry in dead:
        board.lost = "initialization error"
    return board


def uuid_of(entry: str) -> str:
    return f"GPU-5117ab1e-0000-0000-0000-{int(entry) if entry.isdigit() else 0:012d}"


def boards_of_machine() -> list[Board]:
    """Every board of the machine, as NVML of a process sees them whatever CUDA shows it; its own is the first's."""
    count = int(json.loads(os.environ.get("SIMULATED_CUDA") or "{}").get("boards", 1))
    return [Board(uuid=uuid_of(str(number))) for number in range(count)]


def _cuda(done: Installed) -> None:
    runtime, board = done.runtime, done.board
    properties = types.SimpleNamespace(
        name=board.name, major=board.capability[0], minor=board.capability[1], total_memory=board.memory_bytes,
        multi_processor_count=board.sms, L2_cache_size=board.told_l2_bytes or board.l2_bytes,
        uuid=board.uuid.removeprefix("GPU-"), pci_bus_id=1, pci_device_id=0, pci_domain_id=0,
        **({"gcnArchName": board.gfx} if board.gfx else {}),
    )  # fmt: skip

    def set_stream(stream: streams.Stream) -> None:
        runtime.refuse_in_capture("set_stream") if stream is runtime.default else None
        runtime.stream = stream

    def sleep(cycles: int) -> None:
        assert isinstance(cycles, int), "cycles are an int"
        if runtime.capturing:
            runtime.launch(Kernel("spin_kernel", fixed_s=cycles / (board.spin_hz or board.clock_hz)))
        else:
            board.spin(cycles, runtime.stream.number)

    said = {
        "is_available": lambda: True, "init": board.check, "_lazy_init": board.check, "current_device": lambda: 0,
        "device_count": lambda: len(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")),
        "get_device_properties": lambda device=0: properties, "get_device_name": lambda device=0: board.name,
        "get_device_capability": lambda device=0: board.capability, "set_device": lambda device: None,
        "Stream": streams.Stream, "Event": streams.Event, "CUDAGraph": streams.CUDAGraph, "graph": streams.graph,
        "set_stream": set_stream, "current_stream": lambda device=None: runtime.stream,
        "default_stream": lambda device=None: runtime.default, "synchronize": runtime.synchronize, "_sleep": sleep,
        "memory_reserved": lambda device=None: 0, "memory_allocated": lambda device=None: 0,
        "empty_cache": lambda: runtime.refuse_in_capture("cudaFree"),
        "reset_peak_memory_stats": lambda device=None: None,
        "max_memory_allocated": lambda device=None: 2**30,
        "mem_get_info": lambda device=None: (board.memory_bytes, board.memory_bytes),
        "is_current_stream_capturing": lambda: runtime.capturing, "is_initialized": lambda: True,
    }  # fmt: skip
    for name, value in said.items():
        done.put(torch.cuda, name, value)
    # An optimizer asks these whether a graph is captured; PyTorch's CUDA build would ask a driver that is not there.
    done.put(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    done.put(torch.accelerator, "current_stream", lambda device=None: runtime.stream)
    done.put(torch.version, "cuda", None if board.gfx else "12.8")
    done.put(torch.version, "hip", "7.0.51831-a3e329ad8" if board.gfx else None)
    done.put(torch.backends.cudnn, "version", lambda: 91002)
    real = torch.Generator

    class Generator(real):  # type: ignore[valid-type, misc]
        def __new__(cls, device: object = "cpu") -> Any:
            return real(device="cpu")

    done.put(torch, "Generator", Generator)


def _attention(done: Installed) -> None:
    """The backends of SDPA that the board has; one that cannot take the operands refuses in PyTorch's words."""
    real, chosen = functional.scaled_dot_product_attention, done.sdpa
    chosen.update(dict.fromkeys(("flash", "mem_efficient", "math", "cudnn"), True))
    switches = {name: getattr(torch.backends.cuda, f"enable_{name}_sdp") for name in chosen}
    for name in chosen:
        done.put(torch.backends.cuda, f"enable_{name}_sdp", lambda on, name=name: chosen.__setitem__(name, bool(on)))

    def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
                  is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Any:  # fmt: skip
        backends = [name for name, on in chosen.items() if on]
        if on_board(query):
            half = query.dtype in (torch.float16, torch.bfloat16)
            if key.dtype != query.dtype or value.dtype != query.dtype:
                raise RuntimeError("Expected query, key, and value to have the same dtype")
            can = {
                "flash": half and query.shape[-1] <= 256, "cudnn": half and query.shape[-1] <= 128, "math": True,
                "mem_efficient": not enable_gqa,
            }  # fmt: skip
            if not any(can[name] for name in backends):
                raise RuntimeError("No available kernel. Aborting execution.")
        for name, switch in switches.items():
            switch(name in ("math", "flash"))
        return real(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    attention.__doc__ = real.__doc__
    done.put(functional, "scaled_dot_product_attention", attention)


def _profiler(done: Installed) -> None:
    board, runtime = done.board, done.runtime

    class Profile:
        """Kineto with CUPTI: records of kernels, and a slower board from then on."""

        def __init__(self, activities: Any = None, **more: Any) -> None:
            assert activities == [torch.profiler.ProfilerActivity.CUDA], "kernels alone are asked for"
            self.events: list[dict[str, Any]] = []

        def __enter__(self) -> Profile:
            runtime.refuse_in_capture("CUPTI")
            board.cupti, board.trace = True, []
            return self

        def __exit__(self, *_: object) -> None:
            assert board.trace is not None
            behind = [one for one in board.trace if one[1] + one[2] > board.host_s]
            assert not behind, "the profiler was left before the device was done"
            for kernel, begin, seconds in board.trace:
                arguments = {
                    "grid": [1, 2, 3], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 1024,
                }  # fmt: skip
                self.events.append({
                    "ph": "X", "cat": "gpu_memcpy" if kernel.name == "simulated_copy_" else "kernel",
                    "name": kernel.name, "ts": begin * 1e6, "dur": seconds * 1e6, "pid": 0, "tid": 7, "args": arguments,
                })  # fmt: skip
            board.trace = None

        def export_chrome_trace(self, name: str) -> None:
            Path(name).write_text(json.dumps({"schemaVersion": 1, "traceEvents": self.events}))

    done.put(torch.profiler, "profile", Profile)


def _compiler(done: Installed) -> None:
    """torch.compile runs what it is given; one that is asked for shapes of every size would record loads of scalars."""

    def compiled(function: Any = None, *, dynamic: bool | None = None, **more: Any) -> Any:
        assert dynamic is False, "sizes that are no constants are loaded from memory by the kernel"
        done.runtime.compiled.append(function.__name__)
        return function

    done.put(torch, "compile", compiled)
