"""The share of its fp32 peak that a board sustains, from its data sheet.

A long run of fp32 GEMMs draws more than a board's power limit wherever the limit is low for the peak. The clock then
falls until the power fits: u = power limit / (peak x power per FLOP/s of the architecture).

From compute capability 8.6 on (8.0 aside), each of an SM's four schedulers issues one instruction a clock and feeds 32
fp32 lanes, so that a multiply-add takes every issue slot and all other instructions of the main loop cost time. Older
SMs issue two (Maxwell, Pascal) or have half the lanes (Volta, Turing, 8.0), and hide them.
"""

from __future__ import annotations

from collections.abc import Mapping

from predictor.hardware.gpu import GPUSpec

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


def issue_share(gpu: GPUSpec) -> float:
    """Share of the fp32 peak that the instruction issue leaves."""
    narrow = gpu.compute_capability in _ONE_SLOT_A_LANE or gpu.architecture in _ONE_SLOT_A_LANE
    return ISSUE_SHARE if narrow else 1.0


def sustained_share(gpu: GPUSpec, power_need: Mapping[str, float]) -> float:
    """u from the data sheet: power limit over the power that the fp32 peak needs, at most what can be issued.

    ``power_need`` maps a compute capability or an architecture to W per TFLOP/s; one that it lacks is taken to hold
    its clock.
    """
    need = power_need.get(gpu.compute_capability or "", power_need.get(gpu.architecture))
    if need is None:
        return issue_share(gpu)
    return min(issue_share(gpu), gpu.power_limit_w / (gpu.peak_flops("fp32") / 1e12 * need))
