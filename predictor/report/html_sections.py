"""The parts of the page that are bars and tables: headline, classes, layers, memory, what would change the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from predictor.forecast.sensitivity import Change
from predictor.hardware.gpu import GPUSpec
from predictor.report.detail import Layer
from predictor.report.drawing import COLOURS
from predictor.report.pages import bars, figure, render, section, table
from predictor.report.throughput import hardware_use, throughput
from predictor.report.wording import LEVEL_WORDS, count, gib, gib_of, may_use, quantity, seconds, share, span
from predictor.request.precision import computes_in
from predictor.simulate.answer import Prediction

#: Blocks drawn as bars: those that take longest. The table has them all. Both were chosen by looking at pages.
MOST_LAYERS = 24
MOST_COLUMNS = 6  # figures beside each other below the answer, on a wide screen


def headline(answer: Prediction) -> Markup:
    """The answer, its interval, and the figures that go with it."""
    memory, figures = answer.memory, _figures(answer)
    columns = math.ceil(len(figures) / math.ceil(len(figures) / MOST_COLUMNS))  # rows as full as they can be
    missing = "" if memory.fits else gib(memory.missing)
    return render(
        "answer.html", time=seconds(answer.latency_s), what=_what(answer), figures=figures, columns=columns,
        missing=missing, why=f"{memory.reason or 'the total is too large'}. {memory.advice}",
        level=LEVEL_WORDS, **_interval(answer),
    )  # fmt: skip


def _what(answer: Prediction) -> str:
    work = answer.workload
    many = work.batch > 1
    tokens, cache = f" of {work.seq_len:,} tokens{' each' * many}", f" with {work.given_len:,} tokens in the cache"
    if work.prompt_lens:
        tokens = f" of {sum(work.prompt_lens):,} tokens in all"
        cache = f" with {sum(work.prompt_lens):,} tokens in the cache in all"
    elif many:
        cache += " each"
    if not answer.lengths_matter:
        tokens = ""
    sequences = f"{work.batch:,} {answer.entries if many else answer.entries.removesuffix('s')}"
    made = 0 if work.serving is None else work.serving.output_len
    output = f"{made:,} token{'s' * (made > 1)}"
    passes = f"{work.steps:,} forward passes" if work.steps > 1 else "a forward pass"
    return {
        "forward": f"for {passes} over {sequences}{tokens}",
        "prefill": f"for the prefill of {sequences}{tokens}",
        "decode": f"for one decode step of {sequences}{cache}",
        "generate": f"to generate {output} for {sequences}, prompt{'s' * many}{tokens}",
        "train": f"for a training step of {sequences}{tokens}",
    }[work.mode]


def _interval(answer: Prediction) -> dict[str, Any]:
    """The range as a bar from its low end to its high one, with the forecast as a mark: their places in percent."""
    if answer.interval_s is None:
        return {"ends": ()}
    low, high = answer.interval_s
    room = (high - low) * 0.15 or answer.latency_s * 0.1
    left, right = max(0.0, low - room), high + room
    places = {"low": low, "high": high, "point": answer.latency_s}
    at = {name: f"{(value - left) / (right - left) * 100:.2f}%" for name, value in places.items()}
    return {"ends": (seconds(low), seconds(high)), "span": span(low, high), **at}


def bound_words(answer: Prediction) -> str:
    """What bounds the run."""
    if answer.launch_bound:
        return f"the CPU: the GPU waits for it {seconds(answer.host_s)} of {seconds(answer.latency_s)}"
    return ", ".join(f"{name} {part:.0%}" for name, part in answer.bound_shares.items() if part >= 5e-3)


def _figures(answer: Prediction) -> list[tuple[str, str]]:
    work, memory = answer.workload, answer.memory
    figures = [("bound by", bound_words(answer))]
    if answer.ttft_s is not None and work.mode == "generate":
        figures.append(("time to first token", seconds(answer.ttft_s)))
    if answer.tpot_s is not None:
        figures.append(("time per output token", seconds(answer.tpot_s)))
    if work.training is not None:
        figures += [(f"{name}", seconds(answer.phases_s[name])) for name in ("forward", "backward", "optimizer")]
    if answer.between_kernels_s:
        figures.append(("between kernels", seconds(answer.between_kernels_s)))
    figures += [
        ("throughput", throughput(answer)),
        (f"MFU, of the {computes_in(work.dtype)} peak", f"{answer.mfu:.1%}{hardware_use(answer)}"),
        ("memory", f"{gib_of(memory.total, memory.capacity)}{' a GPU' if memory.gpus > 1 else ''}"),
        ("model", f"{count(answer.parameters)} parameters"),
        ("work", quantity(answer.flops, "FLOP")),
    ]
    return figures


def _piece(colour: int, part: float) -> tuple[str, str]:
    """A piece of a bar: its class, and its width as a share of the longest bar."""
    return f"piece k{min(colour, COLOURS - 1)}", f"width:{part * 100:.3f}%"


def classes_section(answer: Prediction, classes: Sequence[str]) -> Markup:
    """Time by operator class, and that in which no kernel runs."""
    waits = max(0.0, answer.latency_s - answer.gpu_busy_s)
    phases = len({r.phase for r in answer.breakdown}) > 1
    rows = [
        (f"{r.op}, {r.phase}" if phases and r.op != r.phase else r.op, r.latency_s, classes.index(r.op))
        for r in answer.breakdown
    ]
    longest = max([t for _, t, _ in rows] + [waits, 1e-12])
    total = answer.latency_s
    shown = [(name, f"{seconds(t)}, {share(t / total)}", [_piece(colour, t / longest)]) for name, t, colour in rows]
    if waits > 1e-3 * total:
        words = f"{seconds(waits)}, {share(waits / total)}"
        shown.append(("between kernels", words, [_piece(COLOURS - 1, waits / longest)]))
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
    return section("classes", "Time by operator class", figure(caption, [bars(shown)]), table(title, heads, body))


def layers_section(layers: Sequence[Layer], classes: Sequence[str]) -> Markup:
    """Time by block of the model, each bar made of its operator classes."""
    many_phases = len({layer.name for layer in layers}) < len(layers)
    shown = sorted(sorted(layers, key=lambda layer: -layer.total_s)[:MOST_LAYERS], key=layers.index)
    longest = max((layer.total_s for layer in layers), default=0.0) or 1.0
    total = sum(layer.total_s for layer in layers) or 1.0
    drawn = [
        (
            _layer_name(layer, many_phases), f"{seconds(layer.total_s)}, {share(layer.total_s / total)}",
            [_piece(classes.index(kind), t / longest) for kind, t in _seen(layer.classes, longest)],
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
    caption = "GPU time of each block of the model, all its runs together, in the order in which they run."
    return section(
        "layers", "Time by layer", figure(caption, [bars(drawn)], classes), table("Blocks of the model", heads, body)
    )


def _seen(pieces: Sequence[tuple[str, float]], longest: float) -> list[tuple[str, float]]:
    """The pieces of a bar that can be seen; the largest one always, so that no block is without a bar."""
    ranked = sorted(pieces, key=lambda piece: -piece[1])
    return [piece for piece in pieces if piece[1] / longest > 2e-3] or ranked[:1]


def _layer_name(layer: Layer, phase: bool, runs: bool = True) -> str:
    name = f"{layer.phase}: {layer.name}" if phase else layer.name
    return f"{name} x {layer.runs:,.0f}" if runs and layer.runs > 1 else name


def memory_section(answer: Prediction) -> Markup:
    """What the run keeps on a GPU, against what the GPU has."""
    memory = answer.memory
    named = [
        ("weights", memory.weights), ("gradients", memory.gradients), ("optimizer state", memory.optimizer),
        ("activations", memory.activations), ("KV cache", memory.kv_cache), ("CUDA context", memory.context),
        ("workspaces", memory.workspaces),
    ]  # fmt: skip
    kept = [(name, value) for name, value in named if value > 0]
    full = max(memory.total, memory.capacity) or 1.0
    place = memory.capacity / full * 100
    # the words stay inside the chart
    at = f"left:{place:.3f}%" if place < 60 else f"right:{100 - place:.3f}%"
    drawn = render(
        "memory.html", has=gib(memory.capacity), place=at, capacity=f"{place:.3f}%",
        widths=[f"{value / full * 100:.3f}%" for _, value in kept],
    )  # fmt: skip
    legend = [f"{name} {gib(value)}" for name, value in kept]
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
        "memory", "Memory", figure(caption, [drawn], legend),
        table("Device memory", heads, body),
        Markup('<p class="quiet">Not counted: fragmentation and what CUDA graphs keep.</p>'),
    )  # fmt: skip


def changes_section(changes: Sequence[Change]) -> Markup:
    """What would change the answer: each change as a bar to the right (faster) or to the left (slower)."""
    widest = max((abs(math.log(c.speed)) for c in changes if c.speed), default=0.0) or 1.0
    items, body = [], []
    for change in changes:
        words = faster(change)
        note = f" ({change.note})" if change.note and change.latency_s is not None else ""
        log = math.log(change.speed) / widest if change.speed else 0.0
        side = f"left:50%;width:{log * 50:.2f}%" if log >= 0 else f"left:{50 + log * 50:.2f}%;width:{-log * 50:.2f}%"
        items.append((f"{change.what}:", words, [(f"swing {'k4' if log >= 0 else 'k5'}", side)]))
        after = "-" if change.latency_s is None else seconds(change.latency_s)
        body.append((change.what, seconds(change.before_s), after, f"{words}{note}"))
    caption = (
        "The forecast with one thing changed. 'Faster' means speed: a run bound by bandwidth is 10 % faster with 10 %"
        " more of it. Kernels change in steps (tiles, waves), so a small change may show more or less than a large one."
    )
    heads = (("change", False), ("now", True), ("then", True), ("effect", False))
    return section(
        "changes", "What would change the answer", figure(caption, [bars(items, "changes")]),
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
