"""Reading a data set of the harness: every folder with its rows, failures and environment. No lock, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from microbench.storage import read_journal
from microbench.writer import FAILURES, JOURNAL, MEASUREMENTS, Row, op_folders, read_failures, read_meta, read_parquet
from predictor.errors import RequestError, SpecError


@dataclass(slots=True)
class DatasetFolder:
    """One folder `<gpu>/<op>/<software stack>`: rows of the file, rows of the journal alone, failures, meta."""

    path: Path
    name: str
    rows: list[Row] = field(default_factory=list)
    journal: list[Row] = field(default_factory=list)
    failures: list[Row] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    broken_lines: int = 0
    torn: bool = False
    broken: str = ""  # why its file cannot be read, one line

    @property
    def device_folder(self) -> Path:
        return self.path.parents[1]

    @property
    def all_rows(self) -> list[Row]:
        """Each case once: what stands in the file and in the journal is one row."""
        rows = {row["case_id"]: row for row in self.rows}
        for row in self.journal:
            rows.setdefault(row["case_id"], row)
        return list(rows.values())

    @property
    def failed(self) -> list[Row]:
        """The last failure of every case that has no row."""
        done = {row["case_id"] for row in self.rows} | {row["case_id"] for row in self.journal}
        return list({f["case_id"]: f for f in self.failures if f["case_id"] not in done}.values())


def read(root: Path) -> list[DatasetFolder]:
    """The parts of the data set below `root`; one whose file cannot be read says so, and hides no other. Raises
    RequestError where there is none."""
    if not root.is_dir():
        raise RequestError(f"{root} is no folder: expected a data set of microbench collect")
    folders = op_folders(root)
    if not folders:
        raise RequestError(f"{root} holds no measurements: expected <gpu>/<op>/<software stack>/{MEASUREMENTS}")
    return [_part(path) for path in folders]


def _part(path: Path) -> DatasetFolder:
    journal, good, broken = read_journal(path / JOURNAL)
    size = (path / JOURNAL).stat().st_size if (path / JOURNAL).exists() else 0
    part = DatasetFolder(
        path, "/".join(path.resolve().parts[-3:]), journal=journal, broken_lines=broken, torn=size > good
    )
    try:
        part.rows, part.failures = read_parquet(path / MEASUREMENTS), read_failures(path / FAILURES)
        part.meta = read_meta(path)
    except SpecError as error:
        part.broken = str(error)
    return part
