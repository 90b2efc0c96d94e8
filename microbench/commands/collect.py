"""`microbench collect`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from microbench import arguments as words
from microbench import calibration
from microbench.capability import cpu_target, gpu_target
from microbench.collect import Collection
from microbench.progress import duration
from microbench.request import CollectionRequest, Summary
from microbench.sweep import SWEEPS, build, check_names
from microbench.tracking import log, say
from predictor import tracking
from predictor.errors import RequestError
from predictor.files.commands import check_working_folder
from predictor.hardware.gpu import load_gpu


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """What `collect` and `plan` share."""
    parser.add_argument("--ops", type=words.names, help="operators, with commas between them (default: all)")
    parser.add_argument("--dtypes", type=words.dtypes, help="dtypes, with commas between them (default: all)")
    parser.add_argument("--budget", type=words.seconds, metavar="TIME", help="60s, 10min, 2h (default: until done)")
    parser.add_argument("--max-cases", type=int, metavar="N", help="the first N cases of the plan only")
    parser.add_argument("--sweeps", type=Path, default=SWEEPS, metavar="DIR", help="sweep files of your own")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="GPUs (default) or the processor")
    parser.add_argument("--threads", type=int, default=0, help="threads of a processor (default: PyTorch's own choice)")
    parser.add_argument(
        "--case-seconds", type=words.seconds, metavar="TIME", help="longest measuring of one case (0.4s)"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `collect`."""
    parser.epilog = "example: microbench collect --ops gemm,attention --dtypes bf16 --budget 30min --out datasets"
    add_plan_arguments(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--calibration", type=int, metavar="N", help="only the cases of `plan --calibration --rows N`, for calibrate"
    )
    which.add_argument("--cases", type=Path, metavar="FILE", help="only the cases of a file of `plan --out`")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the data set: made, or gone on with")
    parser.add_argument("--part", type=words.part, metavar="i/N", help="the i-th of N disjoint parts: a node of many")
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help="this machine, or a Ray cluster")
    parser.add_argument("--address", metavar="ADDRESS", help="with --engine ray: of the cluster (default: a local one)")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="with --engine ray: boards (default: all)")
    parser.add_argument("--noise", type=float, metavar="X", help="relative half-width of the median to reach (0.01)")
    parser.add_argument("--min-samples", type=int, metavar="N", help="samples of a case at least (10)")
    parser.add_argument(
        "--case-timeout", type=words.seconds, default=60.0, metavar="TIME", help="worker's time for a case"
    )
    parser.add_argument("--retry-failures", action="store_true", help="try again what failed before")
    parser.add_argument(
        "--wait", type=words.seconds, default=0.0, metavar="TIME", help="wait for another collector to end"
    )
    parser.add_argument("--no-profile", action="store_true", help="do not look up the kernels' names: quicker")
    parser.add_argument("--lock-clocks", type=words.frequency, metavar="HZ", help='lock the SM clock: "1500 MHz"')
    parser.add_argument(
        "--tracking-uri",
        metavar="URI",
        help="MLflow store of the run: http://..., sqlite:///..., or"
        " off (default: a SQLite file of yours, where MLflow is installed)",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def check(arguments: argparse.Namespace) -> None:
    """Raises RequestError, one line, for numbers that make no sense."""
    for name in ("max_cases", "min_samples"):
        value = getattr(arguments, name, None)
        if value is not None and value < 1:
            raise RequestError(f"--{name.replace('_', '-')} {value}: expected at least 1")
    processors = os.cpu_count() or 1
    most = processors if hasattr(arguments, "out") else 4096  # a plan may be for another machine
    if not 0 <= arguments.threads <= most:
        raise RequestError(f"--threads {arguments.threads}: expected 0 to {most}")
    if getattr(arguments, "lock_clocks", None) is not None and arguments.device == "cpu":
        raise RequestError("--lock-clocks: the clock of a processor cannot be locked: expected an NVIDIA GPU")
    if isinstance(getattr(arguments, "cases", None), Path) and (arguments.ops or arguments.dtypes):
        raise RequestError("--cases: names the cases already; expected no --ops and no --dtypes beside it")
    rows = arguments.rows if hasattr(arguments, "rows") else getattr(arguments, "calibration", None)
    if rows is not None and not calibration.FEWEST <= rows <= calibration.MOST:
        raise RequestError(f"{rows} rows to calibrate with: expected {calibration.FEWEST} to {calibration.MOST}")
    if getattr(arguments, "engine", "ray") == "local" and (arguments.address or arguments.workers):
        raise RequestError("--address and --workers are for --engine ray")
    if getattr(arguments, "workers", 0) < 0:
        raise RequestError(f"--workers {arguments.workers}: expected 0 or more")
    noise = getattr(arguments, "noise", None)
    if noise is not None and not 0 < noise < 1:
        raise RequestError(f"--noise {noise}: expected a share between 0 and 1, such as 0.01")
    if not arguments.sweeps.is_dir():
        raise RequestError(f"--sweeps {arguments.sweeps}: expected a folder of sweep files")
    check_names(arguments.ops, arguments.sweeps)
    out = getattr(arguments, "out", None)
    if out is not None and out.exists() and not out.is_dir():
        raise RequestError(f"--out {out}: is a file; expected a folder")
    if out is not None:
        words.check_below_folder(out)


def run(arguments: argparse.Namespace) -> int:
    """Collect, say what came of it."""
    check_working_folder()
    begin = time.monotonic()
    check(arguments)
    if arguments.sweeps != SWEEPS:  # what is wrong with them is said before anything is measured
        target = cpu_target(1, 2**34) if arguments.device == "cpu" else gpu_target(load_gpu("h100-sxm"))
        build(target, arguments.ops, arguments.dtypes, arguments.sweeps)
    given = {
        "noise": arguments.noise, "min_samples": arguments.min_samples, "case_s": arguments.case_seconds,
        "profile": False if arguments.no_profile else None,
    }  # fmt: skip
    request = CollectionRequest(
        out=arguments.out, device=arguments.device, ops=arguments.ops, dtypes=arguments.dtypes,
        budget_s=arguments.budget, threads=arguments.threads, retry_failures=arguments.retry_failures,
        max_cases=arguments.max_cases, case_timeout_s=arguments.case_timeout, wait_s=arguments.wait,
        lock_clocks_hz=arguments.lock_clocks, sweeps=arguments.sweeps, calibration_rows=arguments.calibration,
        cases=None if arguments.cases is None else tuple(calibration.read(arguments.cases)),
        settings={name: value for name, value in given.items() if value is not None}, begin=begin,
        part=arguments.part, engine=arguments.engine, address=arguments.address, workers=arguments.workers,
    )  # fmt: skip
    with tracking.run("collect", arguments.tracking_uri, say, of=arguments.out.name) as run:
        collection = Collection(request)
        summary = _interruptible(collection)
        log(run, collection.record(), summary, vars(arguments))
    _print(summary, arguments)
    return 130 if summary.stopped_by == "interrupt" else 0


def _interruptible(collection: Collection) -> Summary:
    """Collect; SIGINT and SIGTERM end it early and lose nothing."""

    def stop(signum: int, frame: FrameType | None) -> None:
        collection.interrupt()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return collection.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print(summary: Summary, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps(asdict(summary)))
        return
    left = f", {summary.left} cases left: run the same command to go on" if summary.left else ""
    print(
        f"{summary.new_rows} rows added, {summary.new_failures} failures, {summary.rows} rows in all, "
        f"in {duration(summary.seconds)}{left}",
        file=sys.stdout,
    )
    if summary.not_tried:
        print(f"{summary.not_tried} of them not tried: captures of their kind failed one after the other")
    if summary.stopped_by != "budget":
        return
    if summary.without_rows:
        print(f"no time was left for a row of: {', '.join(summary.without_rows)}")
    if summary.ceilings_left:
        print(f"{summary.ceilings_left} ceilings left: what {arguments.device} sustains may be more than was measured")
