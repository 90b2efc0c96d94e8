"""The parser of every command line: an error is one line and an exception, and a number is written in digits."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
from pathlib import Path
from typing import Any, NoReturn

from predictor.errors import RequestError

_WHOLE = re.compile(r"[+-]?[0-9]{1,100}", re.ASCII)
_NUMBER = re.compile(r"[0-9.eE+-]{1,100}", re.ASCII)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line and an exception."""

    def __init__(self, *args: Any, **words: Any) -> None:
        super().__init__(*args, **words)
        self.register("type", int, whole_number)
        self.register("type", float, number)
        self.register("type", Path, some_path)
        # "-3us" is a wrong value and no option, so that the line says what is wrong with it.
        self._negative_number_matcher = re.compile(r"-\.?[0-9]", re.ASCII)

    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{self.prog}: {message} (see {self.prog} --help)")


def whole_number(text: str) -> int:
    """The number of digits such as "32". ArgumentTypeError for what `int` would read, too: "1_000", Arabic digits."""
    if _WHOLE.fullmatch(text.strip()) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number; expected digits such as 32")
    return int(text)


def number(text: str) -> float:
    """The number of digits such as "0.5" or "1e-3". ArgumentTypeError for "nan", "1_0" which `float` reads."""
    with contextlib.suppress(ValueError):
        if _NUMBER.fullmatch(text.strip()) is not None and math.isfinite(float(text)):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number; expected digits such as 0.5")


def some_path(text: str) -> Path:
    """The path of a text. ArgumentTypeError where it is empty: `Path` would read the folder that one is in."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is no path; expected the name of a file or folder")
    return Path(text)
