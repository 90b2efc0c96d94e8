"""Requests: when they come, how long they are. Made by a seeded generator, or read (`traces`)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from predictor.errors import RequestError
from predictor.files.records import dataclass
from predictor.ops.roofline import FloatArray
from predictor.request.options import ARRIVALS, BURSTS, CONSTANT, GAMMA, MOST_REQUESTS, POISSON, TRAFFIC

IntArray = npt.NDArray[np.int64]
#: From an answer to the next request of its client, through detokenizer and network. Chosen by hand, not from data: it
#: takes some time, so that the engine's next step has begun; from 1 to 5 ms answers change by about 1 %.
TURNAROUND_S = 1e-3
#: A token of a prompt in the tokenizer before the engine. Source: benchmarks/tokenizer_time.py on 2026-11-23, on a
#: core of an AMD EPYC (2.8 us of 4,096 tokens, 2.2 of 1,024, prompts from 1.7 to 3.7).
TOKENIZER_S = 2.8e-6
#: Made requests whose rate is further from the one that was asked for than by this factor are told so: chosen by hand,
#: not from data. Thirty Poisson gaps are within it in 999 of 1,000 draws.
_OFF_RATE = 2.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """n requests; arrays of shape (n,). ``arrival_s`` does not fall; of a closed loop, where ``concurrency`` clients
    each wait for their answer before they ask again, it is empty. ``shared``: leading tokens that an earlier prompt
    has, too; ``blocks``: names of each prompt's leading blocks (`predictor.engines.scheduling.Sequence`), empty where
    nobody names them. ``turnaround_s``: from a client's answer to its next request in the engine, and
    ``tokenizer_s`` more for each token of its prompt, which are in the request's time. ``notes``: how a file was
    read."""

    arrival_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    shared: IntArray
    concurrency: int = 0
    turnaround_s: float = 0.0
    tokenizer_s: float = 0.0
    blocks: tuple[tuple[int, ...], ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.input_tokens)

    def on_its_way_s(self, index: int) -> float:
        """Seconds from when a client sends a request until the engine has it."""
        return self.turnaround_s + self.tokenizer_s * float(self.input_tokens[index])

    def first(self, requests: int) -> Traffic:
        """The first so many of them; RequestError where there are not as many."""
        if not 1 <= requests <= len(self):
            raise RequestError(f"--requests {requests}: expected 1 to {len(self):,}, which the file has")
        n = requests
        return Traffic(
            self.arrival_s[:n], self.input_tokens[:n], self.output_tokens[:n], self.shared[:n], self.concurrency,
            self.turnaround_s, self.tokenizer_s, self.blocks[:n], self.notes,
        )  # fmt: skip


def arrivals(requests: int, rate: float, how: str = POISSON, cv: float = 1.0, seed: int = 0) -> FloatArray:
    """Seconds at which ``requests`` come, ``rate`` a second on average, the first at 0.

    ``cv``: of ``gamma`` the standard deviation of gaps over their mean (1 is Poisson, more is burstier); of ``bursts``
    how many come at once.
    """
    random = np.random.default_rng(seed)
    if how == POISSON:
        gaps = random.exponential(1.0 / rate, requests)
    elif how == GAMMA:
        gaps = random.gamma(1.0 / cv**2, cv**2 / rate, requests)
    elif how == BURSTS:
        size = round(cv)
        gaps = np.where(np.arange(requests) % size == 0, random.exponential(size / rate, requests), 0.0)
    elif how == CONSTANT:
        gaps = np.full(requests, 1.0 / rate)
    else:
        raise RequestError(f"--arrivals {how!r}: expected one of {', '.join(ARRIVALS)}")
    gaps[0] = 0.0
    return np.cumsum(gaps)


def drawn(lengths: IntArray, requests: int, seed: int = 0) -> IntArray:
    """``requests`` rows of ``lengths`` (rows, columns): all in their order as far as they go, else drawn at random."""
    if requests <= len(lengths):
        return lengths[:requests]
    rows = np.random.default_rng(seed + 1).integers(0, len(lengths), requests)
    return lengths[rows]


def spread(tokens: int, requests: int, least: float, seed: int) -> IntArray:
    """Lengths drawn evenly from ``least`` times ``tokens`` to ``tokens``."""
    if least >= 1.0:
        return np.full(requests, tokens, dtype=np.int64)
    low = max(1, int(least * tokens))
    return np.random.default_rng(seed).integers(low, tokens + 1, requests)


def made(
    requests: int, rate: float | None, concurrency: int | None, lengths: Traffic | None, isl: int | None,
    osl: int | None, least: float = 1.0, how: str = POISSON, cv: float = 1.0, seed: int = 0,
) -> Traffic:  # fmt: skip
    """Requests at a rate, or of a closed loop of ``concurrency`` clients, as long as those of ``lengths``, or drawn
    evenly from ``least`` times ``isl`` and ``osl`` on. RequestError, one line, for values that make no traffic."""
    values = {"concurrency": concurrency, "requests": requests, "isl": isl, "osl": osl, "rate": rate, "cv": cv,
              "seed": seed, "range": least, "arrivals": how}  # fmt: skip
    for name, value in values.items():
        if value is not None:
            TRAFFIC[name].check(value)
    if how == BURSTS and (cv != round(cv) or not 1 <= cv <= requests):
        raise RequestError(
            f"--cv {cv:g}: so many of {requests:,} requests come at once; expected a whole number from 1 to"
            f" {requests:,}"
        )
    if lengths is not None:
        table = np.stack((lengths.input_tokens, lengths.output_tokens, lengths.shared), axis=1)
        inputs, outputs, shared = drawn(table, requests, seed).T
    else:
        assert isl is not None and osl is not None  # the caller has one or the other
        inputs, outputs = spread(isl, requests, least, seed + 2), spread(osl, requests, least, seed + 3)
        shared = np.zeros(requests, dtype=np.int64)
    if concurrency is not None:
        return Traffic(np.zeros(0), inputs, outputs, shared, concurrency, TURNAROUND_S, TOKENIZER_S)
    assert rate is not None
    at_s = arrivals(requests, rate, how, cv, seed)
    return Traffic(at_s, inputs, outputs, shared, notes=_drawn_rate(at_s, rate, how, cv))


def _drawn_rate(at_s: FloatArray, rate: float, how: str, cv: float) -> tuple[str, ...]:
    """A note where requests drawn from a heavy tail come at quite another rate than ``rate``; RequestError where all
    of them come at once."""
    gaps = len(at_s) - 1
    span = float(at_s[-1])
    if how != GAMMA or not gaps or 1.0 / _OFF_RATE <= span * rate / gaps <= _OFF_RATE:
        return ()
    # The mean of n gaps has a standard deviation of cv / sqrt(n) of itself.
    enough = f"expected a --cv below {math.sqrt(gaps):.2g}"
    if cv**2 <= MOST_REQUESTS:
        enough += f", or {math.ceil(cv**2):,} --requests and more"
    if span * rate < 1.0 / gaps:  # less than a mean gap over the number of gaps: no clock shows it
        raise RequestError(f"--cv {cv:g}: {gaps + 1:,} requests come at once; {enough}")
    return (f"--cv {cv:g}: the {gaps + 1:,} requests come at {gaps / span:,.3g} a second, not at {rate:g}; {enough}",)
