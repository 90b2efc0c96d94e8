"""`microbench merge PART... --out DIR`: data sets of many nodes as one."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from microbench import arguments as words
from microbench.merge import merge


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `merge`."""
    parser.epilog = "example: microbench merge node-1 node-2 node-3 --out datasets"
    parser.add_argument("parts", type=Path, nargs="+", metavar="DIR", help="data sets of microbench collect")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the data set: made, or added to")
    parser.add_argument("--wait", type=words.seconds, default=0.0, metavar="TIME", help="wait for a collector to end")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Merge, say what came of it."""
    words.check_below_folder(arguments.out)
    done = merge(arguments.parts, arguments.out, arguments.wait)
    for warning in done.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(asdict(done)))
    else:
        print(f"{done.rows} rows and {done.failures} failures added from {done.sources} data sets, {done.twice} rows of"
              " cases that had one already left out")  # fmt: skip
    return 0
