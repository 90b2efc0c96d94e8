"""How far a collection is: a bar on a terminal (where rich is installed), else a plain line a minute. On stderr."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any


def duration(seconds: float) -> str:
    """ "45 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Progress:
    """Counts cases done and failed against ``total`` cases and ``budget_s`` seconds (None: no budget)."""

    def __init__(self, total: int, budget_s: float | None, quiet: bool = False, every_s: float = 60.0) -> None:
        self.total, self.budget_s, self.every_s = total, budget_s, every_s
        self.rows = self.failures = self.throttled = 0
        self._begin = self._said = time.monotonic()
        self._guard = threading.Lock()
        self._quiet = quiet
        self._bar: Any = None
        self._task: Any = None
        if not quiet:
            self._bar, self._task = _rich_bar(total)

    def left_s(self) -> float | None:
        """Seconds until the budget or the cases end, as far as can be told."""
        elapsed = time.monotonic() - self._begin
        done = self.rows + self.failures
        by_cases = elapsed / done * (self.total - done) if done else None
        by_budget = None if self.budget_s is None else max(0.0, self.budget_s - elapsed)
        known = [left for left in (by_cases, by_budget) if left is not None]
        return min(known) if known else None

    def line(self) -> str:
        left = self.left_s()
        tail = "" if left is None else f", about {duration(left)} left"
        thrown = f", {self.throttled} throttled samples thrown away" if self.throttled else ""
        return f"{self.rows} of {self.total} cases measured, {self.failures} failed{thrown}{tail}"

    def add(self, rows: int = 0, failures: int = 0, throttled: int = 0) -> None:
        with self._guard:
            self.rows += rows
            self.failures += failures
            self.throttled += throttled
            if self._bar is not None:
                self._bar.update(self._task, completed=self.rows + self.failures, description=self.line())
            elif not self._quiet and time.monotonic() - self._said >= self.every_s:
                self._said = time.monotonic()
                print(self.line(), file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """A line of its own, beside the bar."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _rich_bar(total: int) -> tuple[Any, Any]:
    """A started bar of rich's, or (None, None) off a terminal or where rich is not installed."""
    if not sys.stderr.isatty():
        return None, None
    try:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        from predictor.files.terminal import wide_console
    except ImportError:
        return None, None
    bar = Bar(BarColumn(bar_width=30), TextColumn("{task.description}"), console=wide_console(stderr=True))
    bar.start()
    return bar, bar.add_task("starting", total=total)
