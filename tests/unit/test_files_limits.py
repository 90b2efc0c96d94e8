"""Tables that ask for more memory than there is are one line, before they are unpacked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from microbench.writer import read_parquet
from predictor import files
from predictor.errors import SpecError
from predictor.training import dataset
from predictor.training.parquet import read_rows


def test_a_parquet_bomb_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million rows of one value take a few hundred bytes."""
    pa = pytest.importorskip("pyarrow", reason="the extra train is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra train is not installed")
    monkeypatch.setattr("predictor.archives.MOST_CELLS", 900_000)
    path = tmp_path / "rows.parquet"
    table = pa.table({"gpu": pa.array(["h100"] * 1_000_000).dictionary_encode()})
    about = {dataset._KEY: json.dumps({"schema_version": dataset.SCHEMA_VERSION}).encode()}
    parquet.write_table(table.replace_schema_metadata(about), path)
    assert path.stat().st_size < 100_000
    for reader in (dataset.read, read_rows, read_parquet):
        with pytest.raises(SpecError, match="1,000,000 rows of 1 columns") as caught:
            reader(path)
        assert "\n" not in str(caught.value)


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
