"""`tilecast trace show`: figures by hand on made traces, and the shares of public ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import data_folder
from made_traces import MadeTrace, two_products

from predictor.cli.main import main
from predictor.profiles.kernel_names import class_of
from predictor.profiles.linked import Linked
from predictor.profiles.recorded import Recorded
from predictor.profiles.steps import steps_of
from predictor.profiles.summary import summary


def show(path: Path, capture: Path | None = None) -> dict[str, Any]:
    linked = Linked(Recorded(path), Recorded(capture) if capture else None)
    return summary(linked, steps_of(linked))


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_figures_are_those_of_the_timestamps(tmp_path: Path, name: str) -> None:
    said = show(two_products().write(tmp_path / name))
    assert said["gpu"] == "h100-sxm"
    (step,) = said["steps"]
    assert step["ms"] == pytest.approx(0.1) and step["busy_ms"] == pytest.approx(0.04)
    assert said["busy_share"] == pytest.approx(0.4)
    # 0 to 1 until the first launch begins; 35 to 59 until the last one
    assert step["waits_for_host_ms"] == pytest.approx(0.025)
    assert step["largest_gap_us"] == pytest.approx(30.0)
    assert said["launch_overhead_us"] == pytest.approx(4.0) and said["launches"] == 3
    assert said["mapped_share"] == pytest.approx(0.75)
    assert [entry["class"] for entry in said["classes"]] == ["linear", "other (unmapped)"]


def test_work_from_before_the_trace_belongs_to_no_step(tmp_path: Path) -> None:
    """The step begins when the GPU is done with it."""
    made = MadeTrace()
    made.kernel("earlier", -50.0, 80.0, None)
    made.step(1, 0.0, 40.0)
    made.kernel("own", 31.0, 20.0, 2.0)
    said = show(made.write(tmp_path / "t.json"))
    assert [step["ms"] for step in said["steps"]] == [pytest.approx(0.021)]
    assert said["steps"][0]["kernels"] == 1 and "1 kernels" in said["notes"][0]


def test_a_host_that_runs_ahead_leaves_steps_one_after_the_other(tmp_path: Path) -> None:
    made = MadeTrace()
    for number in range(3):
        made.step(number, 10.0 * number, 10.0)
        made.kernel("k", 5.0 + 100.0 * number, 100.0, 10.0 * number + 1.0)
    said = show(made.write(tmp_path / "t.json"))
    assert [step["ms"] for step in said["steps"]] == [pytest.approx(ms) for ms in (0.105, 0.1, 0.1)]
    assert said["bound"] == "gpu"


def test_kernels_that_come_again_are_steps(tmp_path: Path) -> None:
    made = MadeTrace()
    for turn in range(4):
        for place, name in enumerate(("a", "b", "c", "b")):
            at = 100.0 * turn + 10.0 * place
            made.kernel(name, at + 5.0, 5.0, at)
    assert [step["kernels"] for step in show(made.write(tmp_path / "t.json"))["steps"]] == [4, 4, 4, 4]


def test_a_replay_has_the_shapes_of_its_capture(tmp_path: Path) -> None:
    capture, replay = MadeTrace(), MadeTrace()
    for width in (512, 1024):
        outer = capture.call("aten::mm", [[64, 256], [256, width]], width, 9.0)
        capture.event("cuda_runtime", "cudaLaunchKernel", width + 1.0, 2.0, correlation=width, **{"External id": outer})
    replay.event("cuda_runtime", "cudaGraphLaunch", 0.0, 5.0, correlation=77)
    for at in (10.0, 20.0):
        replay.event("kernel", "gemm", at, 5.0, correlation=77, stream=7)
    files = capture.write(tmp_path / "c.json"), replay.write(tmp_path / "r.json")
    assert show(files[1])["mapped_share"] == 0.0 and "--capture" in show(files[1])["notes"][0]
    said = show(files[1], files[0])
    assert said["mapped_share"] == 1.0
    assert {entry["shape"] for entry in said["operators"]} == {
        f"linear bf16 m=64 n={n} k=256 layout=nn" for n in (512, 1024)
    }


def test_a_capture_of_another_graph_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replay = MadeTrace()
    replay.event("cuda_runtime", "cudaGraphLaunch", 0.0, 5.0, correlation=77)
    replay.event("kernel", "gemm", 10.0, 5.0, correlation=77, stream=7)
    file, other = replay.write(tmp_path / "r.json"), two_products().write(tmp_path / "o.json")
    assert main(["trace", "show", str(file), "--capture", str(other)]) == 2
    assert "expected the trace of that graph's capture" in capsys.readouterr().err


def test_time_is_told_by_module(tmp_path: Path) -> None:
    made = two_products()
    made.event("python_function", "nn.Module: Linear_3", 0.0, 7.0)
    made.event("python_function", "nn.Module: Linear_4", 7.0, 20.0)
    modules = {entry["module"]: entry["ms"] for entry in show(made.write(tmp_path / "t.json"))["modules"]}
    assert modules == {"Linear": pytest.approx(0.03), "outside of modules": pytest.approx(0.01)}


def test_communication_is_exposed_where_nothing_else_runs(tmp_path: Path) -> None:
    made = MadeTrace()
    made.step(1, 0.0, 100.0)
    made.kernel("gemm", 0.0, 40.0, 0.0)
    outer = made.call("record_param_comms", [[1024]], 1.0, 5.0)
    made.events[-1]["args"] |= {
        "Collective name": "allreduce", "Group size": 8, "In msg nelems": 1024, "dtype": "BFloat16",
    }  # fmt: skip
    made.kernel("ncclDevKernel", 20.0, 50.0, 2.0, outer, stream=9)
    said = show(made.write(tmp_path / "t.json"))
    assert said["steps"][0]["exposed_communication_ms"] == pytest.approx(0.03)
    assert {entry["class"] for entry in said["classes"]} == {"all_reduce", "gemm (unmapped)"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Cijk_Alik_Bljk_BBS_BH_MT256x192x64", "gemm"), ("void pytorch_flash::flash_fwd_kernel<x>", "attention"),
        ("ncclDevKernel_AllReduce_Sum_bf16", "collective"), ("triton_poi_fused_add_3", "element-wise"),
        ("triton_red_fused_mean_1", "reduction"), ("Memset (Device)", "copy"),
        ("void at::native::vectorized_layer_norm_kernel<x>", "norm"),
    ],
)  # fmt: skip
def test_names_tell_classes(name: str, kind: str) -> None:
    assert class_of(name) == kind


@pytest.mark.parametrize(
    ("name", "capture", "share"),
    [
        ("h100-qwen1.5-0.5b", "", 0.9), ("h100-vit", "", 0.9), ("mi300x-qwen1.5-0.5b", "", 0.9),
        ("mi300x-resnet-train", "", 0.6), ("mi300x-sglang-qwen3-8b-prefill-decode", "", 0.9),
        ("mi300x-sglang-decode-execution", "mi300x-sglang-decode-capture-bs32", 0.8),
    ],
)  # fmt: skip
def test_public_traces_map(name: str, capture: str, share: float) -> None:
    data = data_folder()
    if data is None or not (data / "traces").is_dir():
        pytest.skip("needs the public traces")
    folder = data / "traces"
    file = folder / f"{name}.json.gz"
    said = show(file, folder / f"{capture}.json.gz" if capture else None)
    assert said["mapped_share"] >= share


def test_a_person_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = two_products().write(tmp_path / "t.json")
    assert main(["trace", "show", str(file)]) == 0
    assert "busy 40.0%" in capsys.readouterr().out
    assert main(["trace", "show", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mapped_share"] == pytest.approx(0.75)
