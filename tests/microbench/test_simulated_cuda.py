"""The simulated board refuses what CUDA refuses, and its clock, caches and power do what a board's do."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

import simulated_cuda  # noqa: E402
from simulated_cuda import Board, Kernel, Library, Lost  # noqa: E402


@pytest.fixture
def installed() -> Iterator[simulated_cuda.Installed]:
    done = simulated_cuda.install(Board(l2_bytes=2**20))
    torch.cuda.set_stream(torch.cuda.Stream())
    yield done
    done.remove()


def test_what_was_put_in_place_is_taken_away_again() -> None:
    before = torch.cuda.is_available, torch.cuda.Stream, torch.compile, torch.Generator
    done = simulated_cuda.install(Board())
    assert torch.cuda.is_available() and torch.zeros(2, device="cuda").is_cuda
    done.remove()
    assert (torch.cuda.is_available, torch.cuda.Stream, torch.compile, torch.Generator) == before
    assert not torch.zeros(2).is_cuda


def test_tensors_say_where_they_are(installed: simulated_cuda.Installed) -> None:
    x = torch.ones(3, device="cuda")
    assert x.device == torch.device("cuda", 0) and (x + 1).view(3, 1).is_cuda and x.cpu().device.type == "cpu"
    assert torch.ones(3).to("cuda").is_cuda and torch.empty_like(x).is_cuda and not torch.ones(3).is_cuda
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(3)
    leaf = torch.ones(3, device="cuda", requires_grad=True)
    (leaf * 2).sum().backward()
    assert leaf.grad is not None and leaf.grad.is_cuda


def test_events_are_read_after_a_wait_alone(installed: simulated_cuda.Installed) -> None:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="recorded"):
        begin.elapsed_time(end)
    x = torch.ones(2**20, device="cuda")
    begin.record()
    for _ in range(100):
        x.add_(1)
    end.record()
    with pytest.raises(ValueError, match="completed"):
        begin.elapsed_time(end)
    end.synchronize()
    assert begin.elapsed_time(end) > 0
    with pytest.raises(ValueError, match="enable_timing"):
        torch.cuda.Event().elapsed_time(end)


def test_a_graph_is_its_kernels_without_their_launch(installed: simulated_cuda.Installed) -> None:
    x, board = torch.ones(16, device="cuda"), installed.board
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(1000):
            x.add_(1)
    for _ in range(3):
        torch.cuda.synchronize()
        begin = board.host_s
        graph.replay()
        torch.cuda.synchronize()
    replayed = board.host_s - begin
    begin = board.host_s
    for _ in range(1000):
        x.add_(1)
    torch.cuda.synchronize()
    assert replayed < 0.8 * (board.host_s - begin)
    assert replayed == pytest.approx(1000 * 1.5e-6, rel=0.1)


@pytest.mark.parametrize("what", ["wait", "item", "mask", "generator", "record", "default stream", "host index"])
def test_a_capture_refuses_and_is_spoiled(installed: simulated_cuda.Installed, what: str) -> None:
    x, made = torch.ones(8, device="cuda"), torch.Generator(device="cuda")
    calls = {
        "wait": torch.cuda.synchronize, "item": lambda: x.sum().item(), "mask": lambda: x[x > 0],
        "generator": lambda: torch.randn(3, device="cuda", generator=made),
        "record": lambda: torch.cuda.Event(enable_timing=True).record(),
        "default stream": lambda: torch.cuda.set_stream(torch.cuda.default_stream()),
        "host index": lambda: x[torch.tensor([1, 2])],
    }  # fmt: skip
    graph = torch.cuda.CUDAGraph()

    def capture() -> None:
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            x.add_(1)
            calls[what]()

    with pytest.raises(Lost):
        capture()
    with pytest.raises(Lost, match="without a preceding successful capture"):
        graph.replay()
    x.add_(1)  # the context lives on
    torch.cuda.synchronize()


def test_an_empty_graph_and_one_of_the_default_stream_are_refused(installed: simulated_cuda.Installed) -> None:
    with pytest.raises(Lost, match="empty"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        pass
    torch.cuda.set_stream(torch.cuda.default_stream())
    with pytest.raises(Lost, match="non-default"):
        torch.cuda.CUDAGraph().capture_begin()


def test_an_illegal_access_comes_late_and_stays(installed: simulated_cuda.Installed) -> None:
    x = torch.ones(8, device="cuda")
    installed.board.fault_at[installed.board.launched + 1] = "illegal"
    x.add_(1)  # asynchronous: nothing is said yet
    for _ in range(2):
        with pytest.raises(Lost, match="illegal memory access"):
            torch.cuda.synchronize()
    with pytest.raises(Lost):
        x.add_(1)


def test_memory_that_is_not_there(installed: simulated_cuda.Installed) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**40, device="cuda")


def test_what_lies_in_the_cache_is_quicker() -> None:
    board = Board()
    kernel = Kernel("read", touched=((1, 2**24),))
    cold, warm = board.seconds(kernel), board.seconds(kernel)
    board.seconds(Kernel("flush", touched=((2, 2**30),)))
    assert warm < cold and board.seconds(kernel) == pytest.approx(cold)


def test_a_board_above_its_power_limit_clocks_down_and_recovers() -> None:
    board = Board()
    product = Kernel("gemm", flops=1e12, rate=989e12)
    first = board.seconds(product)
    for _ in range(500):
        board.run(product, 1)
    assert board.seconds(product) > 1.1 * first and board.clock_share < 0.95 and board.reasons() == 0x4
    assert board.power.average_w == pytest.approx(board.power.limit_w, rel=0.03)
    board.idle(board.tails[1] + 1.0)
    assert board.reasons() == 0 and board.seconds(product) == pytest.approx(first)


def test_cupti_slows_every_kernel_until_the_process_ends(installed: simulated_cuda.Installed) -> None:
    kernel = Kernel("k", fixed_s=1e-6)
    before = installed.board.seconds(kernel)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
        torch.ones(8, device="cuda").add_(1)
        torch.cuda.synchronize()
    assert installed.board.seconds(kernel) > before


def test_the_management_library_is_strict() -> None:
    library = Library([Board()])
    out, handle = ctypes.c_uint(), ctypes.c_void_p()
    with pytest.raises(AssertionError, match="before nvmlInit"):
        library.nvmlDeviceGetCount_v2(ctypes.byref(out))
    library.nvmlInit_v2()
    assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    with pytest.raises(AssertionError, match="c_void_p"):
        library.nvmlDeviceGetClockInfo(handle.value, 1, ctypes.byref(out))
    with pytest.raises(AssertionError, match="c_ulong"):
        library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(out))
    assert library.nvmlDeviceGetHandleByUUID(b"GPU-none", ctypes.byref(handle)) != 0
    assert library.nvmlDeviceSetGpuLockedClocks(handle, ctypes.c_uint(1), ctypes.c_uint(1)) == 4  # no permission


def test_how_boards_are_joined() -> None:
    from microbench import management, nvml

    boards = [Board(uuid=simulated_cuda.uuid_of(str(n))) for n in range(4)]
    library = Library(boards)
    library.nvmlInit_v2()
    handles = [nvml.Nvml(library, ctypes.c_void_p(0x7F12_3456_7890 + n)) for n in range(4)]
    assert management.joined_by(handles) == "pcie"
    library.joined = [{0, 1}, {2, 3}]
    assert (management.joined_by(handles[:2]), management.joined_by(handles)) == ("pair", "pcie")
    library.joined.append({1, 2})  # not every two, but all of them over others
    assert management.joined_by(handles) == "mesh"
    library.switches = True
    assert management.joined_by(handles) == "nvswitch"
    library._missing = ("nvmlDeviceGetP2PStatus",)
    assert management.joined_by(handles) == ""  # nobody says, nobody guesses
