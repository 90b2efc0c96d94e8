#!/usr/bin/env python3
"""What became of the lines of a page of tables (benchmarks/accuracy.py): errors before and after, line by line.

usage: benchmarks/compare_tables.py BEFORE.md AFTER.md [--out benchmarks/results/accuracy-change-DATE.md]

Both are files such as benchmarks/results/accuracy-tables-DATE.md. A line is known by its section (the heading up to its
first colon or bracket), the heads of its columns and its words. What is compared is its column "mean" (median where a
table has no mean; of collectives, medians by size), in points: a line is worse, or better, where it moved by more than
0.2. Prints, by section, how many lines both have, the mean of these before and after, how many moved, and the lines
that are worse, the worst first; those that count other rows than before (a board more, a suite more) apart.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MOVED = 0.2  # points; what issues of accuracy ask for
#: Why lines of a section are worse, as far as it is known.
REASONS = {
    "fp32, eager PyTorch": "L4 is in no fit: Ada's choice of kernels is no longer taken to be Ampere's, as no row tells"
    " it, and a product gets the mean of all measured libraries' kernels. V100's steps of training moved with the"
    " graphs, which run dropout's gradient as today's PyTorch does.",
    "Shapes held out": "collectives have 4 to 33 rows a line and are in trips to memory since (accuracy-2026-11-23.md);"
    " between measured sizes attention and products stand on a line now, which few rows pay for.",
    "Whole MoE models held out": "other rows: B200's and GB200's are among the models held out now.",
    "Collectives, a generation left out": "collectives are in trips to memory since; a headline is 20 rows.",
    "Serving, end to end": "a decode step reads a cold KV cache since, which is slower on L20's large L2; rows of BERT"
    " without padding have attention on padded sequences, which took T4's fp32 rows further off; power holds A100's"
    " long prefills (+1.3 %); boards without check bits in their memory are faster, and RTX 6000 Ada, probably"
    " throttled, is further off. A40's two cells were not looked into.",
}
#: Columns by which a line is judged, the first that a table has.
JUDGED = ("mean", "median", "ours")
_PERCENT = re.compile(r"^[+-]?[\d,]*\.?\d+ ?%$")
_COUNT = re.compile(r"^[\d,]+$")


class Line(NamedTuple):
    """A line of a table: what it is of, the rows it counts ("" without), and its error in percent."""

    words: tuple[str, ...]
    rows: str
    error: float


def sections(text: str) -> Iterator[tuple[str, list[Line]]]:
    """The lines of each section of a page of tables, by the section's short name."""
    for part in re.split(r"(?m)^## ", text)[1:]:
        head, _, body = part.partition("\n")
        seen: Counter[tuple[str, ...]] = Counter()
        lines = []
        for line in (*_lines(body), *_collectives(body)):
            seen[line.words] += 1  # of several tables with a line of the same words, the first is the first's
            again = seen[line.words]
            lines.append(line if again == 1 else line._replace(words=(*line.words, f"table {again}")))
        yield re.split(r"[:(]", head)[0].strip(), lines


def _lines(body: str) -> Iterator[Line]:
    heads: list[str] = []
    for text in body.splitlines():
        if not text.startswith("|"):
            heads = []
            continue
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if not heads:
            heads = cells
            continue
        named = [i for name in JUDGED for i, head in enumerate(heads) if head == name]
        if not named or len(cells) != len(heads) or not _PERCENT.match(cells[named[0]]):
            continue
        words = tuple(c for c in cells if not _PERCENT.match(c) and not _COUNT.match(c) and c != "-")
        seeds = tuple(c for c, head in zip(cells, heads, strict=True) if head in ("seed", "rows"))
        rows = next((c for c, head in zip(cells, heads, strict=True) if head in ("n", "cells")), "")
        error = abs(float(cells[named[0]].rstrip(" %").replace(",", "")))
        yield Line((heads[0], *seeds, *words), rows, error)


def _collectives(body: str) -> Iterator[Line]:
    """The medians of benchmarks/leave_one_out_collectives.py, by what was left out and size."""
    left_out = ""
    for text in body.splitlines():
        if found := re.match(r"(.+) left out: headline ([\d.]+) % \((\d+) rows", text):
            left_out = found[1]
            yield Line(("collectives", left_out, "headline"), found[3], float(found[2]))
        elif found := re.match(r" +(below 1 MiB|from 1 MiB): all ([\d.]+) .*?[ (]n (\d+)\)", text):
            yield Line(("collectives", left_out, found[1]), found[3], float(found[2]))


def compared(before: str, after: str) -> list[str]:
    """The page: a table of the sections, then the lines that are worse."""
    old: dict[str, list[Line]] = {}
    for name, lines in sections(before):
        old.setdefault(name, []).extend(lines)
    heads = (
        "section", "lines before, after", "in both", "mean before", "after", "of the same rows, worse by over 0.2",
        "better by over 0.2", "of other rows, worse", "better",
    )  # fmt: skip
    table = [f"| {' | '.join(heads)} |", "| --- " + "| --: " * (len(heads) - 1) + "|"]
    worse: list[str] = []
    for name, lines in sections(after):
        known = {line.words: line for line in old.get(name, [])}
        pairs = [(known[line.words], line) for line in lines if line.words in known]
        means = [f"{sum(pair[i].error for pair in pairs) / len(pairs):.2f} %" if pairs else "-" for i in (0, 1)]
        cells = [name, f"{len(old.get(name, []))}, {len(lines)}", str(len(pairs)), *means]
        for same in (True, False):
            moved = [(new.error - was.error, was, new) for was, new in pairs if (was.rows == new.rows) == same]
            slower = sorted((item for item in moved if item[0] > MOVED), key=lambda item: -item[0])
            cells += [str(len(slower)), str(sum(item[0] < -MOVED for item in moved))]
            if slower:
                worse += [
                    "",
                    f"## {name}: worse by more than {MOVED} points, of {'the same' if same else 'other'} rows",
                ]
                worse += ["", f"As far as it is known: {REASONS[name]}"] if name in REASONS else []
                worse += ["", "| line | rows | before | after | by |", "| --- | --: | --: | --: | --: |"]
            for by, was, new in slower:
                rows = new.rows if same else f"{was.rows}, {new.rows}"
                figures = f"{was.error:.2f} % | {new.error:.2f} % | {by:+.2f}"
                worse.append(f"| {' / '.join(new.words[1:])} | {rows} | {figures} |")
        table.append(f"| {' | '.join(cells)} |")
    return [*table, *worse]


def main() -> int:
    """Print the comparison, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines = compared(asked.before.read_text(encoding="utf-8"), asked.after.read_text(encoding="utf-8"))
    command = f"benchmarks/compare_tables.py {asked.before.name} {asked.after.name}"
    said = f"Written by `{command}`. Errors are means (medians where a table has none)."
    page = "\n".join(["# Accuracy: before and after", "", said, "", *lines, ""])
    if asked.out is None:
        print(page, end="")
    else:
        asked.out.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
