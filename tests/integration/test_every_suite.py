"""Every suite of measured workloads and services in one process, twice, in random order: the same figures."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from predictor.fit.served import as_frame
from predictor.fit.served_rows import read_cases
from predictor.fit.suite import predict_case
from predictor.simulate import templates

#: Rows of a suite that are taken, at random: enough of them for structures that come again and again (templates).
ROWS, SERVICES = 4, 1
#: Tokens that a service reads and makes at most, so that its simulation is short.
MOST_TOKENS = 200_000
#: A structure whose graph comes from a template from the third time on.
AGAIN = "fastertransformer_gpt"


def workloads(ground_truth: Path) -> dict[str, list[dict[str, str]]]:
    """Rows of every suite of the workload schema; what is not a latency of a config has another schema."""
    suites = {}
    for path in sorted(ground_truth.glob("*.csv")):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        if {"config", "mode", "dtype", "measured_ms"} <= rows[0].keys():
            some = rows if path.stem == AGAIN else random.Random(path.stem).sample(rows, min(ROWS, len(rows)))
            suites[path.stem] = some
    return suites


def services(ground_truth: Path) -> dict[str, list[Any]]:
    """Cases of every suite of the served schema, those with the least to simulate."""
    suites = {}
    for path in sorted(ground_truth.glob("*.csv")):
        with path.open(newline="") as file:
            columns = set(next(csv.reader(file)))
        if {"gpu", "osl"} <= columns and columns & {"concurrency", "rate"} and "energy_j" not in columns:
            cases = read_cases(path)
            sizes = [int((case.traffic.input_tokens + case.traffic.output_tokens).sum()) for case in cases]
            able = [i for i, case in enumerate(cases) if not (case.note or case.left_out)]
            some = sorted((i for i in able if sizes[i] < MOST_TOKENS), key=lambda i: (sizes[i], i))[:SERVICES]
            suites[path.stem] = [cases[i] for i in some]
    return suites


def test_every_suite_twice_in_one_process(data: Path) -> None:
    ground_truth = data / "ground_truth"
    if not ground_truth.is_dir():
        pytest.skip("no ground_truth/ in the public data")
    jobs: list[tuple[str, Callable[[], Any]]] = []
    for name, rows in workloads(ground_truth).items():
        for row in rows:
            jobs.append((f"{name} {row['case']}", lambda row=row: _forecast(row, ground_truth / "configs")))
    for name, cases in services(ground_truth).items():
        for case in cases:
            jobs.append((f"{name} {case.name}", lambda case=case: _served(case)))
    assert len({name.split()[0] for name, _ in jobs}) > 15
    templates._TEMPLATES._seen.clear()
    first: dict[str, Any] = {}
    for seed in (1, 2):
        for name, job in random.Random(seed).sample(jobs, len(jobs)):
            figures = job()
            assert first.setdefault(name, figures) == pytest.approx(figures, rel=1e-9, nan_ok=True), name
    assert sum(not math.isnan(figures[0]) for figures in first.values()) > 0.8 * len(first)


def _forecast(row: dict[str, str], configs: Path) -> tuple[Any, ...]:
    answer = predict_case(row, configs, None)
    figures = (answer.get(name) for name in ("predicted_ms", "low_ms", "high_ms"))
    return tuple(math.nan if value is None else value for value in figures)


def _served(case: Any) -> tuple[Any, ...]:
    row = as_frame([case], intervals=False).iloc[0]
    return row["predicted_ttft_ms"], row["predicted_tpot_ms"]
