"""Two pictures of answers: boards side by side with their intervals, and a run as a waterfall. Inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from predictor.report.formats import seconds, share, span
from predictor.report.html_elements import COLOURS, Html, figure, mark, section, tag, ticks
from predictor.report.html_roofline import Size
from predictor.simulate.answer import Prediction

#: Bars of a waterfall; what takes less is one bar. Numbers and pixels here were chosen by looking at pages.
MOST_BARS = 12
_ROW = 28.0
_WIDE = Size("wide", 960, 0, 190, 110, 8, 34)
_NARROW = Size("narrow", 336, 0, 104, 66, 8, 34)
#: Characters of a name on a wide and on a narrow screen: as many as fit, chosen by looking at pages.
_LETTERS = {"wide": 26, "narrow": 14}


@dataclass(frozen=True, slots=True)
class WaterfallBar:
    """A bar from ``start_s`` to ``end_s``; ``words`` tell it to a reader who does not see it."""

    name: str
    colour: int
    start_s: float
    end_s: float
    words: str


def waterfall_section(answer: Prediction) -> Html:
    """Where the time of a run goes, one thing after the other: classes of operators, then what is between kernels."""
    pieces = waterfall(answer)
    caption = (
        f"The {seconds(answer.latency_s)} of the run, each bar where the one above ends: classes of operators, the"
        " longest first, then the time in which no kernel runs."
    )
    if any(piece.name == _OVERLAP for piece in pieces):
        caption += " The last bar takes off what overlaps."
    charts = [_chart(pieces, answer, size) for size in (_WIDE, _NARROW)]
    return section(
        "waterfall", "Waterfall", figure(caption, *charts, tag("p", class_="readout", aria_hidden="true"))
    )  # fmt: skip


_OVERLAP = "side by side"


def waterfall(answer: Prediction) -> list[WaterfallBar]:
    """The bars: they begin at 0, and the last ends at the run's time."""
    totals: dict[str, float] = {}
    for row in answer.breakdown:
        totals[row.op] = totals.get(row.op, 0.0) + row.latency_s
    ranked = sorted(totals.items(), key=lambda item: -item[1])
    if len(ranked) > MOST_BARS:
        rest = ranked[MOST_BARS - 1 :]
        ranked = [*ranked[: MOST_BARS - 1], (f"{len(rest)} more classes", sum(t for _, t in rest))]
    bars = [(name, i, t) for i, (name, t) in enumerate(ranked)]
    bars += [(name.replace("_", " "), COLOURS - 1, t) for name, t in answer.between_s.items() if t > 0]
    left = answer.latency_s - sum(t for _, _, t in bars)
    if abs(left) > 1e-6 * answer.latency_s:
        bars.append((_OVERLAP if left < 0 else "waiting", COLOURS - 1, left))
    pieces, at = [], 0.0
    for name, colour, t in bars:
        words = f"{name}: {seconds(abs(t))}, {share(abs(t) / answer.latency_s)} of the run"
        pieces.append(WaterfallBar(name, min(colour, COLOURS - 1), min(at, at + t), max(at, at + t), words))
        at += t
    return pieces


def _chart(pieces: Sequence[WaterfallBar], answer: Prediction, size: Size) -> Html:
    most = max((piece.end_s for piece in pieces), default=answer.latency_s)
    label = f"Waterfall of {answer.model} on {answer.gpu}"
    rows = [(piece.name, seconds(piece.end_s - piece.start_s), piece) for piece in pieces]
    return _bars(rows, most, size, label)


def _bars(
    rows: Sequence[tuple[str, str, WaterfallBar]], most: float, size: Size, label: str, whiskers: Sequence[Html] = ()
) -> Html:
    """Rows of a name, a bar and a value over an axis of seconds that ends at ``most``."""
    height = size.top + _ROW * len(rows) + size.bottom
    inside = _axis(most, size, height)
    for i, (name, value, piece) in enumerate(rows):
        y = size.top + i * _ROW
        shown = name if len(name) <= _LETTERS[size.kind] else name[: _LETTERS[size.kind] - 1] + "…"
        left, right = place(piece.start_s, most, size), place(piece.end_s, most, size)
        bar = tag(
            "rect", x=left, y=y + 5, width=max(1.0, right - left), height=_ROW - 10, class_=f"bar f{piece.colour}"
        )
        inside += [
            tag("text", shown, x=size.left - 8, y=y + _ROW / 2 + 4, text_anchor="end", aria_hidden="true"),
            mark(piece.words, bar),
            tag("text", value, x=size.width - size.right + 6, y=y + _ROW / 2 + 4, aria_hidden="true"),
        ]
    return tag(
        "svg", *inside, *whiskers, viewBox=f"0 0 {size.width:g} {height:g}", class_=f"chart {size.kind}", role="group",
        aria_label=label,
    )  # fmt: skip


def place(value: float, most: float, size: Size) -> float:
    """Pixels from the left of a time."""
    return size.left + value / (most or 1.0) * (size.width - size.left - size.right)


def _axis(most: float, size: Size, height: float) -> list[Html]:
    found = []
    for value in ticks(0.0, most, 6 if size.kind == "wide" else 3):
        x = place(value, most, size)
        found.append(tag("line", x1=x, x2=x, y1=size.top, y2=height - size.bottom, class_="grid"))
        words = "0" if value == 0 else seconds(value)
        found.append(tag("text", words, x=x, y=height - size.bottom + 18, text_anchor="middle", aria_hidden="true"))
    return found


def side_by_side(answers: Sequence[tuple[str, Prediction]]) -> Html:
    """Answers as bars, each with its interval; ``answers``: a label and an answer."""
    most = max(max(answer.latency_s, (answer.interval_s or (0.0, 0.0))[1]) for _, answer in answers)
    rows = []
    for label, answer in answers:
        words = f"{label}: {seconds(answer.latency_s)}"
        if answer.interval_s is not None:
            words += f", 80 % interval {span(*answer.interval_s)}"
        words += "" if answer.memory.fits else ", does not fit in memory"
        colour = 0 if answer.memory.fits else 5
        rows.append((label, seconds(answer.latency_s), WaterfallBar(label, colour, 0.0, answer.latency_s, words)))
    charts = []
    for size in (_WIDE, _NARROW):
        lines = []
        for i, (_, answer) in enumerate(answers):
            if answer.interval_s is None:
                continue
            y = size.top + i * _ROW + _ROW / 2
            low, high = (place(value, most, size) for value in answer.interval_s)
            lines.append(tag("line", x1=low, x2=high, y1=y, y2=y, class_="whisker"))
            lines += [tag("line", x1=x, x2=x, y1=y - 5, y2=y + 5, class_="whisker") for x in (low, high)]
        charts.append(_bars(rows, most, size, "Boards side by side", lines))
    caption = "Time of the run on each board; the thin line is the 80 % interval."
    if any(not answer.memory.fits for _, answer in answers):
        caption += " A red bar does not fit in memory."
    return figure(caption, *charts, tag("p", class_="readout", aria_hidden="true"))
