"""Fused attention calls: their shapes, and the core of a GPU that was measured.

    core_s = (compute_s^3 + memory_s^3)^(1/3) + overhead_cycles / clock

Matrix products on the SMs that have work, never faster than the longest tile's walk over its keys; bytes through DRAM,
or L2 where the KV cache fits. GPUs that nobody measured have another core, `attention_cycles`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from predictor import engines
from predictor.engines.library import AttentionCalls
from predictor.estimators.device import MMA_ROWS, Device
from predictor.estimators.named import NORM, Named
from predictor.hardware.gpu import GPUSpec
from predictor.roofline import FloatArray

#: Queries of a tile and keys of a step: FlashAttention-2 on A100 at head width 128 (flash_fwd_launch_template.h).
QUERIES = 128.0
KEYS = 64.0
#: Keys of a block where a decode kernel splits the cache: chosen by hand, not from data.
DECODE_CHUNK = 256.0


@dataclass(frozen=True, slots=True)
class Shapes:
    """n attention calls; every field of shape (n,). ``window`` 0 is none; ``shared`` 1 where V is a slice of K.

    The last ones say how the kernels that run the calls share them out, see `run_by`.
    """

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
    shared: FloatArray
    packed: FloatArray  # query heads of a KV head that share a tile's rows in prefill
    copies: FloatArray  # times that a decode step reads the cache: once for every so many blocks of query heads
    whole: FloatArray  # 1 where a decode kernel does not split a sequence's cache over the SMs
    beside: FloatArray  # small kernels before a decode step's, in its time
    cold: FloatArray  # 1 where nothing of the operands lies in L2 when the call begins

    @classmethod
    def of(
        cls, columns: Sequence[FloatArray], itemsize: float, kv_itemsize: FloatArray, shared: FloatArray | None = None,
        cold: FloatArray | None = None,
    ) -> Shapes:  # fmt: skip
        """From the nine arrays in the order of the fields; without ``shared``, keys and values are read both."""
        batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim, causal, window = columns
        zero, one = np.zeros(batch.size), np.ones(batch.size)
        both = zero if shared is None else shared
        return cls(
            batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim, causal, window, itemsize, kv_itemsize, both,
            one, one, zero, zero, zero if cold is None else cold,
        )  # fmt: skip

    def run_by(self, library: str, gpu: GPUSpec) -> Shapes:
        """These calls as the kernels of a library share them out on a GPU, which its instruction set decides.

        What libraries say of it (`predictor.engines.library.Sharing`) is written in their kernels' sources, and seen in
        the tables as factors of 2 to 60.
        """
        calls = AttentionCalls(self.heads / self.kv_heads, self.window, self.kv_itemsize, self.shared)
        sharing = engines.library(library).share_attention(calls, gpu)
        beside = sharing.beside
        return replace(self, packed=sharing.packed, copies=sharing.copies, whole=sharing.whole, beside=beside)


def attended_pairs(shapes: Shapes) -> FloatArray:
    """(query, key) pairs of one head, shape (n,): `predictor.ops.attention.attended_pairs` over arrays."""
    q, kv, window = shapes.q_len, shapes.kv_len, shapes.window
    limit = np.where(window > 0, np.minimum(window, kv), kv)
    first = kv - q + 1.0
    ramp = np.clip(limit - first, 0.0, q)
    causal = ramp * (2.0 * first + ramp - 1.0) / 2.0 + (q - ramp) * limit
    return np.where(shapes.causal > 0, causal, q * limit)


def visible_keys(shapes: Shapes) -> FloatArray:
    """Key positions that at least one query sees, shape (n,)."""
    inside = np.minimum(shapes.kv_len, shapes.window + shapes.q_len - 1.0)
    return np.where(shapes.window > 0, inside, shapes.kv_len)


def moved_bytes(shapes: Shapes) -> tuple[FloatArray, FloatArray]:
    """(bytes of queries and output, bytes of keys and values), each of shape (n,) and each moved once."""
    small = shapes.itemsize if shapes.itemsize >= 2 else 2.0  # the output of an fp8 kernel is in 16 bit
    rows = shapes.batch * shapes.heads * shapes.q_len
    stored = shapes.head_dim + shapes.value_dim - shapes.shared * shapes.value_dim
    cache = shapes.batch * shapes.kv_heads * visible_keys(shapes) * stored * shapes.kv_itemsize
    return rows * (shapes.head_dim * shapes.itemsize + shapes.value_dim * small), cache


FEATURES = (
    "log2_batch", "log2_heads", "log2_kv_heads", "log2_group", "log2_q_len", "log2_kv_len", "log2_visible",
    "log2_head_dim", "log2_compute_s", "log2_memory_s", "log2_longest_s", "log2_compute_over_memory", "log2_pairs",
    "log2_moved_over_l2", "log2_tiles_64", "log2_tiles_128", "log2_kv_blocks", "log2_bytes_a_block",
    "efficiency_tiles_64", "efficiency_tiles_128", "efficiency_kv_blocks", "pad_kv_64", "pad_kv_256", "pad_q_128",
    "causal", "window", "itemsize", "kv_itemsize", "framework", "cold",
)  # fmt: skip
_LOGS = 18  # by definition: how many of `FEATURES` are logarithms


@dataclass(frozen=True, slots=True)
class Constants(Named):
    """Constants of the core on a GPU that was measured."""

    compute_efficiency: float
    dram_efficiency: float
    l2_bytes_per_s_per_sm: float
    overhead_cycles: float
    step_cycles: float  # shortest time of 64 keys in a tile's loop
    resident_share: float  # operands below this share of L2 stay there
    sm_bytes_per_s: float  # rate at which one block streams the KV cache
    block_cycles: float  # what a block costs beside its keys


@dataclass(frozen=True, slots=True)
class CoreTime:
    """Seconds of the core and its parts, and the counts that features repeat; each of shape (n,).

    ``memory`` is that of a call that finds in L2 what fits, as tables are measured, whatever this one finds.
    """

    total: FloatArray
    compute: FloatArray
    memory: FloatArray
    longest: FloatArray
    pairs: FloatArray
    moved: FloatArray
    visible: FloatArray


def core_time(shapes: Shapes, device: Device, constants: Constants, decode: bool) -> CoreTime:
    """The physical core, of prefill or of a decode step."""
    ed, l2_rate, stream = constants.dram_efficiency, constants.l2_bytes_per_s_per_sm, constants.sm_bytes_per_s
    ec = min(constants.compute_efficiency, 1.0)
    step_s, block_s = constants.step_cycles / device.clock_hz, constants.block_cycles / device.clock_hz
    width = shapes.head_dim + shapes.value_dim
    pairs = attended_pairs(shapes)
    visible = visible_keys(shapes)
    sequences = shapes.batch * shapes.heads
    rate = device.peak_flops * ec / device.sms
    if decode:
        blocks = shapes.batch * shapes.kv_heads
        chunks = np.clip(np.ceil(visible / DECODE_CHUNK), 1.0, np.maximum(1.0, np.floor(2.0 * device.sms / blocks)))
        keys = visible / chunks
        busy = np.minimum(blocks * chunks, device.sms)
        group = np.maximum(shapes.heads / shapes.kv_heads, MMA_ROWS)  # queries of a block, padded
        flops = 2.0 * group * blocks * visible * width
        waves = np.ceil(blocks * chunks / device.sms)
        longest = (np.maximum(keys / KEYS, 1.0) * step_s + block_s) * waves
        compute = np.maximum(flops / (rate * busy), longest)
    else:
        tiles = np.ceil(shapes.q_len / QUERIES)
        busy = np.minimum(sequences * tiles, device.sms)
        step = np.maximum(2.0 * QUERIES * KEYS * width / rate, step_s)
        longest = visible / KEYS * step + block_s
        padded = sequences * pairs / shapes.q_len * tiles * QUERIES
        work = padded / (QUERIES * KEYS) * step + sequences * tiles * block_s
        compute = np.maximum(work / device.sms, longest)
    moved = np.add(*moved_bytes(shapes))
    resident = device.resident(moved, constants.resident_share)
    dram = np.minimum(device.bandwidth * ed, busy * stream)
    l2 = np.minimum(max(device.sms * l2_rate, device.bandwidth * ed), busy * stream)
    memory = moved * (1 - resident) / dram + moved * resident / l2
    moving = np.where(shapes.cold > 0, moved / dram, memory)
    total = (compute**NORM + moving**NORM) ** (1 / NORM) + constants.overhead_cycles / device.clock_hz
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
    out[:, -6] = s.causal
    out[:, -5] = s.window
    out[:, -4] = s.itemsize
    out[:, -3] = s.kv_itemsize
    out[:, -2] = framework
    out[:, -1] = s.cold
    return out
