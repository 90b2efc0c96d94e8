"""One worker, what it works on, and what becomes of a case: a row, a failure, or neither where it was no fault of its.

A failure is kept where the case is at fault, or may be: it is data. Captures that fail one after the other say
something of the machine, so the cases that are passed over for it stay to be done.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from microbench import libraries
from microbench.budget import Budget
from microbench.case import Case
from microbench.progress import Progress
from microbench.request import CollectionRequest
from microbench.store import Store
from microbench.supervisor import BenchWorker, CaseOutcome, WorkerError
from predictor.data.schema import CUDA_GRAPH, SUSTAINED
from predictor.errors import TilecastError

#: Captures of one kind that fail one after the other before the kind rests, and every how many of its cases one is
#: tried all the same: a success ends the rest. Chosen by hand, not from data; each failure costs a worker.
CAPTURES, RETRIED = 4, 32
#: Deaths of the worker that names kernels, in a row, after which rows go without names; and how often a case whose
#: worker was lost with its machine is begun. Chosen by hand, not from data.
_PROFILER_DEATHS, _BEGINNINGS = 4, 3


#: Longest time of compiling what a case's first call needs: nvcc takes minutes. Chosen by hand, not from data.
BUILD_S = 900.0


@dataclass(slots=True)
class Lane:
    """One worker and its queue; ``profiler``, on a GPU, is the process that looks up kernels' names."""

    worker: BenchWorker
    facts: dict[str, Any]
    store: Store
    queue: deque[Case]
    profiler: BenchWorker | None = None
    profiler_deaths: int = 0
    built: set[tuple[Any, ...]] = field(default_factory=set)
    error: TilecastError | None = None


@dataclass(slots=True)
class Captures:
    """Which kinds of cases rest from being captured: those that launch the same calls, whatever their sizes."""

    failed: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    passed_over: Counter[tuple[Any, ...]] = field(default_factory=Counter)

    def rests(self, case: Case) -> bool:
        """Whether ``case`` is to be passed over."""
        kind = _kind(case)
        if case.protocol not in (CUDA_GRAPH, SUSTAINED) or self.failed[kind] < CAPTURES:
            return False
        self.passed_over[kind] += 1
        return self.passed_over[kind] % RETRIED != 0

    def note(self, case: Case, answer: CaseOutcome) -> None:
        """Counts failures one after the other; a row ends the count."""
        if case.protocol not in (CUDA_GRAPH, SUSTAINED):
            return
        if answer.row is not None:
            self.failed[_kind(case)] = 0
        elif (answer.failure or {}).get("kind") == "not_captured":
            self.failed[_kind(case)] += 1


@dataclass(slots=True)
class Runner:
    """Has cases measured and stored, for all lanes of a collection."""

    request: CollectionRequest
    budget: Budget
    stop: threading.Event
    progress: Progress
    captures: Captures = field(default_factory=Captures)
    not_tried: int = 0
    _begun: Counter[str] = field(default_factory=Counter)

    def measure(self, lane: Lane, case: Case, samples_s: float | None = None, needed: bool = False) -> bool:
        """Has one case measured and stored; returns whether the worker had to be replaced. Raises StorageError.

        A case that the budget cuts off has not failed: it stays to be done, unless it is ``needed`` and not cut off.
        """
        if self.captures.rests(case):
            self.not_tried += 1
            return False
        if not lane.worker.alive and not self.replace(lane):  # it died after its last answer: no fault of this case
            return False
        self._build(lane, case)
        timeout_s = self._timeout_s(needed)
        kernel = self._kernel(lane, case, timeout_s)
        answer = lane.worker.ask(case, timeout_s if kernel is None else self._timeout_s(needed), samples_s, kernel)
        if self.stop.is_set() and answer.row is None:
            return False  # the worker was stopped, the case did not fail
        cut_off = answer.failure is not None and answer.failure.get("kind") == "timeout" and self.budget.left_s() <= 0
        if cut_off or (answer.lost and self._begun[case.id] < _BEGINNINGS):
            self._begun[case.id] += 1
            if case.launcher != "ceiling":
                lane.queue.appendleft(case)
            if answer.lost:
                self._say_replaced(lane, case, answer)
                self.replace(lane)
            return False
        self._keep(lane, case, answer)
        if answer.dead:
            self._say_replaced(lane, case, answer)
            self.replace(lane)
        return answer.dead

    def _build(self, lane: Lane, case: Case) -> None:
        """Has compiled what the case's library compiles at its first call, which is no part of a case's time."""
        key = libraries.build(case)
        if key is None or key in lane.built:
            return
        lane.built.add(key)
        limit_s = min(BUILD_S, max(0.1, self.budget.left_s()))
        if lane.worker.request({"case": case.to_json(), "build": True}, limit_s).dead:
            self.replace(lane)  # the case says what is wrong with it

    def _timeout_s(self, needed: bool) -> float:
        timeout_s = self.request.case_timeout_s
        return timeout_s if needed else min(timeout_s, max(0.1, self.budget.left_s()))

    def _keep(self, lane: Lane, case: Case, answer: CaseOutcome) -> None:
        counted = case.launcher != "ceiling"
        self.captures.note(case, answer)
        if answer.row is not None:
            lane.store.add_row(case, answer.row)
            if counted:
                self.progress.add(rows=1, throttled=int(answer.row.get("throttled_samples", 0)))
            return
        assert answer.failure is not None
        lane.store.add_failure(case, answer.failure, now())
        if counted:
            self.progress.add(failures=1)

    def _say_replaced(self, lane: Lane, case: Case, answer: CaseOutcome) -> None:
        self.progress.note(f"worker replaced after {case.describe()}: {(answer.failure or {}).get('reason')}")

    def _kernel(self, lane: Lane, case: Case, timeout_s: float) -> Mapping[str, Any] | None:
        """What the other process saw of the case's kernels; {} where it saw none, None where nobody was asked."""
        profiler = lane.profiler
        if profiler is None:
            return None
        try:
            if not profiler.alive:
                profiler.start()
            answer = profiler.request({"case": case.to_json()}, timeout_s)
        except WorkerError as error:
            answer = CaseOutcome(failure={"kind": "worker_died", "reason": str(error)}, dead=True)
        if answer.row is not None:
            lane.profiler_deaths = 0
            return answer.row
        if answer.dead:
            profiler.stop()
            lane.profiler_deaths += 1
            if lane.profiler_deaths >= _PROFILER_DEATHS and not self.stop.is_set():
                lane.profiler = None
                self.progress.note(f"rows go without names of kernels: {(answer.failure or {}).get('reason')}")
        return {}

    def replace(self, lane: Lane) -> bool:
        """A new worker in place of a lane's; False where an interrupt ends the run first, whatever it did to it."""
        lane.worker.stop()
        try:
            if not self.stop.is_set():
                lane.worker.start()
        except WorkerError:
            if not self.stop.is_set():
                raise
        return not self.stop.is_set()


def _kind(case: Case) -> tuple[Any, ...]:
    """What cases that launch the same calls have in common, whatever their sizes."""
    return case.launcher, case.phase, case.options, getattr(case.op, "kind", ""), getattr(case.op, "fn", "")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
