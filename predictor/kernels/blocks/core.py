"""Kernels that are neither products nor attention: blocks that walk chains of steps while bytes stream by.

    chain  = (cycles of a block + steps x cycles of a step) x turns that the blocks take on the SMs
    memory = bytes through DRAM, or through L2 where they fit
    t      = p-norm of both + a call's fixed cycles

A quantized row, a few tokens of a causal convolution and a step of the delta rule are short chains in many blocks:
memory or the SMs bound them. The delta rule over a prompt (Yang et al., arXiv:2412.06464, section 3.3) goes by chunks
of 64 tokens, each a step that waits for the one before it: a long chain in as many blocks as there are value heads.
Where several kernels share that work (the products within chunks, the triangular solve, the states, the output), what
one hands to the next passes through memory (`Shapes.passed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from predictor.engines.library import Library
from predictor.files.records import dataclass, replace
from predictor.formats.dtypes import bytes_of
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.device import Device
from predictor.kernels.named import Named, p_norm
from predictor.ops.base import Op
from predictor.ops.linear_attention import CausalConv1d, DeltaRule
from predictor.ops.quantize import Quantize
from predictor.ops.roofline import FloatArray
from predictor.ops.tiling import filled

#: Kernels by what they do; `kind_of` says which one an operator runs.
KINDS = SCALE, CAST, DYNAMIC, CONVOLUTION, CONVOLUTION_STEP, CHUNKS, STEP = (
    "scale", "cast", "dynamic", "convolution", "convolution_step", "chunks", "step",
)  # fmt: skip
#: Kind -> those whose rows answer in a set that has none of it, the nearest first.
STAND_INS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    SCALE: (DYNAMIC, CAST), CAST: (DYNAMIC, SCALE), DYNAMIC: (CAST, SCALE), CONVOLUTION: (CONVOLUTION_STEP,),
    CONVOLUTION_STEP: (CONVOLUTION,), CHUNKS: (STEP,), STEP: (CHUNKS,),
})  # fmt: skip
#: Source: flash-linear-attention's chunk.py (chunk_size=64), which SGLang and TensorRT-LLM carry, and FlashInfer's
#: gdn_prefill.py.
CHUNK = 64.0
#: Source: vLLM's and SGLang's causal_conv1d Triton kernel: a program has 8 tokens (BLOCK_M) and 256 channels (BLOCK_N).
_TOKENS, _CHANNELS = 8.0, 256.0
#: Tokens that a channel's block takes at a time in 16 bit. Source: causal_conv1d_fwd.cu, 128 threads of 8 elements.
_CHANNEL_TOKENS = 1024.0
#: Elements of a row that a block takes in a step, and value columns of a block of the delta rule's step: chosen by
#: hand, not from data.
_ROW_STEP, _STEP_COLUMNS = 1024.0, 32.0


@dataclass(frozen=True, slots=True)
class Constants(Named):
    """Constants of the core."""

    dram_efficiency: float
    l2_bytes_a_cycle: float  # an SM's
    resident_share: float  # operands below this share of L2 stay there
    overhead_cycles: float
    block_cycles: float  # of a block, beside its steps
    step_cycles: float
    blocks_an_sm: float  # at a time, where a block does not have an SM for itself
    passed_share: float  # of the bytes between kernels, that go through memory
    join: float  # p of the norm


@dataclass(frozen=True, slots=True)
class Shapes:
    """n calls; every array has shape (n,)."""

    moved: FloatArray  # compulsory bytes
    passed: FloatArray  # bytes that one kernel of a call hands to the next
    blocks: FloatArray
    steps: FloatArray  # of a block, one after the other
    alone: FloatArray  # 1 where a block has an SM for itself
    rows: FloatArray  # rows or sequences
    length: FloatArray  # columns, or tokens of a sequence
    width: FloatArray  # channels or value heads
    cached: FloatArray  # bytes of states that are read and written


def kind_of(op: Op) -> str:
    """Which kernel, of `KINDS`, an operator runs."""
    if isinstance(op, Quantize):
        return op.kind
    if isinstance(op, CausalConv1d):
        return CONVOLUTION_STEP if op.cached and op.q_len == 1 else CONVOLUTION
    return STEP if op.q_len == 1 and getattr(op, "cached", False) else CHUNKS  # type: ignore[attr-defined]


def calls_of(op: Op) -> tuple[Op, ...]:
    """The kernels of an operator: a scale over several rows is found in one of its own."""
    if isinstance(op, Quantize) and op.kernels() > 1:
        return replace(op, kind=SCALE), replace(op, kind=CAST)
    return (op,)


def shapes_of(ops: Sequence[Op], library: Library, gpu: GPUSpec) -> Shapes:
    """What ``ops`` of one kind are to the core, as a library's kernels run them on ``gpu``."""
    columns: list[tuple[float, ...]] = [_shape(op, library, gpu) for op in ops]
    return Shapes(*np.array(columns, dtype=np.float64).reshape(len(ops), 9).T)


def _shape(op: Any, library: Library, gpu: GPUSpec) -> tuple[float, ...]:
    moved = op.bytes_moved()
    if isinstance(op, Quantize):
        return moved, 0.0, op.rows, max(op.cols / _ROW_STEP, 1.0), 0.0, op.rows, op.cols, 1.0, 1.0
    if isinstance(op, CausalConv1d):
        blocks = op.batch * np.ceil(op.q_len / _TOKENS) * np.ceil(op.channels / _CHANNELS)
        steps: float = min(op.q_len, _TOKENS)
        if library.channel_blocks and kind_of(op) == CONVOLUTION:
            blocks, steps = op.batch * op.channels, np.ceil(op.q_len / _CHANNEL_TOKENS)
        state = op.batch * op.channels * op.itemsize
        return moved, 0.0, blocks, steps, 0.0, op.batch, op.q_len, op.channels, state
    assert isinstance(op, DeltaRule)
    heads = float(op.batch * op.v_heads)
    if kind_of(op) == STEP:
        blocks = heads * np.ceil(op.v_head_dim / _STEP_COLUMNS)
        return moved, 0.0, blocks, 1.0, 0.0, op.batch, op.q_len, op.v_heads, op.state_bytes
    alone = library.chunks_alone(gpu)
    steps = op.q_len / CHUNK if op.q_len > CHUNK else 1.0
    passed = 0.0 if alone else 2.0 * heads * np.ceil(op.q_len / CHUNK) * _handed(op)
    return moved, passed, heads, steps, float(alone), op.batch, op.q_len, op.v_heads, op.state_bytes


def _handed(op: DeltaRule) -> float:
    """Bytes that a chunk of a head hands from kernel to kernel: A in fp32 and its inverse, w, u, new values, state."""
    widths = op.head_dim + 2.0 * op.v_head_dim
    square = CHUNK * CHUNK * (bytes_of("fp32") + op.itemsize)
    return square + (CHUNK * widths + op.head_dim * op.v_head_dim) * op.itemsize


@dataclass(frozen=True, slots=True)
class CoreTime:
    """Seconds of the core and its parts, and the bytes and turns behind them; each of shape (n,)."""

    total: FloatArray
    chain: FloatArray
    memory: FloatArray
    moved: FloatArray
    turns: FloatArray


def core_time(shapes: Shapes, device: Device, constants: Constants) -> CoreTime:
    """Seconds of n calls."""
    s, c, clock = shapes, constants, device.clock_hz
    shared = np.maximum(s.blocks / (device.sms * c.blocks_an_sm), 1.0)
    turns = np.where(s.alone > 0.0, np.ceil(s.blocks / device.sms), shared)
    chain = (c.block_cycles + s.steps * c.step_cycles) / clock * turns
    moved = s.moved + c.passed_share * s.passed
    resident = device.resident(moved, c.resident_share)
    supply = device.bandwidth * min(c.dram_efficiency, 1.0)
    l2 = max(device.sms * clock * c.l2_bytes_a_cycle, supply)
    memory = moved * (1.0 - resident) / supply + moved * resident / l2
    total = p_norm(chain, memory, max(c.join, 1.0)) + c.overhead_cycles / clock
    return CoreTime(total, chain, memory, moved, turns)


FEATURES = (
    "log2_rows", "log2_length", "log2_width", "log2_blocks_an_sm", "log2_steps", "log2_core_cycles",
    "log2_chain_of_core", "log2_memory_of_core", "log2_moved_over_l2", "log2_cached_over_l2", "log2_bytes_an_sm",
    "efficiency_1", "efficiency_2", "efficiency_4", "efficiency_8", "alone", "framework",
)  # fmt: skip


def features(shapes: Shapes, device: Device, core: CoreTime, framework: int) -> FloatArray:
    """The trees' inputs, (n, len(FEATURES)); none names a GPU."""
    s, t = shapes, core.total
    share = s.blocks / device.sms
    logs = np.log2(np.stack((
        s.rows, s.length, s.width, share, s.steps, t * device.clock_hz, core.chain / t, core.memory / t,
        core.moved / device.l2_bytes, s.cached / device.l2_bytes, core.moved / device.sms,
    ), axis=1))  # fmt: skip
    waves = np.stack([filled(share / slots) for slots in (1.0, 2.0, 4.0, 8.0)], axis=1)
    rest = np.stack((s.alone, np.full(t.size, float(framework))), axis=1)
    return np.concatenate((logs, waves, rest), axis=1)
