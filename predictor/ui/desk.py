"""Who answers the page: processes that can be ended, so that no question stops the server or the other questions."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from predictor.errors import RequestError, TilecastError, one_line
from predictor.files.read import parse_json
from predictor.sweep.processes import EndedError, Worker
from predictor.ui import answers
from predictor.ui.fields import Field
from predictor.ui.searches import Kind, words_of_search
from predictor.ui.state import FieldError, State, TextError, read_state

#: Seconds of an answer: the longest of the catalogue on a slow machine take 5. Questions that wait: those of a hundred
#: users who type. Chosen by hand, not from data.
LONGEST_S, MOST_WAITING = 20.0, 1_000
#: Processes: a second one answers while the first is at work on what takes long.
SEATS = max(1, min(2, os.cpu_count() or 1))


class Reply(NamedTuple):
    """A status and the JSON of an answer, in ASCII: half of a character that a file holds is an escape there."""

    status: int
    text: str
    state: State | None = None


def _errors(status: int, field: str, line: str) -> Reply:
    return Reply(status, json.dumps({"errors": [{"field": field, "line": one_line(line)}]}))


def reply(fields: Sequence[Field], kinds: Mapping[str, Kind], artifacts: str | None, job: tuple[str, bytes]) -> Reply:
    """The reply to a question: its name ("answer", "details", "json" or a search's) and the body of its request."""
    name, body = job
    works: dict[str, Callable[..., Any]] = {
        "answer": answers.quick, "details": answers.detailed, "json": answers.as_json
    }  # fmt: skip
    try:
        given = parse_json(body, "the request")
    except RequestError as error:
        return _errors(400, "", str(error))
    try:
        state = read_state(given, fields)
        if name in kinds:
            words_of_search(kinds[name], state)
            return Reply(200, "", state)
        answer = works[name](state, fields, artifacts)
        return Reply(200, answer if isinstance(answer, str) else json.dumps(answer))
    except TextError as error:
        return _errors(400, error.field, str(error))
    except FieldError as error:
        return _errors(200, error.field, str(error))
    except TilecastError as error:
        return _errors(200, "", str(error))
    except (RecursionError, MemoryError):
        return _errors(200, "", "an input is nested too deep, or too large")
    except Exception as error:  # a fault of the program's: the process and its other questions live on
        return _errors(500, "", f"a fault of Tilecast's, {type(error).__name__}: {error}")


class Desk:
    """The questions that wait, and the processes that answer them.

    The newest is first: the page asks with every key, and who asks while many wait sees an answer soon. Those that are
    the same are asked once.
    """

    def __init__(self, fields: Sequence[Field], kinds: Sequence[Kind], artifacts: str | None) -> None:
        self.work = partial(reply, tuple(fields), {kind.name: kind for kind in kinds}, artifacts)
        self.free: list[Worker] = []
        self.pile: dict[tuple[str, bytes], asyncio.Future[Reply]] = {}
        self.asked: dict[tuple[str, bytes], asyncio.Future[Reply]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.workers: set[Worker] = set()
        self.threads = ThreadPoolExecutor(SEATS)

    def open(self) -> None:
        """Starts the processes."""
        self.free = [self._worker() for _ in range(SEATS)]

    def close(self) -> None:
        """Ends them."""
        for worker in self.workers:
            worker.kill()
        self.threads.shutdown(wait=False, cancel_futures=True)

    def _worker(self) -> Worker:
        worker = Worker(self.work)
        self.workers.add(worker)
        return worker

    async def ask(self, name: str, body: bytes) -> Reply:
        """The reply to one question."""
        job = (name, body)
        future = self.asked.get(job)
        if future is None:
            future = self.asked[job] = asyncio.get_running_loop().create_future()
            self.pile[job] = future
            if len(self.pile) > MOST_WAITING:
                oldest = next(iter(self.pile))
                self._say(oldest, self.pile.pop(oldest), _errors(503, "", f"{MOST_WAITING:,} newer questions wait"))
        elif job in self.pile:
            self.pile[job] = self.pile.pop(job)
        self._seat()
        return await asyncio.shield(future)

    def _say(self, job: tuple[str, bytes], future: asyncio.Future[Reply], said: Reply) -> None:
        del self.asked[job]
        if not future.done():
            future.set_result(said)

    def _seat(self) -> None:
        while self.pile and self.free:
            task = asyncio.get_running_loop().create_task(self._answer(self.free.pop(), *self.pile.popitem()))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _answer(self, worker: Worker, job: tuple[str, bytes], future: asyncio.Future[Reply]) -> None:
        try:
            said = await asyncio.get_running_loop().run_in_executor(self.threads, worker.ask, job, LONGEST_S)
        except EndedError as error:
            said = _errors(200, "", str(error))
            worker.kill()
            self.workers.discard(worker)
            worker = self._worker()
        self.free.append(worker)
        self._say(job, future, said)
        self._seat()
