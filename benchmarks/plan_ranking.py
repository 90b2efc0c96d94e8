#!/usr/bin/env python3
"""Plans in the order of their forecasts against the order in which they were measured: the rows of `vtrain` as plans.

usage: benchmarks/plan_ranking.py --data $TILECAST_DATA [--suite ground_truth/vtrain.csv] [--artifacts DIR]

Rows of one model, batch and number of GPUs are plans of one search. Prints Spearman's rank correlation, the place that
the plan which was measured fastest has among the forecasts, and how much slower our pick was measured than that.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from predictor.errors import TilecastError  # noqa: E402
from predictor.fit.evaluate import read_suite  # noqa: E402
from predictor.fit.suite import case_forecast  # noqa: E402

SEARCH = ("config", "gpu", "num_gpus", "global_batch")


def main() -> int:
    """Prints a line a search, and a table of its plans."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--suite", default="ground_truth/vtrain.csv")
    parser.add_argument("--artifacts")
    arguments = parser.parse_args()
    path = arguments.data / arguments.suite
    searches: dict[tuple[str, ...], list[tuple[str, float, float]]] = {}
    for row in read_suite(path).to_dict("records"):
        try:
            forecast_s = case_forecast(row, path.parent / "configs", arguments.artifacts).latency_s
        except TilecastError as error:
            print(f"{row['case']}: no forecast: {error}")
            continue
        key = tuple(str(row[name]) for name in SEARCH)
        searches.setdefault(key, []).append((str(row["case"]), float(row["measured_ms"]), forecast_s * 1e3))
    for key, plans in searches.items():
        measured, forecast = (np.array([plan[i] for plan in plans]) for i in (1, 2))
        order = np.argsort(forecast, kind="stable")
        place = int(np.flatnonzero(order == np.argmin(measured))[0]) + 1
        pick = measured[order[0]] / measured.min() - 1.0
        print(f"{', '.join(f'{name} {value}' for name, value in zip(SEARCH, key, strict=True))}: {len(plans)} plans")
        print(f"  Spearman {spearman(measured, forecast):.3f}; the fastest is number {place} of ours; our pick is"
              f" {pick:.1%} slower than it")  # fmt: skip
        for i in order:
            case, real, ours = plans[i]
            print(f"    {case:34} measured {real:9,.0f} ms, forecast {ours:9,.0f} ms ({ours / real - 1.0:+.1%})")
    return 0


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Rank correlation of two arrays without ties."""
    ranks = [np.argsort(np.argsort(each)).astype(float) for each in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


if __name__ == "__main__":
    sys.exit(main())
