#!/usr/bin/env python3
"""A suite's rows with models traced from transformers' classes in place of built: errors of both, side by side.

    benchmarks/traced_suites.py --data $TILECAST_DATA [--suite neusight_e2e] [--every N] [--artifacts DIR]

Means count the rows that both forecast; the others are listed with the reason. Needs the extra torch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from predictor.fit.evaluate import read_suite  # noqa: E402
from predictor.fit.suite import predict_case  # noqa: E402
from predictor.models.forms import TRACED  # noqa: E402


def error_pct(row: dict[str, Any], found: dict[str, Any]) -> float:
    """Signed error of a forecast in percent."""
    return 100.0 * (float(found["predicted_ms"]) / float(row["measured_ms"]) - 1.0)


def summary(name: str, errors: list[float]) -> str:
    """A line of the table of errors: absolute mean and median, signed mean."""
    sizes = [abs(e) for e in errors]
    cells = (statistics.mean(sizes), statistics.median(sizes), statistics.mean(errors))
    return f"| {name} | {len(errors)} | {' | '.join(f'{v:.2f}' for v in cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--suite", default="neusight_e2e")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth row alone")
    parser.add_argument("--config", help="rows of this config alone")
    parser.add_argument("--artifacts", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.setdefault("TILECAST_CACHE", tempfile.mkdtemp())
    path = asked.data / "ground_truth" / f"{asked.suite}.csv"
    rows = read_suite(path).to_dict("records")
    total = len(rows)
    rows = [row for row in rows[:: asked.every] if asked.config in (None, row["config"])]
    both: dict[tuple[str, str], list[tuple[float, float]]] = {}
    left: dict[str, list[str]] = {}
    for row in rows:
        built = predict_case(row, path.parent / "configs", asked.artifacts)
        traced = predict_case({**row, "config": f"{TRACED}{row['config']}"}, path.parent / "configs", asked.artifacts)
        note = built["note"] or traced["note"]
        if note:
            left.setdefault(str(note), []).append(str(row["case"]))
            print(f"{row['case']}: {note}", file=sys.stderr, flush=True)
            continue
        pair = error_pct(row, built), error_pct(row, traced)
        both.setdefault((str(row["config"]), f"{row['mode']}, {row['execution']}"), []).append(pair)
        print(f"{row['case']}: built {pair[0]:+.1f} %, traced {pair[1]:+.1f} %", file=sys.stderr, flush=True)
    print("| model | pass | n | built, mean % | traced, mean % | traced over built % |\n|---|---|---|---|---|---|")
    for (config, what), pairs in sorted(both.items()):
        means = [statistics.mean(abs(pair[i]) for pair in pairs) for i in (0, 1)]
        apart = statistics.mean(100.0 * ((100.0 + b) / (100.0 + a) - 1.0) for a, b in pairs)
        print(f"| {config} | {what} | {len(pairs)} | {means[0]:.2f} | {means[1]:.2f} | {apart:+.2f} |")
    pairs = [pair for group in both.values() for pair in group]
    if pairs:
        print("\n| | rows | mean % | median % | signed mean % |\n|---|---|---|---|---|")
        print(summary("built", [a for a, _ in pairs]))
        print(summary("traced", [b for _, b in pairs]))
    print(f"\n{len(pairs)} of {len(rows)} rows by both ({total} in the suite)")
    for note, cases in left.items():
        print(f"left out, {len(cases)}: {note} ({cases[0]})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
