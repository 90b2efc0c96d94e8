"""What a deployment draws in its steady state, and the order of plans by what is asked of them."""

from __future__ import annotations

from collections.abc import Callable

from predictor.files.records import dataclass
from predictor.forecast.forecast import Forecast, WithoutIntervals
from predictor.kernels.energy import rates
from predictor.request.options import COST, ENERGY, THROUGHPUT, TIME
from predictor.request.run import Run
from predictor.search.serving.search import ServingPlan, order
from predictor.search.serving.tables import PASSES, decode_run, long_run, prefill_run
from predictor.simulate.energy import energy_of
from predictor.simulate.plan import plan_of
from predictor.simulate.times import Operators

#: Layouts whose energy is worked out where plans are ranked by it: the first so many by what they serve; the others
#: come after them. Chosen by hand, not from data: what a person waits for.
LOOKED_AT = 20


@dataclass(frozen=True, slots=True)
class DeploymentPower:
    """Mean watts of all GPUs of a deployment, and joules of an output token."""

    power_w: float
    joule_per_token: float


def power_of(plan: ServingPlan) -> DeploymentPower:
    """What a plan draws: its steps at their rate, and boards that wait for the rest of the time."""
    times, prompts = plan.times, plan.prefill or plan.times
    sequences = max(1, round(plan.decoding))
    step_j, step_s = _step(decode_run(times.run, times.isl, times.osl, sequences))
    read_j, read_s = _step(prefill_run(prompts.run, times.isl, 1))
    each = times.osl / sequences
    readers = prompts.run.work.parallelism.dp  # prompts of a step, one a rank
    waiting_w = rates(times.run.gpu).waiting_w
    busy_s = [(plan.replicas, times.group.gpus, each * step_s)]
    if plan.prefill is None:
        busy_s = [(plan.replicas, times.group.gpus, each * step_s + read_s / readers)]
    else:
        busy_s.append((plan.prefill_replicas, prompts.group.gpus, read_s / readers))
    power_w = plan.served * (each * step_j + read_j / readers)
    for groups, gpus, seconds in busy_s:
        power_w += groups * gpus * waiting_w * max(0.0, 1.0 - plan.served / groups * seconds)
    limit_w = times.run.gpu.power_limit_w * plan.gpus
    power_w = min(power_w, limit_w)
    return DeploymentPower(power_w, power_w / (plan.served * times.osl))


def _step(run: Run) -> tuple[float, float]:
    """Joules of all GPUs of a group, and seconds, of one step of a long run."""
    operators = Operators(run.gpu, run.work.engine, WithoutIntervals(run.selector))
    plan = long_run(plan_of(run))
    (stages,) = operators.time([plan])
    made = Forecast(run, plan, stages)
    return energy_of(made).energy_j / PASSES, made.latency_s / PASSES


def ranking(objective: str, rate: float, fewest: bool) -> Callable[[ServingPlan], tuple[float, ...]]:
    """What plans are sorted by, the best first; "" is the order of the search."""
    known: dict[int, tuple[ServingPlan, float]] = {}

    def joules(plan: ServingPlan) -> tuple[float, ...]:
        if id(plan) not in known:  # a plan is kept beside its number, so that no other one has its id
            known[id(plan)] = plan, power_of(plan).joule_per_token
        return known[id(plan)][1], *order(plan, rate, fewest)

    keys: dict[str, Callable[[ServingPlan], tuple[float, ...]]] = {
        TIME: lambda plan: (plan.tpot_s, plan.ttft_s, plan.gpus),
        COST: lambda plan: (-plan.served / plan.gpus, plan.tpot_s),
        THROUGHPUT: lambda plan: (-plan.tokens_per_s, plan.gpus, plan.tpot_s),
        ENERGY: joules,
    }
    return keys.get(objective, lambda plan: order(plan, rate, fewest))
