"""The physics of a convolution: the fastest of the algorithms that libraries have for it.

    implicit   a product of (pixels, taps x channels) whose operand is gathered on the way: the gemm core's, with the
               bytes of the tensors in place of the product's; where tensor cores want channels side by side and they do
               not lie so, both tensors are transposed once (cuDNN's nchwToNhwc), but for one tap (`is_plain`)
    lanes      the same product of fp32 numbers on the CUDA cores: of fp32, and of TF32 where its channels are too few
               for tensor cores (`on_lanes`); no transposes
    winograd   F(4 x 4, 3 x 3) in four kernels (Lavin and Gray, arXiv:1509.09308): both operands transformed, 36
               products of tiles, the result transformed back
    fused      F(2 x 2, 3 x 3) in one kernel, at a share of the fp32 peak
    direct     depthwise: a thread a result, a load and a multiply-add a tap, bound by issue slots or by bytes

Which one runs is taken to be the fastest. The products' and the streams' seconds are asked of the estimators of the
set, so that a calibrated board's convolutions follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from predictor.files.records import dataclass
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.gemm import core as gemm
from predictor.kernels.named import Named
from predictor.ops.base import FORWARD
from predictor.ops.convolution import DGRAD, WGRAD, Convolution
from predictor.ops.elementwise import Elementwise
from predictor.ops.roofline import FloatArray

#: Sides of the tiles and windows of the two Winograd forms, by definition of F(m x m, r x r).
_TILE, _SMALL_TILE, _WINDOW = 4, 2, 3
#: Channels in a row that tensor cores take in 16 bit: narrower ones are padded. Source: CUTLASS' and cuDNN's alignment
#: of 128 bits for half precision (conv2d_fprop_implicit_gemm_f16.cu).
_CHANNELS = 8
#: The same of fp32 numbers. Source: 128 bits, as CUTLASS' conv2d_fprop_implicit_gemm_tf32.
_FP32_CHANNELS = 4
#: Channels that a turn of a TF32 kernel takes. Source: a row of 128 bytes, as tilesize128x128x32 in cuDNN's names has.
_TENSOR_TURN = 32
#: The dtype that runs on the CUDA cores, in kernels that take channels as they lie.
LANES = "fp32"
#: Channels of a tap that a turn of a kernel of the CUDA cores takes, where it cannot take several taps in one: of three
#: dimensions, and of an input's gradient, whose taps differ from pixel to pixel. Source: sgemm_128x128x8, and tilesize
#: 128x128x16 in names of cuDNN's gradient kernels; the second chosen by looking at KernelBench's rows on A10 and L4,
#: each of which alone chooses it of 8, 16 and 32.
_TURN_OF_THREE, _TURN_OF_GRADIENT = 8, 16


@dataclass(frozen=True, slots=True)
class Constants(Named):
    """Constants of the core. Those of fp32 kernels are shares of what a plain product takes or of a peak."""

    implicit: float  # share of the fp32 peak that an implicit product's main loop reaches
    prologue: float  # elements of K that a tile's filling and write-out count as: another tile hides them
    winograd: float  # time of the 36 products over that of plain ones
    transform: float  # time of a transform over its bytes' at the board's bandwidth
    fused: float  # share of the fp32 peak that fused Winograd reaches
    fused_step: float  # input channels that a fused tile's filling and write-out count as
    call_s: float  # fixed, of a call
    tap_issue: float  # instructions of a thread for a tap of a depthwise convolution
    tap_issue_wgrad: float  # the same for its weight's gradient


@dataclass(frozen=True)
class Shapes(gemm.Shapes):
    """Products whose operands are gathered: bytes of A and C, and of B, are the tensors' own."""

    moved: FloatArray | None = None  # (n,)
    kept: FloatArray | None = None  # (n,)

    @property
    def weights(self) -> FloatArray:
        """Bytes of B."""
        assert self.kept is not None
        return self.kept

    @property
    def activations(self) -> FloatArray:
        """Bytes of A and C."""
        assert self.moved is not None
        return self.moved


def _aligned(size: int, whole: int) -> int:
    return -(-size // whole) * whole


#: Channels that groups are packed to, side by side, for a product of tensor cores; zeros fill the rest. Source: the K
#: of mma.m16n8k16 (PTX ISA), and twice and four times as many, of tiles 32 and 64 wide.
PACKED = (1, 16, 32, 64)


def _packed(op: Convolution, width: int) -> tuple[int, int, int, int]:
    """``op.product`` with as many groups in one as ``width`` channels have: a block diagonal, mostly of zeros."""
    groups, m, n, k = op.product
    into, out = op.in_channels // op.groups, op.out_channels // op.groups
    together = min(groups, max(1, width // max(into, out)))
    if op.phase == WGRAD:
        return -(-groups // together), m * together, n * together, k
    return -(-groups // together), m, n * together, k * together


def implicit_shapes(ops: Sequence[Convolution], itemsize: float, width: int = 1) -> Shapes:
    """The products of ``ops``, groups packed to ``width`` channels; channels padded to what tensor cores take."""
    rows = []
    for op in ops:
        groups, m, n, k = _packed(op, width)
        if itemsize <= 2.0:
            if op.phase == WGRAD:
                m, n = _aligned(m, _CHANNELS), op.taps * _aligned(n // op.taps, _CHANNELS)
            else:
                taps = max(1, op.taps) if k % max(1, op.taps) == 0 else 1
                n, k = _aligned(n, _CHANNELS), taps * _aligned(k // taps, _CHANNELS)
        weights = op.weight_bytes
        rows.append((groups, m, n, k, op.bytes_moved() - weights, weights))
    return gathered(np.array(rows, dtype=np.float64), itemsize)


def gathered(rows: FloatArray, itemsize: float) -> Shapes:
    """Products of ``rows`` (n, 6): batch, m, n, k, bytes of A and C, bytes of B."""
    batch, m, n, k, moved, kept = rows.T
    return Shapes(batch, m, n, k, itemsize, itemsize, quantized=True, moved=moved, kept=kept)


def is_gradient(op: Convolution) -> bool:
    """Whether the kernel is that of an input's gradient: a transposed convolution's forward pass is one."""
    return op.phase in (FORWARD, DGRAD) and op.transposed != (op.phase == DGRAD)


def on_lanes(op: Convolution) -> bool:
    """Whether the CUDA cores compute it: fp32, and of TF32 where pixels lie side by side and

    - the channels of a group that are summed do not fill 16 bytes, which tensor cores load at once, or
    - it is an input's gradient of groups, or one of three dimensions whose channels do not fill a turn of K.
    """
    if op.dtype == LANES:
        return True
    if op.dtype != "tf32" or op.channels_last:
        return False
    summed = _summed(op)
    narrow = op.dimensions > 2 and summed < _TENSOR_TURN
    return summed % _FP32_CHANNELS != 0 or (is_gradient(op) and (op.groups > 1 or narrow))


def _summed(op: Convolution) -> int:
    """Channels of a group that one pixel of the result sums."""
    return (op.out_channels if op.phase == DGRAD else op.in_channels) // op.groups


def lanes_product(op: Convolution) -> tuple[int, int, int, int]:
    """(groups, m, n, k) as kernels of the CUDA cores run it: taps one by one where they are no single row of K, with
    those between the strides of a gradient, which are zeros."""
    groups, m, n, k = op.product
    gradient = is_gradient(op)
    if op.phase == WGRAD or not (gradient or op.dimensions > 2):
        return groups, m, n, k
    return groups, m, n, op.taps * _aligned(_summed(op), _TURN_OF_GRADIENT if gradient else _TURN_OF_THREE)


def is_plain(op: Convolution) -> bool:
    """Whether a sample is a product of the weight and its pixels as they lie: one tap, stride 1."""
    unpadded = (op.in_d, op.in_h, op.in_w) == (op.out_d, op.out_h, op.out_w)
    return op.taps == op.stride == 1 and unpadded


def transposes(op: Convolution) -> tuple[Elementwise, ...]:
    """The kernels that put channels side by side and back, where a tensor-core product wants it so."""
    if op.channels_last or on_lanes(op) or op.is_depthwise or is_plain(op):
        return ()
    counts = (op.batch * op.in_channels * op.in_pixels, op.batch * op.out_channels * op.pixels)
    return tuple(Elementwise(op.dtype, "copy", count) for count in counts)


def tiled_seconds(ops: Sequence[Convolution], peak: float, sms: float, constants: Constants) -> FloatArray:
    """Seconds (n,) of implicit products on fp32 lanes of ``peak`` FLOP/s: the best of cuDNN's tiles, K never split."""
    groups, m, n, k = np.array([lanes_product(op) for op in ops], dtype=np.float64).T
    best = np.full(len(ops), np.inf)
    for rows, columns in _TILES:
        blocks = groups * np.ceil(m / rows) * np.ceil(n / columns)
        loop = 2.0 * rows * columns * (np.ceil(k / _STEP) * _STEP + constants.prologue)
        best = np.minimum(best, np.maximum(blocks / sms, _LEAST_BUSY) * loop)
    seconds: FloatArray = best * sms / (peak * constants.implicit)
    return seconds


#: Rows and columns of cuDNN's fp32 tiles, either way round, elements of K of a turn, and the share of an SM that a
#: single block of four or eight warps keeps busy. Source: the kernels that NeuSight's tables name (scudnn_128x128,
#: 128x64, 128x32, implicit_convolve_sgemm), a turn as of sgemm_128x128x8; the share chosen by hand, not from data.
_TILES, _STEP, _LEAST_BUSY = ((128, 128), (128, 64), (64, 128), (128, 32), (32, 128), (32, 32)), 8.0, 0.7


def is_winograd(op: Convolution) -> bool:
    """Whether Winograd's forms hold: two dimensions, 3 x 3, stride and dilation 1, one group, no weight's gradient."""
    window = (op.kernel_d, op.kernel_h, op.kernel_w) == (1, _WINDOW, _WINDOW)
    plain = op.stride == op.dilation == op.groups == 1 and not op.transposed and op.in_d == 1
    return window and plain and op.phase in (FORWARD, DGRAD)


def _channels(op: Convolution) -> tuple[int, int, int, int]:
    """(channels that are summed, channels that result, height and width of the result)."""
    if op.phase == DGRAD:
        return op.out_channels, op.in_channels, op.in_h, op.in_w
    return op.in_channels, op.out_channels, op.out_h, op.out_w


def winograd_tiles(op: Convolution, tile: int) -> int:
    """Tiles of ``tile`` x ``tile`` results of the whole batch."""
    _, _, high, wide = _channels(op)
    return op.batch * (-(-high // tile)) * (-(-wide // tile))


def winograd_product(op: Convolution) -> tuple[int, int, int, int]:
    """(batch, m, n, k) of the products of the unfused form: one for each of 36 places of a tile."""
    into, out, _, _ = _channels(op)
    return (_TILE + _WINDOW - 1) ** 2, winograd_tiles(op, _TILE), out, into


def winograd_transforms(op: Convolution) -> tuple[Elementwise, ...]:
    """The three transforms, by the bytes that they read and write."""
    places, tiles, out, into = winograd_product(op)
    size = op.itemsize
    return (
        Elementwise(
            op.dtype, "fused", places * tiles * into, 0, op.batch * into * op.in_pixels * size, chain_flops=4.0
        ),
        Elementwise(op.dtype, "fused", places * out * into, 0, op.weight_bytes, chain_flops=4.0),
        Elementwise(op.dtype, "fused", op.batch * out * op.pixels, 0, places * tiles * out * size, chain_flops=8.0),
    )


def fused_seconds(ops: Sequence[Convolution], peak: float, sms: float, constants: Constants) -> FloatArray:
    """Seconds (n,) of F(2 x 2, 3 x 3) in one kernel on fp32 lanes of ``peak`` FLOP/s: each block has 32 channels of 32
    tiles, of one sample or of several, and sums all input channels."""
    into, out, high, wide = np.array([_channels(op) for op in ops], dtype=np.float64).T
    batch = np.array([op.batch for op in ops], dtype=np.float64)
    high, wide = np.ceil(high / _SMALL_TILE), np.ceil(wide / _SMALL_TILE)
    grids = [np.ceil(batch / n) * np.ceil(high / y) * np.ceil(wide / x) for n, y, x in _FUSED_BLOCKS]
    blocks = np.min(grids, axis=0) * np.ceil(out / _FUSED_CHANNELS)
    waves = np.maximum(blocks / (sms * _FUSED_RESIDENT), 1.0)
    places = float((_SMALL_TILE + _WINDOW - 1) ** 2)
    tiles = prod(_FUSED_BLOCKS[0])
    work = 2.0 * places * tiles * _FUSED_CHANNELS * (into + constants.fused_step) * _FUSED_RESIDENT
    seconds: FloatArray = waves * work * sms / (peak * constants.fused)
    return seconds


#: Tiles of a block as (samples, high, wide), its channels, and blocks that an SM holds: tile148, 244, 228, 442 in the
#: names of cuDNN's winograd_128x128 kernels. Source: the kernels and grids that NeuSight's tables name; blocks an SM
#: chosen by hand, not from data.
_FUSED_BLOCKS, _FUSED_CHANNELS, _FUSED_RESIDENT = ((1, 4, 8), (2, 4, 4), (2, 2, 8), (4, 4, 2)), 32.0, 2.0


def direct_seconds(ops: Sequence[Convolution], gpu: GPUSpec, constants: Constants) -> FloatArray:
    """Seconds (n,) that the issue slots need for depthwise convolutions: instructions of all taps of all results."""
    work = []
    for op in ops:
        results = op.flops() / 2.0  # taps of all results
        wgrad = op.phase == WGRAD
        work.append(results * (constants.tap_issue_wgrad if wgrad else constants.tap_issue))
    slots = (gpu.issue_slots_per_clock or _SLOTS) * (gpu.warp_threads or _WARP)
    seconds: FloatArray = np.array(work) / (gpu.sm_count * gpu.boost_clock_hz * slots)
    return seconds


#: Warp schedulers of an SM and threads of a warp where the catalogue does not say. Source: CUDA Programming Guide,
#: compute capabilities 5.0 to 10.0.
_SLOTS, _WARP = 4.0, 32.0
