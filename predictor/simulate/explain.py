"""Why one operator of a forecast takes as long as it does: its bounds, and what its estimator says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from predictor.errors import unknown_name
from predictor.estimators.base import KernelPrediction, make_batch
from predictor.estimators.explanation import COUNT, Explains, Explanation, Term, terms
from predictor.ops.base import Op
from predictor.prediction import Explained
from predictor.simulate.breakdown import shape_text
from predictor.simulate.sustained import POWER, held_terms
from predictor.simulate.times import OpTime, TimedStage


def names_of(stages: Sequence[TimedStage]) -> list[str]:
    """Names of a run's operators, as a list of the longest ones has them, the longest first."""
    found: dict[str, float] = {}
    for timed in stages:
        for item in timed.op_times():
            name = item.name or item.op.label
            found[name] = found.get(name, 0.0) + float(timed.table.latency_s[item.index]) * item.times
    return sorted(found, key=lambda name: -found[name])


def explained(stages: Sequence[TimedStage], asked: str) -> Explained:
    """The operator called ``asked``; UnknownNameError with the nearest names."""
    known, said = names_of(stages), str(asked)
    wanted = next((name for name in known if name.lower() == said.strip().lower()), None)
    if wanted is None:
        raise unknown_name("operator of this run", said, known, "a name that --top lists", "--explain")
    table = stages[0].table
    total, times = 0.0, dict[int, float]()
    first: dict[int, OpTime] = {}
    for timed in stages:
        for item in timed.op_times():
            seconds = float(table.latency_s[item.index]) * item.times
            total += seconds
            if (item.name or item.op.label) == wanted:
                times[item.index] = times.get(item.index, 0.0) + item.times
                first.setdefault(item.index, item)
    index = max(times, key=lambda i: float(table.latency_s[i]) * times[i])
    item, row, operators = first[index], table.row(index), stages[0].operators
    estimator = operators.selector.select(item.op.family, item.op.dtype)
    why = Explanation((), row.bound)
    choose = operators.engine.library_of(operators.gpu)
    kernels = operators.engine.kernels if choose is None else choose(item.op)
    batch = make_batch(item.op.family, [item.op], kernels)
    if estimator is not None and hasattr(estimator, "explain"):
        why = cast(Explains, estimator).explain(batch, operators.gpu)
    ceilings = [float(column[index]) for column in (table.compute_s, table.dram_s, table.link_s)]
    kernel = float(estimator.seconds(batch, operators.gpu)[0]) if estimator is not None else 0.0
    bound = why.bound or row.bound
    if estimator is not None and row.latency_s > kernel * (1 + 1e-9):
        bound = "the lower bound, above what the estimator says"
    power = held_terms(operators, index)
    bound = POWER if power else bound
    others = tuple(sorted({shape_text(one.op) for i, one in first.items() if i != index} - {shape_text(item.op)}))
    return Explained(
        wanted, item.op.label, shape_text(item.op), item.phase, times[index], row.latency_s,
        row.latency_s * times[index] / (total or 1.0), bound, row.source, row.estimator, why.rests_on, others,
        (*_roofline(item.op, row, *ceilings), *power, *why.terms),
    )  # fmt: skip


def _roofline(op: Op, row: KernelPrediction, compute_s: float, dram_s: float, link_s: float) -> list[Term]:
    found = [
        ("FLOPs", op.flops(), "FLOP", ""),
        ("bytes", float(op.bytes_moved()), "bytes", "read and written"),
        ("compute", compute_s, "s", "FLOPs at the peak"),
        ("DRAM", dram_s, "s", "all bytes at DRAM's bandwidth"),
    ]
    found += [("link", link_s, "s", "bytes at the links' bandwidth")] if link_s else []
    found += [("lower bound", row.lower_bound_s, "s", "what no kernel beats: L2 may hold what it has room for")]
    if row.interval_s is not None:
        found += [("interval, low", row.interval_s[0], "s", ""), ("interval, high", row.interval_s[1], "s", "")]
    kernels = op.kernels()
    found += [("kernels", float(kernels), COUNT, "")] if kernels != 1 else []
    return terms("roofline", found)
