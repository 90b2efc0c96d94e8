"""What is wrong with a data set: errors that make rows worthless, and warnings that a reader should know.

Errors: a file that cannot be read, a value of the wrong type or out of range, a case with two rows, a row whose id is
not that of its content, a row faster than its device can be. Warnings: rows kept though throttled, rows of a machine
that was busy, a journal that was not compacted (a collection that was cut off: run it again).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from microbench import ceilings, doctor, schema
from microbench.case import Case
from microbench.ceilings import DEVICE_FILE
from microbench.dataset import DatasetFolder, read
from microbench.writer import Row
from predictor.errors import SpecError, TilecastError
from predictor.files.read import parse_json
from predictor.hardware.gpu import GPUSpec
from predictor.ops.roofline import TOLERANCE, roofline

#: Noise (half-width of the median's 95 % interval) above which a row is counted as noisy: chosen by hand, not from
#: data.
NOISY = 0.05
#: Noise from which the median says next to nothing: the machine did something else meanwhile.
UNKNOWN = 1.0
#: Ends of what a row may hold; guard against other units, as those of the sensors.
_LIMITS: dict[str, tuple[float, float]] = schema.SENSOR_LIMITS | {
    "samples": (1, 1e9), "launches": (1, 1e9), "throttled_samples": (0, 1e9), "latency_ms": (1e-6, 1e7),
}  # fmt: skip
_ORDER = ("latency_min_ms", "latency_median_ms", "latency_max_ms")


@dataclass(slots=True)
class Report:
    """What `validate` found. `errors` and `warnings` name the folder; a data set without errors is valid."""

    rows: int = 0
    failures: int = 0
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    roofline_violations: int = 0
    above_measured_ceilings: int = 0
    unchecked_bound: int = 0
    duplicates: int = 0
    journal_rows: int = 0
    throttled_rows: int = 0
    noisy_rows: int = 0
    unknown_rows: int = 0
    median_noise: float | None = None
    p90_noise: float | None = None
    checked_rows: dict[str, int] = field(default_factory=dict)
    ceilings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        return not self.errors


def validate(root: Path) -> Report:
    """The report on the data set below `root`. Raises RequestError where there is none."""
    report = Report()
    try:
        parts = read(root)
    except TilecastError as error:
        if not isinstance(error, SpecError):  # there is no data set at all
            raise
        report.errors.append(str(error))
        return report
    noise: list[float] = []
    checked: Counter[str] = Counter()
    specs: dict[Path, GPUSpec | None] = {}
    for part in parts:
        folder = part.device_folder
        if folder not in specs:
            specs[folder] = ceilings.spec_of(folder, folder.resolve().name)
            if specs[folder] is None and (folder / DEVICE_FILE).exists():
                report.errors.append(f"{folder / DEVICE_FILE} is no device file: the next collection makes it again")
        _part(part, specs[folder], report)
        rows = part.all_rows
        noise += [row["noise"] for row in rows if row.get("noise") is not None]
        checked.update(str(row.get("checked")) for row in rows)
    _across(parts, report)
    report.checked_rows = dict(checked)
    if noise:
        report.median_noise, report.p90_noise = float(np.median(noise)), float(np.percentile(noise, 90))
        report.noisy_rows = sum(value > NOISY for value in noise)
        report.unknown_rows = sum(value > UNKNOWN for value in noise)
    if report.journal_rows:
        report.warnings.append(
            f"{report.journal_rows} rows stand in journals: a collection runs or was cut off; the next files them"
        )
    if report.throttled_rows:
        report.warnings.append(f"{report.throttled_rows} rows were measured under throttling alone: flag throttled")
    if report.unknown_rows:
        report.warnings.append(
            f"{report.unknown_rows} rows have more than 100 % of noise: the machine was busy; measure them again, with "
            "fewer --threads than there are free cores"
        )
    if report.above_measured_ceilings:
        report.warnings.append(
            f"{report.above_measured_ceilings} rows are faster than the ceilings that were measured: the next run "
            "raises them"
        )
    if report.unchecked_bound:
        report.warnings.append(f"{report.unchecked_bound} rows have no bound here: their device or dtype has no peak")
    return report


def _part(part: DatasetFolder, spec: GPUSpec | None, report: Report) -> None:
    """One folder: its lines, its rows, its bound."""
    rows = part.all_rows
    report.rows += len(rows)
    report.failures += len(part.failed)
    if part.broken:
        report.errors.append(part.broken)
    if part.broken_lines:
        report.errors.append(f"{part.name}: {part.broken_lines} broken lines in the middle of the journal")
    if part.torn:
        report.warnings.append(f"{part.name}: half a line at the end of the journal; the next collection cuts it off")
    report.journal_rows += len(part.journal)
    for kind, rows_of_kind in (("file", part.rows), ("journal", part.journal)):
        counts = Counter(row.get("case_id") for row in rows_of_kind)
        twice = [key for key, count in counts.items() if count > 1]
        report.duplicates += len(twice)
        report.errors += [f"{part.name}: case {key} has {counts[key]} rows in one {kind}" for key in twice[:5]]
    for row in rows:
        report.errors += [f"{part.name}, case {row.get('case_id')}: {what}" for what in row_problems(row)]
        report.throttled_rows += "throttled" in str(row.get("flag")).split(";")
    _bounds(part, rows, spec, report)


def row_problems(row: Row) -> list[str]:
    """What is wrong with one row: types, units (by the range that a value can have), statistics, its id."""
    wrong = schema.problems(row)
    if wrong:
        return wrong
    for name, (low, high) in _LIMITS.items():
        value = row.get(name)
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            wrong.append(f"{name} is {value:g}: expected {low:g} to {high:g}")
    ordered = [row[name] for name in _ORDER if row.get(name) is not None]
    if any(a > b * (1 + 1e-9) for a, b in itertools.pairwise(ordered)):
        wrong.append("the fastest sample, the median and the slowest are out of order")
    try:
        ceilings.row_op(row)
        case = Case(row["launcher"], ceilings.row_op(row), _options(row), row["cache_state"], row["protocol"])
    except TilecastError as error:
        return [*wrong, str(error)]
    if case.id != row["case_id"]:
        wrong.append(f"its content has the id {case.id}")
    return wrong


def _options(row: Row) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(parse_json(row["options"], "options").items()))


def _bounds(part: DatasetFolder, rows: Iterable[Row], spec: GPUSpec | None, report: Report) -> None:
    """Rows faster than the roofline allows. Ceilings are held against the spec, not bound by it."""
    for row in rows:
        if row_problems(row):
            continue
        if row["op"] == "ceiling":
            _ceiling(row, spec, report)
            continue
        op = ceilings.row_op(row)
        if spec is None or (op.unit == "matrix" and not spec.supports(op.dtype)):
            report.unchecked_bound += 1
            continue
        if row["op"] == "collective" or (row["op"] == "copy" and row.get("kind") != "device"):
            continue  # a link's business, not the memory's
        bound_ms = float(roofline([op], spec).lower_bound_s[0]) * 1e3 / max(1.0, doctor.faster(row, spec))
        if row["latency_ms"] >= TOLERANCE * bound_ms:
            continue
        if spec.path.name == DEVICE_FILE and row["latency_ms"] >= bound_ms / ceilings.RAISE_LIMIT:
            report.above_measured_ceilings += 1  # a ceiling that was measured in a busy moment
        else:
            report.roofline_violations += 1
            if report.roofline_violations <= 20:
                report.errors.append(
                    f"{part.name}, case {row['case_id']}: {row['latency_ms']:.4g} ms is faster than the roofline bound "
                    f"of {bound_ms:.4g} ms"
                )


def _ceiling(row: Row, spec: GPUSpec | None, report: Report) -> None:
    """One measured ceiling beside what the spec says of it."""
    shape = parse_json(row["shape"], "shape")
    entry: dict[str, Any] = {
        "kind": shape["kind"], "dtype": row["dtype"], "size": shape["size"], "latency_ms": row["latency_ms"],
        "rate": row.get("rate"),
    }  # fmt: skip
    if spec is not None and row.get("rate"):
        if shape["kind"] == "matmul" and spec.supports(row["dtype"]):
            entry["of_spec"] = row["rate"] / spec.peak_flops(row["dtype"])
        elif shape["kind"] in ("copy", "read") and shape["size"] > 2 * spec.l2_bytes:
            entry["of_spec"] = row["rate"] / spec.memory_bandwidth
    report.ceilings.append(entry)


def _across(parts: list[DatasetFolder], report: Report) -> None:
    """Cases that stand in two folders of one device and software stack."""
    seen: dict[tuple[Path, str, str], str] = {}
    for part in parts:
        for row in part.all_rows:
            key = (part.device_folder, part.path.name, str(row.get("case_id")))
            if key in seen and seen[key] != part.name:
                report.duplicates += 1
                report.errors.append(f"case {key[2]} stands in {seen[key]} and in {part.name}")
            seen[key] = part.name
