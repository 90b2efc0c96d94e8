"""What a board's power limit leaves of the tensor cores in a long run.

    P = need (static + (1 - static) x^3)      x: the share of the boost clock that is held, at P watts
    rate = x EFFICIENCY peak

Dynamic power goes with clock x voltage^2, and voltage with the clock. A board whose limit is below its ``need`` lowers
its clock until the power fits, tens of milliseconds after the load began: a kernel alone runs at the boost clock, and
so do the short ones that tables are made of. `held_s` is a bound of where kernels run, as the roofline's are: a kernel
that is slower anyway, as those of long products and of `device.sustained_share` are, is not cut twice.
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
#: capability, solved for at the best bf16 rate that a search over shapes found: A100 SXM 271.2 TFLOP/s, H100 SXM 794.5.
#: A100 PCIe's 252.9 is held out (238; it asks for 2.8). Where boards disagree by more (10.0: B200 5.3, GB200 6.7), or
#: none is published, nothing is held. Source: stas00/ml-engineering@744d01e, maximum achievable matmul FLOPS.
CLOCK_WATTS: Mapping[str, float] = {"8.0": 3.16, "9.0": 3.83}
#: Of the need that is left for the clock at least, chosen by hand, not from data: no catalogue board is near it.
_LEAST = 1e-3
#: Dtypes that the published rates tell of; int8 and 4 bit are not held.
_DTYPES = ("tf32", "bf16", "fp16", "fp8")


def held_clock(gpu: GPUSpec) -> float:
    """Share of the boost clock, in (0, 1], that the power limit leaves in a long run of tensor-core products.

    >>> from predictor.hardware.gpu import load_gpu
    >>> round(held_clock(load_gpu("a100-pcie-80gb")), 2)
    0.81
    """
    watts = CLOCK_WATTS.get(gpu.compute_capability or "", 0.0) * tensor_rate(gpu, "bf16")
    need = watts * gpu.sm_count * gpu.boost_clock_hz * 1e-9
    return clock_at(gpu.power_limit_w / need) if need else 1.0


def clock_at(power: float) -> float:
    """Share of the boost clock, in (0, 1], that ``power`` holds, which is a share of the need."""
    return min(1.0, float(np.cbrt(max(power - STATIC, _LEAST) / (1.0 - STATIC))))


def held_rate(gpu: GPUSpec, dtype: str) -> float:
    """FLOP/s of ``dtype`` on tensor cores in a long run; inf where power bounds nothing that is known."""
    share = held_clock(gpu) if dtype in _DTYPES else 1.0
    return share * EFFICIENCY * gpu.peak_flops(dtype) if share < 1.0 else float("inf")


def held_s(ops: Sequence[Op], gpu: GPUSpec) -> FloatArray:
    """Seconds, (n,), below which no matrix product stays in a long run; 0 for other operators, and where power bounds
    nothing. The published rates are of plain products: fused experts and attention have none to be held to."""
    if held_clock(gpu) == 1.0:
        return np.zeros(len(ops))
    return np.array([op.flops() / held_rate(gpu, op.dtype) if op.family == "gemm" else 0.0 for op in ops])
