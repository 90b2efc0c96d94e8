"""What the page holds, as one dictionary of texts: the link is it, and requests, command line and Python follow."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from predictor.errors import RequestError, SpecError, UnknownNameError, unknown_name
from predictor.files.read import parse_json
from predictor.files.records import dataclass
from predictor.hardware.gpu import gpus_of
from predictor.models.built import ModelConfig
from predictor.models.built.load import aliases, catalogue, catalogue_name, config_from_dict
from predictor.request.parse import flag
from predictor.request.request import Request
from predictor.ui.boards import LONGEST as LONGEST_BOARD
from predictor.ui.boards import MOST, PASTED, Board, board_of
from predictor.ui.fields import LONGEST, ON, Field

#: The mode of a page that names none: the request's default.
MODE = str(Request.__dataclass_fields__["mode"].default)
#: What stands for a pasted config.json in a command line.
CONFIG = "config.json"
#: Characters of a pasted config.json: ten times the longest that is published. Chosen by hand, not from data.
LONGEST_CONFIG = 200_000
#: Characters of a name of a field: twice the longest. Chosen by hand, not from data.
LONGEST_NAME = 50
_LONGEST = {"config": LONGEST_CONFIG, "gpu": LONGEST_BOARD}
#: A word of a search: "plan.num_gpus".
SEARCH_WORD = re.compile(r"(plan|serve)\.[a-z_]{1,40}")


class FieldError(RequestError):
    """A request that is wrong in one field; ``field`` names it ("gpu.1" is the second board, "" none in particular)."""

    def __init__(self, field: str, line: str) -> None:
        super().__init__(line)
        self.field = field


class TextError(FieldError):
    """A text that no field can hold: too long, or with what is no character of a text."""


@dataclass(frozen=True, slots=True)
class State:
    """The whole page: ``model`` a name, or ``config`` the text of a config.json; ``gpus`` as `board_of` reads them;
    ``words`` the fields that differ from their defaults, as typed; ``shown`` is the board that is taken apart, and
    ``search`` what a search is asked, by `predictor.ui.searches`."""

    model: str
    config: str
    gpus: tuple[str, ...]
    words: Mapping[str, str]
    shown: int = 0
    search: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def mode(self) -> str:
        """The mode that is asked for."""
        return self.words.get("mode", MODE)


def read_state(given: object, fields: Sequence[Field]) -> State:
    """The state of what a page sent: {"model", "config", "gpu": [...], and any word}. Raises FieldError."""
    if not isinstance(given, dict):
        raise FieldError("", "the page sent no state; expected an object of texts")
    for name, value in given.items():
        _check_text("", name, LONGEST_NAME)
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                _check_text("gpu.0" if name == "gpu" else name, text, _LONGEST.get(name, LONGEST))
    known = {field.name: field for field in fields}
    boards = given.get("gpu", [])
    if not isinstance(boards, list) or not all(isinstance(board, str) for board in boards):
        raise FieldError("gpu.0", "gpu: expected a list of texts")
    words: dict[str, str] = {}
    search: dict[str, str] = {}
    for name, value in given.items():
        if name in ("model", "config", "gpu", "shown"):
            continue
        if isinstance(value, str) and SEARCH_WORD.fullmatch(str(name)):
            if value.strip():
                search[name] = value.strip()
            continue
        if name not in known:
            raise FieldError("", str(unknown_name("word", str(name), sorted(known))))
        if not isinstance(value, str):
            raise FieldError(name, f"{flag(name)}: expected a text")
        if value.strip() and value.strip() != known[name].default:
            words[name] = value.strip()
    texts = {name: given.get(name, "") for name in ("model", "config")}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise FieldError(name, f"{name}: expected a text")
    mode = words.get("mode", known["mode"].default)
    taken = {name: value for name, value in words.items() if not known[name].modes or mode in known[name].modes}
    shown = given.get("shown", "0")
    if not (isinstance(shown, str) and shown.isascii() and shown.isdecimal() and len(shown) < 4):
        raise FieldError("", f"shown: {str(shown)[:20]!r} is no board's place; expected 0 for the first")
    asked = tuple(board.strip() for board in boards)
    place = min(int(shown), max(0, len(asked) - 1))
    return State(texts["model"].strip(), texts["config"].strip(), asked, taken, place, search)


def _check_text(field: str, text: str, most: int) -> None:
    """TextError for a text of more than ``most`` characters, with NUL, or with half of a character (a surrogate)."""
    if len(text) > most:
        raise TextError(field, f"{field or 'a name'}: {len(text):,} characters; expected at most {most:,}")
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise TextError(field, f"{field or 'a name'}: holds NUL or half of a character; expected a text")


def write_link(state: State) -> str:
    """The state as the part of an address behind "#": what differs from the defaults alone."""
    pairs = [("model", state.model)] if state.model else []
    pairs += [("config", state.config)] if state.config else []
    shown = [("shown", str(state.shown))] if state.shown else []
    return urlencode(
        [*pairs, *(("gpu", board) for board in state.gpus), *state.words.items(), *shown, *state.search.items()]
    )


def read_link(text: str, fields: Sequence[Field]) -> State:
    """The state of such a part of an address; words that nobody knows raise FieldError."""
    given: dict[str, Any] = {"gpu": []}
    for name, value in parse_qsl(text.removeprefix("#"), keep_blank_values=True):
        if name == "gpu":
            given["gpu"].append(value)
        elif name in given:
            raise FieldError("", f"the link says {name[:LONGEST_NAME]!r} twice; expected once")
        else:
            given[name] = value
    return read_state(given, fields)


# ------------------------------------------------------------------------------------------------ what follows from it


def config_of(state: State) -> str | ModelConfig:
    """The model: a name of the catalogue, or the pasted config. Raises FieldError; a path is not read."""
    if state.config:
        return _pasted(state.config)
    # The catalogue's own name: a file or folder that is called as an alias is not read, and nothing is fetched.
    try:
        name = catalogue_name(state.model)
    except UnknownNameError as error:
        raise FieldError("model", str(error)) from None
    if name is None:
        every = (*catalogue(), *aliases())
        expected = "a name of `tilecast models`, or a config.json pasted"
        raise FieldError("model", str(unknown_name("model", state.model, every, expected)))
    return name


def _pasted(text: str) -> ModelConfig:
    if len(text) > LONGEST_CONFIG:
        raise FieldError("config", f"{CONFIG}: {len(text):,} characters; expected at most {LONGEST_CONFIG:,}")
    try:
        data = parse_json(text, CONFIG)
        if not isinstance(data, dict):
            raise SpecError(f"{CONFIG}: expected an object, found {type(data).__name__}")
        _check_text("config", json.dumps(data, ensure_ascii=False), 2 * LONGEST_CONFIG)
        return config_from_dict(data, "config", CONFIG)
    except RequestError as error:
        raise FieldError("config", str(error)) from None


def boards_of(state: State) -> tuple[Board | FieldError, ...]:
    """The boards, in order; what is none is the error that says why. Raises FieldError for none, and for too many."""
    if not state.gpus:
        raise FieldError("gpu.0", "gpu: expected at least one board, such as h100")
    if len(state.gpus) > MOST:
        raise FieldError(f"gpu.{MOST}", f"gpu: {len(state.gpus)} boards; expected at most {MOST} side by side")
    return tuple(_board(place, asked) for place, asked in enumerate(state.gpus))


def _board(place: int, asked: str) -> Board | FieldError:
    try:
        return board_of(asked)
    except RequestError as error:
        return FieldError(f"gpu.{place}", str(error))


def shown_board(state: State) -> Board:
    """The board that is taken apart. Raises FieldError where it is none."""
    board = boards_of(state)[state.shown]
    if isinstance(board, FieldError):
        raise board
    return board


def words_of(state: State, fields: Sequence[Field]) -> dict[str, Any]:
    """The words as `predictor.predict` takes them. Raises FieldError."""
    known = {field.name: field for field in fields}
    words = {}
    for name, text in state.words.items():
        try:
            words[name] = known[name].read(text)
        except RequestError as error:
            raise FieldError(name, str(error)) from None
    return words


def blamed(error: RequestError, fields: Sequence[Field], place: int) -> FieldError:
    """The error of a request with the field that it is about: the first flag that its line names, else the board."""
    if isinstance(error, FieldError):
        return error
    line = str(error)
    names = {flag(field.name): field.name for field in fields}
    names |= {"--gpu": f"gpu.{place}", "--model": "model"}
    for option in re.findall(r"--[a-z][a-z-]*", line):
        if option in names:
            return FieldError(names[option], line)
    for field in fields:
        if line.startswith((f"{field.label} ", f"unknown {field.label} ", f"{field.name} ")):
            return FieldError(field.name, line)
    return FieldError("", line)


def typed(name: str, value: str) -> list[str]:
    """A word as a person types it; a value that begins as an option does is told apart by "="."""
    if value == ON:
        return [flag(name)]
    return [f"{flag(name)}={value}"] if value.startswith("-") else [flag(name), value]


def command_of(state: State, place: int = 0, artifacts: str | None = None) -> str:
    """The command line that gives the answer of one board; pasted texts are files beside it."""
    board = board_of(state.gpus[place])
    words = ["predict", "--model", CONFIG if state.config else state.model]
    words += ["--gpu", PASTED if board.text else board.asked]
    for name, value in state.words.items():
        words += typed(name, value)
    if artifacts is not None:
        words += ["--artifacts", artifacts]
    return shlex.join(words)


def python_of(state: State, fields: Sequence[Field], place: int = 0, artifacts: str | None = None) -> str:
    """The same in Python."""
    board = board_of(state.gpus[place])
    words = words_of(state, fields)
    if artifacts is not None:
        words["artifacts"] = artifacts
    given = [repr(CONFIG if state.config else state.model), repr(PASTED if board.text else board.asked)]
    given += [f"{name}={value!r}" for name, value in words.items()]
    return f"import tilecast\n\nanswer = tilecast.predict({', '.join(given)})\nprint(answer.latency_ms)\n"


def request_of(state: State, board: Board, fields: Sequence[Field], artifacts: str | None) -> Request:
    """The request of one board."""
    gpu = board.spec if board.text or gpus_of(board.asked) == 1 else board.asked  # an instance says how many GPUs
    return Request(config_of(state), gpu, **words_of(state, fields), artifacts=artifacts)
