"""What doctor finds of a board, and what it says of the three known answers."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from microbench_cases import CPU, GPU

pytest.importorskip("torch")

from simulated_cuda import Board, Library

from microbench import doctor, nvml
from predictor.hardware.gpu import load_gpu

SPEC = load_gpu("h100-sxm")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library([Board()])
    found.nvmlInit_v2()
    monkeypatch.setattr(nvml, "load_library", lambda: found)
    return found


def bad(findings: list[doctor.Finding]) -> set[str]:
    assert all(one.do for one in findings if one.status != doctor.OK)  # each says what to do
    return {one.name.removeprefix("GPU 0 ") for one in findings if one.status != doctor.OK}


def test_a_board_as_it_should_be_is_well(library: Library) -> None:
    findings = doctor.boards(["0"])
    assert not bad(findings) and len(findings) >= 8
    assert any("575.57.08" in one.found for one in findings)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [("persistence", 0, "persistence mode"), ("ecc", 0, "ECC"), ("mig", 1, "MIG"), ("processes", 2, "other processes")],
)
def test_each_setting_is_named_with_what_to_do(library: Library, field: str, value: int, named: str) -> None:
    setattr(library, field, value)
    assert bad(doctor.boards(["0"])) == {named}


def test_throttling_at_rest_and_boards_that_are_not_there(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    library.boards[0].forced_reasons = 0x40
    assert bad(doctor.boards(["0"])) == {"throttling at rest"}
    assert doctor.boards(["7"])[0].status == doctor.FAIL
    assert doctor.boards([])[0].status == doctor.FAIL
    monkeypatch.setattr(nvml, "load_library", lambda: None)
    assert doctor.boards(["0"])[0].status == doctor.WARN


def test_a_driver_that_tells_little_is_no_fault(library: Library) -> None:
    library._missing = ("nvmlDeviceGetMigMode", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMaxClockInfo")
    assert not bad(doctor.boards(["0"]))


def test_missing_software_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "versions", lambda: {"numpy": "2.0", "pyarrow": "15"})
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (999.0, 0, 0))
    findings = {one.name: one for one in doctor.machine(tmp_path / "nosuch" / "deeper")}
    assert findings["torch"].status == doctor.FAIL and findings["torch"].do == "pip install torch"
    assert {findings[name].status for name in ("C compiler", "load of the host")} == {doctor.WARN}
    monkeypatch.setattr(doctor, "versions", lambda: {"numpy": "2.0", "pyarrow": "15", "torch": "2.3.1+cu121"})
    assert {one.name: one for one in doctor.machine(tmp_path)}["torch"].status == doctor.WARN


def rows(gemm: float, copy: float, cudnn: float) -> dict[str, dict[str, Any]]:
    """Rows at shares of the data sheet, and cuDNN at a multiple of flash's time."""
    return {
        "gemm": {"rate": gemm * SPEC.peak_flops("bf16"), "dtype": "bf16"},
        "copy": {"rate": copy * SPEC.memory_bandwidth, "dtype": "fp32"},
        "flash": {"latency_ms": 1.0}, "cudnn": {"latency_ms": cudnn},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("gemm", "copy", "cudnn", "statuses"),
    [
        (0.7, 0.9, 0.6, "ok ok ok"), (0.2, 0.9, 0.6, "warn ok ok"), (1.3, 0.9, 0.6, "fail ok ok"),
        (0.7, 0.3, 0.6, "ok warn ok"), (0.7, 1.2, 0.6, "ok warn ok"), (0.7, 1.3, 0.6, "ok fail ok"),
        (1.2, 0.9, 0.6, "warn ok ok"), (0.7, 0.9, 0.1, "ok ok warn"),
        (0.7, 0.9, 9.0, "ok ok fail"),
    ],
)  # fmt: skip
def test_known_answers_are_held_against_what_is_known(gemm: float, copy: float, cudnn: float, statuses: str) -> None:
    found = doctor.judge("h100-sxm", rows(gemm, copy, cudnn))
    assert " ".join(one.status for one in found) == statuses
    assert f"{gemm * 100:.0f} % of the data sheet's peak" in found[0].found
    unknown = doctor.judge("cpu-none", rows(gemm, copy, cudnn))
    assert "no data sheet" in unknown[0].found and unknown[0].status == doctor.OK


def test_a_peak_goes_with_the_clock_that_was_sampled() -> None:
    """A GeForce board boosts far above its data sheet: 112 % of the peak at 112 % of the clock is well."""
    told = rows(1.12 * 0.95, 0.9, 0.6)
    assert doctor.judge("h100-sxm", told)[0].status == doctor.WARN
    told["gemm"]["sm_clock_hz"] = 1.12 * SPEC.boost_clock_hz
    found = doctor.judge("h100-sxm", told)[0]
    assert found.status == doctor.OK and "95 % of the data sheet's peak at 2218 MHz" in found.found
    told["gemm"] |= {"rate": 1.3 * told["gemm"]["rate"]}
    assert doctor.judge("h100-sxm", told)[0].status == doctor.WARN


def test_a_build_of_torch_without_cuda_is_no_good_on_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "versions", lambda: {"numpy": "2.0", "pyarrow": "15", "torch": "2.9.1+cpu"})
    told = {device: doctor.machine(tmp_path, device)[0] for device in ("cuda", "cpu")}
    assert told["cuda"].status == doctor.FAIL and "processor alone" in told["cuda"].found
    assert told["cpu"].status == doctor.OK


def test_an_old_python_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 12))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(Path(doctor.__file__).with_name("__main__.py")), run_name="__main__")
    assert ended.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def test_the_known_answers_can_be_asked_of_both_kinds_of_device() -> None:
    asked = doctor.answers(GPU, 50 * 2**20)
    assert set(asked) == {"gemm", "copy", "flash", "cudnn"}
    assert asked["gemm"].op.flops() > 1e12 and asked["copy"].op.bytes_moved() > 16 * 50 * 2**20
    assert set(doctor.answers(CPU, 2**25)) == {"gemm", "copy", "flash", "math"}
