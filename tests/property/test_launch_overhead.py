"""The host's launch overhead: a parameter of eager runs, and of no other."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import predictor
from predictor.cli.main import main
from predictor.errors import RequestError
from predictor.hardware.gpu import GPU_DIR, load_gpu
from predictor.request.workload import DEFAULT_LAUNCH_OVERHEAD_S

MODELS = st.sampled_from(["gpt2", "gemma-2-2b", "mixtral-8x7b"])
GPUS = st.sampled_from(["v100", "l4", "h100"])
MODES = st.sampled_from(["forward", "train", "decode"])
SMALL: dict[str, Any] = {"batch": 1, "seq_len": 32}


def forecast(model: str, gpu: object, mode: str, overhead: str | float | None, **more: Any) -> predictor.Prediction:
    sizes = {"batch": 1, "context_len": 32} if mode == "decode" else SMALL
    return predictor.predict(model, gpu, mode=mode, launch_overhead=overhead, **sizes, **more)  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(MODELS, GPUS, MODES, st.lists(st.floats(1e-7, 9e-4), min_size=2, max_size=4))
def test_a_slower_host_is_never_faster(model: str, gpu: str, mode: str, overheads: list[float]) -> None:
    found = [forecast(model, gpu, mode, value) for value in sorted(overheads)]
    times = [answer.latency_s for answer in found]
    assert times == sorted(times)
    for answer, overhead in zip(found, sorted(overheads), strict=True):
        calls = answer.cpu_busy_s / overhead
        assert calls == pytest.approx(found[0].cpu_busy_s / min(overheads))  # the calls are the graph's
        assert answer.latency_s >= max(answer.cpu_busy_s, answer.gpu_busy_s) * (1 - 1e-12)


@settings(max_examples=15, deadline=None)
@given(MODELS, GPUS, MODES)
def test_a_host_that_costs_nothing_leaves_the_gpu_timeline(model: str, gpu: str, mode: str) -> None:
    answer = forecast(model, gpu, mode, 1e-15, kernel_gap=0)
    assert answer.latency_s == pytest.approx(answer.gpu_busy_s, rel=1e-6)
    assert not answer.launch_bound


@settings(max_examples=15, deadline=None)
@given(MODELS, GPUS, st.sampled_from(["cuda_graph", "compile"]), st.floats(1e-7, 9e-4))
def test_a_captured_graph_does_not_depend_on_it(model: str, gpu: str, execution: str, overhead: float) -> None:
    times = {
        forecast(model, gpu, "forward", value, execution=execution).latency_s for value in (None, overhead, "900us")
    }
    assert len(times) == 1


def test_the_default_is_the_same_as_naming_it() -> None:
    named = forecast("gpt2", "h100", "forward", f"{DEFAULT_LAUNCH_OVERHEAD_S * 1e6:g}us")
    assert forecast("gpt2", "h100", "forward", None).latency_s == pytest.approx(named.latency_s)


def interval(gpu: str | Path, overhead: str | None, **more: object) -> tuple[float, float]:
    found = forecast("gpt2", gpu, "forward", overhead, **more).interval_s
    assert found is not None
    return found


def test_the_interval_asks_whether_the_overhead_was_given_not_which_it_is(tmp_path: Path) -> None:
    assumed, named, beside = (interval("h100", value) for value in (None, "6us", "6.0000001us"))
    assert named == pytest.approx(beside, rel=1e-6)
    assert assumed[0] < named[0] and assumed[1] > 1.5 * named[1]  # hosts need 4 to 12 us
    path = gpu_file(tmp_path, 'launch_overhead: {value: "6 us", source: "made up"}\n')
    assert interval(path, None) == pytest.approx(interval("v100-pcie-32gb", "6us"))
    native = [interval("h100", value, execution="fastertransformer") for value in (None, "3us", "3.0000001us")]
    assert native[1] == pytest.approx(native[2], rel=1e-6)
    assert native[0][0] < native[1][0] and native[0][1] > native[1][1]


def test_the_answer_says_whether_it_was_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "--model", "gpt2", "--gpu", "h100", "--seq-len", "16"]
    for more, said in (([], ["launch_overhead=6us"]), (["--launch-overhead", "6us"], [])):
        assert main([*words, *more, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["assumed"] == said
        assert main([*words, *more]) == 0
        assert ("launch-overhead 6 us (assumed)" in capsys.readouterr().out.splitlines()[0]) == bool(said)
    assert main([*words, "--execution", "cuda_graph", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["assumed"] == []


def gpu_file(folder: Path, entry: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text((GPU_DIR / "v100-pcie-32gb.yaml").read_text(encoding="utf-8") + entry, encoding="utf-8")
    return path


def test_a_gpu_file_names_its_host(tmp_path: Path) -> None:
    path = gpu_file(tmp_path, 'launch_overhead: {value: "20 us", source: "made up"}\n')
    assert load_gpu(path).sources["launch_overhead"] == "made up"
    own = forecast("gpt2", path, "forward", None)
    assert own.latency_s == pytest.approx(forecast("gpt2", "v100-pcie-32gb", "forward", 20e-6).latency_s)
    assert forecast("gpt2", path, "forward", "5us").workload.launch_overhead_s == pytest.approx(5e-6)


def test_an_absurd_host_of_a_gpu_file_is_refused_by_the_file_name(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"mine\.yaml.*launch_overhead is 5 ms"):
        forecast("gpt2", gpu_file(tmp_path, 'launch_overhead: "5 ms"\n'), "forward", None)


@pytest.mark.parametrize("value", ["6", "0us", "-1us", "1ms", "6 kg", "soon", 0.0, -1e-6, 1.0, float("nan"), True])
def test_what_is_no_launch_overhead(value: str | float) -> None:
    with pytest.raises(RequestError) as caught:
        forecast("gpt2", "h100", "forward", value)
    assert "--launch-overhead" in str(caught.value)
    assert "expected" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_answer_says_what_was_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "--model", "gpt2", "--gpu", "h100", "--seq-len", "16"]
    assert main([*words, "--launch-overhead", "7.5us", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["launch_overhead_us"] == pytest.approx(7.5)
    assert answer["launch_bound"] is True
    assert main([*words, "--launch-overhead", "7.5us"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "launch-overhead 7.50 us" in lines[0] or "launch-overhead 7.5 us" in lines[0]
    assert any("bound by    the CPU" in line for line in lines)
    assert main([*words, "--launch-overhead", "7.5us", "--execution", "cuda_graph", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["launch_overhead_us"] is None


def test_a_suite_may_name_the_host_of_each_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = Path(predictor.__file__).parent / "models" / "built" / "configs"
    row = {"config": "gpt2", "mode": "forward", "gpu": "v100", "dtype": "fp32", "seq_len": 16, "measured_ms": 5}
    with (tmp_path / "suite.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["case", *row, "launch_overhead_us"])
        writer.writeheader()
        for name, overhead in (("default", ""), ("six", "6"), ("slow", "20"), ("absurd", "20000")):
            writer.writerow({"case": name, **row, "launch_overhead_us": overhead})
    out = tmp_path / "rows.csv"
    assert (
        main(["evaluate", "workloads", str(tmp_path / "suite.csv"), "--configs", str(configs), "--out", str(out)]) == 0
    )
    capsys.readouterr()
    with out.open(newline="") as file:
        found = {line["case"]: line for line in csv.DictReader(file)}
    default, six, slow = (float(found[name]["predicted_ms"]) for name in ("default", "six", "slow"))
    assert default == pytest.approx(six)
    assert slow > 2 * six
    assert found["absurd"]["predicted_ms"] == ""
    assert "20000 us" in found["absurd"]["note"]
