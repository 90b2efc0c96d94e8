"""Requests under load as a page with pictures, and as a Chrome trace."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from predictor.files import outputs
from predictor.report.drawing import tag
from predictor.report.html import BYLINE
from predictor.report.pages import document, figure, section, table
from predictor.report.wording import LEVEL_WORDS
from predictor.serving.simulator import Served

#: Size of a picture in its own units: chosen by hand, not from data.
WIDTH, HEIGHT = 720.0, 150.0
_PICTURES = (
    ("decoding", "Batch: requests that decode"), ("waiting", "Queue: requests that wait"),
    ("cache_share", "KV cache: share that is held"), ("prompt_tokens_per_s", "Prompts: tokens read a second"),
)  # fmt: skip
#: Requests and steps of a Chrome trace at most, so that a viewer opens it: chosen by hand, not from data.
MOST_EVENTS = 20_000


def write_reports(served: Served, report: Mapping[str, Any], *, html: str | None, timeline: str | None) -> None:
    """Write the page and the trace where they are asked for; RequestError for a path that cannot be written."""
    for flag, path, text in (
        ("--html", html, to_page(served, report) if html is not None else ""),
        ("--timeline", timeline, to_trace(served) if timeline is not None else ""),
    ):
        if path is not None:
            outputs.write(flag, path, text.encode("utf-8", errors="replace"))


def to_page(served: Served, report: Mapping[str, Any]) -> str:
    """The page."""
    title = f"{report['model']} on {report['num_gpus']} x {report['gpu']}: {report['requests']:,} requests"
    rows = []
    for name, words in (("ttft_ms", "first token"), ("tpot_ms", "per token"), ("latency_ms", "latency")):
        times = report[name]
        shown = [times[key] for key in ("mean", "p50", "p90", "p99")]
        low_high = times["interval"]
        span = "" if low_high is None else f"{low_high[0]:,.4g} to {low_high[1]:,.4g}"
        rows.append([words, *("" if value is None else f"{value:,.4g}" for value in shown), span])
    heads = [("ms", False), *((name, True) for name in ("mean", "p50", "p90", "p99"))]
    heads.append((f"{LEVEL_WORDS} interval of the mean", True))
    curves = report["timeline"]
    pictures = [_curve(words, curves["time_s"], curves[key]) for key, words in _PICTURES]
    values = {key: value for key, value in report.items() if isinstance(value, (str, int, float)) or value is None}
    facts = [[key, "" if value is None else f"{value:,.6g}" if isinstance(value, float) else str(value)]
             for key, value in values.items()]  # fmt: skip
    parts = [
        section("answer", "Answer", table("Times of requests", heads, rows)),
        section("requests", "Requests", _spread(served)),
        section("time", "Over time", *pictures),
        section("all", "All figures", table("Figures", [("what", False), ("value", True)], facts)),
    ]
    return document(title, title, parts, [BYLINE])


def _curve(words: str, times: Sequence[float], values: Sequence[float]) -> Markup:
    """A line over time, drawn to its own greatest value."""
    most, end = max(values) or 1.0, (times[-1] + times[1] - times[0]) or 1.0
    points = " ".join(
        f"{at / end * WIDTH:.1f},{HEIGHT - value / most * (HEIGHT - 12):.1f}"
        for at, value in zip(times, values, strict=True)
    )
    drawn = tag(
        "svg",
        tag("polyline", points=points, fill="none", stroke="currentColor", stroke_width="1.5"),
        tag("line", x1=0.0, y1=HEIGHT, x2=WIDTH, y2=HEIGHT, stroke="currentColor", stroke_width="0.5"),
        viewBox=f"0 0 {WIDTH:g} {HEIGHT + 2:g}", role="img", aria_label=f"{words}, at most {most:,.3g}", width="100%",
    )  # fmt: skip
    return figure(f"{words}: at most {most:,.3g}; {end:,.3g} s from left to right", [drawn])


def _spread(served: Served) -> Markup:
    """Every request (of many, some): arrival across, time to first token up, on a scale of logarithms."""
    ttft, arrival = served.ttft_s, served.arrival_s
    every = max(1, len(ttft) // 1000)
    low, high = math.log10(max(ttft.min(), 1e-6)), math.log10(max(ttft.max(), 2e-6))
    span, end = max(high - low, 0.1), float(arrival.max()) or 1.0

    def height(value: float) -> float:
        return HEIGHT - (math.log10(max(value, 1e-6)) - low) / span * (HEIGHT - 12)

    dots = [
        tag("circle", cx=at / end * WIDTH, cy=height(value), r="2", fill="currentColor", fill_opacity="0.5")
        for at, value in zip(arrival[::every].tolist(), ttft[::every].tolist(), strict=True)
    ]  # fmt: skip
    words = f"time to first token from {10**low * 1e3:,.3g} to {10**high * 1e3:,.3g} ms"
    drawn = tag("svg", *dots, viewBox=f"0 0 {WIDTH:g} {HEIGHT + 2:g}", role="img", aria_label=words, width="100%")
    return figure(f"Requests by arrival (0 to {end:,.3g} s): {words}, on a logarithmic scale", [drawn])


def to_trace(served: Served, most: int = MOST_EVENTS) -> str:
    """A Chrome trace: a row a server with its steps, a row a slot with the requests' queue, prompt and answer; the
    first ``most`` of both."""
    events: list[dict[str, Any]] = []
    servers = [*((f"server {i}", moments) for i, moments in enumerate(served.moments)),
               *((f"prompts {i}", moments) for i, moments in enumerate(served.prompt_moments))]  # fmt: skip
    for number, (name, moments) in enumerate(servers):
        events.append({"ph": "M", "pid": number, "name": "process_name", "args": {"name": name}})
        events += [
            {
                "ph": "X", "pid": number, "tid": 0, "ts": moment.start_s * 1e6,
                "dur": (moment.end_s - moment.start_s) * 1e6,
                "name": "step with prompts" if moment.chunk_tokens else "decode steps",
                "args": {"steps": moment.steps, "decoding": moment.decoding, "prompt_tokens": moment.chunk_tokens,
                         "waiting": moment.waiting, "pages": moment.pages},
            }
            for moment in moments[: most // len(servers)]
        ]  # fmt: skip
    pid = len(servers)
    events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": "requests"}})
    free: list[float] = []
    for i in range(min(len(served.traffic), most // 3)):
        at, began, first, last = (float(column[i]) for column in
                                  (served.arrival_s, served.scheduled_s, served.first_s, served.last_s))  # fmt: skip
        slot = next((place for place, until in enumerate(free) if until <= at), len(free))
        free[slot : slot + 1] = [last]
        events += [
            {"ph": "X", "pid": pid, "tid": slot + 1, "ts": start * 1e6, "dur": (end - start) * 1e6, "name": name,
             "args": {"request": i}}
            for name, start, end in (("queue", at, began), ("prompt", began, first), ("answer", first, last))
        ]  # fmt: skip
    return json.dumps(
        {"generator": outputs.GENERATOR, "traceEvents": events, "displayTimeUnit": "ms"},
        separators=(",", ":"),
        allow_nan=False,
    )
