"""Operators that no table of a frontend knows: how much of the time rests on their rooflines, and strict runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from predictor.errors import UnsupportedError
from predictor.estimators.base import KernelTable
from predictor.ops.convolution import Convolution
from predictor.ops.opaque import Opaque
from predictor.run import Run
from predictor.simulate.stage import Plan
from predictor.simulate.times import OpTime


def unknown_shares(op_times: Sequence[OpTime], table: KernelTable) -> dict[str, float]:
    """Share of all GPU time by name of an operator without an entry, the largest first; empty where there is none."""
    found: dict[str, float] = {}
    total = 0.0
    for item in op_times:
        seconds = float(table.latency_s[item.index]) * item.times
        total += seconds
        if isinstance(item.op, Opaque):
            found[item.op.name] = found.get(item.op.name, 0.0) + seconds
    return {name: s / (total or 1.0) for name, s in sorted(found.items(), key=lambda row: -row[1])}


def unknown_notes(shares: Mapping[str, float]) -> tuple[str, ...]:
    """The line that a reader gets of them."""
    if not shares:
        return ()
    named = ", ".join(f"{name} {share:.2%}" for name, share in shares.items())
    return (
        f"{sum(shares.values()):.2%} of the GPU time is the roofline of operators that have no entry: {named}"
        " (--strict refuses them).",
    )


def wide_notes(run: Run, op_times: Sequence[OpTime]) -> tuple[str, ...]:
    """The line of operators with weights that stay wide where linear layers are in a narrow format: no kernel of theirs
    in it is known."""
    formats = run.numbers.formats
    wide = any(isinstance(item.op, Convolution) for item in op_times) and formats.linear != formats.high
    narrow = formats.linear.quant or formats.linear.dtype
    return (f"convolutions stay in {formats.high.dtype}: none is known in {narrow}",) if wide else ()


def check_strict(run: Run, plan: Plan) -> None:
    """UnsupportedError, one line, where a strict run has an operator without an entry."""
    if not run.strict:
        return
    names = {
        node.op.name: node.name for stage in plan.stages for block in stage.graph.blocks for node in block.nodes
        if isinstance(node.op, Opaque)
    }  # fmt: skip
    if names:
        named = ", ".join(f"{name} (in {where!r})" for name, where in sorted(names.items()))
        raise UnsupportedError(f"--strict: {run.config.name} runs operators without an entry: {named}")
