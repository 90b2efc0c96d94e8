"""The fields of the page: every word of a request, with the help that the command line gives it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from predictor.errors import RequestError, nearest
from predictor.files.records import dataclass
from predictor.ops.routing import word_of
from predictor.request.options import Option
from predictor.request.parse import flag, is_number

#: Characters of a field: more are a slip of the mouse. Chosen by hand, not from data.
LONGEST = 4_000
#: What a word that is on or off says on the page.
SWITCH = OFF, ON = "no", "yes"


@dataclass(frozen=True, slots=True)
class Field:
    """One word: ``choices`` where only these are valid (empty: anything), ``whole`` where it is a whole number,
    ``modes`` that take it (empty: all). ``common``: what a person asks first; the rest is folded away."""

    name: str
    help: str
    default: str
    choices: tuple[str, ...] = ()
    whole: bool = False
    real: bool = False
    modes: tuple[str, ...] = ()
    common: bool = False

    @property
    def word(self) -> str:
        """The word itself; a search's field is named "plan.num_gpus"."""
        return self.name.rpartition(".")[2]

    @property
    def label(self) -> str:
        """The word as the command line has it, without its dashes."""
        return flag(self.word).removeprefix("--")

    def read(self, text: str) -> Any:
        """The value of what was typed; RequestError, one line that begins with the flag, where it is none."""
        text = text.strip()
        if len(text) > LONGEST:
            raise RequestError(f"{flag(self.word)}: {len(text):,} characters; expected at most {LONGEST:,}")
        if self.choices and text not in self.choices:
            close = nearest(text, self.choices, n=1)
            tail = f"; nearest: {close[0]}" if close else ""
            raise RequestError(f"{flag(self.word)} {text!r}: expected one of {', '.join(self.choices)}{tail}")
        if self.choices == SWITCH:
            return text == ON
        if self.whole:
            if not (text.removeprefix("-").isdecimal() and text.isascii()) or len(text) > 30:
                raise RequestError(f"{flag(self.word)} {text!r}: expected a whole number, such as 32")
            return int(text)
        if self.real:
            try:
                return float(text)
            except ValueError:
                raise RequestError(f"{flag(self.word)} {text!r}: expected a number, such as 0.9") from None
        form, expected = _VALUES.get(self.word, (None, ""))
        if form is not None and not form(text):
            raise RequestError(f"{flag(self.word)} {text!r}: expected {expected}; the page reads no file")
        if names_a_file(text):
            raise RequestError(f"{flag(self.word)} {text[:80]!r}: the page reads no file; expected a value")
        return text


#: Words that may be a file on the command line -> what a text of the page has to be, and the words for it.
_VALUES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "routing": (lambda text: word_of(text) is not None, "random, balanced or zipf:ALPHA (0 to 5)"),
    "price": (lambda text: "=" in text or is_number(text), "dollars an hour such as 2.99, or h100=2.99,a100=1.29"),
}
_RATE = re.compile(r"(?<=[A-Z])/s$")
_ENDINGS = (".yaml", ".yml", ".json", ".jsonl", ".csv", ".parquet", ".txt", ".py", ".pt2", ".onnx", ".npz")


def names_a_file(text: str) -> bool:
    """Whether a text names a file of the machine that serves the page, which no value does; "2.4TB/s" is a rate."""
    parts = [part.strip() for part in text.replace("=", ",").split(",")]
    return any(sign in _RATE.sub("", part) for part in parts for sign in "/\\~") or any(
        part.lower().endswith(_ENDINGS) for part in parts
    )


def fields_of(options: Iterable[Option]) -> tuple[Field, ...]:
    """The fields of words, in their order, but of those that the page has other ways for."""
    return tuple(field_of(option) for option in options if not option.row.page)


def field_of(option: Option) -> Field:
    """The field of a word."""
    switch, default = option.kind == "switch", option.default
    choices = SWITCH if switch else option.choices
    shown = OFF if switch else "" if default in (None, "") else str(default)
    # "" is the default of a word that the request works out itself
    listed = ("", *choices) if choices and not shown else choices
    row = option.row
    whole, real = option.kind == "whole", option.kind == "real"
    return Field(option.name, option.text, shown, listed, whole, real, row.modes, row.common)
