"""From kernel latencies to one number: a CPU that launches, a GPU that runs, and whichever is slower at every point.

Eager execution has two timelines. The CPU issues framework calls one after the other; the GPU runs kernels in order,
each not before it was issued. So the pass ends at

    max over kernels i of (time at which the CPU issued i) + (GPU time of i and of everything after it),

and never before the CPU has issued its last call. In a block that repeats R times the expression is linear in the
repetition, so its maximum lies in the first or the last one: a 96-layer model costs no more than a 1-layer model.
Kinds of layers that take turns run in turns: the host gets ahead during long kernels, and falls behind during short
ones. What one call costs is the launch overhead of the host, a parameter of the workload
(`Workload.launch_overhead_s`).

A captured graph (cuda_graph, compile with graphs) has no CPU timeline: kernels follow each other.

The GPU has a stream that computes and one for every network that its collectives use (`Op.stream`). The streams run in
the order of the graph: a collective waits for the compute before it, and the compute after it waits for the collective,
so that communication is exposed whole. `eager` and `in_a_row` alone know of this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor.files.records import dataclass
from predictor.graph import Block
from predictor.hardware.gpu import GPUSpec
from predictor.ops.base import COMPUTE, HOST, Op
from predictor.ops.collective import Collective
from predictor.ops.roofline import FloatArray
from predictor.simulate.columns import plain


@dataclass(frozen=True, slots=True)
class Segment:
    """One block on the two timelines: n kernels in order, all of it ``repeat`` times.

    ``gpu_s`` and ``cpu_s`` of shape (n,): GPU time of a node, CPU time to issue it. ``gaps_s`` of shape (n,), or one
    for all: what of the GPU's time passes behind the kernel, until the next one can run. Of many points at once
    (`predictor.simulate.columns`), of shape (points, n). ``turns``: of each run, a number; runs of segments side
    by side come as these rise, in a backward pass (negative ones) as elsewhere; () where all follow one another.
    """

    gpu_s: FloatArray
    cpu_s: FloatArray
    repeat: int
    gaps_s: FloatArray | float = 0.0
    turns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Timeline:
    """Total of a pass, and what each side alone would take, in seconds; of many points at once, arrays (points,)."""

    total_s: Any
    gpu_s: Any
    cpu_s: Any


def in_a_row(blocks: Iterable[tuple[Any, int]]) -> Timeline:
    """Kernels back to back, without launches: blocks of so many seconds, so many times."""
    total = plain(sum(seconds * repeat for seconds, repeat in blocks))
    return Timeline(total, total, 0.0)


class TwoTimelines:
    """Blocks side by side on the two timelines: n kernels of all of them, and how often each of b blocks runs.

    ``gpu_s`` and ``cpu_s`` of shape (n,) as a `Segment` has them, of many points (points, n); ``starts`` and
    ``repeats`` of shape (b,): the place of a block's first kernel, and how often it runs. ``order``, where blocks take
    turns: of stretches of runs alike, (block, how many).
    """

    __slots__ = ("_parts", "cpu_s", "gpu_s", "order", "repeats", "starts")

    def __init__(self, segments: Sequence[Segment]) -> None:
        parts = [s for s in segments if s.gpu_s.shape[-1]]
        ends = list(accumulate(s.gpu_s.shape[-1] for s in parts))
        self.starts = [0, *ends[:-1]] if parts else []
        self.repeats = np.array([s.repeat for s in parts], dtype=np.float64)
        self.gpu_s, self.cpu_s = (_beside([getattr(s, name) for s in parts]) for name in ("gpu_s", "cpu_s"))
        self.order = _order(parts)
        self._parts = parts

    @property
    def gaps_s(self) -> FloatArray:
        """What passes behind each kernel, of the shape of ``gpu_s``."""
        return _beside([np.broadcast_to(s.gaps_s, s.gpu_s.shape) for s in self._parts])

    @property
    def runs(self) -> FloatArray:
        """How often each kernel runs, (n,)."""
        return np.repeat(self.repeats, np.diff([*self.starts, self.cpu_s.shape[-1]]))

    def timeline(self, gpu_s: FloatArray | None = None, cpu_s: FloatArray | None = None) -> Timeline:
        """The two timelines, of other times where ``gpu_s`` or ``cpu_s`` are given; axes before the last of these are
        those of the result."""
        gpu_s, cpu_s = self.gpu_s if gpu_s is None else gpu_s, self.cpu_s if cpu_s is None else cpu_s
        if not self.starts:
            return Timeline(0.0, 0.0, 0.0)
        gpu_sums = np.add.reduceat(gpu_s, self.starts, axis=-1)
        cpu_sums = np.add.reduceat(cpu_s, self.starts, axis=-1)
        gpu_total = np.add.reduce(gpu_sums * self.repeats, axis=-1)
        issued = np.add.reduce(cpu_sums * self.repeats, axis=-1)
        # Issue time of each kernel less GPU time before it, within one run of its block; by how much the runs before it
        # make that more; and what the repetitions of its own block add, in the last one.
        before = np.add.accumulate(cpu_s, axis=-1) - (np.add.accumulate(gpu_s, axis=-1) - gpu_s)
        later = cpu_sums - gpu_sums
        slack = np.maximum.reduceat(before, self.starts, axis=-1) - (np.add.accumulate(later, axis=-1) - later)
        repeats = self.repeats
        if self.order is not None:
            blocks, repeats = self.order
            later, slack = later[..., blocks], slack[..., blocks]
        ahead = later * repeats
        slack = slack + (np.add.accumulate(ahead, axis=-1) - ahead) + np.maximum(ahead - later, 0.0)
        end = gpu_total + np.maximum(np.maximum.reduce(slack, axis=-1), 0.0)
        return Timeline(plain(np.maximum(end, issued)), plain(gpu_total), plain(issued))


def _beside(parts: Sequence[FloatArray]) -> FloatArray:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts, axis=-1) if parts else np.zeros(0)


def _order(parts: Sequence[Segment]) -> tuple[npt.NDArray[np.intp], FloatArray] | None:
    """Which block runs, and how often in a row, where segments that stand side by side take turns; else None."""
    if not any(part.turns for part in parts):
        return None
    order: list[int] = []
    for turns, stretch in groupby(range(len(parts)), lambda place: [turn < 0 for turn in parts[place].turns[:1]]):
        if not turns:
            order += [place for place in stretch for _ in range(parts[place].repeat)]
        else:
            order += [place for _, place in sorted((turn, place) for place in stretch for turn in parts[place].turns)]
    if order == sorted(order):
        return None
    runs = [(place, sum(1 for _ in stretch)) for place, stretch in groupby(order)]
    return np.array([place for place, _ in runs]), np.array([count for _, count in runs], dtype=np.float64)


def eager(segments: Sequence[Segment]) -> Timeline:
    """Two timelines; the slower one decides at every kernel."""
    return TwoTimelines(segments).timeline()


def joined(parts: Sequence[Timeline]) -> Timeline:
    """Stages one after the other."""
    return Timeline(sum(t.total_s for t in parts), sum(t.gpu_s for t in parts), sum(t.cpu_s for t in parts))


#: Seconds between kernels of a captured graph, and of a stream that is launched ahead of the GPU. Source: NVIDIA's
#: "Getting Started with CUDA Graphs" (2019, unverified here): kernels of 2.9 us take 3.4 us each in a graph and 3.8 us
#: in a stream, on a V100. A no-op node of a straight graph takes 0.58 us in all on an RTX 5070 Ti (ocannl issue 488).
#: Products of 10 to 40 MiB of weights and up to 64 rows take 0.1 to 1.1 us longer in AIConfigurator's graphs than by
#: Vidur's profiler on the A100, -1.1 to 0.1 us on the H100 (medians: `benchmarks/kernel_gap.py`).
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
    from predictor.passes.sequence_parallel import pieces_of, products_beside  # one GPU starts without it

    exposed_s = list(seconds)
    for i, beside in products_beside(block.nodes).items():
        op, product = block.nodes[i].op, block.nodes[beside].op
        assert isinstance(op, Collective)
        compute = sum(s for node, s in zip(block.nodes, seconds, strict=True) if node.op is product)
        covered = (pieces_of(op) - 1) / pieces_of(op)
        if op.kind == "all_gather":
            exposed_s[i] = max(0.0, seconds[i] - compute * covered)
        else:
            beside_s = compute * (1.0 + slower) * covered
            exposed_s[i] = compute * slower * covered + max(seconds[i] / pieces_of(op), seconds[i] - beside_s)
    return exposed_s


def exposed(block: Block, seconds: Sequence[float], slower: float | None) -> FloatArray:
    """Seconds of every node of one run of a block, of shape (nodes,): of a collective, what compute waits for it and
    what it slows compute down by in place of its own time; the sum is when the run is done. ``slower``: compute
    beside a collective, by that part; None: it waits for collectives, and copies to the host alone run beside it."""
    now = 0.0
    seconds = in_pieces(block, seconds, slower or 0.0)
    exposed_s = np.array(seconds, dtype=float)
    free: dict[str, float] = {}
    arrives: dict[int, tuple[float, int]] = {}  # by storage: when, and of which collective
    ends: list[tuple[float, int]] = []
    for i, node in enumerate(block.nodes):
        for t in node.inputs if arrives else ():
            if (at := arrives.get(id(t.storage))) is not None and at[0] > now:
                exposed_s[at[1]] += at[0] - now
                now = at[0]
        stream = node.op.stream
        if stream == HOST or (stream != COMPUTE and slower is not None):
            end = max(now, free.get(stream, 0.0)) + seconds[i]
            exposed_s[i] = 0.0
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
            exposed_s[max(e for e in ends if block.nodes[e[1]].op.stream != HOST)[1]] += extra
            work += extra
        now = start + work
    for end, i in sorted(ends):
        if end > now:
            exposed_s[i] += end - now
            now = end
    return exposed_s
