"""`tilecast bench-suite`: forecasts of every module in a folder, by board."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from predictor.cli.arguments import add_options
from predictor.cli.tracked import resolve
from predictor.errors import RequestError, UnsupportedError
from predictor.files import outputs
from predictor.files.outputs import output_argument, table
from predictor.report.under_way import UnderWay
from predictor.request.options import OPTIONS

EXAMPLES = """examples:
  tilecast bench-suite modules --gpu a100,h100
  tilecast bench-suite modules --gpu l4 --execution compile --measured measured-modules.csv --out forecasts.csv

Each file has `class Model(nn.Module)`, `get_init_inputs()` and `get_inputs()`, as those of KernelBench. Their code is
run, on the meta device of PyTorch: no GPU, no numbers.
"""
#: Words of a forecast that a suite takes beside --gpu.
_WORDS = ("dtype", "execution", "software", "launch_overhead", "gpu_set", "artifacts")
#: What the files compute in: PyTorch's default.
_DTYPE = "fp32"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `bench-suite`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="Python files, also in folders below it; their code runs here"
    )
    rows = {name: OPTIONS[name].with_row(modes=()) for name in ("gpu", *_WORDS)}
    rows["gpu"] = rows["gpu"].with_row(unit="G,...", help="names of `tilecast gpus` or YAML files, with commas")
    add_options(parser, rows.values())
    parser.set_defaults(dtype=_DTYPE)
    parser.add_argument(
        "--measured", type=Path, metavar="CSV",
        help="measurements: module (a path below FOLDER, or a file's name), gpu, measured_ms; prints errors by board",
    )  # fmt: skip
    output_argument(
        parser, "--out", table("a table of forecasts of modules", ("module", "gpu", "predicted_ms", "note")),
        type=Path, metavar="FILE", help="also write the table: .csv",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Forecast every module on every board, and print the table."""
    from predictor.cli.compare import boards_of
    from predictor.fit.module_suite import as_csv, errors, forecasts, measure, read_measured
    from predictor.models.traced.module_files import module_files
    from predictor.models.traced.sources import need_torch

    if arguments.out is not None and arguments.out.suffix != ".csv":
        raise RequestError(f"--out {arguments.out}: expected a file that ends in .csv")
    gpus = boards_of(arguments.gpu)
    words = {name: getattr(arguments, name) for name in _WORDS} | {"artifacts": resolve(arguments.artifacts)}
    _check(words)
    files = module_files(arguments.folder)
    times = {} if arguments.measured is None else read_measured(arguments.measured, arguments.execution)
    need_torch()
    with UnderWay("forecasting modules", arguments, total=len(files), unit="files") as line:
        rows = list(forecasts(arguments.folder, files, gpus, {"mode": "forward", **words}, line.at))
    left = measure(rows, times)
    of_boards = {gpu.id: errors([row for row in rows if row["gpu"] == gpu.id]) for gpu in gpus} if times else {}
    if arguments.out is not None:
        outputs.write("--out", arguments.out, as_csv(rows))
    if arguments.json:
        about = {"modules": len(files), "dtype": arguments.dtype, "execution": arguments.execution}
        print(json.dumps({**about, "rows": rows, "errors": of_boards, "measured_elsewhere": left}, indent=2))
        return 0
    _print(rows, [gpu.id for gpu in gpus])
    if times:
        _print_errors(of_boards, errors(rows), left)
    if arguments.out is not None:
        print(f"written: {arguments.out}")
    return 0


def _check(words: Mapping[str, Any]) -> None:
    """RequestError, one line, for words that no forecast takes: they are no reason of a module."""
    from predictor.request.precision import dtype_word
    from predictor.request.request import Request

    OPTIONS["dtype"].check(dtype_word(words["dtype"]))
    asked = dict(words) | {"artifacts": "roofline"}
    with contextlib.suppress(UnsupportedError):  # what one board or one model has not
        Request("gpt2", "h100", mode="forward", **asked).run()


def _print(rows: Sequence[Mapping[str, Any]], boards: Sequence[str]) -> None:
    """A line a module, a column a board; then why others have no forecast."""
    from predictor.files.terminal import screen
    from predictor.report import table as tables

    console = screen()
    cells: dict[str, list[str]] = {}
    for row in rows:
        cells.setdefault(row["module"], [row["module"]]).append(_cell(row))
    columns = [tables.Column("module", key=True), *(tables.Column(f"{name} ms", right=True) for name in boards)]
    tables.print_table(console, columns, list(cells.values()))
    notes: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["note"]:
            notes.setdefault((row["module"], row["note"]), []).append(row["gpu"])
    for (module, note), on in notes.items():
        where = "" if len(on) == len(boards) else f" on {', '.join(on)}"
        tables.say(console, f"no forecast of {module}{where}: {note}")


def _cell(row: Mapping[str, Any]) -> str:
    if row["predicted_ms"] is None:
        return "-"
    error = "" if row["error_pct"] is None else f" ({row['error_pct']:+.0f} %)"
    return f"{row['predicted_ms']:,.4g}{error}"


def _print_errors(of_boards: Mapping[str, Mapping[str, Any]], overall: Mapping[str, Any], left: int) -> None:
    from predictor.files.terminal import screen
    from predictor.fit.scores import print_table
    from predictor.report import table as tables

    groups = [{"gpu": board, **summary} for board, summary in of_boards.items()]
    print_table("errors, in % of the measured time", overall, groups, ["gpu"])
    if left:
        tables.say(screen(), f"measurements of other modules or boards: {left}")
