"""What the cores read of a GPU: the data sheet's rates, cut to what a board sustains.

A long run of products draws more than a board's power limit wherever the limit is low for the peak. The clock then
falls until the power fits: share = power limit / power that the peak needs, of the tensor cores as of the CUDA cores.

From compute capability 8.6 on (8.0 aside), each of an SM's four schedulers issues one instruction a clock and feeds 32
fp32 lanes, so that a multiply-add takes every issue slot and all other instructions of the main loop cost time. Older
SMs issue two (Maxwell, Pascal) or have half the lanes (Volta, Turing, 8.0), and hide them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from predictor.dtypes import bytes_of
from predictor.errors import UnsupportedError
from predictor.hardware.gpu import L2_PORT_BYTES, GPUSpec
from predictor.roofline import FloatArray

#: Architecture of a device file that the harness wrote for a processor.
PROCESSOR = "cpu"
#: Watts per SM and GHz from which on a board holds its boost clock under tensor-core load, at 1024 dense 16-bit FLOPs
#: a clock and SM; below it the sustained clock falls in proportion. L40S has 1.0, RTX PRO 6000 1.3. Chosen on the
#: measured boards (1.2 to 1.4 do about equally well), not fitted.
FULL_CLOCK_WATTS = 1.3
_WATTS_AT_FLOPS = 1024.0
#: How the need grows with the tensor cores' FLOPs a clock and SM. A multiplier array takes operands through its edge,
#: the square root of its size, and much of its power moves them; arithmetic grows with the size itself. This is the
#: largest exponent that leaves H100 and H200 (3784 FLOPs a clock, 2.7 W) their clock: 0.6 takes some of it, and H100
#: left out comes out worse. What B200 gets depends on it (0.96 at 0.5, 0.79 at 0.6, 0.87 here). Chosen by looking at
#: H100 left out, with published matmul ceilings of other boards in view.
NEED_EXPONENT = 0.55
#: Dense 16-bit FLOPs a clock and SM, sums in fp32, of the generations (compute capability) whose boards differ in it.
#: Source: NVIDIA's white papers of Turing, GA102, AD102 and RTX Blackwell, as xla's cuda_core_info_table.cc has them.
_FULL_RATE: Mapping[str, float] = {"7.5": 1024.0, "8.6": 1024.0, "8.9": 1024.0, "12.0": 1024.0}
#: W per TFLOP/s of fp32 peak that a board needs to hold its clock in a long run of GEMMs, by compute capability or
#: architecture, where no board was measured: what one has (data sheet) that runs near its boost clock under load. GTX
#: 1080 Ti: 250 W, 11.3 TFLOP/s; V100 PCIe: 250 W, 14; TITAN RTX: 280 W, 16.3; A100 PCIe: 250 W, 19.5; RTX 4090: 450 W,
#: 82.6; H100 PCIe: 350 W, 51; RTX 5090: 575 W, 104.8. For 8.6, where even RTX 3090 slows, what a published cuBLAS
#: figure says of RTX A6000 (300 W): 23.2 TFLOP/s at 4096^3, over the 0.98 that u = 1 stands for (S. Boehm, "How to
#: Optimize a CUDA Matmul", 2022).
POWER_NEED = {
    "pascal": 22.1, "volta": 17.9, "turing": 17.2, "ampere": 12.8, "8.6": 12.7, "ada": 5.45, "hopper": 6.9,
    "blackwell": 5.5,
}  # fmt: skip
#: Share of the issue slots that multiply-adds get in a main loop with 8 x 8 outputs a thread: for each step of K 64 of
#: them, 4 loads of 16 bytes from shared memory, and about 1.3 for the next tile's copy. Source: CUTLASS' SIMT kernels.
ISSUE_SHARE = 64.0 / 69.3
_ONE_SLOT_A_LANE = ("8.6", "8.7", "8.9", "ada", "hopper", "blackwell")


@dataclass(frozen=True, slots=True)
class Device:
    """The scalars of a GPU that a core reads: FLOP/s of one dtype (already cut by power), bytes/s, bytes, SMs, Hz.

    ``tensor_rate`` is 0.5 where tensor cores of that dtype run at half of what their generation can, else 1.
    ``prologue``: steps of 64 elements of K in which a tile's pipeline of copies is filled and drained; a processor,
    whose caches fetch ahead by themselves, has none.
    """

    peak_flops: float
    bandwidth: float
    l2_bytes: float
    sms: float
    clock_hz: float
    tensor_rate: float = 1.0
    prologue: float = 2.0

    @staticmethod
    @lru_cache(maxsize=4096)
    def sheet(gpu: GPUSpec, flops: float = 0.0) -> Device:
        """The data sheet's rates as they stand, with so many FLOP/s."""
        return Device(flops, gpu.memory_bandwidth, float(gpu.l2_bytes), float(gpu.sm_count), gpu.boost_clock_hz)

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(gpu: GPUSpec, dtype: str) -> Device:
        """From a GPU's data sheet; a dtype without a peak computes as bf16, fp16 or fp32, the first that there is."""
        whole = Device.sheet(gpu, _peak(gpu, dtype) * sustained_share(gpu))
        prologue = 0.0 if gpu.architecture == PROCESSOR else whole.prologue
        return replace(whole, tensor_rate=tensor_rate(gpu, dtype), prologue=prologue)

    def sustaining(self, flops: Any = 1.0, bandwidth: Any = 1.0) -> Device:
        """This device at such shares of its FLOP/s and of its bytes/s."""
        rates = self.peak_flops * flops, self.bandwidth * bandwidth
        return Device(*rates, self.l2_bytes, self.sms, self.clock_hz, self.tensor_rate, self.prologue)

    @property
    def l2_bandwidth(self) -> float:
        """Bytes/s of all SMs' ports to L2: an upper limit."""
        return self.sms * L2_PORT_BYTES * self.clock_hz

    def slowed(self, factor: FloatArray | float) -> FloatArray | float:
        """How many times the time at peak some products take, where at full tensor rate it would be ``factor`` times.

        What keeps tensor cores waiting (loads, issue slots, softmax) takes its cycles whatever their rate, so at half
        the rate it is half as much of the time.
        """
        return factor if self.tensor_rate == 1.0 else 1.0 + self.tensor_rate * (factor - 1.0)


def tensor_rate(gpu: GPUSpec, dtype: str) -> float:
    """0.5 where the tensor cores do half of their generation's FLOPs a clock in ``dtype``, else 1.

    Graphics cards (GeForce, and L20) add 16-bit and 8-bit products up in fp32 at half of the rate of the same chip's
    other boards; 4-bit ones, and int8, at all of it.
    """
    full = _FULL_RATE.get(gpu.compute_capability or "")
    name = _computed_as(gpu, dtype)
    if full is None or not name or bytes_of(name) > 2:
        return 1.0
    share = gpu.peak_flops(name) * bytes_of(name) / 2.0 / (gpu.sm_count * gpu.boost_clock_hz * full)
    return 0.5 if 0.4 < share < 0.6 else 1.0


def issue_share(gpu: GPUSpec) -> float:
    """Share of the fp32 peak that the instruction issue leaves."""
    narrow = gpu.compute_capability in _ONE_SLOT_A_LANE or gpu.architecture in _ONE_SLOT_A_LANE
    return ISSUE_SHARE if narrow else 1.0


def sustained_share(gpu: GPUSpec, power_need: Mapping[str, float] | None = None) -> float:
    """Share of a peak, in (0, 1], that the power limit leaves in long runs: of the tensor cores, or of fp32 elsewhere.

    On the tensor cores the need is SMs x GHz x W, with W growing with the tensor cores of an SM; all dtypes alike,
    because a narrower one does more FLOPs with about the same power. ``power_need`` is for fp32 on the CUDA cores: it
    maps a compute capability or an architecture to W per TFLOP/s; one that it lacks is taken to hold its clock.
    """
    most = 1.0 if power_need is None else issue_share(gpu)
    if power_need is None:
        clocks = gpu.sm_count * gpu.boost_clock_hz
        watts = FULL_CLOCK_WATTS * (_peak(gpu, "bf16") / clocks / _WATTS_AT_FLOPS) ** NEED_EXPONENT
        need = clocks * 1e-9 * watts
    else:
        by_tflops = power_need.get(gpu.compute_capability or "", power_need.get(gpu.architecture, 0.0))
        need = gpu.peak_flops("fp32") / 1e12 * by_tflops
    return min(most, gpu.power_limit_w / need) if need else most


def _peak(gpu: GPUSpec, dtype: str) -> float:
    """FLOP/s of a dtype as it is computed; 0 where the GPU computes in none."""
    name = _computed_as(gpu, dtype)
    return gpu.peak_flops(name) if name else 0.0


def _computed_as(gpu: GPUSpec, dtype: str) -> str:
    """The dtype itself, or bf16, fp16 or fp32, the first that the GPU has a peak for; "" without any."""
    for name in (dtype, "bf16", "fp16", "fp32"):
        try:
            gpu.peak_flops(name)
        except UnsupportedError:
            continue
        return name
    return ""


def describe_device(gpu: GPUSpec, dtypes: Iterable[str]) -> dict[str, Any]:
    """What a manifest says of a measured GPU, so that others can find their sibling."""
    return {
        "compute_capability": gpu.compute_capability,
        "scalars": {dtype: asdict(Device.of(gpu, dtype)) for dtype in dtypes},
    }
