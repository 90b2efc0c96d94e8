"""Measured latencies against what their GPU can do: rows that no kernel can have taken are kept apart and named.

Too fast is below the roofline's bound, which knows that operands may lie in L2 (`predictor.ops.roofline`). Too slow
cannot be told from the roofline alone: a small eager call waits for its host and takes a thousand times its bound, so
that a host's time is added to the bound first. Where most rows of a file are too fast or too slow, its unit is wrong,
and the file is refused with the unit that it seems to be in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from predictor.data import dataset
from predictor.data.frame import Frame
from predictor.data.row_values import row_name
from predictor.data.schema import OP_COLUMNS, TILE_PROBE
from predictor.errors import SpecError, TilecastError
from predictor.files.extras import require
from predictor.files.records import dataclass
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.ops.roofline import TOLERANCE, roofline

TOO_FAST, TOO_SLOW, REPEATED = "beats_roofline", "far_above_roofline", "repeated"
#: A row is too slow beyond so many times (its cold roofline + 0.1 ms of host). Chosen by looking at 4.2 million public
#: rows: the slowest have 705 (an MoE layer whose kernel was not tuned) and 200 (attention); of other operators 28.
_HOST_S = 1e-4
_SLOWEST: Mapping[str, float] = {"moe": 800.0}
_SLOWEST_OTHER = 300.0
#: A file's unit is wrong where half of its rows are beyond so many times (cold roofline + 20 us). Chosen by looking at
#: public tables: half of the rows of any operator and framework are below 5 times.
_CALL_S, _UNIT_LIMIT = 2e-5, 50.0
#: The same limit for rows of the harness, which say their unit and may come from a busy machine: a kernel of 4 us, in
#: microseconds, has 1,000 * 4 us / 20 us. Chosen by hand, not from data.
HARNESS_UNIT_LIMIT = 200.0
#: What rows have to say where they are too fast, and by no unit's factor.
_AS_MEASURED = "the GPU, dtype and sizes that were measured"
_MILLI = "milliseconds"
#: So many of a unit make a millisecond, by definition.
_UNITS = {"seconds": 1e-3, "microseconds": 1e3, "nanoseconds": 1e6}
#: Bytes that an operator moves, over its GPU's memory: operands are read and written once, so 2 is the most.
_MOST_OF_MEMORY = 2.0
_NAMED = 5  # rows that a message names: chosen by hand, not from data


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of n rows, in seconds, each of shape (n,); NaN where the GPU or its peak is not known. ``of_memory``: bytes moved
    over the GPU's memory."""

    lower_s: Any
    cold_s: Any
    of_memory: Any


def bounds(frame: Frame, devices: Mapping[str, GPUSpec] | None = None) -> Bounds:
    """The roofline of every row; ``devices`` are GPUs that the catalogue lacks, by id."""
    np, pd = require("numpy"), require("pandas")
    limits = Bounds(*(np.full(len(frame), math.nan) for _ in range(3)))
    keys = ["op", "dtype", "quant", *(c.name for c in OP_COLUMNS if c.name in frame)]
    if not len(frame):
        return limits
    shapes = frame[keys]
    number = shapes.groupby(keys, observed=True, dropna=False, sort=False).ngroup().to_numpy()
    _, first = np.unique(number, return_index=True)
    ops = np.array([None, *dataset.ops_of(shapes.iloc[first])], dtype=object)[1:]
    gpus = frame["gpu"].astype(object).to_numpy()
    dtypes = shapes["dtype"].astype(object).to_numpy()
    for (name, dtype), at in pd.Series(range(len(frame))).groupby([gpus, dtypes]).indices.items():
        gpu = (devices or {}).get(name) or _gpu(name)
        if gpu is None or not gpu.supports(dtype):
            continue
        distinct, back = np.unique(number[at], return_inverse=True)
        distinct_ops = list(ops[distinct])
        line = roofline(distinct_ops, gpu)
        limits.lower_s[at], limits.cold_s[at] = line.lower_bound_s[back], line.cold_s[back]
        moved = np.array([op.bytes_read() + op.bytes_written() for op in distinct_ops])
        limits.of_memory[at] = moved[back] / gpu.memory_capacity
    return limits


@cache
def _gpu(name: str) -> GPUSpec | None:
    try:
        return load_gpu(name)
    except TilecastError:
        return None


def check_gpus(frame: Frame, where: str, devices: Mapping[str, GPUSpec]) -> None:
    """Raises SpecError, one line, for the first row of a GPU that is neither in ``devices`` nor in the catalogue."""
    names = frame["gpu"].astype(str)
    for name in names.unique():
        try:
            devices.get(name) or load_gpu(name)
        except TilecastError as error:
            row = row_name(frame, int((names == name).to_numpy().argmax()), where)
            raise SpecError(f"{row}: {error}") from None


def add_flag(frame: Frame, rows: Any, flag: str) -> None:
    """Adds a reason to keep rows (boolean, shape (n,)) of ``frame`` apart, in place."""
    np, pd = require("numpy"), require("pandas")
    if not rows.any():
        return
    flags = frame["flag"].astype(object).to_numpy(dtype=object).copy()
    flags[rows] = np.array([f"{old};{flag}" if old else flag for old in flags[rows]], dtype=object)
    frame["flag"] = pd.Categorical(flags)


def keep_apart(
    frame: Frame, where: str, devices: Mapping[str, GPUSpec] | None = None, say: Callable[[str], None] | None = None,
    unit_limit: float = _UNIT_LIMIT,
) -> None:  # fmt: skip
    """Flags the rows that no kernel can have taken, and copies of a row, in place, and says which they are.

    Rows that are flagged already stay as they are, but for tile probes.

    Raises SpecError, one line, where most rows are so, and for operands that are larger than the GPU's memory.
    """
    np = require("numpy")
    add_flag(frame, frame["flag"].astype(str).isin(("", TILE_PROBE)).to_numpy() & repeats(frame), REPEATED)
    count = int(frame["flag"].astype(str).str.split(";").map(lambda flags: REPEATED in flags).sum())
    if count and say is not None:
        say(f"{where}: {count:,} rows kept apart, each the same as a row above it in every column: that one counts")
    free = frame["flag"].astype(str).isin(("", TILE_PROBE)).to_numpy()
    limits = bounds(frame, devices)
    free = free & np.isfinite(limits.lower_s)
    large = free & (limits.of_memory > _MOST_OF_MEMORY)
    if large.any():
        row = int(large.argmax())
        raise SpecError(
            f"{row_name(frame, row, where)}: {_shape(frame, row)} moves {limits.of_memory[row]:.3g} times the memory of"
            f" {frame['gpu'].iloc[row]}: expected a shape that fits"
        )
    seconds = frame["latency_ms"].to_numpy(dtype=float) / 1e3
    limit = np.array([_SLOWEST.get(op, _SLOWEST_OTHER) for op in frame["op"].astype(str)])
    fast = free & (seconds < TOLERANCE * limits.lower_s)
    slow = free & (seconds > limit * (limits.cold_s + _HOST_S))
    if free.any():
        _check_unit(seconds[free] / (limits.cold_s[free] + _CALL_S), int((fast | slow).sum()), where, unit_limit)
    for rows, flag, said in ((fast, TOO_FAST, "below"), (slow, TOO_SLOW, "far above")):
        add_flag(frame, rows, flag)
        _name(frame, rows, limits, f"{said} its roofline", where, say)


def _check_unit(ratio: Any, impossible: int, where: str, limit: float) -> None:
    np = require("numpy")
    middle = float(np.median(ratio))
    if impossible * 2 <= len(ratio) and middle <= limit:
        return
    unit = _nearest_unit(middle)
    raise SpecError(
        f"{where}: latency_ms of half of {len(ratio):,} rows is {middle:.3g} times the roofline with a launch or more"
        f" extreme, {impossible:,} rows are impossible: expected "
        + (_AS_MEASURED if unit == _MILLI else f"{_MILLI}, these look like {unit}")
    )


def _nearest_unit(ratio: float) -> str:
    """The unit in which times that are ``ratio`` times what is expected in milliseconds seem to be."""
    units = {_MILLI: 1.0, **_UNITS}
    return min(units, key=lambda name: abs(math.log(ratio / units[name])))


#: Rows of a suite from which on its unit is judged: chosen by hand, not from data.
_FEWEST_OF_SUITE = 5


def check_suite_unit(measured: Any, predicted: Any, where: str, column: str) -> None:
    """SpecError, one line, where measured times are, in the median, nearer to their forecasts in another unit than in
    milliseconds; ``measured`` and ``predicted`` of shape (n,), NaN where there is none. Few rows say nothing."""
    np = require("numpy")
    known = np.isfinite(measured) & np.isfinite(predicted)
    if known.sum() < _FEWEST_OF_SUITE:
        return
    middle = float(np.median(measured[known] / predicted[known]))
    unit = _nearest_unit(middle)
    if unit != _MILLI:
        raise SpecError(
            f"{where}: {column} of {int(known.sum()):,} rows is {middle:.3g} times the forecast in the median: expected"
            f" {_MILLI}, these look like {unit}"
        )


def check_suite_peaks(of_peaks: Mapping[str, Any], where: str) -> None:
    """SpecError, one line, where what the models ask for, in the measured times, is more than a peak of their GPUs
    gives in the median of the rows. ``of_peaks``: rate -> its share of the peak, (n,), NaN where it is not known; of a
    row, the largest counts. Few rows say nothing."""
    if not of_peaks:  # no row has a forecast
        return
    np = require("numpy")
    shares = np.array(list(of_peaks.values()))
    shares = shares[:, np.isfinite(shares).all(axis=0)]
    if shares.shape[1] < _FEWEST_OF_SUITE:
        return
    largest = shares.max(axis=0)
    middle = float(np.median(largest))
    if middle * TOLERANCE > 1.0:
        rate = list(of_peaks)[(shares * TOLERANCE > 1.0).sum(axis=1).argmax()]
        raise SpecError(
            f"{where}: the models of {len(largest):,} rows need {middle:.3g} times the {rate} of their GPU's peak in"
            f" the median, which is impossible: expected {_AS_MEASURED}"
        )


def _name(frame: Frame, rows: Any, limits: Bounds, said: str, where: str, say: Callable[[str], None] | None) -> None:
    """One line for a file: how many rows, and the first of them with value and roofline."""
    at: Sequence[int] = rows.nonzero()[0].tolist()
    if not at or say is None:
        return
    shown = ", ".join(
        f"row {row + 1} ({_shape(frame, row)}: {frame['latency_ms'].iloc[row]:.3g} ms,"
        f" roofline {limits.lower_s[row] * 1e3:.3g} ms)"
        for row in at[:_NAMED]
    )
    more = f" and {len(at) - _NAMED:,} more" if len(at) > _NAMED else ""
    say(f"{where}: {len(at):,} rows kept apart, each {said}: {shown}{more}")


def _shape(frame: Frame, row: int) -> str:
    return f"{frame['op'].iloc[row]} on {frame['gpu'].iloc[row]}"


def repeats(frame: Frame, but: Sequence[str] = ()) -> Any:
    """(n,) True for rows that are the same as an earlier one in every column, source row included, ``but`` for these:
    a copy weighs nothing. Two measurements of one shape are two rows of a source."""
    np, pd = require("numpy"), require("pandas")
    origin = [name for name in ("source_file", "source_row") if name not in but]
    repeated = np.zeros(len(frame), dtype=bool)
    near = np.flatnonzero(frame.duplicated(origin, keep=False).to_numpy())
    if len(near):
        part = frame.iloc[near].drop(columns=list(but))
        text = {name: str for name in part.columns if part[name].dtype == "category"}
        repeated[near] = pd.util.hash_pandas_object(part.astype(text), index=False).duplicated().to_numpy()
    return repeated


def refuse_repeats(parts: Sequence[tuple[Path, Frame]]) -> None:
    """Raises SpecError, one line, where a row of one file stands in another, too: it would count twice.

    A row is the same where every column agrees, source file and row included. Only rows of a source file that stands in
    several of ``parts`` are compared.
    """
    np, pd = require("numpy"), require("pandas")
    keys = ["source", "source_file"]
    origins = Counter(row for _, frame in parts for row in set(frame[keys].drop_duplicates().itertuples(index=False)))
    shared = pd.DataFrame([row for row, files in origins.items() if files > 1], columns=keys)
    seen: dict[int, tuple[Path, int]] = {}
    for path, frame in parts if len(shared) else ():
        alike = frame[keys].astype(str).merge(shared.astype(str).assign(shared=True), on=keys, how="left")["shared"]
        rows = np.flatnonzero(alike.notna().to_numpy())
        part = frame.iloc[rows].astype({name: str for name in frame.columns if frame[name].dtype == "category"})
        hashes = pd.util.hash_pandas_object(part, index=False).tolist()
        known = [i for i, value in enumerate(hashes) if value in seen]
        if known:
            other, its = seen[hashes[known[0]]]
            raise SpecError(
                f"--data {path}, row {int(part.index[known[0]]) + 1}: stands in {other}, row {its + 1},"
                f" too, as {len(known):,} rows do; expected every row once"
            )
        seen |= {value: (path, int(row)) for value, row in zip(hashes, part.index, strict=True)}
