"""The parser of every command line: an error is one line and an exception, a number is written in digits, and an option
that takes one value is given once."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from predictor import __version__
from predictor.errors import RequestError, nearest

#: The largest seed. Source: LightGBM docs/Parameters.rst, whose seeds are signed integers of 32 bits.
LARGEST_SEED = 2**31 - 1
#: Columns of a help that nobody reads. By definition of the VT100.
_WIDTH = 80
_WHOLE = re.compile(r"[+-]?[0-9]{1,100}", re.ASCII)
_NUMBER = re.compile(r"[0-9.eE+-]{1,100}", re.ASCII)


class Once(argparse.Action):
    """Stores a value as argparse does, and refuses a second one: the first would be lost without a word."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if option is not None and isinstance(parser, Parser):
            if self.dest in parser.given:
                raise argparse.ArgumentError(
                    self, f"given twice, as {parser.given[self.dest]!s} and {values!s}; expected once"
                )
            parser.given[self.dest] = values
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line and an exception."""

    _tries = False
    #: Whether somebody reads its help, whose lists of choices load every engine.
    explains = True

    def __init__(self, *args: Any, **words: Any) -> None:
        super().__init__(*args, **words)
        self.given: dict[str, Any] = {}  # options of the line that is being read -> their values
        self.short_help: Callable[[argparse.ArgumentParser], str] | None = None  # what --help says; None: all
        self.register("action", None, Once)
        self.register("action", "store", Once)
        self.register("type", int, whole_number)
        self.register("type", float, number)
        self.register("type", Path, some_path)
        # "-3us" is a wrong value and no option, so that the line says what is wrong with it.
        self._negative_number_matcher = re.compile(r"-\.?[0-9]", re.ASCII)
        if self.add_help:
            text = f"tilecast {__version__}"
            self.add_argument("--version", action="version", version=text, help="print the version")

    def add_argument(self, *args: Any, **words: Any) -> argparse.Action:
        """As argparse's, which formats the option to see whether its help is right."""
        self._tries = True
        try:
            return super().add_argument(*args, **words)
        finally:
            self._tries = False

    def _get_formatter(self) -> argparse.HelpFormatter:
        """As argparse's; of a fixed width where nobody reads it: asking for the terminal's loads compressors."""
        made: Any = self.formatter_class
        formatter: argparse.HelpFormatter = (
            made(prog=self.prog, width=_WIDTH) if self._tries else super()._get_formatter()
        )
        return formatter

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's; an option that is none is named first, with the nearest one, before what else is missing."""
        self.given = {}
        if args is not None:
            for option in _options(args, to_first_word=self._subparsers is not None):
                if option not in self._option_string_actions:
                    self._refuse(option)
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        """What --help says."""
        return super().format_help() if self.short_help is None else self.short_help(self)

    def read(self, texts: Mapping[str, str], values: Mapping[str, object]) -> argparse.Namespace:
        """What `parse_args` gives for words that come as a structure: ``texts`` by the names of their values, each read
        as its option reads it and never as an option, and ``values`` as they are. A switch is on with any text."""
        namespace, self.given = argparse.Namespace(**self._defaults), {}
        options = {action.dest: action for action in self._actions if action.option_strings}
        for name, action in options.items():
            if action.default is not argparse.SUPPRESS:
                default = action.default
                setattr(namespace, name, self._get_value(action, default) if isinstance(default, str) else default)
            if action.required and name not in texts and name not in values:
                self.error(f"{action.option_strings[-1]}: expected a value")
        for name, text in texts.items():
            action = options[name]
            try:
                value = [] if action.nargs == 0 else self._get_value(action, text)
                self._check_value(action, value)
                action(self, namespace, value, action.option_strings[-1])
            except argparse.ArgumentError as error:
                self.error(str(error))
        for name, value in values.items():
            setattr(namespace, name, value)
        return namespace

    def _refuse(self, option: str) -> NoReturn:
        names = [name.removeprefix("--") for name in self._option_string_actions if name.startswith("--")]
        close = [f"--{name}" for name in nearest(option.removeprefix("--"), names, n=2)]
        self.error(f"no option {option}" + (f"; nearest: {', '.join(close)}" if close else ""))

    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{self.prog}: {message} (see {self.prog} --help)")


def _options(words: Sequence[str], to_first_word: bool) -> Iterator[str]:
    """The long options of a line, without their values; ``to_first_word``: those before the verb alone."""
    for word in words:
        if word == "--" or (to_first_word and not word.startswith("-")):
            return
        name = word.partition("=")[0]
        if name.startswith("--") and " " not in name:
            yield name


def whole_number(text: str) -> int:
    """The number of digits such as "32". ArgumentTypeError for what `int` would read, too: "1_000", Arabic digits."""
    if _WHOLE.fullmatch(text.strip()) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number; expected digits such as 32")
    return int(text)


def seed(text: str) -> int:
    """Where what is drawn begins. ArgumentTypeError for what no generator takes."""
    value = whole_number(text)
    if not 0 <= value <= LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 0 to {LARGEST_SEED:,}")
    return value


def number(text: str) -> float:
    """The number of digits such as "0.5" or "1e-3". ArgumentTypeError for "nan", "1_0" which `float` reads."""
    with contextlib.suppress(ValueError):
        if _NUMBER.fullmatch(text.strip()) is not None and math.isfinite(float(text)):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number; expected digits such as 0.5")


def some_path(text: str) -> Path:
    """The path of a text. ArgumentTypeError where it is empty: `Path` would read the folder that one is in."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not a path; expected the name of a file or folder")
    return Path(text)
