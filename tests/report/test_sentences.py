"""Sentences of a forecast: where its operators' times are from, and how long no kernel runs."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from report_runs import forecast
from rich.console import Console

from predictor.report.terminal import print_prediction
from predictor.report.throughput import sources


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({"estimator": 9}, "9 distinct operators, all from estimators (set default)."),
        ({"roofline": 9}, "9 distinct operators, all at the roofline alone: a perfect kernel with a cold cache."),
        ({"estimator": 7, "roofline": 2}, "7 from estimators (set default), 2 at the roofline alone"),
    ],
)
def test_where_the_times_are_from(counts: dict[str, int], text: str) -> None:
    answer = replace(forecast("decode").prediction, provenance=counts, artifacts="default")
    assert text in sources(answer)


def test_idle_time_is_named_once() -> None:
    printed = io.StringIO()
    answer = forecast("decode").prediction
    print_prediction(answer, Console(file=printed, width=300, markup=False))
    (line,) = (line for line in printed.getvalue().splitlines() if line.startswith("  GPU idle"))
    assert line.count("between kernels") == 1 and line.count("%") == 1
