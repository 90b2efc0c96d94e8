"""What the harness says: ceilings, device files, validate, compare, progress, tracking, suites. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from microbench_cases import CASE, row_of, softmax

from microbench import arguments, ceilings, cli, tracking, workload
from microbench.case import Case, op_cells
from microbench.compare import compare
from microbench.own_ops import Ceiling
from microbench.progress import Progress
from microbench.request import Summary
from microbench.schema import ALL, problems
from microbench.validate import row_problems, validate
from microbench.writer import MEASUREMENTS, OpFolder, to_parquet
from predictor.errors import RequestError, TilecastError
from predictor.hardware.gpu import load_gpu
from predictor.ops import Gemm
from predictor.tracking import Record, TrackedRun

# ------------------------------------------------------------------------------------------------ ceilings, the reports

FACTS = {
    "kind": "cpu", "id": "cpu-test-2t", "name": "Test", "memory_bytes": 16 * 2**30, "cache_bytes": 32 * 2**20,
    "units": 2, "capability": None, "clock_hz": 3e9,
}  # fmt: skip


def ceiling(kind: str, size: int, rate: float, dtype: str = "fp32") -> dict[str, Any]:
    cells = op_cells(Ceiling(dtype, kind, size))
    shape = {"kind": cells.pop("kind"), "size": cells.pop("size")}
    return {"shape": json.dumps(shape), "dtype": dtype, "rate_max": rate}


def device_file(folder: Path) -> Path:
    rows = [
        ceiling("copy", 256 * 2**20, 2e10), ceiling("read", 256 * 2**20, 2.2e10), ceiling("copy", 2**20, 9e10),
        ceiling("matmul", 512, 1e11), ceiling("matmul", 512, 2e11, "bf16"),
    ]  # fmt: skip
    document = ceilings.device_document(FACTS, rows)
    assert document is not None
    ceilings.write_device(folder, document)
    return folder / "device.yaml"


def test_ceilings_make_a_device_file(tmp_path: Path) -> None:
    spec = load_gpu(device_file(tmp_path))
    assert spec.id == "cpu-test-2t" and spec.sm_count == 2
    assert spec.memory_bandwidth == pytest.approx(2.2e10 * ceilings.MARGIN)
    assert spec.peak_flops("bf16") == pytest.approx(2e11 * ceilings.MARGIN)
    assert spec.l2_bandwidth >= 9e10 * ceilings.MARGIN * 0.999
    assert ceilings.device_document(FACTS, [ceiling("copy", 256 * 2**20, 2e10)]) is None


def test_a_row_raises_a_ceiling_but_not_to_any_height(tmp_path: Path) -> None:
    path = device_file(tmp_path)
    spec = load_gpu(path)
    op = Gemm("fp32", 512, 512, 512)
    case = Case("gemm", op)
    quick = row_of(case, op.flops() / 1.5e11 * 1e3)
    (lift,) = ceilings.lifts([quick], spec).items()
    assert lift[0] == "fp32" and lift[1][0] == pytest.approx(1.5e11)
    ceilings.write_device(tmp_path, ceilings.lifted(path, spec, dict([lift])))
    raised = load_gpu(path)
    assert raised.peak_flops("fp32") == pytest.approx(1.5e11 * ceilings.LIFT_MARGIN)
    assert case.id in raised.sources["peak_flops.vector.fp32"]
    assert not ceilings.lifts([quick], raised)
    assert not ceilings.lifts([row_of(case, op.flops() / 1e13 * 1e3)], spec)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"latency_ms": 0.0}, "expected 1e-06"),
        ({"sm_clock_hz": 1980.0}, "sm_clock_hz"),  # MHz in a column of Hz
        ({"m": 129}, "has the id"),
        ({"dtype": None}, "no dtype"),
        ({"m": 1.5}, "not int"),
        ({"nonsense": 1}, "unknown column"),
        ({"latency_min_ms": 2.0}, "out of order"),
    ],
)
def test_a_wrong_row_is_named(change: dict[str, Any], said: str) -> None:
    row = {**row_of(CASE), "latency_median_ms": 1.0, **change}
    found = row_problems(row)
    assert (not found) if not said else any(said in what for what in found), found


def test_validate_finds_a_row_beyond_the_roofline(tmp_path: Path) -> None:
    folder = OpFolder(tmp_path, "h100-sxm/gemm/stack")
    big = Case("gemm", Gemm("bf16", 8192, 8192, 8192))
    folder.append(row_of(big, 0.1))  # 11 PFLOP/s
    folder.append(row_of(CASE, 0.1))
    folder.close()
    found = validate(tmp_path)
    assert not found.valid and found.roofline_violations == 1 and big.id in found.errors[0]
    assert any("journal" in warning for warning in found.warnings)
    assert cli.main(["validate", str(tmp_path)]) == 1


def test_rows_of_a_busy_machine_are_counted_and_said(tmp_path: Path) -> None:
    folder = OpFolder(tmp_path, "h100-sxm/softmax/stack")
    for rows, noise in enumerate((0.01, 0.06, 0.9, 1.1, 25.0), start=1):
        folder.append(row_of(softmax(rows)) | {"noise": noise})
    folder.compact()
    folder.close()
    found = validate(tmp_path)
    assert found.valid and (found.noisy_rows, found.unknown_rows) == (4, 2)
    (warning,) = found.warnings
    assert warning.startswith("2 rows have more than 100 % of noise")


def test_validate_finds_a_doubled_row(tmp_path: Path) -> None:
    path = tmp_path / "h100-sxm" / "gemm" / "stack"
    path.mkdir(parents=True)
    (path / MEASUREMENTS).write_bytes(to_parquet([row_of(CASE), row_of(CASE)]))
    found = validate(tmp_path)
    assert found.duplicates == 1 and not found.valid


def test_validate_says_that_a_file_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h100-sxm" / "gemm" / "stack"
    path.mkdir(parents=True)
    (path / MEASUREMENTS).write_bytes(b"PAR1 and nothing else")
    assert cli.main(["validate", str(tmp_path)]) == 1
    assert "cannot be read" in capsys.readouterr().out


def test_compare_gives_the_median_difference(tmp_path: Path) -> None:
    for name, factor in (("a", 1.0), ("b", 1.1)):
        folder = OpFolder(tmp_path / name, "h100-sxm/softmax/stack")
        for rows in range(1, 6):
            folder.append(row_of(softmax(rows), rows * (factor if rows < 5 else 1.0)))
        if name == "a":
            folder.append(row_of(softmax(9)))
        folder.close()
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.total is not None and found.total.n == 5 and found.only_a == 1 and found.only_b == 0
    assert found.total.median_pct == pytest.approx(10.0) and found.groups[0].name == "softmax"


def test_the_schema_of_the_harness_adds_to_the_shared_one() -> None:
    names = [column.name for column in ALL]
    assert len(set(names)) == len(names)
    assert problems(row_of(CASE)) == []


# ------------------------------------------------------------------------------------------------------ words, progress


@pytest.mark.parametrize(("text", "value"), [("60s", 60.0), ("10min", 600.0), ("1.5 h", 5400.0), ("2d", 172800.0)])
def test_times_have_units(text: str, value: float) -> None:
    assert arguments.seconds(text) == value


@pytest.mark.parametrize("text", ["60", "s", "-1s", "0s", "ten minutes"])
def test_a_time_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="60s, 10min, 2h"):
        arguments.seconds(text)


def test_progress_is_a_plain_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(10, 60.0, every_s=0.0)
    progress.add(rows=1)
    progress.add(failures=1, throttled=3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("1 of 10 cases measured, 1 failed, 3 throttled samples thrown away, about ")
    slow = Progress(10, None)
    slow.add(rows=1)
    assert capsys.readouterr().err == ""


def test_the_verbs_and_their_options_are_pinned() -> None:
    assert set(cli.VERBS) == {
        "doctor", "first-run", "collect", "plan", "status", "merge", "validate", "report", "compare", "workload",
        "launch-overhead", "collectives",
    }  # fmt: skip
    words = cli.build_parser().format_help()
    assert all(verb in words for verb in cli.VERBS)


def test_a_collection_says_what_it_did() -> None:
    run = TrackedRun(Record("collect", ""))
    facts = {"packages": {"torch": "2.9"}, "settings": {"ops": [], "budget_s": 20.0}, "locked_clock_hz": None}
    words = {"device": "cpu", "ops": ["gemm", "norm"], "json": True, "calibration": None, "tracking_uri": "off"}
    tracking.log(run, {"cpu": facts}, Summary(rows=5, new_rows=3, devices=["cpu"], stopped_by="budget"), words)
    assert run.record.parameters == {
        "device": "cpu", "ops": "gemm, norm", "cpu.packages.torch": "2.9",
        "cpu.settings.budget_s": "20.0", "gpus": "cpu",
    }  # fmt: skip
    assert run.record.metrics["new_rows"] == 3.0
    assert run.record.tags["stopped_by"] == "budget"
    assert "3 rows" in run.record.tags["mlflow.note.content"]


# ------------------------------------------------------------------------------------------------------------- suites


def test_the_suite_for_hopper_is_whole() -> None:
    path = Path(workload.__file__).parent / "to_measure" / "hopper.csv"
    cells = workload.read_suite(path)
    assert len(cells) >= 20 and {cell["mode"] for cell in cells} == set(workload.MODES)
    for cell in cells:
        config = workload.read_config(path.parent / "configs", cell["config"])
        assert config["architectures"]
    assert len({workload._key(cell) for cell in cells}) == len(cells)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("gpt2,predict,bf16,128,,1", "mode 'predict'"),
        ("gpt2,forward,bf16,128,,0", "global_batch '0'"),
        ("gpt2,decode,bf16,,,1", "needs a context_len"),
        ("gpt2,forward,bf61,128,,1", "nearest: bf16"),
    ],
)
def test_a_wrong_cell_is_one_line(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "suite.csv"
    path.write_text(f"config,mode,dtype,seq_len,context_len,global_batch\n{line}\n")
    with pytest.raises(TilecastError, match=said):
        workload.read_suite(path)


def test_meta_keeps_every_collection(tmp_path: Path) -> None:
    folder = OpFolder(tmp_path, "g/softmax/s")
    folder.note({"run": "one", "rows": 1})
    folder.note({"run": "two"})
    folder.note({"run": "two", "rows": 2})
    folder.close()
    runs = yaml.safe_load((folder.path / "meta.yaml").read_text())["collections"]
    assert runs == [{"run": "one", "rows": 1}, {"run": "two", "rows": 2}]
