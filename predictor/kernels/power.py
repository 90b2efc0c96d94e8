"""What a board's power limit leaves of the tensor cores in a long run: the one place that says which clock is held.

    P = SMs W f (static + (1 - static) use (x / f)^3)    x: the clock that is held, at P watts; f: that of the board
                                                         that told W, so that watts go by GHz and not by the board's
                                                         own boost clock; use: a product's rate over EFFICIENCY peak

Dynamic power goes with clock x voltage^2 and with how much of the tensor cores is busy, and voltage with the clock. A
board whose limit is below what a product needs lowers its clock until the power fits, tens of milliseconds after the
load began: a kernel alone runs at the boost clock, and so do the short ones that tables are made of. One that keeps
the tensor cores half busy is hardly held. A kernel that is slower anyway, as those of long products are, uses less.
Where a forecast itself takes a lower clock (`device.sustained_share`), that is the clock its seconds are of, and power
takes only what it does not take already: a higher boost clock or limit never makes a product slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from predictor.hardware.generation import chip
from predictor.hardware.gpu import GPUSpec
from predictor.hardware.what_if import as_filed
from predictor.kernels.device import clock_left, sms_left, sustained_share, tensor_rate
from predictor.ops.base import Op
from predictor.ops.roofline import FloatArray

#: The best products' share of the peak at the clock that they run at: 708 TFLOP/s of MI300X at 1,207 of 2,100 MHz, 843
#: of MI325X at 1,447. Source: ROCm blog, "Measuring max-achievable FLOPs", part 2.
EFFICIENCY = 0.94
#: (W per SM and GHz, at so many Hz) that tensor cores at the full rate of their generation draw, by compute capability
#: and bits of an operand. 9.0: solved for (`benchmarks/sustained_rates.py`) at the best rate that a search over shapes
#: found, so that one in a hundred of the searched shapes is forecast faster in a long run: H100 SXM 794.5 TFLOP/s in
#: bf16; H100 1,402.6 (4.20) and H200 SXM 1,453.4 (3.75) in fp8, of which the mean is taken. 8.0: fitted to the
#: products that SimuMax measured, least mean error, by the same script with --rows datasets/simumax; between what the
#: search says on A100 SXM (3.22 at 271.2) and PCIe (2.84 at 252.9). Source: stas00/ml-engineering@744d01e, maximum
#: achievable matmul FLOPS. 10.0, whose best searched products are as short as bursts: solved for at what products of
#: B200's tables lose that are repeated for longer than power allows, by the same script with --tables
#: datasets/aiconfigurator, median over what ran them. The same says 2.96 of A100, 3.73 and 4.34 of H100, and of GB200
#: 8.17 and 8.37; with 6.73, attention that is 0.65 busy is held at 1,643 MHz, where 1,580 was seen
#: (flashinfer-ai/flashinfer pull 2899). 10.3 takes 10.0's, whose chip it is (unverified): its best searched products
#: are 1.014 (bf16) and 0.977 (fp8) times B200's, the law says 1.017 and 1.025 at B300's 1,100 W. A GB300 of 1,400 W
#: does better than the law's 1,910 TFLOP/s: cuBLAS 1,600 to 2,174 by shape, in runs whose length is not said
#: (facebookexperimental/triton pull 2023). Where nothing tells, nothing is held.
CLOCK_WATTS: Mapping[tuple[str, int], tuple[float, float]] = {
    ("8.0", 16): (3.14, 1.41e9), ("9.0", 16): (3.58, 1.98e9), ("9.0", 8): (3.97, 1.98e9),
    ("10.0", 16): (6.73, 1.965e9), ("10.0", 8): (8.14, 1.965e9),
}  # fmt: skip
#: Steps in which the held clock is found, chosen by hand, not from data: each leaves at most a third of the error.
_STEPS = 12
#: Dtypes that the published rates tell of -> bits that they are counted with, by definition of `CLOCK_WATTS`; int8 and
#: 4 bit are not held. mxfp8 multiplies as fp8 does.
_DTYPES = {"tf32": 16, "bf16": 16, "fp16": 16, "fp8": 8, "mxfp8": 8}


def held_clock(gpu: GPUSpec, bits: int = 16) -> float:
    """Share of the boost clock, in (0, 1], that the power limit leaves in a long run of the best products, of operands
    of so many bits.

    >>> from predictor.hardware.gpu import load_gpu
    >>> round(held_clock(load_gpu("a100-pcie-80gb")), 2)
    0.81
    """
    known = need(gpu, bits)
    if known is None:
        return 1.0
    watts, at_hz = known
    return min(1.0, at_hz / gpu.boost_clock_hz * float(np.cbrt(clock_left(gpu.power_limit_w / watts))))


def need(gpu: GPUSpec, bits: int = 16) -> tuple[float, float] | None:
    """Watts of the best products of operands of so many bits, and the clock in Hz at which they are drawn; None where
    none are known."""
    watts, at_hz = CLOCK_WATTS.get((chip(gpu.compute_capability), bits), (0.0, 0.0))
    watts *= tensor_rate(as_filed(gpu), "bf16") * gpu.sm_count * at_hz * 1e-9
    return (watts, at_hz) if watts else None


def told_by(gpu: GPUSpec) -> str:
    """The compute capability whose boards tell of ``gpu`` where it is another than its own; else ""."""
    capability = chip(gpu.compute_capability)
    return "" if capability == gpu.compute_capability or need(gpu) is None else capability


def seconds_at(power: float, busy: FloatArray, bytes_s: FloatArray, clock_s: FloatArray) -> FloatArray:
    """Seconds (n,) at the clock that ``power``, a share of the need, holds, of products whose tensor cores are busy for
    ``busy`` seconds, whose bytes take ``bytes_s`` and whose rest takes ``clock_s`` (all (n,)) at the need's clock.

    The clock x, over the need's, solves the law with use = busy / (r bytes_s x + clock_s), which has one answer: r of
    the SMs run, and do the work of those that ``power`` does not feed (`device.sms_left`).
    """
    running = sms_left(power)
    left = clock_left(power) / np.maximum(busy, 1e-12)
    clock = np.ones(len(busy))
    for _ in range(_STEPS):
        clock = np.cbrt(left * (running * bytes_s * clock + clock_s))
    return bytes_s + clock_s / (clock * running)


def held_s(ops: Sequence[Op], gpu: GPUSpec, seconds: FloatArray) -> FloatArray:
    """Seconds, (n,), of matrix products in a long run that take ``seconds`` (n,) by themselves; 0 for other operators,
    and where power holds nothing. The published rates are of plain products: fused experts and attention have none to
    be held to."""
    held = np.zeros(len(ops))
    for bits in sorted({_DTYPES[op.dtype] for op in ops if op.family == "gemm" and op.dtype in _DTYPES}):
        known = need(gpu, bits)
        if known is None or held_clock(gpu, bits) == 1.0:
            continue
        watts, at_hz = known
        rows = [i for i, op in enumerate(ops) if op.family == "gemm" and _DTYPES.get(op.dtype) == bits]
        boost = gpu.boost_clock_hz / at_hz
        busy = np.array([ops[i].flops() / gpu.peak_flops(ops[i].dtype) for i in rows]) / EFFICIENCY * boost
        # What share the bytes are is the board's: with faster memory alone, more of the same time would be the clock's.
        moved = np.array([ops[i].bytes_moved() for i in rows])
        bytes_s = np.minimum(moved / as_filed(gpu).memory_bandwidth, seconds[rows])
        # The seconds are of the clock that their forecast takes; power has its part only below that.
        clock_s = (seconds[rows] - bytes_s) * sustained_share(gpu) * boost
        held[rows] = np.maximum(seconds_at(gpu.power_limit_w / watts, busy, bytes_s, clock_s), seconds[rows])
    return held
