"""What passes between two kernels of a stream: the first one's blocks drain, the next one's are brought in.

A kernel that is timed in a loop of its own, by events or in a captured graph, has it in its time, and so have the
families whose rows were timed so. The 16-bit rows of norms, rotary, look-ups and element-wise chains are a profiler's,
from a kernel's first instruction to its last.
"""

from __future__ import annotations

from typing import NamedTuple

from predictor.ops.base import Op

#: Seconds between kernels of a captured graph, and of a stream that is launched ahead of the GPU. Source: NVIDIA's
#: "Getting Started with CUDA Graphs" (2019, unverified here): kernels of 2.9 us take 3.4 us each in a graph and 3.8 us
#: in a stream, on a V100. A no-op node of a straight graph takes 0.58 us in all on an RTX 5070 Ti (ocannl issue 488).
#: Products of 10 to 40 MiB of weights and up to 64 rows take 0.1 to 1.1 us longer in AIConfigurator's graphs than by
#: Vidur's profiler on the A100, -1.1 to 0.1 us on the H100 (medians: `scripts/kernel_gap.py`).
GRAPH_GAP_S, STREAM_GAP_S = 0.5e-6, 0.9e-6
#: Families whose 16-bit rows are a profiler's: `datasets/vidur`, column ``protocol``.
_ALONE = ("elementwise", "norm", "rotary", "embedding")
_ITS_OWN = ("fp32", "tf32")


class Gaps(NamedTuple):
    """Seconds behind a kernel whose time is its own alone, and behind one whose time holds a graph's gap."""

    alone: float
    held: float


NO_GAPS = Gaps(0.0, 0.0)


def gaps_of(captured: bool, given_s: float | None = None) -> Gaps:
    """The gaps of a pass; ``given_s`` in place of those that are known."""
    gap = GRAPH_GAP_S if captured else STREAM_GAP_S
    return Gaps(gap, gap - GRAPH_GAP_S) if given_s is None else Gaps(given_s, 0.0)


def kernels_by_gap(op: Op) -> tuple[int, int]:
    """Kernels of an operator whose times are their own alone, and those whose times hold a graph's gap; rows of neither
    hold a stream's."""
    if op.dtype in _ITS_OWN:
        return 0, 0
    return (op.kernels(), 0) if op.family in _ALONE else (0, op.kernels())
