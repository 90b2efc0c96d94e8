"""What long work says while it is under way: a line on stderr where that is a terminal, after a second, then gone.

Standard output is the answer's alone. Nothing is drawn where stderr is a pipe or a file, nor where `--json` goes into
one: nobody looks on then.
"""

from __future__ import annotations

import argparse
import sys
from _thread import allocate_lock
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import threading

    from rich.progress import Progress

#: Seconds of silence that a person takes for work. Chosen by hand, not from data.
PATIENCE_S = 1.0


class UnderWay:
    """A line that says ``what`` is done and for how long, as a context; with ``total`` a bar of ``unit`` done of all,
    and the time left. ``arguments``: the words of the command, None where its answer is no stream."""

    def __init__(
        self, what: str, arguments: argparse.Namespace | None = None, *, total: int = 0, done: int = 0, unit: str = ""
    ) -> None:
        self.what, self.unit = what, unit
        self.total, self.done = total, done
        self._lock = allocate_lock()
        self._drawn: Progress | None = None
        self._timer: threading.Timer | None = None
        if _watched(arguments):
            import threading  # what nobody looks at starts without it

            self._timer = threading.Timer(PATIENCE_S, self._draw)
            self._timer.daemon = True

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def at(self, done: int, total: int | None = None) -> None:
        """So much is done, of so much."""
        with self._lock:
            self.done, self.total = done, self.total if total is None else total
            if self._drawn is not None:
                self._drawn.update(self._drawn.task_ids[0], completed=self.done, total=self.total or None)

    def close(self) -> None:
        """Takes the line away."""
        if self._timer is None:
            return
        self._timer.cancel()
        with self._lock:
            self._timer = None
            if self._drawn is not None:
                self._drawn.stop()
                self._drawn = None

    def _draw(self) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        from predictor.files.terminal import wide_console

        with self._lock:
            if self._timer is None:  # done meanwhile
                return
            counted = (BarColumn(), MofNCompleteColumn(), TextColumn(self.unit), TimeRemainingColumn(),
                       TextColumn("left")) if self.total else (TimeElapsedColumn(),)  # fmt: skip
            self._drawn = Progress(
                SpinnerColumn(), TextColumn(self.what, markup=False), *counted, console=wide_console(stderr=True),
                transient=True, redirect_stdout=False,
            )  # fmt: skip
            self._drawn.add_task("", total=self.total or None, completed=self.done)
            self._drawn.start()


def _watched(arguments: argparse.Namespace | None) -> bool:
    """Whether a person sees stderr while the work runs."""
    if sys.stderr is None or not sys.stderr.isatty():
        return False
    return not getattr(arguments, "json", False) or (sys.stdout is not None and sys.stdout.isatty())
