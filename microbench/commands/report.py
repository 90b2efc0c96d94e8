"""`microbench report DIR`: a collection as an HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from microbench import arguments as words
from microbench.dataset import read
from microbench.report import page
from microbench.storage import make_folder, write_output
from predictor.files.outputs import PAGE, output_argument, place


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `report`."""
    parser.epilog = "example: microbench report datasets --out report.html"
    parser.add_argument("dir", type=Path, help="a data set, or a folder of it")
    output_argument(
        parser, "--out", PAGE, type=Path, metavar="FILE", help="the page (default: report.html in the data set)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the page, say where."""
    out: Path = arguments.out or arguments.dir / "report.html"
    place("--out", str(out), PAGE, {})
    parts = read(arguments.dir)
    words.check_below_folder(out)
    make_folder(out.absolute().parent)
    write_output(out, page(parts, arguments.dir.resolve().name).encode())
    print(out)
    return 0
