"""The steps of a trace, and what of each the GPU worked, waited for the host, or for other GPUs.

A step is what the job calls one ("ProfilerStep#7"); else an annotation that comes again; else a row of kernels that
comes again; else the whole trace. It begins when its host does, or when the GPU is done with what came before it, and
ends with the last of its kernels, or of its host's work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from predictor.files.records import dataclass
from predictor.profiles.linked import Linked
from predictor.profiles.recorded import STEP, Floats, Recorded, Span, Whole

#: Share of kernels that must come again for a row of them to be a step: chosen by hand, not from data.
_AGAIN = 0.95
COMMUNICATION = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast", "collective")


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """One step: microseconds from ``start`` to ``end``; ``host`` is what its host did, from when to when; ``rows`` are
    its kernels, in order of their begin.

    ``busy_us``: a kernel ran. ``waits_us``: none ran, and the next was not launched yet. ``exposed_us``: nothing but
    communication ran. ``synchronized_us``: the host waited for the GPU.
    """

    name: str
    start: float
    end: float
    host: Span
    rows: Whole
    busy_us: float
    waits_us: float
    largest_gap_us: float
    exposed_us: float
    synchronized_us: float

    @property
    def length_us(self) -> float:
        return self.end - self.start

    @property
    def host_us(self) -> float:
        """What the host worked by itself."""
        return max(0.0, self.host.end - self.host.start - self.synchronized_us)

    @property
    def bound(self) -> str:
        """ "host" where the GPU waits for its next launch longer than it works."""
        return "host" if self.waits_us > self.busy_us else "gpu"


def steps_of(linked: Linked) -> list[ProfiledStep]:
    """The steps of a trace, in order; of a trace of a CPU alone those of its operators."""
    trace = linked.trace
    launched = _launched(linked)
    steps: list[ProfiledStep] = []
    done = _busy_until(linked, launched)
    for span in _spans(trace, launched):
        rows = np.nonzero((launched >= span.start) & (launched < span.end))[0]
        steps.append(_step(linked, span, rows, done))
        if len(rows):
            done = max(done, float(trace.kernels.end[rows].max()))
    kept = [step for step in steps if len(step.rows)] or steps[:1]
    return kept


def _launched(linked: Linked) -> Floats:
    """When each kernel was launched, its call where no launch was recorded; minus infinity where nothing was."""
    trace = linked.trace
    at = np.full(len(trace.kernels), -np.inf)
    if len(trace.calls):
        at = np.where(linked.launch >= 0, trace.calls.start[linked.launch], at)
    for row in np.nonzero(np.isinf(at))[0].tolist():
        call = linked.work[row].call
        if call >= 0:
            at[row] = trace.operators.start[call]
    return at


def _busy_until(linked: Linked, launched: Floats) -> float:
    """When the GPU was done with what was launched before the trace began."""
    before = np.isinf(launched)
    if not before.any() or before.all():
        return -np.inf
    first = float(linked.trace.kernels.start[~before].min())
    early = before & (linked.trace.kernels.start <= first)
    return float(linked.trace.kernels.end[early].max()) if early.any() else -np.inf


def _step(linked: Linked, span: Span, rows: Whole, done: float) -> ProfiledStep:
    trace = linked.trace
    kernels, calls = trace.kernels, trace.calls
    waited = 0.0
    if len(calls):
        inside = (calls.start >= span.start) & (calls.start < span.end)
        waiting = [i for i in np.nonzero(inside)[0].tolist() if is_wait(trace.names.all[calls.name[i]])]
        waited = float(sum(min(calls.end[i], span.end) - calls.start[i] for i in waiting))
    first = float(kernels.start[rows].min()) if len(rows) else span.end
    start = max(span.start, min(done, first))
    end = max(span.end, float(kernels.end[rows].max())) if len(rows) else span.end
    if not len(rows):
        return ProfiledStep(span.name, start, end, span, rows, 0.0, 0.0, 0.0, 0.0, waited)
    begin, stop = kernels.start[rows], kernels.end[rows]
    # What none covers: before each kernel, from the end of all before it.
    covered = np.maximum.accumulate(np.concatenate([[start], stop[:-1]]))
    gaps = np.maximum(begin - covered, 0.0)
    launch = linked.launch[rows]
    late = np.where(launch >= 0, calls.start[launch] if len(calls) else 0.0, begin)
    waits = np.clip(np.minimum(begin, late) - covered, 0.0, gaps)
    tail = max(0.0, end - float(stop.max()))
    busy = end - start - float(gaps.sum()) - tail
    communicates = np.array([linked.work[row].kind.split(" (")[0] in COMMUNICATION for row in rows.tolist()])
    exposed = busy - union(begin[~communicates], stop[~communicates], start) if communicates.any() else 0.0
    return ProfiledStep(
        span.name, start, end, span, rows, busy, float(waits.sum()), max(float(gaps.max()), tail), exposed, waited
    )


def is_wait(name: str) -> bool:
    """Whether a call of the driver waits for the GPU: a synchronization, or a copy that does so itself."""
    low = name.lower()
    return "synchronize" in low or "memcpywithstream" in low or low.endswith(("memcpy", "memcpydtoh_v2"))


def union(start: Floats, end: Floats, least: float = -np.inf) -> float:
    """How much of time stretches cover, from ``least`` on; ``start`` (n,) in order, ``end`` (n,)."""
    if not len(start):
        return 0.0
    covered = np.maximum.accumulate(np.concatenate([[max(least, float(start[0]))], end[:-1]]))
    return float(np.maximum(end - np.maximum(start, covered), 0.0).sum())


def _spans(trace: Recorded, launched: Floats) -> Sequence[Span]:
    named = [span for span in trace.spans if span.name.startswith(STEP)]
    if named:
        return _apart(named)
    annotated = _apart(trace.spans)
    kinds = {re.sub(r"\d+", "", span.name) for span in annotated}
    if annotated and len(kinds) <= 2:
        return annotated
    return list(_repeats(trace, launched)) or [_whole(trace)]


def _apart(spans: Sequence[Span]) -> list[Span]:
    """Those that stand in no other, one after the other."""
    apart: list[Span] = []
    for span in spans:
        if not apart or span.start >= apart[-1].end:
            apart.append(span)
    return apart


def _whole(trace: Recorded) -> Span:
    hosts = [c for c in (trace.operators, trace.calls) if len(c)]
    columns = hosts or [trace.kernels]
    return Span("whole trace", min(float(c.start[0]) for c in columns), max(float(c.end.max()) for c in columns) + 1e-3)


def _repeats(trace: Recorded, launched: Floats) -> Iterator[Span]:
    """Stretches in which the same kernels are launched, one after the other; none where nothing comes again."""
    rows = np.argsort(launched, kind="stable")
    rows = rows[np.isfinite(launched[rows])]
    names, at = trace.kernels.name[rows], launched[rows]
    n = len(names)
    if n < 4:
        return
    places = np.nonzero(names == names[n // 2])[0]
    for period in sorted({int(d) for d in np.diff(places)} | {int(p - places[0]) for p in places[1:]}):
        if period > n // 2:
            break
        if (names[period:] == names[:-period]).mean() >= _AGAIN and period > 1:
            first = n % period
            starts = [*at[first::period].tolist(), float("inf")]
            whole = _whole(trace)
            for number, (start, end) in enumerate(pairwise(starts)):
                yield Span(f"repeat {number}", start, min(end, whole.end))
            return
