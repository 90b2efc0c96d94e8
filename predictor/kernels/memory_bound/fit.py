"""Fits the estimator of memory-bound operators (`predictor.kernels.memory_bound.core`).

Robust least squares (soft L1) on log latency over eager fp32 rows: constants shared by all GPUs, found on boards with
HBM; a share of bandwidth, a share of L2 and two host times a GPU. Rows near the host's floor tell nothing of the
kernel and are left out. GPUs that were only traced with a profiler (16-bit serving kernels) add their bandwidth shares
and the rate of kernels that move one element a thread. Rows are drawn by GPU and operator; the same seed gives the
same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data.frame import Frame
from predictor.data.schema import to_op
from predictor.errors import SpecError
from predictor.files.records import dataclass, replace
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.base import Batch, make_batch
from predictor.kernels.device import Device
from predictor.kernels.fitting.adapt import AFTER_LAUNCH_S, by_call, fitted_rows, launch_s, of_boards, of_rows
from predictor.kernels.fitting.family import Fitted, JointFit, SearchStage, fit
from predictor.kernels.fitting.solve import Unknowns
from predictor.kernels.gemm_fp32.tile_transfer import is_reference
from predictor.kernels.memory_bound.core import Constants, OperatorTraffic, kernel_seconds, traffic_of
from predictor.kernels.memory_bound.estimator import DTYPES, FAMILIES, MEMORY_TYPES

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

OPS = ("elementwise", "softmax", "norm")
#: Rows drawn of a GPU and operator, and the latency from which on they count in full: chosen by hand, not from data.
ROWS_PER_GROUP = {"elementwise": 600, "norm": 900, "softmax": 900}
FULL_WEIGHT_S = 1e-3
#: The host's time of a call is this quantile of an operator's latencies; rows count from this many times it on. Chosen
#: by looking at NeuSight's test tables (benchmarks/results/accuracy-2026-11-23.md, How blind is it).
HOST_QUANTILE = 0.1
ABOVE_HOST = {"elementwise": 2.0, "softmax": 2.0, "norm": 1.3}
#: Where the share of L2 that holds rows in flight starts, and how often the search may try: chosen by hand, not from
#: data.
HOLD = 0.6
EVALUATIONS = 60

#: Where the search starts. `_KEPT` stay there, but for `gather` and `scalar_share`, which traced rows tell where there
#: are some; `gather` starts at what Vidur's A40, A100 and H100 tell (1.7 to 2.0), the others were chosen by hand, not
#: from data.
START = Constants(
    warp_row=1000.0, warp_element=40.0, warp_unaligned=0.5, softmax_row=30000.0, softmax_element=15.0,
    norm_row=3000.0, norm_element=20.0, spill_width=0.25, resident=0.3, l2_share=0.35, norm=3.0,
    fixed_s=2e-6, gather=1.8, scalar_share=0.12,
)  # fmt: skip
_KEPT = ("gather", "scalar_share", "resident", "fixed_s", "norm", "l2_share", "spill_width")

#: Serving kernels timed by a profiler: rows drawn a GPU and operator, what counts as far larger than L2, rows needed.
#: Chosen by hand, not from data.
TRACED_OPS = ("elementwise", "norm", "rotary", "embedding")
TRACED_ROWS = 600
LARGE = 3.0
MIN_TRACED = 20
#: Largest over smallest sum from which on a slope tells more than a median; constants that traced rows tell, by what an
#: operator's traffic has then, and the values that are tried: chosen by hand, not from data. Vidur's rows tell 0.11 and
#: 1.73.
SLOPE_RANGE = 1.2
TRACED_CONSTANTS = {
    "scalar_share": ("scalar", np.geomspace(0.05, 0.3, 40)), "gather": ("gathers", np.geomspace(0.5, 5.0, 40)),
}  # fmt: skip

#: Shares for memory types that no measured board has: HBM3 and GDDR6X after the type before them.
TYPE_BEFORE = {
    "HBM2e": "HBM2", "HBM3": "HBM2e", "HBM3e": "HBM3", "GDDR6": "GDDR5", "GDDR6X": "GDDR6", "GDDR7": "GDDR6X",
}  # fmt: skip


@dataclass
class OperatorRows:
    """Measured operators: their traffic and, of shape (n,), GPU, operator, latency and weight."""

    traffic: OperatorTraffic
    gpu: IntArray
    op: IntArray  # index into `OPS`
    seconds: FloatArray
    weight: FloatArray
    host: FloatArray  # (gpus, ops): what a call takes the host, seen where the kernel is short


def read_rows(frame: Frame, gpus: list[GPUSpec], seed: int) -> OperatorRows:
    """A sample of the eager fp32 rows of ``frame`` on ``gpus``."""
    random = np.random.default_rng(seed)
    frame = fitted_rows(frame, OPS)
    frame = frame[frame["protocol"].astype(str) == "eager_events"]
    host = np.full((len(gpus), len(OPS)), np.nan)
    parts: list[OperatorTraffic] = []
    gpu: list[IntArray] = []
    kind: list[IntArray] = []
    seconds: list[FloatArray] = []
    for g, spec in enumerate(gpus):
        for j, op in enumerate(OPS):
            measured = frame[(frame["gpu"].astype(str) == spec.id) & (frame["op"].astype(str) == op)]
            if len(measured) == 0:
                continue
            host[g, j] = float(measured["latency_ms"].quantile(HOST_QUANTILE)) * 1e-3
            measured = measured[measured["latency_ms"] * 1e-3 > ABOVE_HOST[op] * host[g, j]]
            measured = measured.iloc[np.sort(random.permutation(len(measured))[: ROWS_PER_GROUP[op]])]
            if len(measured) == 0:
                continue
            ops = [to_op(row) for row in measured.to_dict("records")]
            parts.append(traffic_of(make_batch(ops[0].family, ops), spec))
            gpu.append(np.full(len(measured), g))
            kind.append(np.full(len(measured), j))
            seconds.append(measured["latency_ms"].to_numpy(dtype=np.float64) * 1e-3)
    if not parts:
        raise SpecError("no memory-bound rows to fit: expected eager fp32 rows of " + ", ".join(OPS))
    traffic = OperatorTraffic(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(OperatorTraffic)))
    time = np.concatenate(seconds)
    weight = np.sqrt(np.clip(time / FULL_WEIGHT_S, 0.05, 1.0))
    return OperatorRows(traffic, np.concatenate(gpu), np.concatenate(kind), time, weight, host)


class Traced:
    """16-bit kernels of serving frameworks, timed by a profiler: no host in them, on GPUs without eager tables."""

    def __init__(self, frame: Frame, gpus: list[GPUSpec], seed: int) -> None:
        random = np.random.default_rng(seed)
        traced = frame[(frame["protocol"].astype(str) == "profiler") & frame["op"].astype(str).isin(TRACED_OPS)]
        if "flag" in traced:
            traced = traced[traced["flag"].astype(str) == ""]
        self.groups: list[tuple[GPUSpec, Batch, FloatArray]] = []
        self.sums: list[tuple[GPUSpec, Batch, FloatArray]] = []
        for spec in gpus:
            for op in TRACED_OPS:
                measured = traced[(traced["gpu"].astype(str) == spec.id) & (traced["op"].astype(str) == op)]
                drawn = measured.iloc[np.sort(random.permutation(len(measured))[:TRACED_ROWS])]
                if len(drawn):
                    self.groups.append((spec, *_batch(drawn)))
                if op == "elementwise":
                    sums = measured[measured["fn"].astype(str) == "add"]  # 6 bytes an element in 16 bit
                    sums = sums[sums["elements"] * 6.0 > LARGE * spec.l2_bytes]
                    if len(sums) >= MIN_TRACED:
                        self.sums.append((spec, *_batch(sums)))

    def boards(self, hold: float) -> dict[str, tuple[float, float]]:
        """Bandwidth share of each GPU from sums far larger than its L2; the share of L2 is the others' median.

        A profiler repeats a sum, so that some of its operands is in L2 still, as much of large ones as of small ones:
        the rate is that of the bytes by which sums differ.
        """
        boards: dict[str, tuple[float, float]] = {}
        for spec, batch, seconds in self.sums:
            moved = traffic_of(batch, spec).once
            large = (moved > LARGE * spec.l2_bytes) & (seconds > 20e-6)
            if large.sum() >= MIN_TRACED:
                rate = _rate(moved[large], seconds[large] - START.fixed_s)
                boards[spec.id] = (min(rate / spec.memory_bandwidth, 0.97), hold)
        return boards

    def best(self, boards: Mapping[str, tuple[float, float]], const: Constants, name: str) -> float:
        """The value of a constant that fits its operators best (mean absolute log error over a grid)."""
        field, grid = TRACED_CONSTANTS[name]
        groups = [(g, b, s) for g, b, s in self.groups if g.id in boards and getattr(traffic_of(b, g), field).any()]
        if not groups:
            return float(getattr(START, name))
        errors = []
        for value in grid:
            trial = replace(const, **{name: float(value)})
            error = [np.abs(np.log(self._seconds(g, b, boards[g.id], trial) / s)).mean() for g, b, s in groups]
            errors.append(np.mean(error))
        return float(grid[int(np.argmin(errors))])

    @staticmethod
    def _seconds(gpu: GPUSpec, batch: Batch, scalars: tuple[float, float], const: Constants) -> FloatArray:
        device = Device.sheet(gpu, gpu.vector_flops("fp32")).sustaining(bandwidth=scalars[0])
        return kernel_seconds(traffic_of(batch, gpu), device, scalars[1], const)


def _batch(rows: Frame) -> tuple[Batch, FloatArray]:
    """Rows of one operator and framework as a batch, and their seconds."""
    ops = [to_op(row) for row in rows.to_dict("records")]
    seconds = rows["latency_ms"].to_numpy(dtype=np.float64) * 1e-3
    return make_batch(ops[0].family, ops, str(rows["framework"].iloc[0])), seconds


def _rate(moved: FloatArray, seconds: FloatArray) -> float:
    """Bytes/s of kernels that move ``moved`` bytes in ``seconds``, both (n,), but for bytes that all find in L2.

    The slope of a line through them (each point's error relative to its time); the median rate where sizes are too
    much alike for a slope, and no more than that, as L2 only ever helps.
    """
    overall = float(np.median(moved / seconds))
    if moved.max() < SLOPE_RANGE * moved.min():
        return overall
    slope, _ = np.polyfit(moved, seconds, 1, w=1.0 / seconds)
    return min(overall, 1.0 / float(slope)) if slope > 0.0 else overall


class MemoryFit(JointFit):
    """Constants, both shares, and the host's times after a launch, all as logarithms."""

    most = EVALUATIONS

    def __init__(self, frame: Frame, gpus: Mapping[str, GPUSpec], seed: int) -> None:
        self.specs = gpus
        self.gpus, self.rows = of_boards(partial(read_rows, seed=seed), frame, gpus)
        others = sorted(set(frame["gpu"].astype(str)) & set(gpus) - {gpu.id for gpu in self.gpus})
        self.traced, count = Traced(frame, [gpus[name] for name in others], seed), len(self.gpus)
        self.boards = [Device.sheet(gpu, gpu.vector_flops("fp32")) for gpu in self.gpus]
        self.host = np.nan_to_num(self.rows.host, nan=3e-5)
        start = {name: np.log([getattr(START, name)]) for name in Constants.names() if name not in _KEPT}
        start |= {"share": np.full(count, np.log(0.85)), "hold": np.full(count, np.log(HOLD))}
        start["after"] = np.full(2 * count, np.log(AFTER_LAUNCH_S))
        self.unknowns = Unknowns(start, {"hold": 3.0, "after": 3.0}, 0.3)
        self.start, self.pull = self.unknowns.start, self.unknowns.pull

    def parts(self, x: FloatArray) -> tuple[Constants, FloatArray, FloatArray, FloatArray]:
        """Constants, and by GPU: bandwidth share, L2 share, and launch time by operator."""
        part = {name: np.exp(values) for name, values in self.unknowns.split(x).items()}
        after = part.pop("after").reshape(-1, 2)[:, (0, 1, 1)]  # element-wise; softmax and norm
        share, hold = part.pop("share"), part.pop("hold")
        const = replace(START, **{name: float(value[0]) for name, value in part.items()})
        return const, share, hold, launch_s(self.host, after)

    def seconds(self, x: FloatArray) -> FloatArray:
        """Measured latency that ``x`` gives for every row."""
        const, share, hold, launch = self.parts(x)
        g = self.rows.gpu
        device = of_rows(self.boards, g).sustaining(bandwidth=share[g])
        result: FloatArray = launch[g, self.rows.op] + kernel_seconds(self.rows.traffic, device, hold[g], const)
        return result

    def stages(self) -> Iterator[SearchStage]:
        """Everything on the reference boards (newer than Pascal, HBM), then the rest's own scalars."""
        reference = is_reference(self.gpus)
        if not reference.any():
            reference[:] = True
        log, weight = np.log(self.rows.seconds), self.rows.weight / 0.05

        def errors(rows: BoolArray, x: FloatArray) -> FloatArray:
            log_errors: FloatArray = ((np.log(self.seconds(x)) - log) * weight)[rows]
            return log_errors

        for boards, shared in ((reference, True), (~reference, False)):
            if boards.any():
                free = self.unknowns.marks({"share": boards, "hold": boards, "after": np.repeat(boards, 2)}, shared)
                yield SearchStage(partial(errors, boards[self.rows.gpu]), free)

    def artifact(self, boosters: Mapping[str, Any]) -> Fitted:
        """A `MemoryBound` of the boards that were measured, and of those that were only traced."""
        const, share, hold, launch = self.parts(self.x)
        boards = {g.id: (float(share[i]), float(hold[i])) for i, g in enumerate(self.gpus)}
        boards |= self.traced.boards(float(np.median(hold)))
        told = {name: self.traced.best(boards, const, name) for name in TRACED_CONSTANTS}
        known, shares = [self.specs[g] for g in boards], np.array([share for share, _ in boards.values()])
        manifest: dict[str, Any] = {
            "kind": "memory_bound", "name": "memory_bound", "families": list(FAMILIES), "dtypes": list(DTYPES),
            "gpus": list(boards), "boards": list(boards), "constants": asdict(replace(const, **told)), "calibrated": {},
            "features": ["read_bytes", "write_bytes", "rows", "cols"],
            "share_by_memory_type": share_by_type(known, shares),
            "share_by_architecture": share_by_architecture(known, shares),
            "hold_by_architecture": {
                a: float(np.median([hold[i] for i, g in enumerate(self.gpus) if g.architecture == a]))
                for a in sorted({g.architecture for g in self.gpus})
            },
            "eager_overhead_s": by_call(OPS, self.gpus, self.host, launch),
            "rows": len(self.rows.seconds),
        }  # fmt: skip
        return manifest, {"boards": np.array(list(boards.values()))}


def fit_memory_bound(frame: Frame, gpus: Mapping[str, GPUSpec], seed: int = 0) -> Fitted:
    """Manifest and weights of a `MemoryBound` fitted to the eager fp32 rows of ``frame`` on the GPUs of ``gpus``.

    ``frame`` is in the measurement schema; rows that it marks as test or flags are left out. Raises SpecError where
    nothing is left.
    """
    return fit(MemoryFit(frame, gpus, seed), seed)


def share_by_architecture(gpus: list[GPUSpec], share: FloatArray) -> dict[str, float]:
    """Median share of Pascal's boards: its memory controllers reach less than later ones do, whatever the memory."""
    shares = [float(s) for g, s in zip(gpus, share, strict=True) if g.architecture == "pascal"]
    return {"pascal": float(np.median(shares))} if shares else {}


def share_by_type(gpus: list[GPUSpec], share: FloatArray) -> dict[str, float]:
    """Median share of each memory type; a type that no board has takes the one before it (`TYPE_BEFORE`).

    Pascal's boards speak for a type that no later board has, and otherwise for Pascal alone.
    """
    by_type: dict[str, float] = {}
    for kind in MEMORY_TYPES:
        shares = [(g, float(s)) for g, s in zip(gpus, share, strict=True) if g.memory_type == kind]
        shares = [(g, s) for g, s in shares if g.architecture != "pascal"] or shares
        if shares:
            by_type[kind] = float(np.median([s for _, s in shares]))
        elif TYPE_BEFORE.get(kind) in by_type:
            by_type[kind] = by_type[TYPE_BEFORE[kind]]
    return by_type
