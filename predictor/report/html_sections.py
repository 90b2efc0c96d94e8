"""The parts of the page that are bars and tables: headline, classes, layers, memory, what would change the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from predictor.forecast.sensitivity import Change
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.interval import LEVEL
from predictor.report.detail import Layer
from predictor.report.formats import count, gib, gib_of, may_use, quantity, seconds, share, span
from predictor.report.html_elements import COLOURS, Html, figure, join, legend_of, section, swatch, table, tag
from predictor.report.throughput import hardware_use, throughput
from predictor.request.numbers import computes_in
from predictor.simulate.answer import Prediction

#: Blocks drawn as bars: those that take longest. The table has them all. Both were chosen by looking at pages.
MOST_LAYERS = 24
MOST_COLUMNS = 6  # figures beside each other below the answer, on a wide screen


def headline(answer: Prediction) -> Html:
    """The answer, its interval, and the figures that go with it."""
    inside = [tag("p", tag("strong", seconds(answer.latency_s)), " ", _what(answer), class_="answer")]
    if answer.interval_s is None:
        inside.append(tag("p", "No interval: these estimators have none.", class_="quiet"))
    else:
        inside.append(_interval(answer.latency_s, *answer.interval_s))
    if not answer.memory.fits:
        memory = answer.memory
        why = memory.reason or "the total is too large"
        inside.append(
            tag(
                "p", tag("strong", f"Does not fit, {gib(memory.missing)} too large"), f": {why}. {memory.advice}."
                " The time assumes that it fits.",
                class_="warning",
            )
        )  # fmt: skip
    figures = [tag("div", tag("dt", name), tag("dd", value)) for name, value in _figures(answer)]
    columns = math.ceil(len(figures) / math.ceil(len(figures) / MOST_COLUMNS))  # rows as full as they can be
    return section("answer", "Answer", *inside, tag("dl", *figures, class_="figures", style=f"--columns:{columns}"))


def _what(answer: Prediction) -> str:
    work = answer.workload
    many = work.batch > 1
    tokens, cache = f" of {work.seq_len:,} tokens{' each' * many}", f" with {work.context_len:,} tokens in the cache"
    if work.prompt_lens:
        tokens = f" of {sum(work.prompt_lens):,} tokens in all"
        cache = f" with {sum(work.prompt_lens):,} tokens in the cache in all"
    elif many:
        cache += " each"
    if not answer.lengths_matter:
        tokens = ""
    sequences = f"{work.batch:,} {answer.entries if many else answer.entries.removesuffix('s')}"
    output = f"{work.output_len:,} token{'s' * (work.output_len > 1)}"
    passes = f"{work.steps:,} forward passes" if work.steps > 1 else "a forward pass"
    return {
        "forward": f"for {passes} over {sequences}{tokens}",
        "prefill": f"for the prefill of {sequences}{tokens}",
        "decode": f"for one decode step of {sequences}{cache}",
        "generate": f"to generate {output} for {sequences}, prompt{'s' * many}{tokens}",
        "train": f"for a training step of {sequences}{tokens}",
    }[work.mode]


def _interval(latency_s: float, low: float, high: float) -> Html:
    """The range as a bar from its low end to its high one, with the forecast as a mark."""
    room = (high - low) * 0.15 or latency_s * 0.1
    left, right = max(0.0, low - room), high + room

    def at(value: float) -> str:
        return f"{(value - left) / (right - left) * 100:.2f}%"

    bar = tag("span", class_="range", style=f"left:{at(low)};width:calc({at(high)} - {at(low)})")
    point = tag("span", class_="point", style=f"left:{at(latency_s)}")
    ends = tag("span", seconds(low), class_="end low", style=f"left:{at(low)}")
    ends = join((ends, tag("span", seconds(high), class_="end high", style=f"left:{at(high)}")))
    level = f"{LEVEL:.0%}".replace("%", " %")
    words = f"{level} interval: {span(low, high)}"
    return tag(
        "div", tag("p", words), tag("div", bar, point, ends, class_="track", aria_hidden="true"),
        tag("p", f"Of forecasts like this one, {level} are meant to lie inside.", class_="quiet"), class_="interval",
    )  # fmt: skip


def bound_words(answer: Prediction) -> str:
    """What bounds the run."""
    if answer.launch_bound:
        return f"the CPU: the GPU waits for it {seconds(answer.host_s)} of {seconds(answer.latency_s)}"
    return ", ".join(f"{name} {part:.0%}" for name, part in answer.bound_shares.items() if part >= 5e-3)


def _figures(answer: Prediction) -> list[tuple[str, str]]:
    work, memory = answer.workload, answer.memory
    found = [("bound by", bound_words(answer))]
    if answer.ttft_s is not None and work.mode == "generate":
        found.append(("time to first token", seconds(answer.ttft_s)))
    if answer.tpot_s is not None:
        found.append(("time per output token", seconds(answer.tpot_s)))
    if work.mode == "train":
        found += [(f"{name}", seconds(answer.phases_s[name])) for name in ("forward", "backward", "optimizer")]
    if answer.between_kernels_s:
        found.append(("between kernels", seconds(answer.between_kernels_s)))
    found += [
        ("throughput", throughput(answer)),
        (f"MFU, of the {computes_in(work.dtype)} peak", f"{answer.mfu:.1%}{hardware_use(answer)}"),
        ("memory", f"{gib_of(memory.total, memory.capacity)}{' a GPU' if memory.gpus > 1 else ''}"),
        ("model", f"{count(answer.parameters)} parameters"),
        ("work", quantity(answer.flops, "FLOP")),
    ]
    return found


def _bars(rows: Sequence[tuple[str, str, Sequence[tuple[int, float]]]]) -> Html:
    """Horizontal bars: name, value in words, and parts as (colour, share of the longest bar)."""
    items = []
    for name, value, pieces in rows:
        drawn = [
            tag("span", class_=f"piece k{min(colour, COLOURS - 1)}", style=f"width:{part * 100:.3f}%")
            for colour, part in pieces
        ]
        items.append(
            tag(
                "li", tag("span", name, class_="name"), tag("span", *drawn, class_="bar", aria_hidden="true"),
                tag("span", value, class_="value"),
            )
        )  # fmt: skip
    return tag("ol", *items, class_="bars")


def classes_section(answer: Prediction, classes: Sequence[str]) -> Html:
    """Time by operator class, and that in which no kernel runs."""
    waits = max(0.0, answer.latency_s - answer.gpu_busy_s)
    phases = len({r.phase for r in answer.breakdown}) > 1
    rows = [
        (f"{r.op}, {r.phase}" if phases and r.op != r.phase else r.op, r.latency_s, classes.index(r.op))
        for r in answer.breakdown
    ]
    longest = max([t for _, t, _ in rows] + [waits, 1e-12])
    total = answer.latency_s
    bars = [(name, f"{seconds(t)}, {share(t / total)}", [(colour, t / longest)]) for name, t, colour in rows]
    if waits > 1e-3 * total:
        bars.append(("between kernels", f"{seconds(waits)}, {share(waits / total)}", [(COLOURS - 1, waits / longest)]))
    heads = (
        ("class", False), ("phase", False), ("time", True), ("of GPU time", True), ("count", True),
        ("of roofline", True), ("bound", False), ("source", False),
    )  # fmt: skip
    body = [
        (
            r.op, r.phase, seconds(r.latency_s), share(r.share), f"{r.count:,.0f}", f"{r.utilization:.0%}", r.bound,
            r.source if not r.estimators else f"{r.source}: {', '.join(r.estimators)}",
        )
        for r in answer.breakdown
    ]  # fmt: skip
    caption = f"GPU time of all operators of a class, and its part of the whole {seconds(total)}."
    title = "Operator classes"
    return section("classes", "Time by operator class", figure(caption, _bars(bars)), table(title, heads, body))


def layers_section(layers: Sequence[Layer], classes: Sequence[str]) -> Html:
    """Time by block of the model, each bar made of its operator classes."""
    many_phases = len({layer.name for layer in layers}) < len(layers)
    shown = sorted(sorted(layers, key=lambda layer: -layer.total_s)[:MOST_LAYERS], key=layers.index)
    longest = max((layer.total_s for layer in layers), default=0.0) or 1.0
    total = sum(layer.total_s for layer in layers) or 1.0
    bars = [
        (
            _layer_name(layer, many_phases), f"{seconds(layer.total_s)}, {share(layer.total_s / total)}",
            [(classes.index(kind), t / longest) for kind, t in _seen(layer.classes, longest)],
        )
        for layer in shown
    ]  # fmt: skip
    heads = (
        ("block", False), ("all runs", True), ("of GPU time", True), ("runs", True), ("a run takes", True),
        ("kernels a run", True), ("most of it", False),
    )  # fmt: skip
    body = [
        (
            _layer_name(layer, many_phases, runs=False), seconds(layer.total_s), share(layer.total_s / total),
            f"{layer.runs:,.0f}", seconds(layer.total_s / layer.runs), f"{layer.kernels:,}",
            ", ".join(f"{kind} {t / layer.total_s:.0%}" for kind, t in layer.classes[:3] if t >= 5e-3 * layer.total_s),
        )
        for layer in layers
        if layer.total_s > 0
    ]  # fmt: skip
    legend = tag("ul", *(swatch(i, name) for i, name in legend_of(classes)), class_="legend")
    caption = "GPU time of each block of the model, all its runs together, in the order in which they run."
    drawn = figure(caption, _bars(bars), legend)
    return section("layers", "Time by layer", drawn, table("Blocks of the model", heads, body))


def _seen(pieces: Sequence[tuple[str, float]], longest: float) -> list[tuple[str, float]]:
    """The pieces of a bar that can be seen; the largest one always, so that no block is without a bar."""
    ranked = sorted(pieces, key=lambda piece: -piece[1])
    return [piece for piece in pieces if piece[1] / longest > 2e-3] or ranked[:1]


def _layer_name(layer: Layer, phase: bool, runs: bool = True) -> str:
    name = f"{layer.phase}: {layer.name}" if phase else layer.name
    return f"{name} x {layer.runs:,.0f}" if runs and layer.runs > 1 else name


def memory_section(answer: Prediction) -> Html:
    """What the run keeps on a GPU, against what the GPU has."""
    memory = answer.memory
    named = [
        ("weights", memory.weights), ("gradients", memory.gradients), ("optimizer state", memory.optimizer),
        ("activations", memory.activations), ("KV cache", memory.kv_cache), ("CUDA context", memory.context),
        ("workspaces", memory.workspaces),
    ]  # fmt: skip
    kept = [(name, value) for name, value in named if value > 0]
    full = max(memory.total, memory.capacity) or 1.0
    pieces = [
        tag("span", class_=f"piece k{i}", style=f"width:{value / full * 100:.3f}%") for i, (_, value) in enumerate(kept)
    ]
    place = memory.capacity / full * 100
    line = tag("span", class_="capacity", style=f"left:{place:.3f}%")
    side, at = ("left", place) if place < 60 else ("right", 100 - place)  # the words stay inside the chart
    words = tag("p", f"{gib(memory.capacity)} on the GPU", class_="has", style=f"{side}:{at:.3f}%", aria_hidden="true")
    bar = tag("div", *pieces, line, class_="stack", aria_hidden="true")
    legend = tag("ul", *(swatch(i, f"{name} {gib(value)}") for i, (name, value) in enumerate(kept)), class_="legend")
    each = " of each GPU" if memory.gpus > 1 else ""
    caption = f"{gib_of(memory.total, memory.capacity)}{each}; the line is what the GPU has."
    if memory.fraction < 1.0:
        caption += f" The run may use {may_use(memory)}."
    if memory.largest_batch:
        caption += f" Up to {memory.largest_batch:,} such {answer.entries} fit."
    body = [(name, gib(value), share(value / memory.capacity)) for name, value in kept]
    body.append(("all", gib(memory.total), share(memory.total / memory.capacity)))
    heads = (("kept", False), ("size", True), ("of the GPU", True))
    return section(
        "memory", "Memory", figure(caption, tag("div", words, bar, class_="holds"), legend),
        table("Device memory", heads, body),
        tag("p", "Not counted: fragmentation and what CUDA graphs keep.", class_="quiet"),
    )  # fmt: skip


def changes_section(changes: Sequence[Change]) -> Html:
    """What would change the answer: each change as a bar to the right (faster) or to the left (slower)."""
    widest = max((abs(math.log(c.speed)) for c in changes if c.speed), default=0.0) or 1.0
    items, body = [], []
    for change in changes:
        words = faster(change)
        note = f" ({change.note})" if change.note and change.latency_s is not None else ""
        log = math.log(change.speed) / widest if change.speed else 0.0
        side = f"left:50%;width:{log * 50:.2f}%" if log >= 0 else f"left:{50 + log * 50:.2f}%;width:{-log * 50:.2f}%"
        bar = tag("span", class_=f"swing {'k4' if log >= 0 else 'k5'}", style=side)
        items.append(
            tag(
                "li",
                tag("span", f"{change.what}:", class_="name"),
                tag("span", bar, class_="bar centre", aria_hidden="true"),
                tag("span", words, class_="value"),
            )
        )  # fmt: skip
        after = "-" if change.latency_s is None else seconds(change.latency_s)
        body.append((change.what, seconds(change.before_s), after, f"{words}{note}"))
    caption = (
        "The forecast with one thing changed. 'Faster' means speed: a run bound by bandwidth is 10 % faster with 10 %"
        " more of it. Kernels change in steps (tiles, waves), so a small change may show more or less than a large one."
    )
    heads = (("change", False), ("now", True), ("then", True), ("effect", False))
    return section(
        "changes", "What would change the answer", figure(caption, tag("ol", *items, class_="bars changes")),
        table("Changes", heads, body),
    )  # fmt: skip


def faster(change: Change) -> str:
    """A change in words: "6.1 % faster"."""
    if change.speed is None:
        return f"no forecast: {change.note}"
    if abs(change.speed - 1.0) < 5e-4:
        return "no change"
    if change.speed > 1.0:
        return f"{(change.speed - 1.0) * 100:.1f} % faster"
    return f"{(1.0 - change.speed) * 100:.1f} % slower"


def hardware_rows(gpu: GPUSpec, dtype: str) -> list[tuple[str, str, str]]:
    """What the forecast took the GPU for: name, value, source."""
    rows = [
        ("device memory bandwidth", quantity(gpu.memory_bandwidth, "B/s"), "memory_bandwidth"),
        ("device memory", gib(gpu.memory_capacity), "memory_capacity"),
        ("L2 cache", gib(gpu.l2_bytes), "l2"),
        ("streaming multiprocessors", f"{gpu.sm_count:,}", "sm_count"),
        ("boost clock", quantity(gpu.boost_clock_hz, "Hz"), "boost_clock"),
        ("power limit", f"{gpu.power_limit_w:,.0f} W", "power_limit"),
    ]
    for (unit, kind), peak in sorted(gpu.peaks.items()):
        if kind in (dtype, "fp32"):
            rows.append((f"{kind} peak, {unit}", quantity(peak, "FLOP/s"), f"peak_flops.{unit}.{kind}"))
    return [(name, value, gpu.sources.get(field, "not stated")) for name, value, field in rows]
