"""A key or a column that appears twice is refused where readers of CSV, JSON and parquet would keep one of both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


from microbench import workload  # noqa: E402
from microbench.writer import read_failures, read_parquet  # noqa: E402
from predictor.data import dataset  # noqa: E402
from predictor.data.importers import base, import_source, simumax  # noqa: E402
from predictor.data.parquet import read_rows  # noqa: E402
from predictor.errors import SpecError  # noqa: E402
from predictor.ui.state import FieldError, _pasted  # noqa: E402


def test_a_column_of_a_source_is_there_once(tmp_path: Path) -> None:
    """pandas calls the second one "type.1"."""
    path = tmp_path / "rows.csv"
    path.write_text("size,type,type\n1,2,3\n")
    with pytest.raises(SpecError, match="column 'type' appears twice; expected once"):
        base.read_csv(path)


def test_rows_of_a_source_have_no_more_cells_than_its_header(tmp_path: Path) -> None:
    """pandas would take the first cells for names of the rows, and every cell would slip by a column."""
    path = tmp_path / "rows.csv"
    path.write_text("size,type\n1,2,3\n4,5,6\n")
    with pytest.raises(SpecError, match="Length of header or names does not match length of data"):
        base.read_csv(path)


def test_a_column_of_a_parquet_file_is_there_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    about = {dataset._KEY: json.dumps({"schema_version": dataset.SCHEMA_VERSION}).encode()}
    table = pa.table([pa.array([1]), pa.array([2])], names=["m", "m"]).replace_schema_metadata(about)
    parquet.write_table(table, path)
    for reader in (dataset.read, read_rows, read_parquet):
        with pytest.raises(SpecError, match="column 'm' appears twice"):
            reader(path)


def test_a_size_of_simumax_is_there_once(tmp_path: Path) -> None:
    path = tmp_path / "configs" / "system" / f"{sorted(simumax.GPUS)[0]}.json"
    path.parent.mkdir(parents=True)
    efficient = {"b=1, m=128, m=256, k=64, n=64, layout=TN, accumulate=False": 0.5}
    tables = {name: {"tflops": 312, "accurate_efficient_factor": {}} for name in simumax._TABLES}
    tables["matmul"]["accurate_efficient_factor"] = efficient
    path.write_text(json.dumps({"accelerator": {"op": tables}}))
    with pytest.raises(SpecError, match="key 'm' appears twice"):
        import_source("simumax", tmp_path)


def test_a_key_of_a_pasted_config_is_there_once() -> None:
    with pytest.raises(FieldError, match="key 'hidden_size' appears twice"):
        _pasted('{"model_type": "llama", "hidden_size": 64, "hidden_size": 128}')


def test_results_and_failures_of_the_harness(tmp_path: Path) -> None:
    results = tmp_path / "suite.csv"
    results.write_text(",".join([*workload.COLUMNS, "mode"]) + "\n")
    with pytest.raises(SpecError, match="column 'mode' appears twice"):
        workload.read_results(results)
    failures = tmp_path / "failures.jsonl"
    failures.write_text('{"case_id": "a", "case_id": "b"}\n')
    with pytest.raises(SpecError, match="line 1 is no JSON of a failure"):
        read_failures(failures)
