"""Processes that work for another one, and end when that does, however it ended."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from predictor.errors import TilecastError

#: By how much a worker gives way to its parent: chosen by hand, not from data.
_NICER = 5


class EndedError(TilecastError):
    """A worker ended before it answered."""


def begin() -> None:
    """A worker leaves Ctrl-C to its parent, and ends when that does, by SIGKILL, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def end_with_it() -> None:
        if parent is not None:
            multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_it, daemon=True).start()


class Worker:
    """A process that answers one job after the other by ``work``, a function that pickles, as jobs and answers do."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._link, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, work), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, job: object, most_s: float) -> Any:
        """The answer; EndedError where the process dies, or is killed after ``most_s`` seconds."""
        try:
            self._link.send(job)
            if self._link.poll(most_s):
                return self._link.recv()
        except (EOFError, OSError):
            raise EndedError("its process ended, as where memory is short") from None
        self.kill()
        raise EndedError(f"ended after {most_s:.0f} s: ask for less")

    def kill(self) -> None:
        """Ends it, whatever it does."""
        self.process.kill()


def _work(link: Connection, work: Callable[[Any], Any]) -> None:
    begin()
    if hasattr(os, "nice"):
        os.nice(_NICER)  # whoever it works for stays awake
    while True:
        try:
            job = link.recv()
        except EOFError:
            return
        link.send(work(job))
