"""What the cores read of a GPU: the data sheet's rates, cut to what a board sustains.

A long run of products draws more than a board's power limit wherever the limit is low for the peak. The clock then
falls until the power fits: share = power limit / power that the peak needs, of the tensor cores as of the CUDA cores.

From compute capability 8.6 on, each of an SM's four schedulers feeds 32 fp32 lanes from two register banks, which give
two of a multiply-add's three operands a clock: a product takes 1.5 clocks where the lanes need one, and 2/3 of the peak
is what is left. A100 (8.0), Volta and Turing have half the lanes, Maxwell and Pascal twice the banks (`loop_share`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from predictor.errors import UnsupportedError
from predictor.files.records import dataclass, replace
from predictor.formats.dtypes import bytes_of
from predictor.hardware.generation import fetches_tiles, memory_latency_s
from predictor.hardware.gpu import L2_PORT_BYTES, GPUSpec
from predictor.ops.roofline import FloatArray

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
#: Rows of the smallest tile of mma.sync; source: PTX ISA, mma.m16n8k16. wgmma has 64, tcgen05 128.
MMA_ROWS = 16.0
#: A peak from this share of the full rate on is that rate at a clock below the boost clock, as data sheets quote it:
#: the lowest is H100 NVL's, 0.87. No board has 0.5 to 0.87.
_WHOLE_RATE = 0.85
#: Share of what the boost clock needs that is drawn at any clock, rounded from two pairs of clocks held under load,
#: where the rest goes with the cube: RTX PRO 6000 2,338 MHz at 600 W and 1,641 at 300 W, 0.21; MI300X 1,207 MHz at
#: 750 W and MI325X, the same chip, 1,447 at 1,000 W in bf16, 0.18. Source: a server's log of 2026; ROCm blog,
#: "Measuring max-achievable FLOPs", part 2.
STATIC = 0.2
#: Bytes of check bits among 16 of memory where ECC has no lanes of its own, which are read with the data; source:
#: nvidia-smi, 46,068 of an A40's 49,140 MiB with ECC on. Shares of the bandwidth are learned on boards with HBM, whose
#: check bits lie apart, and on GDDR6 with them inside (15/16 of the data sheet at best); without them, all is data.
_CHECK_BYTES = 1.0
#: What reads reach of HBM's data-sheet rate, over what they reach of GDDR's, rounded. Source: RRZE-HPC/gpu-benches
#: gpu-stream and gpu-l2-cache, and a B200 note: A40 and L40 0.98; A100 80 GB 0.87, H100 PCIe 0.95, H200 0.81, B200
#: 0.88. With 0.85 products on boards left out come out alike (benchmarks/results/accuracy-2026-11-23.md,
#: What products read).
_STACKED = 0.9
#: What reads reach of GDDR's data-sheet rate that check bits leave. Source: as that of `_STACKED`.
_READS = 0.98
#: Share of an SM's shared memory that copies in flight fill: kernels have 3 to 5 stages of a tile, of which the others
#: are read or wait. Chosen by hand, not from data; 0.2 and 0.28 do alike on A100, L40S and RTX PRO 6000 left out.
_IN_FLIGHT = 0.25
#: Share of the need, by definition of the power law, below which a board that ran all of its SMs would do less than one
#: that runs some: what f of N SMs do at P watts, N f with P / N = static + (1 - static) f^3, is most where P / N is 3/2
#: of the static part.
_ALL_RUN = 1.5 * STATIC
#: W per TFLOP/s of fp32 peak that a board needs to hold its clock in a long run of GEMMs, by architecture, where no
#: board was measured: what one has (data sheet) that runs near its boost clock under load. GTX 1080 Ti: 250 W,
#: 11.3 TFLOP/s; V100 PCIe: 250 W, 14; TITAN RTX: 280 W, 16.3; A100 PCIe: 250 W, 19.5. In proportion to the clock: the
#: measured boards that power holds (P4, T4) run below 900 MHz, where their voltage does not fall any more, as it seems.
POWER_NEED = {"pascal": 22.1, "volta": 17.9, "turing": 17.2, "ampere": 12.8}
#: The same of boards whose registers feed two lanes of three (`loop_share`), by compute capability or architecture,
#: where the clock is held as under tensor cores. RTX 4090: 450 W, 82.6 TFLOP/s; H100 PCIe: 350 W, 51; RTX 5090: 575 W,
#: 104.8. For 8.6, where even RTX 3090 slows, solved for at RTX A6000's published cuBLAS figure (300 W, peak 38.7):
#: 23.2 TFLOP/s at 4096^3 are 0.92 of its clock at 0.98 of what the registers leave. Source: S. Boehm, "How to Optimize
#: a CUDA Matmul", 2022.
LANE_NEED = {"8.6": 9.46, "ada": 5.45, "hopper": 6.9, "blackwell": 5.5}
#: A step of K in a warp's main loop with 8 x 8 outputs a thread: multiply-adds; instructions beside them (4 loads of
#: 16 bytes a thread from shared memory, and about 1.3 for the next tile's copy); distinct bytes of the fragments of 32
#: rows and 64 columns; operands of a multiply-add. Source: CUTLASS' SIMT kernels.
_MULTIPLY_ADDS, _OTHERS, _FRAGMENTS, _OPERANDS = 64.0, 5.3, 4.0 * (32 + 64), 3.0


@dataclass(frozen=True, slots=True)
class Device:
    """The scalars of a GPU that a core reads: FLOP/s of one dtype (already cut by power), bytes/s, bytes, SMs, Hz.

    ``tensor_rate``: of that dtype over what tensor cores of its generation can, at most 1.
    ``prologue``: steps of 64 elements of K in which a tile's pipeline of copies is filled and drained; a processor,
    whose caches fetch ahead by themselves, has none. ``memory_latency_s``: of one dependent load from device memory.
    ``tile_rows``: of the smallest tile of a tensor-core instruction. ``fed``: of ``bandwidth``, what a product's copies
    find (`fed_share`).
    """

    peak_flops: float
    bandwidth: float
    l2_bytes: float
    sms: float
    clock_hz: float
    tensor_rate: float = 1.0
    prologue: float = 2.0
    memory_latency_s: float = 0.0
    tile_rows: float = MMA_ROWS
    fed: float = 1.0

    def resident(self, moved: FloatArray, share: float, sharpness: float = 4.0) -> FloatArray:
        """The part of ``moved`` bytes (n,) that L2 holds: half where they fill ``share`` of it.

        How sharply they leave it was chosen by hand, not from data.
        """
        result: FloatArray = 1.0 / (1.0 + (moved / (share * self.l2_bytes)) ** sharpness)
        return result

    @staticmethod
    @lru_cache(maxsize=4096)
    def sheet(gpu: GPUSpec, flops: float = 0.0) -> Device:
        """The data sheet's rates as they stand, with so many FLOP/s."""
        bandwidth = gpu.memory_bandwidth * (16.0 / (16.0 - _CHECK_BYTES) if gpu.ecc == "off" else 1.0)
        rates = flops, bandwidth, float(gpu.l2_bytes), float(gpu.sm_count), gpu.boost_clock_hz
        return Device(*rates, memory_latency_s=memory_latency_s(gpu))

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(gpu: GPUSpec, dtype: str) -> Device:
        """From a GPU's data sheet; a dtype without a peak computes as bf16, fp16 or fp32, the first that there is."""
        whole = Device.sheet(gpu, _peak(gpu, dtype) * sustained_share(gpu))
        prologue = 0.0 if gpu.architecture == PROCESSOR else whole.prologue
        rows = float(gpu.matrix_tile_rows or MMA_ROWS)
        rate = tensor_rate(gpu, dtype)
        return replace(whole, tensor_rate=rate, prologue=prologue, tile_rows=rows, fed=fed_share(gpu))

    def varied(self, before: Device, after: Device) -> Device:
        """This device as it changes where a board's scalars go from ``before`` to ``after``.

        How its kernels feed the tensor cores stays that of the board (`tensor_rate`, `tile_rows`, `prologue`).
        """
        names = ("peak_flops", "bandwidth", "l2_bytes", "sms", "clock_hz", "fed", "memory_latency_s")
        changes = {name: (getattr(before, name), getattr(after, name)) for name in names}
        moved = {name: (old, new) for name, (old, new) in changes.items() if new != old}
        scaled = {name: getattr(self, name) * (new / old) if old else new for name, (old, new) in moved.items()}
        return replace(self, **scaled)

    def sustaining(self, flops: Any = 1.0, bandwidth: Any = 1.0) -> Device:
        """This device at such shares of its FLOP/s and of its bytes/s."""
        return replace(self, peak_flops=self.peak_flops * flops, bandwidth=self.bandwidth * bandwidth)

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


def fed_share(gpu: GPUSpec) -> float:
    """The share of `Device.bandwidth`, in (0, 1], that memory, its check bits and copies in flight leave to products.

    Copies that a kernel's warps ask for themselves keep ``_IN_FLIGHT`` of shared memory under way, and each takes the
    time of its bytes after that of the way to memory: a board whose SMs need more in that time gets less of its memory.

    >>> from predictor.hardware.gpu import load_gpu
    >>> [round(fed_share(load_gpu(name)), 2) for name in ("l40s", "a100", "rtx-pro-6000", "h100", "mi300x")]
    [0.89, 0.78, 0.93, 0.9, 0.62]
    """
    share = _left_by_memory(gpu)
    if fetches_tiles(gpu) or not gpu.shared_memory_per_sm_bytes:
        return share
    needed = gpu.memory_bandwidth * memory_latency_s(gpu) / gpu.sm_count
    return share / (1.0 + needed / (_IN_FLIGHT * gpu.shared_memory_per_sm_bytes))


def read_share(gpu: GPUSpec) -> float:
    """The share of `Device.bandwidth`, in (0, 1], that reads reach which are never short of copies in flight.

    >>> from predictor.hardware.gpu import load_gpu
    >>> [round(read_share(load_gpu(name)), 2) for name in ("l40s", "a100", "b200")]
    [0.92, 0.88, 0.88]
    """
    return _READS * _left_by_memory(gpu)


def _left_by_memory(gpu: GPUSpec) -> float:
    """What memory and its check bits leave, over what GDDR without them does."""
    share = _STACKED if (gpu.memory_type or "").startswith("HBM") else 1.0
    if gpu.ecc in ("inline", "off"):  # `sheet` has what is left without them
        share *= 1.0 - _CHECK_BYTES / 16.0
    return share


def tensor_rate(gpu: GPUSpec, dtype: str) -> float:
    """The share of their generation's FLOPs a clock that the tensor cores do in ``dtype``, in (0, 1].

    Graphics cards (GeForce, and L20) add 16-bit and 8-bit products up in fp32 at half of the rate of the same chip's
    other boards; 4-bit ones, and int8, at all of it. An H20 has a quarter of an H100's rate an SM, B300 next to none
    in int8.
    """
    full = gpu.matrix_rates.get("fp16") if gpu.compute_capability else None  # elsewhere int8 may do no more than fp16
    name = _computed_as(gpu, dtype)
    if full is None or not name or bytes_of(name) > 2:
        return 1.0
    share = gpu.peak_flops(name) * bytes_of(name) / 2.0 / (gpu.sm_count * gpu.boost_clock_hz * full)
    return share if share < _WHOLE_RATE else 1.0


@lru_cache(maxsize=4096)
def loop_share(gpu: GPUSpec) -> float:
    """Share of the fp32 peak that the slowest part of an SM leaves a main loop, in (0, 1].

    Clocks of a step on the lanes, over the longest of it on lanes, issue slots, shared memory and registers. What the
    catalogue does not tell of a board bounds nothing.
    """
    if gpu.lanes_per_sm is None or gpu.warp_threads is None:
        return 1.0
    lanes = _MULTIPLY_ADDS * gpu.warp_threads / gpu.lanes_per_sm
    parts = (
        (_MULTIPLY_ADDS + _OTHERS, gpu.issue_slots_per_clock), (_FRAGMENTS, gpu.shared_memory_bytes_per_clock),
        (_MULTIPLY_ADDS * _OPERANDS, gpu.register_operands_per_clock),
    )  # fmt: skip
    return lanes / max([lanes, *(count / rate for count, rate in parts if rate)])


def clock_left(power: float) -> float:
    """The cube of the clock that ``power`` holds, a share of what the boost clock needs, over the boost clock's.

    It falls no further below `_ALL_RUN`, where some of the SMs are off (`sms_left`).
    """
    return (max(power, _ALL_RUN) - STATIC) / (1.0 - STATIC)


def sms_left(power: float) -> float:
    """The share of the SMs that ``power``, a share of the need of all of them at the boost clock, lets run.

    >>> round(sms_left(0.3), 3), round(sms_left(0.15), 3)
    (1.0, 0.5)
    """
    return min(1.0, power / _ALL_RUN)


def work_left(power: float) -> float:
    """What ``power``, a share of the need of all SMs at the boost clock, leaves of their work, at most all of it.

    Below `_ALL_RUN` some of the SMs run, at the clock that is best for them, and the others are off: a larger board
    never does less at the same watts.

    >>> round(work_left(1.0), 3), round(work_left(0.3), 3), round(work_left(0.15), 3)
    (1.0, 0.5, 0.25)
    """
    return min(1.0, float(clock_left(power) ** (1.0 / 3.0))) * sms_left(power)


def sustained_share(gpu: GPUSpec, power_need: Mapping[str, float] | None = None) -> float:
    """Share of a peak, in (0, 1], that the power limit leaves in long runs: of the tensor cores, or of fp32 elsewhere.

    On the tensor cores the need is SMs x GHz x W, with W growing with the tensor cores of an SM; all dtypes alike,
    because a narrower one does more FLOPs with about the same power. ``power_need`` is for fp32 on the CUDA cores: it
    maps an architecture to W per TFLOP/s; one that it lacks is taken to hold its clock. Boards whose registers hold
    them back have their own (`LANE_NEED`).
    """
    if power_need is not None and (loop := loop_share(gpu)) < 1.0:
        by_tflops = LANE_NEED.get(gpu.compute_capability or "", LANE_NEED.get(gpu.architecture, 0.0))
        need = gpu.peak_flops("fp32") / 1e12 * by_tflops
        return loop * work_left(gpu.power_limit_w / need) if need else loop
    if power_need is not None:
        need = gpu.peak_flops("fp32") / 1e12 * power_need.get(gpu.architecture, 0.0)
    else:
        need = tensor_need(gpu)
    return min(1.0, gpu.power_limit_w / need) if need else 1.0


def tensor_need(gpu: GPUSpec) -> float:
    """Watts that the tensor cores need to hold the boost clock in products of middling rate: SMs x GHz x W, with W
    growing with the tensor cores of an SM; 0 where the GPU has no peak in 16 bits or more."""
    clocks = gpu.sm_count * gpu.boost_clock_hz
    watts = FULL_CLOCK_WATTS * (_peak(gpu, "bf16") / clocks / _WATTS_AT_FLOPS) ** NEED_EXPONENT
    return clocks * 1e-9 * watts


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
