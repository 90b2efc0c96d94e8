"""Tables that ask for more memory than there is are one line, before they are unpacked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from microbench.writer import read_parquet
from predictor.data import dataset
from predictor.data.importers import aiconfigurator_linear, base, import_source, simumax
from predictor.data.parquet import read_rows
from predictor.errors import SpecError
from predictor.files import read as files

#: Sources whose tables are parquet files -> where one stands.
TABLES_OF_SOURCES = {
    "aiconfigurator": "systems/data/h100_sxm/gemm/vllm/0.10.0/gemm_perf.parquet",
    "llmservingsim": "kernels/h100/v1/meta-llama/Llama-3.1-8B/bf16/tp1/dense.parquet",
    "microbench": "h100-sxm/gemm/stack/measurements.parquet",
}


def test_a_parquet_bomb_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million rows of one value take a few hundred bytes."""
    pa = pytest.importorskip("pyarrow", reason="the extra train is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra train is not installed")
    monkeypatch.setattr("predictor.files.archives.MOST_CELLS", 900_000)
    path = tmp_path / "rows.parquet"
    table = pa.table({"gpu": pa.array(["h100"] * 1_000_000).dictionary_encode()})
    about = {dataset._KEY: json.dumps({"schema_version": dataset.SCHEMA_VERSION}).encode()}
    parquet.write_table(table.replace_schema_metadata(about), path)
    assert path.stat().st_size < 100_000
    for reader in (dataset.read, read_rows, read_parquet):
        with pytest.raises(SpecError, match="1,000,000 rows of 1 columns") as caught:
            reader(path)
        assert "\n" not in str(caught.value)
    for source, place in TABLES_OF_SOURCES.items():
        table_of_source = tmp_path / source / place
        table_of_source.parent.mkdir(parents=True)
        table_of_source.write_bytes(path.read_bytes())
        with pytest.raises(SpecError, match="1,000,000 rows of 1 columns"):
            import_source(source, tmp_path / source)


def test_the_table_beside_another_is_limited_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences of times are read with the table of what was taken off."""
    pa = pytest.importorskip("pyarrow", reason="the extra train is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra train is not installed")
    pd = pytest.importorskip("pandas", reason="the extra train is not installed")
    monkeypatch.setattr("predictor.files.archives.MOST_CELLS", 900_000)
    parquet.write_table(pa.table({"m": [1] * 1_000_000}), tmp_path / "scale_matrix_perf.parquet")
    raw = pd.DataFrame({"kernel_source": ["dynamic-minus-static"], "m": [1]})
    monkeypatch.setattr(aiconfigurator_linear, "_MINUS", "-minus-")
    with pytest.raises(SpecError, match="1,000,000 rows of 1 columns"):
        aiconfigurator_linear.with_subtrahend(raw, tmp_path / "computescale_perf.parquet")


def test_a_table_of_a_source_that_is_no_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CSV and JSON of sources have the limits of every other file."""
    pytest.importorskip("pandas", reason="the extra train is not installed")
    monkeypatch.setattr("predictor.data.importers.base.LARGEST_TABLE", 10)
    (tmp_path / "rows.csv").write_text("size(B),type,time\n1,2,3\n")
    with pytest.raises(SpecError, match="bytes, at most 10 are read; expected a CSV file"):
        base.read_csv(tmp_path / "rows.csv")
    monkeypatch.setattr("predictor.files.read.LARGEST_TEXT", 10)
    system = tmp_path / "simumax" / "configs" / "system" / f"{sorted(simumax.GPUS)[0]}.json"
    system.parent.mkdir(parents=True)
    system.write_text('{"accelerator": {"op": {}}}')
    with pytest.raises(SpecError, match="bytes, at most 10 are read; expected a JSON file"):
        import_source("simumax", tmp_path / "simumax")


def test_a_file_that_becomes_a_pipe_is_one_line_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file of /proc that has no line yet: reading would wait for whoever writes."""
    path = tmp_path / "board.yaml"
    os.mkfifo(path)
    with pytest.raises(SpecError, match="is a pipe, not a plain file"):
        files.read_text(path, "a YAML file")
    monkeypatch.setattr(files, "check_plain", lambda *asked: None)
    kept = os.open(path, os.O_RDWR)  # a writer that says nothing
    try:
        with pytest.raises(SpecError, match="has nothing to read yet; expected a YAML file"):
            files.read_text(path, "a YAML file")
    finally:
        os.close(kept)
