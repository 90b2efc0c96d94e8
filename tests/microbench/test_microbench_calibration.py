"""`microbench plan --calibration`: the points to measure, chosen by their shapes alone."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import microbench_cases as cases
import numpy as np
import pytest

from microbench import calibration
from microbench.calibration import GROUPS, choose, in_turns
from microbench.capability import gpu_target
from microbench.cli import main
from microbench.sweep import build
from predictor.data.sampling import cells, one_of_each, spread_out
from predictor.errors import RequestError
from predictor.hardware.gpu import load_gpu
from predictor.ops import Gemm


def test_every_estimator_gets_its_rows_from_the_sweeps_cases() -> None:
    all_cases = cases.plan_of(cases.GPU)
    chosen = choose(all_cases, cases.GPU, 64)
    rows = Counter[str]()
    for group, own in chosen.items():
        rows[group.estimator] += len(own)
    assert rows == {"gemm": 64, "attention": 64, "fp32-gemm": 64, "memory-bound": 64}
    picked = in_turns(chosen)
    assert len({case.id for case in picked}) == 256
    assert {case.id for case in picked} <= {case.id for case in all_cases}
    for case in picked:
        served = case.launcher == "gemm" and case.op.dtype != "fp32"  # whose weights a pass finds in DRAM
        assert case.cache == ("rotating" if served else "warm")
        assert case.protocol == ("eager_events" if case.op.dtype == "fp32" else "cuda_graph")
        assert case.launcher != "tile"
    again = in_turns(choose(all_cases, cases.GPU, 64))
    assert [case.id for case in again] == [case.id for case in picked]


def test_most_of_an_hours_rows_are_such_as_calibrate_reads() -> None:
    plan = cases.plan_of(cases.GPU)
    for many in (300, 1000, 3000):
        share = sum(calibration.reads(case, cases.GPU) for case in plan[:many]) / many
        assert share >= 0.55, many
    assert sum(case.cache == "cold" for case in plan) < 0.1 * len(plan)


def test_rows_of_fp16_are_measured_where_nothing_stands_in_or_they_are_asked_for() -> None:
    plan = cases.plan_of(cases.GPU)
    assert not [case for case in plan if case.op.dtype == "fp16" and case.launcher in ("gemm", "attention", "tile")]
    assert {case.op.dtype for case in build(cases.GPU, ("gemm",), ("fp16",)).cases} == {"fp16"}
    old = build(gpu_target(load_gpu("v100-pcie-32gb")), ("gemm",)).cases
    assert {case.op.dtype for case in old} == {"fp16", "fp32"}


def test_the_beginning_is_balanced_and_shapes_span_the_sweep() -> None:
    all_cases = cases.plan_of(cases.GPU)
    picked = in_turns(choose(all_cases, cases.GPU, 32))
    first = Counter((case.launcher, case.op.dtype) for case in picked[: len(GROUPS)])
    assert set(first) == {(case.launcher, case.op.dtype) for case in picked}
    group = next(g for g in GROUPS if g.name == "linear bf16")
    every = [case for case in all_cases if group.takes(case, cases.GPU)]
    few = choose(all_cases, cases.GPU, 32)[group]

    for measure in (lambda op: op.flops(), lambda op: op.flops() / op.bytes_moved()):
        low, high = np.quantile([measure(case.op) for case in every], (0.1, 0.9))
        values = [measure(case.op) for case in few]
        assert min(values) < low and max(values) > high
    assert all(isinstance(case.op, Gemm) and case.op.layout == "tn" for case in few)


def test_a_board_without_tensor_cores_gets_fp32_alone_and_a_processor_long_calls() -> None:
    old = gpu_target(load_gpu("p100-pcie-16gb"))
    chosen = choose(build(old).cases, old, 16)
    assert {group.estimator for group in chosen} == {"fp32-gemm", "memory-bound"}
    for group, own in choose(cases.plan_of(cases.CPU), cases.CPU, 16).items():
        assert all(case.protocol == "eager_events" for case in own)
        assert not group.alone or min(cases.CPU.seconds(case) for case in own) > 1e-4


def test_a_board_without_cuda_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--gpu", "intel-max-1550"]) == 2
    message = capsys.readouterr().err
    assert "no CUDA compute capability" in message and message.count("\n") == 1


def test_cells_hold_every_point_once_and_are_equally_full() -> None:
    rng = np.random.default_rng(0)
    flops, intensity = rng.normal(size=(2, 205))
    found = cells(flops, intensity, 20)
    assert len(found) == 20
    assert sorted(np.concatenate(found).tolist()) == list(range(205))
    assert max(map(len, found)) - min(map(len, found)) <= 2
    assert len(cells(flops[:3], intensity[:3], 20)) == 3
    assert cells(flops[:0], intensity[:0], 20) == []


def test_the_picked_points_leave_less_open_than_random_ones() -> None:
    rng = np.random.default_rng(1)
    at = rng.uniform(0, 14, (400, 3))
    groups = cells(at.sum(axis=1), at[:, 0], 25)
    picked = spread_out(at, groups, 0)
    assert [int(np.isin(group, picked).sum()) for group in groups] == [1] * 25

    def farthest(chosen: np.ndarray) -> float:  # type: ignore[type-arg]
        """Mean distance of all points from the nearest chosen one."""
        return float(np.sqrt(((at[:, None] - at[chosen][None]) ** 2).sum(axis=2)).min(axis=1).mean())

    random = [farthest(one_of_each(groups, seed)) for seed in range(20)]
    assert farthest(picked) < np.mean(random)


def test_plan_lists_and_writes_what_collect_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cases.json"
    words = ["plan", "--gpu", "h100", "--ops", "gemm", "--dtypes", "bf16", "--calibration", "--rows", "20"]
    assert main([*words, "--out", str(file)]) == 0
    printed = capsys.readouterr().out
    read = calibration.read(file)
    assert len(read) == 20
    assert all(case.id in printed for case in read)
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [entry["case_id"] for entry in document["list"]] == [case.id for case in read]
    assert calibration.runnable(read, cases.GPU) == read
    with pytest.raises(RequestError, match="cuda_graph"):
        calibration.runnable(read, cases.CPU)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--calibration", "--rows", "15"], "16 to 256"),
        (["--calibration", "--rows", "257"], "16 to 256"),
        (["--calibration", "--rows", "0"], "16 to 256"),
        (["--ops", "softmax", "--rows", "64"], "--calibration"),
        (["--calibration", "--ops", "pool"], "no case"),
        (["--calibration", "--ops", "softmax", "--out", "/dev/null/x/cases.json"], "/dev/null"),
    ],
)
def test_wrong_requests(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--gpu", "h100", *words]) == 2
    message = capsys.readouterr().err
    assert said in message and message.count("\n") == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "other"}', '{"format": "microbench-cases", "cases": [{}]}'])
def test_a_file_that_holds_no_cases(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cases.json"
    file.write_text(text)
    out = ["--device", "cpu", "--out", str(tmp_path / "set")]
    assert main(["collect", "--cases", str(file), *out]) == 2
    assert str(file) in capsys.readouterr().err
    assert main(["collect", "--cases", str(tmp_path / "none"), *out]) == 2
    assert "none" in capsys.readouterr().err
    assert main(["collect", "--cases", str(file), "--calibration", "64", *out]) == 2
    assert main(["collect", "--calibration", "5", *out]) == 2


def test_the_plan_says_what_rows_bring(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--gpu", "h100", "--ops", "gemm", "--calibration", "--json", "--rows"]
    brought = []
    for rows in ("32", "128"):
        assert main([*words, rows]) == 0
        entries = json.loads(capsys.readouterr().out)["brings"]
        assert sum(entry["rows"] for entry in entries if entry["estimator"] == "gemm") == int(rows)
        brought.append(next(entry["brings"] for entry in entries if entry["group"] == "linear bf16"))
    known = calibration.EVIDENCE["linear bf16"]
    assert [f"with {rows};" in text for rows, text in zip((16, 64), brought, strict=True)] == [True, True]
    assert known.errors[0] > known.errors[16] > known.errors[64]
    assert known.halfwidths[16] > known.halfwidths[64]
    assert known.command in brought[0]
