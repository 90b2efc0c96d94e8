"""`trace compare`, `trace record` and `calibrate --trace`; a processor's trace goes through them all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_traces import MadeTrace, two_products

from predictor.cli.main import main
from predictor.hardware.gpu import load_gpu
from predictor.profiles.linked import Linked
from predictor.profiles.recorded import Recorded
from predictor.profiles.rows import rows_of
from predictor.profiles.steps import steps_of

SCRIPT = """
import sys
import torch
x, w = torch.randn(32, 64), torch.randn(64, 128)
for _ in range(int(sys.argv[1])):
    y = torch.relu(x @ w)
    torch.softmax(y, -1)
"""


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_operators_stand_by_what_they_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = MadeTrace()
    made.step(1, 0.0, 20.0)
    for at, (width, took) in enumerate(((4096, 900.0), (4095, 5000.0))):
        outer = made.call("aten::mm", [[4096, 4096], [4096, width]], 1.0 + at, 0.5)
        made.kernel("gemm", 10.0 + 1000.0 * at, took, 1.2 + at, outer)
    file = str(made.write(tmp_path / "t.json"))
    first, second = _json(capsys, "trace", "compare", file)["operators"]
    assert first["measured_us"] == 5000.0 and first["why"].startswith("unaligned: n=4095")
    assert first["cost_ms"] == pytest.approx(5.0 - first["forecast_us"] / 1e3)
    assert abs(second["cost_ms"]) < abs(first["cost_ms"])
    assert main(["trace", "compare", file, "--top", "1"]) == 0
    assert "unaligned" in capsys.readouterr().out


def test_rows_are_medians_of_the_calls_of_a_shape(tmp_path: Path) -> None:
    made = MadeTrace()
    made.step(1, 0.0, 100.0)
    for i, took in enumerate((10.0, 30.0, 20.0)):
        outer = made.call("aten::mm", [[64, 64], [64, 64]], 5.0 * i, 4.0)
        made.kernel("gemm", 40.0 * i, took, 5.0 * i + 1.0, outer)
    linked = Linked(Recorded(made.write(tmp_path / "t.json")))
    (row,) = rows_of(linked, steps_of(linked), load_gpu("h100")).to_dict("records")
    assert (row["op"], row["protocol"], row["gpu"]) == ("gemm", "profiler", "h100-sxm")
    assert (row["latency_ms"], row["latency_max_ms"], row["samples"]) == (0.02, 0.03, 3)


def test_a_trace_without_shapes_calibrates_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = MadeTrace()
    made.step(1, 0.0, 100.0)
    made.kernel("gemm", 5.0, 10.0, 1.0)
    file = str(made.write(tmp_path / "t.json"))
    assert main(["calibrate", "--trace", file, "--out", str(tmp_path / "set"), "--tracking-uri", "off"]) == 2
    assert "record_shapes" in capsys.readouterr().err


def test_one_source_of_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(two_products().write(tmp_path / "t.json"))
    assert main(["calibrate", "--trace", file, "--data", file, "--gpu", "h100", "--out", str(tmp_path / "s")]) == 2
    assert main(["calibrate", "--data", file, "--out", str(tmp_path / "s")]) == 2
    assert "expected --gpu NAME" in capsys.readouterr().err


def test_fp32_rows_of_a_trace_adapt_a_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Element-wise kernels that take three times their forecast, and softmax."""
    made = MadeTrace()
    made.step(1, 0.0, 1e6)
    for i in range(24):
        n = 2**20 * (i + 4)
        outer = made.call("aten::mul", [[n], [n]], 1000.0 * i, 9.0, types=["float", "float"])
        made.kernel("vectorized_elementwise_kernel", 1000.0 * i + 20.0, 2e-5 * n, 1000.0 * i + 1.0, outer)
    file, out = str(made.write(tmp_path / "t.json")), tmp_path / "set"
    said = _json(capsys, "calibrate", "--trace", file, "--out", str(out), "--tracking-uri", "off")
    assert said["gpu"] == "h100-sxm" and said["rows"]["memory-bound"] == 24
    assert said["after_mean_ape_pct"]["memory-bound"] <= said["before_mean_ape_pct"]["memory-bound"] / 2
    assert (out / "manifest.json").is_file()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("recorded")
    script, out = folder / "job.py", folder / "t.json.gz"
    script.write_text(SCRIPT)
    assert main(["trace", "record", str(script), "4", "--out", str(out)]) == 0
    return out


def test_a_recorded_trace_of_a_processor(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = _json(capsys, "trace", "show", str(recorded))
    assert said["gpu"] is None and "of a CPU alone" in said["notes"][0]
    assert {"linear", "element-wise", "softmax"} <= {entry["class"] for entry in said["classes"]}
    products = [entry for entry in said["operators"] if "linear" in entry["shape"]]
    assert [entry["shape"] for entry in products] == ["linear fp32 m=32 n=128 k=64 layout=nn"]
    forecast = _json(capsys, "trace", "forecast", str(recorded), "--gpu", "a100")
    assert forecast["latency_ms"] > 0 and any("from nothing" in note for note in forecast["notes"])
    assert main(["trace", "compare", str(recorded)]) == 2
    assert "--measured-on" in capsys.readouterr().err
    compared = _json(capsys, "trace", "compare", str(recorded), "--measured-on", "a100")["operators"]
    assert {"aten::mm", "aten::_softmax"} <= {each["operator"] for each in compared}
    out = str(recorded.parent / "set")
    words = ["calibrate", "--trace", str(recorded), "--out", out, "--gpu", "a100", "--tracking-uri", "off"]
    assert main(words) in (0, 2)  # three shapes are too few to calibrate with: one line
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"), [("raise ValueError('no')", "raised ValueError: no"), ("import sys; sys.exit(3)", "status 3")]
)
def test_a_script_that_fails_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "job.py"
    script.write_text(text)
    assert main(["trace", "record", str(script), "--out", str(tmp_path / "t.json")]) == 2
    error = capsys.readouterr().err
    assert said in error and not (tmp_path / "t.json").exists()


def test_a_recording_never_replaces_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "job.py"
    script.write_text("pass")
    assert main(["trace", "record", str(script), "--out", str(script)]) == 2
    assert script.read_text() == "pass"
