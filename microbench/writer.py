"""One folder of a data set, `<gpu>/<op>/<software stack>/`, and how rows get into it without being lost or doubled.

    measurements.parquet   rows of earlier collections, replaced as a whole
    journal.jsonl          rows since then, one checked line each: a case is done when its line is on the disk
    failures.jsonl         cases that could not be measured, with the reason, one plain JSON line each
    meta.yaml              environment and settings of every collection that wrote here

`compact` moves the journal into the parquet file: the file is replaced first, the journal emptied after. A crash
between the two leaves rows in both; they have the same case id and are counted once, everywhere.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from microbench import HARNESS_VERSION
from microbench.schema import ALL, BY_NAME
from microbench.storage import Journal, make_folder, read_journal, remove_temporaries, storage_error, write_atomic
from predictor.data.schema import SCHEMA_VERSION
from predictor.errors import SpecError
from predictor.files.archives import check_table
from predictor.files.read import LARGEST_TABLE, check_header, check_plain, parse_json
from predictor.files.yaml_reader import read_yaml_file

MEASUREMENTS, JOURNAL, FAILURES, META = "measurements.parquet", "journal.jsonl", "failures.jsonl", "meta.yaml"
_KEY = b"tilecast"
Row = dict[str, Any]
#: Failures that may be the machine's and not the case's: tried once more by a later run.
TRANSIENT = frozenset(("timeout", "worker_died", "cuda_error", "not_captured"))


class OpFolder:
    """The folder of one operator and software stack, open for writing. Whoever opens it holds the device's lock."""

    def __init__(self, root: Path, relative: str) -> None:
        self.relative = relative
        self.path = root / relative
        make_folder(self.path)
        remove_temporaries(self.path)
        self._kept = {row["case_id"]: row for row in read_parquet(self.path / MEASUREMENTS)}
        self._journal = Journal(self.path / JOURNAL)
        self._failures = _FailureFile(self.path / FAILURES)
        #: Ids of the cases that have a row.
        self.done: set[str] = set(self._kept) | {row["case_id"] for row in self._journal.documents}

    @property
    def failed(self) -> set[str]:
        """Ids of the cases that failed and have no row."""
        return self._failures.ids - self.done

    def to_try(self, case_id: str) -> bool:
        """Whether a case without a row is to be measured: new, or failed once of what may not have been its fault."""
        tries = self._failures.tries.get(case_id, 0)
        return tries == 0 or (tries == 1 and self._failures.kinds[case_id] in TRANSIENT)

    @property
    def pending(self) -> int:
        """Rows that stand in the journal alone."""
        return len(self._journal.documents)

    def append(self, row: Row) -> None:
        """Adds a row; it is durable when this returns. Raises StorageError, SpecError for a case that has a row."""
        if row["case_id"] in self.done:
            raise SpecError(f"case {row['case_id']} has a row in {self.relative} already")
        self._journal.append(row)
        self.done.add(row["case_id"])

    def take(self, rows: Iterable[Row]) -> int:
        """Adds rows of cases that have none, all at once, in the parquet file; returns how many."""
        new = {row["case_id"]: row for row in rows if row["case_id"] not in self.done}
        if new:
            self._write([*self._kept.values(), *self._journal.documents, *new.values()])
            self.done |= set(new)
        return len(new)

    def failures(self) -> list[Row]:
        """Every failure that stands in the file."""
        return read_failures(self.path / FAILURES)

    def fail(self, failure: Row) -> None:
        """Adds a failure; durable when this returns."""
        self._failures.append(failure)

    def compact(self) -> None:
        """Moves the journal's rows into the parquet file. Raises StorageError, and then nothing has changed."""
        if not self._journal.documents:
            return
        self._write([*self._kept.values(), *self._journal.documents])

    def _write(self, all_rows: Iterable[Row]) -> None:
        """The parquet file anew, then the journal emptied."""
        merged: dict[str, Row] = {}
        for row in all_rows:
            merged.setdefault(row["case_id"], row)
        rows = [
            {**row, "source_file": f"{self.relative}/{MEASUREMENTS}", "source_row": number}
            for number, row in enumerate(merged.values(), start=1)
        ]
        write_atomic(self.path / MEASUREMENTS, to_parquet(rows))
        self._kept = {row["case_id"]: row for row in rows}
        self._journal.clear()

    def note(self, collection: Mapping[str, Any]) -> None:
        """Adds the facts of one collection to meta.yaml, or replaces those of the same `run`."""
        known = read_meta(self.path)
        runs = [run for run in known.get("collections", []) if run.get("run") != collection["run"]]
        document = {
            "schema_version": SCHEMA_VERSION, "harness_version": HARNESS_VERSION,
            "columns": "docs/reference/microbench.md", "collections": [*runs, dict(collection)],
        }  # fmt: skip
        write_atomic(self.path / META, yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode())

    def close(self) -> None:
        self._journal.close()
        self._failures.close()


class _FailureFile:
    """failures.jsonl: plain JSON lines. A torn last line is cut off when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        documents = read_failures(path)
        self.tries: Counter[str] = Counter()
        self.kinds: dict[str, str] = {}
        for document in documents:
            self._count(document)
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            content = os.pread(self._handle, os.fstat(self._handle).st_size, 0)
            self._size = content.rfind(b"\n") + 1
            os.ftruncate(self._handle, self._size)
        except OSError as error:
            raise storage_error(path, error) from None

    def append(self, document: Row) -> None:
        line = json.dumps(document, ensure_ascii=True).encode() + b"\n"
        try:
            written = os.pwrite(self._handle, line, self._size)
            if written < len(line):
                os.pwrite(self._handle, line[written:], self._size + written)
            os.fsync(self._handle)
        except OSError as error:
            os.ftruncate(self._handle, self._size)
            raise storage_error(self.path, error) from None
        self._size += len(line)
        self._count(document)

    def _count(self, document: Row) -> None:
        self.tries[str(document["case_id"])] += 1
        self.kinds[str(document["case_id"])] = str(document.get("kind"))

    @property
    def ids(self) -> set[str]:
        return set(self.tries)

    def close(self) -> None:
        os.close(self._handle)


# ------------------------------------------------------------------------------------------------- reading, no lock


def op_folders(root: Path) -> list[Path]:
    """The folders below `root` that hold measurements, sorted. `root` may itself be one, or a device's folder."""
    marks = (MEASUREMENTS, JOURNAL, FAILURES)
    return sorted({path.parent for mark in marks for path in root.rglob(mark)})


def read_rows(folder: Path) -> list[Row]:
    """Every row of a folder, each case once: those of the parquet file, then those of the journal alone."""
    rows = {row["case_id"]: row for row in read_parquet(folder / MEASUREMENTS)}
    for row in read_journal(folder / JOURNAL)[0]:
        rows.setdefault(row["case_id"], row)
    return list(rows.values())


def read_failures(path: Path) -> list[Row]:
    """The failures that stand in the file `path`, oldest first; a torn last line is passed over."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    failures = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            document = parse_json(line, str(path))
        except SpecError:
            document = None
        if not isinstance(document, dict) or "case_id" not in document:
            raise SpecError(f"{path}, line {number} is no JSON of a failure")
        failures.append(document)
    return failures


def read_meta(folder: Path) -> dict[str, Any]:
    """The content of meta.yaml, {} where there is none. Raises SpecError, one line."""
    path = folder / META
    if not path.is_file():
        return {}
    document = read_yaml_file(path, "a mapping with a list of collections")
    runs = document.get("collections", []) if isinstance(document, dict) else None
    if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        raise SpecError(f"{path} cannot be read: expected a mapping with a list of collections")
    meta: dict[str, Any] = document
    return meta


def read_parquet(path: Path) -> list[Row]:
    """The rows of a harness file without their nulls; none where there is no file. Raises SpecError, one line."""
    if not path.exists():
        return []
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_plain(path, "measurements of the harness", LARGEST_TABLE)
    try:
        file = pq.ParquetFile(path)
        check_table(path, file.metadata)
        check_header(file.schema_arrow.names, str(path))
        table = file.read()
        about = parse_json((table.schema.metadata or {}).get(_KEY) or b"{}", str(path))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SpecError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    version = about.get("schema_version") if isinstance(about, dict) and "case_id" in table.column_names else None
    if version != SCHEMA_VERSION:
        raise SpecError(f"{path} has schema version {version!r}: expected {SCHEMA_VERSION}")
    return [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]


def to_parquet(rows: Iterable[Row]) -> bytes:
    """`rows` as the content of a parquet file with every column of the schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    listed = list(rows)
    arrays = [pa.array([row.get(column.name) for row in listed], type=types[column.type]) for column in ALL]
    about = {"schema_version": SCHEMA_VERSION, "harness_version": HARNESS_VERSION, "rows": len(listed)}
    table = pa.table(arrays, names=list(BY_NAME)).replace_schema_metadata({_KEY: json.dumps(about).encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())
