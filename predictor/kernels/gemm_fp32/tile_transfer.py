"""What the measured boards say of those that were not: kernels by tile, and the clock that a power limit leaves.

Used by `predictor.kernels.gemm_fp32.fit`. Arrays by kernel have shape (libraries, layouts, tiles).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from predictor.hardware.gpu import GPUSpec
from predictor.kernels.device import POWER_NEED, loop_share, sustained_share
from predictor.kernels.gemm_fp32 import core as sgemm

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

#: Weight of a prior of 0 on what a library or a layout, and on what a tile, adds to a log efficiency, in kernels.
#: Chosen by hand, not from data.
LIBRARY_PRIOR, TILE_PRIOR = 1.0, 0.3
#: A board that was measured slower than this share did not hold its clock: chosen by hand, not from data.
HELD_ABOVE = 0.95


def is_steady(gpus: list[GPUSpec]) -> BoolArray:
    """Boards with HBM: neither their memory nor their power shapes a GEMM as on small boards. Shape (gpus,)."""
    return np.array(["HBM" in (g.memory_type or "") for g in gpus])


def is_reference(gpus: list[GPUSpec]) -> BoolArray:
    """Boards whose rows give the constants that all share: steady, with newer kernels than Maxwell's. Shape (gpus,)."""
    return is_steady(gpus) & np.array([sgemm.library_of(g) > 0 for g in gpus])


def fill_rates(log_rates: FloatArray, known: BoolArray) -> FloatArray:
    """Log efficiencies of kernels where only the ``known`` ones are: a tile's + a library's + a layout's, by ridge."""
    axes: npt.NDArray[np.int64] = np.indices(known.shape)
    ends = np.cumsum([1, *known.shape])

    def design(kernels: BoolArray) -> FloatArray:
        rows = np.zeros((int(kernels.sum()), int(ends[-1])))
        rows[:, 0] = 1.0
        for axis, start in enumerate(ends[:-1]):
            rows[np.arange(len(rows)), start + axes[axis, kernels]] = 1.0
        return rows

    libraries, layouts, tiles = known.shape
    prior = np.diag([0.0, *[LIBRARY_PRIOR] * (libraries + layouts), *[TILE_PRIOR] * tiles])
    seen = design(known)
    coefficients = np.linalg.solve(seen.T @ seen + prior, seen.T @ log_rates[known])
    result = log_rates.copy()
    result[~known] = design(~known) @ coefficients
    return result


def ruled(gpus: list[GPUSpec], sustained: FloatArray) -> FloatArray:
    """Fitted u (gpus,), but what the power rule says where that holds a board below its peak.

    How far such a board falls is its session's: two of T4, and two of P4, lie 0.15 (standard deviation) apart as
    logarithms, and the rule within 0.1 of their mean.
    """
    rule = np.array([sustained_share(g, POWER_NEED) for g in gpus])
    held = rule < np.array([HELD_ABOVE * loop_share(g) for g in gpus])
    result: FloatArray = np.where(held, rule, sustained)
    return result


def power_need(gpus: list[GPUSpec], sustained: FloatArray) -> dict[str, float]:
    """W per TFLOP/s that each architecture needs to hold its clock.

    The median of its boards that were measured below it. Where all held it, no more than the least that one of them
    has, and `POWER_NEED` where that is less still, or where none was measured.
    """
    need = dict(POWER_NEED)
    for architecture in sorted({g.architecture for g in gpus}):
        pairs = [(g, float(u)) for g, u in zip(gpus, sustained, strict=True) if g.architecture == architecture]
        supply = [g.power_limit_w / (g.peak_flops("fp32") / 1e12) for g, _ in pairs]
        slowed = [have / u for have, (g, u) in zip(supply, pairs, strict=True) if u < HELD_ABOVE * loop_share(g)]
        least = min([*supply, need.get(architecture, np.inf)])
        need[architecture] = float(np.median(slowed)) if slowed else least
    return need
