"""What the steps of a group take, by batch: all groups' operators from one call of the estimators an engine.

A serving engine runs for hours, so that every step is forecast as one of a long run, whose clock the power limit holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from predictor.engines import Engine
from predictor.engines.defaults import graphs, page_tokens, scheduler
from predictor.engines.vintage import Graphs, Scheduler
from predictor.files.records import dataclass, replace
from predictor.forecast.forecast import WithoutIntervals
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.base import predict_kernels
from predictor.ops.attention import Attention
from predictor.ops.roofline import FloatArray
from predictor.request.run import Run
from predictor.search.serving.space import Group, setting_of
from predictor.serving.disaggregated import hand_over
from predictor.simulate.columns import largest, planned
from predictor.simulate.error_model import Facts
from predictor.simulate.interval import facts_of, run_spread
from predictor.simulate.memory import Memory, memory_of
from predictor.simulate.plan import plan_of
from predictor.simulate.stage import Plan
from predictor.simulate.templates import AGAIN
from predictor.simulate.times import Operators, TimedStage

#: Sequences of a decode step that is forecast; between them times are a line. Prompts of a step likewise. Chosen by
#: hand, not from data: `benchmarks/serve_plan_speed.py` says what they cost.
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PROMPTS = (1, 2, 4, 8, 16, 32, 64)
#: Passes that a stage stands for, so that it counts as one of a long run. Chosen by hand, not from data.
PASSES = 1e6


@dataclass(frozen=True, slots=True, eq=False)
class GroupTimes:
    """Steps of ``group``, in seconds: a decode step of ``batches`` sequences half way through their output, captured
    (``decode_s``) and, where no graph of ``captured`` holds it, launched (``launched_s``), of that what attention
    takes; a step with ``prompts`` whole prompts on each of its ranks, and how long that holds up a stage of its
    pipeline (``occupied_s``; without one, all of it).

    ``most``: sequences whose KV cache fits to the end of their output, ``kv_bytes`` of one on one GPU; ``memory`` of a
    GPU, with the activations of the longest step. ``run`` is a decode step of one sequence a rank.
    """

    group: Group
    run: Run
    batches: FloatArray
    decode_s: FloatArray
    launched_s: FloatArray
    captured: Graphs | None
    attention_s: FloatArray
    prompts: FloatArray
    prefill_s: FloatArray
    occupied_s: FloatArray
    scheduler: Scheduler
    most: int
    kv_bytes: float
    memory: Memory
    isl: int
    osl: int

    def decode(self, sequences: FloatArray) -> FloatArray:
        """Seconds of a decode step of so many sequences."""
        captured_s = np.interp(sequences, self.batches, self.decode_s)
        held = self.captured
        if held is None or not held.sizes or self.launched_s is self.decode_s:
            return captured_s
        each = _lane(self.group, sequences)
        inside = each <= held.sizes[-1] if held.padded else np.isin(each, held.sizes)
        return np.where(inside, captured_s, np.interp(sequences, self.batches, self.launched_s))

    def attention(self, sequences: FloatArray) -> FloatArray:
        """Seconds of its attention."""
        return np.interp(sequences, self.batches, self.attention_s)

    def prefill(self, prompts: FloatArray) -> FloatArray:
        """Seconds of a step over so many prompts of a rank, a part of one or more: beyond what was forecast, and below
        one prompt, in proportion."""
        return self._over(prompts, self.prefill_s)

    def occupied(self, prompts: FloatArray) -> FloatArray:
        """Seconds for which it holds up each stage of a pipeline."""
        return self._over(prompts, self.occupied_s)

    def _over(self, prompts: FloatArray, seconds: FloatArray) -> FloatArray:
        total_s = np.interp(prompts, self.prompts, seconds)
        if len(self.prompts) > 1:
            slope = (seconds[-1] - seconds[-2]) / (self.prompts[-1] - self.prompts[-2])
            total_s = total_s + np.maximum(prompts - self.prompts[-1], 0.0) * slope
        else:
            total_s = np.where(prompts > 1.0, seconds[0] * prompts, total_s)
        return np.where(prompts < 1.0, seconds[0] * prompts, total_s)


def _lane(group: Group, sequences: Any) -> Any:
    """Sequences of a batch in flight on a rank, of so many in all."""
    return np.ceil(sequences / (group.dp * group.pp) - 1e-9)


def times_of(groups: Sequence[tuple[Group, Run]], isl: int, osl: int, most_batch: int) -> list[GroupTimes]:
    """The steps of every group, for prompts of ``isl`` tokens and ``osl`` tokens of output; those that hold no sequence
    are left out."""
    tables: list[GroupTimes] = []
    by_engine: dict[tuple[GPUSpec, Engine, int], list[_Asked]] = {}
    for group, run in groups:
        asked = _Asked.of(group, run, isl, osl, most_batch)
        if asked is not None:
            by_engine.setdefault((run.gpu, run.work.engine, id(run.selector)), []).append(asked)
    for (gpu, engine, _), several in by_engine.items():
        operators = Operators(gpu, engine, WithoutIntervals(several[0].run.selector))
        each = [steps for asked in several for steps in asked.steps]
        columns = iter(operators.time_columns([(plan, len(at)) for steps in each for at, plan in steps.columns]))
        plans = iter(operators.time([plan for steps in each for plan in steps.plans]))
        for steps in each:
            steps.fill(columns, plans)
        tables += [
            GroupTimes(
                asked.group, asked.run, np.array(asked.batches, dtype=np.float64), asked.decodes.seconds,
                asked.launched.seconds, asked.captured, asked.decodes.attention_s,
                np.array(asked.prompts, dtype=np.float64), asked.prefills.seconds, asked.prefills.occupied_s,
                asked.scheduler, asked.most, asked.kv_bytes, asked.memory, isl, osl,
            )
            for asked in several
        ]  # fmt: skip
    return tables


class _GroupSteps:
    """Steps of a group: ``columns`` of those that differ in size alone (`predictor.simulate.columns`), by place, and
    the ``plans`` of the rest. Filled: ``seconds`` of each step, of that what attention takes, and for how long it holds
    up a stage of a pipeline, (steps,)."""

    def __init__(self, runs: Sequence[Run], captured: bool = True, fewest: int = AGAIN) -> None:
        make = partial(plan_of, captured=captured)
        columns, self._alone = planned(runs, make, fewest, pipelines=True)
        self.columns = [(places, long_run(plan)) for places, _, plan in columns]
        self.plans = [long_run(make(runs[place])) for place in self._alone]
        self.seconds, self.attention_s, self.occupied_s = (np.zeros(len(runs)) for _ in range(3))

    def fill(self, columns: Iterator[tuple[TimedStage, ...]], plans: Iterator[tuple[TimedStage, ...]]) -> None:
        """Take the times of as many columns and plans as it has."""
        several = [(places, next(columns)) for places, _ in self.columns]
        for places, stages in (*several, *(([place], next(plans)) for place in self._alone)):
            self.seconds[places] = sum(timed.total_s for timed in stages) / PASSES
            self.attention_s[places] = _attention(stages)
            self.occupied_s[places] = _occupied(stages)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Steps of a group that are to be forecast: decodes, captured and ``launched``, and ``prefills``, of prompts.
    Launched ones are the captured ones where no step is larger than what is ``captured``."""

    group: Group
    run: Run
    batches: tuple[int, ...]
    prompts: tuple[int, ...]
    prefills: _GroupSteps
    decodes: _GroupSteps
    launched: _GroupSteps
    captured: Graphs | None
    scheduler: Scheduler
    most: int
    kv_bytes: float
    memory: Memory

    @property
    def steps(self) -> tuple[_GroupSteps, ...]:
        """All of them, each once."""
        apart = () if self.launched is self.decodes else (self.launched,)
        return self.prefills, self.decodes, *apart

    @classmethod
    def of(cls, group: Group, run: Run, isl: int, osl: int, most_batch: int) -> _Asked | None:
        setting = setting_of(run, isl + osl)
        rule = scheduler(run.work.engine, setting)
        assert rule is not None, group  # `space` refused it
        each = max(1, rule.tokens // isl)
        prompts = tuple(n for n in PROMPTS if n <= each) or (1,)
        if prompts[-1] < each and len(prompts) < len(PROMPTS):
            prompts = (*prompts, each)
        reads = [prefill_run(run, isl, n) for n in prompts]
        prefills = _GroupSteps(reads, fewest=2)  # pipelines of other degrees have the same ones
        most, kv_bytes, memory = _room(group, reads[-1], plan_of(reads[-1]), isl, osl)
        most = min(most, min(rule.sequences, most_batch) * group.dp)
        most -= most % group.dp
        if most < 1:
            return None
        batches = tuple(n * group.dp for n in BATCHES if n * group.dp < most)
        sizes = (*batches, most)
        steps = [decode_run(run, isl, osl, n) for n in sizes]
        held = graphs(run.work.engine, setting)
        inside = held is None or not held.sizes or (held.padded and _lane(group, most) <= held.sizes[-1])
        decodes = _GroupSteps(steps)
        launched = decodes if inside else _GroupSteps(steps, captured=False)
        return cls(group, run, sizes, prompts, prefills, decodes, launched, held, rule, most, kv_bytes, memory)


def decode_run(run: Run, isl: int, osl: int, sequences: int) -> Run:
    """A decode step of so many sequences, half way through their output."""
    degrees = run.work.parallelism
    lanes = degrees.dp * min(degrees.pp, -(-sequences // degrees.dp))  # batches in flight
    each = -(-sequences // lanes)
    return replace(run, work=run.work.changed(batch=each * lanes, context_len=isl + osl // 2))


def prefill_run(run: Run, isl: int, prompts: int) -> Run:
    """A step over so many prompts."""
    work = run.work.changed(mode="prefill", batch=prompts * run.work.parallelism.dp, seq_len=isl, context_len=0)
    return replace(run, work=work)


def _room(group: Group, longest: Run, plan: Plan, isl: int, osl: int) -> tuple[int, float, Memory]:
    """Sequences of isl + osl tokens whose cache the group holds beside the ``longest`` step; bytes of one; memory."""
    memory = memory_of(longest, plan)
    page = page_tokens(longest.work.engine) or 1
    tokens = -(-(isl + osl) // page) * page
    per_replica = replace(longest, work=replace(longest.work, batch=longest.work.parallelism.dp, seq_len=tokens))
    each = memory_of(per_replica, plan).kv_cache
    if memory.own + memory.activations + memory.context + memory.workspaces > memory.usable:
        return 0, each, memory
    return group.dp * int(memory.kv_cache_capacity // max(each, 1.0)), each, memory


def long_run(plan: Plan) -> Plan:
    """The plan of so many passes that they count as a long run."""
    return Plan(tuple(stage._replace(weight=PASSES * stage.weight) for stage in plan.stages))


def _occupied(stages: tuple[TimedStage, ...]) -> Any:
    """Seconds for which one pass holds up the slowest stage of a pipeline, or the whole GPU without one; of a column of
    steps, of each."""
    (timed,) = stages
    if not timed.stage.ends:
        return timed.each_s
    slowest = largest(*(stage.total_s for stage in timed.pipeline))
    return timed.stage.in_flight * slowest + timed.stage.overhead_s


def _attention(stages: tuple[TimedStage, ...]) -> Any:
    """Seconds of attention in one pass; of a column of steps, of each."""
    attention_s: Any = 0.0
    for timed in stages:
        for at in timed.blocks:
            for place, (node, times) in enumerate(zip(at.block.nodes, at.times, strict=True)):
                if isinstance(node.op, Attention):
                    attention_s = attention_s + at.operators_s[..., place] * times * timed.stage.weight / PASSES
    return attention_s


def step_facts(run: Run) -> Facts | None:
    """What is known of one step of a long run; None without intervals."""
    operators = Operators(run.gpu, run.work.engine, run.selector)
    (stages,) = operators.time([long_run(plan_of(run))])
    total = sum(timed.total_s for timed in stages)
    spread = run_spread(total, stages, run.work)
    return None if spread is None else facts_of(spread, run)


def hand_overs(pairs: Sequence[tuple[GroupTimes, GroupTimes]], gpus: int) -> list[float]:
    """Seconds of the hand-over of each pair of groups (for prompts, for decodes)."""
    if not pairs:
        return []
    run = pairs[0][1].run
    ops = [hand_over(prompts.run, decodes.run, decodes.isl, gpus) for prompts, decodes in pairs]
    return [float(t) for t in predict_kernels(ops, run.gpu, run.selector, run.work.engine.kernels).latency_s]
