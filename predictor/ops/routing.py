"""How a router spreads tokens over experts: how many of them see a token, with how many rows, in how many tiles.

Every token picks ``top_k`` distinct experts, whatever the others pick. So the rows of expert e are binomial: T tokens,
each with the probability p(e) of picking it, and sum p(e) = top_k. Expected values of that follow:

    experts with a row     sum of 1 - (1 - p(e))^T; uniform: E (1 - (1 - top_k / E)^T)
    tiles of b rows        sum over e of E[ceil(rows(e) / b)]
    rows of the busiest    sum over n of 1 - P(no expert has more than n)

Words say what p is ("random": alike; "zipf:A": the r-th expert is r^-A times as popular; "shares:S,S,...": the measured
share of the routed rows that each expert gets), or how a benchmark dealt the rows out without a draw a token
("balanced", "power_law_A").
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from predictor.files.records import dataclass

FloatArray = npt.NDArray[np.float64]

BALANCED, RANDOM = "balanced", "random"
ZIPF, SHARES = "zipf:", "shares:"
#: Rows dealt out by a power law of this exponent, as AIConfigurator's collector does (`_power_law`).
POWER_LAW = "power_law_"
#: Rows of the tiles that grouped products come in. Chosen by hand, not from data.
BLOCKS = np.array([16.0, 32.0, 64.0, 128.0])
#: Where the law of a router's loads is read, in the middle of equal shares. Chosen by hand, not from data.
_QUANTILES = (np.arange(24) + 0.5) / 24
#: Binomials are summed up so many standard deviations (and rows) around their mean: what is left is below 1e-8.
#: Chosen by hand, not from data.
_DEVIATIONS, _ROWS = 6.0, 24.0


@dataclass(frozen=True, slots=True)
class Router:
    """How tokens fall on experts: a ``distribution`` of this module, and the file (``source``) that shares are from."""

    distribution: str = RANDOM
    source: str = ""

    def __str__(self) -> str:
        return self.source or self.distribution


@dataclass(frozen=True, slots=True)
class Loads:
    """Expected loads of one GPU's experts, the busiest GPU's where several share them.

    ``rows`` of all its experts (n,), ``active`` experts with a row (n,), rows of the ``busiest`` expert (n,), and
    ``blocks`` of `BLOCKS` rows (n, 4).
    """

    rows: FloatArray
    active: FloatArray
    busiest: FloatArray
    blocks: FloatArray

    @staticmethod
    def joined(parts: Iterable[tuple[npt.NDArray[np.int64], Loads]]) -> Loads:
        """Loads of n layers from those of some of them: (positions, their loads), together all of the n."""
        every = list(parts)
        order = np.argsort(np.concatenate([at for at, _ in every]))
        loads = [load for _, load in every]
        return Loads(
            np.concatenate([load.rows for load in loads])[order],
            np.concatenate([load.active for load in loads])[order],
            np.concatenate([load.busiest for load in loads])[order],
            np.concatenate([load.blocks for load in loads])[order],
        )


def drawn(distribution: str) -> bool:
    """Whether every token draws its experts by itself, so that `inclusion` says all."""
    return distribution == RANDOM or distribution.startswith((ZIPF, SHARES))


def exponent_of(distribution: str) -> float:
    """Exponent of a benchmark's power law: 1.2 of "power_law_1.2", 0 of all other names."""
    try:
        return float(distribution[len(POWER_LAW) :]) if distribution.startswith(POWER_LAW) else 0.0
    except ValueError:
        return 0.0


def zipf_exponent(distribution: str) -> float | None:
    """Exponent by which popularity falls with the rank: 0 of "random", 1.2 of "zipf:1.2", None of all other names."""
    if distribution == RANDOM:
        return 0.0
    try:
        return float(distribution[len(ZIPF) :]) if distribution.startswith(ZIPF) else None
    except ValueError:
        return None


@lru_cache(maxsize=256)
def inclusion(distribution: str, experts: int, top_k: int, ep: int = 1) -> FloatArray:
    """Probability that a token picks each expert of the busiest GPU, (experts / ep,); of a drawn ``distribution``.

    Popularities w become probabilities as if experts rang at random, at the rate w, and a token took the first top_k:
    p(e) = 1 - exp(-w(e) t), with the t at which top_k have rung on average (Rosen, "Asymptotic theory for order
    sampling", 1997); exact where all are alike. Measured shares are of the routed rows, so that p is top_k times those.

    Popular experts are dealt out to the GPUs in turn; measured ones stay in their order, as engines place them.
    """
    if not distribution.startswith(SHARES):
        return _first_to_ring(np.arange(1.0, experts + 1) ** -(zipf_exponent(distribution) or 0.0), top_k)[::ep]
    shares = np.array(shares_of(distribution))
    chances = np.minimum(shares / shares.sum() * top_k, 1.0)
    local = max(1, experts // ep)
    return max(
        (chances[i : i + local] for i in range(0, experts, local)),
        key=lambda chances_of_rank: float(chances_of_rank.sum()),
    )


def _first_to_ring(rates: FloatArray, top_k: int) -> FloatArray:
    if top_k >= len(rates):
        return np.ones(len(rates))
    low, high = 0.0, float(len(rates)) / float(rates.min()) * 50.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if -np.expm1(-rates * middle).sum() < top_k else (low, middle)
    return np.asarray(-np.expm1(-rates * high), dtype=np.float64)


@lru_cache(maxsize=1024)
def within_capacity(distribution: str, tokens: int, experts: int, top_k: int, factor: float) -> tuple[float, str]:
    """Rows of ``tokens`` that are kept where no expert takes more than ``factor`` times its even share of them, and how
    they fall on experts; what is beyond is dropped (Lepikhin et al., arXiv:2006.16668, section 2.2; Megatron's
    --moe-expert-capacity-factor).

    Of an expert's binomial rows X, E[min(X, c)] by the normal law of as large a mean and deviation.
    """
    most = math.ceil(tokens * top_k / experts * factor)
    if not drawn(distribution):
        return min(tokens * top_k, most * experts), distribution
    chances = inclusion(distribution, experts, top_k)
    mean = tokens * chances
    deviation = np.sqrt(np.maximum(mean * (1.0 - chances), 1e-12))
    at = (most - mean) / deviation
    below = np.array([0.5 * math.erfc(-z / math.sqrt(2.0)) for z in at.tolist()])
    beyond = deviation * np.exp(-0.5 * at**2) / math.sqrt(2.0 * math.pi) - (most - mean) * (1.0 - below)
    kept = np.clip(mean - np.maximum(beyond, 0.0), 0.0, most)
    return float(kept.sum()), SHARES + ",".join(f"{share:.6g}" for share in kept / kept.sum())


def shares_of(distribution: str) -> tuple[float, ...]:
    """The numbers of "shares:S,S,...", one an expert."""
    return tuple(float(share) for share in distribution[len(SHARES) :].split(","))


@lru_cache(maxsize=4096)
def experts_touched(distribution: str, tokens: int, experts: int, top_k: int, ep: int = 1) -> float:
    """Expected experts of the busiest GPU with a row, of a drawn ``distribution``."""
    return _touched(inclusion(distribution, experts, top_k, ep), float(tokens))


def _touched(chances: FloatArray, tokens: float) -> float:
    with np.errstate(divide="ignore"):
        return float(-np.expm1(tokens * np.log1p(-chances)).sum())


def expert_loads(
    distribution: str, tokens: FloatArray, experts: FloatArray, top_k: FloatArray, ep: FloatArray
) -> Loads:
    """Loads of n layers of one distribution; arrays of shape (n,). A name that is not known counts as "balanced"."""
    if exponent_of(distribution):
        return _power_law(exponent_of(distribution), tokens, experts, top_k, ep)
    if not drawn(distribution):
        return _even(tokens, experts, top_k, ep)
    out = np.empty((len(tokens), 3 + len(BLOCKS)))
    layers = np.stack([experts, top_k, ep], axis=1)
    kinds, which = np.unique(layers, axis=0, return_inverse=True)
    for i, (e, k, p) in enumerate(kinds):
        rows = np.flatnonzero(which.reshape(-1) == i)
        out[rows] = _drawn(distribution, int(e), int(k), int(p), tuple(tokens[rows].tolist()))
    return Loads(out[:, 0], out[:, 1], out[:, 2], out[:, 3:])


def _even(tokens: FloatArray, experts: FloatArray, top_k: FloatArray, ep: FloatArray) -> Loads:
    """Rows dealt out in turn: min(rows, experts) of them have one."""
    even = np.maximum(tokens * top_k / ep, 1.0)
    reached = np.minimum(even, experts / ep)
    each = even / reached
    blocks = reached[:, None] * np.ceil(each[:, None] / BLOCKS)
    return Loads(even, np.maximum(reached, 1.0), np.ceil(each), blocks)


def _power_law(exponent: float, tokens: FloatArray, experts: FloatArray, top_k: FloatArray, ep: FloatArray) -> Loads:
    """Loads drawn from the density x^-exponent, as AIConfigurator's collector deals them out.

    Between 1 and 0.8 of the tokens (0.01 and 2 where there are fewer rows than experts), scaled to the routed rows and
    rounded. It times the rank with the most rows. Quantiles of
    that law stand for the draw; the busiest of ep ranks lies about sqrt(2 ln ep) deviations above the mean.
    """
    local = experts / ep
    routed = tokens * top_k
    few = routed <= experts
    low, high = np.where(few, 0.01, 1.0), np.where(few, 2.0, np.maximum(0.8 * tokens, 1.5))
    power = 1.0 - exponent
    power = 1e-3 if abs(power) < 1e-3 else power
    bottom = low**power

    def law(quantiles: FloatArray) -> FloatArray:
        values: FloatArray = ((high**power - bottom)[:, None] * quantiles + bottom[:, None]) ** (1.0 / power)
        return values

    draws = law(_QUANTILES)
    mean = draws.mean(axis=1, keepdims=True)
    largest = law((local / (local + 1.0))[:, None]) / mean
    draws /= mean
    above = np.minimum(1.0 + draws.std(axis=1) * np.sqrt(2.0 * np.log(ep) / local), ep)
    scale = (above * routed / experts)[:, None]
    load, busiest = np.minimum(draws * scale, tokens[:, None]), np.minimum(largest * scale, tokens[:, None])
    rows = np.maximum(load.mean(axis=1) * local, 1.0)
    active = np.maximum((load >= 0.5).mean(axis=1) * local, np.minimum(rows, 1.0))
    padded = np.ceil(np.round(load)[:, :, None] / BLOCKS).mean(axis=1) * local[:, None]
    return Loads(rows, np.maximum(active, 1.0), np.maximum(busiest[:, 0], 1.0), np.maximum(padded, 1.0))


@lru_cache(maxsize=512)
def _drawn(distribution: str, experts: int, top_k: int, ep: int, tokens: tuple[float, ...]) -> FloatArray:
    """(n, 3 + blocks): rows, experts with a row, rows of the busiest and blocks, at n token counts."""
    chances, alike = _grouped(inclusion(distribution, experts, top_k, ep))
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, max(tokens) + 1)))])
    return np.array([_binomial(t, chances, alike, factorials) for t in tokens])


def _grouped(chances: FloatArray) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """(chances, how many experts have each): those within an eighth of an octave count as their mean."""
    octave = np.round(np.log2(np.maximum(chances, 1e-12)) * 8.0)
    _, which, alike = np.unique(octave, return_inverse=True, return_counts=True)
    return np.bincount(which.reshape(-1), weights=chances) / alike, alike


def _binomial(tokens: float, chances: FloatArray, alike: npt.NDArray[np.int64], factorials: FloatArray) -> FloatArray:
    """The row of `_drawn` at one token count; ``alike`` experts have each of the ``chances`` (u,)."""
    mean = tokens * chances
    deviation = np.sqrt(mean * (1.0 - chances))
    width = int(min(tokens, 2 * (_DEVIATIONS * deviation.max() + _ROWS))) + 1
    first = np.clip(np.floor(mean - width / 2), 0, tokens + 1 - width).astype(np.int64)
    n = first[:, None] + np.arange(width)
    other = int(tokens) - n
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(chances)[:, None] * n + np.where(other > 0, np.log1p(-chances)[:, None] * other, 0.0)
    share = np.exp(logs + factorials[int(tokens)] - factorials[n] - factorials[other])
    blocks = [alike @ (share * np.ceil(n / b)).sum(axis=1) for b in BLOCKS]
    active = _touched(np.repeat(chances, alike), tokens)
    return np.array([alike @ mean, max(active, 1.0), _largest(first, share.cumsum(axis=1), alike), *blocks])


def _largest(first: npt.NDArray[np.int64], below: FloatArray, alike: npt.NDArray[np.int64]) -> float:
    """Expected rows of the busiest expert, taken as independent; ``below`` (u, w) are P(rows <= first + i)."""
    start, width = int(first.max()), below.shape[1]
    at = np.minimum(start + np.arange(width) - first[:, None], width - 1)
    least = np.clip(np.take_along_axis(below, at, axis=1), 1e-300, 1.0)
    return start + float((1.0 - np.exp(alike @ np.log(least))).sum())


def word_of(value: object) -> str | None:
    """The distribution that a person's word names ("random", "zipf:1.2"); None for what is no such word."""
    text = str(value)
    if text in (BALANCED, RANDOM):
        return text
    exponent = zipf_exponent(text)
    return None if exponent is None or not 0.0 <= exponent <= 5.0 else f"{ZIPF}{exponent:g}"
