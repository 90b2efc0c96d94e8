"""The board itself: a virtual clock of host and streams, kernels' durations, caches, power, faults. No torch.

Times are seconds of the virtual clock. A kernel takes as long as the roofline of its FLOP and bytes says, a quarter
longer, and a microsecond and a half to begin; what lies in L2 moves four times as fast. A board above its power limit
clocks down, as `Power` says.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

GIB = 2**30


class Lost(RuntimeError):
    """What PyTorch raises for an error of CUDA."""


@dataclass(slots=True)
class Kernel:
    """One launch: FLOP, the dtype's rate in FLOP/s, (storage, bytes) of what it touches."""

    name: str
    flops: float = 0.0
    rate: float = 6e13
    touched: tuple[tuple[int, int], ...] = ()
    fixed_s: float = 0.0

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.touched)


@dataclass(slots=True)
class Power:
    """Average power of the last tens of milliseconds against the limit; above it the clock falls."""

    limit_w: float = 700.0
    idle_w: float = 90.0
    full_w: float = 1250.0  # of the matrix units at the highest clock
    time_constant_s: float = 0.05
    average_w: float = 90.0
    energy_j: float = 0.0
    at: float = 0.0

    def pass_time(self, until: float, watts: float) -> None:
        span = max(0.0, until - self.at)
        self.average_w += (watts - self.average_w) * -math.expm1(-span / self.time_constant_s)
        self.energy_j += watts * span
        self.at = max(until, self.at)

    def governed(self, share: float, seconds: float) -> float:
        """The share of the highest clock after ``seconds`` at ``share``: down while the average is above the limit."""
        above = (self.average_w - self.limit_w) / self.limit_w
        return min(1.0, max(0.4, share - 0.6 * above * min(1.0, seconds / 0.01)))


@dataclass(slots=True)
class Board:
    """One simulated board and the host that drives it."""

    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str = "GPU-5117ab1e-0000-0000-0000-000000000000"
    capability: tuple[int, int] = (9, 0)
    sms: int = 132
    memory_bytes: int = 80 * GIB
    l2_bytes: int = 50 * 2**20
    told_l2_bytes: int = 0  # what PyTorch says of it; 0: the truth
    gfx: str = ""  # of AMD's boards: gcnArchName
    rate: float = 1.0  # of its matrix units, over the H100's
    shared_bytes: int = 227 * 1024  # of a block, Hopper's: CUDA Programming Guide, table of capabilities
    spin_hz: float = 0.0  # of the clock that `_sleep` counts; 0: the SMs'
    bandwidth: float = 3.35e12
    l2_bandwidth: float = 1.2e13
    clock_hz: float = 1.98e9
    memory_clock_hz: float = 2.619e9
    launch_s: float = 3e-6  # of the host, an operator
    power: Power = field(default_factory=Power)
    forced_reasons: int = 0  # bits of NVML's throttle reasons, beside those of the power
    cupti: bool = False  # attached: every kernel takes longer, until the process ends
    fault_at: dict[int, str] = field(default_factory=dict)  # number of a kernel -> "illegal", "launch"
    capture_faults: set[int] = field(default_factory=set)  # numbers of captures that fail
    lost: str = ""
    host_s: float = 1000.0
    sensor_s: float = 0.0  # of the host, a look at the board's clock
    rested_s: float = 0.0  # that nothing ran so far
    launched: int = 0
    captures: int = 0
    replays: int = 0
    clock_share: float = 1.0
    tails: dict[int, float] = field(default_factory=dict)
    resident: OrderedDict[int, int] = field(default_factory=OrderedDict)
    trace: list[tuple[Kernel, float, float]] | None = None

    # ---------------------------------------------------------------------------------------------------------- host

    def now(self) -> float:
        """The host's clock; reading it takes 50 ns."""
        self.host_s += 5e-8
        return self.host_s

    def wait(self, seconds: float) -> None:
        self.host_s += seconds

    def check(self) -> None:
        """A lost context fails whatever is asked of it."""
        if self.lost:
            raise Lost(f"CUDA error: {self.lost}\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.")

    def synchronize(self, stream: int | None = None) -> None:
        self.check()
        tails = self.tails.values() if stream is None else [self.tails.get(stream, 0.0)]
        self.host_s = max([self.host_s, *tails]) + 2e-6
        self.check()

    # ------------------------------------------------------------------------------------------------------- kernels

    def launch(self, kernel: Kernel, stream: int) -> None:
        """Queues a kernel on ``stream``. Its error, if it has one, comes with the next call, as CUDA's do."""
        self.check()
        self.host_s += self.launch_s
        self.launched += 1
        fault = self.fault_at.get(self.launched)
        if fault == "illegal":
            self.lost = "an illegal memory access was encountered"
            return
        if fault == "launch":
            self.lost = "unspecified launch failure"
            return
        self.run(kernel, stream)

    def run(self, kernel: Kernel, stream: int) -> None:
        begin = max(self.tails.get(stream, 0.0), self.host_s)
        self.idle(begin)
        seconds = self.seconds(kernel)
        self.tails[stream] = begin + seconds
        compute = kernel.flops / (kernel.rate * self.clock_share) / seconds if kernel.rate else 0.0
        share = self.clock_share**2
        watts = self.power.idle_w + (self.power.full_w - self.power.idle_w) * max(compute, 0.45) * share
        self.power.pass_time(begin + seconds, watts)
        self.clock_share = self.power.governed(self.clock_share, seconds)
        if self.trace is not None:
            self.trace.append((kernel, begin, seconds))

    def idle(self, until: float) -> None:
        """Nothing runs until then: power falls, and the clock is free again after a tenth of a second."""
        span = max(0.0, until - self.power.at)
        self.rested_s += span
        self.power.pass_time(until, self.power.idle_w)
        self.clock_share = min(1.0, self.clock_share + 5.0 * span)

    @property
    def capped(self) -> bool:
        return self.clock_share < 0.995

    def seconds(self, kernel: Kernel) -> float:
        """What the kernel takes now; what it touched lies in L2 afterwards."""
        missed = self._touch(kernel.touched)
        # Nothing moves faster than the roofline of memory, which counts no cache but for what may lie in L2.
        memory = missed / self.bandwidth + (kernel.bytes - missed) / self.l2_bandwidth
        ideal = kernel.flops / kernel.rate if kernel.rate else 0.0
        body = max(1.25 * ideal / self.clock_share, 1.25 * memory)
        return 1.5e-6 + body + kernel.fixed_s + (1.2e-6 if self.cupti else 0.0)

    def _touch(self, touched: Iterable[tuple[int, int]]) -> int:
        missed = 0
        for storage, size in touched:
            held = self.resident.pop(storage, 0)
            missed += max(0, size - held)
            self.resident[storage] = min(max(size, held), self.l2_bytes)
        taken = sum(self.resident.values())
        while taken > self.l2_bytes and len(self.resident) > 1:
            taken -= self.resident.popitem(last=False)[1]
        return missed

    def spin(self, cycles: int, stream: int) -> None:
        """`torch.cuda._sleep`: so many clocks."""
        self.launch(Kernel("spin_kernel", fixed_s=cycles / (self.spin_hz or self.clock_hz)), stream)

    def reasons(self) -> int:
        """NVML's bits: 0x1 idle, 0x4 the power cap; and what a test forces."""
        return self.forced_reasons | (0x4 if self.capped else 0x0)
