"""A step of training on many GPUs as events of a trace: a process a pipeline stage, a thread for compute and one for
every network.

A stage stands for one of its GPUs (the others of its tensor-, context- and data-parallel groups do the same at the same
time). Its compute thread has a slice for every pass of a micro-batch through a chunk, named so; its pipeline thread the
messages that it sends; after the last pass follow the reduction of gradients, the update and the gathering of weights,
as far as nothing covers them. The first pass each way is written out kernel by kernel: collectives on the thread of
their links, as long as they run, and compute waiting for what nothing covers. Where a step has more passes than a
viewer opens, those in the middle of every stage are one slice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from predictor.forecast.forecast import Forecast
from predictor.graph import OPTIMIZER
from predictor.ops.base import COMPUTE
from predictor.simulate.breakdown import shape_text
from predictor.simulate.pipeline import timeline
from predictor.simulate.pipeline_orders import Order, order_of
from predictor.simulate.stage import GRADIENTS, PIPELINE, WEIGHTS
from predictor.simulate.step_time import Laid, laid_out
from predictor.simulate.times import TimedStage

Event = dict[str, Any]
#: Process of the first stage: above those of a forecast of one GPU. Chosen by hand, not from data.
FIRST_STAGE = 100
#: Passes that are written out at most, over all stages: guards against files that no viewer opens.
MOST_PASSES = 20_000


def pipeline_events(forecast: Forecast, most: int = MOST_PASSES) -> list[Event]:
    """The events of a forecast of training on many GPUs, in no order; metadata among them."""
    plan, work = forecast.plan, forecast.run.work
    assert plan.parallel is not None
    laid = laid_out(forecast.run, plan, forecast.timed)
    over = work.parallelism
    order = laid.order or order_of(over.order, 1, work.micro_batches, 1)
    writer = _Steps(forecast, order, laid)
    starts, ends, there = timeline(order, laid.forward_s, laid.backward_s, laid.sent_s, laid.p2p)
    every = max(4, most // order.stages)
    for stage in range(order.stages):
        mine = np.flatnonzero(order.stage == stage)
        mine = mine[np.argsort(order.place[mine])]
        shown = mine if len(mine) <= every else np.concatenate((mine[: every // 2], mine[-(every - every // 2) :]))
        for unit in shown.tolist():
            writer.unit(unit, float(starts[unit]), float(ends[unit]), float(there[unit]))
        if len(shown) < len(mine):
            left = mine[every // 2 : len(mine) - (every - every // 2)]
            between = float(starts[left[0]]), float(ends[left[-1]])
            writer.slice(stage, COMPUTE, f"{len(left):,} more passes", "more", *between)
        writer.after(stage, float(laid.ends_s[stage]))
    return [*writer.metadata(), *writer.events]


class _Steps:
    """Collects the events of stages; threads are numbered as they come."""

    def __init__(self, forecast: Forecast, order: Order, laid: Laid) -> None:
        self.forecast = forecast
        self.order = order
        self.laid = laid
        self.events: list[Event] = []
        self.threads: dict[str, int] = {COMPUTE: 1}
        self.used: set[tuple[int, str]] = {(stage, COMPUTE) for stage in range(order.stages)}
        self.written: set[tuple[int, bool]] = set()
        self.until: dict[tuple[int, str], float] = {}

    def metadata(self) -> list[Event]:
        """Names of stages and of their streams."""
        named: list[tuple[int, int, str, dict[str, object]]] = []
        over = self.forecast.run.work.parallelism
        each = over.tp * over.cp * over.dp
        for stage in range(self.order.stages):
            pid = FIRST_STAGE + stage
            several = f", GPUs {stage * each} to {(stage + 1) * each - 1}" if each > 1 else f", GPU {stage}"
            named.append((pid, 0, "process_name", {"name": f"stage {stage}{several}"}))
            named.append((pid, 0, "process_sort_index", {"sort_index": 10 + stage}))
        for stage, stream in sorted(self.used):
            shown = "compute" if stream == COMPUTE else f"network: {stream}"
            named.append((FIRST_STAGE + stage, self.threads[stream], "thread_name", {"name": shown}))
        return [{"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": name, "args": a} for pid, tid, name, a in named]

    def slice(
        self, stage: int, stream: str, name: str, category: str, start_s: float, end_s: float,
        args: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """A complete event on a stream of a stage; rounded to nanoseconds at both ends."""
        self.used.add((stage, stream))
        first, last = round(start_s * 1e9), round(end_s * 1e9)
        self.events.append(
            {
                "ph": "X", "pid": FIRST_STAGE + stage, "tid": self.threads.setdefault(stream, len(self.threads) + 1),
                "name": name, "cat": category, "ts": first / 1e3, "dur": max(0, last - first) / 1e3, "args": args or {},
            }
        )  # fmt: skip

    def unit(self, unit: int, start_s: float, end_s: float, there_s: float) -> None:
        """A pass of a micro-batch through a chunk, and the message that it sends."""
        order = self.order
        stage, micro, chunk = int(order.stage[unit]), int(order.micro_batch[unit]), int(order.chunk[unit])
        back = bool(order.backward[unit])
        way = "backward" if back else "forward"
        of = f" chunk {chunk}" if order.chunks > 1 else ""
        args = {"micro-batch": micro, "chunk": chunk, "stage": stage}
        self.slice(stage, COMPUTE, f"{way} {micro}{of}", way, start_s, end_s, args)
        if there_s > end_s:
            to = (stage - 1 if back else stage + 1) % order.stages
            what = "gradient" if back else "activation"
            parallel = self.forecast.plan.parallel
            assert parallel is not None
            stream = f"{self.link(parallel.message)}, to the stage {'before' if back else 'behind'}"
            begins = max(end_s, self.until.get((stage, stream), 0.0))
            self.until[stage, stream] = max(begins, there_s)
            self.slice(stage, stream, f"{what} {micro}{of} to stage {to}", PIPELINE, begins, max(begins, there_s), args)
        if (stage, back) not in self.written:
            self.written.add((stage, back))
            self.kernels(stage, chunk, back, start_s, end_s)

    def link(self, place: int) -> str:
        """The network of what is exchanged at a place of the plan."""
        nodes = [node for block in self.forecast.timed[place].stage.graph.blocks for node in block.nodes]
        return next((node.op.stream for node in nodes if node.op.stream != COMPUTE), PIPELINE)

    def kernels(self, stage: int, chunk: int, back: bool, start_s: float, end_s: float) -> None:
        """The kernels of a pass: the first run of every block, the others as one slice; within ``end_s``."""
        parallel = self.forecast.plan.parallel
        assert parallel is not None
        timed = self.forecast.timed[parallel.kinds[parallel.ranks[stage]].chunks[chunk]]
        ahead = timed.stage.forward
        blocks = timed.blocks[ahead:] if back else timed.blocks[:ahead]
        total = sum(at.sum_s * at.block.repeat for at in blocks)
        stretch = (end_s - start_s) / total if total else 1.0  # launches, and weights that are gathered by the way
        now = start_s
        for at in blocks:
            now = self._block(stage, timed, at.block.name, at, now, min(1.0, stretch))
            rest = at.block.repeat - 1
            if rest > 0:
                until = now + rest * at.sum_s * min(1.0, stretch)
                self.slice(stage, COMPUTE, f"{at.block.name}: {rest} more", "more", now, until)
                now = until

    def _block(self, stage: int, timed: TimedStage, name: str, at: Any, now: float, stretch: float) -> float:
        free: dict[str, float] = {}
        seconds = [float(timed.operators.seconds[row]) * node.count * node.share
                   for node, row in zip(at.block.nodes, at.rows, strict=True)]  # fmt: skip
        counts = [node.count for node in at.block.nodes]
        each_s = np.add.reduceat(at.gpu_s, np.cumsum([0, *counts[:-1]])) if len(at.gpu_s) else np.zeros(0)
        self.slice(stage, COMPUTE, name, "block", now, now + float(each_s.sum()) * stretch)
        for node, whole, exposed in zip(at.block.nodes, seconds, each_s.tolist(), strict=True):
            args = {"operator": node.op.label, "shape": shape_text(node.op), "phase": node.phase}
            label = node.name or node.op.label
            if node.op.stream == COMPUTE:
                self.slice(stage, COMPUTE, label, node.op.label, now, now + exposed * stretch, args)
            else:
                begins = max(now, free.get(node.op.stream, now))
                free[node.op.stream] = begins + whole * stretch
                shown = args | {"exposed_us": round(exposed * 1e6, 3)}
                self.slice(stage, node.op.stream, label, node.op.label, begins, free[node.op.stream], shown)
            now += exposed * stretch
        return now

    def after(self, stage: int, at: float) -> None:
        """What follows the last pass of a stage: the reduction of its gradients and, when all stages have theirs, whose
        norm is of all of them, the update and the weights."""
        laid, parallel = self.laid, self.forecast.plan.parallel
        assert parallel is not None
        rank = parallel.kinds[parallel.ranks[stage]]
        if laid.reduce_s[stage]:
            stream = f"{self.link(rank.reduce)}, replicas"
            self.slice(stage, stream, "gradients, exposed", GRADIENTS, at, at + laid.reduce_s[stage])
        at = float(np.max(laid.ends_s + np.array(laid.reduce_s)))
        if laid.update_s[stage]:
            self.slice(stage, COMPUTE, "optimizer step", OPTIMIZER, at, at + laid.update_s[stage])
        at += max(laid.update_s)
        if laid.gather_s[stage]:
            stream = f"{self.link(rank.gather)}, replicas"
            self.slice(stage, stream, "weights, exposed", WEIGHTS, at, at + laid.gather_s[stage])
