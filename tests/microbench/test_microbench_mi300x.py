"""An MI300X, simulated: what PyTorch runs there and how, its cache, its clocks and power by both ways of asking."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import simulated_cuda  # noqa: E402
from simulated_cuda import amd  # noqa: E402

from microbench import amd_smi, doctor, management, nvml, rocm, sweep  # noqa: E402
from microbench.capability import copies, gpu_target, held_bytes, refusal, target_of  # noqa: E402
from microbench.case import Case  # noqa: E402
from microbench.devices import open_device  # noqa: E402
from microbench.measure import Measurer  # noqa: E402
from microbench.timing import Settings, Timer  # noqa: E402
from predictor.data.schema import SUSTAINED  # noqa: E402
from predictor.hardware.gpu import load_gpu  # noqa: E402
from predictor.ops import Attention, Gemm, MoE, Norm  # noqa: E402

GRAPH = "cuda_graph"


@pytest.fixture
def installed() -> Iterator[simulated_cuda.Installed]:
    done = simulated_cuda.install(amd.mi300x())
    yield done
    done.remove()


def test_the_board_is_known_by_its_instruction_set(installed: simulated_cuda.Installed) -> None:
    device = open_device("cuda", 0)
    facts = device.facts()
    assert (device.id, facts["gfx"], facts["capability"]) == ("mi300x", "gfx942", [0, 0])
    assert device.cache_bytes == 256 * 2**20  # PyTorch says 4 MiB
    assert facts["stack"].endswith("_rocm-7.0.51831") and device.environment()["cuda_version"].startswith("rocm 7.0")
    assert device.environment()["driver"] == "6.14.14"
    target = target_of({**facts, "libraries": {}, "triton": True})
    assert target.flops["bf16"] == load_gpu("mi300x").peak_flops("bf16") and target.cache_bytes == 256 * 2**20


@pytest.mark.parametrize(
    ("gfx", "units", "gib", "clock", "known"),
    [
        ("gfx942", 304, 191.7, None, "mi300x"), ("gfx942", 304, 255.7, None, "mi325x"),
        ("gfx942", 80, 191.7, None, "mi308x"), ("gfx950", 256, 287.6, 2.4e9, "mi355x"),
        ("gfx950", 256, 287.6, 2.2e9, "mi350x"), ("gfx950", 256, 287.6, None, None), ("gfx1100", 96, 24.0, None, None),
    ],
)  # fmt: skip
def test_a_nameless_board_is_told_by_units_memory_and_clock(
    gfx: str, units: int, gib: float, clock: float | None, known: str | None
) -> None:
    spec = rocm.board(gfx, units, gib * 2**30, clock)
    assert (spec.id if spec else None) == known


def test_a_flush_and_a_rotation_pass_the_last_level_cache(installed: simulated_cuda.Installed) -> None:
    device: Any = open_device("cuda", 0)
    assert copies(held_bytes(Gemm("bf16", 4, 4096, 4096)), device.cache_bytes) > 16
    x = device.randn(2**22)
    warm, (cold,) = device.time_batch(x.relu, 1), device.time_cold(x.relu, 1)
    assert device._flush_buffer.nbytes == 512 * 2**20 and cold > 1.3 * warm


def test_eight_bits_are_in_the_form_that_the_board_multiplies(installed: simulated_cuda.Installed) -> None:
    device = open_device("cuda", 0)
    assert device.randn(4, dtype="fp8").dtype == torch.float8_e4m3fnuz
    row = Measurer(device, Settings(profile=False)).measure(Case("gemm", Gemm("fp8", 32, 64, 64), (), "warm", GRAPH))
    assert row["checked"] == "yes" and row["gpu"] == "mi300x"


def test_the_spin_before_a_time_is_as_long_as_elsewhere(installed: simulated_cuda.Installed) -> None:
    device: Any = open_device("cuda", 0)
    assert device.clocks_a_second == pytest.approx(1e8, rel=0.1)
    spun: list[int] = []
    device._sleep = spun.append
    device._head_start()
    assert spun[0] / 1e8 == pytest.approx(1e-4, rel=0.1)


def test_a_long_run_is_held_by_the_limit_of_power(installed: simulated_cuda.Installed) -> None:
    kernel = simulated_cuda.Kernel("large product", flops=1e-4 * 1307e12, rate=1307e12)
    timer = Timer(open_device("cuda", 0), Settings())
    case = Case("gemm", Gemm("bf16", 8, 8, 8), (), "warm", SUSTAINED)
    long = timer.time(case, lambda: installed.runtime.launch(kernel))
    assert set(long.reasons) == {"power_cap"} and not long.kept_throttled
    assert long.states[-1].sm_clock_hz < 2.05e9 and long.watts == pytest.approx(750, rel=0.05)


def test_tiles_fit_the_local_data_share(installed: simulated_cuda.Installed) -> None:
    target = gpu_target(load_gpu("mi300x"))
    plan = sweep.build(target, ("tile",))
    assert {case.op.dtype for case in plan.cases} >= {"bf16", "tf32"}
    assert plan.left_out["the tile does not fit the local data share of gfx942"]
    tiles = {(case.op.dtype, case.option("tile")): case for case in plan.cases}
    assert ("tf32", "128x256x64") not in tiles and ("bf16", "128x256x64") in tiles
    largest = Case("tile", Gemm("bf16", 128, 256, 128), (("tile", "128x256x64"),), "warm", GRAPH)
    assert Measurer(open_device("cuda", 0), Settings(profile=False)).measure(largest)["kernel_source"] == "triton_tile"


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (Case("gemm", Gemm("tf32", 64, 64, 64), (), "warm", GRAPH), "in fp32, whatever allow_tf32 says"),
        (Case("attention", Attention("bf16", 1, 8, 8, 64, 64, 128), (("impl", "cudnn"),), "warm", GRAPH), "no cuDNN"),
        (Case("attention", Attention("bf16", 1, 8, 8, 64, 64, 128), (("impl", "flash"),), "warm", GRAPH), ""),
        (Case("moe", MoE("bf16", 32, 128, 128, 8, 2), (("impl", "grouped_mm"),), "warm", GRAPH), "waits for the host"),
        (Case("serving", Norm("bf16", 8, 64, "rms"), (("kernel", "vllm.norm"),), "warm", GRAPH), "CUDA builds"),
        (Case("gemm", Gemm("fp8", 64, 64, 64), (), "warm", GRAPH), ""),
    ],
)
def test_what_rocm_does_not_run_is_left_out_with_its_reason(case: Case, why: str) -> None:
    said = refusal(case, gpu_target(load_gpu("mi300x")))
    assert why in said and bool(why) == bool(said)


def test_the_generation_before_and_after() -> None:
    fp8, tile = Case("gemm", Gemm("fp8", 64, 64, 64), (), "warm", GRAPH), (("tile", "64x64x32"),)
    assert "no fp8" in refusal(fp8, gpu_target(load_gpu("mi250x"))) and not refusal(fp8, gpu_target(load_gpu("mi355x")))
    tf32 = Case("tile", Gemm("tf32", 64, 64, 64), tile, "warm", GRAPH)
    assert refusal(tf32, gpu_target(load_gpu("mi355x"))) and not refusal(tf32, gpu_target(load_gpu("mi300x")))


def test_both_ways_of_asking_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    board = amd.mi300x()
    monkeypatch.setattr(nvml, "load_library", lambda: None)
    smi = amd.package([board, amd.mi300x(uuid="other")])
    smi.amdsmi_init()
    monkeypatch.setattr(amd_smi, "load_library", lambda: smi)
    by_package = management.open_board(pci_bus_id="00000000:01:00.0")
    boards = [management.entry_board(entry) for entry in ("0", "1")]
    assert management.joined_by(boards) == "pair"
    assert all(finding.status == doctor.OK for finding in doctor.boards(["0", "1"]))
    monkeypatch.setattr(amd_smi, "load_library", lambda: None)
    monkeypatch.setattr(amd_smi.shutil, "which", lambda name: f"/opt/rocm/bin/{name}")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: SimpleNamespace(stdout=amd.command(board), returncode=0))
    by_command = management.entry_board("0")
    assert by_package is not None and by_command is not None and management.entry_board("1") is None
    for name in ("clock_hz", "temperature_c", "power_limit_w", "driver", "bus"):
        assert getattr(by_package, name)() == getattr(by_command, name)(), name
    assert by_package.clock_hz(memory=True) == by_command.clock_hz(memory=True) == 1.3e9
    assert by_package.power_w() == (140.0, "instant") and by_command.power_w() == (140.0, "average")
    assert by_package.energy_j() is not None and by_command.energy_j() is None


def test_a_release_that_lacks_functions_says_less(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = ("amdsmi_get_violation_status", "amdsmi_get_energy_count", "amdsmi_topo_get_link_type")
    smi = amd.package([amd.mi300x(), amd.mi300x()], lacks)
    smi.amdsmi_init()
    boards = [amd_smi.PackageBoard(smi, handle) for handle in smi.amdsmi_get_processor_handles()]
    assert boards[0].throttled() == () and boards[0].energy_j() is None and management.joined_by(boards) == ""
