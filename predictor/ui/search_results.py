"""What a search found, drawn: its JSON as a table and a picture of what no other plan beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from predictor.report.drawing import PLOTS, Point, scatter
from predictor.report.pages import figure, table
from predictor.report.wording import seconds, share, significant

#: Rows of the table; the picture has every plan that the search said. Chosen by looking at pages.
ROWS = 10
_MS = 1e-3  # seconds, by definition


def drawn(points: Sequence[Point], front: Sequence[tuple[float, float]], axes: tuple[str, str], caption: str) -> Markup:
    """The picture at both widths."""
    charts = [scatter(points, front, axes, f"{axes[1]} against {axes[0]}", size) for size in PLOTS]
    return figure(caption, charts)


def training_plans(answer: Mapping[str, Any]) -> Markup:
    """Plans of `tilecast plan`: step time against memory."""
    plans = answer["plans"]
    if not plans:
        words = f"None of {answer['plans_legal']:,} legal plans fits in memory: use more GPUs, or a smaller batch."
        return Markup("<p>{}</p>").format(words)
    points = [
        Point(p["memory_gib"], p["latency_ms"], f"{p['label']}: {seconds(p['latency_ms'] * _MS)},"
              f" {significant(p['memory_gib'])} GiB a GPU")
        for p in plans
    ]  # fmt: skip
    points += [points[0]._replace(words=f"the fastest: {points[0].words}", ringed=True)]
    front, best = [], float("inf")
    for p in sorted(plans, key=lambda p: (p["memory_gib"], p["latency_ms"])):
        if p["latency_ms"] < best:
            best = p["latency_ms"]
            front.append((p["memory_gib"], best))
    heads = (
        ("plan", False), ("step", True), ("MFU", True), ("GiB a GPU", True), ("bubble", True), ("exposed", True),
    )  # fmt: skip
    rows = [
        (
            p["label"], seconds(p["latency_ms"] * _MS), share(p["mfu"]), significant(p["memory_gib"]),
            share(p["bubble_share"]), seconds(p["exposed_ms"] * _MS),
        )
        for p in plans[:ROWS]
    ]  # fmt: skip
    words = (
        f"{answer['plans_fitting']:,} of {answer['plans_legal']:,} legal plans fit; the best {len(plans):,} are drawn."
    )
    picture = drawn(points, front, ("GiB a GPU", "ms a step"), f"{words} A ring is the fastest.")
    return Markup("").join((picture, table("The fastest plans", heads, rows)))


def serving_plans(answer: Mapping[str, Any]) -> Markup:
    """Plans of `tilecast serve plan`: what a user sees against what a GPU makes, and the best within the SLA."""
    front, plans = answer["frontier"], answer["plans"]
    kinds = list(dict.fromkeys(map(_kind, front)))
    points = [Point(*_speeds(p), f"{_layout(p)}: {_said(p)}", kinds.index(_kind(p))) for p in front]
    chosen = plans[0]
    points.append(Point(*_speeds(chosen), f"chosen: {_layout(chosen)}: {_said(chosen)}", len(kinds), ringed=True))
    heads = (
        ("plan", False), ("GPUs", True), ("tokens/s a GPU", True), ("tokens/s a user", True), ("TTFT", True),
        ("TPOT", True),
    )  # fmt: skip
    rows = [
        (
            _layout(p), f"{p['gpus']}", *(significant(value) for value in reversed(_speeds(p))), _ms(p["ttft_ms"]),
            _ms(p["tpot_ms"]),
        )
        for p in plans[:ROWS]
    ]  # fmt: skip
    caption = (
        f"The Pareto frontier: {len(front)} of {answer['points']:,} plans. The ring is the best plan within the SLA."
        f" Colours: {', '.join(kinds)}."
    )
    picture = drawn(points, [_speeds(p) for p in front], ("tokens/s a user", "tokens/s a GPU"), caption)
    return Markup("").join((picture, table("Plans within the SLA", heads, rows)))


def _speeds(plan: Mapping[str, Any]) -> tuple[float, float]:
    return plan["tokens_per_s_per_user"] or 0.0, plan["tokens_per_s_per_gpu"]


def _kind(plan: Mapping[str, Any]) -> str:
    return f"{plan['execution']}{'' if plan['prefill'] is None else ', disaggregated'}"


def _layout(plan: Mapping[str, Any]) -> str:
    """A plan in words: what is above 1 of its degrees, replicas, requests at a time."""
    degrees = " ".join(f"{name} {plan[name]}" for name in ("tp", "pp", "dp", "ep") if plan[name] > 1) or "1 GPU"
    return f"{_kind(plan)} {degrees} x {plan['replicas']}, batch {plan['batch']}"


def _said(plan: Mapping[str, Any]) -> str:
    user, gpu = _speeds(plan)
    return f"{significant(user)} tokens/s a user, {significant(gpu)} tokens/s a GPU"


def _ms(value: float | None) -> str:
    return "-" if value is None else seconds(value * _MS)
