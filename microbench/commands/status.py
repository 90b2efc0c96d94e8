"""`microbench status DIR...`: rows, failures and the last collection of every folder."""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from microbench.dataset import DatasetFolder, read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `status`."""
    parser.epilog = "example: microbench status datasets"
    parser.add_argument("dirs", type=Path, nargs="+", metavar="DIR", help="data sets, or folders of them")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print how far the collections are."""
    parts_read = [part for folder in arguments.dirs for part in read(folder)]
    parts = [_describe(part, len(arguments.dirs) > 1) for part in parts_read]
    cases = Counter(str(row["case_id"]) for part in parts_read for row in part.all_rows)
    kinds: Counter[str] = Counter()
    for part in parts:
        kinds.update(part["failure_kinds"])
    document = {
        "rows": sum(p["rows"] for p in parts), "failures": sum(p["failures"] for p in parts),
        "cases": len(cases), "broken": [part.broken for part in parts_read if part.broken],
        "failure_kinds": dict(kinds.most_common()), "parts": parts,
    }  # fmt: skip
    if arguments.json:
        print(json.dumps(document, indent=1))
        return 0
    _print_parts(parts)
    for why in document["broken"]:
        print(f"broken: {why}")
    more = f" of {len(cases)} cases in {len(arguments.dirs)} data sets" if len(arguments.dirs) > 1 else ""
    print(f"\n{document['rows']} rows{more}, {document['failures']} cases failed", end="")
    print(f" ({', '.join(f'{kind} {count}' for kind, count in kinds.most_common())})" if kinds else "")
    return 0


def _print_parts(parts: list[dict[str, Any]]) -> None:
    """A line a folder; where the terminal is too narrow for it, the folder stands in a line above its numbers."""
    width = max(len(part["name"]) for part in parts)
    head = f"{'rows':>8}{'in journal':>12}{'failed':>8}  {'last row':<27}last run"
    lines = [
        f"{part['rows']:>8}{part['in_journal']:>12}{part['failures']:>8}  "
        f"{(part['last_row'] or '-'):<27}{part['last_run']}"
        for part in parts
    ]
    columns = shutil.get_terminal_size((10_000, 24)).columns
    if width + max(map(len, (head, *lines))) <= columns:
        for name, line in zip(["folder", *(part["name"] for part in parts)], [head, *lines], strict=True):
            print(f"{name:<{width}}{line}")
        return
    for part in parts:
        print(f"{part['name']}\n  rows {part['rows']}, in journal {part['in_journal']}, failed {part['failures']},")
        print(f"  last row {part['last_row'] or '-'}, last run {part['last_run']}")


def _describe(part: DatasetFolder, whole: bool) -> dict[str, Any]:
    """``whole``: with the data set in its name, where there are several."""
    rows = part.all_rows
    runs = part.meta.get("collections", [])
    last = runs[-1] if runs else {}
    name = str(part.path) if whole else part.name
    return {
        "name": name, "rows": len(rows), "in_journal": len(part.journal), "failures": len(part.failed),
        "failure_kinds": dict(Counter(str(failure.get("kind")) for failure in part.failed)),
        "last_row": max((str(row.get("measured_at", "")) for row in rows), default=None), "collections": len(runs),
        "last_run": str(last.get("stopped_by", "cut off, or still running")) if last else "-",
    }  # fmt: skip
