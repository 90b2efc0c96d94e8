"""The roofline: the time below which no kernel can run, whatever sits in the cache.

Four ceilings bound a kernel from below (Williams et al., 2009, with the L2 cache as a level of its own):

* compute: FLOP of the cheapest algorithm / dense peak of the unit that does them;
* DRAM: what the L2 cache cannot have held, (bytes - L2 capacity) / DRAM bandwidth. A kernel may find its inputs in L2
  and leave its outputs there, so only the traffic beyond the cache's capacity is compulsory;
* L2: every byte passes the ports between the SMs and L2, bytes / L2 bandwidth;
* link: what a collective sends to other GPUs, bytes / link bandwidth.

The bound is their maximum. ``cold_s`` is the usual roofline (nothing cached): max(compute, bytes / DRAM bandwidth,
link); it names what bounds an operator and is the fallback where no estimator answers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from predictor.files.records import dataclass
from predictor.hardware.gpu import GPUSpec
from predictor.ops.base import Op

FloatArray = npt.NDArray[np.float64]

#: A measured row is faster than the bound from this ratio of its time to the bound downwards: chosen by hand, not from
#: data.
TOLERANCE = 0.98


@dataclass(frozen=True, slots=True)
class Roofline:
    """Bounds of n operators on one GPU, in seconds, each of shape (n,)."""

    compute_s: FloatArray
    dram_s: FloatArray  # all bytes through DRAM, and rows picked in no order as often as L2 misses them
    link_s: FloatArray  # 0 for what runs on one GPU
    lower_bound_s: FloatArray

    @property
    def cold_s(self) -> FloatArray:
        """Time of a perfect kernel with a cold cache."""
        return np.maximum(np.maximum(self.compute_s, self.dram_s), self.link_s)


def peak_for(op: Op, gpu: GPUSpec) -> float:
    """Dense peak FLOP/s of the unit that runs ``op`` on ``gpu``; UnsupportedError where the GPU lacks the dtype."""
    if op.unit == "matrix":
        return gpu.peak_flops(op.dtype)
    return gpu.vector_flops(op.dtype)


def ridge_point(gpu: GPUSpec, dtype: str) -> float:
    """Arithmetic intensity (FLOP/byte) from which on a kernel of ``dtype`` is bound by compute.

    >>> from predictor.hardware.gpu import load_gpu
    >>> round(ridge_point(load_gpu("h100"), "bf16"))
    295
    """
    return gpu.peak_flops(dtype) / gpu.memory_bandwidth


def roofline(ops: Sequence[Op], gpu: GPUSpec) -> Roofline:
    """Bounds of every operator of ``ops`` on ``gpu``."""
    peaks: dict[tuple[str, str], float] = {}
    rate = np.empty(len(ops))
    flops = np.empty(len(ops))
    moved = np.empty(len(ops))
    missed = np.zeros(len(ops))
    link = np.empty(len(ops))
    for i, op in enumerate(ops):
        key = (op.unit, op.dtype)
        peak = peaks.get(key)
        if peak is None:
            peak = peaks[key] = peak_for(op, gpu)
        rate[i] = peak
        flops[i] = op.least_flops()
        moved[i] = op.bytes_read() + op.bytes_written()
        missed[i] = op.missed_bytes(gpu.l2_bytes)
        link[i] = op.link_seconds()
    compute = flops / rate
    dram = (moved + missed) / gpu.memory_bandwidth
    beyond_cache = np.maximum(moved - gpu.l2_bytes, 0.0) / gpu.memory_bandwidth
    bound = np.maximum(np.maximum(compute, beyond_cache), np.maximum(moved / gpu.l2_bandwidth, link))
    return Roofline(compute, dram, link, np.maximum(bound, 1e-12))


def bound_name(compute_s: float, dram_s: float, latency_s: float, link_s: float = 0.0) -> str:
    """What bounds an operator: "compute", "memory", "link", or "latency" where it runs far above every ceiling.

    A kernel that takes more than four times its cold roofline and less than 20 microseconds is waiting for launches,
    pipelines and tails, not for a ceiling; a collective, up to 100 microseconds, for its hops.
    """
    ceiling = max(compute_s, dram_s, link_s)
    if latency_s > 4.0 * ceiling and latency_s < (100e-6 if link_s > 0.0 else 20e-6):
        return "latency"
    if link_s > 0.0 and link_s >= max(compute_s, dram_s):
        return "link"
    return "compute" if compute_s >= dram_s else "memory"
