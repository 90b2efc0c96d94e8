"""The harness's parts that need no torch: cases, sweeps, the stopping rule, files, boards, reports."""

from __future__ import annotations

import errno
import json
import math
import os
from collections import Counter
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from microbench_cases import CASE, CPU, GPU, plan, plan_of, row_of, softmax

from microbench import boards, capability, environment, nvml, stopping, storage, sweep, workload
from microbench.calibration import reads
from microbench.case import Case, op_from
from microbench.own_ops import Ceiling
from microbench.writer import FAILURES, JOURNAL, MEASUREMENTS, OpFolder, read_parquet, read_rows, to_parquet
from predictor.errors import RequestError, SpecError, UnknownNameError
from predictor.ops import Gemm

# -------------------------------------------------------------------------------------------------------------- cases


def test_a_case_id_is_the_same_tomorrow() -> None:
    assert CASE.id == "6fa3de41c954d26b"
    assert replace(CASE, cache="cold").id != CASE.id != replace(CASE, protocol="cuda_graph").id


def test_a_case_survives_json() -> None:
    for case in (CASE, Case("ceiling", Ceiling("fp32", "matmul", 64)), Case("gemm", CASE.op, (("impl", "loop"),))):
        assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case


@pytest.mark.parametrize(
    "cells", [{"op": "gem", "dtype": "bf16"}, {"op": "softmax", "dtype": "fp32", "rows": 1, "cols": 1, "width": 2}]
)
def test_an_unknown_operator_or_field_is_refused(cells: dict[str, Any]) -> None:
    with pytest.raises((UnknownNameError, SpecError)):
        op_from(cells)


# ----------------------------------------------------------------------------------------------------------- stopping


def test_the_half_width_covers_the_median() -> None:
    draw = np.random.default_rng(3)
    hits = 0
    for _ in range(300):
        samples = draw.lognormal(0.0, 0.1, 30).tolist()
        width = stopping.median_half_width(samples)
        hits += abs(np.median(samples) - 1.0) <= 2 * width * np.median(samples)
    assert hits >= 285
    assert stopping.median_half_width([1.0] * 5) == math.inf
    assert stopping.median_half_width([1.0] * 6) == 0.0


def test_the_rule_stops_for_one_of_three_reasons() -> None:
    rule = stopping.StoppingRule(noise=0.01, min_samples=10, max_samples=20, timeout_s=1.0)
    assert not rule.done(5.0)  # not without a sample
    rule.add([1.0] * 9)
    assert not rule.done(0.5)
    assert rule.done(1.0) and rule.reason == "timeout"
    rule.add([1.0])
    assert rule.done(0.1) and rule.reason == "precise"
    noisy = stopping.StoppingRule(0.01, 10, 20, 1.0, [1.0, 2.0] * 10)
    assert noisy.done(0.1) and noisy.reason == "max_samples"


# -------------------------------------------------------------------------------------------------------------- files


def test_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = storage.Journal(path)
    journal.append({"case_id": "1"})
    journal.append({"case_id": "2"})
    journal.close()
    whole = path.read_bytes()
    for cut in range(1, len(whole) // 2):
        path.write_bytes(whole[:-cut])
        assert storage.read_journal(path)[0] == [{"case_id": "1"}]
        again = storage.Journal(path)
        again.append({"case_id": "3"})
        again.close()
        assert storage.read_journal(path)[0] == [{"case_id": "1"}, {"case_id": "3"}]


def test_a_flipped_bit_is_a_broken_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(storage.encode({"case_id": "1"}).replace(b'1"}', b'7"}') + storage.encode({"case_id": "2"}))
    documents, _, broken = storage.read_journal(path)
    assert documents == [{"case_id": "2"}] and broken == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_refused_write_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    journal = storage.Journal(tmp_path / "journal.jsonl")
    journal.append({"case_id": "1"})
    real = os.write

    def half(handle: int, data: Any) -> int:
        real(handle, bytes(data)[: len(data) // 2])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(storage.os, "write", half)
    with pytest.raises(storage.StorageError, match="cannot write"):
        journal.append({"case_id": "2"})
    monkeypatch.undo()
    journal.append({"case_id": "3"})
    assert storage.read_journal(tmp_path / "journal.jsonl")[0] == [{"case_id": "1"}, {"case_id": "3"}]


def test_an_atomic_write_leaves_no_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    storage.write_atomic(path, b"old")

    def refuse(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", refuse)
    with pytest.raises(storage.StorageError, match="the disk is full"):
        storage.write_atomic(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_rows_move_from_the_journal_into_the_file_once(tmp_path: Path) -> None:
    folder = OpFolder(tmp_path, "h100-sxm/softmax/stack")
    for rows in (1, 2, 3):
        folder.append(row_of(softmax(rows)))
    journal = (folder.path / JOURNAL).read_bytes()
    folder.compact()
    folder.close()
    assert len(read_parquet(folder.path / MEASUREMENTS)) == 3 and not (folder.path / JOURNAL).read_bytes()
    # A crash after the file was replaced and before the journal was emptied:
    (folder.path / JOURNAL).write_bytes(journal)
    assert len(read_rows(folder.path)) == 3
    again = OpFolder(tmp_path, "h100-sxm/softmax/stack")
    assert len(again.done) == 3
    with pytest.raises(SpecError, match="has a row"):
        again.append(row_of(softmax(1)))
    again.append(row_of(softmax(4)))
    again.compact()
    again.close()
    rows = read_parquet(folder.path / MEASUREMENTS)
    assert [row["source_row"] for row in rows] == [1, 2, 3, 4] and len({row["case_id"] for row in rows}) == 4
    assert rows[0]["source_file"] == f"h100-sxm/softmax/stack/{MEASUREMENTS}"


def test_failures_are_appended_after_a_torn_line(tmp_path: Path) -> None:
    folder = OpFolder(tmp_path, "g/softmax/s")
    folder.fail({"case_id": "one", "kind": "illegal"})
    folder.close()
    path = folder.path / FAILURES
    path.write_bytes(path.read_bytes() + b'{"case_id": "tw')
    again = OpFolder(tmp_path, "g/softmax/s")
    again.fail({"case_id": "three", "kind": "illegal"})
    assert again.failed == {"one", "three"}
    again.close()
    assert [json.loads(line)["case_id"] for line in path.read_text().splitlines()] == ["one", "three"]


def test_leftover_temporaries_are_removed(tmp_path: Path) -> None:
    (tmp_path / f".measurements.parquet.99{storage.TEMPORARY}").write_bytes(b"half")
    assert storage.remove_temporaries(tmp_path) == 1 and not list(tmp_path.iterdir())


def test_the_lock_is_one_process_deep(tmp_path: Path) -> None:
    with storage.FolderLock(tmp_path) as first:
        first.acquire()
        with pytest.raises(storage.LockedError, match=f"process {os.getpid()}"):
            storage.FolderLock(tmp_path).acquire(0.3)
    second = storage.FolderLock(tmp_path)
    second.acquire()
    second.release()


def test_a_file_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / MEASUREMENTS
    path.write_bytes(to_parquet([row_of(CASE)]).replace(b'"schema_version": 1', b'"schema_version": 9'))
    with pytest.raises(SpecError, match=r"cannot be read|schema version"):
        read_parquet(path)


# ------------------------------------------------------------------------------------------------------------- sweeps


def test_every_launcher_has_a_sweep_and_every_sweep_a_launcher() -> None:
    from microbench import launchers

    assert set(sweep.sweep_names()) == set(launchers.LAUNCHERS) - {"ceiling"}


def test_a_plan_is_the_same_everywhere_and_has_no_case_twice() -> None:
    first, second = plan("cuda"), sweep.build(GPU)
    ids = [case.id for case in first.cases]
    assert ids == [case.id for case in second.cases] and len(set(ids)) == len(ids) > 15_000
    assert sum(first.left_out.values()) > 0


def test_every_beginning_of_a_plan_is_balanced() -> None:
    for target, least in ((GPU, 15), (CPU, 14)):
        cases = plan_of(target)
        for n in (200, 1000):
            launchers = Counter(case.launcher for case in cases[:n])
            assert len(launchers) >= least
            assert launchers["gemm"] < 0.4 * n
            products = [case for case in cases[:n] if case.launcher == "gemm"]
            read, others = (Counter(c.op.dtype for c in products if reads(c, target) == told) for told in (True, False))
            assert max(read.values()) < 4 * min(read.values())  # what calibrate reads comes more often
            assert max(others.values()) < 0.6 * others.total() and {*read, *others} >= {"bf16", "fp32"}
            sizes = sorted(case.op.flops() for case in cases[:n] if case.launcher == "gemm")
            assert sizes[len(sizes) * 3 // 4] > 5 * sizes[len(sizes) // 4]


def test_shapes_are_aligned_and_awkward() -> None:
    sizes = [case.op.n for case in sweep.build(GPU, ("gemm",), ("bf16",)).cases if isinstance(case.op, Gemm)]
    powers = sum(size & (size - 1) == 0 for size in sizes) / len(sizes)
    odd = sum(size % 8 != 0 for size in sizes) / len(sizes)
    assert 0.25 < powers < 0.65 and 0.1 < odd < 0.4


def test_a_plan_holds_forward_and_backward_cold_and_warm() -> None:
    cases = plan_of(GPU)
    assert {case.phase for case in cases if case.launcher == "attention"} == {"forward", "backward"}
    assert {(case.cache, case.protocol) for case in cases if case.launcher == "norm"} == {
        ("warm", "cuda_graph"),
        ("cold", "eager_events"),
        ("warm", "eager_events"),
    }
    assert {"nn", "nt", "tn"} == {case.op.layout for case in cases if isinstance(case.op, Gemm)}


def test_tile_probes_fill_the_waves_that_they_ask_for() -> None:
    waves = set()
    for case in sweep.build(GPU, ("tile",)).cases:
        assert isinstance(case.op, Gemm)
        rows, columns, _ = (int(part) for part in str(case.option("tile")).split("x"))
        assert case.op.m % rows == 0 and case.op.n % columns == 0
        waves.add(case.op.m // rows * case.op.n // columns / GPU.units)
    assert {1 / GPU.units, 0.25, 1.0, 1.25, 2.0, 8.0} <= waves


def test_dtypes_and_operators_can_be_chosen() -> None:
    plan = sweep.build(GPU, ("softmax",), ("fp16",))
    assert {(case.launcher, case.op.dtype) for case in plan.cases} == {("softmax", "fp16")}
    with pytest.raises(UnknownNameError, match="nearest: softmax"):
        sweep.build(GPU, ("sofmax",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("launcher: softmax", "no list of groups"),
        ("launcher: softmax\ngroups:\n  - {name: a}", "expected a name and dtypes"),
        ("launcher: softmax\ngroups:\n  - {name: a, dtypes: [fp32], axis: 1}", "unknown key 'axis'"),
        ("launcher: softmax\ngroups:\n  - {name: a, dtypes: [fp32], fields: {rows: 1}}", "no value for cols"),
        ("launcher: softmax\ngroups:\n  - {name: a, dtypes: [fp32], fields: {rows: 1, cols: 1, m: 2}}", "no field 'm'"),
        ("launcher: [", "broken YAML"),
    ],
)
def test_a_wrong_sweep_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "softmax.yaml").write_text(text)
    with pytest.raises(SpecError, match=said) as caught:
        sweep.build(GPU, folder=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("case", "target", "said"),
    [
        (Case("gemm", Gemm("fp8", 16, 16, 16)), CPU, "no fp8"),
        (CASE, replace(GPU, capability=(7, 5)), "no bf16"),
        (replace(CASE, protocol="cuda_graph"), CPU, "no protocol"),
        (Case("tile", CASE.op), replace(GPU, triton=False), "Triton"),
        (Case("gemm", CASE.op, (("impl", "grouped_mm"),)), replace(GPU, capability=(8, 0), torch=(2, 8)), "9.0"),
        (CASE, GPU, ""),
    ],
)
def test_the_capability_filter_says_why(case: Case, target: capability.Target, said: str) -> None:
    why = capability.refusal(case, target)
    assert said in why and bool(said) == bool(why)


# ------------------------------------------------------------------------------------------------------ boards, sensors


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H20", "h20-sxm"),
        ("NVIDIA H20-3e", "h20-141gb"),
        ("AMD Instinct MI250X/MI250", "amd-instinct-mi250x-mi250"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 3090 Ti", "rtx-3090-ti"),
        ("NVIDIA GeForce RTX 3080 Ti", "rtx-3080-ti"),
        ("NVIDIA GeForce RTX 9090", "nvidia-geforce-rtx-9090"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "nvidia-h100-80gb-hbm3-mig-1g.10gb"),
    ],
)
def test_a_board_has_the_catalogues_id(name: str, gpu: str) -> None:
    assert boards.catalogue_id(name) == gpu


def test_throttle_reasons_have_names() -> None:
    assert nvml.decode_reasons(0x1 | 0x2) == ()
    assert nvml.decode_reasons(0x4 | 0x40) == ("power_cap", "hardware_thermal")


class FakeNvml:
    """libnvidia-ml's C functions, as ctypes would call them."""

    def nvmlDeviceGetClockInfo(self, board: Any, kind: int, out: Any) -> int:
        out._obj.value = 1980 if kind == 1 else 2619
        return 0

    def nvmlDeviceGetTemperature(self, board: Any, sensor: int, out: Any) -> int:
        out._obj.value = 41
        return 0

    def nvmlDeviceGetPowerUsage(self, board: Any, out: Any) -> int:
        return 3  # not supported

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, board: Any, out: Any) -> int:
        out._obj.value = 0x20
        return 0


def test_sensors_are_read_in_si_units() -> None:
    board = nvml.Nvml(FakeNvml(), None)  # type: ignore[arg-type]
    assert board.clock_hz() == 1.98e9 and board.clock_hz(memory=True) == 2.619e9
    assert board.temperature_c() == 41.0 and board.power_w() == (None, "") and board.power_limit_w() is None
    assert board.throttled() == ("thermal",)


def test_gpus_are_counted_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the driver may have handed over the boards and not its library."""
    monkeypatch.setattr(nvml, "load_library", lambda: None)
    for name in ("nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert nvml.count(tmp_path) == 2 and nvml.count(tmp_path / "none") == 0


def test_versions_of_cudas_libraries_are_noted_whatever_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"torch": "2.11.0", "nvidia-cudnn-cu13": "9.19", "nvidia-cublas": "13.1", "nvidia-nccl-cu12": "2.27"}

    def version(name: str) -> str:
        if name not in known:
            raise metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(metadata, "version", version)
    assert environment.versions() == known


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ("dtypes: 3\n    fields: {rows: 1, cols: 2}", "dtypes is 3: expected such as"),
        ("dtypes: [fp32]\n    fields: {rows: -1, cols: 2}", "above zero"),
        ("dtypes: [fp32]\n    axes: {rows: {log: [0, 10]}, cols: {log: [1, 5]}}\n    points: 3", "both above zero"),
        ("dtypes: [fp32]\n    axes: {rows: {same: no}, cols: {log: [1, 5]}}\n    points: 3", "no field of the group"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_one_line(tmp_path: Path, group: str, said: str) -> None:
    (tmp_path / "softmax.yaml").write_text(f"launcher: softmax\ngroups:\n  - name: q\n    {group}\n")
    with pytest.raises(SpecError, match=said) as caught:
        sweep.build(CPU, folder=tmp_path)
    assert "softmax.yaml" in str(caught.value) and "\n" not in str(caught.value)


def test_the_results_of_a_suite_replace_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    for content in (b"a,b\n1,2\n", b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(RequestError, match=r"mine\.csv"):
            workload.read_results(path)


def test_ids_of_cases_that_were_measured_before_stay() -> None:
    """Ids of the sweeps' cases as first given: a new field of an operator is no new case."""
    known = json.loads((Path(__file__).parents[1] / "golden" / "case_ids.json").read_text())
    assert len(known) > 20
    assert {name: Case.from_json(case).id for name, case in known.items()} == {name: name for name in known}
