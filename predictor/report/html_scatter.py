"""A picture of points on two axes from 0, with a line along those that no other one beats. Inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from predictor.report.html_elements import COLOURS, Html, mark, tag, ticks
from predictor.report.html_roofline import Size


@dataclass(frozen=True, slots=True)
class Point:
    """A mark at (``x``, ``y``); ``words`` say what it is; ``ringed``: a ring around what was chosen, no dot."""

    x: float
    y: float
    words: str
    colour: int = 0
    ringed: bool = False


def scatter(
    points: Sequence[Point], front: Sequence[tuple[float, float]], axes: tuple[str, str], label: str, size: Size,
    edge: float | None = None, inside: Sequence[Html] = (), **attributes: str,
) -> Html:  # fmt: skip
    """The drawing. ``front``: the line's corners; ``edge``: an x beyond which, or below which, nothing is wanted;
    ``inside`` comes first in the picture."""
    right = max((p.x for p in points), default=1.0) * 1.05 or 1.0
    top = max((p.y for p in points), default=1.0) * 1.08 or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        wide, high = size.width - size.left - size.right, size.height - size.top - size.bottom
        return size.left + x / right * wide, size.height - size.bottom - y / top * high

    shapes = []
    for point in points:
        x, y = at(point.x, point.y)
        dot = tag("circle", cx=x, cy=y, r=4, class_=f"dot f{min(point.colour, COLOURS - 1)}")
        shapes.append(mark(point.words, tag("circle", cx=x, cy=y, r=9, class_="ring") if point.ringed else dot))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*corner) for corner in front))
    limit = []
    if edge is not None and 0 < edge < right:
        x = at(edge, 0.0)[0]
        limit = [tag("line", x1=x, x2=x, y1=size.top, y2=size.height - size.bottom, class_="roof")]
    return tag(
        "svg", *inside, *_grid(size, right, top, axes), *limit, tag("polyline", points=line, class_="front"),
        tag("g", *shapes, class_="marks"), viewBox=f"0 0 {size.width:g} {size.height:g}", class_=f"chart {size.kind}",
        role="group", aria_label=label, **attributes,
    )  # fmt: skip


def _grid(size: Size, right: float, top: float, axes: tuple[str, str]) -> list[Html]:
    found = []
    low, high = size.height - size.bottom, size.top
    for value in ticks(0.0, right):
        x = size.left + value / right * (size.width - size.left - size.right)
        found.append(tag("line", x1=x, x2=x, y1=high, y2=low, class_="grid"))
        found.append(tag("text", f"{value:g}", x=x, y=low + 16, text_anchor="middle"))
    for value in ticks(0.0, top):
        y = low - value / top * (low - high)
        found.append(tag("line", x1=size.left, x2=size.width - size.right, y1=y, y2=y, class_="grid"))
        found.append(tag("text", f"{value:g}", x=size.left - 6, y=y + 4, text_anchor="end"))
    middle = (size.left + size.width - size.right) / 2
    found.append(tag("text", axes[0], x=middle, y=size.height - 6, text_anchor="middle"))
    down = (high + low) / 2
    turn = f"rotate(-90 14 {down:.0f})"
    found.append(tag("text", axes[1], x=14, y=down, text_anchor="middle", transform=turn))
    return found
