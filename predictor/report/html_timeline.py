"""The timeline: the run in its passes and blocks, and one layer kernel by kernel. Inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from predictor.report.drawing import COLOURS, LANES, Bar, Size, lanes
from predictor.report.pages import figure, folded, section, table
from predictor.report.wording import seconds
from predictor.simulate.kernel_times import BlockSchedule, schedule
from predictor.simulate.stage import Stage
from predictor.simulate.times import TimedStage

#: Repetitions of a block that are drawn one by one, in the whole chart; beyond them a block is one bar. Numbers and
#: pixels of this picture were chosen by looking at pages.
MOST_SLICES = 160
MOST_KERNELS = 240  # of one layer
_LANE = 34.0  # pixels
_NAMES = ("CPU", "GPU")


class Slice(NamedTuple):
    """A bar of a lane (``lane`` 0 is the CPU, 1 the GPU), in seconds."""

    lane: int
    name: str
    colour: int
    start_s: float
    end_s: float


def timeline_section(stages: Sequence[TimedStage], classes: Sequence[str]) -> Markup:
    """Both charts. ``classes``: operator classes in the order of their colours."""
    scheduled = [schedule(timed) for timed in stages]
    inside = [_whole(stages, scheduled)]
    main = max(range(len(stages)), key=lambda i: stages[i].total_s)
    if scheduled[main]:
        inside.append(_layer(stages[main].stage, scheduled[main], classes))
    return section("timeline", "Timeline", *inside)


def _whole(stages: Sequence[TimedStage], scheduled: Sequence[Sequence[BlockSchedule]]) -> Markup:
    names = _by_time(stages, scheduled)
    slices: list[Slice] = []
    rows = []
    at = 0.0
    for timed, blocks in zip(stages, scheduled, strict=True):
        stage, budget = timed.stage, MOST_SLICES // len(stages)
        for entry in blocks:
            slices += _slices(entry, names.index(entry.block.name), at, budget)
            rows.append(_row(entry, stage, at))
        more = stage.weight - 1.0
        if more > 1e-9 and blocks:
            name, start = f"{stage.label}: {more:,.0f} more", at + timed.each_s
            colour = names.index(max(blocks, key=_gpu_s).block.name)
            slices.append(Slice(1, name, colour, start, at + timed.total_s))
            rows.append((name, seconds(start), seconds(at + timed.total_s), stage.label))
        at += timed.total_s
    where = any(item.lane == 0 for item in slices)
    caption = "The whole run. Of passes that are alike, the first is drawn block by block."
    if where:
        caption += " The CPU launches kernels ahead of the GPU; where the CPU is slower, the GPU waits."
    else:
        caption += " There is no CPU lane: a CUDA graph holds the launches."
    heads = (("block", False), ("starts", True), ("ends", True), ("of", False))
    drawn = [_chart(slices, size, at, f"Timeline of the run, {seconds(at)}") for size in LANES]
    told = folded("Table of the timeline", table("Blocks in time, on the GPU", heads, rows))
    return Markup("").join((figure(caption, drawn, names), told))


def _by_time(stages: Sequence[TimedStage], scheduled: Sequence[Sequence[BlockSchedule]]) -> list[str]:
    """Names of all blocks, that with most GPU time first."""
    totals: dict[str, float] = {}
    for timed, blocks in zip(stages, scheduled, strict=True):
        for entry in blocks:
            totals[entry.block.name] = totals.get(entry.block.name, 0.0) + _gpu_s(entry) * timed.stage.weight
    return sorted(totals, key=lambda name: -totals[name])


def _gpu_s(entry: BlockSchedule) -> float:
    return float(entry.segment.gpu_s.sum()) * entry.segment.repeat


def _row(entry: BlockSchedule, stage: Stage, at: float) -> tuple[str, str, str, str]:
    repeat = entry.segment.repeat
    name = entry.block.name if repeat == 1 else f"{entry.block.name} x {repeat}"
    start = float(entry.kernels(0).start_s[0])
    return name, seconds(at + start), seconds(at + entry.state(repeat)[1]), stage.label


def _slices(entry: BlockSchedule, colour: int, at: float, budget: int) -> list[Slice]:
    """The bars of a block on both lanes, one a repetition where there is room for them."""
    repeat = entry.segment.repeat
    slices = []
    if repeat <= budget:
        for i in range(repeat):
            times = entry.kernels(i)
            name = entry.block.name if repeat == 1 else f"{entry.block.name} {i}"
            slices.append(Slice(1, name, colour, at + float(times.start_s[0]), at + float(times.end_s[-1])))
            if times.issued_s[-1] > times.issue_s[0]:
                slices.append(Slice(0, name, colour, at + float(times.issue_s[0]), at + float(times.issued_s[-1])))
        return slices
    (issued, _), (all_issued, all_done) = entry.state(0), entry.state(repeat)
    name = f"{entry.block.name} x {repeat}"
    slices.append(Slice(1, name, colour, at + float(entry.kernels(0).start_s[0]), at + all_done))
    if all_issued > issued:
        slices.append(Slice(0, name, colour, at + issued, at + all_issued))
    return slices


def _layer(stage: Stage, blocks: Sequence[BlockSchedule], classes: Sequence[str]) -> Markup:
    """One repetition of the block that takes most of a pass: a middle one."""
    entry = max(blocks, key=_gpu_s)
    repetition = entry.segment.repeat // 2
    times = entry.kernels(repetition)
    ahead = float(times.start_s[0] - times.issued_s[-1])
    zero = float(times.start_s[0]) if ahead > 0 else min(float(times.issue_s[0]), float(times.start_s[0]))
    slices, rows = [], []
    for j, place in enumerate(entry.nodes):
        node = entry.block.nodes[place]
        name, kind = node.name or node.op.label, node.op.label
        start, end = float(times.start_s[j]) - zero, float(times.end_s[j]) - zero
        waited = start + zero - float(times.issued_s[j])
        after = "-" if stage.captured else seconds(max(0.0, waited))
        rows.append((name, kind, seconds(max(0.0, start)), seconds(end - start), after))
        if j < MOST_KERNELS:
            colour = classes.index(kind) if kind in classes else COLOURS - 1
            slices.append(Slice(1, f"{name} ({kind})", colour, start, end))
            if ahead <= 0 and times.issued_s[j] > times.issue_s[j]:
                slices.append(Slice(0, name, colour, float(times.issue_s[j]) - zero, float(times.issued_s[j]) - zero))
    repeat = entry.segment.repeat
    name = entry.block.name if repeat == 1 else f"{entry.block.name} {repetition} of {repeat}"
    caption = f"One block, kernel by kernel: {name}, in {stage.label}."
    if not stage.captured and ahead > 0:
        caption += f" The CPU launched all of it {seconds(ahead)} before the GPU started it."
    if len(entry.nodes) > MOST_KERNELS:
        caption += f" The first {MOST_KERNELS} of {len(entry.nodes):,} kernels are drawn."
    used = list(dict.fromkeys(entry.block.nodes[place].op.label for place in entry.nodes))
    order = sorted(used, key=lambda kind: classes.index(kind) if kind in classes else COLOURS)
    legend = [(f"k{min(classes.index(kind), COLOURS - 1) if kind in classes else COLOURS - 1}", kind) for kind in order]
    end = max(float(times.end_s[-1]) - zero, 1e-12)
    heads = (("kernel", False), ("class", False), ("starts", True), ("takes", True), ("after its launch", True))
    drawn = [_chart(slices, size, end, f"Kernels of {name}, {seconds(end)}") for size in LANES]
    told = folded(f"Table of {len(rows):,} kernels", table(f"Kernels of {name}", heads, rows))
    return Markup("").join((Markup("<h3>One layer</h3>"), figure(caption, drawn, keys=legend), told))


def _chart(slices: Sequence[Slice], size: Size, end_s: float, label: str) -> Markup:
    bars: dict[int, list[Bar]] = {lane: [] for lane in (0, 1) if lane or any(item.lane == 0 for item in slices)}
    for item in slices:
        words = f"{_NAMES[item.lane]}, {item.name}: {seconds(item.end_s - item.start_s)} from"
        bars[item.lane].append(Bar(item.start_s, item.end_s, item.colour, f"{words} {seconds(max(0.0, item.start_s))}"))
    rows = [(_NAMES[lane], _NAMES[lane], inside) for lane, inside in bars.items()]
    return lanes(rows, size, end_s, label, _LANE)
