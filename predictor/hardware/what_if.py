"""GPUs that do not exist: a spec with one of its parameters multiplied, and all that hangs on it.

The id stays, so that estimators keep what was measured of the board that it is a variant of.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.errors import RequestError, nearest
from predictor.hardware.gpu import GPUSpec

#: What `vary` can change, and what changes with it.
PARAMETERS = {
    "sm_count": "streaming multiprocessors; peaks and power limit follow",
    "clock": "boost clock; peaks follow, the power limit stays",
    "peak_flops": "every peak FLOP/s; SMs, clock and power limit stay: a board near its limit sustains less of them",
    "memory_bandwidth": "bytes/s of device memory",
    "l2": "bytes of L2 cache",
    "power_limit": "W; peaks stay, what a board sustains follows",
}
#: What no board is held at, chosen by hand, not from data: the lowest states are 135 to 300 MHz.
_LEAST_CLOCK_HZ = 100e6


def vary(gpu: GPUSpec, parameter: str, factor: float) -> GPUSpec:
    """``gpu`` with ``parameter`` (a key of `PARAMETERS`) multiplied by ``factor``.

    Peaks grow with SMs and clock, as each SM does a fixed number of operations a clock. SMs are rounded to a whole
    number, and peaks follow the rounded one. Raises RequestError for an unknown parameter or a factor that is not
    above 0.

    >>> from predictor.hardware.gpu import load_gpu
    >>> h100 = load_gpu("h100")
    >>> half = vary(h100, "sm_count", 0.5)
    >>> half.sm_count, half.peak_flops("bf16") / h100.peak_flops("bf16")
    (66, 0.5)
    """
    if parameter not in PARAMETERS:
        close = nearest(parameter, PARAMETERS)
        hint = f"; nearest: {close[0]}" if close else ""
        raise RequestError(f"parameter {parameter!r}: expected one of {', '.join(PARAMETERS)}{hint}")
    if not 0.0 < factor < 1e6:
        raise RequestError(f"factor {factor!r}: expected a number above 0")
    if parameter == "sm_count":
        count = max(1, round(gpu.sm_count * factor))
        share = count / gpu.sm_count
        return replace(gpu, sm_count=count, peaks=_scaled(gpu, share), power_limit_w=gpu.power_limit_w * share)
    if parameter == "clock":
        return replace(gpu, boost_clock_hz=gpu.boost_clock_hz * factor, peaks=_scaled(gpu, factor))
    if parameter == "peak_flops":
        return replace(gpu, peaks=_scaled(gpu, factor))
    if parameter == "memory_bandwidth":
        return replace(gpu, memory_bandwidth=gpu.memory_bandwidth * factor)
    if parameter == "l2":
        return replace(gpu, l2_bytes=max(1, round(gpu.l2_bytes * factor)))
    return replace(gpu, power_limit_w=gpu.power_limit_w * factor)


def held_at(gpu: GPUSpec, clock_hz: float) -> GPUSpec:
    """``gpu`` with its clock set to ``clock_hz`` (nvidia-smi -ac, -lgc), with its peaks; itself where that is no less.

    A driver rounds a clock to its steps, so that one within 1 % of the boost clock is that. RequestError below 100 MHz.
    """
    if not clock_hz >= _LEAST_CLOCK_HZ:
        raise RequestError(f"clock {clock_hz / 1e6:g} MHz: expected 100 MHz or more")
    return vary(gpu, "clock", clock_hz / gpu.boost_clock_hz) if clock_hz < 0.99 * gpu.boost_clock_hz else gpu


def _scaled(gpu: GPUSpec, factor: float) -> dict[tuple[str, str], float]:
    return {key: peak * factor for key, peak in gpu.peaks.items()}
