"""`microbench launch-overhead` as a real process on the processor, and its figure handed to `predict`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from microbench_runs import ROOT, microbench

import predictor
from predictor.cli.main import main
from predictor.hardware.gpu import GPU_DIR

pytest.importorskip("torch")


def test_its_last_line_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = microbench("launch-overhead", "--device", "cpu", "--budget", "1s").stdout.splitlines()
    assert re.match(r"[\d.]+ us a framework call \(mean of \d+ kinds", lines[0])
    assert re.fullmatch(r"predict --launch-overhead [\d.]+us", lines[-1])
    words = lines[-1].split()
    assert main([words[0], "--model", "gpt2", "--gpu", "v100", "--seq-len", "16", "--json", *words[1:]]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["launch_overhead_us"] == pytest.approx(float(words[-1].removesuffix("us")))


def test_the_figure_is_the_mean_of_the_calls_and_fits_a_gpu_file(tmp_path: Path) -> None:
    out = tmp_path / "new" / "host.yaml"
    done = microbench("launch-overhead", "--device", "cpu", "--budget", "1s", "--json", "--out", out)
    found = json.loads(done.stdout)
    calls = list(found["calls_us"].values())
    assert found["launch_overhead_us"] == pytest.approx(sum(calls) / len(calls), rel=0.02)
    assert all(0.05 < value < 1000 for value in calls)  # a Python call takes no less, a busy machine not that much
    assert found["typical_us"] >= 0.99 * found["launch_overhead_us"]  # no middle batch beats the quickest
    assert found["calls_us"]["transpose"] < found["calls_us"]["linear"]  # a view does no work
    assert found["null_kernel_us"] is None
    entry = yaml.safe_load(out.read_text(encoding="utf-8"))["launch_overhead"]
    board = tmp_path / "board.yaml"
    board.write_text(
        (GPU_DIR / "t4.yaml").read_text(encoding="utf-8") + yaml.safe_dump({"launch_overhead": entry}), encoding="utf-8"
    )
    answer = predictor.predict("gpt2", board, seq_len=16)
    assert answer.workload.launch_overhead_s == pytest.approx(found["launch_overhead_us"] * 1e-6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "cpu", "--out", "host.txt"), ".yaml"),
        (("--device", "cpu", "--budget", "soon"), "soon"),
        ((), "--device cpu"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], said: str) -> None:
    done = microbench("launch-overhead", *words, status=2, CUDA_VISIBLE_DEVICES="")
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


@pytest.mark.parametrize("verb", ["launch-overhead", "collect", "workload"])
def test_a_place_below_a_file_is_refused(verb: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    suite = [ROOT / "microbench" / "to_measure" / "hopper.csv"] if verb == "workload" else []
    out = tmp_path / "file" / {"launch-overhead": "host.yaml", "collect": "set", "workload": "rows.csv"}[verb]
    done = microbench(verb, *suite, "--device", "cpu", "--out", out, status=2)
    assert len(done.stderr.splitlines()) == 1
    assert f"{tmp_path / 'file'} is a file; expected a folder" in done.stderr


@pytest.mark.parametrize(
    ("uri", "status", "said"),
    [("nosuch://there", 2, "no such address"), ("http://127.0.0.1:9", 1, "cannot be reached")],
)
def test_a_tracking_uri_is_tried_before_anything_is_measured(uri: str, status: int, said: str, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    out = tmp_path / "set"
    done = microbench(
        "collect", "--device", "cpu", "--budget", "60s", "--out", out, "--tracking-uri", uri, status=status
    )
    assert said in done.stderr.splitlines()[-1]
    assert not out.exists()
