"""Two pictures of answers: boards side by side with their intervals, and a run as a waterfall. Inline SVG."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from predictor.report.drawing import BARS, COLOURS, Bar, bars
from predictor.report.pages import figure, section
from predictor.report.wording import LEVEL_WORDS, seconds, share, span
from predictor.simulate.answer import Prediction

#: Bars of a waterfall; what takes less is one bar. Numbers and pixels here were chosen by looking at pages.
MOST_BARS = 12


def waterfall_section(answer: Prediction) -> Markup:
    """Where the time of a run goes, one thing after the other: classes of operators, then what is between kernels."""
    pieces = waterfall(answer)
    caption = (
        f"Where the {seconds(answer.latency_s)} of the run go. Each bar begins where the one above ends: classes of"
        " operators, the longest first, then the time in which no kernel runs."
    )
    if any(name == _OVERLAP for name, _ in pieces):
        caption += " The last bar subtracts what overlaps."
    rows = [(name, seconds(bar.end - bar.start), bar) for name, bar in pieces]
    label = f"Waterfall of {answer.model} on {answer.gpu}"
    return section("waterfall", "Waterfall", figure(caption, [bars(rows, size, label) for size in BARS]))


_OVERLAP = "side by side"


def waterfall(answer: Prediction) -> list[tuple[str, Bar]]:
    """The bars: they begin at 0, and the last ends at the run's time."""
    totals: dict[str, float] = {}
    for row in answer.breakdown:
        totals[row.op] = totals.get(row.op, 0.0) + row.latency_s
    ranked = sorted(totals.items(), key=lambda item: -item[1])
    if len(ranked) > MOST_BARS:
        rest = ranked[MOST_BARS - 1 :]
        ranked = [*ranked[: MOST_BARS - 1], (f"{len(rest)} more classes", sum(t for _, t in rest))]
    times = [(name, i, t) for i, (name, t) in enumerate(ranked)]
    times += [(name.replace("_", " "), COLOURS - 1, t) for name, t in answer.between_s.items() if t > 0]
    left = answer.latency_s - sum(t for _, _, t in times)
    if abs(left) > 1e-6 * answer.latency_s:
        times.append((_OVERLAP if left < 0 else "waiting", COLOURS - 1, left))
    pieces, at = [], 0.0
    for name, colour, t in times:
        words = f"{name}: {seconds(abs(t))}, {share(abs(t) / answer.latency_s)} of the run"
        pieces.append((name, Bar(min(at, at + t), max(at, at + t), colour, words)))
        at += t
    return pieces


def side_by_side(answers: Sequence[tuple[str, Prediction]]) -> Markup:
    """Answers as bars, each with its interval; ``answers``: a label and an answer."""
    rows = []
    for label, answer in answers:
        words = f"{label}: {seconds(answer.latency_s)}"
        if answer.interval_s is not None:
            words += f", {LEVEL_WORDS} interval {span(*answer.interval_s)}"
        words += "" if answer.memory.fits else ", does not fit in memory"
        colour = 0 if answer.memory.fits else 5
        rows.append((label, seconds(answer.latency_s), Bar(0.0, answer.latency_s, colour, words, answer.interval_s)))
    caption = f"Time of the run on each board; the thin line is the {LEVEL_WORDS} interval."
    if any(not answer.memory.fits for _, answer in answers):
        caption += " A red bar does not fit in memory."
    return figure(caption, [bars(rows, size, "Boards side by side") for size in BARS])
