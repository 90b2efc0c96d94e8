"""What a command costs, as ratios of CPU time, which a busy machine changes little: benchmarks/speed.py, shortly.

A bound is 1.3 times the figure that landed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SPEED = Path(__file__).resolve().parents[2] / "benchmarks" / "speed.py"


def test_a_cold_forecast_takes_little_more_than_numpy() -> None:
    """2.25 times the CPU time of importing numpy and yaml, and 50 MiB (2026-11-24)."""
    done = subprocess.run(
        [sys.executable, str(SPEED), "--cold", "--runs", "5", "--json"], capture_output=True, text=True, check=True
    )
    cold = json.loads(done.stdout)["cold"]
    assert 1.0 < cold["cpu_ratio"] < 1.3 * 2.25, cold
    assert 20.0 < cold["peak_mib"] < 1.3 * 50.0, cold
