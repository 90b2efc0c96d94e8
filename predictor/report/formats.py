"""Numbers as people read them. The only place, with json_report, where a unit is put on a value."""

from __future__ import annotations


def seconds(value: float) -> str:
    """A duration with three significant digits.

    >>> seconds(3.8214e-5), seconds(0.0124), seconds(1.532)
    ('38.2 us', '12.4 ms', '1.53 s')
    """
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= factor:
            return f"{significant(value / factor)} {unit}"
    return f"{significant(value / 1e-9)} ns" if value > 0 else "0 s"


def span(low: float, high: float) -> str:
    """Two durations, the unit of the longer one for both.

    >>> span(0.000121, 0.0149)
    '0.121 - 14.9 ms'
    """
    number, unit = seconds(high).split(" ")
    factor = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    return f"{significant(low / factor)} - {number} {unit}"


def significant(value: float, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits and no exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return text if "e" not in text else f"{value:.{digits}f}"


def gib(value: float) -> str:
    """Bytes as GiB (or MiB when small)."""
    if value < 2**30:
        return f"{value / 2**20:.1f} MiB"
    return f"{value / 2**30:.1f} GiB"


def rate(value: float) -> str:
    """A count a second."""
    return significant(value) if value < 1e4 else f"{value:,.0f}"


def quantity(value: float, unit: str) -> str:
    """A large base-unit value with a decimal prefix: 9.89e14 FLOP/s -> "989 TFLOP/s"."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def count(value: float) -> str:
    """A count of parameters or FLOPs: "174.6 B", "355 M"."""
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.4g} {suffix}"
    return f"{value:.4g}"
