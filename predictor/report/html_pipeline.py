"""The pipeline: every stage of a step of training, pass by pass. Inline SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from predictor.forecast.forecast import Forecast
from predictor.report.drawing import LANES, Bar, Size, lanes
from predictor.report.pages import figure, folded, section, table
from predictor.report.wording import seconds
from predictor.simulate.pipeline import timeline
from predictor.simulate.pipeline_orders import Order
from predictor.simulate.step_time import Laid, laid_out

#: Stages, and passes of a stage, that are drawn one by one. Numbers and pixels of this picture were chosen by looking
#: at pages.
MOST_STAGES = 16
MOST_PASSES = 160
_LANE = 22.0
_COLOURS = ("forward", "backward", "optimizer step", "gradients, exposed", "weights, exposed", "passes not drawn")


class Pass(NamedTuple):
    """A bar of a stage's lane; ``colour`` is a place in the legend."""

    stage: int
    name: str
    colour: int
    start_s: float
    end_s: float


def pipeline_section(forecast: Forecast) -> Markup | None:
    """The stages of a pipeline in time; None where there is none."""
    if forecast.step is None:
        return None
    laid = laid_out(forecast.run, forecast.plan, forecast.timed)
    order = laid.order
    if order is None:
        return None
    stages = np.unique(np.linspace(0, order.stages - 1, min(order.stages, MOST_STAGES)).round().astype(int)).tolist()
    starts, ends, _ = timeline(order, laid.forward_s, laid.backward_s, laid.sent_s, laid.p2p)
    bars = [bar for stage in stages for bar in (*_passes(order, stage, starts, ends), *_after(laid, stage))]
    used = [name for i, name in enumerate(_COLOURS) if any(bar.colour == i for bar in bars)]
    over, work = forecast.run.work.parallelism, forecast.run.work
    caption = (
        f"{work.micro_batches} micro-batches through {over.pp} stages"
        + (f" of {over.vpp} chunks" if over.vpp > 1 else "")
        + f" ({over.order}), then the exchange of gradients and the update. A gap is the bubble or a message."
    )
    if len(stages) < order.stages:
        caption += f" {len(stages)} of the {order.stages} stages are drawn."
    legend = [(f"k{_COLOURS.index(name)}", name) for name in used]
    end = forecast.latency_s
    drawn = [_chart(bars, stages, size, end) for size in LANES]
    return section(
        "pipeline", "Pipeline",
        figure(caption, drawn, keys=legend),
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


def _passes(order: Order, stage: int, starts: np.ndarray, ends: np.ndarray) -> Iterator[Pass]:
    """The passes of a stage: all of them, or the first and the last and one bar for those between."""
    mine = np.flatnonzero(order.stage == stage)
    mine = mine[np.argsort(order.place[mine])]
    half = MOST_PASSES // 2
    shown = mine if len(mine) <= MOST_PASSES else np.concatenate((mine[:half], mine[-half:]))
    for unit in shown.tolist():
        back = bool(order.backward[unit])
        of = f" of chunk {order.chunk[unit]}" if order.chunks > 1 else ""
        name = f"{_COLOURS[back]} {order.micro_batch[unit]}{of}"
        yield Pass(stage, name, int(back), float(starts[unit]), float(ends[unit]))
    if len(shown) < len(mine):
        left = mine[half:-half]
        yield Pass(stage, f"{len(left):,} more passes", 5, float(starts[left[0]]), float(ends[left[-1]]))


def _after(laid: Laid, stage: int) -> Iterator[Pass]:
    end = float(laid.ends_s[stage])
    if laid.reduce_s[stage]:
        yield Pass(stage, _COLOURS[3], 3, end, end + laid.reduce_s[stage])
    at = float(np.max(laid.ends_s + np.array(laid.reduce_s)))
    yield Pass(stage, _COLOURS[2], 2, at, at + laid.update_s[stage])
    at += max(laid.update_s)
    if laid.gather_s[stage]:
        yield Pass(stage, _COLOURS[4], 4, at, at + laid.gather_s[stage])


def _chart(bars: Sequence[Pass], stages: Sequence[int], size: Size, end_s: float) -> Markup:
    rows = []
    for stage in stages:
        inside = [
            Bar(bar.start_s, bar.end_s, bar.colour, f"stage {stage}, {bar.name}: {seconds(bar.end_s - bar.start_s)}"
                f" from {seconds(bar.start_s)}")
            for bar in bars
            if bar.stage == stage
        ]  # fmt: skip
        rows.append((f"stage {stage}", str(stage), inside))
    return lanes(rows, size, end_s, f"Stages of the pipeline in time, {seconds(end_s)}", _LANE)
