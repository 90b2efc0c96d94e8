"""The frontier of serving: tokens/s that a user sees against tokens/s that a GPU makes. Inline SVG, as the page's other
pictures, or a file of its own."""

from __future__ import annotations

from pathlib import Path

from predictor.files.outputs import GENERATOR
from predictor.report.formats import significant
from predictor.report.html_elements import Html, figure, join, legend_of, swatch, tag
from predictor.report.html_roofline import NARROW, WIDE, Size
from predictor.report.html_scatter import Point, scatter
from predictor.search.serving.answer import ServingAnswer
from predictor.search.serving.search import ServingPlan


def frontier_figure(answer: ServingAnswer) -> Html:
    """The picture with its legend, for a page."""
    front, names = answer.found.frontier, kinds(answer)
    legend = tag("ul", *(swatch(i, name) for i, name in legend_of(names)), class_="legend")
    charts = [chart(answer, size) for size in (WIDE, NARROW)]
    caption = (
        f"The Pareto frontier: {len(front)} plans that meet the TTFT. The ring is the plan that the search chose; plans"
        " left of the line miss the TPOT. Arrow keys move from mark to mark."
    )
    return figure(caption, *charts, legend, tag("p", class_="readout", aria_hidden="true"))


def frontier_svg(answer: ServingAnswer) -> str:
    """The picture as a file of its own."""
    names = kinds(answer)
    keys = [
        tag("text", name, x=WIDE.width - WIDE.right - 8, y=WIDE.top + 18 * (i + 1), text_anchor="end", class_=f"f{at}")
        for i, (at, name) in enumerate(legend_of(names))
    ]
    return str(
        chart(
            answer,
            WIDE,
            tag("metadata", GENERATOR),
            tag("style", _style()),
            join(keys),
            xmlns="http://www.w3.org/2000/svg",
        )
    )


def _style() -> Html:
    """The style of all pages: a file of its own has it inside."""
    return Html((Path(__file__).parent / "templates" / "page.css").read_text(encoding="utf-8"))


def kinds(answer: ServingAnswer) -> list[str]:
    """What the colours stand for: engines, and whether prompts have GPUs of their own."""
    return list(dict.fromkeys(map(kind, answer.found.frontier)))


def kind(plan: ServingPlan) -> str:
    """A plan's engine, and whether it is disaggregated."""
    return plan.group.execution + (", disaggregated" if plan.prefill is not None else "")


def chart(answer: ServingAnswer, size: Size, *inside: Html, **attributes: str) -> Html:
    """The drawing: a line along the frontier, a mark a point, the TPOT's limit."""
    front, names = answer.found.frontier, kinds(answer)
    chosen = answer.entries[0].plan
    points = [Point(*_place(plan), _words(plan), names.index(kind(plan))) for plan in front]
    points.append(Point(*_place(chosen), f"chosen: {_words(chosen)}", len(names), ringed=True))
    limit = answer.asked.sla.tpot_s
    return scatter(
        points, [_place(plan) for plan in front], ("tokens/s a user", "tokens/s a GPU"),
        f"Frontier with {len(front)} points", size, 1.0 / limit if limit > 0 else None, inside, **attributes,
    )  # fmt: skip


def _place(plan: ServingPlan) -> tuple[float, float]:
    return plan.tokens_per_s_per_user, plan.tokens_per_s_per_gpu


def _words(plan: ServingPlan) -> str:
    user, gpu = _place(plan)
    return f"{plan}: {significant(user)} tokens/s a user, {significant(gpu)} tokens/s a GPU"
