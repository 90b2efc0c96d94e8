"""A collection as one HTML page: coverage, noise, clocks and power over time, throttling, failures, roofline.

The page stands alone: no script, no file beside it. Colours are those of the reader's system, light or dark.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from microbench import ceilings
from microbench.dataset import DatasetFolder
from predictor.errors import TilecastError
from predictor.files.outputs import PAGE_MARK

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 760, 260, 76, 34  # of a chart, in pixels; chosen by eye
_MOST_POINTS = 4000  # of a chart: a page of a hundred thousand rows still opens. Chosen by hand, not from data
_COLOURS = ("#2f6fb0", "#c2571a", "#3d8a4e", "#8a4fa3", "#b0892f", "#5b6770")
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --paper: #fff; --line: #c9ced6; --soft: #f3f5f8 }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --paper: #16181c; --line: #444a53; --soft: #22262c } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; display: block; overflow-x: auto }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .7rem; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
th { background: var(--soft) }
svg { width: 100%; height: auto; display: block; margin: .3rem 0 1.5rem }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink) }
svg .frame { fill: none; stroke: var(--line) }
.key span { display: inline-block; margin-right: 1.2rem }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin-right: .35em }
"""
Point = tuple[float, float, str]


def page(parts: Sequence[DatasetFolder], name: str) -> str:
    """The page of a data set's ``parts``."""
    devices: dict[Path, list[DatasetFolder]] = defaultdict(list)
    for part in parts:
        devices[part.device_folder.resolve()].append(part)
    body = [f"<h1>Collection {escape(name)}</h1>"]
    for folder, device_parts in devices.items():
        body += _device(folder, device_parts)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{PAGE_MARK}'
        f"<title>Collection {escape(name)}</title>"
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _device(folder: Path, parts: Sequence[DatasetFolder]) -> list[str]:
    rows = [row for part in parts for row in part.all_rows]
    failures = [failure for part in parts for failure in part.failed]
    runs = {run.get("run"): run for part in parts for run in part.meta.get("collections", [])}
    boards = sorted({str(row["board_uuid"]) for row in rows if row.get("board_uuid")})
    sections = [
        f"<h2>{escape(folder.name)}</h2>",
        f"<p>{len(rows)} rows, {len(failures)} cases failed, {len(runs)} collections"
        + (f", boards {escape(', '.join(boards))}" if boards else "") + ".</p>",
        *(f"<p>Broken: {escape(part.broken)}</p>" for part in parts if part.broken),
        "<h3>Coverage</h3>", _coverage(rows),
        "<h3>Noise</h3><p>Half-width of the median's 95 % interval over the median, rows by power of two.</p>",
        _histogram([float(row["noise"]) * 100 for row in rows if row.get("noise")]),
        "<h3>Clock, power and temperature over time</h3>", _over_time(rows),
        "<h3>Throttling</h3>", _throttling(rows), "<h3>Failures</h3>", _failures(failures),
        "<h3>Roofline of what was measured</h3>", _roofline(folder, rows),
    ]  # fmt: skip
    return sections


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A table; every cell is escaped."""
    cells = "".join(f"<th scope=col>{escape(cell)}</th>" for cell in head)
    rows = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in line) + "</tr>" for line in lines)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>"


def _coverage(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows by launcher and dtype, and how they were timed."""
    dtypes = sorted({str(row["dtype"]) for row in rows})
    counts = Counter((str(row["launcher"]), str(row["dtype"])) for row in rows)
    timed: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        timed[str(row["launcher"])][f"{row['cache_state']} {row['protocol']}"] += 1
    return table(
        ["operator", *dtypes, "all", "timed"],
        [
            [name, *(counts[name, dtype] or "" for dtype in dtypes), sum(kinds.values()),
             ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())]
            for name, kinds in sorted(timed.items())
        ],
    )  # fmt: skip


def _throttling(rows: Sequence[Mapping[str, Any]]) -> str:
    reasons: Counter[str] = Counter()
    for row in rows:
        reasons.update(filter(None, str(row.get("throttle_reasons", "")).split(";")))
    thrown = sum(int(row.get("throttled_samples") or 0) for row in rows)
    if not reasons:
        return "<p>None was seen.</p>"
    return table(["reason", "rows that saw it"], reasons.most_common()) + f"<p>{thrown} samples were thrown away.</p>"


def _failures(failures: Sequence[Mapping[str, Any]]) -> str:
    if not failures:
        return "<p>None.</p>"
    kinds: dict[tuple[str, str], list[str]] = defaultdict(list)
    for failure in failures:
        kinds[str(failure.get("kind")), str(failure.get("case", {}).get("launcher"))].append(str(failure.get("reason")))
    return table(
        ["kind", "operator", "cases", "most often"],
        [[kind, op, len(why), Counter(why).most_common(1)[0][0][:120]] for (kind, op), why in sorted(kinds.items())],
    )


# --------------------------------------------------------------------------------------------------------------- charts


def _scale(value: float, low: float, high: float, log: bool) -> float:
    """``value`` between ``low`` and ``high`` as a share of the way."""
    if log:
        value, low, high = math.log10(value), math.log10(low), math.log10(high)
    return (value - low) / (high - low) if high > low else 0.5


def _ticks(low: float, high: float, log: bool) -> list[float]:
    if not log:
        return [low + (high - low) * part / 4 for part in range(5)] if high > low else [low]
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    return [10.0**power for power in range(first, last + 1, max(1, (last - first) // 6))]


def chart(
    title: str, points: Sequence[Point], x: str, y: str, log: bool = False,
    lines: Sequence[Sequence[tuple[float, float]]] = (), fixed: tuple[float, float, float, float] | None = None,
) -> str:  # fmt: skip
    """A scatter of (x, y, group) with a key; ``lines`` beneath it. ``fixed``: ends of x, then of y."""
    if not points:
        return "<p>No row says it.</p>"
    points = points[:: max(1, -(-len(points) // _MOST_POINTS))]
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    x0, x1, y0, y1 = fixed or (min(xs), max(xs), min(ys), max(ys))
    groups = sorted({group for _, _, group in points})
    colour = {group: _COLOURS[number % len(_COLOURS)] for number, group in enumerate(groups)}

    def at(a: float, b: float) -> tuple[float, float]:
        across = _LEFT + _scale(a, x0, x1, log) * (_WIDTH - _LEFT - 30)
        return across, (1 - _scale(b, y0, y1, log)) * (_HEIGHT - _BOTTOM - 8) + 8

    drawn = [f"<rect class=frame x={_LEFT} y=8 width={_WIDTH - _LEFT - 30} height={_HEIGHT - _BOTTOM - 8} />"]
    for tick in _ticks(x0, x1, log):
        drawn.append(f"<text x={at(tick, y0)[0]:.1f} y={_HEIGHT - 18} text-anchor=middle>{tick:.3g}</text>")
    for tick in _ticks(y0, y1, log):
        drawn.append(f"<text x={_LEFT - 6} y={at(x0, tick)[1] + 4:.1f} text-anchor=end>{tick:.4g}</text>")
    for line in lines:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (at(*end) for end in line))
        drawn.append(f'<polyline points="{path}" fill=none stroke="var(--ink)" stroke-dasharray="5 4" />')
    for a, b, group in points:
        across, down = at(a, b)
        drawn.append(f'<circle cx={across:.1f} cy={down:.1f} r=2.2 fill="{colour[group]}" fill-opacity=.7 />')
    drawn.append(f"<text x={(_WIDTH + _LEFT) / 2:.0f} y={_HEIGHT - 3} text-anchor=middle>{escape(x)}</text>")
    drawn.append(f'<text x=12 y={_HEIGHT / 2:.0f} transform="rotate(-90 12 {_HEIGHT / 2:.0f})">{escape(y)}</text>')
    key = "".join(f'<span><i style="background:{colour[group]}"></i>{escape(group)}</span>' for group in groups)
    return (f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role=img aria-label="{escape(title)}">{"".join(drawn)}</svg>'
            + (f"<p class=key>{key}</p>" if len(groups) > 1 else ""))  # fmt: skip


def _histogram(values: Sequence[float]) -> str:
    """Bars by power of two of a percentage."""
    known = [value for value in values if value > 0 and math.isfinite(value)]
    if not known:
        return "<p>No row says it.</p>"
    bins = Counter(max(-7, min(7, math.floor(math.log2(value)))) for value in known)
    most, width = max(bins.values()), (_WIDTH - _LEFT) / 15
    drawn = []
    for number in range(-7, 8):
        count, left = bins[number], _LEFT + (number + 7) * width
        height = count / most * (_HEIGHT - _BOTTOM - 24)
        down = _HEIGHT - _BOTTOM - height
        drawn.append(
            f'<rect x={left:.1f} y={down:.1f} width={width - 3:.1f} height={height:.1f} fill="{_COLOURS[0]}" />'
        )
        drawn.append(f"<text x={left + width / 2:.1f} y={_HEIGHT - 18} text-anchor=middle>{_percent(number)}</text>")
        if count:
            drawn.append(f"<text x={left + width / 2:.1f} y={down - 4:.1f} text-anchor=middle>{count}</text>")
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role=img aria-label="Rows by noise">{"".join(drawn)}</svg>'


def _percent(power: int) -> str:
    """A power of two as a short label: 2^-7 is 1/128."""
    return f"1/{2**-power}" if power < 0 else f"{2**power} %"


def _over_time(rows: Sequence[Mapping[str, Any]]) -> str:
    stamps = {id(row): datetime.fromisoformat(str(row["measured_at"])).timestamp() for row in rows}
    first = min(stamps.values(), default=0.0)
    charts = ""
    for column, unit, factor in (("sm_clock_hz", "SM clock, MHz", 1e-6), ("power_w", "power, W", 1.0),
                                 ("temperature_c", "temperature, °C", 1.0)):  # fmt: skip
        points = [
            ((stamps[id(row)] - first) / 60, float(row[column]) * factor,
             "sustained" if "sustained" in str(row["protocol"]) else "burst")
            for row in rows if row.get(column) is not None
        ]  # fmt: skip
        if points:
            charts += chart(unit, points, "minutes since the first row", unit)
    return charts or "<p>No row says it.</p>"


def _roofline(folder: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """FLOP/s over FLOP per byte, with the lines of the device's memory and of its fastest dtype."""
    points: list[Point] = []
    for row in rows:
        if row["op"] in ("ceiling", "collective") or row.get("cache_state") not in ("warm", "cold"):
            continue
        try:
            op = ceilings.row_op(row)
        except TilecastError:
            continue
        if op.flops() > 0 and op.bytes_moved() > 0:
            rate = op.flops() / (float(row["latency_ms"]) / 1e3)
            points.append((op.flops() / op.bytes_moved(), rate / 1e9, str(row["dtype"])))
    if not points:
        return "<p>No row says it.</p>"
    spec = ceilings.spec_of(folder, folder.name)
    low, high = min(p[0] for p in points), max(p[0] for p in points)
    lines, rates = [], [p[1] for p in points]
    if spec is not None:
        peaks = {dtype: spec.peak_flops(dtype) for dtype in {p[2] for p in points} if spec.supports(dtype)}
        top = max(peaks.values(), default=0.0)
        if top:
            ridge = min(max(top / spec.memory_bandwidth, low), high)
            roof = [(at, min(top, at * spec.memory_bandwidth) / 1e9) for at in (low, ridge, high)]
            lines.append(roof)
            rates += [rate for _, rate in roof]
    ends = (low * 0.8, high * 1.25, min(rates) * 0.8, max(rates) * 1.25)
    return chart("Roofline", points, "FLOP per byte", "GFLOP/s", log=True, lines=lines, fixed=ends)
