"""`microbench validate DIR`: exit status 1 where the data set has an error."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from microbench.validate import Report, validate

_SHOWN = 20  # errors that are printed: chosen by hand, not from data


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `validate`."""
    parser.epilog = "example: microbench validate datasets"
    parser.add_argument("dir", type=Path, help="a data set, or a folder of it")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print what is wrong, and the facts of the data set."""
    report = validate(arguments.dir)
    if arguments.json:
        print(json.dumps({"valid": report.valid, **asdict(report)}, indent=1))
    else:
        _print(report)
    return 0 if report.valid else 1


def _print(report: Report) -> None:
    for error in report.errors[:_SHOWN]:
        print(f"error: {error}")
    if len(report.errors) > _SHOWN:
        print(f"... and {len(report.errors) - _SHOWN} more errors")
    for warning in report.warnings:
        print(f"warning: {warning}")
    for entry in report.ceilings:
        rate = f"{entry['rate'] / 1e9:>12.1f} G/s" if entry.get("rate") else " " * 16
        share = f"{entry['of_spec'] * 100:>7.1f} % of the spec" if "of_spec" in entry else ""
        print(
            f"ceiling {entry['kind']:<9}{entry['dtype']:<6}{entry['size']:>12}{entry['latency_ms']:>12.5f} ms"
            f"{rate}{share}"
        )
    if report.median_noise is not None and report.p90_noise is not None:
        print(
            f"noise (half-width of the median's interval): median {report.median_noise * 100:.2f} %, 90th percentile "
            f"{report.p90_noise * 100:.2f} %, {report.noisy_rows} rows above 5 %"
        )
    checked = ", ".join(f"{name} {count}" for name, count in sorted(report.checked_rows.items()))
    print(f"results checked against a reference: {checked or 'none'}")
    print(
        f"{'valid' if report.valid else 'NOT VALID'}: {report.rows} rows, {report.failures} cases failed, "
        f"{report.duplicates} duplicates, {report.roofline_violations} rows beyond the roofline"
    )
