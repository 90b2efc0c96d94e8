"""A long run: power control has settled, and products run no faster than the board's power limit allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from predictor.files.records import replace
from predictor.files.units import seconds
from predictor.kernels.base import KernelTable
from predictor.kernels.explanation import Term, terms
from predictor.kernels.power import held_clock, told_by
from predictor.ops.roofline import FloatArray
from predictor.simulate.columns import by_point, largest, plain

if TYPE_CHECKING:
    from predictor.simulate.times import Operators, RowSpread, TimedBlock, TimedStage

#: Seconds of products, at the held rate, that a run has before the clock falls: power control acts over tens of
#: milliseconds. Chosen by hand, not from data; H100's tables have products of 0.2 to 0.8 ms at burst rates (p90 797 and
#: 806 TFLOP/s, SGLang and TensorRT-LLM), those above 8 ms, which their benchmark repeats, at 719 and 752.
SETTLING_S = 0.02
#: What bounds an operator whose clock is held down.
POWER = "the power limit"


def stretched(rows: FloatArray, table: KernelTable) -> KernelTable:
    """The table with each row ``rows`` times as long."""
    known = table.spread
    if known is not None:
        known = replace(known, low_s=known.low_s * rows, high_s=known.high_s * rows)
    return replace(table, latency_s=table.latency_s * rows, spread=known)


class Sustained:
    """`Operators` as one long run finds them: ``stretch`` (rows,) times their seconds; ``share`` of what the held rate
    takes longer is in it. Of a column of runs each has a share of its own."""

    def __init__(self, base: Operators, share: Any) -> None:
        self.base, self.gpu, self.engine, self.selector = base, base.gpu, base.engine, base.selector
        self.share = share

    def of_rows(self, index: npt.NDArray[np.int64]) -> FloatArray:
        """Seconds of some rows, whatever others there are; of a column, of shape (points, nodes) as ``index``."""
        seconds = self.base.seconds[index]
        over = np.maximum(self.base.held_s[index] / seconds, 1.0) - 1.0
        result: FloatArray = seconds * (1.0 + by_point(self.share) * over)
        return result

    @cached_property
    def stretch(self) -> FloatArray:
        """How many times as long each row takes, (rows,)."""
        result: FloatArray = 1.0 + self.share * (np.maximum(self.base.held_s / self.base.seconds, 1.0) - 1.0)
        return result

    @cached_property
    def seconds(self) -> FloatArray:
        """Seconds of each row, (rows,)."""
        return self.base.seconds * self.stretch

    @property
    def spread(self) -> RowSpread | None:
        """How far each row may be off, of itself, which is no other in a long run."""
        return self.base.spread

    @property
    def kinds(self) -> tuple[tuple[str, str], ...]:
        """As `Operators` has them."""
        return self.base.kinds

    @cached_property
    def table(self) -> KernelTable:
        """What was forecast of every operator, by row."""
        return stretched(self.stretch, self.base.table)


def sustained(
    operators: Operators, stages: Sequence[tuple[float, list[TimedBlock]]]
) -> tuple[Operators | Sustained, list[list[TimedBlock]]]:
    """The operators and blocks of a run, of stages (passes, blocks): the very same where the run is short.

    Of a run whose products are T seconds of work at the held rate, the first `SETTLING_S` run as a burst and the rest
    is held: a share 1 - `SETTLING_S` / T of what the held rate takes longer.
    """
    same = [blocks for _, blocks in stages]
    held = {id(block): bool(operators.above[block.index].any()) for blocks in same for block in blocks}
    if not any(held.values()):
        return operators, same
    total = sum(passes * (operators.least_s[b.index] @ b.runs) for passes, blocks in stages for b in blocks)
    share = 1.0 - SETTLING_S / largest(plain(total), SETTLING_S)
    if not np.any(share):
        return operators, same
    run = Sustained(operators, share)
    made: dict[int, TimedBlock] = {}
    for block in (block for blocks in same for block in blocks):
        if id(block) not in made:
            made[id(block)] = block.filled(run.of_rows(block.index)) if held[id(block)] else block
    return run, [[made[id(block)] for block in blocks] for blocks in same]


def held_terms(operators: Operators | Sustained, row: int) -> list[Term]:
    """What power makes of an operator in a long run; nothing where it leaves it its time."""
    if not isinstance(operators, Sustained) or operators.stretch[row] == 1.0:
        return []
    gpu = operators.gpu
    rows = [
        ("clock held", held_clock(gpu), "share", f"of the boost clock, at {gpu.power_limit_w:,.0f} W"),
        ("in a burst", float(operators.base.seconds[row]), "s", "before the clock falls"),
        ("held", float(operators.base.held_s[row]), "s", "at the clock that the power limit allows"),
    ]
    return terms("power", rows)


def power_notes(stages: Iterable[TimedStage]) -> tuple[str, ...]:
    """What the power limit takes from a run, in a line; none where it takes nothing."""
    longer, run = 0.0, None
    for timed in stages:
        if isinstance(timed.operators, Sustained):
            run = timed.operators
            extra = run.seconds - run.base.seconds
            longer += timed.stage.weight * sum(float(extra[b.index] @ b.runs) for b in timed.blocks)
    if run is None:
        return ()
    gpu = run.gpu
    held = f"The power limit of {gpu.id} ({gpu.power_limit_w:,.0f} W) holds its tensor cores at {held_clock(gpu):.2f}"
    told = told_by(gpu) and f" Watts are those of compute capability {told_by(gpu)} (unverified)."
    return (f"{held} of their clock: +{seconds(longer)}.{told}",)
