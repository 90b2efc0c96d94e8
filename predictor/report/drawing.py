"""Everything that is drawn: marks, axes, bars, lanes and points as SVG, inside a page or as a file of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup, escape

from predictor.files.outputs import GENERATOR
from predictor.files.records import dataclass, replace
from predictor.report.wording import seconds, significant

#: Colours of `page.css` (--c0 ...) for kinds of things; what is beyond them shares the last one. So many are defined
#: there (source: page.css).
COLOURS = 8
#: Pixels below which a bar has no edge: many beside each other would be all edge. Chosen by looking at pages.
THIN = 3.0


def clean(value: str) -> str:
    """``value`` with characters that XML and HTML forbid (control characters of a hostile file) as U+FFFD."""
    if value.isprintable():
        return value
    return "".join(c if c >= " " or c in "\n\t" else "�" for c in value)


#: Characters that mean something in markup.
_MEANING = re.compile("[&<>'\"]")


def text(value: str) -> str:
    """``value`` as it stands in markup: unchanged where it is markup, escaped where it is text."""
    if isinstance(value, Markup):
        return value
    value = clean(value)
    return escape(value) if _MEANING.search(value) else value  # most has none, and escaping takes ten times as long


@cache
def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def tag(name: str, /, *inside: str, **attributes: str | float | None) -> Markup:
    """One element. ``class_`` is class, ``text_anchor`` text-anchor; an attribute that is None is left out."""
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is not None:
            parts += (" ", _attribute(key), '="', text(value) if isinstance(value, str) else _short(value), '"')
    parts += (">", *map(text, inside), f"</{name}>") if inside else ("/>",)
    return Markup("".join(parts))


def _short(value: float) -> str:
    """A number of an attribute: two decimals of a pixel are enough."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def mark(label: str, *shapes: str) -> Markup:
    """A mark of a chart that takes the focus and says what it is."""
    return tag("g", tag("title", label), *shapes, class_="mark", role="img", aria_label=label, tabindex="0")


def legend_of(names: Sequence[str]) -> list[tuple[int, str]]:
    """Colours and what they stand for; the last colour stands for all names that have none of their own."""
    if len(names) <= COLOURS:
        return list(enumerate(names))
    return [*enumerate(names[: COLOURS - 1]), (COLOURS - 1, "other: " + ", ".join(names[COLOURS - 1 :]))]


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from ``low`` to ``high``, about so many: steps of 1, 2 or 5 times a power of ten."""
    span = high - low
    if span <= 0:
        return [low]
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1.0, 2.0, 5.0, 10.0) if power * f >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


# --------------------------------------------------------------------------------------------------- sizes and axes


@dataclass(frozen=True, slots=True)
class Size:
    """A drawing in pixels; ``kind`` is the class under which the page shows it (wide or narrow screens)."""

    kind: str
    width: float
    height: float
    left: float
    #: Margins, chosen by looking at pages.
    right: float = 24.0
    top: float = 16.0
    bottom: float = 44.0

    @property
    def end(self) -> float:
        """The right end of what is drawn."""
        return self.width - self.right

    @property
    def foot(self) -> float:
        """The lower end of what is drawn."""
        return self.height - self.bottom

    def of_rows(self, rows: int, high: float) -> Size:
        """The size for so many rows of ``high`` pixels."""
        return replace(self, height=self.top + rows * high + self.bottom)


#: Sizes of plots on wide and narrow screens, of lanes, of bars, and of bars with long values beside them: chosen by
#: looking at pages.
PLOTS = Size("wide", 960, 500, 84), Size("narrow", 336, 360, 66, 18)
LANES = Size("wide", 960, 0, 64, 24, 10, 40), Size("narrow", 336, 0, 40, 16, 10, 40)
BARS = Size("wide", 960, 0, 190, 110, 8, 34), Size("narrow", 336, 0, 104, 66, 8, 34)
#: Characters of a bar's name on a wide and on a narrow screen: as many as fit, chosen by looking at pages.
_LETTERS = {"wide": 26, "narrow": 14}
_ROW = 28.0  # pixels of a bar's row, chosen by looking at pages


def picture(inside: Iterable[str], size: Size, label: str) -> Markup:
    """The drawing."""
    view = f"0 0 {size.width:g} {size.height:g}"
    return tag("svg", *inside, viewBox=view, class_=f"chart {size.kind}", role="group", aria_label=label)


def file_of(drawn: Markup, names: Sequence[str] = (), title: str = "") -> bytes:
    """A picture as a file: with its style inside, a title and, right of it, what the colours stand for."""
    style = (Path(__file__).parent / "templates" / "page.css").read_text(encoding="utf-8")
    head, rest = str(drawn).split(">", 1)
    size = PLOTS[0]
    keys = [
        tag("text", name, x=size.end - 8, y=size.top + 18 * (i + 1), text_anchor="end", class_=f"f{at}")
        for i, (at, name) in enumerate(legend_of(names))
    ]
    heading = [tag("text", title, x=8, y=16, class_="label")] if title else []
    inside = Markup("").join((tag("metadata", GENERATOR), tag("style", Markup(style)), *heading, *keys))
    head = head.replace("chart wide", "chart")  # which a narrow window does not hide
    font = 'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif"'
    return f"{head} {font}>{inside}{rest}\n".encode()


def across(size: Size, labels: Iterable[tuple[float, str]], title: str = "") -> list[Markup]:
    """Vertical lines at pixels with their labels below, and the axis' title."""
    lines = []
    for x, label in labels:
        lines.append(tag("line", x1=x, x2=x, y1=size.top, y2=size.foot, class_="grid"))
        if label:
            lines.append(tag("text", label, x=x, y=size.foot + 16, text_anchor="middle"))
    if title:
        lines.append(tag("text", title, x=(size.left + size.end) / 2, y=size.height - 6, text_anchor="middle"))
    return lines


def upward(size: Size, labels: Iterable[tuple[float, str]], title: str) -> list[Markup]:
    """Horizontal lines at pixels with their labels on the left, and the axis' title."""
    lines = []
    for y, label in labels:
        lines.append(tag("line", x1=size.left, x2=size.end, y1=y, y2=y, class_="grid"))
        lines.append(tag("text", label, x=size.left - 6, y=y + 4, text_anchor="end"))
    middle = (size.top + size.foot) / 2
    turn = f"rotate(-90 14 {middle:.0f})"
    return [*lines, tag("text", title, x=14, y=middle, text_anchor="middle", transform=turn)]


# -------------------------------------------------------------------------------------------------------------- bars


class Bar(NamedTuple):
    """``words`` tell it to a reader who does not see it; ``colour`` is a place in the legend."""

    start: float
    end: float
    colour: int
    words: str
    whisker: tuple[float, float] | None = None


def _rect(bar: Bar, at: Callable[[float], float], y: float, high: float) -> Markup:
    left, right = at(bar.start), at(bar.end)
    css = f"bar f{min(bar.colour, COLOURS - 1)}{' thin' * (right - left < THIN)}"
    return mark(bar.words, tag("rect", x=left, y=y, width=max(0.6, right - left), height=high, class_=css))


def lanes(rows: Sequence[tuple[str, str, Sequence[Bar]]], size: Size, end_s: float, label: str, high: float) -> Markup:
    """Lanes of bars over time: a lane's name on a wide screen, on a narrow one, and its bars in seconds."""
    size = size.of_rows(len(rows), high)
    end_s = max([end_s, *(bar.end for _, _, bars in rows for bar in bars)])
    unit, factor = next(
        ((unit, per) for unit, per in (("s", 1.0), ("ms", 1e3), ("us", 1e6)) if end_s * per >= 1.0), ("ns", 1e9)
    )

    def at(value: float) -> float:
        return size.left + (size.end - size.left) * value / end_s

    wide = size.kind == "wide"
    marked = ((at(tick / factor), significant(tick)) for tick in ticks(0.0, end_s * factor, 6 if wide else 3))
    shapes = across(size, marked, f"time, {unit}")
    for i, (name, short, bars) in enumerate(rows):
        y = size.top + i * high
        shapes.append(tag("text", name if wide else short, x=size.left - 6, y=y + high / 2 + 4, text_anchor="end"))
        shapes.append(tag("g", *(_rect(bar, at, y + 3, high - 7) for bar in bars), class_="marks"))
    return picture(shapes, size, label)


def bars(
    rows: Sequence[tuple[str, str, Bar]], size: Size, label: str, shown: Callable[[float], str] = seconds
) -> Markup:
    """Rows of a name, a bar and a value over an axis that ``shown`` puts into words; whiskers where bars have them."""
    size = size.of_rows(len(rows), _ROW)
    most = max((max(bar.end, *(bar.whisker or (0.0,))) for _, _, bar in rows), default=0.0) or 1.0

    def at(value: float) -> float:
        return size.left + value / most * (size.end - size.left)

    steps = ticks(0.0, most, 6 if size.kind == "wide" else 3)
    shapes = across(size, ((at(value), shown(value) if value else "0") for value in steps))
    for i, (name, value, bar) in enumerate(rows):
        y, letters = size.top + i * _ROW, _LETTERS[size.kind]
        name = name if len(name) <= letters else name[: letters - 1] + "…"
        middle = y + _ROW / 2
        shapes += [
            tag("text", name, x=size.left - 8, y=middle + 4, text_anchor="end", aria_hidden="true"),
            _rect(bar, at, y + 5, _ROW - 10),
            tag("text", value, x=size.end + 6, y=middle + 4, aria_hidden="true"),
        ]
        if bar.whisker is not None:
            low, high = map(at, bar.whisker)
            shapes.append(tag("line", x1=low, x2=high, y1=middle, y2=middle, class_="whisker"))
            shapes += [tag("line", x1=x, x2=x, y1=middle - 5, y2=middle + 5, class_="whisker") for x in (low, high)]
    return picture(shapes, size, label)


# ------------------------------------------------------------------------------------------------------------ points


class Point(NamedTuple):
    """A mark at (``x``, ``y``); ``words`` say what it is; ``ringed``: a ring around what was chosen, no dot."""

    x: float
    y: float
    words: str
    colour: int = 0
    ringed: bool = False


def scatter(
    points: Sequence[Point], front: Sequence[tuple[float, float]], axes: tuple[str, str], label: str, size: Size,
    edge: float | None = None,
) -> Markup:  # fmt: skip
    """Points on two axes from 0. ``front``: the corners of a line; ``edge``: an x beyond which, or below which, nothing
    is wanted."""
    right = max([edge or 0.0, *(p.x for p in points)], default=1.0) * 1.05 or 1.0
    top = max((p.y for p in points), default=1.0) * 1.08 or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        return size.left + x / right * (size.end - size.left), size.foot - y / top * (size.foot - size.top)

    shapes = []
    for point in points:
        x, y = at(point.x, point.y)
        dot = tag("circle", cx=x, cy=y, r=4, class_=f"dot f{min(point.colour, COLOURS - 1)}")
        shapes.append(mark(point.words, tag("circle", cx=x, cy=y, r=9, class_="ring") if point.ringed else dot))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*corner) for corner in front))
    marks = across(size, ((at(value, 0.0)[0], f"{value:g}") for value in ticks(0.0, right)), axes[0])
    marks += upward(size, ((at(0.0, value)[1], f"{value:g}") for value in ticks(0.0, top)), axes[1])
    if edge:
        x = at(edge, 0.0)[0]
        marks.append(tag("line", x1=x, x2=x, y1=size.top, y2=size.foot, class_="roof"))
    marks += [tag("polyline", points=line, class_="front"), tag("g", *shapes, class_="marks")]
    return picture(marks, size, label)
