"""Pipeline schedules as orders: which rank runs which micro-batch when.

A unit is one pass of one micro-batch through one chunk of one stage, forward or backward. With v chunks a stage, chunk
c of stage s is the part c p + s of the model's p v (looped placement). An `Order` says in which order every stage runs
its units; `predictor.simulate.pipeline` gives them times.

gpipe          all forward passes, then all backward passes (Huang et al., 2019)
1f1b           p - s - 1 forward passes ahead, then one forward, one backward (Narayanan et al., 2019)
interleaved    1f1b over v chunks, micro-batches in groups of p (Narayanan et al., 2021; Megatron-LM schedules.py)
breadth_first  every chunk runs all micro-batches before the next chunk (Lamy-Poirier, 2022)
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from predictor.errors import RequestError
from predictor.files.records import dataclass
from predictor.request.options import BREADTH_FIRST, GPIPE, INTERLEAVED, ONE_F_ONE_B, SCHEDULES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Order:
    """The units of a pipeline, each array of shape (units,), sorted by level: a unit waits for lower levels alone.

    ``before`` and ``waits`` are rows of the unit before it on its stage and of the one whose message (or, in the last
    part, whose forward pass) it waits for, counted from 1; 0 is the start of the step. ``steady``: within the stretch
    of its stage where forward and backward passes alternate. ``levels``: the row at which each level begins, and the
    number of units.
    """

    schedule: str
    stages: int
    micro_batches: int
    chunks: int
    stage: Ints
    micro_batch: Ints
    chunk: Ints
    backward: NDArray[np.bool_]
    steady: NDArray[np.bool_]
    place: Ints
    before: Ints
    waits: Ints
    levels: tuple[int, ...]

    @property
    def units(self) -> int:
        """Units of the step: two (forward, backward) a stage, micro-batch and chunk."""
        return len(self.stage)

    @cached_property
    def kinds(self) -> Ints:
        """For each unit, its row in a table of 4 (backward, steady) x chunks x stages."""
        kinds: Ints = (self.backward * 2 + self.steady) * self.chunks + self.chunk
        return kinds * self.stages + self.stage

    @cached_property
    def lasts(self) -> tuple[Ints, Ints]:
        """Rows (from 1) of the last unit of every stage, (stages,), and of every chunk's last backward pass,
        (stages, chunks)."""
        ends = np.zeros(self.stages, np.int64)
        done = np.zeros((self.stages, self.chunks), np.int64)
        rows = np.arange(1, self.units + 1)
        np.maximum.at(ends, self.stage, rows)
        back = self.backward
        np.maximum.at(done, (self.stage[back], self.chunk[back]), rows[back])
        return ends, done

    @cached_property
    def held(self) -> tuple[Ints, ...]:
        """For every stage, of shape (moments, chunks): the micro-batches of each chunk whose forward pass is done and
        whose backward pass is not, after each of its units; no row twice."""
        by_stage = np.lexsort((self.place, self.stage)).reshape(self.stages, -1)
        step = np.where(self.backward[by_stage], -1, 1)
        if self.chunks == 1:  # a step of one: every number from the least to the most is there
            counts = np.cumsum(step, axis=1)
            return tuple(np.arange(row.min(), row.max() + 1)[:, None] for row in counts)
        change = np.zeros((*by_stage.shape, self.chunks), np.int64)
        np.put_along_axis(change, self.chunk[by_stage][..., None], step[..., None], axis=2)
        counts = np.cumsum(change, axis=1)
        base = int(counts.max()) + 1
        if base**self.chunks > np.iinfo(np.int64).max:
            return tuple(np.unique(rows, axis=0) for rows in counts)
        digits = base ** np.arange(self.chunks)[::-1]  # a row as one number: sorting rows takes ten times as long
        return tuple(np.unique(rows @ digits)[:, None] // digits % base for rows in counts)

    def most(self, each: Floats | float = 1.0) -> Floats:
        """The most that every stage holds at once where a micro-batch of a chunk holds ``each``, of shape
        (plans, stages, chunks) or broadcast to it; of shape (plans, stages). With 1: chunks of micro-batches."""
        sizes = wide(each, self, "each")
        most = np.empty(sizes.shape[:2])
        for stage, counts in enumerate(self.held):
            most[:, stage] = (sizes[:, stage, :] @ counts.T).max(axis=1)
        return most


def wide(given: Floats | float, order: Order, name: str) -> Floats:
    """Values of shape (plans, stages, chunks); a number counts for all, and an axis of 1 for all along it."""
    values = np.asarray(given, dtype=float)
    if values.ndim not in (0, 3):
        raise ValueError(f"{name}: shape {values.shape}, expected a number or (plans, stages, chunks)")
    values = values.reshape((1, 1, 1)) if values.ndim == 0 else values
    return np.broadcast_to(values, (values.shape[0], order.stages, order.chunks))


@lru_cache(maxsize=1024)
def order_of(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> Order:
    """The order of a schedule over ``stages`` stages of ``chunks`` chunks each.

    Raises RequestError, one line, for an unknown schedule, sizes below 1, chunks that a schedule does not have, and
    micro-batches that the interleaved schedule cannot group.
    """
    if schedule not in SCHEDULES:
        raise RequestError(f"--schedule {schedule!r}: expected one of {', '.join(SCHEDULES)}")
    p, m, v = stages, micro_batches, chunks
    if min(p, m, v) < 1:
        raise RequestError(f"pipeline of {p} stages, {m} micro-batches, {v} chunks: expected at least 1 of each")
    if v > 1 and schedule in (GPIPE, ONE_F_ONE_B):
        raise RequestError(f"--schedule {schedule}: has one chunk a stage, not {v}; nearest: {INTERLEAVED}")
    if v > 1 and schedule == INTERLEAVED and m % p:
        low = max(p, m - m % p)
        raise RequestError(f"{m} micro-batches: --schedule {INTERLEAVED} needs a multiple of --pp {p}; nearest: {low}")
    turn = np.arange(m * v)
    grouped = schedule == INTERLEAVED and v > 1
    group = p if grouped else m
    chunk = turn // group % v
    micro = turn // (group * v) * group + turn % group
    stage = np.arange(p)[:, None]
    if schedule in (GPIPE, BREADTH_FIRST):
        ahead = np.full((p, 1), m * v)
        late = max(0, p - m)  # what the next chunk waits for where micro-batches do not fill the ring
        forward = stage + turn + chunk * late
        backward = (m * v + p - 1) + (v - 1) * late + (p - 1 - stage) + turn + chunk * late
    elif grouped:
        ahead = 2 * (p - stage - 1) + (v - 1) * p
        forward = np.where(turn < ahead, turn + stage, 2 * turn - v * p + 2 * stage + 1)
        backward = 2 * turn + v * p + 2 * (p - stage - 1)
    elif schedule not in (ONE_F_ONE_B, INTERLEAVED):  # a new word of `SCHEDULES`, which must not pass for another
        raise RequestError(f"--schedule {schedule}: has no order yet; expected one of {', '.join(SCHEDULES)}")
    else:
        ahead = p - stage - 1
        forward = np.where(turn < ahead, turn + stage, 2 * turn + stage)
        backward = 2 * p - 1 - stage + 2 * turn
    ahead = np.minimum(ahead, m * v)
    first = np.where(turn < ahead, turn, 2 * turn - ahead)
    second = np.where(turn < m * v - ahead, ahead + 2 * turn + 1, m * v + turn)
    shape = (p, m * v)
    return _assembled(
        schedule, (p, m, v),
        np.concatenate([np.broadcast_to(stage, shape).ravel()] * 2),
        np.tile(micro, 2 * p),
        np.concatenate([np.tile(chunk, p), np.tile(v - 1 - chunk, p)]),
        np.repeat([False, True], p * m * v),
        np.concatenate([first.ravel(), second.ravel()]),
        np.concatenate([forward.ravel(), backward.ravel()]),
    )  # fmt: skip


def _assembled(
    schedule: str, sizes: tuple[int, int, int], stage: Ints, micro: Ints, chunk: Ints, backward: NDArray[np.bool_],
    place: Ints, level: Ints,
) -> Order:  # fmt: skip
    """An order of units in any sequence: ``place`` is a unit's on its stage, ``level`` above those it waits for."""
    p, m, v = sizes
    by_level = np.argsort(level, kind="stable")
    stage, micro, chunk, place, level = (each[by_level] for each in (stage, micro, chunk, place, level))
    backward = backward[by_level].astype(bool)
    rows = np.arange(1, len(stage) + 1)
    of = np.zeros((2, p, m, v), np.int64)
    of[backward.astype(int), stage, micro, chunk] = rows
    on = np.zeros((p, 2 * m * v + 1), np.int64)
    on[stage, place + 1] = rows
    part = chunk * p + stage
    source = np.clip(np.where(backward, part + 1, part - 1), 0, p * v - 1)
    waits = of[backward.astype(int), source % p, micro, source // p]
    waits = np.where(backward & (part == p * v - 1), of[0, stage, micro, chunk], waits)
    waits = np.where(~backward & (part == 0), 0, waits)
    first, last = np.full(p, 2 * m * v), np.full(p, -1)
    np.minimum.at(first, stage[backward], place[backward])
    np.maximum.at(last, stage[~backward], place[~backward])
    steady = (first < last)[stage] & (place >= first[stage] - 1) & (place <= last[stage] + 1)
    begins = np.flatnonzero(np.diff(level, prepend=level[:1] - 1)).tolist()
    return Order(
        schedule, p, m, v, stage, micro, chunk, backward, steady, place, on[stage, place], waits,
        (*begins, len(stage)),
    )  # fmt: skip
