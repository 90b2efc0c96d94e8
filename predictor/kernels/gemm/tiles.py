"""Rows of tile probes: what a tile takes on a board, measured, teaches the GEMM core of that board.

A probe's row names its tile, so that no choice of a library stands between the row and the core's constants
(`TAUGHT`). What it cannot tell stays as the set has it: the library's choice (what a split of K costs, the smallest
tile it has), what its measurements leave in L2, the kernel that quantizes activations, the trees; and how much faster
or slower than the probe's kernel the library's own runs on this board. That rate is shared by all boards: the median of
those that have rows of both kinds, and 1, the probe's kernel, where there are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor import engines
from predictor.data.frame import Frame
from predictor.data.schema import TILE_PROBE
from predictor.engines import EAGER
from predictor.files.records import dataclass, replace
from predictor.formats.quantization import activation_bytes, variant, weight_bytes
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.device import Device
from predictor.kernels.fitting.serving_rows import VariantRows
from predictor.kernels.fitting.solve import Solution, solve
from predictor.kernels.gemm.core import Constants, Shapes, Tiles, core_time
from predictor.ops.roofline import FloatArray

BoolArray = npt.NDArray[np.bool_]

#: A probe whose loop over K calls a product of the processor's library for every turn.
BLOCKED_SOURCE = "blocked"
#: Fewest rows of a board and variant: more than there are constants. Chosen by hand, not from data.
FEWEST = 16
#: Constants that rows of tile probes alone tell.
TAUGHT = (
    "compute_efficiency", "dram_efficiency", "l2_bytes_per_s_per_sm", "overhead_cycles", "tile_penalty", "step_cycles",
)  # fmt: skip
#: Of the dtypes that one variant answers for, the one whose rows are read where a board has several.
_PREFERRED = ("bf16", "fp16", "fp32", "tf32")
#: How far (standard deviation of the log) a constant of a board may lie from its start; a probe's rate from 1; the
#: cycles of a call from `_CALL_CYCLES`, some 10 us. Wide, as a board is probed because nothing like it was: by hand,
#: not from data.
SPREAD, RATE_SPREAD, CALL_SPREAD = 1.0, 0.3, 1.5
_CALL_CYCLES = 2e4

#: Those that lie closer. Chosen by looking at models/default, on whose boards bf16 products get 0.7 to 0.85 of DRAM's
#: bandwidth: few rows of a noisy machine say more than that.
_CLOSER = {"dram_efficiency": 0.25}
#: Log error of one row that counts as usual, at the least: a few times what a quiet machine's rows scatter. Chosen by
#: hand, not from data.
_ROW_ERROR = 0.05
#: What is usual of rows, over the median of their errors: by definition of a normal distribution 1.48.
_USUAL = 1.5
#: Where an efficiency starts at the most: from 1 on it has no slope. Chosen by hand, not from data.
_BELOW_PEAK = 0.95


def is_probe(frame: Frame) -> BoolArray:
    """(n,) True for rows of tile probes that nothing else keeps apart."""
    if "tile_m" not in frame:
        return np.zeros(len(frame), dtype=bool)
    named = frame["tile_m"].notna() & frame["tile_n"].notna() & frame["tile_k"].notna()
    return np.asarray((frame["flag"].astype(str) == TILE_PROBE) & named & (frame["op"].astype(str) == "gemm"), bool)


def tile_parts(frame: Frame, gpus: Mapping[str, GPUSpec]) -> Iterator[VariantRows]:
    """Parts of probes' rows, by GPU and variant; the path is that of the library that answers for PyTorch."""
    library = engines.answering(EAGER.kernels)
    names, dtypes = (frame[name].astype(str).to_numpy() for name in ("gpu", "dtype"))
    variants = np.array([variant(dtype) for dtype in dtypes], dtype=object).astype(str)
    for gpu, name in sorted(set(zip(names.tolist(), variants.tolist(), strict=True))):
        here = (names == gpu) & (variants == name)
        present = [d for d in (*_PREFERRED, *sorted(set(dtypes[here]))) if (dtypes[here] == d).any()]
        dtype = next((d for d in present if gpus[gpu].supports(d)), None)
        if dtype is None:
            continue
        rows = frame[here & (dtypes == dtype)]
        sizes = ("batch", "m", "n", "k", "tile_m", "tile_n", "tile_k")
        batch, m, n, k, tm, tn, tk = (np.asarray(rows[s].astype(float), dtype=np.float64) for s in sizes)
        called = (rows["kernel_source"].astype(str) == BLOCKED_SOURCE).all()
        tiles = Tiles(tm, tn, tk, call_cycles=_CALL_CYCLES if called else 0.0)
        shapes = Shapes(
            np.nan_to_num(batch, nan=1.0), m, n, k, activation_bytes(dtype), weight_bytes(dtype), tiles=tiles
        )
        seconds = np.asarray(rows["latency_ms"].astype(float), dtype=np.float64) * 1e-3
        device, code = Device.of(gpus[gpu], dtype), library.code
        yield VariantRows(gpu, f"{library.name}|{name}", name, device, shapes, code, np.log(seconds), dtype)


@dataclass(frozen=True, slots=True)
class Taught:
    """What probes say of a board: the core's constants, and what is the probe's own kernel's."""

    constants: Constants
    rate: float
    call_cycles: float
    before: FloatArray  # log errors of the probes' rows
    after: FloatArray

    def to_manifest(self, part: VariantRows, library_rows: int) -> dict[str, Any]:
        """What an artifact keeps of it."""
        return {
            "rows": part.size, "library_rows": library_rows, "dtype": part.dtype,
            "rate": round(self.rate, 6), "call_cycles": round(self.call_cycles, 1),
        }  # fmt: skip


def gaps(part: VariantRows, constants: Constants, rate: float, call_cycles: float) -> FloatArray:
    """Log errors (n,) of a probe's rows by the core with the tile that ran."""
    tiles: Tiles = part.shapes.tiles
    shapes = replace(part.shapes, tiles=replace(tiles, rate=rate, call_cycles=call_cycles if tiles.call_cycles else 0))
    result: FloatArray = np.log(core_time(shapes, part.device, constants).total) - part.log_latency
    return result


def teach(
    part: VariantRows,
    start: Constants,
    library: VariantRows | None = None,
    apart: FloatArray | None = None,
    rate: float = 1.0,
) -> Taught:
    """The constants that explain a probe's rows, and those of a library where there are any, and lie near ``start``.

    Without ``library`` rows only those of `TAUGHT` move, and ``rate`` is believed; with them all move, as far as
    ``apart`` (standard deviation of the log) says, and the rate is what both kinds of rows agree on.
    """
    names = Constants.names()
    start = replace(start, compute_efficiency=min(start.compute_efficiency, _BELOW_PEAK))
    logs = start.logs()
    free = np.array([library is not None or name in TAUGHT for name in names])
    spread = np.array([_CLOSER.get(name, SPREAD) for name in names]) if apart is None else apart
    called = part.shapes.tiles.call_cycles > 0.0
    scalars = [*((np.log(rate), RATE_SPREAD) for _ in range(library is not None))]
    scalars += [*((np.log(_CALL_CYCLES), CALL_SPREAD) for _ in range(called))]
    begin = np.concatenate([logs[free], [value for value, _ in scalars]])
    widths = np.concatenate([spread[free], [width for _, width in scalars]])
    count = int(free.sum())

    def read(x: FloatArray) -> tuple[Constants, float, float]:
        moved = dict(zip(np.array(names)[free].tolist(), np.exp(x[:count]).tolist(), strict=True))
        rest = np.exp(x[count:]).tolist()
        library_rate = rest.pop(0) if library is not None else rate
        return replace(start, **moved), library_rate, rest.pop(0) if called else 0.0

    def errors(x: FloatArray, usual: float) -> FloatArray:
        whole, speed, call = read(x)
        residuals = [gaps(part, whole, speed, call) / usual]
        if library is not None:
            core = core_time(library.shapes, library.device, whole).total
            residuals.append((np.log(core) - library.log_latency) / usual)
        return np.concatenate(residuals)

    def search(first: FloatArray, usual: float) -> Solution:
        return solve(lambda x: errors(x, usual), begin, 1.0 / widths, begin=first, step=1e-3, most=100)

    answers = [search(first, _ROW_ERROR) for first in _beginnings(part, names, logs, free, begin)]
    x = min(answers, key=lambda answer: answer.cost).x
    usual = _USUAL * float(np.median(np.abs(gaps(part, *read(x)))))
    if usual > _ROW_ERROR:  # a machine that had other work: its rows say less
        x = search(x, usual).x
    whole, speed, call = read(np.asarray(x, dtype=np.float64))
    return Taught(whole, speed, call, gaps(part, start, rate, _CALL_CYCLES), gaps(part, whole, speed, call))


def _beginnings(
    part: VariantRows, names: Sequence[str], start: FloatArray, free: BoolArray, begin: FloatArray
) -> Iterator[FloatArray]:
    """Where searches set out: where the rows show that a rate is, and with turns of the loop that are felt or not.

    A shortest turn that is never felt, or an L2 that is no faster than DRAM, has no slope to find another by.
    """
    flops = np.log(2.0 * part.shapes.batch * part.shapes.m * part.shapes.n * part.shapes.k) - part.log_latency
    seen = {
        "compute_efficiency": min(float(flops.max() - np.log(part.device.peak_flops)) + 0.1, np.log(_BELOW_PEAK)),
        "l2_bytes_per_s_per_sm": np.log(3.0 * part.device.bandwidth / part.device.sms),
        "overhead_cycles": float(part.log_latency.min() + np.log(0.8 * part.device.clock_hz)),
    }
    for longer in (1.0, 1.5, 2.5, 4.0):
        logs = np.array([seen.get(name, value) for name, value in zip(names, start, strict=True)])
        logs[names.index("step_cycles")] += np.log(longer)
        yield np.concatenate([np.where(free, logs, start)[free], begin[int(free.sum()) :]])


def shared_rate(probes: Mapping[str, Mapping[str, Any]], kind: str) -> float:
    """Rate of the probe's kernel over the library's in a variant: the median of boards with rows of both kinds.

    ``probes``: what artifacts keep, by "GPU|variant".
    """
    known = [float(p["rate"]) for key, p in probes.items() if key.split("|")[1] == kind and p["library_rows"]]
    return float(np.median(known)) if known else 1.0
