"""From kernel latencies to one number: a CPU that launches, a GPU that runs, and whichever is slower at every point.

Eager execution has two timelines. The CPU issues framework calls one after the other; the GPU runs kernels in order,
each not before it was issued. So the pass ends at

    max over kernels i of (time at which the CPU issued i) + (GPU time of i and of everything after it),

and never before the CPU has issued its last call. In a block that repeats R times the expression is linear in the
repetition, so its maximum lies in the first or the last one: a 96-layer model costs no more than a 1-layer model.
What one call costs is the launch overhead of the host, a parameter of the workload (`Workload.launch_overhead_s`).

A captured graph (cuda_graph, compile with graphs) has no CPU timeline: kernels follow each other.

The GPU has a stream that computes and one for every network that its collectives use (`Op.stream`). The streams run in
the order of the graph: a collective waits for the compute before it, and the compute after it waits for the collective,
so that communication is exposed whole. `eager` and `in_a_row` alone know of this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from predictor.roofline import FloatArray


@dataclass(frozen=True, slots=True)
class Segment:
    """One block on the two timelines: n kernels in order, all of it ``repeat`` times.

    ``gpu_s`` and ``cpu_s`` of shape (n,): GPU time of a node, CPU time to issue it. ``gaps_s`` of shape (n,), or one
    for all: what of the GPU's time passes behind the kernel, until the next one can run.
    """

    gpu_s: FloatArray
    cpu_s: FloatArray
    repeat: int
    gaps_s: FloatArray | float = 0.0


#: Time of a pass over the GPU's own from which on the pass counts as launch-bound. Chosen by hand, not from data.
LAUNCH_BOUND = 1.05


@dataclass(frozen=True, slots=True)
class Timeline:
    """Total of a pass, and what each side alone would take, in seconds."""

    total_s: float
    gpu_s: float
    cpu_s: float

    @property
    def launch_bound(self) -> bool:
        """True where the GPU waits for the CPU for more than a twentieth of the time."""
        return self.total_s > LAUNCH_BOUND * self.gpu_s


def in_a_row(blocks: Iterable[tuple[float, int]]) -> Timeline:
    """Kernels back to back, without launches: blocks of so many seconds, so many times."""
    total = float(sum(seconds * repeat for seconds, repeat in blocks))
    return Timeline(total, total, 0.0)


def eager(segments: Sequence[Segment]) -> Timeline:
    """Two timelines; the slower one decides at every kernel."""
    gpu_total = float(sum(float(s.gpu_s.sum()) * s.repeat for s in segments))
    issued = 0.0
    done = 0.0
    end = gpu_total
    for s in segments:
        if not len(s.gpu_s):
            continue
        cpu_sum = float(s.cpu_s.sum())
        gpu_sum = float(s.gpu_s.sum())
        # issue time of each kernel and GPU time before it, in the first repetition and in the last
        start = issued + np.cumsum(s.cpu_s) - (done + np.cumsum(s.gpu_s) - s.gpu_s)
        slack = float(start.max())
        last = (s.repeat - 1) * (cpu_sum - gpu_sum)
        end = max(end, slack + gpu_total, slack + last + gpu_total)
        issued += cpu_sum * s.repeat
        done += gpu_sum * s.repeat
    return Timeline(max(end, issued), gpu_total, issued)


def joined(parts: Sequence[Timeline]) -> Timeline:
    """Stages one after the other."""
    return Timeline(sum(t.total_s for t in parts), sum(t.gpu_s for t in parts), sum(t.cpu_s for t in parts))
