"""What a board's power limit leaves of the tensor cores in a long run.

    P = need (static + (1 - static) use x^3)    x: the share of the boost clock that is held, at P watts
                                                use: a product's rate at the boost clock over EFFICIENCY peak

Dynamic power goes with clock x voltage^2 and with how much of the tensor cores is busy, and voltage with the clock. A
board whose limit is below what a product needs lowers its clock until the power fits, tens of milliseconds after the
load began: a kernel alone runs at the boost clock, and so do the short ones that tables are made of. One that keeps
the tensor cores half busy is hardly held. A kernel that is slower anyway, as those of long products and of
`device.sustained_share` are, uses less and is not cut twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from predictor.estimators.device import tensor_rate
from predictor.hardware.gpu import GPUSpec
from predictor.ops.base import Op
from predictor.roofline import FloatArray

#: Share of the need that is drawn at any clock, rounded from two pairs of clocks held under load, solved by P as above:
#: RTX PRO 6000 2,338 MHz at 600 W and 1,641 at 300 W, 0.21; MI300X 1,207 MHz at 750 W and MI325X, the same chip, 1,447
#: at 1,000 W in bf16, 0.18. Source: a server's log of 2026; ROCm blog, "Measuring max-achievable FLOPs", part 2.
STATIC = 0.2
#: The best products' share of the peak at the clock that they run at: 708 TFLOP/s of MI300X at 1,207 of 2,100 MHz, 843
#: of MI325X at 1,447. Source: ROCm blog, "Measuring max-achievable FLOPs", part 2.
EFFICIENCY = 0.94
#: W per SM and GHz that tensor cores at the full rate of their generation draw at the boost clock, by compute
#: capability, solved for (`scripts/sustained_rates.py`) at the best bf16 rate that a search over shapes found, by the
#: forecast of that shape in a burst: A100 SXM 271.2 TFLOP/s, H100 SXM 794.5. Where boards disagree (10.0: B200, GB200),
#: or none is published, nothing is held. Source: stas00/ml-engineering@744d01e, maximum achievable matmul FLOPS.
CLOCK_WATTS: Mapping[str, float] = {"8.0": 2.98, "9.0": 3.44}
#: Of the need that is left for the clock at least, chosen by hand, not from data: no catalogue board is near it.
_LEAST = 1e-3
#: Dtypes that the published rates tell of; int8 and 4 bit are not held.
_DTYPES = ("tf32", "bf16", "fp16", "fp8")


def held_clock(gpu: GPUSpec) -> float:
    """Share of the boost clock, in (0, 1], that the power limit leaves in a long run of the best products.

    >>> from predictor.hardware.gpu import load_gpu
    >>> round(held_clock(load_gpu("a100-pcie-80gb")), 2)
    0.83
    """
    need = need_w(gpu)
    return float(clock_at(gpu.power_limit_w / need)) if need else 1.0


def need_w(gpu: GPUSpec) -> float:
    """Watts of the best products at the boost clock; 0 where none are known."""
    watts = CLOCK_WATTS.get(gpu.compute_capability or "", 0.0) * tensor_rate(gpu, "bf16")
    return watts * gpu.sm_count * gpu.boost_clock_hz * 1e-9


def clock_at(power: float, use: FloatArray | float = 1.0) -> FloatArray:
    """Share of the boost clock, in (0, 1], that ``power`` holds, which is a share of the need, of products that use so
    much of the tensor cores."""
    left = max(power - STATIC, _LEAST) / (1.0 - STATIC)
    return np.minimum(1.0, np.cbrt(left / np.maximum(use, _LEAST)))


def held_s(ops: Sequence[Op], gpu: GPUSpec, seconds: FloatArray) -> FloatArray:
    """Seconds, (n,), of matrix products in a long run that take ``seconds`` (n,) at the boost clock; 0 for other
    operators, and where power holds nothing. The published rates are of plain products: fused experts and attention
    have none to be held to."""
    if held_clock(gpu) == 1.0:
        return np.zeros(len(ops))
    products = np.array([op.family == "gemm" and op.dtype in _DTYPES for op in ops])
    peak = np.array([gpu.peak_flops(op.dtype) if held else np.inf for op, held in zip(ops, products, strict=True)])
    use = np.array([op.flops() for op in ops]) / seconds / peak / EFFICIENCY
    return np.where(products, seconds / clock_at(gpu.power_limit_w / need_w(gpu), np.minimum(use, 1.0)), 0.0)
