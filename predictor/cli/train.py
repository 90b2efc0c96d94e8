"""`tilecast train`: fit every estimator from measurement files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.cli.tracked import log_errors, say, settings, tracking_argument
from predictor.errors import RequestError
from predictor.files.arguments import seed
from predictor.files.outputs import SET, output_argument
from predictor.report.under_way import UnderWay

if TYPE_CHECKING:
    from predictor.fit.fit import TrainReport

EXAMPLES = """examples:
  tilecast train --data datasets/ --name default --out rebuilt
  tilecast train --data datasets/neusight my-rows.parquet --holdout 0.2 --seed 0 --out my-set
  tilecast train --data datasets/aiconfigurator --exclude-gpu h100,h200 --out without-hopper
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `train`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--data",
        nargs="+",
        action="extend",
        required=True,
        metavar="FILE",
        help="data sets of the measurement schema: files, or folders of shards",
    )
    output_argument(parser, "--out", SET, required=True, metavar="DIR", help="folder to write the estimators to")
    parser.add_argument("--only-gpu", metavar="A,B", help="fit on these GPUs alone")
    parser.add_argument("--exclude-gpu", metavar="C,D", help="leave these GPUs out of the fit, and score on them")
    parser.add_argument(
        "--holdout", type=float, default=0.0, help="fraction of the shape groups to hold out (default 0)"
    )
    parser.add_argument(
        "--holdout-by", default="shapes", metavar="WHAT", help="shapes (default) or models: whole MoE models"
    )
    parser.add_argument("--seed", type=seed, default=0, help="seed of the split and of the fits (default 0)")
    parser.add_argument("--name", default="", help="name of the set (default the folder's)")
    parser.add_argument("--estimators", metavar="A,B", help="fit these alone (default all; see the folders of a set)")
    parser.add_argument("--no-intervals", action="store_true", help="do not fit how far forecasts may be off (faster)")
    parser.add_argument("--register", metavar="NAME", help="enter the set into the MLflow model registry as NAME")
    parser.add_argument("--stage", default="candidate", help="stage of the registered version (default candidate)")
    tracking_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Train and print the held-out errors."""
    from predictor import tracking
    from predictor.fit.fit import names, train
    from predictor.fit.publish import error_table

    if arguments.register and tracking.is_off(arguments.tracking_uri):
        raise RequestError(f"--register {arguments.register}: needs a store, and tracking is off; expected an address"
                           " with --tracking-uri")  # fmt: skip
    of, insist = Path(arguments.out).name, bool(arguments.register)
    with (
        UnderWay("fitting", arguments), tracking.run("train", arguments.tracking_uri, say, insist, of) as run
    ):  # fmt: skip
        run.parameters(settings(arguments))
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
            intervals=not arguments.no_intervals,
            say=say,
        )
        run.estimators(report.out)
        for title, group, errors in (
            ("held-out shapes", "heldout_shapes", report.heldout_shapes),
            ("left-out GPUs", "heldout_gpus", report.heldout_gpus),
        ):
            log_errors(run, title, group, errors, error_table(errors))
        run.metrics({"rows": report.rows, "fitted_rows": report.fitted})
        if arguments.register:
            run.register(arguments.register, arguments.stage)
    _print(report, arguments.json)
    return 0


def _print(report: TrainReport, as_json: bool) -> None:
    from predictor.fit.publish import error_table

    if as_json:
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
        return
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
