"""The roofline plot: what the GPU can do at best, and where the operators are under it. Inline SVG, both axes log."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from predictor.files.records import dataclass
from predictor.hardware.gpu import GPUSpec
from predictor.report.detail import OperatorPoint
from predictor.report.drawing import PLOTS, Size, across, mark, picture, tag, upward
from predictor.report.pages import figure, folded, section, table
from predictor.report.wording import quantity, seconds, share, significant

#: Operators drawn at most: those that take longest. The table has them all. Numbers, sizes and colours of these
#: pictures were chosen by looking at pages.
MOST_POINTS = 150
ROWS_IN_VIEW = 12  # of the table; the rest is folded
#: What bounds an operator -> (colour, shape), chosen by looking at pages; the shape tells them apart without the
#: colour.
BOUNDS = {"compute": (0, "circle"), "memory": (1, "square"), "latency": (2, "triangle"), "link": (3, "diamond")}
_SHORT_HEADS = (
    ("operator", False), ("time", True), ("share", True), ("class", False), ("shape", False), ("of roofline", True),
    ("bound", False),
)  # fmt: skip
_HEADS = (
    ("operator", False), ("time", True), ("share", True), ("class", False), ("shape", False), ("count", True),
    ("FLOP a byte", True), ("reached", True), ("of roofline", True), ("bound", False), ("phase", False),
    ("source", False),
)  # fmt: skip


#: left, top, right, bottom of what is drawn, in pixels
Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class _Axes:
    """Logarithmic axes: exponents of ten at the ends."""

    size: Size
    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, value: float) -> float:
        s = self.size
        return s.left + (math.log10(value) - self.x0) / (self.x1 - self.x0) * (s.width - s.left - s.right)

    def y(self, value: float) -> float:
        s = self.size
        return s.height - s.bottom - (math.log10(value) - self.y0) / (self.y1 - self.y0) * (s.height - s.top - s.bottom)


def roofline_section(points: Sequence[OperatorPoint], gpu: GPUSpec) -> Markup:
    """The plot, its legend and its table."""
    drawn = [p for p in points if p.flops > 0 and p.bytes > 0][:MOST_POINTS]
    rest = [p for p in points if p.flops <= 0 or p.bytes <= 0]
    caption = (
        "Each mark is a distinct operator, larger where it takes more of the time. The slanted line is the bandwidth of"
        f" device memory ({quantity(gpu.memory_bandwidth, 'B/s')}), flat lines are dense peaks ({_peaks(drawn)})."
        " A mark above the slanted line found its data in the L2 cache. Arrow keys move from mark to mark, the longest"
        " first."
    )
    if rest:
        several, part = len(rest) > 1, share(sum(p.share for p in rest))
        caption += (
            f" {len(rest)} operator{'s' * several} with {part} of the time {'do' if several else 'does'} no arithmetic"
            f" and {'are' if several else 'is'} not drawn."
        )
    left_out = len(points) - len(rest) - len(drawn)
    if left_out:
        caption += f" {left_out} more, which take less time, are in the table alone."
    used = [name for name in BOUNDS if any(p.bound == name for p in drawn)]
    legend = [(_key(name), f"bound by {name}") for name in used]
    rows = [
        (
            _names(p), seconds(p.total_s), share(p.share), p.op, p.shape, f"{p.count:,.0f}",
            significant(p.intensity) if p.flops else "-", quantity(p.achieved_flops, "FLOP/s") if p.flops else "-",
            f"{p.utilization:.0%}", p.bound, p.phase,
            p.source if p.inside else f"{p.source}, outside what was measured",
        )
        for p in points
    ]  # fmt: skip
    charts = [_plot(drawn, gpu, size) for size in PLOTS] if drawn else []
    short = [
        (_names(p), seconds(p.total_s), share(p.share), p.op, p.shape, f"{p.utilization:.0%}", p.bound)
        for p in points[:ROWS_IN_VIEW]
    ]
    return section(
        "roofline", "Roofline", figure(caption, charts, keys=legend),
        table("The operators that take longest" if len(short) < len(rows) else "Operators", _SHORT_HEADS, short),
        folded(
            f"All of {len(rows)} operators: count, FLOP a byte, reached, source", table("All operators", _HEADS, rows)
        ),
    )  # fmt: skip


def _peaks(points: Sequence[OperatorPoint]) -> str:
    """The peaks that operators run against, in words, the highest first."""
    peaks = sorted({(-p.peak_flops, f"{p.dtype} {p.unit}") for p in points})
    return ", ".join(f"{name} {quantity(-peak, 'FLOP/s')}" for peak, name in peaks)


def _names(point: OperatorPoint) -> str:
    more = len(point.names) - 1
    return point.names[0] if not more else f"{point.names[0]} (and {more} alike)"


def _key(bound: str) -> Markup:
    return tag("svg", _shape(bound, 8, 8, 6), width="16", height="16", viewBox="0 0 16 16", aria_hidden="true")


#: Corners in radii of a circle: as large as that one, chosen by looking at pages.
_TRIANGLE = ((0.0, -1.2), (1.1, 0.8), (-1.1, 0.8))
_DIAMOND = ((0.0, -1.2), (1.2, 0.0), (0.0, 1.2), (-1.2, 0.0))


def _shape(bound: str, x: float, y: float, r: float) -> Markup:
    colour, shape = BOUNDS[bound]
    css = f"dot f{colour}"
    if shape == "circle":
        return tag("circle", cx=x, cy=y, r=r, class_=css)
    if shape == "square":
        return tag("rect", x=x - 0.88 * r, y=y - 0.88 * r, width=1.76 * r, height=1.76 * r, class_=css)
    corners = _TRIANGLE if shape == "triangle" else _DIAMOND
    return tag("polygon", points=" ".join(f"{x + dx * r:.1f},{y + dy * r:.1f}" for dx, dy in corners), class_=css)


def _plot(points: Sequence[OperatorPoint], gpu: GPUSpec, size: Size) -> Markup:
    axes = _axes(points, gpu, size)
    spots = [_around(axes.x(p.intensity), axes.y(p.achieved_flops), _radius(p)) for p in points]
    roofs, names, taken = _roofs(points, gpu, axes, spots)
    taken += _slope(gpu, axes)
    marks = [
        mark(
            f"{_names(p)}, {p.shape}: {seconds(p.total_s)} ({share(p.share)}), {significant(p.intensity)} FLOP a byte,"
            f" {quantity(p.achieved_flops, 'FLOP/s')}, {p.utilization:.0%} of the roofline, bound by {p.bound}",
            _shape(p.bound, axes.x(p.intensity), axes.y(p.achieved_flops), _radius(p)),
        )
        for p in points
    ]
    inside = [*_grid(axes), *roofs, tag("g", *marks, class_="marks"), *names, *_labels(points, axes, taken)]
    return picture(inside, size, f"Roofline of {gpu.name} with {len(points)} operators")


def _radius(point: OperatorPoint) -> float:
    return 4.0 + 10.0 * math.sqrt(point.share)


def _axes(points: Sequence[OperatorPoint], gpu: GPUSpec, size: Size) -> _Axes:
    peaks = [p.peak_flops for p in points]
    ridge = max(peaks) / gpu.memory_bandwidth
    x0 = math.floor(math.log10(min(p.intensity for p in points)) - 0.1)
    x1 = math.ceil(math.log10(max(ridge * 3, *(p.intensity for p in points))) + 0.05)
    lowest = min(*(p.achieved_flops for p in points), gpu.memory_bandwidth * 10.0**x0 * 10)
    y1 = math.log10(max(peaks)) + 0.45
    return _Axes(size, x0, x1, math.floor(math.log10(lowest) - 0.1), y1)


def _grid(axes: _Axes) -> list[Markup]:
    first, every = math.ceil(axes.x0), 1 if axes.x1 - axes.x0 <= 6 else 2
    below = []
    for e in range(first, math.floor(axes.x1) + 1):
        label = significant(10.0**e) if e >= -3 else f"{10.0**e:g}"
        below.append((axes.x(10.0**e), label if (e - first) % every == 0 else ""))
    beside = [(axes.y(10.0**e), quantity(10.0**e, "")) for e in range(math.ceil(axes.y0), math.floor(axes.y1) + 1)]
    return [
        *across(axes.size, below, "arithmetic intensity, FLOP a byte"),
        *upward(axes.size, beside, "reached, FLOP/s"),
    ]


def _roofs(
    points: Sequence[OperatorPoint], gpu: GPUSpec, axes: _Axes, spots: Sequence[Box]
) -> tuple[list[Markup], list[Markup], list[Box]]:
    """The slanted line up to the highest peak, and a flat line for each peak that an operator runs against; their
    labels, and the boxes that these and the marks (``spots``) take."""
    peaks: dict[tuple[float, str], dict[str, None]] = {}
    for p in points:
        peaks.setdefault((p.peak_flops, p.unit), {})[p.dtype] = None
    right, bandwidth = 10.0**axes.x1, gpu.memory_bandwidth
    top = max(peak for peak, _ in peaks)
    start = max(10.0**axes.x0, 10.0**axes.y0 / bandwidth)
    lines = [
        tag(
            "line", x1=axes.x(start), y1=axes.y(start * bandwidth), x2=axes.x(top / bandwidth), y2=axes.y(top),
            class_="roof",
        )
    ]  # fmt: skip
    taken = list(spots)
    labels: list[Markup] = []
    for (peak, unit), dtypes in sorted(peaks.items(), key=lambda item: -item[0][0]):
        y = axes.y(peak)
        lines.append(tag("line", x1=axes.x(peak / bandwidth), y1=y, x2=axes.x(right), y2=y, class_="roof"))
        label = f"{', '.join(sorted(dtypes))} {unit}: {quantity(peak, 'FLOP/s')}"
        ends = axes.x(peak / bandwidth) + 10, axes.x(right) - 2
        box = _free(label, *ends, y, taken + _slope(gpu, axes)) or _free(label, *ends, y, taken)
        if box is not None:
            taken.append(box)
            labels.append(tag("text", label, x=box[2], y=box[3] - 3, text_anchor="end", class_="label"))
    return lines, labels, taken


def _labels(points: Sequence[OperatorPoint], axes: _Axes, taken: list[Box]) -> list[Markup]:
    """Names beside the marks that take longest, where there is room."""
    labels: list[Markup] = []
    taken = list(taken)
    named: list[tuple[str, float, float]] = []
    for p in points[:8]:
        x, y, name = axes.x(p.intensity), axes.y(p.achieved_flops), p.names[0]
        width, away = 6.6 * len(name), _radius(p) + 4
        if any(name == other and abs(x - a) + abs(y - b) < width for other, a, b in named):
            continue  # the same operator at another length, all but in the same place
        right, left = x + away, x - away - width
        for at, down in ((right, 0), (left, 0), (right, 13), (left, -13), (right, -13), (left, 13)):
            box = (at, y + down - 8, at + width, y + down + 6)
            inside = axes.size.left <= box[0] and box[2] <= axes.size.width - axes.size.right
            if inside and p.share >= 0.02 and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                named.append((name, x, y))
                anchor, end = ("start", at) if at == right else ("end", at + width)
                label = tag("text", name, x=end, y=y + down + 4, text_anchor=anchor, class_="label", aria_hidden="true")
                labels.append(label)
                break
    return labels


def _free(label: str, left: float, right: float, y: float, taken: Sequence[Box]) -> Box | None:
    """Room for a label at a flat line, from its right end to its left one, above it or below it; None where is none."""
    width = 6.6 * len(label)
    first = min(right, left + width)
    for top in (y - 18, y + 4):
        for end in (right - (right - first) * step / 4 for step in range(5)):
            box = (end - width, top, end, top + 15)
            if not any(_overlap(box, other) for other in taken):
                return box
    return None


def _slope(gpu: GPUSpec, axes: _Axes) -> list[Box]:
    """Small boxes along the line of the bandwidth, for labels to stay off it."""
    boxes = []
    for i in range(101):
        x = 10.0 ** (axes.x0 + (axes.x1 - axes.x0) * i / 100)
        if axes.y0 <= math.log10(x * gpu.memory_bandwidth) <= axes.y1:
            boxes.append(_around(axes.x(x), axes.y(x * gpu.memory_bandwidth), 2.0))
    return boxes


def _around(x: float, y: float, radius: float) -> Box:
    return x - radius, y - radius, x + radius, y + radius


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
