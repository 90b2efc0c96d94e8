"""Searches of the page, each a process of its own that is asked as a person would: started, looked after, ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from predictor.errors import one_line
from predictor.ui.boards import PASTED
from predictor.ui.fields import ON, Field
from predictor.ui.state import CONFIG, FieldError, State, config_of, shown_board
from predictor.words import flag

#: Searches at a time, how many are remembered, seconds after which one is ended: chosen by hand, not from data.
MOST, REMEMBERED, LONGEST_S = 2, 20, 900.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A search: the ``verb`` of the command line that does it, its words as fields ("plan.num_gpus"), and what draws
    the markup of its JSON."""

    name: str
    title: str
    verb: tuple[str, ...]
    fields: tuple[Field, ...]
    draw: Callable[[Mapping[str, Any]], str]


@dataclass(slots=True)
class Search:
    """One search that runs or ran. ``said``: its output and its errors, once it has ended."""

    kind: Kind
    command: list[str]
    process: subprocess.Popen[str]
    folder: tempfile.TemporaryDirectory[str]
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    said: tuple[str, str] = ("", "")
    cancelled: bool = False


class Searches:
    """The searches of a server. A pasted text is a file in a folder that goes with its search."""

    def __init__(self, kinds: Sequence[Kind], artifacts: str | None) -> None:
        self.kinds = {kind.name: kind for kind in kinds}
        self.artifacts = artifacts
        self.searches: dict[str, Search] = {}
        self.lock = threading.Lock()

    def start(self, name: str, state: State) -> dict[str, Any]:
        """Begins a search and says its ``key``. Raises FieldError for a wrong word, or where enough others run."""
        kind = self.kinds[name]
        config_of(state)  # so that what is wrong with these stands beside them
        board = shown_board(state)
        words = [*kind.verb, "--model", CONFIG if state.config else state.model]
        words += ["--gpu", PASTED if board.text else board.asked]
        for one in kind.fields:
            text = state.search.get(one.name, "")
            if text and text != one.default:
                words += [flag(one.word), *([] if text == ON and one.choices else [text])]
        if self.artifacts is not None:
            words += ["--artifacts", str(Path(self.artifacts).resolve())]
        with self.lock:
            if sum(search.ended is None for search in self.searches.values()) >= MOST:
                raise FieldError("", f"{MOST} searches run already: wait for one, or cancel it")
            folder = tempfile.TemporaryDirectory(prefix="tilecast-")
            for file, text in ((CONFIG, state.config), (PASTED, board.text)):
                if text:
                    (Path(folder.name) / file).write_text(text, encoding="utf-8")
            key = secrets.token_hex(8)
            self.searches[key] = self._begun(kind, words, folder)
            for old in list(self.searches)[:-REMEMBERED]:
                if self.searches[old].ended is not None:
                    del self.searches[old]
        return {"key": key, "errors": []}

    def _begun(self, kind: Kind, words: list[str], folder: tempfile.TemporaryDirectory[str]) -> Search:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.Popen(
            [sys.executable, "-m", "predictor", *words, "--json"], cwd=folder.name, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        search = Search(kind, words, process, folder)
        threading.Thread(target=_wait, args=(search,), daemon=True).start()
        return search

    def status(self, key: str) -> dict[str, Any]:
        """How far a search is: its state and seconds, then its markup or its error; empty for an unknown key."""
        search = self.searches.get(key)
        if search is None:
            return {}
        found: dict[str, Any] = {"seconds": (search.ended or time.monotonic()) - search.began, "errors": []}
        if search.ended is None:
            return found | {"state": "running"}
        if search.cancelled:
            return found | {"state": "cancelled"}
        if search.process.returncode != 0:
            error = error_beside(search.kind, search.said[1], search.process.returncode)
            return found | {"state": "failed", "errors": [error]}
        command = subprocess.list2cmdline(["tilecast", *search.command])
        return found | {"state": "done", "html": search.kind.draw(json.loads(search.said[0])), "command": command}

    def cancel(self, key: str) -> dict[str, Any]:
        """Ends a search with its process; what it has said is dropped."""
        search = self.searches.get(key)
        if search is not None and search.ended is None:
            search.cancelled = True
            _kill(search)
        return self.status(key)

    def close(self) -> None:
        """Ends them all."""
        for key in list(self.searches):
            self.cancel(key)


def _wait(search: Search) -> None:
    """Until the process has ended; one that takes too long is ended."""
    try:
        search.said = search.process.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        _kill(search)
        search.said = ("", f"error: ended after {LONGEST_S:.0f} s: hold more words to values")
        search.process.communicate()
    search.ended = time.monotonic()
    search.folder.cleanup()


def _kill(search: Search) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(search.process.pid, signal.SIGKILL)  # it leads a session of its own, its workers with it


def error_beside(kind: Kind, said: str, status: int) -> dict[str, str]:
    """The last line that a search ``said`` on stderr, and the field whose flag it names first."""
    lines = [line for line in said.splitlines() if line.strip()]
    line = one_line(lines[-1].removeprefix("error: ")) if lines else f"ended with {status}"
    names = {flag(one.word): one.name for one in kind.fields} | {"--model": "model"}
    named = (names[word] for word in re.findall(r"--[a-z][a-z-]*", line) if word in names)
    return {"field": next(named, f"{kind.name}."), "line": line}
