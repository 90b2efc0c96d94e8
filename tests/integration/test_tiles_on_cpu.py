"""From this processor's tile probes to a forecast: collect, import, train or calibrate, predict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("torch", reason="extra 'torch'")
pytest.importorskip("pandas", reason="extra 'train'")
pytest.importorskip("scipy", reason="extra 'train'")

from microbench.cli import main as harness
from predictor.cli.main import main
from predictor.kernels.artifact import default_artifacts

COLLECT = "collect --device cpu --threads 1 --ops tile --case-seconds 0.02s --budget 300s --max-cases 48"
Call = Callable[..., dict[str, Any]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A command of the project: what it prints as JSON."""
    monkeypatch.setenv("TILECAST_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*words: str | Path) -> dict[str, Any]:
        capsys.readouterr()
        status = main([*map(str, words), "--json"])
        out, err = capsys.readouterr()
        assert status == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    return run


def of_linear_layers(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in answer["breakdown"] if row["op"] == "linear")
    return found


def roomy(device: Path) -> None:
    """Ceilings of a machine that was idle: measured beside other work they may lie below what a tile reaches later."""
    values = yaml.safe_load(device.read_text())
    for rates in values["peak_flops"].values():
        for rate in rates.values():
            number, unit = rate["value"].split()
            rate["value"] = f"{float(number) * 3} {unit}"
    number, unit = values["memory_bandwidth"]["value"].split()
    values["memory_bandwidth"]["value"] = f"{float(number) * 3} {unit}"
    device.write_text(yaml.safe_dump(values))


@pytest.mark.skipif(not (default_artifacts() / "manifest.json").is_file(), reason="no shipped estimators here")
def test_collect_import_train_calibrate_predict(call: Call, tmp_path: Path) -> None:
    data, rows, trained, calibrated = (tmp_path / name for name in ("data", "tiles.parquet", "trained", "calibrated"))
    assert harness([*COLLECT.split(), "--out", str(data)]) == 0
    (device,) = data.glob("*/device.yaml")
    roomy(device)
    imported = call("dataset", "import", "microbench", data, "--out", rows)
    assert imported["flagged"]["tile_probe"] >= 40
    shape = ("predict", "--model", "gpt2", "--gpu", device, "--seq-len", "64")

    # a set of tile probes alone
    assert call("train", "--data", rows, "--out", trained)["fitted"]["fp32-gemm"] >= 16
    answer, bound = (call(*shape, "--dtype", "fp32", "--artifacts", a) for a in (trained, "roofline"))
    products = of_linear_layers(answer)
    assert products["estimators"] == ["fp32-gemm"]
    assert 1.0 < products["latency_ms"] / of_linear_layers(bound)["latency_ms"] < 30.0

    # the shipped set, to which a processor is a board that nobody measured
    report = call("calibrate", "--gpu", device, "--data", rows, "--out", calibrated)
    assert report["rows"]["gemm"] >= 16
    assert set(report["scalars"]["gemm"]) == {f"{library}|bf16" for library in ("sglang", "trtllm", "vllm")}
    words = (*shape, "--dtype", "bf16")
    before, after = of_linear_layers(call(*words)), of_linear_layers(call(*words, "--artifacts", calibrated))
    assert after["estimators"] == ["gemm"]
    assert after["latency_ms"] != before["latency_ms"]
