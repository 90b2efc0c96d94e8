"""From operators to latencies: latency = max(bound, seconds), here and nowhere else.

The roofline law holds by construction. An estimator answers with the seconds that a kernel takes by what it knows; the
forecast is the lower bound where that claims to beat it, and these seconds as they are elsewhere. Utilization, bound
over latency, follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Protocol

import numpy as np

from predictor.engines import EAGER, answering
from predictor.errors import SpecError
from predictor.files.records import dataclass, replace
from predictor.hardware.gpu import GPUSpec
from predictor.hardware.what_if import as_filed
from predictor.kernels.interval import Group, OperatorIntervals, spread
from predictor.ops.base import HOST, Op
from predictor.ops.roofline import FloatArray, bound_name, roofline


def cold_weights_s(ops: Sequence[Op], gpu: GPUSpec) -> FloatArray:
    """Time in which what a pass finds in no cache comes from DRAM at the data sheet's rate, (n,); 0 for other ops.

    That is the weights of linear layers and experts, and the KV cache of a decode step. A table's kernels come back to
    the same bytes: its GEMMs take turns between some copies of a weight, its decode attention reads one cache again and
    again. Where those fit L2 they are timed from there. A pass comes back to a layer's bytes after all the others of
    its model, which L2 does not hold (a model that fits L2 whole is taken for one that does not). Attention's cores
    count it, too: streams reach less than the data sheet's rate (`predictor.kernels.attention.core`).
    """
    return np.array([op.cold_bytes() for op in ops]) / gpu.memory_bandwidth


ROOFLINE = "roofline"
ESTIMATOR = "estimator"


@dataclass(frozen=True, slots=True)
class Batch:
    """n operators of one family, as the family's estimator reads them.

    ``columns`` holds an array of shape (n,) for each name in the operator class's ``columns``; ``kernels`` names the
    library whose kernels run (`predictor.engines.libraries`). ``cold`` says that weights and KV caches lie in DRAM
    (`predictor.kernels.base`).
    """

    family: str
    ops: tuple[Op, ...]
    columns: Mapping[str, FloatArray]
    dtypes: tuple[str, ...]
    kernels: str = EAGER.kernels
    cold: bool = False


def make_batch(family: str, ops: Sequence[Op], kernels: str = EAGER.kernels, cold: bool = False) -> Batch:
    """Operators of one family as a batch."""
    names = _columns_of(ops)
    if len(names) == 1:
        table = np.array([[getattr(op, names[0])] for op in ops], dtype=np.float64)
    else:
        getter = attrgetter(*names)
        table = np.array([getter(op) for op in ops], dtype=np.float64)
    columns = {name: table[:, i] for i, name in enumerate(names)}
    return Batch(family, tuple(ops), columns, tuple(op.dtype for op in ops), kernels, cold)


def _columns_of(ops: Sequence[Op]) -> tuple[str, ...]:
    return ops[0].columns


class Estimator(Protocol):
    """What an artifact loads into."""

    name: str

    def seconds(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        """Seconds of the kernels, positive and finite, of shape (n,); no bound is laid on them here."""
        ...


class Selector(Protocol):
    """Picks the estimator of an operator, or None where the roofline answers."""

    def select(self, family: str, dtype: str) -> Estimator | None: ...


@dataclass(frozen=True, slots=True)
class KernelPrediction:
    """One operator's forecast. ``source`` is "estimator" or "roofline"; ``estimator`` names the artifact.

    ``interval_s`` is None where the set has no intervals; ``inside`` False outside the range of what was measured.
    """

    latency_s: float
    lower_bound_s: float
    utilization: float
    bound: str
    source: str
    estimator: str = ""
    interval_s: tuple[float, float] | None = None
    inside: bool = True


@dataclass(frozen=True, slots=True)
class KernelTable:
    """Forecasts of n operators; arrays of shape (n,), names of the estimators that gave them."""

    latency_s: FloatArray
    lower_bound_s: FloatArray
    compute_s: FloatArray
    dram_s: FloatArray
    link_s: FloatArray
    estimators: tuple[str, ...]
    spread: OperatorIntervals | None = None

    @property
    def cold_s(self) -> FloatArray:
        """The roofline with a cold cache: the longest of compute, memory and link."""
        return np.maximum(np.maximum(self.compute_s, self.dram_s), self.link_s)

    def row(self, i: int) -> KernelPrediction:
        """The i-th operator's forecast."""
        latency = float(self.latency_s[i])
        name = self.estimators[i]
        interval, inside = None, True
        if self.spread is not None:
            inside = bool(self.spread.inside[i])
            if np.isfinite(self.spread.high_s[i]):
                interval = float(self.spread.low_s[i]), float(self.spread.high_s[i])
        return KernelPrediction(
            latency,
            float(self.lower_bound_s[i]),
            float(self.lower_bound_s[i]) / latency,
            bound_name(float(self.compute_s[i]), float(self.dram_s[i]), latency, float(self.link_s[i])),
            ESTIMATOR if name else ROOFLINE,
            name,
            interval,
            inside,
        )


def _done_before_s(batch: Batch, gpu: GPUSpec, selector: Selector) -> FloatArray | float:
    """Seconds, (n,), that estimators count because kernels were measured so, and these calls do without
    (`Op.done_before`); 0 where the library's were measured without."""
    kinds = answering(batch.kernels).quantizes
    parts = {i: part for i, op in enumerate(batch.ops) if (part := op.done_before()) is not None} if kinds else {}
    if not parts:
        return 0.0
    seconds = np.zeros(len(batch.ops))
    ops = [replace(part, kind=kind) for kind in kinds for part in parts.values()]
    latency_s = predict_kernels(ops, gpu, selector, batch.kernels).latency_s
    seconds[list(parts)] = latency_s.reshape(len(kinds), len(parts)).sum(axis=0)
    return seconds


def _without_done_before(
    seconds: Callable[[Batch, GPUSpec], FloatArray], batch: Batch, gpu: GPUSpec, selector: Selector
) -> FloatArray:
    """Seconds of a batch, (n,), without what other nodes have done before (`_done_before_s`).

    The part of a measured call that is left stays that of the board's file, whatever of the board is varied: two
    estimators' answers to one change are not for one to be taken from the other. A larger L2 makes the quantization
    faster and not the call that was measured with it, and no product is slower for that.
    """
    filed, whole = as_filed(gpu), seconds(batch, gpu)
    before = _done_before_s(batch, filed, selector)
    if filed is gpu or isinstance(before, float):
        return whole - before
    left: FloatArray = whole * (1.0 - before / seconds(batch, filed))
    return left


def _no_seconds(name: str, family: str, why: str) -> SpecError:
    """Constants that are each within their range may still make no time together."""
    return SpecError(
        f"estimator {name!r} gives no time of {family}: {why}; expected a set that `tilecast train` wrote (--artifacts)"
    )


def predict_kernels(
    ops: Sequence[Op], gpu: GPUSpec, selector: Selector, kernels: str = EAGER.kernels,
    kernels_of: Callable[[Op], str] | None = None, cold: bool = False,
) -> KernelTable:  # fmt: skip
    """Latency of every operator: grouped by family and estimator, each group in one vectorised call.

    ``kernels`` names the library whose kernels run; ``kernels_of``, where given, says it of each operator.
    ``cold``: weights and KV caches come from DRAM, as in a pass of an engine (`predictor.kernels.base`).
    """
    bounds = roofline(ops, gpu)
    floor = np.maximum(bounds.lower_bound_s, cold_weights_s(ops, gpu)) if cold else bounds.lower_bound_s
    latency = np.maximum(bounds.cold_s, floor)
    names = [""] * len(ops)
    groups: dict[tuple[str, tuple[str, ...], str, int], tuple[Estimator, list[int]]] = {}
    chosen: dict[tuple[str, str], Estimator | None] = {}
    copies: list[int] = []
    for i, op in enumerate(ops):
        known = op.family, op.dtype
        estimator = chosen[known] if known in chosen else chosen.setdefault(known, selector.select(*known))
        if estimator is not None:
            run_by = kernels if kernels_of is None else kernels_of(op)
            key = op.family, op.columns, run_by, id(estimator)
            if key not in groups:
                groups[key] = estimator, []
            groups[key][1].append(i)
            names[i] = estimator.name
        elif op.stream == HOST:
            copies.append(i)
    answered: list[Group] = []
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for (family, _, run_by, _), (estimator, members) in groups.items():
            index = np.array(members)
            batch = make_batch(family, [ops[i] for i in members], run_by, cold)
            try:
                seconds = _without_done_before(estimator.seconds, batch, gpu, selector)
            except FloatingPointError as error:
                raise _no_seconds(estimator.name, family, str(error)) from None
            if not np.isfinite(seconds).all():
                raise _no_seconds(estimator.name, family, "a time without end")
            latency[index] = np.maximum(floor[index], seconds)
            answered.append((estimator.name, batch.ops, batch.columns, index))
    intervals = spread(selector, gpu, answered, latency, floor, copies)
    return KernelTable(latency, floor, bounds.compute_s, bounds.dram_s, bounds.link_s, tuple(names), intervals)


#: (host, launch) by GPU, in seconds; "*", where there is one, for GPUs that it lacks.
Overheads = Mapping[str, Sequence[float]]


def overhead(known: Overheads, gpu_id: str, unknown: Sequence[float] = (0.0, 0.0)) -> tuple[float, float]:
    """(host, launch) of a GPU: its own, or the medians of the measured ones; ``unknown`` where there are none."""
    pair = known.get(gpu_id, known.get("*"))
    if pair is None:
        pair = np.median(np.array(list(known.values()) or [unknown]), axis=0)
    return float(pair[0]), float(pair[1])


def eager_seconds(seconds: FloatArray, host: FloatArray | float, launch: FloatArray | float = 0.0) -> FloatArray:
    """max(host, launch + kernel), of shape (n,): the host's time of a call, or the kernel behind its launch."""
    result: FloatArray = np.maximum(host, launch + seconds)
    return result


class Launched:
    """What estimators of calls that a host launches one by one share: the overheads of each kind of call, and those of
    calibrated GPUs, (host, launch) by kind."""

    _calls: Mapping[str, Overheads]
    _own_calls: Mapping[str, Mapping[str, Sequence[float]]]

    def eager_seconds(self, seconds: FloatArray, gpu_id: str, call: str) -> FloatArray:
        """What protocol "eager_events" reads for kernels of ``seconds``, (n,): the GPU's own overhead of such a
        ``call``, or the medians of the measured ones."""
        overhead_s = self._own_calls.get(gpu_id, {}).get(call)
        return eager_seconds(seconds, *(overhead_s or overhead(self._calls.get(call, {}), gpu_id)))
