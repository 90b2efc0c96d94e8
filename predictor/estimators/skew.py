"""Ranks out of step: how long a collective's first rank waits for its last one.

A collective ends when the last rank has come. Tables measure it alone, where all ranks start together; in a model the
ranks come from kernels of their own. What they wait is the largest of n delays less their mean.
"""

from __future__ import annotations

from statistics import NormalDist

#: Standard deviation of the time at which a rank comes where each is launched by its own process, one call at a time,
#: seconds. Vidur's all_reduces over two A100 (NVSwitch or a bridge) up to 64 KiB, whose times spread by 12 to 15
#: microseconds within a size (`latency_std_ms` of datasets/vidur), while the transfer takes 7 to 10: chosen by looking
#: at these rows. Eight ranks of the same source spread less (0 to 12). Nobody has published what it is in a captured
#: graph, where ranks keep step from collective to collective: 0 until somebody measures it.
LAUNCHED_DEVIATION_S = 12e-6


def late_rank_s(ranks: float, deviation_s: float = LAUNCHED_DEVIATION_S) -> float:
    """Seconds that the last of ``ranks`` comes after their mean, where each comes with ``deviation_s`` of a normal law.

    The mean of the largest of n normal draws, by Blom's approximation (1958): the quantile of (n - 0.375) / (n + 0.25).

    >>> round(late_rank_s(8, 1e-6) * 1e6, 2), late_rank_s(1)
    (1.43, 0.0)
    """
    if ranks <= 1:
        return 0.0
    return deviation_s * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
