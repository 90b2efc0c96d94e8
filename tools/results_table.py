#!/usr/bin/env python3
"""Sums up rows of `tilecast evaluate --out` in one table: errors by suite, board, mode, engine and dtype.

usage: tools/results_table.py benchmarks/results/blind-2026-11-24.yaml --rows FOLDER --out FILE.csv

The YAML file names the commit, the date, and of every suite the file of its rows (in FOLDER), the command that made
them and, where some rows were known before, by which values of which column. benchmarks/results/README.md says how to
read the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # a checkout that was not installed
    sys.path.insert(0, str(ROOT))

from predictor.files.yaml_reader import read_yaml_file  # noqa: E402
from predictor.fit.scores import coverage, summarise  # noqa: E402

#: What rows are told apart by, where they have it and the YAML file names no other columns as its ``keys``.
KEYS = ("gpu", "mode", "execution", "dtype")
#: Names of what is compared -> what follows measured_ and predicted_ in the columns.
FIGURES = {
    "latency": "ms", "forward": "forward_ms", "ttft": "ttft_ms", "tpot": "tpot_ms",
    "tokens/s/GPU": "output_tps_per_gpu",
}  # fmt: skip


def part_names(rows: Any, known: Mapping[str, Any]) -> Any:
    """ "known" or "new" of every row; ``known``: column -> values of rows that were known before."""
    old = np.zeros(len(rows), dtype=bool)
    for column, values in known.items():
        old |= rows[column].isin(values).to_numpy()
    return np.where(old, "known before", "new")


def apart(kind: str) -> str:
    """What a kind of `accuracy_rows` has behind its GPU, how it runs and its level: why its rows stand apart."""
    return " ".join(kind.split()[4:]) or "scored"


def figures(rows: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The errors of every figure that the rows have measurements of."""
    for name, column in FIGURES.items():
        if f"measured_{column}" not in rows or f"predicted_{column}" not in rows:
            continue
        measured = pd.to_numeric(rows[f"measured_{column}"], errors="coerce").to_numpy(dtype=float)
        has = np.isfinite(measured)
        if not has.any():
            continue
        predicted = pd.to_numeric(rows[f"predicted_{column}"], errors="coerce").to_numpy(dtype=float)
        ends = {f"{end}_ms": rows.get(f"{end}_{column}", pd.Series(np.nan, rows.index)) for end in ("low", "high")}
        held = {end: values.to_numpy() for end, values in ends.items()}
        part = pd.DataFrame({"measured_ms": measured, "predicted_ms": predicted} | held)
        errors = summarise(measured[has], predicted[has]) | coverage(part[has])
        yield name, errors | {"reasons": _reasons(rows[has & ~np.isfinite(predicted)])}


def _reasons(rows: Any) -> str:
    """Why rows have no forecast, the most frequent first."""
    counted = rows["note"].fillna("").value_counts()
    return "; ".join(f"{n} x {' '.join(str(text).split('/')[-1].split())}" for text, n in counted.items())


def sums(name: str, rows: Any, said: Mapping[str, Any], by: Sequence[str] = KEYS) -> list[dict[str, Any]]:
    """The lines of a suite: all of it, what was known before and what is new, and every group of the columns ``by``."""
    left = pd.Series(False, rows.index)
    for column in ("left_out", "suspect"):
        if column in rows:
            left |= rows[column].astype(object).fillna("").astype(str) != ""
    left_out, rows = int(left.sum()), rows[~left].copy()
    kinds = "kind" in rows and "gpu" not in rows  # rows of `accuracy_rows`
    if kinds:
        rows["gpu"], rows["execution"] = (rows["kind"].str.split().str[place] for place in (0, 1))
    keys = [key for key in by if key in rows]
    for key in keys:
        rows[key] = rows[key].astype(object).fillna("").astype(str)
    parts = {"all": rows}
    if said.get("known") or kinds:
        rows["part"] = part_names(rows, said["known"]) if said.get("known") else rows["kind"].map(apart)
        parts |= {str(part): some for part, some in rows.groupby("part")}
    lines = []
    for part, some in parts.items():
        groups: list[tuple[dict[str, str], Any]] = [({}, some)]
        if part != "all" or len(parts) == 1:
            groups += [(dict(zip(keys, values, strict=True)), group) for values, group in some.groupby(keys)]
        for values, group in groups:
            first = {"suite": name, "part": part, **{key: values.get(key, "all") for key in by}}
            first["left_out"] = left_out if part == "all" and not values else ""
            lines += [first | {"figure": figure} | errors for figure, errors in figures(group)]
    return lines


def main() -> None:
    """Read, sum up, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--rows", type=Path, required=True, help="folder of the files that the spec names")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    spec = read_yaml_file(asked.spec, "a YAML file of suites")
    lines = []
    for said in spec["suites"]:
        rows = pd.read_csv(asked.rows / said["rows"], low_memory=False)
        more = {"commit": said.get("commit", spec["commit"]), "date": str(spec["date"]), "command": said["command"]}
        summed = sums(said["suite"], rows, said, spec.get("keys", KEYS))
        lines += [line | {"remark": said.get("remark", "")} | more for line in summed]
    frame = pd.DataFrame(lines)
    for column in frame.columns:
        if column.endswith("_pct"):
            frame[column] = frame[column].astype(float).round(2)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(asked.out, index=False)
    print(f"{asked.out}: {len(frame):,} lines of {frame['suite'].nunique()} suites")


if __name__ == "__main__":
    main()
