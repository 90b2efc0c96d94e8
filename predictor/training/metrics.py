"""Errors of forecasts: always mean, median and 90th percentile of the absolute error, the signed mean, and n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def summarise(measured: npt.NDArray[np.float64], predicted: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Errors in percent of the measured value over the rows that have a forecast (not NaN).

    ``n`` counts those rows, ``unpredicted`` the others. Without any, the figures are None.
    """
    known = np.isfinite(predicted)
    n = int(known.sum())
    result: dict[str, Any] = {"n": n, "unpredicted": int(len(measured) - n)}
    if not n:
        return result | dict.fromkeys(("mean_ape_pct", "median_ape_pct", "p90_ape_pct", "mean_signed_pct"))
    signed = (predicted[known] / measured[known] - 1.0) * 100.0
    ape = np.abs(signed)
    return result | {
        "mean_ape_pct": float(ape.mean()),
        "median_ape_pct": float(np.median(ape)),
        "p90_ape_pct": float(np.percentile(ape, 90)),
        "mean_signed_pct": float(signed.mean()),
    }


def by_group(
    frame: Any, keys: Sequence[str], measured: str = "measured_ms", predicted: str = "predicted_ms"
) -> list[dict[str, Any]]:
    """``summarise`` for every combination of ``keys`` that occurs in the frame, sorted by them."""
    rows = []
    for values, part in frame.groupby(list(keys), observed=True, sort=True, dropna=False):
        named = dict(zip(keys, (str(v) for v in values), strict=True))
        rows.append(named | summarise(_floats(part[measured]), _floats(part[predicted])))
    return rows


def _floats(column: Any) -> npt.NDArray[np.float64]:
    return np.asarray(column, dtype=np.float64)


def print_table(
    title: str, overall: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> None:
    """The groups and the whole as a table on the terminal."""
    from rich.table import Table

    from predictor.report.console import wide_console

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for key in keys:
        table.add_column(key)
    extra = [name for name in overall if name.endswith("_baseline_pct")]
    names = ["n", "unpredicted", "mean_ape_pct", "median_ape_pct", "p90_ape_pct", "mean_signed_pct", *extra]
    for name in names:
        table.add_column(name.removesuffix("_pct").replace("_", " "), justify="right")
    for row in [*groups, dict.fromkeys(keys, "") | {keys[0]: "all"} | dict(overall)]:
        table.add_row(*(str(row.get(key, "")) for key in keys), *(_cell(row.get(name)) for name in names))
    wide_console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f} %"
