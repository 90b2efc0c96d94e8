"""Fused attention on GPUs that nobody measured: a core in clock cycles that is the same for every framework.

What carries over from one generation to the next is what an SM does in a clock cycle, not what a GPU does in a second:
the fixed cost of a call (about 20,000 cycles), the rate at which the SMs move tiles in and out where DRAM is not the
limit (prefill 6 to 10, decode about 9 bytes a cycle and SM on A100, H100, H200 and RTX PRO 6000 alike; H200 gains
little over H100 there), and the share of the tensor peak that kernels rewritten for a generation reach. One set of
constants serves all frameworks and dtypes: fitted one by one, they follow the kernels of the measured boards and
transfer worse. How the kernels of a framework share out their work is told by `Shapes.run_by`; what is left of the
differences is learned by trees over ratios of the core's parts, which know no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.estimators.attention_shapes import Shapes, attended_pairs, moved_bytes, visible_keys
from predictor.estimators.residual import Device, FloatArray

#: Constants, in the order in which an artifact holds their logarithms, and where their fit starts: overheads and bytes
#: a cycle near what A100, H100, H200 and RTX PRO 6000 show (above), the others chosen by hand, not from data.
PREFILL_CONSTANTS = {
    "compute_efficiency": 0.8,
    "dram_efficiency": 0.8,
    "overhead_cycles": 2e4,
    "block_cycles": 500.0,  # of `_WAIT_HZ`: what a tile costs beside its keys and its bytes
    "idle_width": 80.0,  # head width whose products would take as long as what a step does beside them
    "sm_bytes_a_cycle": 6.0,  # queries in and output out, which no kernel hides behind the products
    "second_pass": 0.5,  # of the operands, before the attention: rotary, the cache's layout, scales
}
DECODE_CONSTANTS = {  # as those of prefill
    "compute_efficiency": 0.6,
    "dram_efficiency": 0.85,
    "l2_bytes_a_cycle": 10.0,  # an SM's, where the cache lies in L2
    "overhead_cycles": 1.8e4,
    "step_cycles": 540.0,  # shortest time of 64 keys in a block's loop
    "stream_bytes_a_cycle": 10.0,  # rate at which one block streams the KV cache
    "block_cycles": 1.8e3,
}
COUNT = len(PREFILL_CONSTANTS)

FEATURES = (
    "log2_batch", "log2_kv_heads", "log2_group", "log2_q_len", "log2_kv_len", "log2_visible", "log2_head_dim",
    "log2_core_cycles", "log2_compute_of_core", "log2_memory_of_core", "log2_sm_bytes_a_cycle",
    "log2_compute_over_memory", "log2_block_bytes_a_cycle", "log2_blocks", "log2_moved_over_l2", "window", "itemsize",
    "kv_itemsize", "framework",
)  # fmt: skip

#: Queries of a tile and keys of a step: FlashAttention-2 on A100 at head width 128 (flash_fwd_launch_template.h).
_QUERIES = 128.0
_KEYS = 64.0
#: A tile that has few keys waits for memory, one load after the other, and a faster clock hurries none of them: 16
#: queries of a head take FlashAttention-2 about as many nanoseconds at the 1.4 GHz of an A100 as at 2.5 GHz. The unit
#: of the fitted `block_cycles`, by definition: twice of both is the same wait.
_WAIT_HZ = 2e9
_ROWS = 16.0  # rows of the smallest tensor-core product; source: PTX ISA, mma.m16n8k16
#: Query heads of a block in latent attention's decode, however few there are (FlashMLA, flash_fwd_mla_kernel.h).
_LATENT_ROWS = 64.0
#: How blocks share an SM and L2, and how sharply the core's parts meet (p of the p-norms): chosen by hand, not from
#: data, but for the two blocks, which docs/accuracy.md has tried on GPUs left out.
_DECODE_CHUNK = 256.0  # keys of a block where a decode kernel splits the cache
_RESIDENT = 2.0  # such blocks on an SM at a time
_LONGEST = 0.5  # of the longest tile, that runs while others are done
_IN_L2_PREFILL, _IN_L2_DECODE = 0.5, 0.9  # operands below this share of L2 stay there
_PREFILL_L2_BYTES = 16.0  # a cycle and SM
_NORM = 3.0
_OVERHEAD_NORM = 1.5  # a call's fixed cost is hidden in part where the work is long
#: Exponentials of an SM in a clock (CUDA C++ Programming Guide, throughput of native arithmetic instructions, special
#: functions), and the largest share of them that is known: FlashAttention-4's authors report 1.6 PFLOP/s in bf16 at
#: head width 128 on B200, with part of the exponentials computed in the FMA units. Measured boards reach 0.58.
_EXPONENTIALS = 16.0 * 0.68


@dataclass(frozen=True, slots=True)
class CycleTime:
    """Seconds of the core, shape (n,), and whether it is that of a decode step."""

    total: FloatArray
    decode: bool


def core_time(shapes: Shapes, device: Device, log_constants: FloatArray, decode: bool) -> CycleTime:
    """Seconds of attention calls; ``log_constants``: logarithms of `PREFILL_CONSTANTS` or `DECODE_CONSTANTS`."""
    run = _decode if decode else _prefill
    return CycleTime(run(shapes, device, *np.exp(log_constants)), decode)


def _prefill(
    s: Shapes, device: Device, share: float, dram: float, overhead: float, block: float, idle: float, io: float,
    second: float,
) -> FloatArray:  # fmt: skip
    clock, sms = device.clock_hz, device.sms
    sequences, visible = s.batch * s.heads, visible_keys(s)
    queries, cache = moved_bytes(s)
    moved = queries + cache
    tiles = np.ceil(s.q_len * s.packed / _QUERIES) / s.packed  # of a query head
    rows = np.minimum(np.ceil(s.q_len * s.packed / _ROWS) * _ROWS, _QUERIES)
    # A causal tile computes its whole diagonal: half a tile of keys more than the pairs that count.
    seen = attended_pairs(s) / s.q_len + np.where(s.causal > 0, _QUERIES / 2, 0.0)
    keys = np.maximum(np.minimum(seen, np.ceil(visible / _KEYS) * _KEYS), _KEYS)
    widths = s.head_dim + s.value_dim
    slowed = device.slowed((widths + idle) / (widths * min(share, 1.0)))
    step = 2.0 * rows * _KEYS * widths * slowed * sms / device.peak_flops
    tile_keys = np.where(s.window > 0, np.minimum(visible, s.window + _QUERIES), visible)
    longest = np.maximum(np.ceil(tile_keys / _KEYS), 1.0) * step + block / _WAIT_HZ
    work = sequences * tiles * (keys / _KEYS * step + block / _WAIT_HZ) / sms + queries / (io * clock * sms)
    compute = np.maximum(work + _LONGEST * longest, longest)
    resident = 1.0 / (1.0 + (moved / (_IN_L2_PREFILL * device.l2_bytes)) ** 2)
    supply = device.bandwidth * dram
    rate = 1.0 / ((1.0 - resident) / supply + resident / max(sms * clock * _PREFILL_L2_BYTES, supply))
    before = second * (queries + 2.0 * cache / s.kv_itemsize) / rate
    busy = (compute**_NORM + (moved / rate) ** _NORM) ** (1 / _NORM) + before
    total: FloatArray = (busy**_OVERHEAD_NORM + (overhead / clock) ** _OVERHEAD_NORM) ** (1 / _OVERHEAD_NORM)
    return total


def _decode(
    s: Shapes, device: Device, share: float, dram: float, l2: float, overhead: float, step: float, stream: float,
    block: float,
) -> FloatArray:  # fmt: skip
    clock, sms = device.clock_hz, device.sms
    visible = visible_keys(s)
    moved = np.add(*moved_bytes(s))
    group = s.heads / s.kv_heads / s.copies
    rows = np.where(s.shared > 0, _LATENT_ROWS, np.maximum(np.ceil(group / _ROWS) * _ROWS, _ROWS))
    blocks = s.batch * s.kv_heads * s.copies * np.ceil(group / rows)
    parts = np.clip(np.ceil(visible / _DECODE_CHUNK), 1.0, np.maximum(1.0, np.floor(_RESIDENT * sms / blocks)))
    chunks = np.where(s.whole > 0, 1.0, parts)
    busy = np.minimum(blocks * chunks, sms)
    flops = 2.0 * rows * blocks * visible * (s.head_dim + s.value_dim)
    loop = np.maximum(visible / chunks / _KEYS, 1.0) * step + block
    # Two blocks share an SM and hide each other's waits. With one, B200's bandwidth a cycle and SM, twice that of the
    # boards measured, would stay half unused, and nothing says that its kernels leave it so.
    longest = loop * np.maximum(blocks * chunks / (_RESIDENT * sms), 1.0) / clock
    compute = np.maximum(flops * sms / (device.peak_flops * min(share, 1.0) * busy), longest)
    resident = 1.0 / (1.0 + (moved / (_IN_L2_DECODE * device.l2_bytes)) ** 4)
    supply, streams = device.bandwidth * dram, np.minimum(blocks * chunks, _RESIDENT * sms) * stream * clock
    slow, fast = np.minimum(supply, streams), np.minimum(max(sms * l2 * clock, supply), streams)
    memory = moved * (1.0 - resident) / slow + moved * resident / fast
    total: FloatArray = (compute**_NORM + memory**_NORM) ** (1 / _NORM) + overhead / clock
    return total


def softmax_floor(s: Shapes, device: Device) -> FloatArray:
    """Seconds of the exponentials, (n,), one for every pair of query and key: they do not get faster with tensor cores.

    No faster forecast of a prefill is to be believed. As a part of the core it does not help: boards from before Hopper
    are far from it, and trees fitted on them then overrate it.
    """
    pairs = attended_pairs(s) * s.batch * s.heads
    seconds: FloatArray = pairs / (_EXPONENTIALS * device.sms * device.clock_hz)
    return seconds


def features(shapes: Shapes, device: Device, core: CycleTime, framework: int) -> FloatArray:
    """The trees' inputs, (n, len(FEATURES)): the shape, the core in cycles, and its bounds as shares of it.

    In prefill the last three logarithms are zero: with them, trees did worse on GPUs left out.
    """
    s, t = shapes, core.total
    moved, blocks = np.add(*moved_bytes(s)), s.batch * s.kv_heads
    compute = 2.0 * s.batch * s.heads * attended_pairs(s) * (s.head_dim + s.value_dim) / device.peak_flops
    memory = moved / device.bandwidth
    cycles = t * device.clock_hz
    of_blocks = (moved / blocks / cycles, blocks / device.sms, moved / device.l2_bytes)
    one = np.ones(t.size)
    logs = np.log2(np.stack((
        s.batch, s.kv_heads, s.heads / s.kv_heads, s.q_len, s.kv_len, visible_keys(s), s.head_dim, cycles,
        compute / t, memory / t, moved / (device.sms * cycles), compute / memory,
        *(of_blocks if core.decode else (one, one, one)),
    ), axis=1))  # fmt: skip
    rest = np.stack((s.window, s.itemsize * one, s.kv_itemsize, framework * one), axis=1)
    return np.concatenate((logs, rest), axis=1)
