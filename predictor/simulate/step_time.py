"""A step of training on many GPUs: micro-batches through the pipeline, then gradients joined, and weights updated.

Time of a chunk's pass comes from its timeline, in which its layers' collectives count with what is exposed of them.
Weights that are gathered layer by layer are fetched beside the layer before, gradients reduced beside the one after:
a layer takes the longer of both. What a pipeline makes of the passes is `predictor.simulate.pipeline`'s to say. What
replicas exchange once a step runs beside the last backward pass (gradients) and the first forward pass (weights) where
the framework has it so, a bucket at a time, and else follows. Beside a collective compute is slower
(`predictor.simulate.timeline`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from predictor.engines import library
from predictor.engines.registry import sends_rows
from predictor.files.records import dataclass
from predictor.graph import OPTIMIZER
from predictor.ops.base import COMPUTE
from predictor.ops.roofline import FloatArray
from predictor.request.options import ZERO2
from predictor.request.run import Run
from predictor.simulate.pipeline import BLOCKING, STEADY, times
from predictor.simulate.pipeline_orders import Order, order_of
from predictor.simulate.stage import GRADIENTS, PIPELINE, WEIGHTS, Plan, Rank
from predictor.simulate.timeline import slowdown
from predictor.simulate.times import TimedStage

#: Tokens on their way to experts and back, in words.
EXPERT = "expert"
#: Kinds of collectives within layers, by whose they are.
_OWNERS = {"send_recv": "context", "all_to_all": EXPERT, "expert exchange": EXPERT, "host_copy": "host"}
#: What sharded and split layers wait for, in words.
TENSOR = "tensor"


class Passes(NamedTuple):
    """Seconds of one micro-batch forward and backward through a chunk, and what of them is exposed, by what it is.
    ``hidden_s``: what both take longer where no pass of another micro-batch is beside them."""

    forward_s: float
    backward_s: float
    exposed_s: dict[str, float]
    hidden_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A step in seconds: ``latency_s``, the sum of ``phases_s``. ``exposed_s``: by what is exchanged, what of it
    nothing covers; ``bubble_s``: what a stage of the pipeline idles where messages are free, on average. ``rank``: the
    stage that is done last, and ``weights``, how often it runs which stages of the plan, by place."""

    latency_s: float
    phases_s: dict[str, float]
    exposed_s: dict[str, float]
    bubble_s: float
    rank: int
    weights: dict[int, float]


class Laid(NamedTuple):
    """A step laid out in time, seconds. ``passes`` by place of a chunk; ``order`` of the pipeline's units (None: no
    pipeline) with what they take, each of shape (1, stages, chunks), messages of ``sent_s``, (1, stages), and what they
    hold up (`predictor.simulate.pipeline`); for every stage when its last pass ends, and what reducing gradients,
    gathering weights and the update then add; ``bubble_s`` and ``messages_s``: what the pipeline idles, and what
    messages add."""

    passes: dict[int, Passes]
    order: Order | None
    forward_s: FloatArray
    backward_s: FloatArray
    sent_s: FloatArray
    p2p: str
    ends_s: FloatArray
    reduce_s: list[float]
    gather_s: list[float]
    update_s: list[float]
    bubble_s: float
    messages_s: float


def laid_out(run: Run, plan: Plan, timed: Sequence[TimedStage]) -> Laid:
    """The timed stages of a ``plan`` in the order in which the pipeline runs them."""
    parallel, work = plan.parallel, run.work
    assert parallel is not None
    over, training, micro_batches = work.parallelism, work.engine.training, work.micro_batches
    slower = slowdown(run.gpu)
    used = {place for rank in parallel.kinds for place in rank.chunks}
    passes = {place: passes_of(run, plan, timed, place) for place in used}
    kinds = [parallel.kinds[kind] for kind in parallel.ranks]
    forward = np.array([[[passes[place].forward_s for place in rank.chunks] for rank in kinds]])
    backward = np.array([[[passes[place].backward_s for place in rank.chunks] for rank in kinds]])
    beside = training is not None and training.p2p_overlaps and over.vpp > 1
    p2p, sent, order = STEADY if beside else BLOCKING, np.zeros((1, 1)), None
    if over.pp == 1:
        (chunk,) = kinds[0].chunks
        ends = np.array([micro_batches * (passes[chunk].forward_s + passes[chunk].backward_s)])
        bubble = messages = 0.0
    else:
        order = order_of(over.order, over.pp, micro_batches, over.vpp)
        sent = timed[parallel.message].timeline.total_s * np.array([parallel.sends[: over.pp]], dtype=float)
        piped = times(order, forward, backward, sent, p2p)
        ends, bubble, messages = piped.end_s[0], float(piped.bubble_s[0]), float(piped.exposed_s[0])
    lone = max(1, over.pp - 1)  # passes forward before the first one backward, and backward behind the last one forward
    ends = ends + lone * np.array([sum(passes[place].hidden_s for place in rank.chunks) for rank in kinds])
    covered = over.beside(training is not None and training.gradients_overlap)
    reduces = [_reduce_s(timed, rank, passes, covered, slower) for rank in kinds]
    gathers = [
        _covered(_total(timed, rank.gather), passes[rank.chunks[0]].forward_s, slower)
        if over.beside(training is not None and training.weights_overlap) else _total(timed, rank.gather)
        for rank in kinds
    ]  # fmt: skip
    updates = [_total(timed, rank.update) for rank in kinds]
    return Laid(passes, order, forward, backward, sent, p2p, ends, reduces, gathers, updates, bubble, messages)


def step_of(run: Run, plan: Plan, timed: Sequence[TimedStage]) -> StepTimes:
    """The step that the timed stages of a ``plan`` make up."""
    parallel, work = plan.parallel, run.work
    assert parallel is not None
    over, micro_batches = work.parallelism, work.micro_batches
    laid = laid_out(run, plan, timed)
    passes, ends, reduces, gathers, updates = laid.passes, laid.ends_s, laid.reduce_s, laid.gather_s, laid.update_s
    bubble, messages = laid.bubble_s, laid.messages_s
    kinds = [parallel.kinds[kind] for kind in parallel.ranks]
    last = int(np.argmax(ends + np.array(reduces)))
    rank = kinds[last]
    each = [passes[place] for place in rank.chunks]
    ways = micro_batches * sum(p.forward_s for p in each), micro_batches * sum(p.backward_s for p in each)
    alone = max(1, over.pp - 1) * sum(p.hidden_s for p in each)
    if over.pp == 1:
        ways = ways[0], ways[1] + alone
    phases = {
        "forward": float(ways[0]), "backward": float(ways[1]), PIPELINE: float(ends[last]) - float(sum(ways)),
        GRADIENTS: reduces[last], OPTIMIZER: max(updates), WEIGHTS: max(gathers),
    }  # fmt: skip
    exposed: dict[str, float] = {}
    for place in rank.chunks:
        for name, seconds in passes[place].exposed_s.items():
            exposed[name] = exposed.get(name, 0.0) + micro_batches * seconds
    for name, seconds in ((PIPELINE, messages), (GRADIENTS, reduces[last]), (WEIGHTS, max(gathers)), (EXPERT, alone)):
        exposed[name] = exposed.get(name, 0.0) + seconds
    weights: dict[int, float] = {}
    for place in rank.chunks:
        weights[place] = weights.get(place, 0.0) + micro_batches
        if place in parallel.units:
            weights |= dict.fromkeys(parallel.units[place][:2], float(micro_batches))
    weights |= {place: 1.0 for place in (rank.reduce, rank.gather, rank.update) if place >= 0}
    if parallel.message >= 0:
        weights[parallel.message] = 2.0 * micro_batches * sum(parallel.sends) / over.pp
    shown = {name: seconds for name, seconds in phases.items() if seconds or name in ("forward", "backward", OPTIMIZER)}
    return StepTimes(sum(phases.values()), shown, {n: s for n, s in exposed.items() if s}, bubble, last, weights)


def _total(timed: Sequence[TimedStage], place: int) -> float:
    return timed[place].timeline.total_s if place >= 0 else 0.0


def _covered(seconds: float, window_s: float, slower: float) -> float:
    """What a collective of ``seconds`` adds to compute of ``window_s`` beside it."""
    if seconds <= window_s * (1.0 + slower):
        return seconds * slower / (1.0 + slower)
    return seconds - window_s


def _reduce_s(
    timed: Sequence[TimedStage], rank: Rank, passes: dict[int, Passes], covered: bool, slower: float
) -> float:
    """What reducing a rank's gradients adds to the last backward pass: all of it, or, where it runs beside that, the
    last bucket at least."""
    if rank.reduce < 0:
        return 0.0
    stage = timed[rank.reduce]
    total: float = stage.timeline.total_s
    buckets = sum(node.count for block in stage.stage.graph.blocks for node in block.nodes)
    if not covered:
        return total
    return max(total / buckets, _covered(total, sum(passes[place].backward_s for place in rank.chunks), slower))


def passes_of(run: Run, plan: Plan, timed: Sequence[TimedStage], place: int) -> Passes:
    """One micro-batch through the chunk at a ``place`` of the plan."""
    stage, parallel = timed[place], plan.parallel
    assert parallel is not None
    forward_s = stage.up_to(stage.stage.forward).total_s
    backward_s = stage.timeline.total_s - forward_s
    exposed: dict[str, float] = {}
    experts = [0.0, 0.0]  # forward, backward
    for b, at in enumerate(stage.blocks):
        if at.plain:
            for node, seconds in zip(at.block.nodes, at.gpu_s.tolist(), strict=True):
                if node.op.stream != COMPUTE and seconds:
                    name = _OWNERS.get(node.op.label, TENSOR)
                    exposed[name] = exposed.get(name, 0.0) + seconds * at.block.repeat
                    if name == EXPERT:
                        experts[b >= stage.stage.forward] += seconds * at.block.repeat
    hidden = 0.0
    sent_s = experts[0] + experts[1]
    if run.work.parallelism.ep_overlap and sent_s:
        window = forward_s + backward_s - sum(exposed.values())
        left = min(sent_s, _covered(sent_s, window, _slower_beside_experts(run)))
        hidden = sent_s - left
        forward_s, backward_s = forward_s - hidden * experts[0] / sent_s, backward_s - hidden * experts[1] / sent_s
        exposed[EXPERT] = left
    if place not in parallel.units:
        return Passes(forward_s, backward_s, exposed, hidden)
    unit, training = parallel.units[place], run.work.engine.training
    into, back = _sharded(
        stage, unit.blocks, timed[unit.gather], timed[unit.reduce], run.work.parallelism.shard != ZERO2,
        slowdown(run.gpu), training is not None and training.limits_gathers,
    )  # fmt: skip
    exposed[WEIGHTS] = into
    exposed[GRADIENTS] = back
    return Passes(forward_s + into, backward_s + back, exposed, hidden)


def _slower_beside_experts(run: Run) -> float:
    """By what part compute takes longer beside tokens on their way: a library of kernels for experts says how many SMs
    these hold."""
    how, sms = run.work.all_to_all, run.gpu.sm_count
    if not sends_rows(how) or not sms:
        return slowdown(run.gpu)
    exchanges = library(how).exchanges
    assert exchanges is not None
    return exchanges.sms / max(sms - exchanges.sms, exchanges.sms)


class _Unit(NamedTuple):
    """A layer whose weights are sharded, in seconds of one run: forward and backward, what gathers its weights and
    reduces its gradients; ``into_s`` and ``back_s``: what copies and hooks add to either pass; ``ahead_s``: hooks that
    the host runs before it asks for weights."""

    runs: int
    forward_s: float
    backward_s: float
    gather_s: float
    reduce_s: float
    into_s: float
    back_s: float
    ahead_s: float


def _sharded(
    stage: TimedStage, blocks: Sequence[int], gather: TimedStage, reduce: TimedStage, regathers: bool, slower: float,
    limited: bool,
) -> tuple[float, float]:  # fmt: skip
    """What gathering weights and reducing gradients layer by layer adds to a chunk's forward and backward pass.

    ``regathers``: weights are gathered for the backward pass, too. A layer takes the longer of its kernels with their
    copies and the host's launches with their hooks. Its weights come beside the layer before it; where the framework
    limits gathers (``limited``), not before the host has waited for the layer before that and run the hooks.
    """
    units = _units(stage, blocks, gather, reduce, regathers)
    into = back = 0.0
    before = -1.0  # compute of the layer before, beside which the next one's weights are gathered
    for unit in units:
        late = unit.ahead_s if limited else 0.0
        into += unit.runs * unit.into_s
        into += unit.gather_s if before < 0.0 else _late(unit.gather_s, before, late, slower)
        into += (unit.runs - 1) * _late(unit.gather_s, unit.forward_s, late, slower)
        before = unit.forward_s
    before = -1.0
    owed = 0.0  # the reduction of the layer before, under way
    for unit in reversed(units):
        g, late = (unit.gather_s, unit.ahead_s if limited else 0.0) if regathers else (0.0, 0.0)
        back += unit.runs * unit.back_s
        back += g if before < 0.0 else _late(g + owed, before, late, slower)
        back += (unit.runs - 1) * _late(g + unit.reduce_s, unit.backward_s, late, slower)
        before, owed = unit.backward_s, unit.reduce_s
    return into, back + owed


def _late(seconds: float, window_s: float, late_s: float, slower: float) -> float:
    """`_covered` of a collective that starts ``late_s`` into the compute beside it."""
    return _covered(seconds, max(0.0, window_s - late_s), slower)


def _units(
    stage: TimedStage, blocks: Sequence[int], gather: TimedStage, reduce: TimedStage, regathers: bool
) -> list[_Unit]:
    """The sharded layers of a chunk, in their order."""
    sides = [sides_s(stage, b) for b in range(len(stage.blocks))]
    backward: dict[int, list[float]] = {}
    for b, at in enumerate(stage.blocks):
        of = at.block.backward_of
        if of is not None:
            whole = backward.setdefault(of, [0.0, 0.0])
            for side in (0, 1):
                whole[side] += sides[b][side] * at.block.repeat
    units: list[_Unit] = []
    for i, b in enumerate(blocks):
        runs = stage.blocks[b].block.repeat
        (g, copied_out, hooks), (r, copied_in, behind) = (_apart(each, i) for each in (gather, reduce))
        ways = sides[b], tuple(side / runs for side in backward.get(b, (0.0, 0.0)))
        forward_s, backward_s = max(ways[0]), max(ways[1])
        into = max(ways[0][0] + copied_out, ways[0][1] + hooks) - forward_s
        copies = copied_in + (copied_out if regathers else 0.0)
        back = max(ways[1][0] + copies, ways[1][1] + behind) - backward_s
        units.append(_Unit(runs, forward_s, backward_s, g, r, into, back, hooks))
    return units


def _apart(stage: TimedStage, place: int) -> tuple[float, float, float]:
    """Seconds of what a unit sends, of its kernels, and of the host's hooks."""
    unit = stage.blocks[place]
    kernels = sum(s for node, s in zip(unit.block.nodes, unit.gpu_s.tolist(), strict=True) if node.op.stream == COMPUTE)
    calls = sum(node.host_calls for node in unit.block.nodes)
    return unit.sum_s - kernels, kernels, calls * stage.stage.launch_s


def sides_s(stage: TimedStage, block: int) -> tuple[float, float]:
    """Seconds of one run of a block: what the GPU takes, and what the CPU takes to issue it."""
    segment = stage.blocks[block].segment(stage.stage)
    return float(segment.gpu_s.sum()), float(segment.cpu_s.sum())
