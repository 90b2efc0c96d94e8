"""All plans at once, by the few pieces that they are made of. Each piece is forecast once, by the mechanism of every
forecast:

layers    plans that share a layer alike (tp, sp, cp, ep, micro-batch, recompute, and with sharded weights the replicas)
          take their passes from one short pipeline of three stages or so: its first, middle and last chunk give the
          embedding's, a layer's and the head's, for chunks of any size
replicas  what is exchanged and updated once a step is shared by plans of the same degrees and shard

and added up in numpy: the slowest stage once a micro-batch, the rest of the pipeline once, messages, reductions, the
update; ``simulated`` puts the passes into the orders of `predictor.simulate.pipeline` in place of the first two.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from predictor.errors import RequestError
from predictor.estimators.artifact import ArtifactSet, RooflineOnly
from predictor.forecast import WithoutIntervals
from predictor.passes.pipeline import chunks_of
from predictor.planning.priced import Priced, run_of
from predictor.planning.space import ParallelPlan
from predictor.request import Request
from predictor.run import Run
from predictor.simulate.memory import memory_of
from predictor.simulate.pipeline import BLOCKING, STEADY, order_of, steps
from predictor.simulate.plan import plan_of
from predictor.simulate.stage import Plan as StepPlan
from predictor.simulate.step import passes_of
from predictor.simulate.streams import slowdown
from predictor.simulate.times import Operators, TimedStage
from predictor.workload import BREADTH_FIRST, GPIPE, INTERLEAVED, NO_SHARD, ONE_F_ONE_B

Floats = NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)
#: First, middle, last: of what a pipeline has at its ends, and between.
Three = tuple[float, float, float]

#: Stages of the short pipelines that are tried, from the fewest that have a middle by definition; chosen by looking at
#: how many the layers and nodes of the catalogue need.
_SHORT = range(3, 13)


class Layers(NamedTuple):
    """What plans with the same layers share: seconds forward and backward and bytes saved of a micro-batch, of the
    embedding, one layer and the head; exposed seconds of a layer."""

    forward_s: Three
    backward_s: Three
    saved: Three
    exposed_s: float


class Replicas(NamedTuple):
    """What plans of the same degrees share: seconds to reduce, buckets, seconds to gather and to update, and
    parameters, of the first, a middle and the last stage; seconds of a message of one sequence; ``own``: bytes of state
    a parameter."""

    reduce_s: Three
    buckets: Three
    gather_s: Three
    update_s: Three
    parameters: Three
    message_s: float
    own: float
    fixed: float
    usable: float


class _Piece(NamedTuple):
    """A run that stands for plans that share a piece, its plan and its stages with their times."""

    run: Run
    plan: StepPlan
    timed: tuple[TimedStage, ...]


def layers_key(plan: ParallelPlan) -> Hashable:
    """Plans with equal keys have layers alike."""
    replicas = (plan.shard, plan.dp) if _by_layer(plan) else ()
    return plan.tp, plan.sp, plan.cp, plan.ep, plan.micro_batch, plan.recompute, replicas


def replicas_key(plan: ParallelPlan, batch: int) -> Hashable:
    """Plans with equal keys exchange and update the same once a step of ``batch`` sequences."""
    adds_up = batch > plan.dp * plan.micro_batch  # gradients of several micro-batches, which may be wider
    return plan.tp, plan.sp, plan.pp, plan.dp, plan.cp, plan.ep, plan.shard, adds_up


def _by_layer(plan: ParallelPlan) -> bool:
    """Whether weights may be gathered layer by layer."""
    return plan.shard not in (NO_SHARD, "zero1")


def _first_of(plans: Iterable[ParallelPlan], key: Callable[[ParallelPlan], Hashable]) -> dict[Hashable, ParallelPlan]:
    found: dict[Hashable, ParallelPlan] = {}
    for plan in plans:
        found.setdefault(key(plan), plan)
    return found


def _short(plan: ParallelPlan, layers: int) -> Iterator[ParallelPlan]:
    """Pipelines of a few stages with the layers of ``plan``."""
    dp = plan.dp if _by_layer(plan) else max(1, -(-plan.ep // plan.cp))
    for pp in _SHORT:
        if layers % pp == 0 or (layers + 2) % pp == 0:
            shard = plan.shard if _by_layer(plan) else NO_SHARD
            yield replace(plan, pp=pp, vpp=1, dp=dp, schedule="", shard=shard)


def _piece(
    plans: Iterable[ParallelPlan], asked: Request, selector: ArtifactSet | RooflineOnly, passes: int = 0
) -> tuple[Run, StepPlan] | None:
    """The first of ``plans`` that can be, with so many micro-batches (0: as the batch has it), lowered."""
    for plan in plans:
        try:
            batch = passes * plan.dp * plan.micro_batch if passes else asked.batch
            run = run_of(replace(asked, batch=batch), plan, selector)
            return run, plan_of(run)
        except RequestError:
            continue
    return None


def pieces(
    plans: Sequence[ParallelPlan], asked: Request, selector: ArtifactSet | RooflineOnly, layers: int
) -> tuple[dict[Hashable, Layers], dict[Hashable, Replicas], Run | None, float]:
    """The pieces of all plans, every operator of them forecast in one call; one of the runs that they are of;
    and the FLOPs of a sequence, without what runs again."""
    todo: list[tuple[bool, Hashable, Run, StepPlan]] = []
    for key, plan in _first_of(plans, layers_key).items():
        made = _piece(_short(plan, layers), asked, selector, passes=2)
        if made is not None:
            todo.append((True, key, *made))
    for key, plan in _first_of(plans, lambda plan: replicas_key(plan, asked.batch or 1)).items():
        made = _piece((plan,), asked, selector)
        if made is not None:
            todo.append((False, key, *made))
    if not todo:
        return {}, {}, None, 0.0
    run = todo[0][2]
    operators = Operators(run.gpu, run.work.engine, WithoutIntervals(selector))
    timed = operators.time([lowered for _, _, _, lowered in todo])
    found, shared = dict[Hashable, Layers](), dict[Hashable, Replicas]()
    for (own, key, each, lowered), stages in zip(todo, timed, strict=True):
        if own:
            found[key] = _layers(_Piece(each, lowered, stages))
        else:
            shared[key] = _replicas(_Piece(each, lowered, stages))
    return found, shared, run, _flops(todo, timed)


def _flops(todo: Sequence[tuple[bool, Hashable, Run, StepPlan]], timed: Sequence[tuple[TimedStage, ...]]) -> float:
    """FLOPs of one sequence over all GPUs, forward and backward, as a forecast counts them."""
    least = float("inf")
    for (own, _, run, plan), stages in zip(todo, timed, strict=True):
        if own and plan.parallel is not None:
            over = run.work.parallelism
            whole = sum(
                stages[place].flops for kind in plan.parallel.ranks for place in plan.parallel.kinds[kind].chunks
            )
            least = min(least, whole * over.tp * over.cp / run.work.sequences_a_pass)
    return least if least < float("inf") else 0.0


def _layers(piece: _Piece) -> Layers:
    """An embedding, a layer and a head of the first, a middle and the last chunk of a short pipeline."""
    parallel, slower = piece.plan.parallel, slowdown(piece.run.gpu)
    assert parallel is not None
    places = [parallel.kinds[parallel.ranks[s]].chunks[0] for s in (0, 1, -1)]
    chunks = chunks_of(piece.run.config, piece.run.work.parallelism.pp)
    counts = [chunk.end - chunk.first for chunk in (chunks[0], chunks[1], chunks[-1])]
    passes = [passes_of(piece.plan, piece.timed, place, piece.run.work.parallelism.shard, slower) for place in places]
    saved = [parallel.saved[place]() for place in places]

    def three(values: Sequence[float]) -> Three:
        each = values[1] / counts[1]
        return max(0.0, values[0] - counts[0] * each), each, max(0.0, values[2] - counts[2] * each)

    exposed = sum(passes[1].exposed_s.values()) / counts[1]
    return Layers(three([p.forward_s for p in passes]), three([p.backward_s for p in passes]), three(saved), exposed)


def _replicas(piece: _Piece) -> Replicas:
    """What a plan's stages exchange and update once a step, and what a parameter takes on them."""
    parallel, memory = piece.plan.parallel, memory_of(piece.run, piece.plan)
    if parallel is None:  # one GPU
        count = float(piece.plan.stages[0].graph.parameters())
        update = piece.timed[-1].timeline.total_s
        return Replicas(
            (0.0,) * 3, (1.0,) * 3, (0.0,) * 3, (update,) * 3, (count,) * 3, 0.0, memory.own / count,
            memory.context + memory.workspaces, memory.usable,
        )  # fmt: skip
    ranks = [parallel.kinds[kind] for kind in parallel.ranks]
    some = [ranks[0], ranks[len(ranks) // 2], ranks[-1]]

    def total(place: int) -> float:
        return piece.timed[place].timeline.total_s if place >= 0 else 0.0

    def buckets(place: int) -> float:
        blocks = piece.timed[place].stage.graph.blocks if place >= 0 else ()
        return float(max(1, sum(node.count for block in blocks for node in block.nodes)))

    def three(values: Sequence[float]) -> Three:
        return values[0], values[1], values[2]

    count = ranks[memory.stage].parameters
    return Replicas(
        three([total(rank.reduce) for rank in some]), three([buckets(rank.reduce) for rank in some]),
        three([total(rank.gather) for rank in some]), three([total(rank.update) for rank in some]),
        three([float(rank.parameters) for rank in some]), total(parallel.message) / piece.run.work.sequences_a_pass,
        memory.own / max(1, count), memory.context + memory.workspaces, memory.usable,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------ all together


def screen(
    plans: Sequence[ParallelPlan], asked: Request, selector: ArtifactSet | RooflineOnly, layers: int,
    simulated: bool = False,
) -> list[Priced]:  # fmt: skip
    """All plans by their pieces; a plan that has none, as where its degrees cannot be, is left out."""
    own, shared, sample, own_flops = pieces(plans, asked, selector, layers)
    batch = asked.batch or 1
    kept = [plan for plan in plans if layers_key(plan) in own and replicas_key(plan, batch) in shared]
    if not kept or sample is None:
        return []
    table = _Table(kept, [own[layers_key(plan)] for plan in kept], [shared[replicas_key(plan, batch)] for plan in kept])
    table.lay_out(batch, layers)
    steady = sample.work.engine.training is not None and sample.work.engine.training.p2p_overlaps
    pipeline_s = table.simulated_s(steady) if simulated else table.closed_s(steady)
    latency_s, exchanged_s = table.once(pipeline_s, sample)
    flops = own_flops * batch
    held, usable = table.memory()
    busy = table.micro_batches * table.mean_s
    bubble = np.maximum(0.0, pipeline_s - busy - table.sent_s)
    peak = sample.gpu.peak_flops(sample.numbers.gemm)
    gpus = np.array([plan.num_gpus for plan in kept], float)
    mfu = flops / latency_s / (gpus * peak)
    rows = zip(
        kept, latency_s.tolist(), mfu.tolist(), held.tolist(), usable.tolist(), bubble.tolist(),
        (exchanged_s + table.sent_s).tolist(), strict=True,
    )  # fmt: skip
    return [
        Priced(
            plan, t, rate, bytes_, room, idle, out, {"compute": t - idle - out, "bubble": idle, "exchanged": out}, False
        )
        for plan, t, rate, bytes_, room, idle, out in rows
    ]


class _Table:
    """Plans as columns; arrays of shape (plans,), or (plans, 3) for the first, a middle and the last stage."""

    def __init__(self, plans: Sequence[ParallelPlan], own: Sequence[Layers], shared: Sequence[Replicas]) -> None:
        self.plans = plans
        self.own = own
        self.shared = shared
        self.p, self.v, self.dp, self.micro = (
            np.array([getattr(plan, name) for plan in plans], float) for name in ("pp", "vpp", "dp", "micro_batch")
        )

    def _of(self, rows: Sequence[NamedTuple], name: str) -> Floats:
        return np.array([getattr(row, name) for row in rows], float)

    def lay_out(self, batch: int, layers: int) -> None:
        """Seconds and bytes of a chunk at both ends and in the middle, of one micro-batch."""
        self.layers = layers
        self.micro_batches = batch / self.dp / self.micro
        parts = self.p * self.v
        even = layers % parts == 0
        # layers that do not divide: those at the ends have one less (`predictor.passes.pipeline`)
        each = np.where(even, layers / parts, (layers + 2) / parts)[:, None]
        less = np.where(even, 0.0, 1.0)[:, None]
        alone = (self.p * self.v == 1)[:, None]

        def chunks(name: str) -> Floats:
            three = self._of(self.own, name)
            middle = each * three[:, 1:2]
            ends = middle - less * three[:, 1:2]
            first, last = ends + three[:, :1], ends + three[:, 2:]
            first = np.where(alone, first + three[:, 2:], first)
            return np.concatenate((first, middle, np.where(alone, first, last)), axis=1)

        self.forward_s, self.backward_s, self.saved = (chunks(name) for name in ("forward_s", "backward_s", "saved"))
        more = ((self.v - 1.0) * each[:, 0])[:, None]  # layers of a stage's other chunks, which are middle ones
        self.stage_forward_s = self.forward_s + more * self._of(self.own, "forward_s")[:, 1:2]
        self.stage_backward_s = self.backward_s + more * self._of(self.own, "backward_s")[:, 1:2]
        stage_s = self.stage_forward_s + self.stage_backward_s
        self.slowest_s = np.where(self.p > 2, stage_s.max(axis=1), np.maximum(stage_s[:, 0], stage_s[:, 2]))
        through = stage_s[:, 0] + np.maximum(self.p - 2, 0) * stage_s[:, 1] + np.where(self.p > 1, stage_s[:, 2], 0.0)
        self.mean_s = through / self.p
        self.through_s = through
        self.message_s = np.where(self.p > 1, self._of(self.shared, "message_s") * self.micro, 0.0)

    def closed_s(self, steady: bool) -> Floats:
        """The pipeline in closed form: the slowest stage once a micro-batch, the rest of one chunk's way once, and the
        messages that hold stages up. Exact for equal stages of 1f1b, interleaved, gpipe and breadth-first orders
        without messages (tests/unit/test_pipeline.py, test_planning.py)."""
        alternates = np.array([_order(plan) == INTERLEAVED for plan in self.plans])
        waits = self.micro_batches * np.where(steady & alternates, 0.0, self.v)
        self.sent_s = 2.0 * self.message_s * (waits + np.where(self.p > 1, self.p - 1, 0.0))
        m, v = self.micro_batches, self.v
        full = (m - 1.0 / v) * self.slowest_s + self.through_s / v
        empty = self.through_s + (m - 1.0) * self.slowest_s / v  # micro-batches that do not fill the ring of chunks
        found: Floats = np.maximum(full, empty) + self.sent_s
        return found

    def simulated_s(self, steady: bool) -> Floats:
        """The pipeline by its orders, plans of one order together."""
        self.closed_s(steady)
        found = np.empty(len(self.plans))
        groups: dict[tuple[str, int, int, int], list[int]] = {}
        for i, plan in enumerate(self.plans):
            m = round(float(self.micro_batches[i]))
            groups.setdefault((_order(plan), plan.pp, m, plan.vpp), []).append(i)
        for (name, p, m, v), members in groups.items():
            some = np.array(members)
            if p == 1:
                found[some] = m * self.slowest_s[some]
                continue
            ways = []
            for seconds in (self.forward_s[some], self.backward_s[some]):
                wide = np.repeat(seconds[:, 1], p * v).reshape(-1, p, v)
                wide[:, 0, 0], wide[:, p - 1, v - 1] = seconds[:, 0], seconds[:, 2]
                ways.append(wide)
            sent = np.repeat(self.message_s[some][:, None], p, axis=1)
            held = STEADY if steady and v > 1 else BLOCKING
            found[some] = steps(order_of(name, p, m, v), ways[0], ways[1], sent, held)
        return found

    def once(self, pipeline_s: Floats, sample: Run) -> tuple[Floats, Floats]:
        """Seconds of the whole step, and of what is exchanged."""
        training, slower = sample.work.engine.training, slowdown(sample.gpu)
        reduce_s, gather_s = self._of(self.shared, "reduce_s"), self._of(self.shared, "gather_s")
        if training is not None and training.gradients_overlap:
            least = reduce_s / self._of(self.shared, "buckets")
            reduce_s = np.maximum(least, _covered(reduce_s, self.stage_backward_s, slower))
        if training is not None and training.weights_overlap:
            gather_s = _covered(gather_s, self.forward_s, slower)
        update_s = self._of(self.shared, "update_s").max(axis=1)
        once = reduce_s.max(axis=1) + gather_s.max(axis=1)
        inside = (
            self.micro_batches
            * self._of(self.own, "exposed_s")
            * np.array([1.0 / plan.pp for plan in self.plans])
            * self.layers
        )
        return pipeline_s + once + update_s, once + inside

    def memory(self) -> tuple[Floats, Floats]:
        """Bytes of the fullest of the first two and the last stage, and what a GPU may use."""
        shared = {name: self._of(self.shared, name) for name in ("parameters", "own", "fixed", "usable")}
        state = shared["parameters"] * shared["own"][:, None]
        m, p, v = self.micro_batches, self.p, self.v
        kind = np.array([_order(plan) in (GPIPE, BREADTH_FIRST) for plan in self.plans])

        def held(stage: Floats) -> Floats:
            """Chunks of micro-batches that a stage has at once."""
            looped = 2.0 * (p - stage - 1.0) + (v - 1.0) * p + 1.0
            most: Floats = np.where(kind, m * v, np.where(v > 1, looped, p - stage))
            there: Floats = np.minimum(m * v, most)
            return there

        middle = self.saved[:, 1]
        first = held(np.zeros(len(p))) * middle + (self.saved[:, 0] - middle) * np.minimum(
            m, held(np.zeros(len(p))) / v
        )
        last = held(p - 1.0) * middle + (self.saved[:, 2] - middle) * np.where(kind, m, 1.0)
        second = np.where(p > 2, held(np.ones(len(p))) * middle + state[:, 1], 0.0)  # it may have a layer more
        found: Floats = np.maximum(second, np.maximum(state[:, 0] + first, state[:, 2] + last)) + shared["fixed"]
        return found, shared["usable"]


def _order(plan: ParallelPlan) -> str:
    return plan.schedule or (INTERLEAVED if plan.vpp > 1 else ONE_F_ONE_B)


def _covered(seconds: Floats, window_s: Floats, slower: float) -> Floats:
    """As `predictor.simulate.step` has it, over arrays: what a collective adds to compute beside it."""
    beside = seconds * slower / (1.0 + slower)
    found: Floats = np.where(seconds <= window_s * (1.0 + slower), beside, seconds - window_s)
    return found
