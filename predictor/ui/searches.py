"""Searches of the page, each a process of its own: started, looked after, ended.

A search gets the state of the page as a structure. Its words are values: none is an option or a file.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from predictor.errors import RequestError, TilecastError, nearest, one_line
from predictor.files.arguments import Parser
from predictor.files.records import dataclass
from predictor.request.parse import flag
from predictor.sweep.processes import EndedError, Worker
from predictor.ui.boards import PASTED
from predictor.ui.fields import Field
from predictor.ui.state import CONFIG, FieldError, State, config_of, shown_board, typed

#: Searches at a time, how many are remembered, seconds after which one is ended: chosen by hand, not from data.
MOST, REMEMBERED, LONGEST_S = 2, 20, 900.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A search: the ``verb`` of the command line that does it, its words as fields ("plan.num_gpus"), what draws the
    markup of its JSON, and the verb itself: ``add`` gives a parser its words, ``run`` prints its answer."""

    name: str
    title: str
    verb: tuple[str, ...]
    fields: tuple[Field, ...]
    draw: Callable[[Mapping[str, Any]], str]
    add: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def words_of_search(kind: Kind, state: State) -> dict[str, str]:
    """The words of a search that differ from their defaults, as texts. Raises FieldError, also for the words of the
    form: the model, the board."""
    config_of(state)
    shown_board(state)
    known = {field.name: field for field in kind.fields}
    words = {}
    for name, text in state.search.items():
        if not name.startswith(f"{kind.name}."):
            continue
        if name not in known:
            close = nearest(name, known, 1)
            tail = f"; nearest: {close[0]}" if close else ""
            raise FieldError(f"{kind.name}.", f"{name}: the page has no such word{tail}")
        if text == known[name].default:
            continue
        try:
            known[name].read(text)
        except RequestError as error:
            raise FieldError(name, str(error)) from None
        words[known[name].word] = text
    return words


def found_by(kind: Kind, artifacts: str | None, state: State) -> dict[str, Any]:
    """The answer of a search, in the process that runs it: its markup and its command line, or what is wrong."""
    said = io.StringIO()
    try:
        words = words_of_search(kind, state)
        board = shown_board(state)
        parser = Parser(prog=f"tilecast {' '.join(kind.verb)}", add_help=False)
        kind.add(parser)
        values = {"model": config_of(state), "gpu": board.spec, "artifacts": artifacts, "json": True}
        with contextlib.redirect_stdout(said):
            kind.run(parser.read(words, values))
        html = kind.draw(json.loads(said.getvalue()))
    except FieldError as error:
        return {"state": "failed", "errors": [{"field": error.field, "line": one_line(str(error))}]}
    except (TilecastError, RecursionError, MemoryError) as error:
        return {"state": "failed", "errors": [error_beside(kind, str(error) or type(error).__name__)]}
    command = ["tilecast", *kind.verb, "--model", CONFIG if state.config else state.model]
    command += ["--gpu", PASTED if board.text else board.asked]
    for name, text in words.items():
        command += typed(name, text)
    return {"state": "done", "errors": [], "html": html, "command": shlex.join(command)}


def error_beside(kind: Kind, line: str) -> dict[str, str]:
    """The line of an error, and the field whose flag it names first."""
    names = {flag(field.word): field.name for field in kind.fields} | {"--model": "model"}
    named = (names[word] for word in re.findall(r"--[a-z][a-z-]*", line) if word in names)
    return {"field": next(named, f"{kind.name}."), "line": one_line(line)}


@dataclass(slots=True)
class Search:
    """One search that runs or ran; ``answer`` once it has ended."""

    kind: Kind
    worker: Worker
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    answer: dict[str, Any] = field(default_factory=dict)
    cancelled: bool = False


class Searches:
    """The searches of a server, which end with it."""

    def __init__(self, kinds: Sequence[Kind], artifacts: str | None) -> None:
        self.kinds = {kind.name: kind for kind in kinds}
        self.artifacts = artifacts
        self.searches: dict[str, Search] = {}
        self.lock = threading.Lock()

    def start(self, name: str, state: State) -> dict[str, Any]:
        """Begins a search of words that `words_of_search` took, and says its ``key``, or that enough others run."""
        kind = self.kinds[name]
        with self.lock:
            if sum(search.ended is None for search in self.searches.values()) >= MOST:
                line = f"{MOST} searches run already: wait for one, or cancel it"
                return {"errors": [{"field": "", "line": line}]}
            key = secrets.token_hex(8)
            search = self.searches[key] = Search(kind, Worker(partial(found_by, kind, self.artifacts)))
            for old in list(self.searches)[:-REMEMBERED]:
                if self.searches[old].ended is not None:
                    del self.searches[old]
        threading.Thread(target=_wait, args=(search, state), daemon=True).start()
        return {"key": key, "errors": []}

    def status(self, key: str) -> dict[str, Any]:
        """How far a search is: its state and seconds, then its markup or its error; empty for an unknown key."""
        search = self.searches.get(key)
        if search is None:
            return {}
        status: dict[str, Any] = {"seconds": (search.ended or time.monotonic()) - search.began, "errors": []}
        if search.ended is None:
            return status | {"state": "running"}
        return status | ({"state": "cancelled"} if search.cancelled else search.answer)

    def cancel(self, key: str) -> dict[str, Any]:
        """Ends a search with its process; what it has said is dropped."""
        search = self.searches.get(key)
        if search is not None and search.ended is None:
            search.cancelled = True
            search.worker.kill()
        return self.status(key)

    def close(self) -> None:
        """Ends them all."""
        for key in list(self.searches):
            self.cancel(key)


def _wait(search: Search, state: State) -> None:
    """Until the process has answered or ended; one that takes too long is ended."""
    try:
        search.answer = search.worker.ask(state, LONGEST_S)
    except EndedError as error:
        search.answer = {"state": "failed", "errors": [{"field": f"{search.kind.name}.", "line": str(error)}]}
    search.worker.kill()
    search.worker.process.join()
    search.ended = time.monotonic()
