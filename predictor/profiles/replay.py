"""A step again, with other times of its kernels: the host as it was, the GPU as it would be, and who waits for whom.

The host's own work between its calls is that of the trace. A kernel begins when it is launched and when what was before
it on its stream is done, each with the delay that the trace shows; where the trace shows a longer wait, it is one for
work of another stream. A call that waits for the GPU ends when that is done. With the times of the trace itself the
step takes what it took.
"""

from __future__ import annotations

import numpy as np

from predictor.profiles.linked import Linked
from predictor.profiles.recorded import Floats
from predictor.profiles.steps import ProfiledStep, is_wait

#: A kernel that begins so much after its launch and its stream waits for another stream: microseconds, several times
#: the 4 to 9 us from a launch to its kernel in `docs/how-to/traces.md`'s traces. Chosen by hand, not from data.
_ELSEWHERE = 20.0


class Replay:
    """A step, ready to be run with other times."""

    def __init__(self, linked: Linked, step: ProfiledStep) -> None:
        trace, self._step = linked.trace, step
        kernels, calls = trace.kernels, trace.calls
        rows = step.rows
        launch = linked.launch[rows]
        at = np.where(launch >= 0, calls.start[launch] if len(calls) else 0.0, kernels.start[rows])
        self._order = np.lexsort((kernels.start[rows], at))
        self._at: list[float] = at[self._order].tolist()
        self._start: list[float] = kernels.start[rows][self._order].tolist()
        self._length: list[float] = kernels.length[rows][self._order].tolist()
        self._lane: list[int] = kernels.lane[rows][self._order].tolist()
        self._on_host = linked.of_cpu
        self._waits: list[tuple[float, float]] = []
        if len(calls):
            inside = np.nonzero((calls.start >= step.host.start) & (calls.start < step.host.end))[0].tolist()
            self._waits = [
                (float(calls.start[i]), float(min(calls.end[i], step.host.end))) for i in inside
                if is_wait(trace.names.all[calls.name[i]])
            ]  # fmt: skip
        self._delays()

    def _delays(self) -> None:
        """Of each kernel, how long after its launch, and after what is before it, it began, and what that is."""
        ends = [s + n for s, n in zip(self._start, self._length, strict=True)]
        last: dict[int, int] = {}
        self._before: list[int] = []
        before_end = []
        for i, lane in enumerate(self._lane):
            self._before.append(last.get(lane, -1))
            before_end.append(ends[last[lane]] if lane in last else self._step.start)
            last[lane] = i
        slack = [s - max(a, b) for s, a, b in zip(self._start, self._at, before_end, strict=True)]
        late = [a >= b for a, b in zip(self._at, before_end, strict=True)]
        usual = [min(value, _ELSEWHERE) for value in slack]
        launch = float(np.median([value for value, after in zip(usual, late, strict=True) if after] or [0.0]))
        gap = float(np.median([value for value, after in zip(usual, late, strict=True) if not after] or [0.0]))
        self._launch_delay, self._gap = [], []
        for i, (start, at, end, after) in enumerate(zip(self._start, self._at, before_end, late, strict=True)):
            if slack[i] > _ELSEWHERE:
                other = self._elsewhere(i, start, ends)
                if other >= 0 and ends[other] > max(at, end):
                    self._before[i], end, after = other, ends[other], False
            self._launch_delay.append(start - at if after else min(launch, start - at))
            self._gap.append(start - end if not after else min(gap, start - end))

    def _elsewhere(self, i: int, start: float, ends: list[float]) -> int:
        """The kernel of another stream, launched before, whose end is the last before ``start``; -1 where none is."""
        near = [j for j in range(max(0, i - 400), i) if self._lane[j] != self._lane[i] and ends[j] <= start]
        return max(near, key=lambda j: ends[j]) if near else -1

    def run(self, length: Floats) -> float:
        """Microseconds of the step where its kernels take ``length`` (n,), in the order of the step's rows."""
        lengths = length[self._order].tolist()
        step = self._step
        now, seen = step.host.start, step.host.start  # the host's time, and that of the trace
        waits = [*self._waits, (float("inf"), float("inf"))]
        next_wait, done, done_then = 0, step.start, step.start
        ends: list[float] = []
        for i, at in enumerate(self._at):
            while waits[next_wait][0] < at:
                now, seen = self._waited(waits[next_wait], now, seen, done, done_then)
                next_wait += 1
            now, seen = now + max(0.0, at - seen), max(seen, at)
            if self._on_host:
                seen = max(seen, at + self._length[i])
            before = ends[self._before[i]] if self._before[i] >= 0 else step.start
            start = max(now + self._launch_delay[i], before + self._gap[i])
            ends.append(start + lengths[i])
            done = max(done, ends[-1])
            done_then = max(done_then, self._start[i] + self._length[i])
        for wait in waits[next_wait:-1]:
            now, seen = self._waited(wait, now, seen, done, done_then)
        host = now + max(0.0, step.host.end - seen)
        return float(max(host, done) - step.start)

    @staticmethod
    def _waited(wait: tuple[float, float], now: float, seen: float, done: float, then: float) -> tuple[float, float]:
        """The host's time and the trace's after a call that waits: it ends so long after the GPU is done as it did."""
        start, end = wait
        now += max(0.0, start - seen)
        if then > end:  # it waited for something else than all of the GPU's work
            return now + max(0.0, end - max(start, seen)), max(seen, end)
        after = max(0.0, end - max(start, min(then, end)))
        return max(now, done) + after, max(seen, end)
