"""GPUs that do not exist: one parameter changed, and the forecasts that follow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from predictor import predict
from predictor.errors import RequestError
from predictor.hardware.gpu import load_gpu
from predictor.hardware.what_if import PARAMETERS, as_filed, held_at, vary

ROOT = Path(__file__).resolve().parents[2]
HYPOTHETICAL = ROOT / "examples" / "hypothetical-gpu.yaml"
WORDS = {"dtype": "bf16", "execution": "cuda_graph", "batch": 8}


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_factor_one_changes_nothing(parameter: str) -> None:
    gpu = load_gpu(HYPOTHETICAL)
    assert vary(gpu, parameter, 1.0) == gpu


def test_peaks_follow_sms_and_clock() -> None:
    gpu = load_gpu(HYPOTHETICAL)
    more = vary(gpu, "sm_count", 1.5)
    assert more.sm_count == 240
    assert more.peak_flops("bf16") == pytest.approx(1.5 * gpu.peak_flops("bf16"))
    assert more.power_limit_w == pytest.approx(1.5 * gpu.power_limit_w)
    assert more.memory_bandwidth == gpu.memory_bandwidth
    faster = vary(gpu, "clock", 0.5)
    assert faster.peak_flops("fp32") == pytest.approx(0.5 * gpu.peak_flops("fp32"))
    assert faster.sm_count == gpu.sm_count


@pytest.mark.parametrize("mode", ["prefill", "decode"])
@pytest.mark.parametrize("parameter", PARAMETERS)
@pytest.mark.parametrize("board", ["h200", str(HYPOTHETICAL)])
def test_more_of_anything_is_never_slower(board: str, parameter: str, mode: str) -> None:
    """Twice of a parameter, of a board of the catalogue and of one that nobody measured."""
    gpu = load_gpu(board)
    before = predict("llama-3.1-8b", gpu, mode=mode, **WORDS)  # type: ignore[arg-type]
    after = predict("llama-3.1-8b", vary(gpu, parameter, 2.0), mode=mode, **WORDS)  # type: ignore[arg-type]
    assert after.latency_s <= before.latency_s * (1.0 + 1e-9)


def test_bad_requests_are_one_line() -> None:
    gpu = load_gpu(HYPOTHETICAL)
    with pytest.raises(RequestError, match="memory_bandwidth"):
        vary(gpu, "bandwidth", 2.0)
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(RequestError, match="above 0"):
            vary(gpu, "l2", factor)


def test_example_prints_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    picture = tmp_path / "what-if.svg"
    command = [sys.executable, str(ROOT / "examples" / "what_if.py"), "--parameter", "l2", "--out", str(picture)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}  # whether the package is installed or not
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    lines = done.stdout.splitlines()
    totals = [float(line.split()[-1]) for line in lines[2:-1]]
    assert len(totals) == 17 and totals == sorted(totals, reverse=True) and lines[-1] == f"written: {picture}"
    assert "bound by" in picture.read_text(encoding="utf-8")


def test_a_board_is_held_below_its_boost_clock_alone() -> None:
    gpu = load_gpu("v100-sxm-32gb")
    held = held_at(gpu, 1380e6)
    assert held.boost_clock_hz == 1380e6
    assert held.peak_flops("fp16") == pytest.approx(gpu.peak_flops("fp16") * 1380 / 1530)
    assert (held.memory_bandwidth, held.power_limit_w) == (gpu.memory_bandwidth, gpu.power_limit_w)
    assert held_at(gpu, 1530e6) is gpu
    assert held_at(gpu, 2000e6) is gpu
    with pytest.raises(RequestError, match="100 MHz or more"):
        held_at(gpu, 0.0)


def test_a_variant_is_of_the_board_in_its_file(tmp_path: Path) -> None:
    h100, mine = load_gpu("h100"), tmp_path / "mine.yaml"
    assert as_filed(h100) is h100
    assert as_filed(vary(vary(h100, "l2", 2.0), "clock", 1.1)) == h100
    mine.write_text(HYPOTHETICAL.read_text(encoding="utf-8"), encoding="utf-8")
    gpu = load_gpu(mine)
    assert as_filed(vary(gpu, "sm_count", 2.0)) == gpu
    mine.unlink()
    lost = vary(gpu, "sm_count", 3.0)
    assert as_filed(lost) is lost  # no file says what it was
