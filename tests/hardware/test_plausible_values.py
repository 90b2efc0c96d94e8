"""A value of a board or a system that no hardware has is said in one line, with the value that was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.cli.main import main
from predictor.errors import SpecError
from predictor.files.units import parse_quantity
from predictor.hardware.gpu import GPU_DIR, QUANTITIES, list_gpus, load_gpu
from predictor.hardware.plausible import BELIEVE, believing, board_problems, shown, system_problems
from predictor.hardware.system import _QUANTITIES, SYSTEM_DIR, list_systems, load_system


def _values(gpu: str) -> dict[str, float | None]:
    spec = load_gpu(gpu)
    return {field: getattr(spec, target) for field, (target, _, _) in QUANTITIES.items()}


@pytest.mark.parametrize("gpu", list_gpus())
def test_a_slip_by_a_thousand_in_any_value_of_a_board_names_the_value_that_was_meant(gpu: str) -> None:
    values, peaks = _values(gpu), load_gpu(gpu).peaks
    assert board_problems(values, peaks) == []
    for field, value in values.items():
        for factor in (1e3, 1e-3):
            slip = None if value is None else value * factor
            if slip is None or (field == "sm_count" and not float(slip).is_integer()):
                continue
            first = board_problems({**values, field: slip}, peaks)[0]
            assert first.startswith(f"{field} is "), first
            assert f"; {shown(value, QUANTITIES[field][1])} was probably meant" in first, first
    for key, peak in peaks.items():
        for factor in (1e3, 1e-3):
            first = board_problems(values, {**peaks, key: peak * factor})[0]
            assert first.startswith(f"peak_flops.{key[0]}.{key[1]} is ") and shown(peak, "rate") in first, first


@pytest.mark.parametrize("system", list_systems())
def test_a_slip_by_a_thousand_in_any_value_of_a_system_is_said(system: str) -> None:
    spec = load_system(system)
    values = {field: getattr(spec, target) for field, (target, _) in _QUANTITIES.items()}
    assert system_problems(values, spec.link, spec.by_ranks) == []
    for field, value in values.items():
        for factor in (1e3, 1e-3):
            if value is not None and (isinstance(value, float) or float(value * factor).is_integer()):
                (said,) = system_problems({**values, field: value * factor}, spec.link, spec.by_ranks)
                assert said.startswith(f"{field} is ")
    for ranks, value in spec.by_ranks.items():
        (said,) = system_problems(values, spec.link, {**spec.by_ranks, ranks: value * 1e3})
        assert said.startswith(f"by_ranks.{ranks} is ")


def test_a_value_is_not_judged_by_one_that_is_wrong_itself() -> None:
    """A clock in kHz makes no peak, and a peak no bandwidth, implausible."""
    values, peaks = _values("h100"), load_gpu("h100").peaks
    assert len(board_problems({**values, "boost_clock": 1.98e6}, peaks)) == 1
    assert len(board_problems(values, {**peaks, ("vector", "fp32"): 66.9e9})) == 1


def test_bits_for_bytes_of_a_network_card() -> None:
    spec = load_system("dgx-h100")
    values = {field: getattr(spec, target) for field, (target, _) in _QUANTITIES.items()}
    (said,) = system_problems({**values, "nic_bandwidth": 400e9}, spec.link, {})
    assert "nic_bandwidth is 400 GB/s" in said and "; 50 GB/s was probably meant" in said


def _slipped(folder: Path, name: str, old: str, new: str, to: Path) -> Path:
    text = (folder / name).read_text(encoding="utf-8")
    assert old in text
    to.write_text(text.replace(old, new, 1), encoding="utf-8")
    return to


def test_files_are_refused_in_one_line_or_believed(tmp_path: Path) -> None:
    board = _slipped(GPU_DIR, "h100-sxm.yaml", '"3.35 TB/s"', '"3.35 GB/s"', tmp_path / "board.yaml")
    system = _slipped(SYSTEM_DIR, "dgx-h100.yaml", '"450 GB/s"', '"450 TB/s"', tmp_path / "system.yaml")
    with pytest.raises(SpecError, match=r"memory_bandwidth is 3\.35 GB/s: .*; 3\.35 TB/s was probably meant"):
        load_gpu(board)
    with pytest.raises(SpecError, match=r"link_bandwidth is 450 TB/s: .*; 450 GB/s was probably meant"):
        load_system(system)
    with believing(True):
        assert load_gpu(board).memory_bandwidth == 3.35e9
        assert load_system(system).link_bandwidth == 450e12
    with believing(False), pytest.raises(SpecError):
        load_gpu(board)


def test_the_command_line_believes_a_file_when_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board = _slipped(GPU_DIR, "h100-sxm.yaml", '"700 W"', '"700 kW"', tmp_path / "board.yaml")
    words = ["predict", "--model", "gpt2", "--gpu", str(board), "--batch", "1", "--seq-len", "128"]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "power_limit is 700 kW" in line and "700 W was probably meant" in line and "--force" in line
    assert main([*words, "--force"]) == 0
    capsys.readouterr()
    assert main(["gpus", str(board)]) == 2
    assert main(["gpus", str(board), "--force"]) == 0


def test_belief_ends_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    with believing(True), believing(True):
        assert os.environ[BELIEVE]
    assert BELIEVE not in os.environ
    monkeypatch.setenv(BELIEVE, "1")
    with believing(True):
        pass
    assert os.environ[BELIEVE] == "1"


QUANTITIES_SHOWN = (
    ("3.35 TB/s", "bandwidth"),
    ("80 GiB", "bytes"),
    ("1.98 GHz", "frequency"),
    ("132", "count"),
    ("700 W", "power"),
    ("6 us", "time"),
    ("989 TFLOP/s", "rate"),
)


@pytest.mark.parametrize(("text", "dimension"), QUANTITIES_SHOWN)
def test_shown_is_read_back(text: str, dimension: str) -> None:
    assert shown(parse_quantity(text, dimension), dimension) == text
