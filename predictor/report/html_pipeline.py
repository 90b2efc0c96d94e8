"""The pipeline: every stage of a step of training, pass by pass. Inline SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from predictor.forecast.forecast import Forecast
from predictor.report.formats import seconds, significant
from predictor.report.html_elements import Html, figure, folded, mark, section, swatch, table, tag, ticks
from predictor.report.html_roofline import Size
from predictor.simulate.orders import Order
from predictor.simulate.pipeline import timeline
from predictor.simulate.step_time import Laid, laid_out

#: Stages, and passes of a stage, that are drawn one by one. Numbers and pixels of this picture were chosen by looking
#: at pages.
MOST_STAGES = 16
MOST_PASSES = 160
THIN = 3.0  # pixels below which a bar has no edge
_LANE = 22.0
_WIDE = Size("wide", 960, 0, 64, 24, 10, 40)
_NARROW = Size("narrow", 336, 0, 40, 16, 10, 40)
_COLOURS = ("forward", "backward", "optimizer step", "gradients, exposed", "weights, exposed", "passes not drawn")


class Bar(NamedTuple):
    """A bar of a stage's lane; ``colour`` is a place in the legend."""

    stage: int
    name: str
    colour: int
    start_s: float
    end_s: float


def pipeline_section(found: Forecast) -> Html | None:
    """The stages of a pipeline in time; None where there is none."""
    if found.step is None:
        return None
    laid = laid_out(found.run, found.plan, found.timed)
    order = laid.order
    if order is None:
        return None
    stages = np.unique(np.linspace(0, order.stages - 1, min(order.stages, MOST_STAGES)).round().astype(int)).tolist()
    starts, ends, _ = timeline(order, laid.forward_s, laid.backward_s, laid.sent_s, laid.p2p)
    bars = [bar for stage in stages for bar in (*_passes(order, stage, starts, ends), *_after(laid, stage))]
    used = [name for i, name in enumerate(_COLOURS) if any(bar.colour == i for bar in bars)]
    over, work = found.run.work.parallelism, found.run.work
    caption = (
        f"{work.micro_batches} micro-batches through {over.pp} stages"
        + (f" of {over.vpp} chunks" if over.vpp > 1 else "")
        + f" ({over.order}), then what the step does once. A gap is the bubble, or a message."
    )
    if len(stages) < order.stages:
        caption += f" {len(stages)} of the {order.stages} stages are drawn."
    legend = tag("ul", *(swatch(_COLOURS.index(name), name) for name in used), class_="legend")
    end = found.latency_s
    drawn = [_chart(bars, stages, size, end) for size in (_WIDE, _NARROW)]
    return section(
        "pipeline", "Pipeline",
        figure(caption, *drawn, legend, tag("p", class_="readout", aria_hidden="true")),
        folded("Table of the stages", table("Stages of the pipeline", _HEADS, _rows(laid, order))),
    )  # fmt: skip


_HEADS = (("stage", True), ("computes", True), ("idle or waits", True), ("last pass ends", True), ("gradients", True))


def _rows(laid: Laid, order: Order) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    each = (laid.forward_s + laid.backward_s)[0].sum(axis=1) * order.micro_batches
    for stage in range(order.stages):
        busy, end = float(each[stage]), float(laid.ends_s[stage])
        texts = seconds(busy), seconds(max(0.0, end - busy)), seconds(end), seconds(laid.reduce_s[stage])
        rows.append((str(stage), *texts))
    return rows


def _passes(order: Order, stage: int, starts: np.ndarray, ends: np.ndarray) -> Iterator[Bar]:
    """The passes of a stage: all of them, or the first and the last and one bar for those between."""
    mine = np.flatnonzero(order.stage == stage)
    mine = mine[np.argsort(order.place[mine])]
    half = MOST_PASSES // 2
    shown = mine if len(mine) <= MOST_PASSES else np.concatenate((mine[:half], mine[-half:]))
    for unit in shown.tolist():
        back = bool(order.backward[unit])
        of = f" of chunk {order.chunk[unit]}" if order.chunks > 1 else ""
        name = f"{_COLOURS[back]} {order.micro_batch[unit]}{of}"
        yield Bar(stage, name, int(back), float(starts[unit]), float(ends[unit]))
    if len(shown) < len(mine):
        left = mine[half:-half]
        yield Bar(stage, f"{len(left):,} more passes", 5, float(starts[left[0]]), float(ends[left[-1]]))


def _after(laid: Laid, stage: int) -> Iterator[Bar]:
    end = float(laid.ends_s[stage])
    if laid.reduce_s[stage]:
        yield Bar(stage, _COLOURS[3], 3, end, end + laid.reduce_s[stage])
    at = float(np.max(laid.ends_s + np.array(laid.reduce_s)))
    yield Bar(stage, _COLOURS[2], 2, at, at + laid.update_s[stage])
    at += max(laid.update_s)
    if laid.gather_s[stage]:
        yield Bar(stage, _COLOURS[4], 4, at, at + laid.gather_s[stage])


def _chart(bars: Sequence[Bar], stages: Sequence[int], size: Size, end_s: float) -> Html:
    height = size.top + _LANE * len(stages) + size.bottom
    inner = size.width - size.left - size.right
    unit, factor = ("s", 1.0) if end_s >= 1.0 else ("ms", 1e3)
    found = []
    for tick in ticks(0.0, end_s * factor, 6 if size.kind == "wide" else 3):
        at = size.left + inner * tick / factor / end_s
        found.append(tag("line", x1=at, x2=at, y1=size.top, y2=height - size.bottom, class_="grid"))
        found.append(tag("text", significant(tick), x=at, y=height - size.bottom + 16, text_anchor="middle"))
    found.append(tag("text", f"time, {unit}", x=size.left + inner / 2, y=height - 6, text_anchor="middle"))
    for row, stage in enumerate(stages):
        y = size.top + row * _LANE
        label = f"stage {stage}" if size.kind == "wide" else str(stage)
        found.append(tag("text", label, x=size.left - 6, y=y + 15, text_anchor="end"))
        marks = []
        for bar in bars:
            if bar.stage != stage:
                continue
            left, right = (size.left + inner * at / end_s for at in (bar.start_s, bar.end_s))
            what = f"stage {stage}, {bar.name}: {seconds(bar.end_s - bar.start_s)} from {seconds(bar.start_s)}"
            shape = tag(
                "rect", x=left, y=y + 2, width=max(0.4, right - left), height=_LANE - 5,
                class_=f"bar f{bar.colour}{' thin' * (right - left < THIN)}",
            )  # fmt: skip
            marks.append(mark(what, shape))
        found.append(tag("g", *marks, class_="marks"))
    view = f"0 0 {size.width:g} {height:g}"
    label = f"Stages of the pipeline in time, {seconds(end_s)}"
    return tag("svg", *found, viewBox=view, class_=f"chart {size.kind}", role="group", aria_label=label)
