"""GPUs that do not exist: a spec with one of its parameters multiplied, or set, and all that hangs on it.

The id stays, so that estimators keep what was measured of the board that it is a variant of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from predictor.errors import RequestError, TilecastError, nearest, unknown_name
from predictor.files.records import replace
from predictor.files.units import parse_quantity
from predictor.formats.dtypes import canonical
from predictor.hardware.gpu import GPU_DIR, QUANTITIES, GPUSpec, load_gpu

#: What `vary` can change, and what changes with it.
PARAMETERS = {
    "sm_count": "streaming multiprocessors; peaks and power limit follow",
    "clock": "boost clock; peaks follow, the power limit stays",
    "peak_flops": "every peak FLOP/s; SMs, clock and power limit stay: a board near its limit sustains less of them",
    "memory_bandwidth": "bytes/s of device memory",
    "l2": "bytes of L2 cache",
    "power_limit": "W; peaks stay, what a board sustains follows",
}
#: What `with_values` sets, beside every peak, by its name in a GPU file. Those that others hang on come first; what
#: joins boards is a system's (`--system`).
VALUES = ("sm_count", "boost_clock", "memory_bandwidth", "memory_capacity", "l2", "power_limit")
#: A value so many times that of the file, or so small a part of it, is a slip. Chosen by hand, not from data: there is
#: no board within a generation that differs by more than ten.
_MOST_TIMES = 100.0
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


@lru_cache(maxsize=4096)
def as_filed(gpu: GPUSpec) -> GPUSpec:
    """The board that ``gpu`` is a variant of, as its file has it: ``gpu`` itself where that is no other.

    A file of one's own that keeps the id of a board of the catalogue is a variant of that board.

    What was learned of kernels is asked about this board, whatever of it was varied; what the hardware changes, the
    formulas say. So more of anything makes no forecast slower because a tree learned so of another board.

    >>> h100 = load_gpu("h100")
    >>> as_filed(vary(h100, "l2", 2.0)) == h100, as_filed(h100) is h100
    (True, True)
    """
    try:
        listed = gpu.path.parent == GPU_DIR or (GPU_DIR / f"{gpu.id}.yaml").is_file()
        filed = load_gpu(gpu.id) if listed else load_gpu(gpu.path)
    except (TilecastError, OSError):
        return gpu
    same = filed.id == gpu.id and filed.compute_capability == gpu.compute_capability and filed != gpu
    return filed if same else gpu


Values = str | Sequence[str] | Mapping[str, str | float]


def with_values(gpu: GPUSpec, values: Values) -> GPUSpec:
    """``gpu`` with values in place of its file's: "power_limit=500W memory_bandwidth=2.4TB/s", a list of such words, or
    a mapping from names to texts with units or to numbers in base units (W, bytes/s, bytes, Hz, FLOP/s).

    Names are `VALUES` and peaks such as ``peak_flops.matrix.bf16``. Peaks follow SMs and clock, as in `vary`, and the
    power limit the SMs, unless they are set, too. Raises RequestError, one line, for a name, a unit or a value that no
    board has.

    >>> from predictor.hardware.gpu import load_gpu
    >>> with_values(load_gpu("h100"), "power_limit=500W").power_limit_w
    500.0
    """
    texts = _texts(values)
    peaks = {f"peak_flops.{unit}.{dtype}": (unit, dtype) for unit, dtype in gpu.peaks}
    for name in texts:
        if name not in VALUES and _peak_name(name) not in peaks:
            raise unknown_name("value", name, (*VALUES, *peaks), f"a value of {gpu.id} to --set")
    changed = gpu
    for name in sorted(texts, key=lambda each: VALUES.index(each) if each in VALUES else len(VALUES)):
        changed = _with_value(changed, gpu, name, texts[name])
    said = tuple(f"{name}={text}" for name, text in texts.items())
    return replace(changed, changed=(*gpu.changed, *said))


def _texts(values: Values) -> dict[str, str]:
    """Name -> its text; a name that appears twice is refused."""
    if isinstance(values, Mapping):
        return {str(name): text if isinstance(text, str) else _base(name, text) for name, text in values.items()}
    texts: dict[str, str] = {}
    if not isinstance(values, Iterable):
        raise RequestError(f"--set {values!r:.40}: expected NAME=VALUE, such as power_limit=500W")
    for word in values.split() if isinstance(values, str) else values:
        name, equals, text = (part.strip() for part in str(word).partition("="))
        if not (name and equals and text):
            raise RequestError(f"--set {word}: expected NAME=VALUE, such as power_limit=500W")
        if name in texts:
            raise RequestError(f"--set {word}: {name} is set twice; expected once")
        texts[name] = text
    return texts


def _base(name: str, value: float) -> str:
    """A number in base units as a text with its unit."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(f"--set {name}={value!r}: expected a text with a unit, or a number")
    units = {"count": "", "frequency": "Hz", "bandwidth": "B/s", "bytes": "B", "power": "W"}
    unit = units[QUANTITIES[name][1]] if name in VALUES else "FLOP/s"
    return f"{value}{unit}" if unit else f"{value:g}"


def _peak_name(name: str) -> str:
    """``peak_flops.matrix.BF16`` by the names of a GPU file."""
    head, _, dtype = name.rpartition(".")
    try:
        return f"{head}.{canonical(dtype)}" if head else name
    except RequestError:
        return name


def _with_value(gpu: GPUSpec, original: GPUSpec, name: str, text: str) -> GPUSpec:
    """``gpu`` with one value; ``original`` says what is plausible."""
    if name in VALUES:
        field, dimension, _ = QUANTITIES[name]
        before, now = getattr(gpu, field), getattr(original, field)
    else:
        _, unit, dtype = _peak_name(name).split(".")
        dimension, before = "rate", gpu.peaks[unit, dtype]
        now = original.peaks[unit, dtype]
    try:
        value = parse_quantity(text, dimension)
    except RequestError as error:
        raise RequestError(f"--set {name}={text}: {error}") from None
    if not 1.0 / _MOST_TIMES <= value / now <= _MOST_TIMES:
        raise RequestError(f"--set {name}={text}: {value / now:.3g} times that of {gpu.id}; expected 0.01 to 100")
    if name not in VALUES:
        return replace(gpu, peaks={**gpu.peaks, (unit, dtype): value})
    if name in ("sm_count", "boost_clock"):
        return vary(gpu, "clock" if name == "boost_clock" else name, value / before)
    fields: dict[str, Any] = {field: round(value) if isinstance(before, int) else value}
    return replace(gpu, **fields)


def held_at(gpu: GPUSpec, clock_hz: float) -> GPUSpec:
    """``gpu`` with its clock set to ``clock_hz`` (nvidia-smi -ac, -lgc), with its peaks; itself where that is no less.

    A driver rounds a clock to its steps, so that one within 1 % of the boost clock is that. RequestError below 100 MHz.
    """
    if not clock_hz >= _LEAST_CLOCK_HZ:
        raise RequestError(f"clock {clock_hz / 1e6:g} MHz: expected 100 MHz or more")
    return vary(gpu, "clock", clock_hz / gpu.boost_clock_hz) if clock_hz < 0.99 * gpu.boost_clock_hz else gpu


def _scaled(gpu: GPUSpec, factor: float) -> dict[tuple[str, str], float]:
    return {key: peak * factor for key, peak in gpu.peaks.items()}
