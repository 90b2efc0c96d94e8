"""Connections of the page's server: none that says nothing keeps a place that another one needs."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds that a connection has for the head of a request, for its body, and for taking an answer; a page on the same
#: machine needs thousandths. Chosen by hand, not from data.
HEAD_S, BODY_S, TAKE_S = 5.0, 5.0, 60.0
#: Connections at a time, and files beside them: chosen by hand, not from data.
MOST, BESIDE = 8_000, 100


def most_connections() -> int:
    """How many connections there may be; the process gets as many files as the system lets it have."""
    try:
        import resource
    except ImportError:  # no such limit on this system
        return MOST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < MOST + BESIDE:
        most = MOST + BESIDE if hard == resource.RLIM_INFINITY else min(hard, MOST + BESIDE)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
            soft = max(soft, most)
    return max(1, min(MOST, soft - BESIDE))


class Guarded(H11Protocol):  # type: ignore[misc]
    """uvicorn's connection with a time for each of its states; the one that waits longest makes room for a new one."""

    most = MOST
    waiting: ClassVar[dict[Guarded, None]] = {}  # those without a request under way, the longest waiting first

    def connection_made(self, transport: Any) -> None:
        """A new connection."""
        self.timer: asyncio.TimerHandle | None = None
        self.state = ""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            oldest = next(iter(self.waiting), self)
            oldest.transport.abort()
            self.waiting.pop(oldest, None)
        self._look()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self._stop()
        self.state = "lost"
        self.waiting.pop(self, None)
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """A piece of a request."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """The next request may come."""
        super().on_response_complete()
        self.state = ""  # what comes next has its own time
        self._look()

    def _look(self) -> None:
        """Sets the time for the state that the connection is in, where it is a new one."""
        if self.transport.is_closing() or self.state == "lost":
            return
        busy = self.cycle is not None and not self.cycle.response_complete
        state = "head" if not busy else "body" if self.conn.their_state is h11.SEND_BODY else "answer"
        if state == self.state:
            return
        self.state = state
        self._stop()
        if state == "head":
            self.waiting[self] = None
        else:
            self.waiting.pop(self, None)
        self.timer = self.loop.call_later({"head": HEAD_S, "body": BODY_S, "answer": TAKE_S}[state], self._late)

    def _late(self) -> None:
        """Too late; an answer that is still being made is no fault of the connection's."""
        if self.state == "answer" and not self.transport.get_write_buffer_size():
            self.timer = self.loop.call_later(TAKE_S, self._late)
        else:
            self.transport.abort()

    def _stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
