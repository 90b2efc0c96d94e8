"""Times of pipelines: what orders of units take (`predictor.simulate.pipeline_orders`), for many plans at once.

Times follow by a max-plus recurrence,

    end(u) = max(free(unit before u on its stage), arrives(unit that u waits for)) + seconds(u),

which is evaluated level by level in numpy, all stages and all plans that share an order together:

    order = order_of("1f1b", stages=16, micro_batches=96)
    found = times(order, forward_s, backward_s, p2p_s, p2p=BLOCKING)     # (plans, stages, chunks), (plans, stages)
    found.step_s, found.bubble_s, found.exposed_s                        # (plans,): seconds of the pipeline
    found.end_s, found.compute_s                                         # (plans, stages)
    found.done_s                                                         # (plans, stages, chunks): last backward pass
    order.most(bytes_of_a_chunk)                                         # (plans, stages): activations held at once
    timeline(order, forward_s, backward_s, p2p_s)                        # every unit of one plan, for a trace

A step's seconds are compute of the busiest way through the pipeline; ``bubble_s`` is what a stage idles on average
where messages are free, and ``exposed_s`` what messages add, so that mean compute + bubble + exposed = step.

Messages between stages (``p2p_s``, one of the two ways: links carry both at once; whether each rank of a
tensor-parallel group sends all of it or a part is in the seconds) are

OVERLAPPED   sent beside compute: the receiver waits for them, the sender goes on
BLOCKING     the sender waits until they are sent (Megatron's 1F1B: `batch_isend_irecv`, then synchronize)
STEADY       overlapped where forward and backward passes alternate, else blocking (Megatron's interleaved schedule)
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from predictor.files.records import dataclass
from predictor.simulate.pipeline_orders import Floats, Order, wide

#: What a message between stages holds up.
P2P = OVERLAPPED, BLOCKING, STEADY = "overlapped", "blocking", "steady"

#: Unit ends that are worked out at once, units times plans; it guards against
#: memory without end, chosen by hand, not from data.
AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class Times:
    """Times of plans that share an order, in seconds; the shapes are (plans,), (plans, stages) and, for the last
    backward pass of each chunk, (plans, stages, chunks)."""

    step_s: Floats
    bubble_s: Floats
    exposed_s: Floats
    compute_s: Floats
    end_s: Floats
    done_s: Floats


class _Tables:
    """What every kind of unit (`Order.kinds`) takes, of shape (kinds, plans): ``seconds`` of compute, until its stage
    is ``free``, and until what it sends ``arrives``."""

    def __init__(self, order: Order, forward_s: Floats | float, backward_s: Floats | float, p2p_s: Floats | float,
                 p2p: str) -> None:  # fmt: skip
        if p2p not in P2P:
            raise ValueError(f"p2p {p2p!r}: expected one of {', '.join(P2P)}")
        p, v = order.stages, order.chunks
        ways = wide(forward_s, order, "forward_s"), wide(backward_s, order, "backward_s")
        links = np.asarray(p2p_s, dtype=float)
        if links.ndim not in (0, 2):
            raise ValueError(f"p2p_s: shape {links.shape}, expected a number or (plans, stages)")
        links = links.reshape((1, 1)) if links.ndim == 0 else links
        plans = max(ways[0].shape[0], ways[1].shape[0], links.shape[0])
        links = np.broadcast_to(links, (plans, p)) if p > 1 else np.zeros((plans, p))
        compute, sent = np.zeros((2, 2, v, p, plans)), np.zeros((2, 2, v, p, plans))
        for backward, seconds in enumerate(ways):
            compute[backward, :] = np.broadcast_to(seconds, (plans, p, v)).transpose(2, 1, 0)
        sent[0, :] = links.T  # stage s to the next
        sent[1, :] = np.roll(links, 1, axis=1).T  # back over the link of the stage before
        sent[0, :, v - 1, p - 1] = 0.0
        sent[1, :, 0, 0] = 0.0
        held = sent.copy()
        if p2p != BLOCKING:
            held[:, 1] = 0.0
        if p2p == OVERLAPPED:
            held[:] = 0.0
        kinds = 4 * v * p
        self.plans = plans
        self.seconds = compute.reshape(kinds, plans)
        self.free = (compute + held).reshape(kinds, plans)
        self.arrives = self.free if p2p == BLOCKING else (compute + sent).reshape(kinds, plans)
        self.compute_s: Floats = order.micro_batches * (ways[0] + ways[1]).sum(axis=2)

    def messages(self) -> bool:
        """Whether any message takes time."""
        return bool((self.arrives != self.seconds).any())


def _starts(order: Order, free: Floats, arrives: Floats) -> Floats:
    """When every unit starts, of shape (1 + units, plans); the first row is the start of the step."""
    before, waits, levels = order.before, order.waits, order.levels
    at = np.zeros((order.units + 1, free.shape[1]))
    through = np.zeros_like(at)  # when its stage is free
    there = through if arrives is free else np.zeros_like(at)
    held = free.take(order.kinds, axis=0)  # by unit, as all of this
    sent = held if arrives is free else arrives.take(order.kinds, axis=0)
    for low, high in pairwise(levels):
        below, above = low + 1, high + 1
        start = at[below:above]
        np.maximum(through.take(before[low:high], axis=0), there.take(waits[low:high], axis=0), out=start)
        np.add(start, held[low:high], out=through[below:above])
        if there is not through:
            np.add(start, sent[low:high], out=there[below:above])
    return at


def _ends(order: Order, seconds: Floats, free: Floats, arrives: Floats) -> tuple[Floats, Floats]:
    """When every stage is through with its last unit, (plans, stages), and with each chunk, (plans, stages, chunks)."""
    last, done = order.lasts
    plans = free.shape[1]
    ends = np.empty((plans, order.stages))
    chunks = np.empty((plans, order.stages, order.chunks))
    several = max(1, AT_ONCE // (order.units + 1))
    for low in range(0, plans, several):
        some = slice(low, low + several)
        now = free[:, some], arrives[:, some] if arrives is not free else None
        starts = _starts(order, now[0], now[0] if now[1] is None else now[1])
        ends[some] = (starts[last] + seconds[order.kinds[last - 1], some]).T
        flat = done.ravel()
        ended = starts[flat] + seconds[order.kinds[flat - 1], some]
        chunks[some] = ended.T.reshape(-1, order.stages, order.chunks)
    return ends, chunks


def steps(
    order: Order, forward_s: Floats | float, backward_s: Floats | float, p2p_s: Floats | float = 0.0,
    p2p: str = OVERLAPPED,
) -> Floats:  # fmt: skip
    """Seconds of the pipeline of every plan, of shape (plans,): `times` for a search, which needs no more."""
    tables = _Tables(order, forward_s, backward_s, p2p_s, p2p)
    ended: Floats = _ends(order, tables.seconds, tables.free, tables.arrives)[0].max(axis=1)
    return ended


def times(
    order: Order, forward_s: Floats | float, backward_s: Floats | float, p2p_s: Floats | float = 0.0,
    p2p: str = OVERLAPPED,
) -> Times:  # fmt: skip
    """Times of plans that share ``order``.

    ``forward_s`` and ``backward_s``: seconds of one micro-batch in one chunk of one stage, a number or of shape
    (plans, stages, chunks), axes of 1 counting for all. ``p2p_s``: seconds of a message over the link from each stage
    to the next (of the last to the first, where chunks loop), a number or of shape (plans, stages). ``p2p``: what a
    message holds up. Raises ValueError for other shapes.
    """
    tables = _Tables(order, forward_s, backward_s, p2p_s, p2p)
    seconds, plans = tables.seconds, tables.plans
    if tables.messages():  # each plan beside the same one whose messages are free: a level of both takes as long
        free, arrives = (np.concatenate((held, seconds), axis=1) for held in (tables.free, tables.arrives))
        ends, chunks = _ends(order, np.concatenate((seconds, seconds), axis=1), free, arrives)
        alone_s = ends[plans:].max(axis=1)
        ends, chunks = ends[:plans], chunks[:plans]
    else:
        ends, chunks = _ends(order, seconds, tables.free, tables.arrives)
        alone_s = ends.max(axis=1)
    step_s = ends.max(axis=1)
    compute_s = np.broadcast_to(tables.compute_s, (tables.plans, order.stages))
    return Times(
        step_s=step_s, bubble_s=np.maximum(0.0, alone_s - compute_s.mean(axis=1)), exposed_s=step_s - alone_s,
        compute_s=compute_s, end_s=ends, done_s=chunks,
    )  # fmt: skip


def timeline(
    order: Order, forward_s: Floats | float, backward_s: Floats | float, p2p_s: Floats | float = 0.0,
    p2p: str = OVERLAPPED,
) -> tuple[Floats, Floats, Floats]:  # fmt: skip
    """Of the first plan, for every unit of ``order``, each of shape (units,): when its compute starts and ends, and
    when what it sends is there (its end, where it sends nothing)."""
    tables = _Tables(order, forward_s, backward_s, p2p_s, p2p)
    starts = _starts(order, tables.free[:, :1], tables.arrives[:, :1] if p2p != BLOCKING else tables.free[:, :1])
    kinds, start = order.kinds, starts[1:, 0]
    return start, start + tables.seconds[kinds, 0], start + tables.arrives[kinds, 0]
