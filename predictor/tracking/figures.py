"""Figures of a run as SVG, which MLflow shows in its page: errors by place as bars, forecasts against measurements."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from predictor.tracking.record import place

#: Bars and points that one figure has at most: chosen by looking at figures.
MOST_BARS = 80
MOST_POINTS = 3000
_STYLE = "<style>text{font:12px sans-serif;fill:#1a1d21}.q{fill:#4d5660}.g{stroke:#c4cad1;stroke-width:.6}</style>"


def error_bars(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The median error of every row of an error table as a bar, its 90th percentile as a whisker; the largest first."""
    known = [row for row in rows if row.get("n") and row.get("median_ape_pct") is not None]
    known = sorted(known, key=lambda row: -float(row["median_ape_pct"]))[:MOST_BARS]
    left, width, step, top = 330.0, 480.0, 20.0, 40.0
    longest = max([float(row.get("p90_ape_pct") or row["median_ape_pct"]) for row in known], default=0.0) or 1.0
    height = top + step * len(known) + 40
    elements = [_text(title, 8, 20, "start")]
    for value in _round(longest):
        x = left + value / longest * width
        elements.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - 36:.1f}"/>')
        elements.append(_text(f"{value:g} %", x, height - 20, "middle", quiet=True))
    for i, row in enumerate(known):
        y, median = top + i * step, float(row["median_ape_pct"]) / longest * width
        far = float(row.get("p90_ape_pct") or row["median_ape_pct"]) / longest * width
        elements.append(_text(f"{place(row)} ({int(row['n']):,})", left - 8, y + 14, "end"))
        elements.append(f'<rect x="{left}" y="{y + 3:.1f}" width="{median:.1f}" height="13" fill="#1f66b8"/>')
        elements.append(
            f'<line x1="{left + median:.1f}" x2="{left + far:.1f}" y1="{y + 9.5:.1f}" y2="{y + 9.5:.1f}"'
            ' stroke="#1a1d21"/>'
        )
        elements.append(_text(f"{float(row['median_ape_pct']):.3g} %", left + far + 6, y + 14, "start"))
    elements.append(
        _text("bar: median error; line: to the 90th percentile; (rows)", 8, height - 4, "start", quiet=True)
    )
    return _svg(left + width + 90, height, elements)


def _round(longest: float) -> list[float]:
    """Round numbers from 0 up to ``longest``: three to eight, in steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(longest / 3))
    step = next(f * power for f in (5.0, 2.0, 1.0) if f * power <= longest / 3 * (1 + 1e-9))
    return [round(i * step, 12) for i in range(int(longest / step + 1e-9) + 1)]


def scatter(title: str, measured_ms: Sequence[float], predicted_ms: Sequence[float]) -> str:
    """Forecasts against measurements in ms, both axes logarithmic, with the line where they are equal."""
    pairs = [(m, p) for m, p in zip(measured_ms, predicted_ms, strict=True) if m > 0 and p > 0 and math.isfinite(m * p)]
    pairs = pairs[:: max(1, math.ceil(len(pairs) / MOST_POINTS))]
    both = [math.log10(v) for pair in pairs for v in pair]
    low, high = math.floor(min(both, default=0.0)), math.ceil(max(both, default=1.0))
    high += low == high
    left, top, side = 80.0, 40.0, 520.0

    def at(value: float) -> float:
        return (math.log10(value) - low) / (high - low) * side

    elements = [_text(title, 8, 20, "start")]
    for power in range(low, high + 1):
        x, y, label = left + at(10.0**power), top + side - at(10.0**power), f"{10.0**power:g}"
        elements.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + side}"/>')
        elements.append(f'<line class="g" x1="{left}" x2="{left + side}" y1="{y:.1f}" y2="{y:.1f}"/>')
        elements.append(_text(label, x, top + side + 18, "middle", quiet=True))
        elements.append(_text(label, left - 8, y + 4, "end", quiet=True))
    elements += [
        f'<circle cx="{left + at(m):.1f}" cy="{top + side - at(p):.1f}" r="2.5" fill="#1f66b8" fill-opacity=".45"/>'
        for m, p in pairs
    ]
    elements.append(f'<line x1="{left}" x2="{left + side}" y1="{top + side}" y2="{top}" stroke="#1a1d21"/>')
    elements.append(_text("measured, ms", left + side / 2, top + side + 38, "middle"))
    elements.append(_text("forecast, ms", 16, top + side / 2, "middle", turned=True))
    return _svg(left + side + 30, top + side + 50, elements)


def _text(words: str, x: float, y: float, anchor: str, quiet: bool = False, turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    kind = ' class="q"' if quiet else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}{turn}>{html.escape(words)}</text>'


def _svg(width: float, height: float, inside: Sequence[str]) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    back = f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{_STYLE}{back}{"".join(inside)}</svg>\n'
