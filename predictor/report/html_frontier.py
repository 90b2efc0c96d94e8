"""The frontier of serving: tokens/s that a user sees against tokens/s that a GPU makes. Inline SVG, as the page's other
pictures, or a file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from predictor.report.formats import significant
from predictor.report.html_elements import COLOURS, Html, figure, join, legend_of, mark, swatch, tag, ticks
from predictor.report.html_roofline import NARROW, WIDE, Size
from predictor.serving_plans.answer import Answer
from predictor.serving_plans.search import ServingPlan


def frontier_figure(answer: Answer) -> Html:
    """The picture with its legend, for a page."""
    front, names = answer.found.frontier, kinds(answer)
    legend = tag("ul", *(swatch(i, name) for i, name in legend_of(names)), class_="legend")
    charts = [chart(answer, size) for size in (WIDE, NARROW)]
    caption = (
        f"{len(front)} points that no other one beats in both, of those that meet the TTFT. A ring is what the search"
        " chose; left of the line the TPOT is missed. Arrow keys move from mark to mark."
    )
    return figure(caption, *charts, legend, tag("p", class_="readout", aria_hidden="true"))


def frontier_svg(answer: Answer) -> str:
    """The picture as a file of its own."""
    names = kinds(answer)
    keys = [
        tag("text", name, x=WIDE.width - WIDE.right - 8, y=WIDE.top + 18 * (i + 1), text_anchor="end", class_=f"f{at}")
        for i, (at, name) in enumerate(legend_of(names))
    ]
    return str(chart(answer, WIDE, tag("style", _style()), join(keys), xmlns="http://www.w3.org/2000/svg"))


def _style() -> Html:
    """The style of all pages: a file of its own has it inside."""
    return Html((Path(__file__).parent / "templates" / "page.css").read_text(encoding="utf-8"))


def kinds(answer: Answer) -> list[str]:
    """What the colours stand for: engines, and whether prompts have GPUs of their own."""
    return list(dict.fromkeys(map(kind, answer.found.frontier)))


def kind(plan: ServingPlan) -> str:
    """A plan's engine, and whether it is disaggregated."""
    return plan.group.execution + (", disaggregated" if plan.prefill is not None else "")


def chart(answer: Answer, size: Size, *inside: Html, **attributes: str) -> Html:
    """The drawing: axes from 0, a line along the frontier, a mark a point."""
    front, names = answer.found.frontier, kinds(answer)
    chosen = answer.entries[0].plan
    every = [*front, chosen]
    right = max(p.tokens_per_s_per_user for p in every) * 1.05
    top = max(p.tokens_per_s_per_gpu for p in every) * 1.08

    def at(user: float, gpu: float) -> tuple[float, float]:
        wide, high = size.width - size.left - size.right, size.height - size.top - size.bottom
        return size.left + user / right * wide, size.height - size.bottom - gpu / top * high

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*_place(p)) for p in front))
    shapes = []
    for plan in front:
        x, y = at(*_place(plan))
        colour = min(names.index(kind(plan)), COLOURS - 1)
        shapes.append(mark(_words(plan), tag("circle", cx=x, cy=y, r=4, class_=f"dot f{colour}")))
    x, y = at(*_place(chosen))
    ring = mark(f"chosen: {_words(chosen)}", tag("circle", cx=x, cy=y, r=9, class_="ring"))
    limit = []
    if 1.0 / answer.asked.sla.tpot_s < right and answer.asked.sla.tpot_s > 0:
        edge = at(1.0 / answer.asked.sla.tpot_s, 0.0)[0]
        limit = [tag("line", x1=edge, x2=edge, y1=size.top, y2=size.height - size.bottom, class_="roof")]
    return tag(
        "svg", *inside, *_grid(size, right, top), *limit, tag("polyline", points=line, class_="front"),
        tag("g", *shapes, ring, class_="marks"), viewBox=f"0 0 {size.width:g} {size.height:g}",
        class_=f"chart {size.kind}", role="group", aria_label=f"Frontier with {len(front)} points", **attributes,
    )  # fmt: skip


def _place(plan: ServingPlan) -> tuple[float, float]:
    return plan.tokens_per_s_per_user, plan.tokens_per_s_per_gpu


def _words(plan: ServingPlan) -> str:
    user, gpu = _place(plan)
    return f"{plan}: {significant(user)} tokens/s a user, {significant(gpu)} tokens/s a GPU"


def _grid(size: Size, right: float, top: float) -> Sequence[Html]:
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
    found.append(tag("text", "tokens/s a user", x=middle, y=size.height - 6, text_anchor="middle"))
    down = (high + low) / 2
    turn = f"rotate(-90 14 {down:.0f})"
    found.append(tag("text", "tokens/s a GPU", x=14, y=down, text_anchor="middle", transform=turn))
    return found
