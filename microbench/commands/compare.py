"""`microbench compare A B`: the median relative difference over the cases that both have."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from microbench.compare import compare
from predictor.errors import TilecastError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `compare`."""
    parser.epilog = "example: microbench compare monday tuesday"
    parser.add_argument("a", type=Path, help="a data set")
    parser.add_argument("b", type=Path, help="another one")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the differences; status 1 where the two have no case in common."""
    result = compare(arguments.a, arguments.b)
    if result.total is None:
        raise TilecastError(f"{arguments.a} and {arguments.b} have no case in common")
    if arguments.json:
        print(json.dumps(asdict(result), indent=1))
        return 0
    print(f"{'operator':<16}{'cases':>7}{'median':>10}{'90th pct':>10}{'signed':>10}")
    for group in (*result.groups, result.total):
        print(
            f"{group.name:<16}{group.n:>7}{group.median_pct:>8.2f} %{group.p90_pct:>8.2f} %{group.signed_pct:>+8.2f} %"
        )
    print(f"\nmedian relative difference {result.total.median_pct:.2f} % over {result.total.n} cases; "
          f"{result.only_a} in {arguments.a} alone, {result.only_b} in {arguments.b} alone")  # fmt: skip
    return 0
