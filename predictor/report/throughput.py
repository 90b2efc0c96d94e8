"""Tokens or images a second, and shares of the peak in words, on the terminal and on the page."""

from __future__ import annotations

from predictor.graph.samples import TOKENS
from predictor.report.wording import per_second
from predictor.simulate.answer import Prediction


def hardware_use(answer: Prediction) -> str:
    """HFU in words, behind the MFU; empty where the two are the same to the digit that is shown."""
    mfu, hfu = f"{answer.mfu:.1%}", f"{answer.hfu:.1%}"
    return "" if mfu == hfu else f" (HFU {hfu}, which counts what the backward pass recomputes)"


def sources(answer: Prediction) -> str:
    """How many operators were forecast by estimators, and how many are at the roofline, in a sentence."""
    known, fallback = answer.provenance.get("estimator", 0), answer.provenance.get("roofline", 0)
    count = f"{known + fallback} distinct operators"
    if not fallback:
        return f"{count}, all from estimators (set {answer.artifacts})."
    alone = "at the roofline alone: a perfect kernel with a cold cache."
    return (
        f"{count}: {known} from estimators (set {answer.artifacts}), {fallback} {alone}"
        if known
        else (f"{count}, all {alone}")
    )


def throughput(answer: Prediction) -> str:
    """Tokens (images, samples) a second in all and, on several GPUs, of each; and what counts as one. A decode step
    makes one token a sequence, so there it is the rate of steps times the batch, and no sequence ends."""
    work, unit = answer.workload, answer.unit
    made = " made" if work.mode in ("decode", "generate") else ""
    text = f"{per_second(answer.units_per_s, unit)}{made}"
    if work.parallelism.num_gpus > 1:
        text += f" in total, {per_second(answer.units_per_s_per_gpu, unit)} a GPU"
    if unit != TOKENS:
        return text
    if work.mode == "decode":
        steps = per_second(1.0 / answer.latency_s, "steps")
        return f"{text}, {steps} of {answer.tokens:,.4g} token{'s' * (answer.tokens > 1)}"
    return f"{text}, {per_second(answer.sequences_per_s, 'sequences')}"
