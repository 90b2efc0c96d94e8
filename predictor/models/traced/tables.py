"""Embedding tables over GPUs: what the busiest of them looks up, and what all of them exchange for it.

Of N GPUs with a batch B in all, a table of R rows, W wide, of which a sample sums P rows, may be

data     on every GPU, for its B / N samples; gradients of all R x W entries are summed over the GPUs
table    on one GPU, for all B samples; pooled rows go to the samples' GPUs by all_to_all, their gradients back
column   W / N columns of it on every GPU, for all B samples; exchanged as above
row      R / N rows of it on every GPU, which has P / N of a sample's rows on average; what they sum to is
         reduce_scattered, and its gradients all_gathered
planned  data where its rows are fewer than a GPU's samples (their gradients are smaller than its pooled rows); others
         cut by columns, no narrower than 32, then by rows, until no part has more than a GPU's mean of the work, and
         dealt out to the least loaded GPU, most work first (Graham's rule; TorchRec's greedy planner does so by its own
         costs); parts of rows are exchanged as sums, which are added up where they arrive

Updates are sparse and within the backward pass (fused optimizers), as `predictor.ops.EmbeddingBag` has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from predictor.errors import RequestError, SpecError, nearest

SHARDINGS = DATA, TABLE, COLUMN, ROW, PLANNED = "data", "table", "column", "row", "planned"
#: Columns of the narrowest part: 64 bytes of 16 bit are two sectors of a GPU's memory. Chosen by hand, not from data.
NARROWEST = 32
INDEX_BYTES = 8  # by definition of int64


class Bags(NamedTuple):
    """Look-ups of one table on one GPU, as the fields of `EmbeddingBag`."""

    bags: int
    pooling: int
    width: int
    rows: int


class Spread(NamedTuple):
    """``looked_up`` by the busiest GPU; elements a GPU of what goes through each exchange: ``pooled`` by all_to_all,
    ``scattered`` by reduce_scatter, ``summed`` (gradients of tables that all have) by all_reduce; ``indices`` that come
    to a GPU by all_to_all."""

    looked_up: tuple[Bags, ...]
    pooled: int
    scattered: int
    summed: int
    indices: int


def spread(
    rows: Sequence[int], pooling: Sequence[int], width: int, batch: int, gpus: int, sharding: str = PLANNED
) -> Spread:
    """The tables (``rows`` and ``pooling`` of each) as ``gpus`` GPUs share them, for a ``batch`` in all.

    RequestError, one line, for a sharding that there is not, or that does not go.

    >>> spread([1000, 10], [2, 1], 64, 32, 2, "table").pooled  # 32 samples of one table's 64 columns
    2048
    """
    if sharding not in SHARDINGS:
        close = nearest(sharding, SHARDINGS, 1)
        raise RequestError(
            f"sharding {sharding!r}: expected one of {', '.join(SHARDINGS)}"
            + (f"; nearest: {close[0]}" if close else "")
        )
    if len(rows) != len(pooling) or not rows or min((*rows, *pooling, width, batch, gpus)) < 1:
        raise SpecError(f"tables: {len(rows)} of rows and {len(pooling)} of pooling; expected as many, all 1 or more")
    each = -(-batch // gpus)
    if sharding == COLUMN and width % gpus:
        raise RequestError(f"sharding column: {gpus} GPUs do not divide {width} columns; expected {PLANNED} or {ROW}")
    if gpus == 1:
        sharding = DATA
    if sharding == ROW:
        bags = [Bags(*_thinned(batch, p, gpus), width, -(-r // gpus)) for r, p in zip(rows, pooling, strict=True)]
        return Spread(tuple(bags), 0, batch * width * len(rows), 0, sum(part.bags * part.pooling for part in bags))
    if sharding == DATA:
        bags = [Bags(each, p, width, r) for r, p in zip(rows, pooling, strict=True)]
        return Spread(tuple(bags), 0, 0, sum(rows) * width if gpus > 1 else 0, 0)
    if sharding == COLUMN:
        return _whole([Bags(batch, p, width // gpus, r) for r, p in zip(rows, pooling, strict=True)], [], width)
    return _dealt(rows, pooling, width, batch, gpus, sharding == PLANNED)


def _whole(dealt: list[Bags], shared: list[Bags], width: int) -> Spread:
    """What a GPU with these parts, and the tables that all have, does."""
    pooled = sum(part.bags * part.width for part in dealt)
    indices = sum(part.bags * part.pooling for part in dealt)
    return Spread((*dealt, *shared), pooled, 0, sum(part.rows for part in shared) * width, indices)


def _dealt(rows: Sequence[int], pooling: Sequence[int], width: int, batch: int, gpus: int, cuts: bool) -> Spread:
    """The busiest GPU where tables, or parts of them, are dealt out."""
    each = -(-batch // gpus)
    shared = [Bags(each, p, width, r) for r, p in zip(rows, pooling, strict=True) if cuts and r <= each]
    whole = [(r, p) for r, p in zip(rows, pooling, strict=True) if not (cuts and r <= each)]
    mean = sum((p + 1) * width for _, p in whole) / gpus  # elements that are read and written for a sample
    parts: list[Bags] = []
    for r, p in whole:
        part, count = Bags(batch, p, width, r), 1
        while cuts and _work(part) > mean and (halved := _halved(part)) is not None:
            part, count = halved, 2 * count
        parts += [part] * count
    loads, hands = [0] * gpus, [list[Bags]() for _ in range(gpus)]
    for part in sorted(parts, key=_work, reverse=True):
        least = loads.index(min(loads))
        loads[least] += _work(part)
        hands[least].append(part)
    return _whole(hands[loads.index(max(loads))], shared, width)


def _halved(part: Bags) -> Bags | None:
    """A half of it, by columns or else by rows; None for one that is not cut any more."""
    if part.width % 2 == 0 and part.width // 2 >= NARROWEST:
        return part._replace(width=part.width // 2)
    return part._replace(pooling=-(-part.pooling // 2), rows=-(-part.rows // 2)) if part.pooling > 1 else None


def _work(part: Bags) -> int:
    return (part.pooling + 1) * part.width


def _thinned(batch: int, pooling: int, gpus: int) -> tuple[int, int]:
    """(bags, rows of each) of a GPU that has one of ``gpus`` parts of a table's rows."""
    if pooling >= gpus:
        return batch, -(-pooling // gpus)
    return -(-batch * pooling // gpus), 1
