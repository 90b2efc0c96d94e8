"""`microbench collect`: workers on every device, cases from the plan, rows into the store, until the clock runs out.

One process writes; each device has one worker process and one thread that talks to it. Boards of one kind share one
queue and one folder.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from microbench import calibration, ceilings, collectives, environment, management, prices
from microbench.budget import COLLECTIVE_SHARE, Budget
from microbench.capability import Target, target_of
from microbench.case import Case
from microbench.lane import Lane, Runner, now
from microbench.progress import Progress
from microbench.request import CollectionRequest, Summary
from microbench.storage import StorageError, storage_error
from microbench.store import Store
from microbench.supervisor import BenchWorker, WorkerError
from microbench.timing_settings import Settings
from predictor.errors import RequestError, TilecastError

#: Worker deaths in a row, with no row between them, after which a device is given up: chosen by hand, not from data.
_DEATHS = 8


class Collection:
    """One run of `collect`. `run` does all of it; `interrupt` ends it early and loses nothing."""

    def __init__(self, request: CollectionRequest, quiet: bool = False) -> None:
        self.request = request
        self._quiet = quiet
        self._begin = time.monotonic() if request.begin is None else request.begin
        self._budget = Budget(request.budget_s, self._begin)
        self._first_round: Counter[str] = Counter()
        self._stop = threading.Event()
        self._workers: list[BenchWorker] = []
        self._lanes: list[Lane] = []
        self._stores: dict[str, Store] = {}
        self._progress = Progress(0, request.budget_s, quiet=True)
        self._runner = Runner(request, self._budget, self._stop, self._progress)
        self._warnings: list[str] = []

    # ------------------------------------------------------------------------------------------------------- the way

    def run(self) -> Summary:
        """Collects. Raises TilecastError, one line: no device, a locked folder, a full disk."""
        try:
            if not self._open():
                return Summary(stopped_by="interrupt", seconds=time.monotonic() - self._begin)
            summary = Summary(devices=sorted(self._stores))
            self._queue_cases(summary)
            error = self._work(first_round=True) if self.request.budget_s is not None else None
            if error is None:
                self._ceilings()
                if self._with_collectives():
                    self._budget.keep(COLLECTIVE_SHARE)
                error = self._work() or self._collectives()
            if not isinstance(error, StorageError):
                self._close(summary)
            if error is not None:
                raise error
            return summary
        finally:
            self._progress.close()
            self._unlock_clocks()
            for worker in self._workers:
                worker.stop()
            for store in self._stores.values():
                store.close()

    def interrupt(self) -> None:
        """Ends the run: workers are stopped, rows stay. Safe in a signal handler."""
        self._stop.set()
        for worker in self._workers:
            worker.kill()

    def record(self) -> dict[str, Any]:
        """Settings and environment of every device, for tracking."""
        return {device: store.run for device, store in self._stores.items()}

    # --------------------------------------------------------------------------------------------------------- steps

    def _open(self) -> bool:
        """Starts a worker on every device; False where the run was interrupted before all of them were ready.

        A board that does not open is left out with a warning, where another one does.
        """
        pairs = self._spawned()
        dead: list[WorkerError] = []
        for worker, profiler in pairs:
            try:
                facts = worker.wait_ready()
            except WorkerError as error:
                if self._stop.is_set():
                    return False
                dead.append(error)
                continue
            store = self._store(facts)
            self._lanes.append(Lane(worker, facts, store, deque(), self._ready(profiler)))
            self._lock_clocks(worker)
        if dead and not self._lanes:
            raise dead[0]
        for dead_lane in dead:
            self._warn(f"{dead_lane}; the others go on")
        for store in self._stores.values():
            for op, why in store.broken.items():
                self._warn(f"{op} is left out: {why}; move the file away to measure it anew")
        return not self._stop.is_set()

    def _ready(self, profiler: BenchWorker | None) -> BenchWorker | None:
        """``profiler`` once it is ready; None where it does not get so: rows go without names of kernels."""
        try:
            if profiler is not None:
                profiler.wait_ready()
        except WorkerError as error:
            if not self._stop.is_set():
                self._warn(f"rows go without names of kernels: {error}")
            return None
        return profiler

    def _spawned(self) -> list[tuple[BenchWorker, BenchWorker | None]]:
        """Workers, begun; on GPUs each with a process that looks up kernels' names."""
        request = self.request
        if request.engine == "ray":
            from microbench.ray_engine import remote_workers

            pairs: list[tuple[BenchWorker, BenchWorker | None]] = [(worker, None) for worker in remote_workers(request)]
        else:
            apart = request.device == "cuda" and request.settings.get("profile", True)
            pairs = []
            for entry in visible(request.device):
                worker = BenchWorker(request.device, entry, request.threads, request.settings)
                named = (request.device, entry, 0, request.settings, "microbench.profile_worker")
                pairs.append((worker, BenchWorker(*named) if apart else None))
        for worker, profiler in pairs:
            for process in filter(None, (worker, profiler)):
                self._workers.append(process)
                process.spawn()
        return pairs

    def _warn(self, text: str) -> None:
        self._warnings.append(text)
        print(f"warning: {text}", file=sys.stderr)

    def _store(self, facts: dict[str, Any]) -> Store:
        device = str(facts["id"])
        if device not in self._stores:
            settings = {
                "ops": list(self.request.ops or []), "dtypes": list(self.request.dtypes or []),
                "budget_s": self.request.budget_s, **self.request.settings,
            }  # fmt: skip
            run = {
                "run": uuid.uuid4().hex[:12], "started": now(), "settings": settings,
                "device": {key: value for key, value in facts.items() if key not in ("pid", "environment")},
                "environment": facts["environment"], "machine": environment.machine(),
                "packages": environment.versions(), "locked_clock_hz": self.request.lock_clocks_hz,
            }  # fmt: skip
            store = Store(self.request.out, device, str(facts["stack"]), run)
            store.open(self.request.wait_s, self._stop.is_set)
            self._stores[device] = store
        return self._stores[device]

    def _lock_clocks(self, worker: BenchWorker) -> None:
        hz = self.request.lock_clocks_hz
        if hz is None:
            return
        board = management.entry_board(worker.visible) if worker.kind == "cuda" else None
        if board is None or not board.lock_clocks(hz):
            raise RequestError(
                f"--lock-clocks: the clock of {worker.kind} {worker.visible} cannot be locked: expected an NVIDIA GPU "
                "and administrator's rights"
            )

    def _ceilings(self) -> None:
        """The ceilings, by the first worker of each kind of board; then the device file where it is needed."""
        for store in self._stores.values():
            lane = next((lane for lane in self._lanes if lane.store is store and lane.error is None), None)
            if lane is None:
                continue
            ends = self._budget.ceilings_end()
            for number, case in enumerate(self._ceiling_cases(lane)):
                needed = number < ceilings.NEEDED and not ceilings.in_catalogue(store.device)
                if self._stop.is_set() or not (needed or self._budget.clock() < ends):
                    break
                if store.wants(case, self.request.retry_failures):
                    self._runner.measure(lane, case, needed=needed)
            self._write_device(lane)

    def _ceiling_cases(self, lane: Lane) -> list[Case]:
        """Those that a device file cannot be made without, and of the others this part's."""
        probes = ceilings.cases(target_of(lane.facts, len(self._lanes)), int(lane.facts["cache_bytes"]))
        needed = ceilings.NEEDED
        return probes[:needed] + [case for case in probes[needed:] if self.request.takes(case)]

    def _write_device(self, lane: Lane) -> None:
        store = lane.store
        known = ceilings.spec_of(store.path, store.device)  # None where the file is broken, too: it is made again
        if ceilings.in_catalogue(store.device) or (known is not None and not store.new_rows):
            return
        document = ceilings.device_document(ceilings.with_clock(lane.facts), store.rows("ceiling"))
        if document is not None:
            ceilings.write_device(store.path, document)

    def _queue_cases(self, summary: Summary) -> None:
        """The plan of each device, less what is done: boards of one kind share one queue."""
        queues: dict[str, deque[Case]] = {}
        for lane in self._lanes:
            device = lane.store.device
            if device not in queues:
                target = target_of(lane.facts, len(self._lanes))
                cases = self._cases(target)
                queued = [c for c in cases if lane.store.wants(c, self.request.retry_failures)]
                summary.cases += len(cases)
                queues[device] = deque(queued)
                self._first_round[device] = _distinct(queued)
            lane.queue = queues[device]
        self._budget.set_up()
        todo = sum(len(queue) for queue in queues.values())
        left = None if self.request.budget_s is None else max(0.0, self._budget.left_s())
        self._progress = self._runner.progress = Progress(todo, left, self._quiet)
        known = summary.cases - todo
        self._progress.note(
            f"{', '.join(sorted(self._stores))}: {len(self._lanes)} worker(s), {todo} cases"
            + (f", {known} done before" if known else "")
        )

    def _cases(self, target: Target) -> list[Case]:
        """What is asked for of one device, collectives apart."""
        request = self.request
        if request.cases is not None:
            cases = calibration.runnable(request.cases, target)
        else:
            timed = Settings(**request.settings)
            budget_s = None if request.calibration_rows is not None or request.max_cases else request.budget_s
            cases = prices.deepened(target, request.ops, request.dtypes, request.sweeps, budget_s, timed).cases
            if request.calibration_rows is not None:
                cases = calibration.in_turns(calibration.choose(cases, target, request.calibration_rows))
        alone = [case for case in cases if case.launcher != "collective"][: request.max_cases]
        return [case for case in alone if request.takes(case)]

    def _work(self, first_round: bool = False) -> TilecastError | None:
        """Runs every lane, or the first round of each; returns the first error that ended one."""
        serve = self._serve_first if first_round else self._serve
        lanes = [lane for lane in self._lanes if lane.error is None]
        threads = [threading.Thread(target=serve, args=(lane,), daemon=True) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # short, so that a signal is handled
        errors = [lane.error for lane in lanes if lane.error is not None]
        fatal = [error for error in errors if isinstance(error, StorageError)]
        if fatal or (errors and len(errors) == len(lanes)):
            return (fatal or errors)[0]
        for error in errors:
            self._warn(f"{error}; the others go on")
        return None

    def _serve_first(self, lane: Lane) -> None:
        """The first round: a quick case of every operator, with the samples that there is time for."""
        device = lane.store.device
        self._serve(lane, lambda: self._first_round[device] > 0 and self._budget.first_round_left_s() > 0)

    def _serve(self, lane: Lane, go_on: Callable[[], bool] = lambda: True) -> None:
        """Case after case on one worker, until the queue, the clock, the run or ``go_on`` ends."""
        deaths = 0
        while not self._stop.is_set() and self._budget.left_s() > 0 and go_on():
            try:
                case = lane.queue.popleft()
            except IndexError:
                return
            try:
                samples_s = self._budget.samples_s(self._first_round[lane.store.device])
                self._first_round[lane.store.device] -= 1
                deaths = deaths + 1 if self._runner.measure(lane, case, samples_s) else 0
                if deaths >= _DEATHS:
                    raise WorkerError(f"{lane.store.device}: {deaths} workers died one after the other: given up")
            except TilecastError as error:
                lane.error = error
                if isinstance(error, StorageError):
                    self._stop.set()
                return
            except OSError as error:  # the disk refused even to take back what did not fit
                lane.error = storage_error(lane.store.path, error)
                self._stop.set()
                return

    def _with_collectives(self) -> bool:
        """Whether there are boards of one kind to measure collectives over, and they are asked for."""
        request = self.request
        asked = request.ops is None or "collective" in request.ops
        asked &= request.cases is None and request.calibration_rows is None and request.engine == "local"
        return asked and sum(lane.error is None for lane in self._lanes) >= 2 and len(self._stores) == 1

    def _collectives(self) -> TilecastError | None:
        """Collectives need boards together: a process a rank, so many as the case has, when no other is at work."""
        self._budget.spend()
        if not self._with_collectives() or self._stop.is_set() or self._budget.left_s() <= 0:
            return None
        for worker in self._workers:
            worker.stop()
        try:
            lanes = collectives.in_node(self.request, [lane for lane in self._lanes if lane.error is None])
        except RequestError as error:
            self._warn(str(error))
            return None
        for number, lane in enumerate(lanes):
            self._workers.append(lane.worker)
            self._lanes.append(lane)
            if self._budget.left_s() > 0 and self._runner.replace(lane):
                until = self._budget.clock() + self._budget.left_s() / (len(lanes) - number)
                self._serve(lane, lambda until=until: self._budget.clock() < until)  # type: ignore[misc]
            lane.worker.stop()
            if lane.error is not None:
                return lane.error
        return None

    def _close(self, summary: Summary) -> None:
        """Files compacted, ceilings raised to what rows reached, counts."""
        summary.seconds = time.monotonic() - self._begin
        summary.not_tried, summary.warnings = self._runner.not_tried, list(self._warnings)
        queues = {id(lane.queue): lane.queue for lane in self._lanes}.values()
        summary.left = self._runner.not_tried + sum(len(queue) for queue in queues)
        over = summary.left and self._budget.left_s() <= 0
        summary.stopped_by = "interrupt" if self._stop.is_set() else "budget" if over else "done"
        for store in self._stores.values():
            summary.new_rows += store.new_rows
            summary.new_failures += store.new_failures
            ended = {"ended": now(), "rows": store.new_rows, "failures": store.new_failures}
            store.finish(ended | {"stopped_by": summary.stopped_by})
            raise_ceilings(store)
            rows = store.all_rows()
            summary.rows += len(rows)
            lane = next(lane for lane in self._lanes if lane.store is store)
            lacking = {case.launcher for case in lane.queue} - {str(row["launcher"]) for row in rows}
            summary.without_rows = sorted({*summary.without_rows, *lacking})
            retried = self.request.retry_failures
            summary.ceilings_left += sum(store.wants(case, retried) for case in self._ceiling_cases(lane))

    def _unlock_clocks(self) -> None:
        if self.request.lock_clocks_hz is None:
            return
        for lane in self._lanes:
            board = management.entry_board(lane.worker.visible)
            if board is not None:
                board.unlock_clocks()


def raise_ceilings(store: Store) -> None:
    """Raises the device file's ceilings to what a row reached: they were measured, and maybe in a busy moment."""
    spec = ceilings.spec_of(store.path, store.device)
    if spec is None or ceilings.in_catalogue(store.device):
        return
    lifts = ceilings.lifts(store.all_rows(), spec)
    if not lifts:
        return
    ceilings.write_device(store.path, ceilings.lifted(store.path / ceilings.DEVICE_FILE, spec, lifts))


def visible(kind: str) -> Sequence[str]:
    """One entry a device: "" for a processor, entries of CUDA_VISIBLE_DEVICES or 0 .. n-1 for GPUs.

    Raises RequestError where no GPU is found.
    """
    if kind == "cpu":
        return ("",)
    named = os.environ.get("CUDA_VISIBLE_DEVICES", os.environ.get("HIP_VISIBLE_DEVICES"))
    if named is not None:
        entries = [entry.strip() for entry in named.split(",") if entry.strip()]
    else:
        entries = [str(index) for index in range(management.count())]
    if not entries:
        raise RequestError(
            "no NVIDIA or AMD GPU is visible here: expected one, or --device cpu for this machine's processor"
        )
    return entries


def _distinct(cases: Sequence[Case]) -> int:
    """How many cases at the beginning are each of another launcher."""
    seen: set[str] = set()
    for case in cases:
        if case.launcher in seen:
            break
        seen.add(case.launcher)
    return len(seen)
