"""The command line's words: durations, lists of names, folders."""

from __future__ import annotations

import re
from pathlib import Path

from predictor.errors import RequestError
from predictor.formats.dtypes import canonical

#: Seconds of a unit, by definition.
_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """ "60s", "10min", "1.5h" -> seconds. Raises RequestError, one line."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", text.lower(), re.ASCII)
    if match is None or match[2] not in _UNITS or not 0 < float(match[1]) < 1e9:
        raise RequestError(f"{text!r} is no time: expected a number above zero with a unit, such as 60s, 10min, 2h")
    return float(match[1]) * _UNITS[match[2]]


def names(text: str) -> tuple[str, ...]:
    """ "gemm,attention" -> ("gemm", "attention"). Raises RequestError where it is empty."""
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts:
        raise RequestError(f"{text!r} names nothing: expected names with commas between them")
    return parts


def part(text: str) -> tuple[int, int]:
    """ "2/8" -> (2, 8): the second of eight parts. Raises RequestError."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip(), re.ASCII)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise RequestError(f"{text!r} is no part: expected i/n with i from 1 to n, such as 2/8")
    return int(match[1]), int(match[2])


def dtypes(text: str) -> tuple[str, ...]:
    """ "bf16,float32" -> ("bf16", "fp32"). Raises UnknownNameError."""
    return tuple(canonical(name) for name in names(text))


def check_below_folder(path: Path) -> None:
    """Raises RequestError where ``path`` cannot be made because something above it is no folder."""
    for above in path.absolute().parents:
        if above.exists():
            if not above.is_dir():
                raise RequestError(f"--out {path}: {above} is a file; expected a folder")
            return


def frequency(text: str) -> float:
    """ "1500 MHz" -> Hz. Raises RequestError."""
    from predictor.files.units import parse_quantity

    return parse_quantity(text, "frequency")
