"""Text with a unit -> a float in the base unit: the one place where a quantity is converted on the way in.
And the other way: seconds as people read them.

Inside Tilecast a quantity is in seconds, bytes, FLOP, FLOP/s, bytes/s, Hz or W. Prefixes: k, M, G, T, P are powers of
1000; Ki, Mi, Gi, Ti are powers of 1024. A number that carries no unit is refused, except for a count.
"""

from __future__ import annotations

import math
import re

from predictor.errors import RequestError

#: What prefixes stand for, by definition (SI; IEC 80000-13).
_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SMALL = {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "\u03bc": 1e-6, "n": 1e-9}  # the micro sign and the Greek letter

# dimension -> (the units it may have, the prefixes that they may carry, an example for the error line)
_DIMENSIONS: dict[str, tuple[tuple[str, ...], dict[str, float], str]] = {
    "bandwidth": (("B/s",), _DECIMAL | _BINARY, "3.35 TB/s"),
    "bytes": (("B",), _DECIMAL | _BINARY, "80 GiB"),
    "rate": (("FLOP/s", "OP/s"), _DECIMAL, "989 TFLOP/s"),
    "frequency": (("Hz",), _DECIMAL, "1980 MHz"),
    "power": (("W",), _DECIMAL, "700 W"),
    "time": (("s",), _SMALL, "3 us"),
    "count": (("",), {"": 1.0}, "132"),
}
DIMENSIONS = tuple(_DIMENSIONS)

#: Seconds of a unit, by definition.
TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*([^\s\d].*)?", re.ASCII)


def parse_quantity(text: str, dimension: str) -> float:
    """`text`, such as "3.35 TB/s", in the base unit of `dimension`: 3.35e12.

    `dimension` is one of `DIMENSIONS`: bandwidth (bytes/s), bytes, rate (FLOP/s; integer operations too, "TOP/s"),
    frequency (Hz), power (W), time (s), count (no unit, a whole number).

    Raises RequestError, one line with the value and the unit expected, for a number without a unit, a unit of another
    dimension, a fraction where a count belongs, zero or less, or what is no number at all.

    >>> parse_quantity("3.35 TB/s", "bandwidth")
    3350000000000.0
    >>> parse_quantity("80 GiB", "bytes") == 80 * 2**30
    True
    >>> parse_quantity("80", "bytes")
    Traceback (most recent call last):
    predictor.errors.RequestError: '80' has no unit: expected a bytes such as "80 GiB"
    """
    if dimension not in _DIMENSIONS:
        raise RequestError(f"unknown dimension {dimension!r}: expected one of {', '.join(DIMENSIONS)}")
    units, prefixes, example = _DIMENSIONS[dimension]
    expected = f'expected a {dimension} such as "{example}"'
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise RequestError(f"{text!r} is not a quantity: {expected}")
    number, unit = float(match[1]), match[2] or ""
    if not math.isfinite(number * max(prefixes.values())):
        raise RequestError(f"{text!r} is too large: {expected}")
    if not unit and dimension != "count":
        raise RequestError(f"{text!r} has no unit: {expected}")
    scale = next((prefixes[unit.removesuffix(u)] for u in units if _fits(unit, u, prefixes)), None)
    if scale is None:
        raise RequestError(f"{text!r} has the unit {unit!r}: {expected}")
    if number <= 0:
        raise RequestError(f"{text!r} is not above zero: {expected}")
    if dimension == "count" and not number.is_integer():
        raise RequestError(f"{text!r} is not a whole number: {expected}")
    return number * scale


def _fits(unit: str, base: str, prefixes: dict[str, float]) -> bool:
    return unit.endswith(base) and unit.removesuffix(base) in prefixes


def seconds(value: float) -> str:
    """A duration with three significant digits, zeros at the end among them.

    >>> seconds(3.8214e-5), seconds(0.0124), seconds(1.532), seconds(0.002)
    ('38.2 us', '12.4 ms', '1.53 s', '2.00 ms')
    """
    number, unit = in_unit(value)
    return f"{number} {unit}"


def in_unit(value: float) -> tuple[str, str]:
    """A duration's three digits and their unit; 999.6 us is 1.00 ms."""
    if value <= 0:
        return "0", "s"
    unit = next((unit for unit, factor in TIMES.items() if value >= 0.9995 * factor), "ns")
    return digits(value / TIMES[unit]), unit


def digits(value: float) -> str:
    """``value`` with three significant digits, the zeros at its end among them."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
