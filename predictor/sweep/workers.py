"""Who answers the parts of a sweep: this process, processes of this machine, or the workers of a Ray cluster.

Each yields (part, its rows) as they come, in any order. A worker that dies (out of memory, killed) takes no part with
it: what it had not handed over is run again, and what kills its worker every time is run alone, half of it at a time,
until the point that does it is a row with a note.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import Any, NamedTuple

from predictor.errors import TilecastError
from predictor.files.commands import check_working_folder
from predictor.files.extras import require
from predictor.sweep.answers import FAILED, Row, answer
from predictor.sweep.processes import begin

#: Times that a part is run among others before it is run alone. Chosen by hand, not from data: a worker that dies
#: takes what runs beside it along, and once or twice may be another's fault.
TRIES = 3
#: Parts handed out for each worker, so that none waits for its next. Chosen by hand, not from data.
AHEAD = 2

#: Parts and their rows; closing it ends the workers.
Rows = Generator[tuple[int, list[Row]], None, None]


class Task(NamedTuple):
    """A part: its number, its points, and the number of the first of them."""

    number: int
    points: Sequence[Mapping[str, Any]]
    first: int


def here(tasks: Sequence[Task], artifacts: str | None) -> Rows:
    """One part after the other in this process."""
    for task in tasks:
        yield task.number, answer(task.points, task.first, artifacts)


# --------------------------------------------------------------------------------------------------------- processes


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Processes that begin here are born deaf to Ctrl-C: one that comes before `begin` has run would be told by each
    with a traceback. For this process it waits until the end."""
    resource_tracker.ensure_running()  # its start would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=begin)


def in_processes(tasks: Sequence[Task], artifacts: str | None, jobs: int) -> Rows:
    """Parts in ``jobs`` processes of this machine."""
    check_working_folder()
    left = {task.number: task for task in tasks}
    tried: Counter[int] = Counter()
    while ready := [task for task in left.values() if tried[task.number] < TRIES]:
        with contextlib.closing(_until_one_dies(ready, artifacts, jobs, tried)) as finished:
            for number, rows in finished:
                del left[number]
                yield number, rows
    for task in left.values():
        yield task.number, _alone(task, artifacts)


def _until_one_dies(tasks: Sequence[Task], artifacts: str | None, jobs: int, tried: Counter[int]) -> Rows:
    """Parts of one pool, which ends with its first worker that dies; ``tried`` counts what was out then."""
    waiting, out = deque(tasks), dict[Future[list[Row]], Task]()
    pool = _pool(min(jobs, len(tasks)))
    try:
        while waiting or out:
            try:
                while waiting and len(out) < jobs * AHEAD:
                    task = waiting[0]
                    with _unheard():
                        out[pool.submit(answer, task.points, task.first, artifacts)] = task
                    waiting.popleft()
            except BrokenProcessPool:
                if not out:
                    tried[waiting[0].number] += 1
                    return
            broken = []
            for future in wait(out, return_when=FIRST_COMPLETED).done:
                task = out.pop(future)
                try:
                    rows = future.result()
                except BrokenProcessPool:
                    broken.append(task)
                else:
                    yield task.number, rows
            if broken:
                # What is done is handed over before the pool is given up; the rest is run again.
                for future, task in out.items():
                    if future.done() and future.exception() is None:
                        yield task.number, future.result()
                    else:
                        broken.append(task)
                tried.update(task.number for task in broken)
                return
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _alone(task: Task, artifacts: str | None) -> list[Row]:
    """The rows of a part in a process of its own; the point that kills it is a row with a note."""
    pool = _pool(1)
    try:
        with _unheard():
            future = pool.submit(answer, task.points, task.first, artifacts)
        return future.result()
    except BrokenProcessPool:
        if not task.points:
            raise TilecastError("workers end before they do anything; expected --jobs 1, or more memory") from None
        _alone(Task(task.number, (), task.first), artifacts)
        return _halves(task, lambda half: _alone(half, artifacts))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _halves(task: Task, run: Callable[[Task], list[Row]]) -> list[Row]:
    """Both halves of a part by ``run``; of a single point, the row that says that its worker died."""
    if len(task.points) == 1:
        note = f"{FAILED}its worker died every time, as where memory is short"
        return [{"point": task.first, **task.points[0], "note": note}]
    middle = len(task.points) // 2
    first = Task(task.number, task.points[:middle], task.first)
    second = Task(task.number, task.points[middle:], task.first + middle)
    rows: list[Row] = [*run(first), *run(second)]
    return rows


# --------------------------------------------------------------------------------------------------------------- ray


def in_ray(tasks: Sequence[Task], artifacts: str | None, jobs: int | None) -> Rows:
    """Parts on a Ray cluster: that of RAY_ADDRESS, or of `ray start` on this machine, else one that is begun here.

    At most ``jobs`` parts are out at once (None: twice the cluster's processors).
    """
    ray = require("ray")
    begun = not ray.is_initialized()
    if begun:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray's own warning asks
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    run = ray.remote(max_retries=0)(answer)
    most = jobs or AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting, out, tried = deque(tasks), dict[Any, Task](), Counter[int]()

    def alone(task: Task) -> list[Row]:
        try:
            rows: list[Row] = ray.get(run.remote(task.points, task.first, artifacts))
            return rows
        except ray.exceptions.RayError:
            return _halves(task, alone)

    try:
        while waiting or out:
            while waiting and len(out) < most:
                task = waiting.popleft()
                out[run.remote(task.points, task.first, artifacts)] = task
            for reference in ray.wait(list(out), num_returns=1)[0]:
                task = out.pop(reference)
                try:
                    rows = ray.get(reference)
                except ray.exceptions.RayError:  # its worker, or the node of it, is gone
                    tried[task.number] += 1
                    if tried[task.number] < TRIES:
                        waiting.append(task)
                        continue
                    rows = alone(task)
                yield task.number, rows
    finally:
        if begun:
            ray.shutdown()
