"""The harness's CUDA paths against the simulated board: what is timed, under which load, and what a row says of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import simulated_cuda  # noqa: E402
from microbench_cases import GPU  # noqa: E402
from simulated_cuda import Board  # noqa: E402

from microbench import profile_worker, worker  # noqa: E402
from microbench.capability import copies, held_bytes, refusal  # noqa: E402
from microbench.case import Case  # noqa: E402
from microbench.launchers.base import IllegalCase  # noqa: E402
from microbench.measure import Measurer  # noqa: E402
from microbench.timing import Settings  # noqa: E402
from predictor.data.schema import SUSTAINED  # noqa: E402
from predictor.ops import Attention, Collective, Elementwise, Gemm, MoE, Softmax  # noqa: E402

SMALL = Case("softmax", Softmax("fp32", 8, 64), (), "warm", "cuda_graph")


@pytest.fixture
def installed() -> Iterator[simulated_cuda.Installed]:
    done = simulated_cuda.install(Board(l2_bytes=2**20))
    yield done
    done.remove()


def opened(settings: Settings | None = None) -> tuple[Any, Measurer]:
    from microbench.devices import open_device

    device = open_device("cuda", 0)
    return device, Measurer(device, settings or Settings())


class Product:
    """A product whose time on the board is that of a large one, while the processor computes a small one."""

    def __init__(self, installed: simulated_cuda.Installed, seconds: float) -> None:
        self.kernel = simulated_cuda.Kernel("large_product", flops=seconds * 989e12, rate=989e12)
        self.runtime = installed.runtime

    def __call__(self) -> None:
        self.runtime.launch(self.kernel)


def test_a_graph_has_no_launch_in_it_and_lasts_half_a_millisecond(installed: simulated_cuda.Installed) -> None:
    _, measurer = opened()
    row = measurer.measure(SMALL)
    assert row["latency_ms"] == pytest.approx(1.5e-3, rel=0.05) and row["stop"] == "precise"
    assert row["launches"] * row["latency_ms"] >= 0.5
    eager = measurer.measure(replace(SMALL, protocol="eager_events"))
    assert eager["latency_ms"] > 1.5 * row["latency_ms"]  # the host's launch is in it


def test_a_cold_call_reads_memory_and_a_warm_one_the_cache(installed: simulated_cuda.Installed) -> None:
    _, measurer = opened()
    case = Case("elementwise", Elementwise("fp32", "relu", 32768), (), "cold", "eager_events")
    cold, warm = measurer.measure(case), measurer.measure(replace(case, cache="warm", protocol="cuda_graph"))
    assert cold["latency_ms"] > warm["latency_ms"]


@pytest.mark.parametrize(
    "case",
    [
        Case("gemm", Gemm("bf16", 4, 512, 512)),
        Case("gemm", Gemm("fp8", 4, 1024, 512)),
        Case("attention", Attention("bf16", 2, 8, 8, 1, 128, 64), (("impl", "flash"),)),
        Case("moe", MoE("bf16", 32, 128, 128, 8, 2), (("impl", "grouped_mm"),)),
    ],
    ids=lambda case: f"{case.launcher} {case.op.dtype}",
)
def test_a_rotation_finds_its_weights_in_memory(case: Case) -> None:
    """Of a product, a decode step and experts: DRAM for weights or cache, L2 for the activations, within 2 %."""
    done = simulated_cuda.install(Board(l2_bytes=2**20, bandwidth=1e11, l2_bandwidth=4e11, launch_s=1e-6))
    try:
        _, measurer = opened()
        rows = {
            state: measurer.measure(replace(case, cache=state, protocol="cuda_graph")) for state in ("warm", "rotating")
        }
        held = held_bytes(case.op)
        turns = copies(held, 2**20)
        assert held * (turns - 1) > 2 * 2**20 >= held * (turns - 2)
        assert rows["rotating"]["launches"] % turns == 0 and rows["rotating"]["cache_state"] == "rotating"
        law_ms = rows["warm"]["latency_ms"] + 1.25e3 * held * (1 / 1e11 - 1 / 4e11)
        assert rows["rotating"]["latency_ms"] == pytest.approx(law_ms, rel=0.02)
    finally:
        done.remove()


class Peer:
    """Another rank, which comes ``late_s`` after this one to the first collective of a time."""

    def __init__(self, installed: simulated_cuda.Installed, late_s: float) -> None:
        self.runtime, self.late_s, self.met, self.met_first = installed.runtime, late_s, False, 0

    def meet(self) -> None:
        """A collective: it ends when both are there."""
        wait_s = 0.0 if self.met else self.late_s
        self.met = True
        self.runtime.launch(simulated_cuda.Kernel("all_reduce", fixed_s=1e-5 + wait_s))

    def most(self, value: float) -> float:
        self.met = False  # a time ends, and the ranks part
        return value

    def line_up(self) -> None:
        self.met_first += 1
        self.meet()

    def union(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return names


def test_what_a_rank_waits_for_another_is_in_no_time(installed: simulated_cuda.Installed) -> None:
    from microbench.ranks import SAMPLE_S, agree

    device, measurer = opened(Settings(sample_s=SAMPLE_S, case_s=0.1))
    peer = Peer(installed, 2e-3)
    agree(device, peer)  # type: ignore[arg-type]
    case = Case("collective", Collective("bf16", "all_reduce", 4096, 2), (), "warm", "eager_events")
    timing = measurer._timer.time(case, peer.meet)
    middle = sorted(timing.rule.samples)[len(timing.rule.samples) // 2]
    assert peer.met_first > len(timing.rule.samples) and middle * timing.launches >= 0.9 * SAMPLE_S
    assert middle == pytest.approx(1.15e-5, rel=0.05)
    met = peer.met_first
    device.time_replays(device.capture(peer.meet, 2), 1)
    device.time_cold(peer.meet, 3)
    assert peer.met_first == met + 4


def test_what_holds_no_weights_is_not_rotated(installed: simulated_cuda.Installed) -> None:
    _, measurer = opened()
    with pytest.raises(IllegalCase, match="nothing to rotate"):
        measurer.measure(replace(SMALL, cache="rotating"))
    assert "nothing to rotate" in refusal(replace(SMALL, cache="rotating"), GPU)
    assert "1000 copies" in refusal(Case("gemm", Gemm("bf16", 8, 64, 64), (), "rotating", "cuda_graph"), GPU)


def test_a_long_run_is_measured_at_the_clock_that_power_leaves(installed: simulated_cuda.Installed) -> None:
    _, measurer = opened()
    launch, timer = Product(installed, 1e-4), measurer._timer
    burst = timer.time(Case("gemm", Gemm("bf16", 8, 8, 8), (), "warm", "cuda_graph"), launch)
    installed.board.wait(1.0)
    long = timer.time(Case("gemm", Gemm("bf16", 8, 8, 8), (), "warm", SUSTAINED), launch)
    middle = [sorted(one.rule.samples)[len(one.rule.samples) // 2] for one in (burst, long)]
    assert middle[1] > 1.1 * middle[0]
    assert long.load_s is not None and long.load_s >= 0.3 and long.gpu_s is not None and long.gpu_s >= 0.5
    assert set(long.reasons) == {"power_cap"} and long.throttled == 0 and not long.kept_throttled  # kept, and labelled
    assert long.clock_drift == pytest.approx(0.0, abs=0.02)
    assert long.watts == pytest.approx(installed.board.power.limit_w, rel=0.05)
    board = installed.board
    assert long.states[-1].sm_clock_hz == pytest.approx(board.clock_hz * board.clock_share, rel=0.02)


def test_a_long_run_has_long_samples_and_no_pause_between_them(installed: simulated_cuda.Installed) -> None:
    _, measurer = opened()
    board, timer = installed.board, measurer._timer
    board.sensor_s, load = 2e-3, timer._load

    def loaded(*asked: Any) -> float:
        seconds = load(*asked)
        board.rested_s = 0.0
        return seconds

    timer._load = loaded  # type: ignore[method-assign]
    long = timer.time(Case("gemm", Gemm("bf16", 8, 8, 8), (), "warm", SUSTAINED), Product(installed, 1e-4))
    assert min(long.rule.samples) * long.launches >= 0.045 and len(long.rule.samples) >= 10
    assert board.rested_s < 5 * board.sensor_s  # before the first of them, not between any two
    assert long.watts == pytest.approx(board.power.limit_w, rel=0.03)


def test_rows_of_long_runs_are_flagged_and_say_how_they_were_measured(installed: simulated_cuda.Installed) -> None:
    _, measurer = opened(Settings(load_s=0.01, min_gpu_s=0.01, sustained_s=0.02))
    row = measurer.measure(replace(SMALL, protocol=SUSTAINED))
    assert row["flag"] == "sustained" and row["protocol"] == SUSTAINED and row["load_s"] >= 0.01
    assert row["gpu_s"] >= 0.01 and row["power_source"] == "energy"
    assert "flag" not in measurer.measure(SMALL) or measurer.measure(SMALL)["flag"] == ""


def test_rows_name_the_board_and_its_power_of_the_moment(installed: simulated_cuda.Installed) -> None:
    _, measurer = opened()
    row = measurer.measure(SMALL)
    assert row["board_uuid"] == installed.board.uuid and row["power_source"] == "instant"
    assert row["sm_clock_hz"] == pytest.approx(1.98e9) and row["memory_clock_hz"] == pytest.approx(2.619e9)
    installed.library._missing = ("nvmlDeviceGetFieldValues",)
    assert measurer.measure(SMALL)["power_source"] == "average"


def test_rounds_below_the_full_clock_are_thrown_away(installed: simulated_cuda.Installed) -> None:
    _, measurer = opened()
    installed.board.forced_reasons = 0x20
    row = measurer.measure(SMALL)
    assert row["flag"] == "throttled" and row["throttle_reasons"] == "thermal"
    installed.board.forced_reasons = 0x1 | 0x2  # idle, and clocks that an application set: no throttling
    assert measurer.measure(SMALL)["throttled_samples"] == 0


def test_the_process_that_times_never_attaches_cupti(installed: simulated_cuda.Installed) -> None:
    device, measurer = opened()
    plain = measurer.measure(SMALL)
    assert "kernel_name" not in plain and not installed.board.cupti
    names = profile_worker.open_handler(device, {})({"case": SMALL.to_json()})
    assert names["kernel_name"] == "simulated__softmax" and names["registers"] == 32 and installed.board.cupti
    row = measurer.measure(SMALL, kernel=names)
    assert row["kernel_name"] == "simulated__softmax"
    assert row["latency_ms"] > 1.3 * plain["latency_ms"]  # in one process it would be in every later time


def test_a_capture_that_fails_is_the_captures_and_costs_the_worker(installed: simulated_cuda.Installed) -> None:
    device, measurer = opened()
    installed.board.capture_faults = {1}
    answer = worker.answer(device, lambda _: measurer.measure(SMALL), {})
    assert answer["failure"]["kind"] == "not_captured" and answer["poisoned"]
    assert "row" in worker.answer(device, lambda _: measurer.measure(SMALL), {})


def test_an_illegal_access_is_found_and_costs_the_worker(installed: simulated_cuda.Installed) -> None:
    device, measurer = opened()
    installed.board.fault_at[installed.board.launched + 3] = "illegal"
    answer = worker.answer(device, lambda _: measurer.measure(SMALL), {})
    assert answer["failure"]["kind"] == "cuda_error" and answer["poisoned"]
    assert "illegal memory access" in answer["failure"]["reason"]


def test_memory_that_is_not_there_costs_no_worker(installed: simulated_cuda.Installed) -> None:
    device, measurer = opened()
    case = Case("softmax", Softmax("fp32", 2**30, 2**10), (), "warm", "cuda_graph")
    answer = worker.answer(device, lambda _: measurer.measure(case), {})
    assert answer["failure"]["kind"] == "out_of_memory" and not answer["poisoned"]


def test_a_board_that_is_dead_from_the_start_says_so(installed: simulated_cuda.Installed) -> None:
    from microbench.devices import open_device

    installed.board.lost = "initialization error"
    with pytest.raises(RuntimeError, match="initialization error"):
        open_device("cuda", 0)


def test_a_chain_is_compiled_for_its_own_size(installed: simulated_cuda.Installed) -> None:
    _, measurer = opened(Settings(case_s=0.01))
    for elements in (1024, 1024, 4096):
        op = Elementwise("fp32", "fused", elements, inputs=2)
        measurer.measure(Case("elementwise", op, (), "warm", "cuda_graph"))
    assert installed.runtime.compiled == [
        "chain_1024_2",
        "chain_4096_2",
    ]  # each size once
