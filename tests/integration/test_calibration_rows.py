"""From the plan of a calibration to an adapted set, by real processes on this processor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from microbench_runs import LIMIT_S, ROOT, environment, microbench

from predictor.kernels.artifact import default_artifacts

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("pandas", reason='pandas is not installed: pip install "tilecast[train]"')
pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')
pytestmark = pytest.mark.skipif(
    not (default_artifacts() / "gemm" / "manifest.json").is_file(), reason="no shipped estimators in this checkout"
)

#: Products of many rows: weights that stay in the cache between calls take little of their time, so that they teach.
SWEEP = """
launcher: gemm
groups:
  - name: linear
    dtypes: [bf16]
    fields: {kind: linear, layout: tn, bias: false}
    axes: {m: {log: [1024, 4096]}, n: {log: [128, 512]}, k: {log: [128, 512]}}
    timed: [[warm, eager_events, 1.0]]
    points: 60
"""


def tilecast(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "predictor", *(str(word) for word in words)],
        capture_output=True, text=True, env=environment(TILECAST_TRACKING_URI="off"), cwd=ROOT, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_plan_collect_import_calibrate(tmp_path: Path) -> None:
    sweeps, cases, data = tmp_path / "sweeps", tmp_path / "cases.json", tmp_path / "data"
    sweeps.mkdir()
    (sweeps / "gemm.yaml").write_text(SWEEP)
    device = ["--device", "cpu", "--threads", 1]
    planned = json.loads(
        microbench("plan", *device, "--sweeps", sweeps, "--calibration", "--rows", 24, "--out", cases, "--json").stdout
    )
    wanted = [entry["case_id"] for entry in planned["list"]]
    assert len(set(wanted)) == 24
    quick = ["--case-seconds", "0.02s", "--min-samples", 3, "--noise", "0.2", "--no-profile", "--out", data, "--json"]
    first = json.loads(microbench("collect", *device, "--cases", cases, *quick).stdout)
    assert (first["cases"], first["left"]) == (24, 0)
    same = json.loads(microbench("collect", *device, "--sweeps", sweeps, "--calibration", 24, *quick).stdout)
    assert (same["cases"], same["new_rows"]) == (24, 0)  # another way to the same points: all of them are there
    import pyarrow.parquet as pq

    (file,) = data.glob("*/gemm/*/measurements.parquet")
    assert set(pq.read_table(file)["case_id"].to_pylist()) == set(wanted)

    rows, out = tmp_path / "rows.parquet", tmp_path / "set"
    tilecast("dataset", "import", "microbench", data, "--out", rows)
    (gpu,) = data.glob("*/device.yaml")
    report = json.loads(tilecast("calibrate", "--gpu", gpu, "--data", rows, "--out", out, "--json"))
    assert report["rows"]["gemm"] >= 16
    # whether the rows surely help hangs on what else this machine did; either way the answer says it
    gained = "gemm" in report["scalars"]
    assert gained != ("kept aside" in report["unchanged"].get("gemm", ""))
    if gained:
        assert report["held_out_mean_ape_pct"]["gemm"] <= report["before_mean_ape_pct"]["gemm"]
    calibrated = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["calibrated"]
    assert [entry["rows"] for entry in calibrated] == [report["rows"]["gemm"]] * gained
