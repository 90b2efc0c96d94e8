"""The entries of a ledger against what was measured after them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from predictor.errors import RequestError
from predictor.files.read import read_table_text
from predictor.fit.scores import coverage, summarise
from predictor.request.options import OPTIONS

#: Columns of a table of measurements beside those of words: which entry, how long it took, and when that was known.
COLUMNS = ("id", "measured_ms", "measured_at")


def score(entries: Sequence[Mapping[str, Any]], measured: Path) -> dict[str, Any]:
    """Errors of the entries that a table has a measurement of: ``rows``, what has none (``unscored``), ``summary``.

    A row says its entry by ``id``, or by words of the request, which have to fit one entry alone; an empty cell says
    nothing. ``measured_at`` (ISO 8601; UTC where it names no zone) keeps out an entry that is dated later.
    Raises RequestError, one line with the row, for cells that cannot be read.
    """
    text = read_table_text(measured, "a CSV file with id or words of a request, and measured_ms", [*COLUMNS, *OPTIONS])
    table = [{name.strip(): cell.strip() for name, cell in row.items()} for row in csv.DictReader(io.StringIO(text))]
    rows: list[dict[str, Any]] = []
    unscored: list[dict[str, Any]] = []
    for number, row in enumerate(table, start=1):
        where = f"{measured}, row {number}"
        milliseconds = _milliseconds(row, where)
        entry, reason = _entry_of(row, entries, where)
        at = row.get("measured_at")
        if entry is not None and at and _time(entry["recorded_at"], "") > _time(at, where):
            reason = f"entry {entry['id']!r} was recorded after {at}, when it was measured"
        if entry is None or reason:
            unscored.append({"row": number, "reason": reason})
            continue
        if any(entry["id"] == other["id"] for other in rows):
            raise RequestError(f"{where}: entry {entry['id']!r} has a measurement in a row before; expected it once")
        interval = entry["interval_ms"]
        low, high = interval or (None, None)
        rows.append({
            "id": entry["id"], "model": entry["model"], "gpu": entry["gpu"], "predicted_ms": entry["latency_ms"],
            "low_ms": low, "high_ms": high, "measured_ms": milliseconds,
            "error_pct": (entry["latency_ms"] / milliseconds - 1.0) * 100.0,
            "within": None if interval is None else interval[0] <= milliseconds <= interval[1],
        })  # fmt: skip
    columns = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in _FIGURES}
    summary = summarise(columns["measured_ms"], columns["predicted_ms"]) | (coverage(columns) if rows else {})
    return {"rows": rows, "unscored": unscored, "summary": summary}


_FIGURES = ("measured_ms", "predicted_ms", "low_ms", "high_ms")


def _milliseconds(row: Mapping[str, str], where: str) -> float:
    try:
        value = float(row.get("measured_ms", ""))
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise RequestError(f"{where}: measured_ms {row.get('measured_ms', '')!r}; expected milliseconds above 0")
    return value


def _time(text: str, where: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise RequestError(
            f"{where}: measured_at {text!r}; expected a date such as 2026-12-01T09:30:00+00:00"
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _entry_of(
    row: Mapping[str, str], entries: Sequence[Mapping[str, Any]], where: str
) -> tuple[Mapping[str, Any] | None, str]:
    """The entry that a row is of; None, and why."""
    if row.get("id"):
        entry = next((entry for entry in entries if entry["id"] == row["id"]), None)
        return entry, "" if entry else f"no entry {row['id']!r}"
    said = {name: cell for name, cell in row.items() if cell and name in OPTIONS}
    if not said:
        raise RequestError(f"{where}: says no entry; expected an id, or words of the request such as model and gpu")
    fit = [entry for entry in entries if all(_says(entry, name, cell) for name, cell in said.items())]
    if len(fit) > 1:
        raise RequestError(f"{where}: entries {fit[0]['id']!r} and {fit[1]['id']!r} fit; expected an id, or more words")
    return (fit[0], "") if fit else (None, f"no entry of {', '.join(f'{k}={v}' for k, v in said.items())}")


def _says(entry: Mapping[str, Any], name: str, cell: str) -> bool:
    """Whether an entry's request has a word as a cell says it; model and GPU by their whole names, too."""
    value = entry["words"].get(name, OPTIONS[name].default)
    if isinstance(value, bool):
        return cell.lower() in (("true", "1") if value else ("false", "0"))
    if name in ("model", "gpu") and cell == entry[name]:
        return True
    if isinstance(value, list):
        return cell == ",".join(map(str, value))
    return cell == str(value) or (isinstance(value, int | float) and _number(cell) == value)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
