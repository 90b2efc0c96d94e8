"""Fused attention of serving frameworks: prefill (many queries) and decode (one query, a KV cache), cores apart.

The core: matrix products on the SMs that have work, never faster than the longest tile's walk over its keys; bytes
through DRAM, or L2 where the KV cache fits; a fixed number of clock cycles. Boosted trees correct it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictor.dtypes import bytes_of
from predictor.estimators.base import Batch
from predictor.estimators.residual import (
    FRAMEWORKS,
    Device,
    FloatArray,
    ServingEstimator,
    as_utilization,
    framework_name,
    measured_dtype,
)
from predictor.hardware.gpu import GPUSpec

PREFILL, DECODE = "prefill", "decode"

#: FLOP/s of the backward pass over those of the forward pass on the same shape: FlashAttention-2 (Dao, 2023,
#: section 4.1) reports up to 73 % of the peak forward and up to 63 % backward, mostly between 0.75 and 0.85 of it.
BACKWARD_OVER_FORWARD = 0.8

#: Constants of the core, in the order in which an artifact holds their logarithms.
CONSTANTS = (
    "compute_efficiency",
    "dram_efficiency",
    "l2_bytes_per_s_per_sm",
    "overhead_cycles",
    "step_s",  # shortest time of 64 keys in a tile's loop
    "resident_share",  # operands below this share of L2 stay there
    "sm_bytes_per_s",  # rate at which one block streams the KV cache
    "block_s",  # what a block costs beside its keys
)

_QUERIES = 128.0  # queries of a tile
_KEYS = 64.0  # keys of a step
_DECODE_CHUNK = 256.0  # keys of a block where a decode kernel splits the cache
_NORM = 3.0

FEATURES = (
    "log2_batch", "log2_heads", "log2_kv_heads", "log2_group", "log2_q_len", "log2_kv_len", "log2_visible",
    "log2_head_dim", "log2_compute_s", "log2_memory_s", "log2_longest_s", "log2_compute_over_memory", "log2_pairs",
    "log2_moved_over_l2", "log2_tiles_64", "log2_tiles_128", "log2_kv_blocks", "log2_bytes_a_block",
    "efficiency_tiles_64", "efficiency_tiles_128", "efficiency_kv_blocks", "pad_kv_64", "pad_kv_256", "pad_q_128",
    "causal", "window", "itemsize", "kv_itemsize", "framework",
)  # fmt: skip
_LOGS = 18


@dataclass(frozen=True, slots=True)
class Shapes:
    """n attention calls; every field of shape (n,). ``window`` 0 is none."""

    batch: FloatArray
    heads: FloatArray
    kv_heads: FloatArray
    q_len: FloatArray
    kv_len: FloatArray
    head_dim: FloatArray
    value_dim: FloatArray
    causal: FloatArray
    window: FloatArray
    itemsize: float
    kv_itemsize: FloatArray

    @classmethod
    def of(cls, columns: Sequence[FloatArray], itemsize: float, kv_itemsize: FloatArray) -> Shapes:
        """From the nine arrays in the order of the fields."""
        batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim, causal, window = columns
        return cls(batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim, causal, window, itemsize, kv_itemsize)


@dataclass(frozen=True, slots=True)
class CoreTime:
    """Seconds of the core and its parts, and the counts that features repeat; each of shape (n,)."""

    total: FloatArray
    compute: FloatArray
    memory: FloatArray
    longest: FloatArray
    pairs: FloatArray
    moved: FloatArray
    visible: FloatArray


def attended_pairs(shapes: Shapes) -> FloatArray:
    """(query, key) pairs of one head, shape (n,): `predictor.ops.attention.attended_pairs` over arrays."""
    q, kv, window = shapes.q_len, shapes.kv_len, shapes.window
    limit = np.where(window > 0, np.minimum(window, kv), kv)
    first = kv - q + 1.0
    ramp = np.clip(limit - first, 0.0, q)
    causal = ramp * (2.0 * first + ramp - 1.0) / 2.0 + (q - ramp) * limit
    return np.where(shapes.causal > 0, causal, q * limit)


def core_time(shapes: Shapes, device: Device, log_constants: FloatArray, decode: bool) -> CoreTime:
    """The physical core; ``log_constants`` are the logarithms of ``CONSTANTS``."""
    ec, ed, l2_rate, cycles, step_s, share, stream, block_s = np.exp(log_constants)
    ec = min(ec, 1.0)
    width = shapes.head_dim + shapes.value_dim
    pairs = attended_pairs(shapes)
    visible = np.where(shapes.window > 0, np.minimum(shapes.kv_len, shapes.window + shapes.q_len - 1.0), shapes.kv_len)
    sequences = shapes.batch * shapes.heads
    rate = device.peak_flops * ec / device.sms
    if decode:
        blocks = shapes.batch * shapes.kv_heads
        chunks = np.clip(np.ceil(visible / _DECODE_CHUNK), 1.0, np.maximum(1.0, np.floor(2.0 * device.sms / blocks)))
        keys = visible / chunks
        busy = np.minimum(blocks * chunks, device.sms)
        group = np.maximum(shapes.heads / shapes.kv_heads, 16.0)  # queries of a block, padded to the tensor cores' rows
        flops = 2.0 * group * blocks * visible * width
        waves = np.ceil(blocks * chunks / device.sms)
        longest = (np.maximum(keys / _KEYS, 1.0) * step_s + block_s) * waves
        compute = np.maximum(flops / (rate * busy), longest)
    else:
        tiles = np.ceil(shapes.q_len / _QUERIES)
        busy = np.minimum(sequences * tiles, device.sms)
        step = np.maximum(2.0 * _QUERIES * _KEYS * width / rate, step_s)
        longest = visible / _KEYS * step + block_s
        padded = sequences * pairs / shapes.q_len * tiles * _QUERIES
        work = padded / (_QUERIES * _KEYS) * step + sequences * tiles * block_s
        compute = np.maximum(work / device.sms, longest)
    small = shapes.itemsize if shapes.itemsize >= 2 else 2.0
    queries = sequences * shapes.q_len * (shapes.head_dim * shapes.itemsize + shapes.value_dim * small)
    cache = shapes.batch * shapes.kv_heads * visible * width * shapes.kv_itemsize
    moved = queries + cache
    resident = 1.0 / (1.0 + (moved / (share * device.l2_bytes)) ** 4)
    dram = np.minimum(device.bandwidth * ed, busy * stream)
    l2 = np.minimum(max(device.sms * l2_rate, device.bandwidth * ed), busy * stream)
    memory = moved * (1 - resident) / dram + moved * resident / l2
    total = (compute**_NORM + memory**_NORM) ** (1 / _NORM) + cycles / device.clock_hz
    return CoreTime(total, compute, memory, longest, pairs * sequences, moved, visible)


def features(shapes: Shapes, device: Device, core: CoreTime, framework: int) -> FloatArray:
    """The boosters' inputs, of shape (n, len(FEATURES))."""
    s = shapes
    out = np.empty((s.batch.size, len(FEATURES)))
    sequences, blocks = s.batch * s.heads, s.batch * s.kv_heads
    counts = np.stack((sequences * np.ceil(s.q_len / 64), sequences * np.ceil(s.q_len / 128), blocks)) / device.sms
    logs = out[:, :_LOGS]
    for column, values in enumerate((
        s.batch, s.heads, s.kv_heads, s.heads / s.kv_heads, s.q_len, s.kv_len, core.visible, s.head_dim, core.compute,
        core.memory, core.longest, core.compute / core.memory, core.pairs, core.moved / device.l2_bytes, counts[0],
        counts[1], counts[2], core.moved / blocks,
    )):  # fmt: skip
        logs[:, column] = values
    np.log2(logs, out=logs)
    out[:, _LOGS : _LOGS + 3] = (counts / np.ceil(counts)).T
    for column, (size, tile) in enumerate(((s.kv_len, 64.0), (s.kv_len, 256.0), (s.q_len, 128.0)), start=_LOGS + 3):
        out[:, column] = size / (np.ceil(size / tile) * tile)
    out[:, -5] = s.causal
    out[:, -4] = s.window
    out[:, -3] = s.itemsize
    out[:, -2] = s.kv_itemsize
    out[:, -1] = framework
    return out


class ServingAttention(ServingEstimator):
    """Utilization of fused attention with serving kernels; backward as the forward pass times a published factor."""

    def utilization(self, batch: Batch, gpu: GPUSpec, bound_s: FloatArray) -> FloatArray:
        """Share of the roofline in (0, 1], shape (n,)."""
        backward = batch.columns["is_backward"] > 0
        decode = (batch.columns["q_len"] == 1) & ~backward
        seconds = np.empty(len(batch.dtypes))
        groups: dict[tuple[str, bool], list[int]] = {}
        for i, key in enumerate(zip(batch.dtypes, decode.tolist(), strict=True)):
            groups.setdefault(key, []).append(i)
        for (dtype, is_decode), members in groups.items():
            rows = np.array(members)
            seconds[rows] = self._seconds(batch, gpu, dtype, is_decode, rows)
        if backward.any():
            # FLOP of the backward pass over the forward's, from the operator's own counts (five products to two).
            head, value = batch.columns["head_dim"], batch.columns["value_dim"]
            ratio = (3 * head + 2 * value) / (head + value) / BACKWARD_OVER_FORWARD
            seconds = np.where(backward, seconds * ratio, seconds)
        return as_utilization(bound_s, seconds)

    def _seconds(self, batch: Batch, gpu: GPUSpec, dtype: str, decode: bool, rows: npt.NDArray[np.int64]) -> FloatArray:
        caches = [getattr(batch.ops[i], "kv_dtype", "") or dtype for i in rows]
        sizes = np.array([bytes_of(name) for name in caches])
        names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "value_dim", "causal", "window")
        shapes = Shapes.of([batch.columns[name][rows] for name in names], bytes_of(dtype), sizes)
        framework, phase = framework_name(batch.kernels), DECODE if decode else PREFILL
        source, constants = self._corrections.core(gpu.id, framework, phase, measured_dtype(dtype))
        device = Device.of(gpu, dtype)
        core = core_time(shapes, device, constants, decode)
        factor = self._corrections.factor(
            f"{source}|{phase}",
            gpu.architecture,
            lambda: features(shapes, device, core, FRAMEWORKS[framework]),
        )
        return core.total * factor
