"""Which points to measure so that few of them say the most: equally full cells of shapes, and a pick from each cell.

Only shapes are read, never a latency. `microbench plan --calibration` chooses by the roofline's two coordinates (FLOPs
and arithmetic intensity) and the distance between shapes; `benchmarks/informative_rows.py` by what a set of estimators
leaves open. Both pick greedily what makes the forecasts of the shapes of interest least uncertain (A-optimality:
Chaloner & Verdinelli 1995, "Bayesian experimental design: a review").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Log latencies of shapes so many octaves apart, in all sizes together, say little of each other; a row's own error;
#: candidates of a cell, shapes of interest, rounds of the choice. Chosen by hand, not from data.
LENGTH_OCTAVES, NOISE = 3.0, 0.3
CANDIDATES, INTEREST, ROUNDS = 12, 300, 2


def cells(flops: FloatArray, intensity: FloatArray, count: int) -> list[IntArray]:
    """``count`` cells of positions, equally full: strips of ``flops`` (n,), each cut along ``intensity`` (n,).

    With fewer points than cells, a cell is one point and there are n.
    """
    order = np.argsort(flops, kind="stable")
    sampled = min(count, len(order))
    if not sampled:
        return []
    strips = np.array_split(np.arange(sampled), max(1, round((1.5 * sampled) ** 0.5)))
    ends = np.round(np.cumsum([0, *(len(strip) for strip in strips)]) / sampled * len(order)).astype(int)
    result: list[IntArray] = []
    for strip, start, end in zip(strips, ends[:-1], ends[1:], strict=True):
        part = order[start:end]
        result += np.array_split(part[np.argsort(intensity[part], kind="stable")], len(strip))
    return result


def one_of_each(groups: Sequence[IntArray], seed: int) -> IntArray:
    """A position of each group, drawn at random by ``seed``, sorted."""
    rng = np.random.default_rng(seed)
    return np.sort(np.array([rng.choice(group) for group in groups], dtype=np.int64))


def spread_out(log2_sizes: FloatArray, groups: Sequence[IntArray], seed: int) -> IntArray:
    """A position of each group: the points of (n, f) sizes, in octaves, that together say most about all of them."""
    random = np.random.default_rng(seed)
    drawn = [random.permutation(group)[:CANDIDATES] for group in groups]
    index = np.concatenate([*drawn, random.permutation(len(log2_sizes))[:INTEREST]])
    at = log2_sizes[index]
    apart = ((at[:, None, :] - at[None, :, :]) ** 2).sum(axis=2)
    total = np.exp(-0.5 * apart / LENGTH_OCTAVES**2)
    return index[most_telling(total, [len(part) for part in drawn], NOISE**2, random)]


def most_telling(total: FloatArray, lengths: Sequence[int], noise: float, random: np.random.Generator) -> IntArray:
    """One row of ``total`` from each group: greedily the best, then each again with the others fixed.

    ``total`` (r, r) is the covariance of the log latencies before anything is measured: the groups' candidates, so many
    each as ``lengths`` says, then the shapes of interest. ``noise`` is the variance of a row's own error.
    """
    ends = np.cumsum([0, *lengths])
    chosen: dict[int, int] = {}
    for _ in range(ROUNDS):
        for group in random.permutation(len(lengths)):
            others = [row for other, row in chosen.items() if other != group]
            of_group = slice(ends[group], ends[group + 1])
            shared, variance = total[ends[-1] :, of_group], np.diag(total)[of_group]
            if others:
                known = total[np.ix_(others, others)] + noise * np.eye(len(others))
                told = np.linalg.solve(known, total[others, of_group])
                shared = shared - total[ends[-1] :, others] @ told
                variance = variance - (total[others, of_group] * told).sum(axis=0)
            gain = (shared**2).sum(axis=0) / (variance + noise)
            chosen[int(group)] = int(ends[group] + gain.argmax())
    return np.array([chosen[group] for group in sorted(chosen)], dtype=np.int64)
