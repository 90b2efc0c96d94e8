"""What each number of a set of estimators may be: constants, scalars of boards, leaves of trees, widths, overheads.

A set that somebody hands in is data. One number of it beyond what physics allows (a negative time, a share of 10^20)
would make every forecast wrong, or none of them a number. So each file's numbers are compared with the ranges below
when the file is read (and before it is written), by the names of the keys above them. An estimator that a forecast
does not ask for is not read, and costs nothing here.

The ranges were chosen by hand, not from data, and are wide: ten times and more beyond what fits of the public data
gave. A constant that its rows hardly tell may lie far from its start, and is still one that physics allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from predictor.errors import SpecError

#: Least and most, both allowed.
Range = tuple[float, float]
#: Name of a key, or place in a list, -> range of all numbers below it, or the rules below it. Other keys are passed
#: through: names of boards, systems and kernels.
Rules = Mapping[str | int, Any]

# The limits themselves: chosen by hand, not from data (above).
EFFICIENCY: Final[Range] = (1e-4, 10.0)  # of a peak; beyond 1 where the peak is not what limits
SHARE: Final[Range] = (1e-6, 100.0)  # of a rate, of L2, of a time
SHARE_OR_NONE: Final[Range] = (0.0, 100.0)  # 0: there is none
COUNT: Final[Range] = (1e-6, 1e9)  # trips, rows, elements, bytes a cycle
CYCLES: Final[Range] = (1e-6, 1e9)
POWER: Final[Range] = (0.1, 100.0)  # p of a p-norm
SECONDS: Final[Range] = (0.0, 1.0)  # of one call
BYTES_PER_S: Final[Range] = (1e3, 1e18)
LOG: Final[Range] = (-10.0, 10.0)  # of measured / forecast: a factor of 22,000
WIDE_LOG: Final[Range] = (-30.0, 30.0)  # the same, where few rows teach the roofline's error
SIZE: Final[Range] = (0.0, 1e18)
PART: Final[Range] = (0.0, 1.0)
FEATURE: Final[Range] = (-1e6, 1e6)  # logarithms and shares
PLACE: Final[Range] = (0.0, 1e6)  # in a list
EFFICIENCY_OR_NONE: Final[Range] = (0.0, 10.0)
STEPS: Final[Range] = (0.0, 1e6)  # of a loop, rows of a tile
DEVIATION: Final[Range] = (0.0, 10.0)  # of a logarithm
LENGTH: Final[Range] = (1e-6, 1e6)  # in a feature
WATTS: Final[Range] = (1e-3, 1e6)  # for a TFLOP/s
RATE: Final[Range] = (1e6, 1e18)  # FLOP/s, Hz
WHOLE: Final[Range] = (1.0, 1e12)  # bytes, SMs, sizes of operands

_LANES: Rules = {
    "efficiency": EFFICIENCY_OR_NONE, "penalty": SHARE_OR_NONE, "split_penalty": SHARE_OR_NONE, "prologue": STEPS,
    "lonely": SHARE_OR_NONE, "unaligned": SHARE_OR_NONE, "reread": SHARE_OR_NONE, "narrow": SHARE_OR_NONE,
    "straddle": SHARE_OR_NONE, "strain": SHARE_OR_NONE, "memory": SHARE, "write_out": SHARE_OR_NONE, "norm": POWER,
    "quantization": SHARE_OR_NONE, "fixed_s": SECONDS, "split_s": SECONDS,
}  # fmt: skip
_PRODUCTS: Rules = {
    "compute_efficiency": EFFICIENCY, "dram_efficiency": SHARE, "l2_bytes_per_s_per_sm": BYTES_PER_S,
    "overhead_cycles": CYCLES, "tile_penalty": COUNT, "step_cycles": CYCLES, "resident_share": SHARE,
    "split_cycles": CYCLES, "smallest_tile": COUNT, "quantize_cycles": CYCLES, "quantize_row_cycles": CYCLES,
    "quantize_passes": COUNT, "token_s_per_byte": COUNT, "supply_bytes": COUNT, "foreign_traffic": SHARE,
    "foreign_rows": SHARE, "half_lines": SHARE,
}  # fmt: skip
_ATTENTION: Rules = {
    "block_cycles": CYCLES, "idle_width": COUNT, "sm_bytes_a_cycle": COUNT, "second_pass": SHARE,
    "l2_bytes_a_cycle": COUNT, "stream_bytes_a_cycle": COUNT,
}  # fmt: skip
_BLOCKS: Rules = {"blocks_an_sm": COUNT, "passed_share": SHARE, "join": POWER}
#: Constants of cores, by name.
CORES: Final[Rules] = {**_LANES, **_PRODUCTS, **_ATTENTION, **_BLOCKS}

_STREAMS: Rules = {
    "warp_row": COUNT, "warp_element": COUNT, "warp_unaligned": SHARE_OR_NONE, "softmax_row": COUNT,
    "softmax_element": COUNT, "norm_row": COUNT, "norm_element": COUNT, "spill_width": SHARE, "resident": SHARE,
    "l2_share": SHARE, "norm": POWER, "fixed_s": SECONDS, "gather": COUNT, "scalar_share": SHARE,
}  # fmt: skip
_COLLECTIVES: Rules = {
    "launch_trips": COUNT, "hop_trips_ll": COUNT, "hop_trips_ll128": COUNT, "hop_trips_simple": COUNT,
    "start_trips_simple": COUNT, "widening": SHARE, "knee": SHARE, "share_ll": SHARE, "share_ll128": SHARE,
    "channel_ll": COUNT, "efficiency_nvswitch": EFFICIENCY, "efficiency_mesh": EFFICIENCY,
    "efficiency_pair": EFFICIENCY, "efficiency_pcie": EFFICIENCY, "share_pcie_many": SHARE,
    "efficiency_net": EFFICIENCY, "local": COUNT, "local_exchange": COUNT, "share_nvls": SHARE, "nvls_trips": COUNT,
    "exchange_trips": COUNT, "share_exchange": SHARE, "share_scatter": SHARE, "own_launch_trips": COUNT,
    "own_hop_trips": COUNT, "own_two_shot_hops": COUNT, "share_own": SHARE,
}  # fmt: skip
_SYSTEM: Rules = {"latency": SHARE, "bandwidth_2": SHARE, "bandwidth_4": SHARE, "bandwidth_8": SHARE}
#: What a core reads of a board (`predictor.kernels.device.Device`).
DEVICE: Final[Rules] = {
    "peak_flops": RATE, "bandwidth": BYTES_PER_S, "l2_bytes": WHOLE, "sms": WHOLE, "clock_hz": RATE,
    "tensor_rate": EFFICIENCY, "prologue": STEPS, "memory_latency_s": SECONDS, "tile_rows": STEPS, "fed": SHARE,
}  # fmt: skip
#: A board of fp32 products.
BOARD: Final[Rules] = {"sustained": SHARE, "bandwidth": SHARE}

#: Of an estimator's manifest.
MANIFEST: Final[Rules] = {
    "cores": CORES,
    "constants": {**_STREAMS, **_COLLECTIVES},
    "systems": _SYSTEM,
    "host_s": SECONDS,
    "devices": {"scalars": DEVICE},
    "boards": BOARD,
    "power_need": WATTS,
    "eager_overhead_s": SECONDS,
    "share_by_memory_type": SHARE,
    "share_by_architecture": SHARE,
    "hold_by_architecture": SHARE_OR_NONE,
    "boosters": {"clip": LOG, "shrink": PART, "unlike": PART, "knots": PLACE},
    "grids": WHOLE,
    "adapted": {"shares": LOG, "offset": LOG, "columns": PLACE, "deviation": DEVIATION, "lengths": LENGTH},
    "calibrated": {
        "board": {**BOARD, 0: SHARE, 1: SHARE_OR_NONE},  # of streams a pair: share of the bandwidth, of L2
        "width": LOG, "eager_overhead_s": SECONDS, "device": {"scalars": DEVICE},
    },
}  # fmt: skip
#: Of an estimator's intervals.json.
INTERVALS: Final[Rules] = {"classes": {"widths": LOG, "gpus": LOG, "sizes": SIZE}}
#: Of a set's manifest.
SET: Final[Rules] = {"roofline_width": WIDE_LOG}

#: Of arrays, by the last word of their names: a range, or one a column. Thresholds of trees begin with the unit of
#: their leaves, of which the largest is 32,767 by definition: no leaf is beyond a factor of e^32.
ARRAYS: Final[Mapping[str, Range | tuple[Range, ...]]] = {
    "boards": (SHARE, SHARE_OR_NONE), "constants": (SHARE, SECONDS), "at": FEATURE, "weights": FEATURE,
}  # fmt: skip
LEAF_UNIT: Final[Range] = (0.0, 1e-3)
_THRESHOLDS = "thresholds"
_NUMBERS = {int, float}


def check(path: Path | str, content: object, rules: Rules) -> None:
    """SpecError, one line, for the first number of a file's ``content`` that is outside of its range, or is none."""
    try:
        if _right(content, rules):
            return
    except TypeError:  # a text or nothing, where a number is compared
        pass
    _tell(str(path), content, rules, ())


def _right(content: object, rules: Rules) -> bool:
    """Whether all numbers are within their ranges: the quick way, which does not know where a wrong one stands."""
    for key, value in _items(content):
        rule = rules.get(key)
        kind = type(value)
        if type(rule) is tuple:
            if kind is float and rule[0] <= value <= rule[1]:
                continue
            if not _within(value, kind, rule):
                return False
        elif (kind is dict or kind is list) and not _right(value, rules if rule is None else rule):
            return False
    return True


def _within(value: Any, kind: type, limits: Range) -> bool:
    """Whether a value, or all below it, are numbers within ``limits``."""
    low, high = limits
    if kind in _NUMBERS:
        return bool(low <= value <= high)
    if kind is dict:
        return all(_within(each, type(each), limits) for each in value.values())
    if kind is not list:
        return False
    if set(map(type, value)) <= _NUMBERS:
        if not value:
            return True
        # A sum is NaN where one of them is, which the other two may miss.
        return bool(low <= min(value) and max(value) <= high and not math.isnan(sum(value)))
    return all(_within(each, type(each), limits) for each in value)


def _tell(path: str, content: object, rules: Rules | Range, above: tuple[str | int, ...]) -> None:
    """The error of the first number that is wrong, with the keys above it."""
    for key, value in _items(content):
        rule = rules if isinstance(rules, tuple) else rules.get(key)
        at = (*above, key)
        if isinstance(value, dict | list):
            _tell(path, value, rules if rule is None else rule, at)
        elif isinstance(rule, tuple) and not _within(value, type(value), rule):
            expected = f"expected a number from {rule[0]:g} to {rule[1]:g}"
            raise SpecError(f"{path}: {', '.join(map(str, at))} is {value!r:.40}; {expected}")


def _items(content: Any) -> Iterable[tuple[Any, Any]]:
    if type(content) is dict:
        return content.items()
    return enumerate(content) if type(content) is list else ()


def check_array(path: Path | str, name: str, array: npt.NDArray[Any]) -> None:
    """SpecError, one line, for an array that holds a number outside of its range."""
    word = name.rpartition("_")[2]
    if not array.ndim and word in (*ARRAYS, _THRESHOLDS):
        raise SpecError(f"{path}: array {name!r} is a single number; expected several")
    if word == _THRESHOLDS:
        _array(path, f"{name!r}, place 0", array[:1], LEAF_UNIT)
    if word in ARRAYS:
        limits = ARRAYS[word]
        if isinstance(limits[0], tuple):
            for column, each in enumerate(limits):
                _array(path, f"{name!r}, column {column}", array[..., column : column + 1], each)
        else:
            _array(path, repr(name), array, limits)
    elif array.dtype.kind == "f" and np.isnan(array).any():
        raise SpecError(f"{path}: array {name!r} holds NaN; expected numbers: train or calibrate the set again")


def _array(path: Path | str, name: str, array: npt.NDArray[Any], limits: Range) -> None:
    low, high = limits
    if array.size and not (low <= array.min() and array.max() <= high):
        wrong = array[~((array >= low) & (array <= high))].ravel()[0]
        raise SpecError(f"{path}: array {name} is {float(wrong):g}; expected numbers from {low:g} to {high:g}")
