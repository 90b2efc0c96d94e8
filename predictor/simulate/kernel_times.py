"""When every kernel of a pass is launched and runs: the two timelines of `predictor.simulate.timeline`, written out.

Kernel j of a pass starts when the CPU has issued it and the kernel before it is done. In a block that repeats, the
state before repetition r is known without the repetitions before it. With C the CPU time and G the GPU time of one
repetition, and m the time from its start until its last kernel is done where nothing ran before,

    issued_r = issued_0 + r C
    done_r   = max(done_0 + r G, issued_0 + m + (r - 1) max(C, G))         for r > 0

so that any repetition of a model of any depth can be looked at alone.
"""

from __future__ import annotations

import numpy as np

from predictor.files.records import dataclass
from predictor.graph import Block
from predictor.ops.roofline import FloatArray
from predictor.simulate.timeline import Segment
from predictor.simulate.times import TimedStage


@dataclass(frozen=True, slots=True)
class Kernels:
    """One repetition of a block: n kernels in order, each array of shape (n,), in seconds since the pass began.

    The CPU works on a kernel's launch from ``issue_s`` to ``issued_s``; the GPU runs it from ``start_s`` to ``end_s``.
    """

    issue_s: FloatArray
    issued_s: FloatArray
    start_s: FloatArray
    end_s: FloatArray


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """A block of a pass in time. ``nodes`` and ``rows``: for each of its n kernels, which node of the block it is and
    its row of the pass's table. ``issued_s`` and ``done_s``: when CPU and GPU were through with all before it."""

    block: Block
    segment: Segment
    nodes: tuple[int, ...]
    rows: tuple[int, ...]
    issued_s: float
    done_s: float

    def state(self, repetition: int) -> tuple[float, float]:
        """When CPU and GPU are through with everything before ``repetition`` (0 to the block's ``repeat``)."""
        cpu, gpu = float(self.segment.cpu_s.sum()), float(self.segment.gpu_s.sum())
        issued = self.issued_s + repetition * cpu
        done = self.done_s + repetition * gpu
        if repetition and len(self.nodes):
            alone = float((np.cumsum(self.segment.cpu_s) - _before(self.segment.gpu_s)).max()) + gpu
            done = max(done, self.issued_s + alone + (repetition - 1) * max(cpu, gpu))
        return issued, done

    def kernels(self, repetition: int) -> Kernels:
        """The kernels of one repetition, counted from 0."""
        issued, done = self.state(repetition)
        gpu, cpu = self.segment.gpu_s, self.segment.cpu_s
        launched = issued + np.cumsum(cpu)
        before = _before(gpu)
        end = before + gpu + np.maximum.accumulate(np.maximum(launched - before, done))
        start = np.maximum(launched, np.concatenate(([done], end[:-1])))
        end = np.maximum(end, start) - self.segment.gaps_s
        return Kernels(np.concatenate(([issued], launched[:-1])), launched, start, np.maximum(end, start))


def _before(gpu_s: FloatArray) -> FloatArray:
    """GPU time before each kernel."""
    return np.cumsum(gpu_s) - gpu_s


def schedule(timed: TimedStage) -> tuple[BlockSchedule, ...]:
    """The blocks of one pass of a stage in time; blocks without kernels are left out."""
    blocks = []
    issued = done = 0.0
    for at, segment in zip(timed.blocks, timed.segments, strict=True):
        nodes = tuple(j for j, node in enumerate(at.block.nodes) for _ in range(node.count))
        if not nodes:
            continue
        entry = BlockSchedule(at.block, segment, nodes, tuple(at.rows[j] for j in nodes), issued, done)
        blocks.append(entry)
        issued, done = entry.state(segment.repeat)
    return tuple(blocks)
