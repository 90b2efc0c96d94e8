"""Errors of forecasts: always mean, median and 90th percentile of the absolute error, the signed mean, and n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data.frame import Frame
from predictor.kernels.artifact import ArtifactSet, RooflineOnly


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


def coverage(rows: Any) -> dict[str, Any]:
    """``interval_coverage_pct``: share of the rows with an interval whose measurement lies inside, in percent.

    ``interval_width_pct`` is the median of (high - low) / forecast. Both are absent where no row has an interval.
    """
    if "low_ms" not in rows or "high_ms" not in rows:
        return {}
    low, high = _floats(rows["low_ms"]), _floats(rows["high_ms"])
    known = np.isfinite(low) & np.isfinite(high)
    if not known.any():
        return {}
    measured, predicted = _floats(rows["measured_ms"])[known], _floats(rows["predicted_ms"])[known]
    low, high = low[known], high[known]
    return {
        "interval_coverage_pct": float(((low <= measured) & (measured <= high)).mean() * 100.0),
        "interval_width_pct": float(np.median((high - low) / predicted) * 100.0),
    }


def by_group(
    frame: Any, keys: Sequence[str], measured: str = "measured_ms", predicted: str = "predicted_ms"
) -> list[dict[str, Any]]:
    """``summarise`` for every combination of ``keys`` that occurs in the frame, sorted by them."""
    rows = []
    for values, part in frame.groupby(list(keys), observed=True, sort=True, dropna=False):
        named = dict(zip(keys, (str(v) for v in values), strict=True))
        rows.append(named | summarise(_floats(part[measured]), _floats(part[predicted])) | coverage(part))
    return rows


def _floats(column: Any) -> npt.NDArray[np.float64]:
    return np.asarray(column, dtype=np.float64)


def print_table(
    title: str, overall: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> None:
    """The groups and the whole as a table on the terminal."""
    from predictor.files.terminal import screen
    from predictor.report import table

    console = screen()
    extra = [name for name in overall if name.endswith("_baseline_pct") or name.startswith("interval_")]
    names = ["n", "unpredicted", "mean_ape_pct", "median_ape_pct", "p90_ape_pct", "mean_signed_pct", *extra]
    columns = [table.Column(key, key=True) for key in keys]
    columns += [table.Column(name.removesuffix("_pct").replace("_", " "), right=True, wrap=True) for name in names]
    rows = [
        [*(str(row.get(key, "")) for key in keys), *(_cell(row.get(name)) for name in names)]
        for row in [*groups, dict.fromkeys(keys, "") | {keys[0]: "all"} | dict(overall)]
    ]
    table.say(console, title)
    table.print_table(console, columns, rows)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f} %"


def constant_efficiencies(frame: Frame, roofline: npt.NDArray[np.float64]) -> dict[str, float]:
    """Median of roofline over latency by "op dtype", from rows with ``latency_ms`` and their roofline in ms."""
    keys = frame["op"].astype(str) + " " + frame["dtype"].astype(str)
    ratio = roofline / np.asarray(frame["latency_ms"], dtype=np.float64)
    return {str(key): float(np.median(ratio[rows])) for key, rows in keys.groupby(keys).indices.items()}


def roofline_ms(rows: Frame) -> npt.NDArray[np.float64]:
    """The roofline (cold cache) of predicted rows."""
    return np.asarray(rows["roofline_ms"], dtype=np.float64)


def constant_efficiency_ms(rows: Frame, selector: ArtifactSet | RooflineOnly) -> npt.NDArray[np.float64]:
    """The roofline over the set's constant efficiency; NaN for an operator that the set saw no row of."""
    known = selector.manifest.get("constant_efficiency", {}) if isinstance(selector, ArtifactSet) else {}
    keys = (rows["op"].astype(str) + " " + rows["dtype"].astype(str)).tolist()
    efficiency = np.array([known.get(key, np.nan) for key in keys], dtype=np.float64)
    return roofline_ms(rows) / efficiency
