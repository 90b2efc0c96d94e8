"""The frontier of serving: tokens/s that a user sees against tokens/s that a GPU makes. Inline SVG, as the page's other
pictures, or a file of its own."""

from __future__ import annotations

from markupsafe import Markup

from predictor.report.drawing import PLOTS, Point, Size, file_of, scatter
from predictor.report.pages import figure
from predictor.report.wording import significant
from predictor.search.serving.answer import ServingAnswer
from predictor.search.serving.search import ServingPlan


def frontier_figure(answer: ServingAnswer) -> Markup:
    """The picture with its legend, for a page."""
    caption = (
        f"The Pareto frontier: {len(answer.found.frontier)} plans that meet the TTFT. The ring is the plan that the"
        " search chose; plans left of the line miss the TPOT. Arrow keys move from mark to mark."
    )
    return figure(caption, [chart(answer, size) for size in PLOTS], kinds(answer))


def frontier_svg(answer: ServingAnswer) -> bytes:
    """The picture as a file of its own."""
    return file_of(chart(answer, PLOTS[0]), kinds(answer))


def kinds(answer: ServingAnswer) -> list[str]:
    """What the colours stand for: engines, and whether prompts have GPUs of their own."""
    return list(dict.fromkeys(map(kind, answer.found.frontier)))


def kind(plan: ServingPlan) -> str:
    """A plan's engine, and whether it is disaggregated."""
    return plan.group.execution + (", disaggregated" if plan.prefill is not None else "")


def chart(answer: ServingAnswer, size: Size) -> Markup:
    """The drawing: a line along the frontier, a mark a point, the TPOT's limit."""
    front, names = answer.found.frontier, kinds(answer)
    chosen = answer.entries[0].plan
    points = [Point(*_place(plan), _words(plan), names.index(kind(plan))) for plan in front]
    points.append(Point(*_place(chosen), f"chosen: {_words(chosen)}", len(names), ringed=True))
    limit = answer.asked.sla.tpot_s
    return scatter(
        points, [_place(plan) for plan in front], ("tokens/s a user", "tokens/s a GPU"),
        f"Frontier with {len(front)} points", size, 1.0 / limit if limit > 0 else None,
    )  # fmt: skip


def _place(plan: ServingPlan) -> tuple[float, float]:
    return plan.tokens_per_s_per_user, plan.tokens_per_s_per_gpu


def _words(plan: ServingPlan) -> str:
    user, gpu = _place(plan)
    return f"{plan}: {significant(user)} tokens/s a user, {significant(gpu)} tokens/s a GPU"
