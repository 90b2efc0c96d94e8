"""What scripts that forecast a suite row by row share: rows that are kept as they come, tables of errors by kind."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from predictor.files.extras import require

#: Of a row: ``kind`` is that of the table's line; ``predicted_ms`` is None where ``note`` says why there is none.
COLUMNS = ("kind", "case", "measured_ms", "predicted_ms", "note")


class Rows:
    """Rows of a suite that have been forecast; with ``path`` each is written there at once, beside those of a run
    before, which are read from it."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found: dict[str, dict[str, Any]] = {}
        if path is not None and path.is_file():
            with path.open(newline="") as file:
                whole = [row for row in csv.DictReader(file) if None not in row and None not in row.values()]
            self.found = {row["case"]: row for row in whole}
        elif path is not None:
            path.write_text(",".join(COLUMNS) + "\r\n")

    def add(self, kind: str, case: str, measured_ms: float, predicted_ms: float | None, note: str = "") -> None:
        """One row more."""
        row = dict(zip(COLUMNS, (kind, case, measured_ms, predicted_ms, note), strict=True))
        self.found[case] = row
        if self.path is not None:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, COLUMNS).writerow(row)

    def print_table(self, title: str, also: str = "", worst: int = 5) -> None:
        """Errors by kind, by what the expression ``also`` finds in a case, and of all rows; the worst ones, and why
        others have no forecast."""
        done = require("pandas").DataFrame(self.found.values(), columns=COLUMNS)
        for column in ("measured_ms", "predicted_ms"):
            done[column] = require("pandas").to_numeric(done[column])
        known = done[done["predicted_ms"].notna()]
        off = known["predicted_ms"] / known["measured_ms"] - 1.0
        print(f"\n{title:24}{'n':>6}{'mean':>8}{'median':>8}{'p90':>8}{'signed':>8}   % of the measured time")
        for kind in sorted(known["kind"].unique()):
            print(line(kind, off[known["kind"] == kind]))
        found = known["case"].str.extract(also)[0] if also else known["kind"]
        for word in sorted(found.dropna().unique()) if also else ():
            print(line(word, off[found == word]))
        print(line("all", off))
        for place in off.abs().sort_values(ascending=False).index[:worst]:
            print(f"  worst: {known['case'][place]}: {off[place]:+.1%} of {known['measured_ms'][place]:,.1f} ms")
        print(f"rows with a forecast: {len(known)} of {len(done)}; the others:")
        for note, count in done.loc[done["predicted_ms"].isna(), "note"].value_counts().items():
            print(f"  {count:4} {note}")


def line(title: str, off: Any) -> str:
    """A line of a table: its title and errors of ``off``, (n,) signed ratios minus one."""
    of = np.abs(off) * 100
    found = (
        f"{of.mean():8.1f}{np.median(of):8.1f}{np.quantile(of, 0.9):8.1f}{off.mean() * 100:+8.1f}" if len(of) else ""
    )
    return f"{title:24}{len(off):6}{found}"
