"""Operators bound by memory: element-wise chains, softmax, norms, embeddings, losses, rotary, copies, optimizers.

Byte counts transfer between GPUs, so the model is traffic over sustained bandwidth:

    dram_s  = (operand bytes not resident in L2 + bytes read again that L2 no longer holds) / (bandwidth x share)
    l2_s    = all bytes / (L2 bandwidth x share), a smaller share where threads move one 16-bit element at a time
              (an operand whose neighbours do not lie side by side moves by whole sectors)
    issue_s = rows x (work of a row + work of an element x elements in whole steps) / fp32 peak     (row kernels)
              elements x cycles / (SMs x clock)        (kernels that pick rows by an index, or work out where each
                                                        element lies: PyTorch's, of operands in unlike layouts)
    t       = (max(dram_s, l2_s)^p + issue_s^p)^(1/p) + fixed time x kernels

Row kernels read a row more than once (softmax above 1024 columns three times, layer norm twice): the later reads hit L2
while the rows in flight fit it. How rows map to threads is PyTorch's: see `softmax_traffic` and `norm_traffic`; an
engine's 16-bit norms read a row once.
A GPU has two scalars: the share of its data-sheet bandwidth that streams reach and the share of its L2 that holds rows
in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from predictor import engines
from predictor.files.records import dataclass
from predictor.hardware.gpu import FETCH_BYTES, SECTOR_BYTES, GPUSpec
from predictor.kernels.base import Batch
from predictor.kernels.device import PROCESSOR, Device
from predictor.kernels.named import Named, p_norm
from predictor.ops.base import BACKWARD
from predictor.ops.elementwise import Rotary
from predictor.ops.embedding import CrossEntropy, Embedding
from predictor.ops.norm import Norm, Softmax
from predictor.ops.roofline import FloatArray

#: Columns up to which PyTorch's softmax keeps a row in one warp's registers (dim_size <= 1024 in SoftMax.cu).
WARP_COLUMNS = 1024
#: Threads of a block of PyTorch's vectorized layer norm: (32, 4) in layer_norm_kernel.cu.
NORM_THREADS = 128
#: Of boards whose catalogue names none. Source: CUDA Programming Guide, compute capabilities 7.0, 8.0, 9.0 and 10.0.
DEFAULT_BLOCKS_PER_SM = 32
#: The functions that libraries whose 16-bit row kernels move one element a thread (`Library.scalar`) have kernels for.
SCALAR_FUNCTIONS = ("swiglu", "geglu")
ROWS_TO_FILL = 2.0  # an SM's; chosen by looking at Vidur's rows (benchmarks/results/accuracy-2026-11-23.md)
#: Source: CUDA Programming Guide, compute capabilities 6.0 to 7.0, 8.0, 9.0 and 10.0; others hold 1024 or 1536.
DEFAULT_THREADS_PER_SM = 2048
#: Cycles of an SM, by the threads of a warp, that an element takes whose place in every operand a kernel works out
#: (`Elementwise.offsets`), a few integer products an operand. Source: AMD-AGI/TraceLens, H100 and MI300X traces of
#: Qwen1.5-0.5B, the medians of eight kernels each, over the time of their bytes: copies, sums, products and casts of
#: 9.2 M elements. They take 0.58 to 0.88 on H100, and 0.61 to 1.04 on MI300X.
OFFSET_CYCLES = {32: 0.7, 64: 0.9}
#: Seconds that the smallest kernel takes, by the threads of a warp, where it is not the fitted time. Source:
#: AMD-AGI/TraceLens, kernels of at most 16 blocks on MI300X, the middle one of three traces' medians: 4.65 us (Qwen1.5,
#: eager), 4.2 (ResNet), 4.8 (SGLang, decode steps in a replayed graph).
SMALLEST_S = {64: 4.65e-6}


@dataclass(frozen=True, slots=True)
class Constants(Named):
    """What all GPUs share. Times in seconds; work in FLOP-equivalents: it runs at the fp32 peak of the CUDA cores."""

    warp_row: float  # FLOP-equivalents of softmax in a warp: a row, and an element that a lane holds
    warp_element: float
    warp_unaligned: float  # share by which an element costs more where rows do not start on 32 bytes
    softmax_row: float  # the same for softmax in a block, by element of a whole step and pass
    softmax_element: float
    norm_row: float
    norm_element: float
    spill_width: float  # width, in log(footprint), of the transition from hit to miss of what is read again
    resident: float  # share of an L2 in two parts (A100's) that operands may fill and stay
    l2_share: float  # share of the L2 bandwidth limit that kernels reach
    norm: float  # p
    fixed_s: float  # a kernel
    gather: float  # cycles of an SM that an element costs where rows are picked by an index
    scalar_share: float  # of the L2 bandwidth limit: kernels whose threads move one 16-bit element at a time


@dataclass(frozen=True, slots=True)
class OperatorTraffic:
    """What n operators move and how; every array has shape (n,)."""

    once: FloatArray  # bytes of operands, each counted once for every kernel that moves it
    reread: FloatArray  # bytes that a kernel reads again
    fetched: FloatArray  # bytes that come with them from DRAM on a miss, and that L2 does not hand out
    footprint: FloatArray  # bytes of the rows in flight, which L2 has to hold for the second read to hit
    rows: FloatArray  # rows, at least as many as it takes to fill the GPU; 0 where a kernel does not work by rows
    warp: FloatArray  # elements that a row's lanes work on in a warp (softmax), 0 elsewhere
    softmax: FloatArray  # the same for softmax in a block
    norm: FloatArray
    unaligned: FloatArray  # 1 where rows do not start on 32 bytes
    gathers: FloatArray  # elements of rows that are picked by an index, one a thread
    offsets: FloatArray  # cycles of an SM in which a kernel works out where elements lie
    scalar: FloatArray  # bytes moved one 16-bit element a thread (`SCALAR_FUNCTIONS`, rotary, RMS norm), 0 elsewhere
    kernels: FloatArray

    @classmethod
    def of(cls, once: FloatArray, **others: FloatArray) -> OperatorTraffic:
        """From what there is; zeros elsewhere."""
        zero = np.zeros(len(once))
        return cls(once, *(others.get(name, zero) for name in cls.__slots__[1:]))


def _stream(batch: Batch, gpu: GPUSpec) -> OperatorTraffic:
    """Operators that read and write every operand once."""
    columns = batch.columns
    moved = 2.0 * columns["size"] if "size" in columns else columns["read_bytes"] + columns["write_bytes"]
    zero = np.zeros(len(moved))
    gathers = _gathers(batch, zero)
    reread, fetched, reuse = _again(batch, zero)
    alone = [op.family == Rotary.family or getattr(op, "fn", "") in SCALAR_FUNCTIONS for op in batch.ops]
    scalar = np.where(alone, moved, 0.0) * _narrow(batch)
    return OperatorTraffic.of(
        moved, reread=reread, fetched=fetched, footprint=reuse, gathers=gathers, offsets=_offsets(batch, gpu, zero),
        scalar=scalar, kernels=_kernels(batch),
    )  # fmt: skip


def _gathers(batch: Batch, zero: FloatArray) -> FloatArray:
    """Elements that PyTorch's index kernels move, one a lane: look-ups, and rows picked or put back by a mask. Kernels
    whose warps read whole rows have an index for each vector that a lane loads."""
    columns = batch.columns
    if batch.family == Embedding.family:
        return columns["tokens"] * columns["width"]
    if "elements" not in columns:
        return zero
    picks = np.array([op.fn in ("gather", "scatter") for op in batch.ops], dtype=np.float64)  # type: ignore[attr-defined]
    whole = [getattr(op, "indexed", -1.0) for op in batch.ops]
    return np.where(np.array(whole) < 0.0, columns["elements"] * picks, whole)


def _offsets(batch: Batch, gpu: GPUSpec, zero: FloatArray) -> FloatArray:
    """Cycles for the places of elements that PyTorch's kernels work out; a processor's loops step through memory."""
    if "elements" not in batch.columns or gpu.architecture == PROCESSOR:
        return zero
    each = OFFSET_CYCLES.get(gpu.warp_threads or 32, OFFSET_CYCLES[32])
    return batch.columns["elements"] * np.array([each * getattr(op, "offsets", False) for op in batch.ops])


def _again(batch: Batch, zero: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Bytes read again of a broadcast operand or by whole sectors, what DRAM adds to them, and what passes between."""
    columns = batch.columns
    if "stride_bytes" not in columns:
        return zero, zero, zero
    stride, elements = columns["stride_bytes"], columns["elements"]
    item = np.array([op.itemsize for op in batch.ops])
    strided = np.where(stride > 0.0, elements, 0.0)
    sectors = strided * np.maximum(np.minimum(stride, SECTOR_BYTES) - item, 0.0)
    fetched = strided * np.maximum(np.minimum(stride, FETCH_BYTES) - np.minimum(stride, SECTOR_BYTES), 0.0)
    return columns["again_bytes"] + sectors, fetched, columns["reuse_bytes"]


def _narrow(batch: Batch) -> FloatArray:
    """1 where kernels move one element of at most 16 bits a thread: only then does that cost more than DRAM does."""
    if not engines.library(batch.kernels).scalar:
        return np.zeros(len(batch.ops))
    return np.array([op.itemsize <= 2.0 for op in batch.ops], dtype=np.float64)


def _kernels(batch: Batch) -> FloatArray:
    return np.array([op.kernels() for op in batch.ops], dtype=np.float64)


def _power_of_two(x: FloatArray) -> FloatArray:
    """The smallest power of two not below x, element by element."""
    result: FloatArray = np.exp2(np.ceil(np.log2(np.maximum(x, 1.0)) - 1e-9))
    return result


def _resident_blocks(gpu: GPUSpec, threads: FloatArray | float) -> Any:
    """Blocks that an SM holds at a time."""
    most = float(gpu.max_blocks_per_sm or DEFAULT_BLOCKS_PER_SM)
    return np.clip((gpu.max_threads_per_sm or DEFAULT_THREADS_PER_SM) / threads, 1.0, most)


def _filling(rows: FloatArray, gpu: GPUSpec) -> FloatArray:
    """Rows, at least `ROWS_TO_FILL` an SM: fewer leave its pipelines empty and take as long."""
    result: FloatArray = np.maximum(rows, ROWS_TO_FILL * gpu.sm_count)
    return result


def softmax_traffic(
    rows: FloatArray, cols: FloatArray, itemsize: FloatArray, backward: FloatArray, kernels: FloatArray, gpu: GPUSpec
) -> OperatorTraffic:
    """PyTorch's softmax (SoftMax.cu, PersistentSoftmax.cuh). Up to 1024 columns a warp keeps a row in registers.

    Above, a block of b threads reads a row in steps of b vectors of 16 bytes, what is left in steps of b elements, in
    three passes forward (maximum, sum, result) and two backward, where each pass reads two operands.
    """
    bytes_one = rows * cols * itemsize
    operands = 1.0 + backward
    in_warp = cols <= WARP_COLUMNS
    padded = _power_of_two(cols)
    vector = 16.0 / itemsize
    block = np.maximum(_power_of_two(np.minimum(cols / vector, 1024.0) / 2.0), 32.0)
    whole = np.floor(cols / (block * vector))
    tail = np.ceil((cols - whole * block * vector) / block)
    steps = whole + tail + (np.mod(cols, vector) != 0.0)
    flight = gpu.sm_count * np.where(in_warp, _resident_blocks(gpu, 32.0 * 4.0) * 4.0, _resident_blocks(gpu, block))
    flight = flight * np.where(in_warp & (padded <= 128.0), 2.0, 1.0)
    passes = 3.0 - backward
    return OperatorTraffic.of(
        bytes_one * (operands + 1.0),
        reread=np.where(in_warp, 0.0, bytes_one * operands * (passes - 1.0)),
        footprint=np.minimum(rows, flight) * cols * itemsize * operands,
        rows=_filling(rows, gpu),
        warp=np.where(in_warp, np.maximum(padded, 32.0) * operands, 0.0),
        softmax=np.where(in_warp, 0.0, steps * block * vector * passes * operands),
        unaligned=(np.mod(cols * itemsize, 32.0) != 0.0).astype(np.float64),
        kernels=kernels,
    )


def norm_traffic(batch: Batch, gpu: GPUSpec) -> OperatorTraffic:
    """PyTorch's vectorized layer norm (layer_norm_kernel.cu): 128 threads a row, four elements a step, two passes.

    Backward is two kernels: the input's gradient reads x and dy twice and writes dx; the parameters' gradient reads
    both once more, by columns.

    An engine's norm (vLLM's layernorm_kernels.cu, FlashInfer's norm.cuh, TensorRT-LLM's, as we understand them) gives
    a row a block of as many threads as it has vectors of 16 bytes, which keep it, and sums squares, an FMA an element,
    where PyTorch runs Welford's division: what it costs is its bytes, once.
    """
    columns = batch.columns
    rows, cols = columns["rows"], columns["cols"]
    backward = np.array([getattr(op, "phase", "") == BACKWARD for op in batch.ops], dtype=np.float64)
    tensor_bytes = rows * cols * np.array([op.itemsize for op in batch.ops])
    pytorch = 1.0 - _engine_norm(batch)
    flight = gpu.sm_count * _resident_blocks(gpu, NORM_THREADS)
    steps = np.ceil(cols / (NORM_THREADS * 4.0)) * pytorch
    read = np.where(backward > 0.0, 2.0 * tensor_bytes, columns["read_bytes"])
    moved = columns["read_bytes"] + columns["write_bytes"] + backward * 2.0 * tensor_bytes
    return OperatorTraffic.of(
        moved,
        reread=read * pytorch,
        footprint=np.minimum(rows, flight) / rows * read,
        rows=_filling(rows, gpu),
        norm=steps * (NORM_THREADS * 8.0) * (1.0 + backward),
        scalar=np.where([getattr(op, "kind", "") == "rms" for op in batch.ops], moved + read, 0.0) * _narrow(batch),
        kernels=_kernels(batch),
    )


def _engine_norm(batch: Batch) -> FloatArray:
    """(n,) 1 where an engine's own 16-bit kernel runs, 0 elsewhere."""
    kinds = engines.library(batch.kernels).norms
    ops = [getattr(op, "phase", "") != BACKWARD and getattr(op, "kind", "") in kinds for op in batch.ops]
    narrow = [op.itemsize <= 2.0 for op in batch.ops]
    return np.asarray(np.logical_and(ops, narrow), dtype=np.float64)


def _softmax(batch: Batch, gpu: GPUSpec) -> OperatorTraffic:
    """Softmax, and the log-softmax inside a cross-entropy (whose backward first fills a gradient of the same size)."""
    columns = batch.columns
    cols = columns["vocab"] if "vocab" in columns else columns["cols"]
    backward = np.array([getattr(op, "phase", "") == BACKWARD for op in batch.ops], dtype=np.float64)
    itemsize = np.array([op.itemsize for op in batch.ops])
    traffic = softmax_traffic(columns["rows"], cols, itemsize, backward, _kernels(batch), gpu)
    if batch.family == CrossEntropy.family:
        traffic.once[:] += backward * columns["rows"] * cols * itemsize
    return traffic


_TRAFFIC: Mapping[str, Callable[[Batch, GPUSpec], OperatorTraffic]] = {
    Softmax.family: _softmax, CrossEntropy.family: _softmax, Norm.family: norm_traffic,
}  # fmt: skip


def traffic_of(batch: Batch, gpu: GPUSpec) -> OperatorTraffic:
    """What the operators of ``batch`` move on ``gpu``."""
    return _TRAFFIC.get(batch.family, _stream)(batch, gpu)


def kernel_seconds(
    traffic: OperatorTraffic, device: Device, hold: Any, const: Constants, parts: float = 2.0
) -> FloatArray:
    """Time on a busy GPU, shape (n,). ``device``: the bandwidth that a stream reaches, and the CUDA cores' fp32 peak.

    ``hold``: share of L2 at which half of what is read again misses. ``parts``: how often L2 holds what all SMs read.
    """
    # Operands that fit a part of L2 are still there (a producer ran just before, a benchmark repeats itself).
    stays = const.resident * 2.0 / parts * device.l2_bytes
    held = np.minimum(np.maximum(2.0 - traffic.once / stays, 0.0), 1.0)
    room = hold * device.l2_bytes / np.maximum(traffic.footprint, 1.0)
    miss = 1.0 / (1.0 + np.minimum(room, 100.0) ** (1.0 / const.spill_width))
    moved = traffic.once * (1.0 - held) + (traffic.reread + traffic.fetched) * miss
    inner = (traffic.once + traffic.reread) / const.l2_share
    inner = np.maximum(inner, traffic.scalar / const.scalar_share) / device.l2_bandwidth
    stream = np.maximum(moved / device.bandwidth, inner)
    issue = (traffic.gathers * const.gather + traffic.offsets) / (device.sms * device.clock_hz)
    if traffic.rows.any():
        work = (
            traffic.warp * (const.warp_element * (1.0 + const.warp_unaligned * traffic.unaligned))
            + (traffic.warp > 0.0) * const.warp_row
            + traffic.softmax * const.softmax_element + (traffic.softmax > 0.0) * const.softmax_row
            + traffic.norm * const.norm_element + (traffic.norm > 0.0) * const.norm_row
        )  # fmt: skip
        issue = issue + traffic.rows * work / device.peak_flops
    return p_norm(stream, issue, const.norm) + const.fixed_s * traffic.kernels
