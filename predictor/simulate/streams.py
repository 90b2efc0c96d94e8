"""Collectives beside computation: a compute stream, and one for every network.

Where a framework lets them, a collective starts when its operand is there and its network is free, and compute goes on
until a node reads what it brings. What compute then waits is *exposed*; while both run, the collective's kernels hold
streaming multiprocessors of the GPU, and compute goes slower. Copies to the host's memory run beside all of it and slow
nothing. At the end of a block nothing is left under way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.graph import Block
from predictor.hardware.gpu import GPUSpec
from predictor.ops.base import COMPUTE, HOST
from predictor.ops.collective import Collective
from predictor.passes.sequence_parallel import pieces_of, products_beside
from predictor.roofline import FloatArray

#: Streaming multiprocessors that a collective's kernels hold: the default of DeepEP's kernels (source:
#: deepseek-ai/DeepEP README, 20 SMs), in the range of NCCL's 16 to 32 channels of a block each.
HELD_SMS = 20


def slowdown(gpu: GPUSpec) -> float:
    """By what part compute takes longer beside a collective."""
    return HELD_SMS / max(gpu.sm_count, 2 * HELD_SMS) if gpu.sm_count else 0.0


def in_pieces(block: Block, seconds: Sequence[float], slower: float) -> list[float]:
    """Seconds of every node where collectives move a piece at a time beside a product (`Collective.in_pieces`).

    Of an all_gather the rank's own piece is there at once, and copy engines move the others (ring exchange). Of a
    reduce_scatter the last piece has nothing beside it, and kernels move them: the product goes slower by ``slower``.
    """
    found = list(seconds)
    for i, beside in products_beside(block.nodes).items():
        op, product = block.nodes[i].op, block.nodes[beside].op
        assert isinstance(op, Collective)
        compute = sum(s for node, s in zip(block.nodes, seconds, strict=True) if node.op is product)
        covered = (pieces_of(op) - 1) / pieces_of(op)
        if op.kind == "all_gather":
            found[i] = max(0.0, seconds[i] - compute * covered)
        else:
            beside_s = compute * (1.0 + slower) * covered
            found[i] = compute * slower * covered + max(seconds[i] / pieces_of(op), seconds[i] - beside_s)
    return found


def exposed(block: Block, seconds: Sequence[float], slower: float | None) -> FloatArray:
    """Seconds of every node of one run of a block, of shape (nodes,): of a collective, what compute waits for it and
    what it slows compute down by in place of its own time; the sum is when the run is done. ``slower``: compute
    beside a collective, by that part; None: it waits for collectives, and copies to the host alone run beside it."""
    now = 0.0
    seconds = in_pieces(block, seconds, slower or 0.0)
    found = np.array(seconds, dtype=float)
    free: dict[str, float] = {}
    arrives: dict[int, tuple[float, int]] = {}  # by storage: when, and of which collective
    ends: list[tuple[float, int]] = []
    for i, node in enumerate(block.nodes):
        for t in node.inputs if arrives else ():
            if (at := arrives.get(id(t.storage))) is not None and at[0] > now:
                found[at[1]] += at[0] - now
                now = at[0]
        stream = node.op.stream
        if stream == HOST or (stream != COMPUTE and slower is not None):
            end = max(now, free.get(stream, 0.0)) + seconds[i]
            found[i] = 0.0
            free[stream] = end
            ends.append((end, i))
            for t in node.outputs:
                arrives[id(t.storage)] = (end, i)
            continue
        work, start = float(seconds[i]), now
        busy = max((at for name, at in free.items() if name != HOST), default=0.0) - now if free else 0.0
        if busy > 0.0 and slower is not None:
            beside = min(busy, work * (1.0 + slower))
            extra = beside * slower / (1.0 + slower)
            found[max(e for e in ends if block.nodes[e[1]].op.stream != HOST)[1]] += extra
            work += extra
        now = start + work
    for end, i in sorted(ends):
        if end > now:
            found[i] += end - now
            now = end
    return found
