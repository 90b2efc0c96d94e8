"""Products of a simulated hour, timed by the harness, teach a set what it did not know of the board."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.kernels.artifact import default_artifacts

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("pandas", reason='pandas is not installed: pip install "tilecast[train]"')
pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')
pytestmark = pytest.mark.skipif(
    not (default_artifacts() / "gemm" / "manifest.json").is_file(), reason="no shipped estimators in this checkout"
)


def test_an_hours_products_leave_decode_without_a_bias(tmp_path: Path) -> None:
    from simulated_hour import hour

    said = hour("h100-sxm", 600, tmp_path)
    assert said["decode"] >= 40
    assert said["after_pct"] < 4.0 < 0.5 * said["before_pct"]
    assert abs(said["decode_bias_pct"]) < 2.0 and abs(said["decode_median_pct"]) < 2.0
