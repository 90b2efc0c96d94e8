"""Numbers as people read them. The only place, with json_report, where a unit is put on a value."""

from __future__ import annotations

from predictor.engines.memory import BASES
from predictor.engines.releases import is_version
from predictor.files.units import TIMES, digits, in_unit
from predictor.files.units import seconds as seconds
from predictor.kernels.interval import LEVEL
from predictor.request.precision import CHECKPOINT, ENGINE
from predictor.request.serving import Serving
from predictor.request.workload import Workload
from predictor.simulate.memory import Memory

#: The level of intervals as people read it: "80 %".
LEVEL_WORDS = f"{LEVEL:.0%}".replace("%", " %")


def span(low: float, high: float) -> str:
    """Two durations, the unit of the longer one for both.

    >>> span(0.000121, 0.0149)
    '0.121 - 14.9 ms'
    """
    number, unit = in_unit(high)
    least = low / TIMES[unit]
    return f"{digits(least) if least >= 1 else format(least, '#.3g')} - {number} {unit}"


def given(value: float) -> str:
    """A duration that somebody typed, with the digits that it was typed with.

    >>> given(6e-6), given(0.0125)
    ('6 us', '12.5 ms')
    """
    unit = next((unit for unit, factor in TIMES.items() if value >= factor), "ns")
    return f"{value / TIMES[unit]:.6g} {unit}" if value > 0 else "0 s"


def overhead(work: Workload) -> str:
    """The launch overhead of a run: as it was typed, with three digits where it is assumed."""
    value = work.launch_overhead_s
    return given(float(f"{value:.3g}") if work.launch_overhead_assumed else value)


def share(value: float) -> str:
    """A part of a whole, in percent; what is too small for the last digit is said to be so.

    >>> share(0.8137), share(0.0003), share(0.0)
    ('81.4%', '<0.1%', '0.0%')
    """
    return "<0.1%" if 0.0 < value < 0.0005 else f"{value:.1%}"


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


def may_use(memory: Memory) -> str:
    """What a run may use of a GPU's memory, and whose rule that is: "14.2 GiB: 0.9 of ... (vLLM 0.24 ...)"."""
    whose = f" (default of {memory.setting})" if memory.setting else ""
    return f"{gib(memory.usable)}: {memory.fraction:g} {BASES[memory.base]}{whose}"


def gib_of(part: float, whole: float) -> str:
    """A part of a memory, the unit once where it is the same.

    >>> gib_of(23 * 2**30, 80 * 2**30), gib_of(2**20, 2**30)
    ('23.0 of 80.0 GiB', '1.0 MiB of 1.0 GiB')
    """
    first, second = gib(part), gib(whole)
    unit = second[-4:]
    return f"{first.removesuffix(unit)} of {second}" if first.endswith(unit) else f"{first} of {second}"


def rate(value: float) -> str:
    """A count a second."""
    return significant(value) if value < 1e4 else f"{value:,.0f}"


def per_second(value: float, unit: str) -> str:
    """So many of a ``unit``, whose name is plural, a second: "1 sequence/s", "2.5 sequences/s"."""
    shown = rate(value)
    return f"{shown} {unit.removesuffix('s') if shown == '1' else unit}/s"


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


def release_of(work: Workload) -> str:
    """The oldest version of the engine for which the forecast holds, "" where no releases are told apart."""
    known = work.engine.vintage()
    return known.version if known is not None else ""


def execution_words(work: Workload) -> str:
    """What runs the model, and the release that ``--software`` stands for: "vllm as of 2023 (release 0.2)"."""
    said = work.software.split()[-1:]
    if not said or not is_version(said[0]):
        return work.execution
    release = release_of(work)
    told = f" (release {release})" if release and release != said[0] else ""
    return f"{work.execution} as of {said[0]}{told}"


def dtype_words(work: Workload) -> str:
    """The dtype of a run, and that it is the checkpoint's where it is, or what a word means under the engine."""
    if work.dtype_recipe:
        return f"{work.dtype} ({work.dtype_recipe})"
    return f"{work.dtype} (checkpoint)" if work.dtype_source == CHECKPOINT else work.dtype


def kv_words(serving: Serving) -> str:
    """The KV cache's dtype, and that it is the checkpoint's or the engine's where it is."""
    source = serving.kv_dtype_source
    return f"{serving.kv_dtype} ({source})" if source in (CHECKPOINT, ENGINE) else serving.kv_dtype
