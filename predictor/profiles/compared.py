"""A trace's operators against their forecasts on its own board, those first that cost the step most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from predictor.hardware.gpu import GPUSpec
from predictor.kernels.base import Selector, predict_kernels
from predictor.ops.base import Op
from predictor.ops.collective import Collective
from predictor.ops.gemm import Gemm
from predictor.profiles.linked import Linked
from predictor.profiles.steps import ProfiledStep
from predictor.profiles.summary import shape
from predictor.profiles.transfer import linked_op

#: Entries of a row that tensor cores' copies of 16 bytes want whole, in 16 bits; source: cuBLAS documentation, "Tensor
#: Core Usage" (pointers and leading dimensions of 16 bytes).
_WHOLE_ROWS = 8
#: Microseconds below which launches and tails are most of a kernel: chosen by hand, not from data.
_SHORT = 10.0
#: A longest call so many times the median was slowed down, or waited: chosen by hand, not from data.
_THROTTLED = 1.5


class OperatorCost(NamedTuple):
    """One operator: calls a step, and microseconds of a call, measured and forecast with its 80 % interval; what the
    difference costs a step, in milliseconds; and why, in one line."""

    operator: str
    shape: str
    calls: float
    measured_us: float
    forecast_us: float
    interval_us: tuple[float, float] | None
    cost_ms: float
    why: str


def compared(linked: Linked, steps: Sequence[ProfiledStep], gpu: GPUSpec, selector: Selector) -> list[OperatorCost]:
    """Every mapped operator of the steps. UnsupportedError, one line, where the board cannot compute in a dtype."""
    times: dict[tuple[Op, ...], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    names: dict[tuple[Op, ...], str] = {}
    for place, step in enumerate(steps):
        for row in step.rows.tolist():
            work = linked.work[row]
            if work.ops:
                # A replay repeats the calls of its capture, so that a step's calls are told apart by the step, too.
                key = place * (len(linked.trace.operators) + 10**9) + work.call
                times[work.ops][key] += float(linked.trace.kernels.length[row])
                names[work.ops] = work.name
    costs = []
    for ops, calls in times.items():
        table = predict_kernels([linked_op(op, gpu) for op in ops], gpu, selector, cold=True)
        forecast = float(table.latency_s.sum()) * 1e6
        interval, inside = None, True
        if table.spread is not None and np.isfinite(table.spread.high_s).all():
            interval = (float(table.spread.low_s.sum()) * 1e6, float(table.spread.high_s.sum()) * 1e6)
            inside = bool(table.spread.inside.all())
        took = np.array(list(calls.values()))
        measured, per_step = float(np.median(took)), len(took) / len(steps)
        cost = (float(took.sum()) - forecast * len(took)) / 1e3 / len(steps)
        why = _why(ops, measured, float(took.max()), forecast, interval, inside and all(table.estimators))
        costs.append(
            OperatorCost(
                names[ops], "; ".join(shape(op) for op in ops), per_step, measured, forecast, interval, cost, why
            )
        )
    return sorted(costs, key=lambda each: -abs(each.cost_ms))


def _why(
    ops: Sequence[Op], measured: float, longest: float, forecast: float, interval: tuple[float, float] | None,
    known: bool,
) -> str:  # fmt: skip
    if interval is not None and interval[0] <= measured <= interval[1]:
        return "within the forecast's interval"
    if any(isinstance(op, Collective) for op in ops):
        return "a collective's time holds what it waited for other ranks"
    if measured < _SHORT and forecast < _SHORT:
        return "short: launch and tail are most of it"
    first = ops[0]
    if isinstance(first, Gemm) and measured > forecast and any(n % _WHOLE_ROWS for n in (first.n, first.k)):
        return f"unaligned: n={first.n} k={first.k}, expected multiples of {_WHOLE_ROWS}"
    if longest > _THROTTLED * measured:
        return f"uneven: the longest call took {longest / measured:.1f} times the median (clock, or other work)"
    if not known:
        return "its kernel was not measured on such a board, or not at such a size"
    return f"{'slower' if measured > forecast else 'faster'} than the library's kernels that were measured"


def as_json(differences: Sequence[OperatorCost]) -> list[dict[str, Any]]:
    """The differences as objects."""
    return [each._asdict() for each in differences]
