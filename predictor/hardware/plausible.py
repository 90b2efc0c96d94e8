"""Values of a board or a system that no hardware has: most are a slip by 1,000, or bits for bytes.

A value is held against others of the same file, because boards differ by more than 1,000 in most of their values and
by little in their ratios: an SM does 64 to 512 FLOP a clock, memory gives a byte for 5 to 200 FLOP. Every range is
narrower than 1,000, so that a value in its middle with the wrong prefix falls out of it. The ends are several times
wider than what the catalogue's boards (Pascal to Blackwell, CDNA, Xe) and announcements up to Vera Rubin span.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

#: The environment's word for "believe every value", which workers of a sweep and the harness inherit.
BELIEVE = "TILECAST_FORCE"

# Field -> (the least, the most) in base units, of values that stand for themselves: guards against slips.
_BOARD = {
    "sm_count": (1, 1024),
    "boost_clock": (0.3e9, 10e9),
    "power_limit": (4.0, 3000.0),
    "pcie_bandwidth": (1e9, 600e9),
    "launch_overhead": (0.5e-6, 300e-6),
}
# FLOP of fp32 on the vector unit: a clock of an SM (64 to 256 lanes, 2 FLOP each), and for a byte of memory; guards
# against slips.
_FLOP_PER_CLOCK = (16.0, 8192.0)
_FLOP_PER_BYTE = (1.0, 500.0)
# Other peaks over that of fp32 on the vector unit (fp64 of GeForce is 1/64, 4 bits on tensor cores pass 200): guards
# against slips.
_FP64_RATIO = (1 / 200, 4.0)
_PEAK_RATIO = (0.25, 240.0)
_NARROW_RATIO = (0.5, 480.0)
_NARROW = ("fp4", "int4", "nvfp4", "mxfp4", "int1", "fp6")
# Seconds to read all of memory once; bytes of L2 an SM; NVLink's bandwidth over memory's: guards against slips.
_SWEEP_S = (4e-3, 3.0)
_L2_PER_SM = (8 * 1024, 6 * 1024**2)
_LINK_SHARE = (0.005, 2.0)

# Links of a system, bytes/s in one direction and seconds: guards against slips.
_SYSTEM = {
    "gpus_per_node": (1, 999),
    "gpus_per_host": (1, 999),
    "link_group": (2, 999),
    "link_latency": (0.1e-6, 60e-6),
    "pcie_bandwidth": (1e9, 600e9),
    "pcie_latency": (0.1e-6, 60e-6),
    "nics_per_node": (1, 256),
    "nic_bandwidth": (0.25e9, 240e9),
    "network_latency": (0.3e-6, 250e-6),
}
# The same of what joins GPUs, PCIe or NVLink and its like: guards against slips.
_LINK_BANDWIDTH = {"pcie": (1e9, 600e9), "": (8e9, 7e12)}

#: Prefixes by definition (SI; IEC 80000-13).
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u"))
_BINARY = ((2.0**40, "Ti"), (2.0**30, "Gi"), (2.0**20, "Mi"), (2.0**10, "Ki"), (1.0, ""))
_UNITS = {"bandwidth": "B/s", "rate": "FLOP/s", "frequency": "Hz", "power": "W", "time": "s", "bytes": "B"}
#: Slips to look for, the likeliest first: a prefix or more of them, by definition; a network's bits for bytes before.
_SLIPS = (1e3, 1e-3, 1e6, 1e-6, 1e-9, 1e9)
_BITS = 1 / 8


@contextmanager
def believing(every_value: bool) -> Iterator[None]:
    """Within it no value is implausible (``--force``), in processes that are started there, too."""
    before = os.environ.get(BELIEVE)
    if every_value:
        os.environ[BELIEVE] = "1"
    try:
        yield
    finally:
        if every_value and before is None:
            del os.environ[BELIEVE]


def board_problems(values: Mapping[str, Any], peaks: Mapping[tuple[str, str], float]) -> list[str]:
    """What is implausible of a board: a text each, with the value that was probably meant.

    ``values`` has fields of a GPU file in base units (None where one is absent), ``peaks`` (unit, dtype) -> FLOP/s.
    A value is not judged by one that is implausible itself.
    """
    check = _Check(values)
    for field, span in _BOARD.items():
        check.alone(field, _DIMENSIONS[field], span)
    fp32 = peaks.get(("vector", "fp32"))
    if fp32 is None:
        return check.problems
    named, dimension = "peak_flops.vector.fp32", "rate"
    check.values = {**values, named: fp32}
    per_clock = tuple(end * (values.get("sm_count") or 0) * (values.get("boost_clock") or 0) for end in _FLOP_PER_CLOCK)
    check.beside(named, dimension, per_clock, ("sm_count", "boost_clock"))
    check.beside("memory_bandwidth", "bandwidth", tuple(fp32 / end for end in reversed(_FLOP_PER_BYTE)), (named,))
    for (unit, dtype), peak in peaks.items():
        if (unit, dtype) != ("vector", "fp32"):
            ratio = _FP64_RATIO if dtype == "fp64" else _NARROW_RATIO if dtype in _NARROW else _PEAK_RATIO
            field = f"peak_flops.{unit}.{dtype}"
            check.values = {**check.values, field: peak}
            check.beside(field, "rate", tuple(end * fp32 for end in ratio), (named,))
    bandwidth, sms = values.get("memory_bandwidth") or 0.0, values.get("sm_count") or 0
    check.beside("memory_capacity", "bytes", tuple(end * bandwidth for end in _SWEEP_S), ("memory_bandwidth",))
    check.beside("l2", "bytes", tuple(end * sms for end in _L2_PER_SM), ("sm_count",))
    check.beside("nvlink_bandwidth", "bandwidth", tuple(end * bandwidth for end in _LINK_SHARE), ("memory_bandwidth",))
    return check.problems


def system_problems(values: Mapping[str, Any], link: str | None, by_ranks: Mapping[int, float]) -> list[str]:
    """What is implausible of a system, as `board_problems`; ``link`` is its kind, ``by_ranks`` a mesh's bandwidths."""
    check = _Check({**values, **{f"by_ranks.{ranks}": value for ranks, value in by_ranks.items()}})
    for field, span in _SYSTEM.items():
        check.alone(field, _DIMENSIONS[field], span)
    for field in ("link_bandwidth", *(f"by_ranks.{ranks}" for ranks in by_ranks)):
        check.alone(field, "bandwidth", _LINK_BANDWIDTH.get(link or "", _LINK_BANDWIDTH[""]))
    return check.problems


_DIMENSIONS = {
    "sm_count": "count", "boost_clock": "frequency", "power_limit": "power", "pcie_bandwidth": "bandwidth",
    "launch_overhead": "time", "gpus_per_node": "count", "gpus_per_host": "count", "link_group": "count",
    "link_latency": "time", "pcie_latency": "time", "nics_per_node": "count", "nic_bandwidth": "bandwidth",
    "network_latency": "time",
}  # fmt: skip


class _Check:
    """Values, and what was said of them so far."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.problems: list[str] = []
        self.wrong: set[str] = set()
        self.believes = bool(os.environ.get(BELIEVE))

    def alone(self, field: str, dimension: str, span: tuple[float, ...]) -> None:
        """Notes a value outside of ``span``, (the least, the most)."""
        self.beside(field, dimension, span, ())

    def beside(self, field: str, dimension: str, span: tuple[float, ...], others: tuple[str, ...]) -> None:
        """The same where ``span`` comes from ``others``: nothing is said where one of them is absent or wrong."""
        value = self.values.get(field)
        if self.believes or value is None or any(not self.values.get(o) or o in self.wrong for o in others):
            return
        low, high = span
        if low <= value <= high:
            return
        self.wrong.add(field)
        slips = (_BITS, *_SLIPS) if field == "nic_bandwidth" else _SLIPS
        meant = next((value * slip for slip in slips if low <= value * slip <= high), None)
        hint = f"; {shown(meant, dimension)} was probably meant" if meant and _countable(meant, dimension) else ""
        beside = (
            f" beside {' and '.join(f'{o} {shown(self.values[o], _dimension(o))}' for o in others)}" if others else ""
        )
        self.problems.append(
            f"{field} is {shown(value, dimension)}: expected {shown(low, dimension)} to {shown(high, dimension)}"
            f"{beside}{hint} (--force believes the file)"
        )


def _countable(value: float, dimension: str) -> bool:
    return dimension != "count" or float(value).is_integer()


def _dimension(field: str) -> str:
    return "rate" if field.startswith("peak_flops") else _DIMENSIONS.get(field, "bandwidth")


def shown(value: float, dimension: str) -> str:
    """A value in base units with three digits and its unit: 3350000000000.0 of bandwidth is "3.35 TB/s"."""
    if dimension == "count":
        return f"{value:.0f}"
    prefixes = _BINARY if dimension == "bytes" else _PREFIXES
    scale, prefix = next((each for each in prefixes if value >= each[0]), prefixes[-1])
    return f"{value / scale:.3g} {prefix}{_UNITS[dimension]}"
