"""Fused attention calls: their shapes, and the core in clock cycles, of prefill and of decode.

    core_s = (compute_s^3 + memory_s^3)^(1/3) + overhead_cycles / clock

Matrix products on the SMs that have work, never faster than the longest tile's walk over its keys; bytes through DRAM,
or L2 where the KV cache fits.

What carries over from one generation to the next is what an SM does in a clock cycle, not what a GPU does in a second:
the fixed cost of a call (about 20,000 cycles), the rate at which the SMs move tiles in and out where DRAM is not the
limit (prefill 6 to 10, decode about 9 bytes a cycle and SM on A100, H100, H200 and RTX PRO 6000 alike; H200 gains
little over H100 there), and the share of the tensor peak that kernels rewritten for a generation reach. A GPU that was
measured has constants of its own for each framework and dtype. All others share one set, in decode one each for kernels
that add up the parts of a split cache and for those that do not: fitted one by one, they follow the kernels of the
measured boards and transfer worse. How the kernels of a framework share out their work is told by `Shapes.run_by`; what
is left of the differences is learned by trees over ratios of the core's parts, which know no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from predictor import engines
from predictor.engines.library import AttentionCalls
from predictor.files.records import dataclass, replace
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.device import MMA_ROWS, Device
from predictor.kernels.named import NORM, Named
from predictor.ops.roofline import FloatArray
from predictor.ops.tiling import filled

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
        zero, ones = np.zeros(batch.size), np.ones(batch.size)
        both = zero if shared is None else shared
        return cls(
            batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim, causal, window, itemsize, kv_itemsize, both,
            ones, ones, zero, zero, zero if cold is None else cold,
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


@dataclass(frozen=True, slots=True)
class PrefillConstants(Named):
    """Constants of prefill, and where their fit starts."""

    # Overheads and bytes a cycle near what A100, H100, H200 and RTX PRO 6000 show (above), the others chosen by hand,
    # not from data.
    compute_efficiency: float = 0.8
    dram_efficiency: float = 0.8
    overhead_cycles: float = 2e4
    block_cycles: float = 500.0  # of `_WAIT_HZ`: what a tile costs beside its keys and its bytes
    idle_width: float = 80.0  # head width whose products would take as long as what a step does beside them
    sm_bytes_a_cycle: float = 6.0  # queries in and output out, which no kernel hides behind the products
    second_pass: float = 0.5  # of the operands, before the attention: rotary, the cache's layout, scales


@dataclass(frozen=True, slots=True)
class DecodeConstants(Named):
    """Constants of a decode step, and where their fit starts."""

    # As those of prefill: near what boards show, the others chosen by hand, not from data.
    compute_efficiency: float = 0.6
    dram_efficiency: float = 0.85
    l2_bytes_a_cycle: float = 10.0  # an SM's, where the cache lies in L2
    overhead_cycles: float = 1.8e4
    step_cycles: float = 540.0  # shortest time of 64 keys in a block's loop
    stream_bytes_a_cycle: float = 10.0  # rate at which one block streams the KV cache
    block_cycles: float = 1.8e3


Constants = PrefillConstants | DecodeConstants
#: By whether it is a decode step.
START: Mapping[bool, Constants] = {False: PrefillConstants(), True: DecodeConstants()}

#: The inputs of trees: the shape, the core in cycles, its bounds and its parts as shares of it, waves and padding.
FEATURES = (
    "log2_batch", "log2_kv_heads", "log2_group", "log2_q_len", "log2_kv_len", "log2_visible", "log2_head_dim",
    "log2_core_cycles", "log2_compute_of_core", "log2_memory_of_core", "log2_sm_bytes_a_cycle",
    "log2_compute_over_memory", "log2_block_bytes_a_cycle", "log2_blocks", "log2_moved_over_l2", "log2_heads",
    "log2_pairs", "log2_products_of_core", "log2_traffic_of_core", "log2_tiles_64", "log2_tiles_128",
    "log2_bytes_a_block", "window", "itemsize", "kv_itemsize", "framework", "efficiency_tiles_64",
    "efficiency_tiles_128", "efficiency_kv_blocks", "pad_kv_64", "pad_kv_256", "pad_q_128", "causal", "cold",
)  # fmt: skip

#: Of them, those that trees of all GPUs are not shown: GPUs that were measured gain by them, those left out lose.
#: Chosen by looking at boards left out (benchmarks/results/accuracy-2026-11-23.md).
_OF_ONE_GPU = (*FEATURES[FEATURES.index("log2_heads") : FEATURES.index("window")], *FEATURES[-8:])
_OF_DECODE = ("log2_block_bytes_a_cycle", "log2_blocks", "log2_moved_over_l2")


def hidden(decode: bool) -> tuple[int, ...]:
    """Places in `FEATURES` of what trees of all GPUs are not shown."""
    return tuple(FEATURES.index(name) for name in (*_OF_ONE_GPU, *(() if decode else _OF_DECODE)))


#: A tile that has few keys waits for memory, one load after the other, and a faster clock hurries none of them: 16
#: queries of a head take FlashAttention-2 about as many nanoseconds at the 1.4 GHz of an A100 as at 2.5 GHz. The unit
#: of the fitted `block_cycles`, by definition: twice of both is the same wait.
_WAIT_HZ = 2e9
#: Query heads of a block in latent attention's decode, however few there are (FlashMLA, flash_fwd_mla_kernel.h).
_LATENT_ROWS = 64.0
#: How blocks share an SM and L2, and how sharply the core's parts meet (p of the p-norms): chosen by hand, not from
#: data, but for the two blocks, which benchmarks/results/accuracy-2026-11-23.md has tried on GPUs left out.
_RESIDENT = 2.0  # such blocks on an SM at a time
_LONGEST = 0.5  # of the longest tile, that runs while others are done
_IN_L2_PREFILL, _IN_L2_DECODE = 0.5, 0.9  # operands below this share of L2 stay there
_PREFILL_L2_BYTES = 16.0  # a cycle and SM
_OVERHEAD_NORM = 1.5  # a call's fixed cost is hidden in part where the work is long
#: A small kernel in a captured graph: SGLang's short fp8 caches less its 16-bit ones, in Triton's kernels, take 2.10
#: (B200), 2.06 (H100), 2.00 (L40S), 2.03 us (RTX PRO 6000): a time, not cycles. Chosen by looking at these tables.
_SMALL_KERNEL_S = 2.05e-6
#: The largest known share of the exponentials that special functions can do. Source: FlashAttention-4's authors (arXiv
#: 2603.05451) report 1.6 PFLOP/s in bf16 at head width 128 on B200, with part of them computed in the FMA units.
#: Measured boards reach 0.58.
_EXPONENTIALS = 0.68


@dataclass(frozen=True, slots=True)
class CoreTime:
    """Seconds of the core and its two parts, shape (n,).

    ``warm`` and ``memory`` are those of a call that finds in L2 what fits, as tables are measured, whatever this one
    finds: trees are shown these.
    """

    total: FloatArray
    warm: FloatArray
    compute: FloatArray
    memory: FloatArray


def core_time(shapes: Shapes, device: Device, constants: Constants) -> CoreTime:
    """Seconds of attention calls, of prefill or of decode steps as the constants are."""
    of_phase = _decode if isinstance(constants, DecodeConstants) else _prefill
    return of_phase(shapes, device, constants)  # type: ignore[arg-type]


def _prefill(s: Shapes, device: Device, constants: PrefillConstants) -> CoreTime:
    block_s = constants.block_cycles / _WAIT_HZ
    clock, sms = device.clock_hz, device.sms
    sequences, visible = s.batch * s.heads, visible_keys(s)
    queries, cache = moved_bytes(s)
    moved = queries + cache
    tiles = np.ceil(s.q_len * s.packed / QUERIES) / s.packed  # of a query head
    rows = np.minimum(np.ceil(s.q_len * s.packed / MMA_ROWS) * MMA_ROWS, QUERIES)
    # A causal tile computes its whole diagonal: half a tile of keys more than the pairs that count.
    seen = attended_pairs(s) / s.q_len + np.where(s.causal > 0, QUERIES / 2, 0.0)
    keys = np.maximum(np.minimum(seen, np.ceil(visible / KEYS) * KEYS), KEYS)
    widths = s.head_dim + s.value_dim
    slowed = device.slowed((widths + constants.idle_width) / (widths * min(constants.compute_efficiency, 1.0)))
    step = 2.0 * rows * KEYS * widths * slowed * sms / device.peak_flops
    tile_keys = np.where(s.window > 0, np.minimum(visible, s.window + QUERIES), visible)
    longest = np.maximum(np.ceil(tile_keys / KEYS), 1.0) * step + block_s
    work = sequences * tiles * (keys / KEYS * step + block_s) / sms + queries / (
        constants.sm_bytes_a_cycle * clock * sms
    )
    compute = np.maximum(work + _LONGEST * longest, longest)
    resident = device.resident(moved, _IN_L2_PREFILL, 2.0)
    supply = device.bandwidth * constants.dram_efficiency
    rate = 1.0 / ((1.0 - resident) / supply + resident / max(sms * clock * _PREFILL_L2_BYTES, supply))
    before = constants.second_pass * (queries + 2.0 * cache / s.kv_itemsize) / rate
    memory = moved / rate
    busy = (compute**NORM + memory**NORM) ** (1 / NORM) + before
    total = (busy**_OVERHEAD_NORM + (constants.overhead_cycles / clock) ** _OVERHEAD_NORM) ** (1 / _OVERHEAD_NORM)
    return CoreTime(total, total, compute, memory)


def _decode(s: Shapes, device: Device, constants: DecodeConstants) -> CoreTime:
    clock, sms = device.clock_hz, device.sms
    visible = visible_keys(s)
    moved = np.add(*moved_bytes(s))
    group = s.heads / s.kv_heads / s.copies
    rows = np.where(s.shared > 0, _LATENT_ROWS, np.maximum(np.ceil(group / MMA_ROWS) * MMA_ROWS, MMA_ROWS))
    blocks = s.batch * s.kv_heads * s.copies * np.ceil(group / rows)
    parts = np.clip(np.ceil(visible / DECODE_CHUNK), 1.0, np.maximum(1.0, np.floor(_RESIDENT * sms / blocks)))
    chunks = np.where(s.whole > 0, 1.0, parts)
    busy = np.minimum(blocks * chunks, sms)
    flops = 2.0 * rows * blocks * visible * (s.head_dim + s.value_dim)
    loop = np.maximum(visible / chunks / KEYS, 1.0) * constants.step_cycles + constants.block_cycles
    # Two blocks share an SM and hide each other's waits. With one, B200's bandwidth a cycle and SM, twice that of the
    # boards measured, would stay half unused, and nothing says that its kernels leave it so.
    longest = loop * np.maximum(blocks * chunks / (_RESIDENT * sms), 1.0) / clock
    compute = np.maximum(flops * sms / (device.peak_flops * min(constants.compute_efficiency, 1.0) * busy), longest)
    resident = device.resident(moved, _IN_L2_DECODE)
    supply = device.bandwidth * constants.dram_efficiency
    streams = np.minimum(blocks * chunks, _RESIDENT * sms) * constants.stream_bytes_a_cycle * clock
    slow, fast = np.minimum(supply, streams), np.minimum(max(sms * constants.l2_bytes_a_cycle * clock, supply), streams)
    memory = moved * (1.0 - resident) / slow + moved * resident / fast
    call = constants.overhead_cycles / clock + s.beside * _SMALL_KERNEL_S
    warm: FloatArray = (compute**NORM + memory**NORM) ** (1 / NORM) + call
    total = warm
    if s.cold.any():
        moving = np.where(s.cold > 0, moved / slow, memory)
        total = (compute**NORM + moving**NORM) ** (1 / NORM) + call
    return CoreTime(total, warm, compute, memory)


def softmax_floor(s: Shapes, device: Device, exponentials: float) -> FloatArray:
    """Seconds of the exponentials, (n,), one for every pair of query and key: they do not get faster with tensor cores.

    ``exponentials`` a clock and SM. No faster forecast of a prefill is to be believed. As a part of the core it does
    not help: boards from before Hopper are far from it, and trees fitted on them then overrate it.
    """
    pairs = attended_pairs(s) * s.batch * s.heads
    seconds: FloatArray = pairs / (_EXPONENTIALS * exponentials * device.sms * device.clock_hz)
    return seconds


def features(shapes: Shapes, device: Device, core: CoreTime, framework: int) -> FloatArray:
    """The trees' inputs, (n, len(FEATURES))."""
    s, t = shapes, core.warm
    moved, blocks, pairs = np.add(*moved_bytes(s)), s.batch * s.kv_heads, attended_pairs(s)
    sequences = s.batch * s.heads
    compute = 2.0 * sequences * pairs * (s.head_dim + s.value_dim) / device.peak_flops
    memory = moved / device.bandwidth
    cycles = t * device.clock_hz
    tiles = np.array((sequences * np.ceil(s.q_len / 64.0), sequences * np.ceil(s.q_len / 128.0), blocks)) / device.sms
    logs = np.log2(np.array([
        s.batch, s.kv_heads, s.heads / s.kv_heads, s.q_len, s.kv_len, visible_keys(s), s.head_dim, cycles,
        compute / t, memory / t, moved / (device.sms * cycles), compute / memory, moved / blocks / cycles,
        blocks / device.sms, moved / device.l2_bytes, s.heads, sequences * pairs, core.compute / t, core.memory / t,
        tiles[0], tiles[1], moved / blocks,
    ]))  # fmt: skip
    ones = np.ones(t.size)
    rest = np.array([
        s.window, s.itemsize * ones, s.kv_itemsize, framework * ones, *filled(tiles), filled(s.kv_len, 64.0),
        filled(s.kv_len, 256.0), filled(s.q_len, 128.0), s.causal, s.cold,
    ])  # fmt: skip
    return np.concatenate((logs, rest)).T
