"""Runs -> forecasts: each holds its run, its plan and the times, and every report reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.engines import Engine
from predictor.engines.software import remark
from predictor.errors import SpecError
from predictor.files.records import replace
from predictor.forecast.notes import board_notes, falling_notes, model_notes
from predictor.graph import OPTIMIZER
from predictor.graph.samples import TOKENS
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.artifact import ArtifactSet, RooflineOnly
from predictor.models.built.keys import ignored_notes
from predictor.request.run import Run
from predictor.simulate.answer import Prediction
from predictor.simulate.breakdown import (
    check_strict,
    classes,
    context_notes,
    longest_nodes,
    notes,
    unknown_notes,
    unknown_shares,
    wide_notes,
)
from predictor.simulate.capacity import advised
from predictor.simulate.capture import capture_notes
from predictor.simulate.columns import plain, planned, points, records_apart
from predictor.simulate.interval import RunSpread, facts_of, range_notes, range_of, run_spread
from predictor.simulate.memory import Memory, memory_of, parameters
from predictor.simulate.plan import plan_of
from predictor.simulate.stage import DRAFT_PROMPTS, EXCHANGES, IMAGES, PIPELINE, Plan
from predictor.simulate.sustained import power_notes
from predictor.simulate.times import GAPS, LAUNCHING, Operators, OpTime, TimedStage, largest_moment

if TYPE_CHECKING:
    from predictor.simulate.step_time import StepTimes

#: Runs whose operators are forecast in one call, points of columns that are, and the operators that are remembered of
#: all of them: chosen by hand, not from data, and a guard against memory without end.
CHUNK = 1000
POINTS = 4000
REMEMBERED = 200_000


class WithoutIntervals:
    """A set of estimators without its intervals, which cost as much as the forecasts."""

    def __init__(self, selector: ArtifactSet | RooflineOnly) -> None:
        self.select = selector.select


class Forecast:
    """A run, its plan, and the times of the plan's ``stages``; what follows from them is worked out when it is asked
    for. Times in seconds."""

    def __init__(self, run: Run, plan: Plan, stages: tuple[TimedStage, ...]) -> None:
        self.run = run
        self.plan = plan
        self.timed = stages
        self.step: StepTimes | None = None
        if plan.parallel is None:
            self.latency_s: Any = sum(timed.total_s for timed in stages)
        else:
            from predictor.simulate.step_time import step_of  # one GPU starts without it

            self.step = step_of(run, plan, stages)
            self.latency_s = self.step.latency_s
        unknown = np.ravel(self.latency_s)[~np.isfinite(np.ravel(self.latency_s))]
        if unknown.size:
            raise SpecError(
                f"the forecast of {run.config.name} on {run.gpu.id} is {unknown[0]} s; expected a number: its GPU"
                " or estimators hold values that no kernel takes (--gpu, --artifacts)"
            )

    @cached_property
    def stages(self) -> tuple[TimedStage, ...]:
        """What a GPU runs; of a pipeline, one of the stage that is done last."""
        if self.step is None:
            return self.timed
        return tuple(
            TimedStage(timed.stage._replace(weight=weight), timed.blocks, timed.operators)
            for place, weight in sorted(self.step.weights.items())
            for timed in (self.timed[place],)
        )

    @cached_property
    def memory(self) -> Memory:
        """What one GPU keeps; how many GPUs hold the run is left to `prediction`."""
        if points(self.run):
            return memory_of(self.run, self.plan, largest_moment(self.plan.stages[0].graph))
        return memory_of(self.run, self.plan)

    @property
    def ran(self) -> tuple[TimedStage, ...]:
        """The stages that have operators: "none" is an optimizer without any."""
        return tuple(timed for timed in self.stages if timed.blocks)

    @property
    def phases_s(self) -> dict[str, float]:
        """Seconds of the parts of a run, which `Prediction.phases_s` describes.

        In training the forward pass is timed alone, and the backward pass takes what both take beyond it.
        """
        if self.step is not None:
            return self.step.phases_s
        first, *rest = self.stages
        mode = self.run.work.mode
        if self.run.work.training is not None:
            forward_s, passes = first.up_to(first.stage.forward).total_s, first.stage.weight
            return {
                "forward": forward_s * passes,
                "backward": (first.timeline.total_s - forward_s) * passes,
                OPTIMIZER: sum(timed.total_s for timed in rest),
            }
        if mode == "forward" and rest:  # a pipeline's parts
            return {timed.stage.phase: timed.total_s for timed in self.stages}
        towers = [timed.total_s for timed in rest if timed.stage.phase == IMAGES]
        seen_s = {IMAGES: towers[0]} if towers else {}
        if mode != "generate":
            return {**seen_s, mode: self.latency_s - sum(seen_s.values())}
        read_s = first.each_s + sum(timed.total_s for timed in rest if timed.stage.phase in (DRAFT_PROMPTS, IMAGES))
        serving = self.run.work.serving
        assert serving is not None
        decodes = any(timed.stage.phase not in (DRAFT_PROMPTS, IMAGES) for timed in rest)
        decode_s = self.latency_s - read_s if decodes else 0.0
        phases = {**seen_s, "prefill": read_s - sum(seen_s.values()), "decode": decode_s, "ttft": read_s}
        return phases | ({"tpot": decode_s / (serving.output_len - 1)} if decodes else {})

    @property
    def busy_s(self) -> dict[str, float]:
        """Seconds of the run in which each stream of a GPU is busy: compute, and every network by its links."""
        busy: dict[str, float] = {}
        for timed in self.stages:
            for stream, seconds in timed.busy_s.items():
                busy[stream] = busy.get(stream, 0.0) + timed.stage.weight * seconds
        return busy

    @property
    def between_s(self) -> dict[str, float]:
        """Seconds of the run in which no kernel runs, by what there is in their place; in a pipeline, messages count
        with that."""
        between = {GAPS: 0.0, LAUNCHING: 0.0}
        for timed in self.stages:
            if self.step is not None and timed.stage.phase in EXCHANGES:
                continue
            for name, seconds in timed.between_s.items():
                between[name] = between.get(name, 0.0) + timed.stage.weight * seconds
        if self.step is not None and self.step.phases_s.get(PIPELINE):
            between[PIPELINE] = self.step.phases_s[PIPELINE]
        return between

    @property
    def flops(self) -> Any:
        """FLOPs that one GPU runs; of a pipeline, the mean over its stages. The optimizer's are left out."""
        return self._counted(attrgetter("flops"))

    @property
    def model_flops(self) -> Any:
        """Those of them that the model asks for, forward and backward: nothing that runs a second time, as PaLM's MFU
        counts (Chowdhery et al., arXiv:2204.02311, appendix B)."""
        return self._counted(attrgetter("model_flops"))

    @property
    def model_bytes(self) -> float:
        """Bytes of weights and cache that one GPU reads from its memory at least; of a pipeline, the mean."""
        return float(self._counted(attrgetter("model_bytes")))

    def _counted(self, of: Callable[[TimedStage], Any]) -> Any:
        if self.plan.parallel is not None:
            kinds = [self.plan.parallel.kinds[kind] for kind in self.plan.parallel.ranks]
            passes = self.run.work.micro_batches
            each = {place: of(self.timed[place]) for kind in self.plan.parallel.kinds for place in kind.chunks}
            return passes * sum(each[place] for kind in kinds for place in kind.chunks) / len(kinds)
        return sum(timed.stage.weight * of(timed) for timed in self.stages if timed.stage.phase != OPTIMIZER)

    @property
    def tokens(self) -> Any:
        """Tokens processed, by every step of a forward run anew, or made in decode and generate."""
        work, serving = self.run.work, self.run.work.serving
        if serving is not None and serving.mode == "generate":
            return plain(work.batch * serving.output_len * 1.0)
        if serving is not None and serving.drafts:
            return work.batch * serving.acceptance_length
        each = work.batch if work.mode == "decode" else sum(work.prompt_lens) or work.batch * work.tokens_each
        return plain(each * work.steps * 1.0)

    @property
    def _gpu_busy_s(self) -> Any:
        """Seconds in which a GPU has a kernel to run, the run's own but for what there is in their place."""
        if self.step is not None:
            return self.latency_s - sum(self.between_s.values())
        return sum(timed.stage.weight * timed.kernels_s for timed in self.stages)

    def summary(self) -> Prediction:
        """The answer as a whole: no interval, breakdown, provenance, notes and number of GPUs that hold the run."""
        run, work, flops, stages = self.run, self.run.work, self.flops, self.stages
        return Prediction(
            model=run.config.name,
            gpu=run.gpu.id,
            gpu_set=run.gpu.changed,
            workload=work,
            latency_s=self.latency_s,
            interval_s=None,
            phases_s=self.phases_s,
            gpu_busy_s=self._gpu_busy_s,
            cpu_busy_s=sum(timed.stage.weight * (timed.timeline.cpu_s + timed.stage.overhead_s) for timed in stages),
            flops=flops * work.parallelism.num_gpus,
            mfu=self.model_flops / self.latency_s / run.gpu.peak_flops(run.numbers.gemm),
            hfu=flops / self.latency_s / run.gpu.peak_flops(run.numbers.gemm),
            tokens=self.tokens,
            sequences=plain(work.batch * 1.0),
            parameters=parameters(run.config),
            memory=self.memory,
            between_s=self.between_s,
            breakdown=(),
            nodes=(),
            provenance={},
            artifacts=run.selector.name,
            exposed_s={} if self.step is None else self.step.exposed_s,
            bubble_s=0.0 if self.step is None else self.step.bubble_s,
            assumed=run.config.assumed,
            unit=TOKENS
            if work.mode in ("decode", "generate")
            else run.config.unit,  # these make tokens, whatever is read
        )

    def with_interval(self) -> Prediction:
        """The summary with its interval, None where the operators have none, and with its energy, where the run asks
        for it."""
        energy = None
        if self.run.power:
            from predictor.simulate.energy import energy_of  # nothing else starts with it

            energy = energy_of(self)
        spread = self.spread
        if spread is None:
            return replace(self.summary(), energy=energy)
        low, median, high = range_of(spread, self.run)
        return replace(self.summary(), interval_s=(low, high), median_s=median, energy=energy)

    @cached_property
    def op_times(self) -> tuple[list[OpTime], ...]:
        """The operators of every stage, with how often they run."""
        return tuple(timed.op_times() for timed in self.stages)

    @cached_property
    def brief(self) -> Prediction:
        """The answer with its interval and its breakdown: no notes, provenance and number of GPUs that hold the run."""
        op_times = [item for items in self.op_times for item in items]
        return replace(self.with_interval(), breakdown=classes(op_times, self.stages[0].table))

    @cached_property
    def prediction(self) -> Prediction:
        """The answer with all that is known of it."""
        run, table, brief = self.run, self.stages[0].table, self.brief
        op_times = [item for items in self.op_times for item in items]
        why = None
        if run.explain is not None:
            from predictor.simulate.breakdown import explained  # nothing else starts with it

            why = explained(self.stages, run.explain)
        unknown = unknown_shares(op_times, table)
        taken = remark(run.work.execution, run.work.software)
        known = run.numbers.notes + board_notes(run.gpu, run.work.parallelism.num_gpus)
        known += model_notes(run) + ignored_notes(run.config.ignored)
        known += context_notes(run.config, run.work) + capture_notes(run)
        training = run.work.training
        if training is not None and training.lora_targets is not None:
            from predictor.models.built.adapted import target_notes  # few runs have any

            known += target_notes(training.lora_targets, run.config)
        return replace(
            brief,
            memory=advised(self.memory, run),
            nodes=longest_nodes(self.op_times, table, run.top),
            provenance=_provenance(op_times, table.estimators),
            notes=known
            + ((taken,) if taken else ())
            + notes(brief.breakdown, run.gpu.id, run.selector)
            + range_notes(table)
            + self._why()
            + power_notes(self.stages)
            + falling_notes(run, self.stages[0])
            + unknown_notes(unknown)
            + wide_notes(run, op_times),
            unknown=unknown,
            explained=why,
        )

    @cached_property
    def spread(self) -> RunSpread | None:
        """How far its kernels and its host may be off; None where the operators have no intervals."""
        return run_spread(self.latency_s, self.stages, self.run.work)

    def _why(self) -> tuple[str, ...]:
        """The line that says why the interval is as wide as it is; none without one."""
        if self.spread is None:
            return ()
        from predictor.forecast.uncertainty import why  # a summary starts without it

        return (why(self.run, self.spread, facts_of(self.spread, self.run)),)

    def answers(self, runs: Sequence[Run]) -> Iterator[Prediction]:
        """The summaries of a column, of each of its ``runs`` in order."""
        count, whole = len(runs), self.with_interval()
        memory = list(records_apart(whole.memory, count))
        return records_apart(whole, count, memory=memory, workload=[run.work for run in runs])


def _provenance(op_times: Sequence[OpTime], estimators: Sequence[str]) -> dict[str, int]:
    """Distinct operators by where their number came from."""
    rows = {item.index for item in op_times}
    known = sum(1 for i in rows if estimators[i])
    return {"estimator": known, "roofline": len(rows) - known}


def forecast(run: Run, *, intervals: bool = True) -> Forecast:
    """The forecast of one run; RequestError where it cannot be answered."""
    (answer,) = forecasts([run], intervals=intervals)
    return answer


def forecasts(
    runs: Sequence[Run], *, intervals: bool = False, known_plans: Mapping[int, Plan] | None = None
) -> Iterator[Forecast]:
    """The forecast of every run, in order.

    Operators of all runs on a GPU are forecast together, and what any earlier run had is known. ``intervals``: with the
    errors of the operators, which is half of the work. ``known_plans``: plans that were made already, by place of
    their run.
    """
    known: Known = {}
    made = known_plans or {}
    for start in range(0, len(runs), CHUNK):
        chunk = enumerate(runs[start : start + CHUNK], start=start)
        plans = [(run, made[place] if place in made else plan_of(run)) for place, run in chunk]
        for run, plan in plans:
            check_strict(run, plan)
        places: dict[tuple[GPUSpec, Engine, int], list[int]] = {}
        for place, (run, _) in enumerate(plans):
            places.setdefault(_key(run), []).append(place)
        timed: dict[int, tuple[TimedStage, ...]] = {}
        for key, members in places.items():
            operators = _operators(known, key, plans[members[0]][0], intervals)
            timed |= zip(members, operators.time([plans[place][1] for place in members]), strict=True)
        for place, (run, plan) in enumerate(plans):
            yield Forecast(run, plan, timed.pop(place))
        _forget(known)


def summaries(runs: Sequence[Run], *, intervals: bool = False) -> Iterator[Prediction]:
    """`Forecast.summary` of every run, in order; with its interval, where ``intervals`` asks for it.

    Runs that differ in sizes alone are forecast as one, in columns (`predictor.simulate.columns`), the rest one by one.
    """
    known: Known = {}
    for start in range(0, len(runs), POINTS):
        chunk = runs[start : start + POINTS]
        answers: dict[int, Prediction] = {}
        columns, alone = planned(chunk, plan_of)
        by_key: dict[tuple[GPUSpec, Engine, int], list[tuple[list[int], Run, Plan]]] = {}
        for column in columns:
            by_key.setdefault(_key(column[1]), []).append(column)
        for key, members in by_key.items():
            operators = _operators(known, key, members[0][1], intervals)
            timed = operators.time_columns([(plan, len(places)) for places, _, plan in members])
            for (places, run, plan), stages in zip(members, timed, strict=True):
                whole = Forecast(run, plan, stages)
                answers |= zip(places, whole.answers([chunk[place] for place in places]), strict=True)
        singles = forecasts([chunk[place] for place in alone], intervals=intervals)
        answers |= ((place, each.with_interval()) for place, each in zip(alone, singles, strict=True))
        for place in range(len(chunk)):
            yield answers.pop(place)
        _forget(known)


Known = dict[tuple[GPUSpec, Engine, int], Operators]


def _key(run: Run) -> tuple[GPUSpec, Engine, int]:
    """What runs share whose operators are forecast together."""
    return run.gpu, run.work.engine, id(run.selector)


def _operators(known: Known, key: tuple[GPUSpec, Engine, int], run: Run, intervals: bool) -> Operators:
    """The operators that are known of such runs."""
    if key not in known:
        selector = run.selector if intervals else WithoutIntervals(run.selector)
        known[key] = Operators(run.gpu, run.work.engine, selector)
    return known[key]


def _forget(known: Known) -> None:
    for key in [key for key, operators in known.items() if len(operators.rows) > REMEMBERED]:
        del known[key]
