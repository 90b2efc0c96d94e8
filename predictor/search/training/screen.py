"""All plans at once, by the few pieces that they are made of. Each piece is forecast once, by the mechanism of every
forecast:

layers    plans that share a layer alike (tp, sp, cp, ep, etp, micro-batch, recompute, and with sharded weights the
          replicas) take their passes from one short pipeline of three stages or so: its first, middle and last chunk
          give the embedding's, a layer's and the head's, for chunks of any size
replicas  what is exchanged and updated once a step is shared by plans of the same degrees and shard

and added up in numpy (`predictor.search.training.table`). Of the best pipelines those whose slowest stage another cut
makes faster are added with that cut (`predictor.search.training.cuts`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from predictor.errors import RequestError
from predictor.files.records import replace
from predictor.forecast.forecast import WithoutIntervals
from predictor.graph import Graph
from predictor.kernels.artifact import ArtifactSet, RooflineOnly
from predictor.passes.pipeline import chunks_of
from predictor.request.options import NO_SHARD
from predictor.request.request import Request
from predictor.request.run import Run
from predictor.search.training.cuts import RECUT, recut
from predictor.search.training.priced import Priced, run_of
from predictor.search.training.space import ParallelPlan
from predictor.search.training.table import Floats, Layers, PlanTable, Replicas, Three
from predictor.simulate.memory import memory_of, state_of
from predictor.simulate.plan import plan_of
from predictor.simulate.stage import Plan as StepPlan
from predictor.simulate.step_time import passes_of
from predictor.simulate.times import Operators, TimedStage

Key = TypeVar("Key", bound=Hashable)
BoolArray = NDArray[np.bool_]
Ints = NDArray[np.int64]
#: Stages of the short pipelines that are tried, from the fewest that have a middle by definition; chosen by looking at
#: how many the layers and nodes of the catalogue need.
_SHORT = range(3, 13)


_NOTHING = Graph(())


class _Piece(NamedTuple):
    """A run that stands for plans that share a piece, its plan and its stages with their times."""

    run: Run
    plan: StepPlan
    timed: tuple[TimedStage, ...]


def layers_key(plan: ParallelPlan) -> Hashable:
    """Plans with equal keys have layers alike."""
    replicas = (plan.shard, plan.dp) if _by_layer(plan) else ()
    return plan.tp, plan.sp, plan.cp, plan.ep, plan.etp, plan.micro_batch, plan.recompute, replicas


def replicas_key(plan: ParallelPlan, batch: int) -> Hashable:
    """Plans with equal keys exchange and update the same once a step of ``batch`` sequences."""
    adds_up = batch > plan.dp * plan.micro_batch  # gradients of several micro-batches, which may be wider
    return plan.tp, plan.sp, plan.pp, plan.dp, plan.cp, plan.ep, plan.etp, plan.shard, plan.stage_layers, adds_up


def _by_layer(plan: ParallelPlan) -> bool:
    """Whether weights may be gathered layer by layer."""
    return plan.shard not in (NO_SHARD, "zero1")


def _first_of(plans: Iterable[ParallelPlan], key: Callable[[ParallelPlan], Hashable]) -> dict[Hashable, ParallelPlan]:
    first: dict[Hashable, ParallelPlan] = {}
    for plan in plans:
        first.setdefault(key(plan), plan)
    return first


def _short(plan: ParallelPlan, layers: int) -> Iterator[ParallelPlan]:
    """Pipelines of a few stages with the layers of ``plan``."""
    sharers = plan.cp * (plan.tp if plan.etp else 1)  # of the experts, beside replicas
    dp = plan.dp if _by_layer(plan) else max(1, -(-plan.ep // sharers))
    for pp in _SHORT:
        if layers % pp == 0 or (layers + 2) % pp == 0:
            shard = plan.shard if _by_layer(plan) else NO_SHARD
            yield replace(plan, pp=pp, vpp=1, dp=dp, schedule="", shard=shard, stage_layers=())


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
    timed = operators.time([_asked(lowered, of_layers) for of_layers, _, _, lowered in todo])
    layers_by_key, shared = dict[Hashable, Layers](), dict[Hashable, Replicas]()
    for (of_layers, key, each, lowered), stages in zip(todo, timed, strict=True):
        if of_layers:
            layers_by_key[key] = _layers(_Piece(each, lowered, stages))
        else:
            shared[key] = _replicas(_Piece(each, lowered, stages))
    return layers_by_key, shared, run, _flops(todo, timed)


def _asked(plan: StepPlan, of_layers: bool) -> StepPlan:
    """A plan with its passes and what their layers exchange alone (``of_layers``), or with all but them: the others are
    empty and take no time."""
    if plan.parallel is None:
        return plan
    once = {place for rank in plan.parallel.kinds for place in (rank.reduce, rank.gather, rank.update)}
    once.add(plan.parallel.message)
    stages = (
        stage if of_layers != (place in once) else stage._replace(graph=_NOTHING)
        for place, stage in enumerate(plan.stages)
    )
    return plan._replace(stages=tuple(stages))


def _flops(todo: Sequence[tuple[bool, Hashable, Run, StepPlan]], timed: Sequence[tuple[TimedStage, ...]]) -> float:
    """FLOPs of one sequence over all GPUs, forward and backward, as a forecast's MFU counts them."""
    least = float("inf")
    for (of_layers, _, run, plan), stages in zip(todo, timed, strict=True):
        if of_layers and plan.parallel is not None:
            over = run.work.parallelism
            whole = sum(
                stages[place].model_flops for kind in plan.parallel.ranks for place in plan.parallel.kinds[kind].chunks
            )
            least = min(least, whole * over.tp * over.cp / run.work.sequences_a_pass)
    return least if least < float("inf") else 0.0


def _layers(piece: _Piece) -> Layers:
    """An embedding, a layer and a head of the first, a middle and the last chunk of a short pipeline."""
    parallel = piece.plan.parallel
    assert parallel is not None
    places = [parallel.kinds[parallel.ranks[s]].chunks[0] for s in (0, 1, -1)]
    chunks = chunks_of(piece.run.config.stack(), piece.run.work.parallelism.pp)
    counts = [chunk.end - chunk.first for chunk in (chunks[0], chunks[1], chunks[-1])]
    passes = [passes_of(piece.run, piece.plan, piece.timed, place) for place in places]
    saved = [parallel.saved[place]() for place in places]

    def three(values: Sequence[float]) -> Three:
        each = values[1] / counts[1]
        return max(0.0, values[0] - counts[0] * each), each, max(0.0, values[2] - counts[2] * each)

    exposed = sum(passes[1].exposed_s.values()) / counts[1]
    return Layers(three([p.forward_s for p in passes]), three([p.backward_s for p in passes]), three(saved), exposed)


def _replicas(piece: _Piece) -> Replicas:
    """What a plan's stages exchange and update once a step, and what a parameter takes on them."""
    parallel = piece.plan.parallel
    if parallel is None:  # one GPU
        memory = memory_of(piece.run, piece.plan)
        count = float(piece.plan.stages[0].graph.parameters())
        update = piece.timed[-1].timeline.total_s
        return Replicas(
            (0.0,) * 3, (1.0,) * 3, (0.0,) * 3, (update,) * 3, (count,) * 3, 0.0, memory.own / count,
            memory.context + memory.workspaces, memory.usable,
        )  # fmt: skip
    memory = state_of(piece.run, piece.plan)
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


class Screening:
    """Plans by their pieces, as columns: memory of all of them, and seconds of those that are asked for. A pipeline is
    simulated when a bound of its step (`PlanTable.least_s`) does not rule it out.

    ``kept``: the plans that have pieces; one that has none, as where its degrees cannot be, is left out. With
    ``simulated`` False pipelines are closed forms.
    """

    def __init__(
        self, plans: Sequence[ParallelPlan], asked: Request, selector: ArtifactSet | RooflineOnly, layers: int,
        simulated: bool = False,
    ) -> None:  # fmt: skip
        layers_of, shared, sample, flops = pieces(plans, asked, selector, layers)
        batch = asked.batch or 1
        self.kept: list[ParallelPlan] = []
        rows: list[tuple[Layers, Replicas]] = []
        for plan in plans:
            layer, replicas = layers_of.get(layers_key(plan)), shared.get(replicas_key(plan, batch))
            if layer is not None and replicas is not None:
                self.kept.append(plan)
                rows.append((layer, replicas))
        self.held = self.usable = self._bound_s = self._pipeline_s = np.zeros(0)
        if sample is None or not self.kept:
            self.kept = []
            return
        self.table = table = PlanTable(self.kept, [of for of, _ in rows], [of for _, of in rows])
        table.lay_out(batch, layers)
        self._steady = sample.work.engine.training is not None and sample.work.engine.training.p2p_overlaps
        self._flops = flops * batch
        self._peak = sample.gpu.peak_flops(sample.numbers.gemm)
        self.gpus = table.p * table.dp * np.array([plan.tp * plan.cp for plan in self.kept], float)
        self.held, self.usable = table.memory()
        self._once_s, self._update_s, self._exchanged_s = table.once(sample)
        self._pipeline_s = np.full(len(self.kept), np.nan) if simulated else table.closed_s(self._steady)
        least_s = table.least_s(self._steady) if simulated else self._pipeline_s
        self._bound_s = least_s + self._once_s + self._update_s

    @property
    def fits(self) -> BoolArray:
        """Which plans every GPU has room for."""
        return self.held <= self.usable

    def latency_s(self, rows: Sequence[int] | Ints) -> Floats:
        """Seconds of a step of the plans of ``rows``."""
        some = np.asarray(rows, dtype=np.int64)
        missing = some[np.isnan(self._pipeline_s[some])]
        if missing.size:
            self._pipeline_s[missing] = self.table.simulated_s(self._steady, missing.tolist())
        return self._pipeline_s[some] + self._once_s[some] + self._update_s[some]

    def fastest(self, rows: Ints, count: int, weight: Floats | None = None) -> Ints:
        """Of ``rows``, in their order, the ``count`` whose seconds (times ``weight``, by row of all) are least, and
        those that are not slower than the last of them."""
        if not rows.size or count < 1:
            return rows[:0]
        weights = np.ones(len(self.kept)) if weight is None else weight
        bound = self._bound_s[rows] * weights[rows]
        by_bound = rows[np.argsort(bound, kind="stable")]
        bound = np.sort(bound)
        looked = min(count, len(rows))
        while True:
            seconds = self.latency_s(by_bound[:looked]) * weights[by_bound[:looked]]
            last = np.sort(seconds)[min(count, len(seconds)) - 1]
            enough = int(np.searchsorted(bound, last, side="right"))
            if enough <= looked:
                return np.sort(by_bound[:looked][seconds <= last])
            looked = enough

    def priced(self, rows: Sequence[int] | Ints) -> list[Priced]:
        """The answers of the plans of ``rows``."""
        if not len(rows):
            return []
        some = np.asarray(rows, dtype=np.int64)
        latency_s, table = self.latency_s(some), self.table
        sent_s = table.sent_s(self._steady)
        busy = table.micro_batches * table.mean_s
        bubble = np.maximum(0.0, self._pipeline_s[some] - busy[some] - sent_s[some])
        mfu = self._flops / latency_s / (self.gpus[some] * self._peak)
        columns = (latency_s, mfu, self.held[some], self.usable[some], bubble, (self._exchanged_s + sent_s)[some])
        return [
            Priced(self.kept[i], t, rate, bytes_, room, idle, out,
                   {"compute": t - idle - out, "bubble": idle, "exchanged": out}, False)
            for i, t, rate, bytes_, room, idle, out in zip(
                some.tolist(), *(column.tolist() for column in columns), strict=True
            )
        ]  # fmt: skip

    @cached_property
    def cuts(self) -> list[Priced]:
        """The fastest pipelines that fit with cuts that are faster."""
        if not self.kept:
            return []
        some = self.fastest(np.flatnonzero((self.table.p > 1) & self.fits), RECUT)
        return recut(self.table, dict(zip(some.tolist(), self.priced(some), strict=True)))


def screen(
    plans: Sequence[ParallelPlan], asked: Request, selector: ArtifactSet | RooflineOnly, layers: int,
    simulated: bool = False,
) -> list[Priced]:  # fmt: skip
    """All plans by their pieces, and the best with cuts that are faster."""
    screening = Screening(plans, asked, selector, layers, simulated)
    return [*screening.priced(range(len(screening.kept))), *screening.cuts]
