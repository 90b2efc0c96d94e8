"""`tilecast dataset import|fetch|describe`: public measurements into the measurement schema, and what a file holds."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from predictor.errors import RequestError
from predictor.files.outputs import SIDECAR, OutputKind, output_argument

EXAMPLES = """examples:
  tilecast dataset import neusight $TILECAST_DATA/neusight --out neusight.parquet
  tilecast dataset import csv mine.csv --gpu rtx-4090 --op gemm --out mine.parquet   # columns m,n,k,dtype,time_us
  tilecast dataset fetch neusight --out datasets
  tilecast dataset describe neusight.parquet
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `dataset`."""
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    load = actions.add_parser(
        "import",
        help="a public data set in its native layout -> the measurement schema",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    load.add_argument(
        "source",
        help="neusight, aiconfigurator, vidur, vtrain, llmcompass, aiter, simumax, llmservingsim, microbench, or csv:"
        " a table of your own",
    )
    load.add_argument("path", help="the folder that holds it (csv: the file)")
    table = load.add_argument_group("of a table of your own (csv)")
    table.add_argument("--gpu", metavar="G", help="the GPU that was measured: a name or a YAML file")
    table.add_argument("--op", default="", metavar="OP", help="gemm, prefill, decode, all_reduce, moe, norm, ...")
    table.add_argument(
        "--unit", default="", metavar="U", help="the unit of its times, where no column says it: ns, us, ms or s"
    )
    output_argument(
        load, "--out", _rows, lambda path: [(path.with_name(path.name + ".meta.json"), SIDECAR)],
        required=True, metavar="FILE", help="a .parquet or .csv file to write",
    )  # fmt: skip
    load.add_argument("--json", action="store_true", help="print JSON")
    _add_fetch(actions)
    describe = actions.add_parser(
        "describe",
        help="counts by GPU, operator, dtype and framework; ranges; noise",
        epilog="example: tilecast dataset describe neusight.parquet",
    )
    describe.add_argument("file", help="a data set of the measurement schema: a file, or a folder of shards")
    describe.add_argument("--table", action="store_true", help="print rows by source, GPU, operator (Markdown) alone")
    describe.add_argument("--json", action="store_true", help="print JSON")


def _add_fetch(actions: Any) -> None:
    load = actions.add_parser(
        "fetch",
        help="a public source at its pinned commit, checked, as shards of the measurement schema",
        description="Clones the source at the commit of datasets/sources.yaml, or takes it from --from; checks the hash"
        " of every file; imports.",
        epilog="example: tilecast dataset fetch vtrain --from ../vTrain --out datasets",
    )
    load.add_argument(
        "source",
        help="neusight, aiconfigurator, vidur, vtrain, llmcompass, aiter, simumax or llmservingsim"
        " (datasets/sources.yaml)",
    )
    load.add_argument("--from", dest="origin", metavar="DIR", help="a git repository or a folder that has the files")
    load.add_argument("--out", required=True, metavar="DIR", help="folder in which a folder SOURCE is made")
    load.add_argument("--json", action="store_true", help="print JSON")


def _rows(arguments: argparse.Namespace) -> OutputKind:
    """Rows that were imported from the same source: those of another may be measured, and nobody has them twice."""

    def is_one(path: Path) -> bool:
        from predictor.data.dataset import sidecar

        try:
            return bool(json.loads(sidecar(path).read_bytes()).get("source") == arguments.source)
        except (OSError, ValueError, AttributeError):
            return False

    return OutputKind(f"a table imported from {arguments.source}", is_one)


def run(arguments: argparse.Namespace) -> int:
    """Import, fetch or describe."""
    return {"import": _import, "fetch": _fetch, "describe": _describe}[arguments.action](arguments)


def _fetch(arguments: argparse.Namespace) -> int:
    from predictor.data.sources import fetch

    origin = Path(arguments.origin) if arguments.origin else None
    done = fetch(arguments.source, Path(arguments.out), origin)
    summary = {
        "rows": done.rows, "skipped": sum(done.skipped.values()), "skipped_by_reason": dict(done.skipped),
        "shards": [str(path) for path in done.shards],
    }  # fmt: skip
    if arguments.json:
        print(json.dumps(summary, indent=2))
        return 0
    print(f"{done.rows:,} rows in {len(done.shards)} shards of {Path(arguments.out) / arguments.source}")
    for reason, count in done.skipped.items():
        print(f"  not imported: {count:,} x {reason}")
    return 0


def _import(arguments: argparse.Namespace) -> int:
    from predictor.data import dataset

    result, more = _imported(arguments)
    dataset.write(result.frame, arguments.out, {**result.about(), **more})
    summary: dict[str, Any] = {
        "rows": len(result.frame),
        "skipped": sum(result.skipped_by_reason().values()),
        "skipped_by_reason": result.skipped_by_reason(),
        "flagged": _counts(result.frame["flag"]),
        "out": str(Path(arguments.out)),
    }
    if arguments.json:
        print(json.dumps(summary, indent=2))
        return 0
    print(f"{summary['rows']:,} rows written to {summary['out']}; {summary['skipped']:,} rows not imported")
    for reason, count in sorted(result.skipped_by_reason().items(), key=lambda item: -item[1]):
        print(f"  not imported: {count:,} x {reason}")
    for flag, count in summary["flagged"].items():
        print(f"  kept apart:   {count:,} x {flag}")
    return 0


def _imported(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """What was imported, and what is to be said of it in the data file."""
    from predictor.data.importers import import_source

    if arguments.source != "csv":
        given = [f"--{name}" for name in ("gpu", "op", "unit") if getattr(arguments, name)]
        if given:
            raise RequestError(f"{given[0]} belongs to `dataset import csv`; {arguments.source} says it itself")
        return import_source(arguments.source, arguments.path), {}
    from predictor.data.importers import table
    from predictor.hardware.gpu import list_gpus, load_gpu, text_of

    if not arguments.gpu:
        raise RequestError("dataset import csv: expected --gpu, the board that was measured")
    gpu, path = load_gpu(arguments.gpu), Path(arguments.path)
    if path.suffix.lower() == ".parquet":
        raise RequestError(f"{path}: expected a .csv file; a .parquet of the measurement schema needs no import")
    result = table.read_table(path, gpu, arguments.op, arguments.unit)
    if not arguments.json:
        print(f"{path}: taken as {table.assumed_words(result.frame)}")
    devices = {} if gpu.id in list_gpus() else {"devices": {gpu.id: text_of(gpu)}}
    return result, {**table.about(path), **devices}


def _counts(column: Any) -> dict[str, int]:
    counts = column[column != ""].astype(str).value_counts()
    return {str(name): int(count) for name, count in counts.items() if count}


def _describe(arguments: argparse.Namespace) -> int:
    from predictor.data import dataset

    if arguments.table:
        return _table(arguments)
    facts = dataset.describe(dataset.read(arguments.file))
    if arguments.json:
        print(json.dumps(facts, indent=2))
        return 0
    _print_facts(arguments.file, facts)
    return 0


def _table(arguments: argparse.Namespace) -> int:
    from predictor.data.shards import count_rows, rows_markdown

    path = Path(arguments.file)
    print(json.dumps(count_rows(path).to_dict("records"), indent=2) if arguments.json else rows_markdown(path))
    return 0


def _print_facts(file: str, facts: dict[str, Any]) -> None:
    from predictor.files.terminal import screen
    from predictor.report.table import Column, print_table, say
    from predictor.report.wording import significant

    console = screen()
    say(console, f"{file}: {facts['rows']:,} rows")
    for column, counts in facts["counts"].items():
        named = ", ".join(f"{name or '(none)'} {n:,}" for name, n in counts.items())
        if list(counts) != [""]:
            say(console, named, f"  {column}: ")
    heads, rows = ("operator", "field", "lowest", "median", "highest"), []
    for op, fields in facts["ranges"].items():
        for field, values in fields.items():
            texts = [significant(float(v)) for v in values]
            rows.append((op, field, texts[0], texts[1] if len(texts) > 2 else "", texts[-1]))
    words = ("operator", "field")
    print_table(console, [Column(head, right=head not in words, key=head in words) for head in heads], rows)
    for kind, noise in facts["noise"].items():
        if noise and noise.get("median") is not None:
            n = noise.get("rows", noise.get("cases", 0))
            say(console, f"noise by {kind}: median {noise['median']:.2%} over {n:,}", "  ")
    for flag, n in facts["flags"].items():
        say(console, f"kept apart: {n:,} x {flag}", "  ")
