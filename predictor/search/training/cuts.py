"""Layers over pipeline stages where they are not alike: the cut whose slowest stage is the fastest, exactly.

A step of m micro-batches takes about the time once through all stages, which no cut changes, and m - 1 times the
slowest stage; so the best cut is the one with the least slowest stage. Over all cuts into runs of neighbours,

    best(k, j) = min over i < j of max(best(k - 1, i), seconds of layers i to j)

with stages that do not fit left out. O(stages x layers^2), in numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.errors import RequestError
from predictor.files.records import replace
from predictor.request.options import BREADTH_FIRST, GPIPE

if TYPE_CHECKING:
    from predictor.search.training.priced import Priced
    from predictor.search.training.table import PlanTable

Floats = NDArray[np.float64]

#: Pipelines that are cut anew, the fastest of the screening that fit. Chosen by hand, not from data: what a person
#: waits for.
RECUT = 40
#: Least gain of the slowest stage for which a cut is a plan of its own. Chosen by hand, not from data: what nobody
#: would change a launcher's flags for.
GAIN = 0.002


def near_even(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of every stage, the ends with the fewest: at most one more on any, at most two on the middle ones where
    that takes from the ends first."""
    each, more = divmod(layers, stages)
    sizes = [each] * stages
    middle = [*range(1, stages - 1), 0, stages - 1]
    for stage in middle[:more]:
        sizes[stage] += 1
    return tuple(sizes)


def recut(table: PlanTable, priced: Mapping[int, Priced]) -> list[Priced]:
    """Of the fastest pipelines of those ``priced``, by row of the table, those whose slowest stage another cut makes
    faster, with that cut.

    The embedding and the head are layers of their own; a stage has room for the state of its layers and for what the
    micro-batches that it holds at once leave. The step is shorter by what the slowest stage is, once a micro-batch.
    Stages of several chunks, whose layers are alike, are cut as those of one are, and share out what they have.
    """
    faster_plans = []
    for i in sorted(priced, key=lambda i: priced[i].latency_s)[:RECUT]:
        candidate, stages, chunks, of_stage, shared = (
            priced[i],
            int(table.p[i]),
            int(table.v[i]),
            table.own[i],
            table.shared[i],
        )

        def of_layers(first: float, layer: float, last: float) -> Floats:
            return np.array([first, *[layer] * table.layers, last])

        seconds = of_layers(*(f + b for f, b in zip(of_stage.forward_s, of_stage.backward_s, strict=True)))
        room = needs = None
        if stages > 2:  # of two, a layer's parameters cannot be told from those of the ends
            first, middle, last = shared.parameters
            layer = middle / table.sizes[i, 1] / chunks
            less = (chunks - 1) * table.sizes[i, 1]
            ends = first - layer * (table.sizes[i, 0] + less), last - layer * (table.sizes[i, 2] + less)
            held = np.full(stages, table.micro_batches[i])
            if candidate.schedule not in (GPIPE, BREADTH_FIRST):
                ahead = stages - np.arange(stages) - 1.0
                most = ahead + 1.0 if chunks == 1 else (2.0 * ahead + (chunks - 1) * stages + 1.0) / chunks
                held = np.minimum(held, most)
            needs = of_layers(ends[0], layer, ends[1]) * shared.state_bytes + held[:, None] * of_layers(*of_stage.saved)
            room = np.full(stages, candidate.usable_bytes - shared.fixed)
        try:
            cut = balanced(seconds, stages, room, needs)
        except RequestError:
            continue
        ends_s = np.cumsum((0.0, *seconds))[np.cumsum((0, *cut))]
        gained = table.slowest_s[i] - float(np.diff(ends_s).max())
        try:
            sizes = spread((cut[0] - 1, *cut[1:-1], cut[-1] - 1), chunks, float(seconds[1]), seconds[0], seconds[-1])
        except RequestError:
            continue
        if gained > GAIN * table.slowest_s[i] and sizes != candidate.plan.stage_layers:
            faster = candidate.latency_s - (table.micro_batches[i] - 1.0) * gained
            faster_plans.append(replace(candidate, plan=replace(candidate.plan, stage_layers=sizes), latency_s=faster))
    return faster_plans


def spread(
    layers: Sequence[int], chunks: int, layer_s: float, first_s: float = 0.0, last_s: float = 0.0
) -> tuple[int, ...]:
    """Layers of every chunk, in the model's order, of stages that have so many ``layers`` each: those of a stage as
    equal as they go, where the first chunk of all has ``first_s`` seconds beside them and the last ``last_s``.

    RequestError where a chunk between the two would have none.
    """
    stages = len(layers)
    layer_counts = np.zeros((chunks, stages), np.int64)
    for stage, count in enumerate(layers):
        busy = np.zeros(chunks)
        busy[0] += first_s * (stage == 0)
        busy[-1] += last_s * (stage == stages - 1)
        for _ in range(count):  # to the chunk that has least to do, the first of equal ones
            least = int(np.argmin(busy))
            layer_counts[least, stage] += 1
            busy[least] += layer_s
    flat = tuple(layer_counts.ravel().tolist())
    if 0 in flat[1:-1]:
        raise RequestError(f"{sum(layers)} layers over {chunks} chunks of {stages} stages: expected one for each")
    return flat


def balanced(
    seconds: Sequence[float] | Floats, stages: int, room: Sequence[float] | Floats | None = None,
    needs: Sequence[float] | Floats | None = None,
) -> tuple[int, ...]:  # fmt: skip
    """Layers of each of ``stages`` stages, in order, each at least one, such that the slowest stage is the fastest.

    ``seconds`` of every layer (the embedding and the head are layers of their own, or part of the first and last);
    ``needs``: bytes of every layer, of shape (layers,) or (stages, layers); ``room``: bytes that each stage has for
    them (None: enough). Of cuts that are equal, the earlier stages have fewer layers. Raises RequestError where there
    are fewer layers than stages, and where no cut fits.
    """
    count = len(seconds)
    if not 1 <= stages <= count:
        raise RequestError(f"{stages} stages of {count} layers: expected 1 to {count}")
    before = np.concatenate(([0.0], np.cumsum(np.asarray(seconds, dtype=float))))
    weights = np.zeros((stages, count + 1))
    if needs is not None:
        weights[:, 1:] = np.cumsum(np.broadcast_to(needs, (stages, count)), axis=1)
    run_s = before - before[:, None]
    run_s[np.tril_indices(count + 1)] = np.inf
    best = np.where(np.arange(count + 1) == 0, 0.0, np.inf)
    chosen = np.zeros((stages, count + 1), np.int64)
    for stage in range(stages):
        bytes_ = weights[stage] - weights[stage][:, None]
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
