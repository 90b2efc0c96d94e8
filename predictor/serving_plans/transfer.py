"""The KV cache of a prompt on its way from the GPUs that ran it to those that decode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from predictor.estimators.base import predict_kernels
from predictor.hardware.system import SystemSpec, default_system
from predictor.ops.collective import Collective, over
from predictor.serving_plans.tables import Times, prefill_run
from predictor.simulate.memory import cache_bytes


def hand_over(prompts: Times, decodes: Times, gpus: int) -> Collective:
    """The message that the busiest GPU sends for one prompt: its part of the cache, or that of all GPUs that it serves.

    Every GPU that decodes takes its own part, over the links where ``gpus``, all of the deployment, are in one node,
    else over the network.
    """
    run, system = decodes.run, system_of(decodes)
    one = replace(prefill_run(run, decodes.isl, 1), gpu=run.gpu)
    part = cache_bytes(one.config, one.work, one.numbers) * decodes.group.dp / one.work.batch
    senders, takers = (group.tp * group.pp for group in (prompts.group, decodes.group))
    size = round(part * max(1.0, takers / senders))
    near = 2 if gpus <= system.gpus_per_node else 1
    return over(system, "send_recv", one.numbers.kv, max(size, 1), 2, near)


def hand_overs(pairs: Sequence[tuple[Times, Times]], gpus: int) -> list[float]:
    """Seconds of the hand-over of each pair of groups (for prompts, for decodes)."""
    if not pairs:
        return []
    run = pairs[0][1].run
    ops = [hand_over(prompts, decodes, gpus) for prompts, decodes in pairs]
    return [float(t) for t in predict_kernels(ops, run.gpu, run.selector, run.work.engine.kernels).latency_s]


def system_of(times: Times) -> SystemSpec:
    """What joins the GPUs."""
    return times.run.work.system or default_system(times.run.gpu)
