"""Plans as columns: their pieces added up in numpy, the slowest stage once a micro-batch, the rest of the pipeline
once, messages, reductions, the update; or with passes in the orders of `predictor.simulate.pipeline_orders`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from predictor.engines.launch import divided
from predictor.request.options import BREADTH_FIRST, GPIPE, INTERLEAVED, ONE_F_ONE_B
from predictor.request.run import Run
from predictor.search.training.space import ParallelPlan
from predictor.simulate.pipeline import BLOCKING, STEADY, steps
from predictor.simulate.pipeline_orders import order_of
from predictor.simulate.timeline import slowdown

Floats = NDArray[np.float64]
#: First, middle, last: of what a pipeline has at its ends, and between.
Three = tuple[float, float, float]
#: Part by which a bound of a pipeline is lowered, so that rounding does not lift it over the simulation: far above that
#: of sums of a million numbers in binary64 (1e6 x 2^-53, about 1e-10), by definition of the format.
ROUNDING = 1e-9


class Layers(NamedTuple):
    """What plans with the same layers share: seconds forward and backward and bytes saved of a micro-batch, of the
    embedding, one layer and the head; exposed seconds of a layer."""

    forward_s: Three
    backward_s: Three
    saved: Three
    exposed_s: float


class Replicas(NamedTuple):
    """What plans of the same degrees share: seconds to reduce, buckets, seconds to gather and to update, and
    parameters, of the first, a middle and the last stage; seconds of a message of one sequence; ``state_bytes`` of
    a parameter."""

    reduce_s: Three
    buckets: Three
    gather_s: Three
    update_s: Three
    parameters: Three
    message_s: float
    state_bytes: float
    fixed: float
    usable: float


class PlanTable:
    """Plans as columns; arrays of shape (plans,), or (plans, 3) for the first, a middle and the last stage."""

    def __init__(self, plans: Sequence[ParallelPlan], layers: Sequence[Layers], shared: Sequence[Replicas]) -> None:
        self.plans = plans
        self.own = layers
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
        self.cut = {i: np.array(plan.stage_layers, float) for i, plan in enumerate(self.plans) if plan.stage_layers}
        parts = self.p * self.v
        shared = [divided(layers, int(count)) or ((layers + 2) / count, 1, 1) for count in parts.tolist()]
        each, *less = np.split(np.array(shared, float), 3, axis=1)
        alone = (self.p * self.v == 1)[:, None]
        #: layers of the first, the longest other and the last chunk
        self.sizes = np.concatenate((each - less[0], each, each - less[1]), axis=1)
        for i, cut in self.cut.items():
            self.sizes[i] = cut[0], max(cut[1:-1], default=0.0), cut[-1]

        def chunks(name: str) -> Floats:
            three = self._of(self.own, name)
            first, middle, last = np.split(self.sizes * three[:, 1:2], 3, axis=1)
            first, last = first + three[:, :1], last + three[:, 2:]
            first = np.where(alone, first + three[:, 2:], first)
            return np.concatenate((first, middle, np.where(alone, first, last)), axis=1)

        self.forward_s, self.backward_s, self.saved = (chunks(name) for name in ("forward_s", "backward_s", "saved"))
        more = ((self.v - 1.0) * each[:, 0])[:, None]  # layers of a stage's other chunks, which are middle ones
        self.stage_forward_s = self.forward_s + more * self._of(self.own, "forward_s")[:, 1:2]
        self.stage_backward_s = self.backward_s + more * self._of(self.own, "backward_s")[:, 1:2]
        stage_s = self.stage_forward_s + self.stage_backward_s
        self.slowest_s = np.where(self.p > 2, stage_s.max(axis=1), np.maximum(stage_s[:, 0], stage_s[:, 2]))
        ways = self._of(self.own, "forward_s") + self._of(self.own, "backward_s")
        self.through_s = ways @ np.array([1.0, layers, 1.0])
        self.mean_s = self.through_s / self.p
        self.message_s = np.where(self.p > 1, self._of(self.shared, "message_s") * self.micro, 0.0)

    def closed_s(self, steady: bool) -> Floats:
        """The pipeline in closed form: the slowest stage once a micro-batch, the rest of one chunk's way once, and the
        messages that hold stages up. Exact for equal stages of 1f1b, interleaved, gpipe and breadth-first orders
        without messages (tests/simulate/test_pipeline.py, test_planning.py)."""
        m, v = self.micro_batches, self.v
        full = (m - 1.0 / v) * self.slowest_s + self.through_s / v
        empty = self.through_s + (m - 1.0) * self.slowest_s / v  # micro-batches that do not fill the ring of chunks
        seconds: Floats = np.maximum(full, empty) + self.sent_s(steady)
        return seconds

    def sent_s(self, steady: bool) -> Floats:
        """Messages that hold stages up."""
        alternates = np.array([order(plan) == INTERLEAVED for plan in self.plans])
        waits = self.micro_batches * np.where(steady & alternates, 0.0, self.v)
        seconds: Floats = 2.0 * self.message_s * (waits + np.where(self.p > 1, self.p - 1, 0.0))
        return seconds

    def least_s(self, steady: bool) -> Floats:
        """What no order of the pipeline is faster than, whatever its stages take: each of them has all micro-batches to
        run, not before the first has come through the first chunks of those before it, and what it sent back last goes
        the same way. Where a message holds up who sends it, a stage has those to send, too."""
        beside = steady & (self.v > 1)
        held = np.where(beside, 0.0, self.message_s)  # of every unit that sends
        way_s = self.forward_s + self.backward_s
        stage_s = self.stage_forward_s + self.stage_backward_s
        m, p, sent = self.micro_batches, self.p, 2.0 * self.message_s
        between = np.maximum(p - 2.0, 0.0)
        layers = between.copy()  # of the chunks between the ends, in those of the largest
        for i, cut in self.cut.items():
            layers[i] = cut[1:-1].sum() / max(1.0, self.sizes[i, 1])
        to_second = way_s[:, 0] + self.message_s
        last = to_second + layers * way_s[:, 1] + between * sent + m * (stage_s[:, 2] + held)
        first = m * (stage_s[:, 0] + held)
        middle = np.where(p > 2, to_second + m * (stage_s[:, 1] + 2.0 * held), 0.0)
        bound = np.where(p > 1, np.maximum(np.maximum(first, last), middle), m * self.slowest_s)
        seconds: Floats = bound * (1.0 - ROUNDING)
        return seconds

    def simulated_s(self, steady: bool, rows: Sequence[int] | None = None) -> Floats:
        """The pipeline by its orders, plans of one order together; of the plans of ``rows`` alone, in that order."""
        asked = range(len(self.plans)) if rows is None else rows
        step_s = np.empty(len(self.plans))
        groups: dict[tuple[str, int, int, int], list[int]] = {}
        for i in asked:
            plan = self.plans[i]
            m = round(float(self.micro_batches[i]))
            groups.setdefault((order(plan), plan.pp, m, plan.vpp), []).append(i)
        for (name, p, m, v), members in groups.items():
            some = np.array(members)
            if p == 1:
                step_s[some] = m * self.slowest_s[some]
                continue
            ways = []
            for seconds in (self.forward_s[some], self.backward_s[some]):
                wide = np.repeat(seconds[:, 1], p * v).reshape(-1, p, v)
                for row, i in enumerate(members):
                    if i in self.cut:
                        wide[row, :, 0] *= self.cut[i] / max(1.0, self.sizes[i, 1])
                wide[:, 0, 0], wide[:, p - 1, v - 1] = seconds[:, 0], seconds[:, 2]
                ways.append(wide)
            sent = np.repeat(self.message_s[some][:, None], p, axis=1)
            held = STEADY if steady and v > 1 else BLOCKING
            step_s[some] = steps(order_of(name, p, m, v), ways[0], ways[1], sent, held)
        return step_s if rows is None else step_s[np.array(rows, dtype=np.int64)]

    def once(self, sample: Run) -> tuple[Floats, Floats, Floats]:
        """Beside the pipeline, seconds of what is exchanged once a step, and of the update; and of all that is
        exchanged but messages."""
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
        return once, update_s, once + inside

    def memory(self) -> tuple[Floats, Floats]:
        """Bytes of the fullest of the first two and the last stage, and what a GPU may use."""
        shared = {name: self._of(self.shared, name) for name in ("parameters", "state_bytes", "fixed", "usable")}
        state = shared["parameters"] * shared["state_bytes"][:, None]
        m, p, v = self.micro_batches, self.p, self.v
        kind = np.array([order(plan) in (GPIPE, BREADTH_FIRST) for plan in self.plans])

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
        peak_bytes: Floats = np.maximum(second, np.maximum(state[:, 0] + first, state[:, 2] + last)) + shared["fixed"]
        return peak_bytes, shared["usable"]


def order(plan: ParallelPlan) -> str:
    """The schedule of a plan's pipeline."""
    return plan.schedule or (INTERLEAVED if plan.vpp > 1 else ONE_F_ONE_B)


def _covered(seconds: Floats, window_s: Floats, slower: float) -> Floats:
    """As `predictor.simulate.step_time` has it, over arrays: what a collective adds to compute beside it."""
    beside = seconds * slower / (1.0 + slower)
    exposed_s: Floats = np.where(seconds <= window_s * (1.0 + slower), beside, seconds - window_s)
    return exposed_s
