"""What can go wrong, as one tree. The command line prints `str(error)` as one line and leaves with `exit_status`.

TilecastError            exit 1   anything Tilecast raises on purpose
└── RequestError         exit 2   the request is wrong: the line says the value, what was expected, the nearest choice
    ├── UnknownNameError          a name that is in no catalogue
    ├── UnsupportedError          known names that do not go together (a dtype that a GPU has no peak for)
    └── SpecError                 a file that cannot be read as what it should be (GPU YAML, model JSON, data)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class TilecastError(Exception):
    """Base of every exception that Tilecast raises on purpose; `exit_status` is what a command leaves with."""

    exit_status: ClassVar[int] = 1


class RequestError(TilecastError):
    """The request is wrong. The message is one line: the value, what was expected, the nearest valid choice."""

    exit_status: ClassVar[int] = 2


class UnknownNameError(RequestError):
    """A name that is in no catalogue (GPU, dtype, model, operator)."""


class UnsupportedError(RequestError):
    """Names that are known but do not go together, such as a dtype on a GPU that has no peak for it."""


class UnknownModelTypeError(UnsupportedError):
    """A model_type that no reader knows; its class can be traced where transformers has it."""


class SpecError(RequestError):
    """A file that cannot be read as what it should be: GPU YAML, model JSON, measured data."""


class NoHubError(SpecError):
    """A config.json that nobody could fetch: no hub answered, or none may be asked."""


def nearest(value: str, choices: Iterable[str], n: int = 3) -> tuple[str, ...]:
    """Up to `n` of `choices` that read like `value`, the closest first; empty where none does.

    A choice that begins with `value`, or the other way round, counts as close however much longer it is.
    """
    from difflib import get_close_matches  # a request without a mistake starts without it

    asked = value.strip().lower()
    by_lower = {choice.lower(): choice for choice in choices}
    close = get_close_matches(asked, by_lower, n=n, cutoff=0.5)
    if asked:
        starts = sorted((c for c in by_lower if c.startswith(asked) or asked.startswith(c)), key=lambda c: (len(c), c))
        close += [choice for choice in starts if choice not in close]
    return tuple(by_lower[choice] for choice in close[:n])


#: Characters of an error line: what a person typed may be longer. Chosen by hand, not from data.
_LONGEST = 1200


def printable(text: str) -> str:
    """``text`` with every character that a terminal would obey, or not show, as its escape: ESC becomes "\\x1b"."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(text: str) -> str:
    """``text`` on one line, without control characters; a very long one without its middle."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[:200]} ... {line[-300:]}"


# What to type to see the valid names, by the kind of thing that was looked for.
_WHERE = {"gpu": "a name of `tilecast gpus` or a YAML file"}


def unknown_name(
    kind: str, value: str, choices: Iterable[str], expected: str | None = None, option: str = ""
) -> UnknownNameError:
    """The error (returned, for the caller to raise) for a `value` that is not among `choices`.

    `kind` says what was looked for ("GPU", "dtype"); `expected` says in words what is valid and defaults to the
    choices themselves, or for a GPU to where they are listed; `option` is the one that has the value, where `kind`
    does not say it. The message is one line, such as:
    unknown GPU 'h10': expected a name of `tilecast gpus` or a YAML file; nearest: h100, h20

    >>> raise unknown_name("colour", "purpel", ["red", "purple"])
    Traceback (most recent call last):
    predictor.errors.UnknownNameError: unknown colour 'purpel': expected one of red, purple; nearest: purple
    """
    names = list(choices)
    said = expected or _WHERE.get(kind.lower()) or "one of " + ", ".join(names)
    close = nearest(value, names)
    tail = f"; nearest: {', '.join(close)}" if close else ""
    said_by = f" ({option})" if option else ""
    return UnknownNameError(f"unknown {kind} {value!r}{said_by}: expected {said}{tail}")
