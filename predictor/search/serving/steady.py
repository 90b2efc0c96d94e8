"""A group in its steady state: so many requests at a time, each followed by the next; formulas, no events.

A request of I prompt and O output tokens takes one step for its prompt, which gives the first token, and O - 1 decode
steps. With b requests decoding, one finishes every (O - 1) / b steps, and a new prompt takes its place: a step has
p = b / (O - 1) prompts on average.

Prompts and decodes in one step (vLLM, TensorRT-LLM): a step with q prompts and b decodes takes
P(q + b / I) + A(b), the products over all tokens and the attention of the decodes; q = max(1, p), a share
f = p / q of the steps has prompts, and the others are decode steps. A step has room for (T - b) / I prompts, T its
budget of tokens: what arrives beyond that waits, and fewer decode.

    TPOT = (1 - f) D(b) + f (P(q + b / I) + A(b))

Prompts by themselves (SGLang): decodes wait while prompts run, P(q) for q of them.

    TPOT = D(b) + p P(q) / q

The rate follows from tokens that are conserved, x = b / ((O - 1) TPOT), and those that wait or are at their prompt
from Little's law: c = x (TTFT + (O - 1) TPOT). TTFT is what is left of the step at hand (half of it, longer ones more
often), the prompt's own step, or steps where it is longer than the budget, and a wait for other prompts, of a queue
with constant service: rho / 2 (1 - rho) of its time, at the load rho of a step's room for prompts.
"""

from __future__ import annotations

import numpy as np

from predictor.files.records import dataclass
from predictor.ops.roofline import FloatArray
from predictor.search.serving.tables import GroupTimes

#: Rounds of the fixed point, half a step each: chosen by hand, not from data; from 30 on nothing changes by 1e-6.
ROUNDS = 60
#: Load of a step's room for prompts beyond which the queue's formula is not asked. Chosen by hand, not from data.
FULL = 0.98


@dataclass(frozen=True, slots=True)
class Steady:
    """A group with ``concurrency`` requests at a time, each array of shape (n,): TTFT and TPOT in seconds, requests/s,
    how many of them decode, and the share of its steps that have prompts."""

    concurrency: FloatArray
    ttft_s: FloatArray
    tpot_s: FloatArray
    rate: FloatArray
    decoding: FloatArray
    mixed: FloatArray


def closed_loop(times: GroupTimes, concurrency: FloatArray) -> Steady:
    """The steady state of each of ``concurrency``, (n,)."""
    if times.osl == 1:
        return _prompts_alone(times, concurrency)
    c, more = concurrency, times.osl - 1.0
    decoding = c.copy()
    step = _mixed if times.scheduler.mixes else _apart
    for _ in range(ROUNDS):
        tpot, ttft, share, most = step(times, decoding)
        rate = decoding / (more * tpot)
        now = np.minimum(c * more * tpot / (ttft + more * tpot), most)
        decoding = np.clip(0.5 * (decoding + now), 1e-3, c)
    tpot, ttft, share, _ = step(times, decoding)
    rate = decoding / (more * tpot)
    return Steady(c, np.maximum(ttft, c / rate - more * tpot), tpot, rate, decoding, share)


def _mixed(times: GroupTimes, b: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """TPOT, TTFT, the share of steps with prompts, and how many can decode at most, of ``b`` that decode."""
    isl, more, budget, ranks = times.isl, times.osl - 1.0, _budget(times), times.group.dp
    room = np.maximum(budget - b, 1.0) / isl
    prompts = b / more
    together = np.clip(prompts, np.minimum(1.0, room), room)
    share = np.minimum(prompts / together, 1.0)
    each = _of_a_rank(together, room, ranks)
    short = times.decode(b)
    lanes = times.group.pp
    if lanes > 1:  # one of the batches in flight has the prompt, and is not begun again before it is through
        long = np.maximum(short + times.occupied(each), short / lanes + times.prefill(each))
        prefill_s = long
    else:
        long = prefill_s = times.prefill(each + b / ranks / isl) + times.attention(b)
    tpot = (1.0 - share) * short + share * long
    left = ((1.0 - share) * short**2 + share * long**2) / (2.0 * tpot)
    load = np.minimum(prompts / room, FULL)
    ttft = (
        left
        + prefill_s * np.maximum(1.0, 1.0 / room)
        + load / (2.0 * (1.0 - load)) * long * np.maximum(1.0, 1.0 / room)
    )
    return tpot, ttft, share, np.full(b.shape, more * budget / (isl + more))


def _apart(times: GroupTimes, b: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """The same of an engine whose prompts run by themselves."""
    more, room = times.osl - 1.0, np.full(b.shape, _budget(times) / times.isl)
    prompts = b / more
    together = np.clip(prompts, np.minimum(1.0, room), room)
    of_rank = _of_a_rank(together, room, times.group.dp)
    short, lanes = times.decode(b), times.group.pp
    long = times.occupied(of_rank)
    if lanes > 1:  # the other batches in flight decode beside it
        long = np.maximum(long, times.prefill(of_rank) - short * (lanes - 1) / lanes)
    each = long / together
    tpot = short + prompts * each
    load = np.minimum(prompts * each / tpot, FULL)
    left = ((1.0 - load) * short + load * long) / 2.0
    ttft = left + times.prefill(of_rank) * np.maximum(1.0, 1.0 / together) + load / (2.0 * (1.0 - load)) * each
    return tpot, ttft, load, np.full(b.shape, np.inf)


def _of_a_rank(together: FloatArray, room: FloatArray, ranks: int) -> FloatArray:
    """Prompts on the rank that has most, of those of all ranks: one at least, or as much of it as a step takes."""
    return np.maximum(together / ranks, np.minimum(1.0, room / ranks))


def _prompts_alone(times: GroupTimes, c: FloatArray) -> Steady:
    """One token of output: prompts alone, as many in a step as there is room for."""
    room = _budget(times) / times.isl
    together = np.minimum(c, max(room, 1.0))
    long = times.occupied(_of_a_rank(together, np.full(c.shape, room), times.group.dp)) * max(1.0, 1.0 / room)
    rate = together / long
    return Steady(c, c / rate, np.zeros_like(c), rate, np.zeros_like(c), np.ones_like(c))


def _budget(times: GroupTimes) -> float:
    """Tokens of prompts that a step of all ranks has room for."""
    rule = times.scheduler
    tokens = min(rule.tokens, rule.prefill_tokens) if not rule.mixes else rule.tokens
    return float(max(tokens, times.isl if not rule.chunks else 1) * times.group.dp)


def prefill_rate(times: GroupTimes) -> tuple[float, float]:
    """(prompts/s of a group that has nothing but prompts, one at a time; seconds of one)."""
    single = np.ones(1)
    return times.group.dp / float(times.occupied(single)[0]), float(times.prefill(single)[0])


def decode_alone(times: GroupTimes, decoding: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(TPOT in seconds, requests/s) of a group that has nothing but decodes."""
    tpot = times.decode(decoding)
    return tpot, decoding / (max(times.osl - 1.0, 1.0) * tpot)
