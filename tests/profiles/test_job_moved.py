"""`tilecast trace forecast`: steps of a trace on other boards."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import data_folder
from made_traces import MadeTrace, two_products

from predictor.cli.main import main
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.ops.gemm import Gemm
from predictor.profiles.linked import Linked
from predictor.profiles.recorded import Recorded
from predictor.profiles.replay import Replay
from predictor.profiles.steps import steps_of
from predictor.profiles.transfer import Moved, moved


def on(path: Path, gpu: str, old: str = "h100") -> Moved:
    linked = Linked(Recorded(path))
    return moved(linked, steps_of(linked), load_gpu(old), load_gpu(gpu), load_artifacts())


def replayed(path: Path, factor: float = 1.0) -> list[tuple[float, float]]:
    linked = Linked(Recorded(path))
    steps = steps_of(linked)
    length = linked.trace.kernels.length * factor
    return [(step.length_us, Replay(linked, step).run(length[step.rows])) for step in steps]


def test_the_same_board_takes_the_same_time(tmp_path: Path) -> None:
    file = two_products().write(tmp_path / "t.json")
    said = on(file, "h100")
    assert said.latency_ms == pytest.approx(said.measured_ms) == pytest.approx(0.1)
    assert said.kernel_ms == pytest.approx(0.04) and said.unmapped_share == pytest.approx(0.25)


def test_an_operator_scales_as_its_forecasts_do(tmp_path: Path) -> None:
    made = MadeTrace()
    made.step(1, 0.0, 20.0)
    outer = made.call("aten::mm", [[4096, 4096], [4096, 8192]], 1.0, 8.0)
    made.kernel("gemm", 6.0, 500.0, 2.0, outer)
    said = on(made.write(tmp_path / "t.json"), "mi300x")
    op = Gemm("bf16", 4096, 8192, 4096, layout="nn")
    here, there = (
        float(predict_kernels([op], load_gpu(gpu), load_artifacts(), cold=True).latency_s[0])
        for gpu in ("h100", "mi300x")
    )  # fmt: skip
    assert said.kernel_ms == pytest.approx(0.5 * there / here)
    assert said.latency_ms == pytest.approx(0.006 + said.kernel_ms)


def test_a_kernel_without_an_operator_scales_as_memory_does(tmp_path: Path) -> None:
    made = MadeTrace()
    made.step(1, 0.0, 20.0)
    made.kernel("my_elementwise_kernel", 6.0, 500.0, 2.0)
    said = on(made.write(tmp_path / "t.json"), "a100")
    ratio = load_gpu("h100").memory_bandwidth / load_gpu("a100").memory_bandwidth
    assert said.kernel_ms == pytest.approx(0.5 * ratio) and said.unmapped_share == 1.0
    assert any("roofline" in note for note in said.notes)


def test_a_host_that_waits_for_the_gpu_waits_less_for_a_faster_one(tmp_path: Path) -> None:
    """10 us of host, a kernel of 100 launched at 5, a synchronization, 20 us of host."""
    made = MadeTrace()
    made.step(1, 0.0, 130.0)
    made.kernel("k", 10.0, 100.0, 5.0)
    made.event("cuda_runtime", "cudaDeviceSynchronize", 10.0, 100.0)
    file = made.write(tmp_path / "t.json")
    assert replayed(file) == [(130.0, pytest.approx(130.0))]
    assert replayed(file, 0.1)[0][1] == pytest.approx(40.0)
    assert replayed(file, 2.0)[0][1] == pytest.approx(230.0)


def test_a_host_that_is_slower_bounds_the_step(tmp_path: Path) -> None:
    made = MadeTrace()
    made.step(1, 0.0, 1000.0)
    for i in range(10):
        made.kernel("k", 5.0 + 100.0 * i, 50.0, 100.0 * i)
    file = made.write(tmp_path / "t.json")
    assert replayed(file, 0.1)[0][1] == pytest.approx(1000.0)
    # ten kernels of 200, each after the one before
    assert replayed(file, 4.0)[0][1] == pytest.approx(5.0 + 10 * 200.0)


def test_a_stream_waits_for_another_one(tmp_path: Path) -> None:
    """The last kernel waited for communication of 300 us; were that 100 times faster, it waits for its own stream."""
    made = MadeTrace()
    made.step(1, 0.0, 20.0)
    made.kernel("a", 5.0, 50.0, 1.0)
    made.kernel("ncclDevKernel", 55.0, 300.0, 2.0, stream=9)
    made.kernel("b", 355.0, 50.0, 3.0)
    linked = Linked(Recorded(made.write(tmp_path / "t.json")))
    (step,) = steps_of(linked)
    run = Replay(linked, step).run
    assert run(np.array([50.0, 300.0, 50.0])) == pytest.approx(405.0)
    assert run(np.array([50.0, 3.0, 50.0])) == pytest.approx(108.0)


def test_the_interval_is_narrower_than_one_from_nothing(tmp_path: Path) -> None:
    made = MadeTrace()
    made.step(1, 0.0, 20.0)
    outer = made.call("aten::mm", [[4096, 4096], [4096, 8192]], 1.0, 8.0)
    made.kernel("gemm", 6.0, 5e5, 2.0, outer)
    said = on(made.write(tmp_path / "t.json"), "a100")
    table = predict_kernels(
        [Gemm("bf16", 4096, 8192, 4096, layout="nn")], load_gpu("a100"), load_artifacts(), cold=True
    )
    assert table.spread is not None
    low, high = said.interval_ms
    assert low < said.latency_ms < high
    assert math.log(high / low) <= math.log(float(table.spread.high_s[0] / table.spread.low_s[0])) * 1.0001


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_words_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(two_products().write(tmp_path / "t.json"))
    said = _json(capsys, "trace", "forecast", file, "--gpu", "b200")
    assert {"latency_ms", "interval_ms", "unmapped_share"} <= set(said) and said["measured_on"] == "h100-sxm"
    both = _json(capsys, "trace", "forecast", file, "--gpu", "b200,a100")
    assert [entry["gpu"] for entry in both["gpus"]] == ["b200-sxm", load_gpu("a100").id]
    slow = _json(capsys, "trace", "forecast", file, "--gpu", "h100", "--set", "memory_bandwidth=1TB/s")
    assert slow["kernel_ms"] > 0.04
    assert main(["trace", "forecast", file, "--gpu", "b200"]) == 0
    assert "ms a step" in capsys.readouterr().out


def test_an_unknown_board_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(two_products("Some Board 9000").write(tmp_path / "t.json"))
    assert main(["trace", "forecast", file, "--gpu", "b200"]) == 2
    assert "--measured-on" in capsys.readouterr().err
    assert _json(capsys, "trace", "forecast", file, "--gpu", "b200", "--measured-on", "h100")["latency_ms"] > 0


def test_a_dtype_that_a_board_lacks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(two_products().write(tmp_path / "t.json"))
    assert main(["trace", "forecast", file, "--gpu", "p100"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("here", "there"), [("h100-sxm", "mi300x"), ("mi300x", "h100-sxm")])
def test_a_public_pair(here: str, there: str) -> None:
    data = data_folder()
    if data is None or not (data / "traces").is_dir():
        pytest.skip("needs the public traces")
    files = {gpu: data / "traces" / f"{gpu.split('-')[0]}-qwen1.5-0.5b.json.gz" for gpu in (here, there)}
    said, truth = on(files[here], there, here), on(files[there], there, there)
    assert said.latency_ms == pytest.approx(truth.measured_ms, rel=0.15)
    assert on(files[here], here, here).latency_ms == pytest.approx(said.measured_ms)
