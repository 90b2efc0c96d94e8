"""Layers over pipeline stages where they are not alike: the cut whose slowest stage is the fastest, exactly.

A step of m micro-batches takes about the time once through all stages, which no cut changes, and m - 1 times the
slowest stage; so the best cut is the one with the least slowest stage. Over all cuts into runs of neighbours,

    best(k, j) = min over i < j of max(best(k - 1, i), seconds of layers i to j)

with stages that do not fit left out. O(stages x layers^2), in numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from predictor.errors import RequestError

Floats = NDArray[np.float64]


def balanced(
    seconds: Sequence[float], stages: int, room: Sequence[float] | None = None, needs: Sequence[float] | None = None
) -> tuple[int, ...]:
    """Layers of each of ``stages`` stages, in order, each at least one, such that the slowest stage is the fastest.

    ``seconds`` of every layer (the embedding and the head are layers of their own, or part of the first and last);
    ``needs``: bytes of every layer, ``room``: bytes that each stage has for them (None: enough). Of cuts that are
    equal, the earlier stages have fewer layers. Raises RequestError where there are fewer layers than stages, and where
    no cut fits.
    """
    count = len(seconds)
    if not 1 <= stages <= count:
        raise RequestError(f"{stages} stages of {count} layers: expected 1 to {count}")
    before = np.concatenate(([0.0], np.cumsum(np.asarray(seconds, dtype=float))))
    weight = np.concatenate(([0.0], np.cumsum(np.zeros(count) if needs is None else np.asarray(needs, dtype=float))))
    first, last = np.meshgrid(np.arange(count + 1), np.arange(count + 1), indexing="ij")
    run_s = np.where(first < last, before[last] - before[first], np.inf)
    bytes_ = weight[last] - weight[first]
    best = np.where(np.arange(count + 1) == 0, 0.0, np.inf)
    chosen = np.zeros((stages, count + 1), np.int64)
    for stage in range(stages):
        fits = np.inf if room is None else room[stage]
        ways = np.maximum(best[:, None], np.where(bytes_ <= fits, run_s, np.inf))
        chosen[stage] = np.argmin(ways, axis=0)
        best = np.take_along_axis(ways, chosen[stage][None, :], axis=0)[0]
    if not np.isfinite(best[count]):
        raise RequestError(f"{stages} stages of {count} layers: no cut fits; expected more stages, or more memory")
    ends, end = [], count
    for stage in reversed(range(stages)):
        ends.append(end)
        end = int(chosen[stage][end])
    starts = [0, *reversed(ends)]
    return tuple(high - low for low, high in pairwise(starts))
