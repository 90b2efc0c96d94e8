"""`microbench workload SUITE.csv`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path

from microbench import arguments as words
from microbench.collect import visible
from microbench.workload import KEY, SuiteRun, failures_of, read_suite
from predictor.errors import RequestError, TilecastError
from predictor.files.commands import check_working_folder
from predictor.files.outputs import marked, output_argument, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `workload`."""
    parser.epilog = "example: microbench workload microbench/to_measure/hopper.csv --out datasets/h100-sxm/workload.csv"
    parser.add_argument("suite", type=Path, help="a CSV of the ground-truth schema: config, mode, dtype, batch, ...")
    output_argument(
        parser, "--out", table("results of workload", ("gpu", "measured_ms", *KEY)),
        lambda path: [(failures_of(path), marked("failures of workload", '"case"'))], type=Path, required=True,
        metavar="FILE", help="the CSV to write, or to go on with",
    )  # fmt: skip
    parser.add_argument("--configs", type=Path, metavar="DIR", help="the models' configs (default: configs/ beside it)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="a GPU (default) or the processor")
    parser.add_argument("--threads", type=int, default=0, help="threads of a processor (default: PyTorch's own choice)")
    parser.add_argument("--case-seconds", type=words.seconds, metavar="TIME", help="a tenth of a cell's longest (0.4s)")
    parser.add_argument(
        "--cell-timeout", type=words.seconds, default=300.0, metavar="TIME", help="worker's time for a cell"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure the suite; status 1 where not one of its cells could be measured."""
    check_working_folder()
    if arguments.out.suffix != ".csv":
        raise RequestError(f"--out {arguments.out}: expected a file that ends in .csv")
    words.check_below_folder(arguments.out)
    if not 0 <= arguments.threads <= (os.cpu_count() or 1):
        raise RequestError(f"--threads {arguments.threads}: expected 0 to the processors of this machine")
    read_suite(arguments.suite)
    settings = {} if arguments.case_seconds is None else {"case_s": arguments.case_seconds}
    say = (lambda line: None) if arguments.json else (lambda line: print(line, flush=True))
    runner = SuiteRun(
        arguments.suite, arguments.out, arguments.configs, arguments.device, visible(arguments.device)[0],
        arguments.threads, settings, arguments.cell_timeout, say,
    )  # fmt: skip
    if importlib.util.find_spec("transformers") is None:
        raise TilecastError("workload needs transformers, which is not installed: pip install transformers")
    outcome = runner.run()
    if arguments.json:
        counts = {"measured": outcome.measured, "known": outcome.known, "failures": outcome.failures}
        print(json.dumps(counts))
    else:
        print(f"{outcome.measured} cells measured, {outcome.known} known before, {len(outcome.failures)} failed")
    sys.stdout.flush()
    return 0 if outcome.measured + outcome.known else 1
