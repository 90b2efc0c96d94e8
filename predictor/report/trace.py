"""A forecast as a Chrome trace: JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Format: "Trace Event Format" (Google, 2016), complete events ("X") with microseconds, and metadata ("M"). Two threads:
the CPU, which launches, and a GPU stream, which runs kernels. A slice a repetition of a block holds its kernels. A step
of training on many GPUs is `predictor.report.trace_pipeline`'s: a process a stage of the pipeline.

What is written out, so that a file stays small enough to open:

* A pass that stands for several like it (micro-batches, decode steps) is written once; one slice stands for the rest.
* Of a block that repeats, the first repetitions and the last are written: as many as keep the file under
  `MAX_KERNELS` kernels, all of them where they fit. One slice stands for those between. Times are right all the same.
* Where that is still too much, kernels end at `MAX_KERNELS`: blocks after them are one slice each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from predictor import __version__
from predictor.files.outputs import GENERATOR
from predictor.forecast.forecast import Forecast
from predictor.kernels.base import KernelTable
from predictor.simulate.answer import Prediction
from predictor.simulate.breakdown import shape_text
from predictor.simulate.kernel_times import BlockSchedule, schedule
from predictor.simulate.times import TimedStage

#: Kernels that are written out at most; each may have a launch beside it. Guards against files that no viewer opens,
#: chosen by hand, not from data.
MAX_KERNELS = 20_000

CPU, GPU = 1, 2
Event = dict[str, Any]


def to_trace(forecast: Forecast, most: int = MAX_KERNELS) -> str:
    """The JSON text of the trace of a forecast, with at most ``most`` kernels written out."""
    if forecast.step is not None:
        from predictor.report.trace_pipeline import pipeline_events  # a trace of one GPU starts without it

        return _document(forecast, pipeline_events(forecast, most), most)
    answer, whole = forecast.prediction, forecast.ran
    scheduled = [schedule(timed) for timed in whole]
    writer = _Writer(repetitions_written([entry for blocks in scheduled for entry in blocks], most), most)
    at = 0.0
    for timed, blocks in zip(whole, scheduled, strict=True):
        at = writer.stage(timed, blocks, at)
    return _document(forecast, [*_metadata(answer), *writer.events], most, writer.kernels)


def _document(forecast: Forecast, events: Sequence[Event], most: int, kernels: int | None = None) -> str:
    """The JSON text of events in time; metadata first. ``kernels``: written out (None: every event that is no pass)."""
    answer = forecast.prediction
    slices = sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"]))
    document = {
        "generator": f"{GENERATOR} {__version__}",
        "traceEvents": [*(e for e in events if e["ph"] == "M"), *slices],
        "displayTimeUnit": "ms",
        "otherData": {
            "model": answer.model,
            "gpu": answer.gpu,
            "latency_ms": answer.latency_ms,
            "tilecast": __version__,
            "kernels_written": sum("operator" in e["args"] for e in slices) if kernels is None else kernels,
            "kernels_at_most": most,
            "rule": "a forecast, not a measurement; a slice '... more' stands for repetitions that are not written out",
        },
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


def repetitions_written(blocks: Sequence[BlockSchedule], most: int) -> int:
    """Repetitions of each block that can be written with ``most`` kernels in all; at least 2, the first and last."""

    def kernels(repetitions: int) -> int:
        return sum(len(entry.nodes) * min(entry.segment.repeat, repetitions) for entry in blocks)

    deepest = max((entry.segment.repeat for entry in blocks), default=2)
    low, high = 2, max(2, deepest)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if kernels(middle) <= most else (low, middle - 1)
    return low


def _metadata(answer: Prediction) -> list[Event]:
    stream = "stream 0"
    named = [
        (CPU, "process_name", {"name": "CPU"}),
        (CPU, "process_sort_index", {"sort_index": 0}),
        (CPU, "thread_name", {"name": "launches"}),
        (GPU, "process_name", {"name": f"GPU {answer.gpu}"}),
        (GPU, "process_sort_index", {"sort_index": 1}),
        (GPU, "thread_name", {"name": stream if answer.workload.parallelism.num_gpus == 1 else f"{stream}, rank 0"}),
    ]
    return [{"ph": "M", "pid": pid, "tid": 1, "ts": 0, "name": name, "args": args} for pid, name, args in named]


class _Writer:
    """Collects the events of a run. ``repetitions`` of each block are written, ``most`` kernels in all."""

    def __init__(self, repetitions: int, most: int) -> None:
        self.repetitions = repetitions
        self.most = most
        self.kernels = 0
        self.events: list[Event] = []

    def stage(self, timed: TimedStage, blocks: Sequence[BlockSchedule], at: float) -> float:
        """The passes of a stage, the first of them written out; returns when the last one ends."""
        stage, each_s = timed.stage, timed.each_s
        end = at + timed.timeline.total_s
        args = {"phase": stage.phase, "stands for": _number(stage.weight)}
        self._slice(GPU, stage.label, "pass", at, end, args)
        for entry in blocks:
            self._block(timed.table, entry, at)
        for name, wait_s in stage.waits:
            self._slice(CPU, name, "host", end, end + wait_s, {})
            end += wait_s
        at += each_s
        more = stage.weight - 1.0
        if more > 1e-9:
            self._slice(GPU, f"{stage.label}: {_number(more)} more", "more", at, at + more * each_s, {})
            at += more * each_s
        return at

    def _block(self, table: KernelTable, entry: BlockSchedule, at: float) -> None:
        repeat = entry.segment.repeat
        room = (self.most - self.kernels) // len(entry.nodes)
        if repeat <= min(self.repetitions, room):
            first, last = repeat, False
        else:
            first = max(0, min(self.repetitions, room) - 1)
            last = room > first
        for repetition in range(first):
            self._repetition(table, entry, repetition, at)
        if repeat - last > first:
            self._between(entry, first, repeat - last, at)
        if last:
            self._repetition(table, entry, repeat - 1, at)

    def _between(self, entry: BlockSchedule, first: int, end: int, at: float) -> None:
        """One slice for the repetitions from ``first`` up to ``end``, not written out."""
        (issued, done), (all_issued, all_done) = entry.state(first), entry.state(end)
        name = f"{entry.block.name}: {end - first} more"
        kernels = {"kernels": (end - first) * len(entry.nodes)}
        if all_issued > issued:
            self._slice(CPU, name, "more", at + issued, at + all_issued, kernels)
        start = float(entry.kernels(first).start_s[0])
        self._slice(GPU, name, "more", at + max(start, done), at + all_done, kernels)

    def _repetition(self, table: KernelTable, entry: BlockSchedule, repetition: int, at: float) -> None:
        block, times = entry.block, entry.kernels(repetition)
        name = block.name if entry.segment.repeat == 1 else f"{block.name} {repetition}"
        issue, issued = (at + times.issue_s).tolist(), (at + times.issued_s).tolist()
        start, end = (at + times.start_s).tolist(), (at + times.end_s).tolist()
        self._slice(GPU, name, "block", start[0], end[-1], {})
        if issued[-1] > issue[0]:
            self._slice(CPU, name, "block", issue[0], issued[-1], {})
        for j, (place, row) in enumerate(zip(entry.nodes, entry.rows, strict=True)):
            node = block.nodes[place]
            label = node.name or node.op.label
            estimator = table.estimators[row] or "roofline"
            args = {
                "operator": node.op.label, "shape": shape_text(node.op), "phase": node.phase, "FLOP": node.op.flops(),
                "bytes": node.op.bytes_moved(), "source": estimator,
                "after its launch, us": round(max(0.0, start[j] - issued[j]) * 1e6, 3),
            }  # fmt: skip
            self._slice(GPU, label, node.op.label, start[j], end[j], args)
            if issued[j] > issue[j]:
                self._slice(CPU, label, "launch", issue[j], issued[j], {"framework calls": node.host_calls})
        self.kernels += len(entry.nodes)

    def _slice(self, thread: int, name: str, category: str, start: float, end: float, args: dict[str, Any]) -> None:
        """A complete event. Times are rounded to nanoseconds at both ends, so that neighbours never overlap."""
        first, last = round(start * 1e9), round(end * 1e9)
        self.events.append(
            {
                "ph": "X", "pid": thread, "tid": 1, "name": name, "cat": category, "ts": first / 1e3,
                "dur": max(0, last - first) / 1e3, "args": args,
            }
        )  # fmt: skip


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
