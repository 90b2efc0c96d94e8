"""Peaks that a GPU file leaves to its compute capability: FLOP a clock and SM x SMs x boost clock.

A file asks for it with `tensor_cores:`, which says how fast they add up in fp32, the way frameworks ask for it:

    full    at the rate that `matrix_rates` has for the compute capability: boards of data centers and workstations
    half    GeForce boards multiply floating-point numbers of 8 and 16 bits, and tf32, at half of it; integers and fp4
            run at all of it (source: peaks with fp16 and with fp32 accumulation in NVIDIA's white papers of GA102,
            AD102 and GB202)
    none    the chip has none (GeForce GTX 16 has compute capability 7.5 without them)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

TENSOR_CORES = ("full", "half", "none")
_TABLE = "compute_capabilities.json"
_HALVED = ("tf32", "fp16", "bf16", "fp8")


def derived_peaks(
    fixed: Mapping[str, Mapping[str, Any]], tensor_cores: str, sm_count: int, clock_hz: float
) -> Iterator[tuple[tuple[str, str], float, str]]:
    """(unit, dtype), FLOP/s and source of every peak that follows from ``fixed``, the values of a compute capability.

    ``tensor_cores``: of `TENSOR_CORES`; ``clock_hz``: the boost clock.
    """
    clocks = sm_count * clock_hz
    vector = {dtype: float(rate) for dtype, rate in _value(fixed, "vector_rates").items()}
    if "lanes_per_sm" in fixed:
        vector["fp32"] = 2.0 * float(fixed["lanes_per_sm"]["value"])
    for dtype, rate in vector.items():
        yield ("vector", dtype), rate * clocks, _said(rate, "")
    for dtype, rate in _value(fixed, "matrix_rates").items() if tensor_cores != "none" else ():
        halved = tensor_cores == "half" and dtype in _HALVED
        why = "half of the generation's rate, as GeForce boards add up in fp32" if halved else ""
        each = float(rate) / 2.0 if halved else float(rate)
        yield ("matrix", dtype), each * clocks, _said(each, why)


def _value(fixed: Mapping[str, Mapping[str, Any]], field: str) -> Mapping[str, float]:
    rates: Mapping[str, float] = fixed[field]["value"] if field in fixed else {}
    return rates


def _said(rate: float, why: str) -> str:
    return f"derived: {rate:g} FLOP a clock and SM ({_TABLE}{', ' + why if why else ''}) x sm_count x boost_clock"
