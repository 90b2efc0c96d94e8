"""`microbench plan`: the cases of a collection and how long they should take, without torch."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from microbench import arguments as words
from microbench import calibration, environment, prices, sweep
from microbench.capability import Target, cpu_target, gpu_target
from microbench.case import Case
from microbench.commands.collect import add_plan_arguments, check
from microbench.progress import duration
from microbench.timing_settings import Settings
from predictor.errors import RequestError
from predictor.files.outputs import CASES, output_argument
from predictor.hardware.gpu import load_gpu

#: Rows of an estimator where --rows does not say: those of docs/how-to/measuring.md, chosen by hand, not from data.
ROWS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `plan`."""
    parser.epilog = (
        "examples:\n  microbench plan --gpu h100 --ops gemm --budget 20min\n"
        "  microbench plan --gpu h100 --calibration --rows 64 --out cases.json\n"
    )
    add_plan_arguments(parser)
    parser.add_argument("--gpu", default="h100-sxm", help="the GPU to plan for: a catalogue name or a YAML file")
    parser.add_argument("--cases", action="store_true", help="list every case")
    parser.add_argument(
        "--calibration", action="store_true", help="list the few cases that tell most, for `tilecast calibrate`"
    )
    parser.add_argument("--rows", type=int, metavar="N", help="with --calibration: rows of an estimator (64)")
    output_argument(
        parser, "--out", CASES, type=Path, dest="file", metavar="FILE", help="write the cases, for collect --cases"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the plan."""
    check(arguments)
    if arguments.device == "cpu":
        units = arguments.threads or max(1, (os.cpu_count() or 1))
        target = cpu_target(units, environment.memory_bytes())
    else:
        target = gpu_target(load_gpu(arguments.gpu))
    settings = Settings() if arguments.case_seconds is None else Settings(case_s=arguments.case_seconds)
    budget_s = None if arguments.calibration or arguments.max_cases else arguments.budget
    plan = prices.deepened(target, arguments.ops, arguments.dtypes, arguments.sweeps, budget_s, settings)
    bought: list[dict[str, str | int]] = []
    if arguments.calibration:
        chosen = calibration.choose(plan.cases, target, ROWS if arguments.rows is None else arguments.rows)
        bought = calibration.bought(chosen)
        plan = sweep.CasePlan(calibration.in_turns(chosen))
    elif arguments.rows is not None:
        raise RequestError("--rows: is for --calibration; --max-cases takes the first cases of a plan")
    cases = plan.cases[: arguments.max_cases]
    if arguments.file is not None:
        words.check_below_folder(arguments.file)
        calibration.write(arguments.file, target, cases)
    expected = [prices.case_seconds(case, target, settings) for case in cases]
    within, spent = 0, 0.0
    for seconds in expected:
        if arguments.budget is not None and spent + seconds > arguments.budget:
            break
        within, spent = within + 1, spent + seconds
    table = _by_launcher(cases, expected, within)
    read = sum(calibration.reads(case, target) for case in cases[:within])
    if arguments.json:
        document: dict[str, Any] = {
            "target": target.id, "cases": len(cases), "expected_s": sum(expected), "budget_s": arguments.budget,
            "cases_within_budget": within, "read_by_calibrate": read, "operators": table, "left_out": plan.left_out,
        }  # fmt: skip
        if arguments.calibration:
            document["brings"] = bought
        if arguments.cases or arguments.calibration:
            document["list"] = [{"case_id": case.id, **case.to_json()} for case in cases]
        print(json.dumps(document, indent=1))
        return 0
    _print(arguments, target, cases, expected, within, read, table, plan.left_out)
    if bought:
        print("\nWhat rows brought to boards left out of the fits:")
    for entry in bought:
        print(f"  {entry['estimator']}, {entry['group']}, {entry['rows']} rows: {entry['brings']}")
    return 0


def _by_launcher(cases: list[Case], expected: list[float], within: int) -> list[dict[str, Any]]:
    seconds: dict[str, float] = defaultdict(float)
    for case, time_s in zip(cases, expected, strict=True):
        seconds[case.launcher] += time_s
    total, first = Counter(c.launcher for c in cases), Counter(c.launcher for c in cases[:within])
    return [
        {"operator": name, "cases": total[name], "within_budget": first[name], "expected_s": round(seconds[name], 1)}
        for name in sorted(total)
    ]


def _print(
    arguments: argparse.Namespace, target: Target, cases: list[Case], expected: list[float], within: int,
    read: int, table: list[dict[str, Any]], left_out: dict[str, int],
) -> None:  # fmt: skip
    if arguments.cases or arguments.calibration:
        for case in cases:
            print(case.id, case.describe())
        print()
    print(f"{'operator':<16}{'cases':>8}{'in budget':>11}  expected")
    for row in table:
        print(f"{row['operator']:<16}{row['cases']:>8}{row['within_budget']:>11}  {duration(row['expected_s'])}")
    print(f"\n{len(cases)} cases on {target.id}, about {duration(sum(expected))} after the ceilings")
    if arguments.budget is not None:
        print(f"--budget {duration(arguments.budget)}: about {within} of them, over every operator and dtype")
        print(f"`tilecast calibrate` reads {100 * read / max(within, 1):.0f} % of those")
    for why, count in sorted(left_out.items(), key=lambda entry: -entry[1]):
        print(f"left out: {count} x {why}")
