"""GEMM of serving frameworks, whose tiles nobody recorded: waves of candidate tiles, then boosted trees.

The core is a minimum over tile shapes and split-K: waves on the SMs x K loop of a tile, against the bytes through DRAM
or L2, plus a fixed number of clock cycles. Weights that fit in L2 several times over are read from it, because the
measurements rotate a few copies of them; others come from DRAM. Where activations are narrower than 16 bit, the
framework quantizes them in a kernel of its own first, and the measured time holds both: see `quantize_time`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictor import engines
from predictor.estimators.base import Batch
from predictor.estimators.residual import (
    Device,
    FloatArray,
    ServingEstimator,
    by_variant,
)
from predictor.hardware.gpu import GPUSpec
from predictor.quantization import activation_bytes, variant, weight_bytes

#: Constants of the core, in the order in which an artifact holds their logarithms.
CONSTANTS = (
    "compute_efficiency",  # of the peak, for an endless tile
    "dram_efficiency",
    "l2_bytes_per_s_per_sm",  # rate at which an SM is fed from L2
    "overhead_cycles",  # launch, prologue and write-out
    "tile_penalty",  # in elements: a tile runs at 1 / (1 + penalty * (1/tm + 1/tn)) of the efficiency
    "step_cycles",  # shortest time of a step of the K loop
    "resident_share",  # weights below this share of L2 are found there
    "split_cycles",  # cost of each doubling of split-K
    "smallest_tile",  # elements of C: a smaller tile takes as long as one of so many; older artifacts have none
    "quantize_cycles",  # launch of the kernel that quantizes activations; older artifacts have none of these three
    "quantize_row_cycles",  # of an SM, for each row of A
    "quantize_passes",  # over the bytes of A, read in 16 bit and written narrower
)

# Candidate tiles of the core, rows x columns of C, each with 1, 2, 4 or 8 splits of K.
_TILES = np.array(
    [[256, 128], [128, 256], [128, 128], [128, 64], [64, 128], [64, 64], [64, 256], [32, 64], [64, 32], [16, 64],
     [16, 128]], dtype=np.float64,
)  # fmt: skip
_SPLITS = np.array([1.0, 2.0, 4.0, 8.0])
_NORM = 3.0  # compute and memory time join as a p-norm: softer than the larger, harder than the sum

# Tiles whose waves and wave efficiency are features.
_SHOWN_M = np.array([64.0, 128, 128, 256, 256, 192, 16, 32, 64, 128])
_SHOWN_N = np.array([64.0, 64, 128, 128, 256, 128, 128, 128, 256, 256])
_LARGE = [2, 3, 4, 9]  # of them, those large enough to reach the peak

FEATURES = (
    "log2_m", "log2_n", "log2_k", "log2_compute_s", "log2_memory_s", "log2_longer_s", "log2_compute_over_memory",
    "log2_intensity", "log2_weights_over_l2", "log2_bytes_over_l2", "log2_activations_over_l2", "pad_m_8", "pad_m_64",
    "pad_m_128", "pad_n_64", "pad_n_256", "gcd_m", "gcd_n", "gcd_k", "best_tile", "log2_tiles_128",
    *(f"log2_waves_{int(m)}x{int(n)}" for m, n in zip(_SHOWN_M, _SHOWN_N, strict=True)),
    *(f"wave_efficiency_{int(m)}x{int(n)}" for m, n in zip(_SHOWN_M, _SHOWN_N, strict=True)),
    "framework",
)  # fmt: skip


BLOCKED = "fp8_block"


@dataclass(frozen=True, slots=True)
class Shapes:
    """n products: ``batch``, ``m``, ``n``, ``k`` of shape (n,), and the bytes of an element of A and of B.

    ``blocked``: sums leave the tensor cores after every 128 elements of K, to be scaled.
    """

    batch: FloatArray
    m: FloatArray
    n: FloatArray
    k: FloatArray
    itemsize: float
    weight_itemsize: float
    blocked: bool = False

    @property
    def step(self) -> float:
        """Of the time of a step of the K loop, what 64 elements of K take: tiles are 128 bytes of K deep.

        Scaling the sums of a block takes as long as a step again.
        """
        return 1.0 if self.blocked else min(1.0, self.itemsize / 2.0)

    @property
    def weights(self) -> FloatArray:
        """Bytes of B."""
        return self.batch * self.n * self.k * self.weight_itemsize

    @property
    def activations(self) -> FloatArray:
        """Bytes of A and C; C is written in 16 bit or wider."""
        return self.batch * self.m * (self.k * self.itemsize + self.n * max(self.itemsize, 2.0))


@dataclass(frozen=True, slots=True)
class CoreTime:
    """Seconds of the core and of its two parts, each of shape (n,)."""

    total: FloatArray
    compute: FloatArray
    memory: FloatArray


def core_time(shapes: Shapes, device: Device, log_constants: FloatArray) -> CoreTime:
    """The physical core; ``log_constants`` are the logarithms of ``CONSTANTS``."""
    ec, ed, l2_rate, cycles, penalty, step_cycles, share, split_cycles = np.exp(log_constants[:8])
    smallest = np.exp(log_constants[8]) if len(log_constants) > 8 else 0.0
    ec = min(ec, 1.0)
    tm, tn = _TILES[:, 0], _TILES[:, 1]
    tiles = shapes.batch[:, None] * np.ceil(shapes.m[:, None] / tm) * np.ceil(shapes.n[:, None] / tn)
    elements = np.maximum(tm * tn * device.slowed((1 + penalty * (1 / tm + 1 / tn)) / ec), smallest)
    step = 128.0 * elements * (device.sms / device.peak_flops)
    shortest = shapes.step if len(log_constants) > 9 else 1.0  # older artifacts count 64 elements of K, however wide
    step = np.maximum(step, shortest * step_cycles / device.clock_hz)
    waves = np.ceil(tiles[:, None, :] * (_SPLITS[:, None] / device.sms))  # (n, splits, tiles)
    per_wave = (waves * step).min(axis=2)
    loop = shapes.k[:, None] / (64.0 * _SPLITS) + 2.0
    times = per_wave * loop + split_cycles / device.clock_hz * np.log2(_SPLITS)
    times[:, 1:][shapes.k[:, None] < 256.0 * _SPLITS[1:]] = np.inf
    compute = times.min(axis=1)
    weights, activations = shapes.weights, shapes.activations
    dram = device.bandwidth * ed
    l2 = max(device.sms * l2_rate, dram)
    resident = 1.0 / (1.0 + (weights / (share * device.l2_bytes)) ** 4)
    memory = weights * (1 - resident) / dram + (weights * resident + activations) / l2
    memory = np.maximum(memory, np.maximum(weights + activations - 0.5 * device.l2_bytes, 0.0) / dram)
    total = (compute**_NORM + memory**_NORM) ** (1 / _NORM) + cycles / device.clock_hz
    if len(log_constants) > 9 and shapes.itemsize < 2:
        total += quantize_time(shapes, device, log_constants[9:], l2, dram)
    return CoreTime(total, compute, memory)


def quantize_time(shapes: Shapes, device: Device, log_constants: FloatArray, l2: float, dram: float) -> FloatArray:
    """Seconds, (n,), of the kernel that quantizes A; ``l2`` and ``dram`` in bytes/s, constants the last three.

    Such kernels give each row to a block, whose own cost an SM pays one row after the other: some 1,800 cycles in
    vLLM's (dynamic scales a token) on H100, L40S and RTX PRO 6000 alike, a tenth of it in others. Long rows take as
    long as their bytes, a little more often than once. What was written last is still in L2.
    """
    launch, row, passes = np.exp(log_constants)
    rows = shapes.batch * shapes.m
    moved = rows * shapes.k * (2.0 + shapes.itemsize) * passes
    of_bytes = np.maximum(moved / l2, np.maximum(moved - 0.5 * device.l2_bytes, 0.0) / dram)
    of_rows = rows * (row / (device.sms * device.clock_hz))
    seconds: FloatArray = np.hypot(of_bytes, of_rows) + launch / device.clock_hz
    return seconds


def features(shapes: Shapes, device: Device, core: CoreTime, framework: int) -> FloatArray:
    """The boosters' inputs of shape (n, len(FEATURES)): no unit of a GPU stands in them but as a ratio or a time."""
    m, n, k = shapes.m, shapes.n, shapes.k
    weights, activations = shapes.weights, shapes.activations
    moved = weights + activations
    flops = 2.0 * shapes.batch * m * n * k
    tiles = shapes.batch[:, None] * np.ceil(m[:, None] / _SHOWN_M) * np.ceil(n[:, None] / _SHOWN_N)
    waves = tiles / device.sms
    efficiency = waves / np.ceil(waves)
    filled = efficiency * (shapes.batch * m * n)[:, None] / (tiles * (_SHOWN_M * _SHOWN_N))
    shown = _SHOWN_M.size
    out = np.empty((m.size, len(FEATURES)))
    logs = out[:, :11]
    logs[:, 0], logs[:, 1], logs[:, 2] = m, n, k
    logs[:, 3], logs[:, 4] = core.compute, core.memory
    logs[:, 5] = np.maximum(core.compute, core.memory)
    logs[:, 6] = core.compute / core.memory
    logs[:, 7] = flops / moved
    logs[:, 8] = weights / device.l2_bytes
    logs[:, 9] = moved / device.l2_bytes
    logs[:, 10] = activations / device.l2_bytes
    np.log2(logs, out=logs)
    for column, (size, tile) in enumerate(((m, 8.0), (m, 64.0), (m, 128.0), (n, 64.0), (n, 256.0)), start=11):
        out[:, column] = size / (np.ceil(size / tile) * tile)
    table = np.array((m, n, k), dtype=np.int64).T
    out[:, 16:19] = np.gcd(table, 256)
    out[:, 19] = filled[:, _LARGE].max(axis=1)
    out[:, 20] = np.log2(shapes.batch * m * n / (16384.0 * device.sms))
    out[:, 21 : 21 + shown] = np.log2(waves)
    out[:, 21 + shown : 21 + 2 * shown] = efficiency
    out[:, -1] = framework
    return out


class ServingGemm(ServingEstimator):
    """Seconds of GEMMs with serving kernels; fp16 is answered as bf16, eager PyTorch as vLLM's linear layer."""

    def seconds(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        """Kernel time, shape (n,)."""
        seconds = np.empty(len(batch.dtypes))
        for dtype, quant, rows in by_variant(batch):
            seconds[rows] = self._seconds(batch, gpu, dtype, quant, rows)
        return seconds

    def _seconds(self, batch: Batch, gpu: GPUSpec, dtype: str, quant: str, rows: npt.NDArray[np.int64]) -> FloatArray:
        count, m, n, k = (batch.columns[name][rows] for name in ("batch", "m", "n", "k"))
        sizes = activation_bytes(dtype, quant), weight_bytes(dtype, quant)
        shapes = Shapes(count, m, n, k, *sizes, blocked=quant == BLOCKED)
        library = engines.answering(batch.kernels)
        source, kind, constants = self._corrections.resolve(gpu, library.name, variant(dtype, quant))
        return self._corrected(
            source, kind, gpu, dtype, lambda device: core_time(shapes, device, constants),
            lambda device, core: features(shapes, device, core, library.code),
        )  # fmt: skip
