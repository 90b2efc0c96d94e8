"""`tilecast train`: fit every estimator from measurement files."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from predictor.errors import UnsupportedError

EXAMPLES = """examples:
  tilecast train --data neusight.parquet aiconfigurator.parquet vidur.parquet --holdout 0.2 --seed 0 --out my-set
  tilecast train --data aiconfigurator.parquet --exclude-gpu h100,h200 --out without-hopper
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `train`."""
    parser.epilog = EXAMPLES
    parser.add_argument("--data", nargs="+", required=True, metavar="FILE", help="data sets of the measurement schema")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write the estimators to")
    parser.add_argument("--only-gpu", metavar="A,B", help="fit on these GPUs alone")
    parser.add_argument("--exclude-gpu", metavar="C,D", help="leave these GPUs out of the fit, and score on them")
    parser.add_argument(
        "--holdout", type=float, default=0.0, help="fraction of the shape groups to hold out (default 0)"
    )
    parser.add_argument(
        "--holdout-by", default="shapes", metavar="WHAT", help="shapes (default) or models: whole MoE models"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the split and of the fits (default 0)")
    parser.add_argument("--name", default="", help="name of the set (default the folder's)")
    parser.add_argument("--estimators", metavar="A,B", help="fit these alone (default all; see the folders of a set)")
    parser.add_argument("--tracking-uri", metavar="URI", help="not built yet: an MLflow server to log to")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Train and print the held-out errors."""
    if arguments.tracking_uri:
        raise UnsupportedError("--tracking-uri: not built yet; leave it out")
    from predictor.training.card import error_table
    from predictor.training.fit import names, train

    report = train(
        [Path(path) for path in arguments.data],
        Path(arguments.out),
        only=names(arguments.only_gpu),
        exclude=names(arguments.exclude_gpu),
        holdout=arguments.holdout,
        holdout_by=arguments.holdout_by,
        seed=arguments.seed,
        name=arguments.name,
        estimators=names(arguments.estimators),
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    if arguments.json:
        print(
            json.dumps(
                {
                    "out": str(report.out),
                    "rows": report.rows,
                    "fitted": report.fitted,
                    "skipped": report.skipped,
                    "kept_apart": report.kept_apart,
                    "heldout_shapes": report.heldout_shapes,
                    "heldout_gpus": report.heldout_gpus,
                },
                indent=2,
            )
        )
        return 0
    print(f"{report.rows:,} rows read; estimators in {report.out}")
    for folder, rows in report.fitted.items():
        print(f"  {folder}: fitted on {rows:,} rows")
    for folder, reason in report.skipped.items():
        print(f"  {folder}: {reason}")
    for reason, count in report.kept_apart.items():
        print(f"  kept apart: {count:,} x {reason}")
    for title, groups in (("held-out shapes", report.heldout_shapes), ("left-out GPUs", report.heldout_gpus)):
        if groups:
            print(f"\n{title}:")
            print("\n".join(error_table(groups)))
    return 0
