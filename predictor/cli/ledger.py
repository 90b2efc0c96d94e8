"""`tilecast ledger`: forecasts that are dated before their measurement, and their errors afterwards."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from predictor import __version__
from predictor.cli.arguments import add_options
from predictor.cli.predict import asked_words
from predictor.cli.tracked import file_sha256
from predictor.errors import RequestError
from predictor.request.options import OPTIONS, OUTPUTS

EXAMPLES = """examples:
  tilecast ledger record --ledger blind.jsonl --model llama-3.1-8b --gpu h200 --mode decode --batch 8
  tilecast ledger score blind.jsonl --measured measured.csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `ledger`."""
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    record = actions.add_parser(
        "record",
        help="forecast, and add the forecast to a ledger",
        description="Takes the words of `tilecast predict`, and adds the answer to a file that only grows. Each entry's"
        " hash covers the one before, so that a later change shows.",
    )
    record.add_argument("--ledger", required=True, metavar="FILE", help="a .jsonl file; made where it is not there")
    record.add_argument("--id", metavar="NAME", help="a name of the entry (default: its number)")
    rows = (option for name, option in OPTIONS.items() if name not in ("top", "explain"))
    add_options(record, (*rows, OUTPUTS["launched"], OUTPUTS["json"]))
    check = actions.add_parser(
        "score",
        help="check the chain, and hold entries against measurements",
        description="Prints the errors of the entries that a table has measurements of. A ledger that was changed is"
        " refused.",
    )
    check.add_argument("file", metavar="FILE", help="a ledger")
    check.add_argument(
        "--measured", required=True, metavar="CSV",
        help="a table: id or words of a request (model, gpu, batch, ...), measured_ms, and maybe measured_at",
    )  # fmt: skip
    check.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Record or score."""
    return _record(arguments) if arguments.action == "record" else _score(arguments)


def _record(arguments: argparse.Namespace) -> int:
    from predictor.forecast.forecast import forecast
    from predictor.request.request import Request
    from predictor.tracking import ledger

    path = Path(arguments.ledger)
    if path.suffix != ".jsonl":
        raise RequestError(f"--ledger {arguments.ledger}: expected a file that ends in .jsonl")
    if arguments.id is not None and not arguments.id.strip():
        raise RequestError(f"--id {arguments.id!r}: expected a name")
    if path.exists():
        ledger.read(path)  # refused before the work
    words = asked_words(arguments)
    answer = forecast(Request(arguments.model, arguments.gpu, **words).run().noted(arguments.remarks)).prediction
    interval = None if answer.interval_s is None else [t * 1e3 for t in answer.interval_s]
    asked = {"model": arguments.model, "gpu": arguments.gpu, **words}
    given = {name: value for name, value in asked.items() if name != "artifacts" and value != OPTIONS[name].default}
    named = {} if arguments.id is None else {"id": arguments.id}
    entry = ledger.append(path, named | {
        "recorded_at": datetime.now(UTC).isoformat(timespec="seconds"), "version": __version__,
        "words": json.loads(json.dumps(given, default=str)), "files": _hashes(given), "model": answer.model,
        "gpu": answer.gpu, "latency_ms": answer.latency_ms, "interval_ms": interval, "notes": list(answer.notes),
        "set": _set(arguments.artifacts, words["artifacts"]),
    })  # fmt: skip
    if arguments.json:
        print(json.dumps(entry, indent=2))
        return 0
    from predictor.files.terminal import screen
    from predictor.report import table

    width = "" if interval is None else f" ({interval[0]:,.3f} to {interval[1]:,.3f})"
    line = f"{entry['model']} on {entry['gpu']}: {entry['latency_ms']:,.3f} ms{width}"
    table.say(screen(), f"entry {entry['id']} of {path}: {line}; hash {entry['sha256']}")
    return 0


def _hashes(words: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of the files that words name, whose content the words do not say."""
    return {name: file_sha256(value) for name, value in words.items() if isinstance(value, str) and _is_file(value)}


def _is_file(value: str) -> bool:
    try:
        return Path(value).is_file()
    except (OSError, ValueError):  # too long for a name
        return False


def _set(asked: str | None, resolved: str | None) -> dict[str, str]:
    """What the forecast rests on: the set's name as it was asked for, and the hash of its manifest, which has the
    hashes of all its files; "" where there is no set."""
    from predictor.kernels.artifact import default_artifacts
    from predictor.kernels.stored import MANIFEST

    folder = default_artifacts() if resolved is None else Path(resolved)
    manifest = folder / MANIFEST
    return {
        "name": "shipped" if asked is None else asked,
        "manifest_sha256": file_sha256(str(manifest)) if manifest.is_file() else "",
    }


def _score(arguments: argparse.Namespace) -> int:
    from predictor.fit.ledger import score
    from predictor.tracking import ledger

    path = Path(arguments.file)
    entries = ledger.read(path)
    scored = score(entries, Path(arguments.measured))
    if not scored["rows"]:
        why = f": {scored['unscored'][0]['reason']}" if scored["unscored"] else ""
        raise RequestError(f"{arguments.measured}: no row matches an entry of {path}{why}")
    about = {"entries": len(entries), "sha256": entries[-1]["sha256"]}
    if arguments.json:
        print(json.dumps(about | scored, indent=2))
        return 0
    from predictor.files.terminal import screen
    from predictor.report import table

    console = screen()
    heads = ("forecast ms", "interval ms", "measured ms", "error")
    columns = [table.Column(name, key=True) for name in ("id", "model", "gpu")]
    columns += [table.Column(name, right=True) for name in heads]
    table.print_table(console, columns, [_cells(row) for row in scored["rows"]])
    for line in _summary(scored["summary"]):
        table.say(console, line)
    for row in scored["unscored"]:
        table.say(console, f"not scored: row {row['row']}: {row['reason']}")
    table.say(console, f"{len(entries)} entries, and the chain is whole; last hash {about['sha256']}")
    return 0


def _cells(row: Mapping[str, Any]) -> list[str]:
    interval = "-" if row["low_ms"] is None else f"{row['low_ms']:,.3f} to {row['high_ms']:,.3f}"
    out = "" if row["within"] in (None, True) else " outside"
    figures = (f"{row['predicted_ms']:,.3f}", interval, f"{row['measured_ms']:,.3f}", f"{row['error_pct']:+.1f} %{out}")
    return [row["id"], row["model"], row["gpu"], *figures]


def _summary(summary: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{summary['n']} rows: mean error {summary['mean_ape_pct']:.1f} %, median {summary['median_ape_pct']:.1f} %,"
        f" 90th percentile {summary['p90_ape_pct']:.1f} %, signed {summary['mean_signed_pct']:+.1f} %"
    ]
    if "interval_coverage_pct" in summary:
        lines.append(
            f"intervals hold {summary['interval_coverage_pct']:.0f} % of them (80 % is what they say); median width"
            f" {summary['interval_width_pct']:.0f} % of the forecast"
        )
    return lines
