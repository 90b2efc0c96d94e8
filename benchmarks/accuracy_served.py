#!/usr/bin/env python3
"""Prints how far `tilecast serve simulate` is from measured services: the suites of docs/how-to/serving.md.

usage: benchmarks/accuracy_served.py --data $TILECAST_DATA [--without-rtx-pro ARTIFACTS] [--artifacts DIR] [--thin N]
                                  [--no-intervals] [--out FOLDER]

``--without-rtx-pro``: a set of estimators that saw no row of that board (benchmarks/left_out_set.py).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # a checkout that was not installed
    sys.path.insert(0, str(ROOT))

from predictor.fit.served import as_frame, errors, ranking  # noqa: E402
from predictor.fit.served_rows import read_cases  # noqa: E402

REQUESTS = ("rtxpro6000-llama-3.1-8b", "rtxpro6000-qwen3-30b-a3b-instruct-2507")


def show(title: str, rows: Any) -> None:
    """The errors of rows, a line a figure."""
    print(f"\n{title}: {len(rows)} services, {int((rows['note'] != '').sum())} without a forecast")
    for name, found in errors(rows).items():
        if not found["n"]:
            continue
        inside = found.get("interval_coverage_pct")
        print(
            f"  {name:20} n {found['n']:4}  mean {found['mean_ape_pct']:6.2f} %"
            f"  median {found['median_ape_pct']:6.2f} %  p90 {found['p90_ape_pct']:6.2f} %"
            f"  signed {found['mean_signed_pct']:+7.2f} %"
            + ("" if inside is None else f"  in the 80 % interval {inside:.0f} %")
        )
    for note, count in rows.loc[rows["note"] != "", "note"].value_counts().items():
        print(f"  not predicted: {count} x {note}")


def main() -> None:
    """Run every suite and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of measured data")
    parser.add_argument("--artifacts", help="estimators (default: those that ship)")
    parser.add_argument("--without-rtx-pro", metavar="ARTIFACTS", help="estimators without a row of RTX PRO 6000")
    parser.add_argument("--thin", type=int, default=1, metavar="N", help="every Nth row of the closed loops")
    parser.add_argument("--no-intervals", action="store_true", help="errors alone, which takes a third of the time")
    parser.add_argument("--out", metavar="FOLDER", help="also write every row there")
    asked = parser.parse_args()
    data = Path(asked.data)
    sets = [("", asked.artifacts)]
    if asked.without_rtx_pro:
        sets.append((" (no row of the board seen)", asked.without_rtx_pro))
    frames = {}
    for words, artifacts in sets:
        for name in REQUESTS:
            rows = frames[f"{name}{words}"] = as_frame(
                read_cases(data / "llmservingsim" / "requests" / name), artifacts, not asked.no_intervals
            )
            show(f"{name}{words}", rows)
    cases = read_cases(data / "ground_truth" / "aic_silicon_h100.csv")[:: asked.thin]
    rows = frames["aic_silicon_h100"] = as_frame(cases, asked.artifacts, not asked.no_intervals)
    show("aic_silicon_h100", rows)
    for execution, part in rows.groupby("execution"):
        show(f"  {execution}", part)
    show("  without concurrency 512", rows[rows["concurrency"] != 512])
    ranks = ranking(rows)
    if ranks:
        print(
            f"\nranking, {ranks['groups']} groups: tokens/s a GPU {ranks['tokens_per_s_per_gpu']:.3f},"
            f" TPOT {ranks['tpot']:.3f} (medians of Spearman's correlation)"
        )
    if asked.out:
        for name, rows in frames.items():
            Path(asked.out).mkdir(parents=True, exist_ok=True)
            rows.to_csv(Path(asked.out) / f"{name}.csv", index=False)


if __name__ == "__main__":
    main()
