"""`tilecast sweep`: many forecasts from one file, to a table."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.cli.tracked import resolve
from predictor.errors import RequestError, TilecastError
from predictor.files.outputs import output_argument, table
from predictor.report.under_way import UnderWay

if TYPE_CHECKING:
    from predictor.sweep.parts import Parts

ENGINES = PROCESSES, RAY = "processes", "ray"
EXAMPLES = """examples:
  tilecast sweep examples/sweep.yaml --dry-run
  tilecast sweep examples/sweep.yaml --out answers.parquet
  tilecast sweep examples/sweep.yaml --out answers.csv --jobs 1

a file of points:
  model: [llama-3.1-8b, llama-3.1-70b]
  gpu: [a100, h100]
  mode: decode
  batch: [1, 8, 64]
  cases: [{tp: 1}, {tp: 8}]

A list is an axis of the product, `cases` are words that go together, `exclude` and `include` take points out and put
more in (docs/how-to/sweep.md). A sweep that was interrupted goes on when the same command is given again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `sweep`."""
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add(
        "spec",
        type=Path,
        metavar="SPEC.yaml",
        help="points: words of `predict`, lists of values (docs/how-to/sweep.md)",
    )
    output_argument(
        parser, "--out", table("a table of a sweep", ("point", "latency_ms", "fits", "note")), type=Path,
        metavar="FILE", help="the table: .parquet (needs pyarrow) or .csv",
    )  # fmt: skip
    add("--engine", default=PROCESSES, metavar="E", help=f"{PROCESSES} (default) or {RAY} (a cluster; needs ray)")
    add("--jobs", type=int, metavar="N", help="workers (default: the processors of this machine, or of the cluster)")
    add("--artifacts", metavar="DIR", help="estimators to use (default: those that ship; 'roofline': none)")
    add("--restart", action="store_true", help="drop what an earlier sweep left beside --out, and begin anew")
    add("--dry-run", action="store_true", help="say how many points there are, and run none")
    add("--json", action="store_true", help="print the summary as JSON (docs/reference/json-schema.md)")


def run(arguments: argparse.Namespace) -> int:
    """Read the file, run what is missing, write the table."""
    from predictor.kernels.artifact import load_artifacts
    from predictor.sweep.spec import read_spec

    if arguments.engine not in ENGINES:
        raise RequestError(f"--engine {arguments.engine!r}: expected one of {', '.join(ENGINES)}")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise RequestError(f"--jobs {arguments.jobs}: expected at least 1")
    spec = read_spec(arguments.spec)
    if arguments.dry_run:
        summary = {"points": len(spec.points), "words": list(spec.words)}
        shown = f"{len(spec.points):,} points; the first: {_words(spec.points[0])}"
        print(json.dumps(summary) if arguments.json else shown)
        return 0
    if arguments.out is None:
        raise RequestError("--out: expected a file that ends in .parquet or .csv, or --dry-run")
    from predictor.sweep.parts import Parts, check_out

    check_out(arguments.out)
    began = time.monotonic()
    artifacts = resolve(arguments.artifacts)
    load_artifacts(artifacts)  # a wrong --artifacts is no point's fault
    with Parts(spec, arguments.out, str(artifacts or ""), arguments.restart) as parts:
        changed = parts.outdated()
        if changed:
            print(f"inputs changed since: {changed:,} of the kept points run again", file=sys.stderr)
        already = _run(parts, arguments, artifacts)
        note, failures = parts.first_note(), parts.failures()
        noted = parts.finish()
    points = len(spec.points)
    summary = {
        "file": str(arguments.out), "points": points, "forecast": points - noted, "noted": noted,
        "failed": len(failures), "points_kept": already, "first_note": note or None,
        "seconds": time.monotonic() - began,
    }  # fmt: skip
    if arguments.json:
        print(json.dumps(summary))
    else:
        kept = f", {already:,} of them kept from before" if already else ""
        print(f"{points:,} points{kept}, {summary['seconds']:.1f} s: {arguments.out}")
        if noted:
            print(f"{noted:,} have no forecast, and a note; the first: {note}")
    if noted == points:
        raise TilecastError(f"no point could be forecast: {note}")
    if failures:
        raise TilecastError(
            f"{len(failures):,} of {points:,} points failed for a reason other than their words; {failures[0]}"
        )
    return 0


def _words(point: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in point.items())


def _run(parts: Parts, arguments: argparse.Namespace, artifacts: str | None) -> int:
    """Run what is missing; returns the points that were there."""
    from predictor.sweep.workers import Task, here, in_processes, in_ray

    missing = parts.missing()
    tasks = [Task(number, parts.points(number), parts.first(number)) for number in missing]
    total = len(parts.spec.points)
    already = done = total - sum(len(task.points) for task in tasks)
    jobs = arguments.jobs or len(os.sched_getaffinity(0))
    if not tasks:
        return already
    if arguments.engine == RAY:
        finished = in_ray(tasks, artifacts, arguments.jobs)
    elif jobs == 1 or len(tasks) == 1:
        finished = here(tasks, artifacts)
    else:
        finished = in_processes(tasks, artifacts, jobs)
    try:
        with UnderWay("sweep", arguments, total=total, done=done, unit="points") as bar:
            for number, rows in finished:
                parts.write(number, rows)
                done += len(rows)
                bar.at(done)
    except (KeyboardInterrupt, OSError):
        print(f"{done:,} of {total:,} points are kept in {parts.folder}; the same command goes on", file=sys.stderr)
        raise
    finally:
        finished.close()
    return already
