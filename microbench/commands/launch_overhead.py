"""`microbench launch-overhead`: what one framework call costs this machine's processor."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from microbench import arguments as words
from microbench.collect import visible
from microbench.environment import cpu_name
from microbench.storage import make_folder, write_output
from microbench.supervisor import BenchWorker
from predictor.errors import RequestError, TilecastError
from predictor.files.outputs import marked, output_argument

_SECONDS = 3.0  # of measuring where --budget does not say: chosen by hand, not from data


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `launch-overhead`."""
    parser.epilog = (
        "example: microbench launch-overhead, then: predict --model bert-large --gpu l4 --launch-overhead 6.3us"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="launches on a GPU, or calls without")
    parser.add_argument("--budget", type=words.seconds, default=_SECONDS, metavar="TIME", help="measuring time (3s)")
    output_argument(
        parser, "--out", marked("an overhead that was measured", "launch_overhead:", "launch_overhead_us:"), type=Path,
        metavar="FILE", help="write it as YAML: its first entry fits a GPU file",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. Raises TilecastError: no device, no torch, a call that fails."""
    out: Path | None = arguments.out
    if out is not None and out.suffix not in (".yaml", ".yml"):
        raise RequestError(f"--out {out}: expected a file that ends in .yaml")
    if out is not None:
        words.check_below_folder(out)
    worker = BenchWorker(arguments.device, visible(arguments.device)[0], 1, {}, "microbench.launch_worker")
    try:
        facts = worker.start()
        answer = worker.request({"budget_s": arguments.budget}, 60.0 + 3 * arguments.budget)
    finally:
        worker.stop()
    if answer.row is None:
        raise TilecastError(f"the calls could not be timed: {(answer.failure or {}).get('reason')}")
    measured = report(facts, answer.row)
    if out is not None:
        make_folder(out.resolve().parent)
        write_output(out, as_yaml(measured).encode())
    print(json.dumps(measured) if arguments.json else as_text(measured))
    return 0


def report(facts: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """What is printed and stored: microseconds, with where and when they were measured."""
    null = row["null_kernel_s"]
    return {
        "launch_overhead_us": _us(row["launch_overhead_s"]), "typical_us": _us(row["typical_s"]),
        "calls_us": {name: _us(seconds) for name, seconds in row["calls_s"].items()},
        "null_kernel_us": None if null is None else _us(null), "batches": row["batches"], "batch": row["batch"],
        "device": str(facts["id"]), "kind": str(facts["kind"]), "host": cpu_name(), "torch": str(facts["torch"]),
        "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip


def _us(seconds: float) -> float:
    return float(f"{seconds * 1e6:.3g}")


def as_text(measured: Mapping[str, Any]) -> str:
    """The lines for a terminal; the last one is ready to be typed."""
    calls = ", ".join(f"{name} {value:g}" for name, value in measured["calls_us"].items())
    kinds = len(measured["calls_us"])
    lines = [
        f"{measured['launch_overhead_us']:g} us a framework call (mean of {kinds} kinds, each the quickest of about"
        f" {measured['batches'] // kinds} batches of {measured['batch']} calls;"
        f" host {measured['host']}, torch {measured['torch']})",
        f"  {calls} us; the middle batches: {measured['typical_us']:g} us",
    ]
    if measured["null_kernel_us"] is not None:
        lines.append(f"  launching a null kernel on {measured['device']}: {measured['null_kernel_us']:g} us of it")
    else:
        lines.append("  calls of this processor's own kernels: their work is in it, the launch on a GPU is not")
    return "\n".join([*lines, f"predict --launch-overhead {measured['launch_overhead_us']:g}us"])


def as_yaml(measured: Mapping[str, Any]) -> str:
    """A file whose entry `launch_overhead` can be copied into the YAML of a GPU."""
    where = (
        f"microbench launch-overhead {measured['date']} on {measured['host']} with {measured['kind']},"
        f" torch {measured['torch']}"
    )
    entry = {"launch_overhead": {"value": f"{measured['launch_overhead_us']:g} us", "source": where}}
    return yaml.safe_dump({**entry, "measured": dict(measured)}, sort_keys=False, allow_unicode=True, width=120)
