"""The KV cache of a prompt on its way from the GPUs that ran it to those that decode."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.estimators.base import predict_kernels
from predictor.serving_plans.tables import Times
from predictor.simulate.serving.disaggregated import hand_over


def hand_overs(pairs: Sequence[tuple[Times, Times]], gpus: int) -> list[float]:
    """Seconds of the hand-over of each pair of groups (for prompts, for decodes)."""
    if not pairs:
        return []
    run = pairs[0][1].run
    ops = [hand_over(prompts.run, decodes.run, decodes.isl, gpus) for prompts, decodes in pairs]
    return [float(t) for t in predict_kernels(ops, run.gpu, run.selector, run.work.engine.kernels).latency_s]
