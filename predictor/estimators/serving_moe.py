"""Mixture-of-experts layers of serving frameworks: two or three grouped GEMMs over the experts that got a token.

The core: rows padded to a tile for every active expert, the weights of the active experts through DRAM (or L2 where
they fit), and a fixed number of clock cycles for the kernels around them. Boosted trees correct it.

Three kinds of kernels run under all frameworks (`kernel_of`). What GPUs that nobody measured take from the others is
kept by kernel, not by framework: which rows a kernel touches is the kernel's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from predictor.estimators.base import Batch
from predictor.estimators.residual import (
    FRAMEWORKS,
    Device,
    FloatArray,
    ServingEstimator,
    by_variant,
    framework_name,
    runs_mma,
)
from predictor.hardware.gpu import GPUSpec
from predictor.quantization import MARLIN, variant, weight_bytes

#: Constants of the core, in the order in which an artifact holds their logarithms.
CONSTANTS = (
    "compute_efficiency",
    "dram_efficiency",
    "l2_bytes_per_s_per_sm",
    "overhead_cycles",
    "tile_penalty",  # in rows: a tile of t rows runs at t / (t + penalty) of the efficiency
    "resident_share",  # weights below this share of L2 stay there
    "token_s_per_byte",  # permuting, weighing and adding up: seconds a byte of routed rows, over bandwidth
    "supply_bytes",  # a clock and SM: operands on their way to the tensor cores, partly hidden behind arithmetic
    "foreign_traffic",  # share of that traffic, and
    "foreign_rows",  # of the products, that rows of other GPUs' experts cause here as well
    "half_lines",  # share of the DRAM rate that a kernel gets which reads weights 64 bytes at a time
)
#: Constants of the kernel's code, alike for all variants of it.
OF_KERNEL = ("supply_bytes", "foreign_traffic", "foreign_rows", "half_lines")

#: Exponent of the power law by which tokens fall on experts; 0 is an even spread.
_EXPONENT_PREFIX = "power_law_"
#: NVIDIA's grouped GEMMs (TensorRT-LLM, FlashInfer), Triton's fused_moe, and Marlin for weights of 4 bits.
KERNELS = ("cutlass", "triton", "marlin")
#: How a kernel shares out its products (see `tiling_of`): the fastest tile, one of two by the tokens, equal stripes.
FASTEST, TWO_TILES, STRIPES = "fastest", "two tiles", "stripes"
BLOCKED = "fp8_block"  # answered by the trees of "fp8", told apart by a feature
_BLOCKS = np.array([16.0, 32.0, 64.0, 128.0])
_COLUMNS = 128.0
_QUANTILES = (np.arange(24) + 0.5) / 24
_NORM = 3.0
_WAITS = 0.5

FEATURES = (
    "log2_tokens", "log2_hidden", "log2_width", "log2_local_experts", "log2_top_k", "log2_rows_an_expert",
    "log2_active", "log2_compute_s", "log2_memory_s", "log2_compute_over_memory", "log2_weights_over_l2",
    "log2_activations_over_l2", "log2_tiles_16", "log2_tiles_32", "log2_tiles_64", "log2_tiles_128", "log2_experts",
    "log2_rows", "efficiency_16", "efficiency_32", "efficiency_64", "efficiency_128", "fill_16", "fill_32", "fill_64",
    "fill_128", "pad_width_128", "pad_width_256", "exponent", "gated", "tp", "ep", "blocked", "framework",
    "log2_tokens_a_local_expert",
)  # fmt: skip
_LOGS = 18


def exponent_of(distribution: str) -> float:
    """Exponent of a distribution's name: 1.2 of "power_law_1.2", 0 of "balanced" and of names nobody measured."""
    if distribution.startswith(_EXPONENT_PREFIX):
        try:
            return float(distribution[len(_EXPONENT_PREFIX) :])
        except ValueError:
            return 0.0
    return 0.0


@dataclass(frozen=True, slots=True, eq=False)  # told apart by identity, so that loads are found again
class Shapes:
    """n layers; arrays of shape (n,), bytes of a weight. ``exponent`` is the power law's, ``matrices`` 2 or 3."""

    tokens: FloatArray
    hidden: FloatArray
    intermediate: FloatArray
    experts: FloatArray
    top_k: FloatArray
    matrices: FloatArray
    tp: FloatArray
    ep: FloatArray
    exponent: FloatArray
    itemsize: float
    tiling: str = FASTEST

    @classmethod
    def of(cls, columns: Sequence[FloatArray], itemsize: float, tiling: str = FASTEST) -> Shapes:
        """From the nine arrays in the order of the fields."""
        tokens, hidden, intermediate, experts, top_k, matrices, tp, ep, exponent = columns
        return cls(tokens, hidden, intermediate, experts, top_k, matrices, tp, ep, exponent, itemsize, tiling)


@dataclass(frozen=True, slots=True)
class CoreTime:
    """Seconds of the core and its parts, and the counts that features repeat; each of shape (n,) or (n, blocks)."""

    total: FloatArray
    compute: FloatArray
    memory: FloatArray
    rows: FloatArray
    active: FloatArray
    weights: FloatArray
    activations: FloatArray
    tiles: FloatArray


@dataclass(frozen=True, slots=True)
class Loads:
    """What the experts of the busiest GPU get: its rows (n,), experts with a row (n,), blocks of rows (n, blocks)."""

    rows: FloatArray
    active: FloatArray
    blocks: FloatArray


@lru_cache(maxsize=32)  # a fit asks for those of the same rows at every step
def expert_loads(shapes: Shapes) -> Loads:
    """Rows, experts with a row, and blocks of `_BLOCKS` rows, on the GPU with the most rows.

    An even spread reaches min(rows, experts). Under a power law of exponent a, an expert's load is drawn from the
    density x^-a between 1 and 0.8 of the tokens (0.01 and 2 where there are fewer rows than experts), scaled to the
    routed rows and rounded: so the measurements do it (AIConfigurator's collector, which times the rank with the most
    rows). Quantiles of that law stand for the draw; the busiest of ep ranks lies about sqrt(2 ln ep) deviations above
    the mean.
    """
    local = shapes.experts / shapes.ep
    routed = shapes.tokens * shapes.top_k
    even = np.maximum(routed / shapes.ep, 1.0)
    reached = np.minimum(even, local)
    blocks = reached[:, None] * np.ceil(even[:, None] / reached[:, None] / _BLOCKS)
    uneven = np.flatnonzero(shapes.exponent > 0)
    if not len(uneven):
        return Loads(even, np.maximum(reached, 1.0), blocks)
    few = (routed <= shapes.experts)[uneven]
    low, high = np.where(few, 0.01, 1.0), np.where(few, 2.0, np.maximum(0.8 * shapes.tokens[uneven], 1.5))
    power = 1.0 - shapes.exponent[uneven]
    power = np.where(np.abs(power) < 1e-3, 1e-3, power)
    bottom = low**power
    draws = ((high**power - bottom)[:, None] * _QUANTILES + bottom[:, None]) ** (1.0 / power)[:, None]
    draws /= draws.mean(axis=1, keepdims=True)
    ranks, held = shapes.ep[uneven], local[uneven]
    above = 1.0 + draws.std(axis=1) * np.sqrt(2.0 * np.log(ranks) / held)
    above = np.minimum(above, ranks)
    load = draws * (np.minimum(above, ranks) * routed[uneven] / shapes.experts[uneven])[:, None]
    load = np.minimum(load, shapes.tokens[uneven][:, None])
    got = load >= 0.5
    rows, active = even.copy(), reached.copy()
    rows[uneven] = np.maximum(load.mean(axis=1) * held, 1.0)
    active[uneven] = np.maximum(got.mean(axis=1) * held, np.minimum(rows[uneven], 1.0))
    padded = np.ceil(np.round(load)[:, :, None] / _BLOCKS).mean(axis=1) * held[:, None]
    blocks[uneven] = np.maximum(padded, 1.0)
    return Loads(rows, np.maximum(active, 1.0), blocks)


def core_time(shapes: Shapes, device: Device, log_constants: FloatArray) -> CoreTime:
    """The physical core; ``log_constants`` are the logarithms of ``CONSTANTS``.

    With experts spread over GPUs (ep), a kernel that sorts tokens by expert first touches its own rows alone; Triton's
    moves, activates and adds up all tokens x top_k of them, and the more so the larger ep.
    """
    ec, ed, l2_rate, cycles, penalty, share, token, supply, traffic, products, half, step_s = np.exp(
        aligned(log_constants)
    )
    ec, ed, traffic, products = min(ec, 1.0), min(ed, 1.0), min(traffic, 1.0), min(products, 1.0)
    width = shapes.intermediate / shapes.tp
    loads = expert_loads(shapes)
    rows, active = loads.rows, loads.active
    foreign = np.maximum(shapes.tokens * shapes.top_k - rows, 0.0)
    blocks = loads.blocks + products * foreign[:, None] / _BLOCKS
    # Columns of the up and gate products and of the down product, and the K loops behind them.
    up = np.ceil((shapes.matrices - 1) * width / _COLUMNS)
    down = np.ceil(shapes.hidden / _COLUMNS)
    slowed = device.slowed((_BLOCKS + penalty) / (_BLOCKS * ec))
    step = np.maximum(128.0 * _COLUMNS * _BLOCKS * slowed * device.sms / device.peak_flops, step_s)
    step = np.hypot(step, 64.0 * (_COLUMNS + _BLOCKS) * shapes.itemsize / (supply * device.clock_hz))
    tiles = blocks * up[:, None]
    least = 0.0 if shapes.tiling == STRIPES and np.isfinite(half) else 1.0  # tiles on the busiest SM
    first = np.maximum(tiles / device.sms, least) * step * (shapes.hidden[:, None] / 64.0 + 2.0)
    second = np.maximum(blocks * down[:, None] / device.sms, least) * step * (width[:, None] / 64.0 + 2.0)
    compute, dram = _by_tile(shapes, first + second, device.bandwidth * ed, half)
    weights = active * shapes.matrices * shapes.hidden * width * shapes.itemsize
    activations = (rows + traffic * foreign) * (2.0 * shapes.hidden + shapes.matrices * width) * 2.0
    l2 = np.maximum(device.sms * l2_rate, dram)
    resident = 1.0 / (1.0 + (weights / (share * device.l2_bytes)) ** 4)
    memory = weights * ((1 - resident) / dram + resident / l2)
    total = (compute**_NORM + memory**_NORM) ** (1 / _NORM)
    total = total + activations * token / device.bandwidth + cycles / device.clock_hz
    return CoreTime(total, compute, memory, rows, active, weights, activations, tiles / device.sms)


def _by_tile(shapes: Shapes, compute: FloatArray, rate: float, half: float) -> tuple[FloatArray, FloatArray | float]:
    """(seconds of the products (n,), bytes/s from DRAM) of the tiles that run; ``compute`` (n, blocks) is of each."""
    if shapes.tiling != TWO_TILES or not np.isfinite(half):
        return compute.min(axis=1), rate
    many = shapes.tokens > shapes.experts / shapes.ep
    return np.where(many, compute[:, 2], compute[:, 0]), np.where(many, min(half, 1.0) * rate, rate)


def features(shapes: Shapes, device: Device, core: CoreTime, framework: int, blocked: bool) -> FloatArray:
    """The boosters' inputs, of shape (n, len(FEATURES)); ``blocked`` marks fp8 with a scale for every block."""
    s = shapes
    out = np.empty((s.tokens.size, len(FEATURES)))
    width = s.intermediate / s.tp
    local = s.experts / s.ep
    each = core.rows / local
    logs = out[:, :_LOGS]
    for column, values in enumerate((
        s.tokens, s.hidden, width, local, s.top_k, each, core.active, core.compute, core.memory,
        core.compute / core.memory, core.weights / device.l2_bytes, core.activations / device.l2_bytes,
        core.tiles[:, 0], core.tiles[:, 1], core.tiles[:, 2], core.tiles[:, 3], s.experts, core.rows,
    )):  # fmt: skip
        logs[:, column] = values
    np.log2(logs, out=logs)
    out[:, 18:22] = core.tiles / np.ceil(core.tiles)
    loaded = (core.rows / core.active)[:, None]
    out[:, 22:26] = loaded / (np.ceil(loaded / _BLOCKS) * _BLOCKS)
    out[:, 26] = width / (np.ceil(width / 128.0) * 128.0)
    out[:, 27] = width / (np.ceil(width / 256.0) * 256.0)
    out[:, 28] = s.exponent
    out[:, 29] = s.matrices
    out[:, 30] = s.tp
    out[:, 31] = s.ep
    out[:, 32] = blocked
    out[:, 33] = framework
    out[:, 34] = np.log2(s.tokens / local)  # what Triton's default tiles go by
    return out


def kernel_of(framework: str, name: str, gpu: GPUSpec) -> str:
    """The kind of kernel that a framework runs a variant with, as its releases of 2026 choose (one of `KERNELS`).

    vLLM took FlashInfer's CUTLASS kernels for fp8 from Hopper on and for bf16 on Blackwell; TensorRT-LLM runs
    block-scaled fp8 in Triton where there is no wgmma. The measured tables name the kernel of every row and agree.
    """
    major = float((gpu.compute_capability or "0").split(".")[0])
    if framework != "trtllm" and name in MARLIN:
        return "marlin"
    if gpu.vendor != "nvidia":
        return "triton"
    if name in ("nvfp4", "mxfp8", "w4a8_mxfp4_mxfp8"):
        return "cutlass"
    if framework == "trtllm":
        return "triton" if name == BLOCKED and runs_mma(gpu) else "cutlass"
    if framework == "sglang":
        return "triton"
    return "cutlass" if major >= (10 if name == "bf16" else 9) else "triton"


def aligned(log_constants: FloatArray) -> FloatArray:
    """The logarithms of `CONSTANTS`, and of the shortest time of 64 steps of a tile's K loop, 0 s today.

    Sets from before held such a time, the sixth of eight constants, and neither supply nor foreign rows: it could not
    be told from slow arithmetic, and on a board with faster tensor cores than any measured one it was all there was.
    Those after them did not know half lines: an infinite share says so.
    """
    if len(log_constants) == len(CONSTANTS):
        return np.append(log_constants, -np.inf)
    if len(log_constants) == len(CONSTANTS) - 1:
        return np.concatenate([log_constants, [np.inf, -np.inf]])
    unknown = [np.inf, -np.inf, -np.inf, np.inf]
    return np.concatenate([log_constants[:5], log_constants[6:], unknown, log_constants[5:6]])


def tiling_of(framework: str, kernel: str, name: str, early: bool = False) -> str:
    """How a kernel shares out its products: `FASTEST`, `TWO_TILES` or `STRIPES`.

    Triton's fused_moe in SGLang, and in ``early`` releases of vLLM, has two default tiles for bf16. Up to as many
    tokens as experts on this GPU: 16 rows x 32 columns, K in steps of 64. From there on, whatever an expert gets: 64 x
    64 in steps of 32, which reads weights 64 bytes at a time, at about 0.75 of the rate on every board. vLLM 0.24 keeps
    long steps. Tuned tiles, which both ship for some boards and widths, are not told apart.

    Marlin cuts all tiles and their K loops into stripes of equal length, one for each SM.
    """
    if kernel == "marlin":
        return STRIPES
    default = kernel == "triton" and name == "bf16" and (framework == "sglang" or (framework == "vllm" and early))
    return TWO_TILES if default else FASTEST


def on_board(log_constants: FloatArray, itemsize: float, measured: Device | None, device: Device) -> FloatArray:
    """A sibling's constants for ``device``: weights that do not wait for DRAM come no faster from a faster one.

    That is so where they come at less than `_WAITS` of the bandwidth, even if counted as 16 bit (some kernels write
    them out so). vLLM's fp8 experts take as long on H200 as on H100 (0.98 in the median), with 1.4 of the bandwidth.
    """
    if measured is None or np.exp(log_constants[1]) * 2.0 / itemsize >= _WAITS:
        return log_constants
    held = log_constants.copy()
    held[1] += np.log(measured.bandwidth / device.bandwidth)
    return held


def booster_of(name: str) -> str:
    """The booster that corrects a variant: its own, but fp8's for fp8 with block scales."""
    return "fp8" if name == BLOCKED else name


class ServingMoE(ServingEstimator):
    """Seconds of MoE layers with serving kernels, in 16 bit (fp16 as bf16) and quantized."""

    def seconds(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        """Kernel time, shape (n,)."""
        seconds = np.empty(len(batch.dtypes))
        for dtype, quant, rows in by_variant(batch):
            seconds[rows] = self._seconds(batch, gpu, dtype, quant, rows)
        return seconds

    def _seconds(self, batch: Batch, gpu: GPUSpec, dtype: str, quant: str, rows: npt.NDArray[np.int64]) -> FloatArray:
        exponent = np.array([exponent_of(getattr(batch.ops[i], "distribution", "")) for i in rows])
        names = ("tokens", "hidden", "intermediate", "experts", "top_k", "matrices", "tp", "ep")
        framework = framework_name(batch.kernels)
        name = variant(dtype, quant)
        kernel = kernel_of(framework, name, gpu)
        columns = [*(batch.columns[column][rows] for column in names), exponent]
        shapes = Shapes.of(columns, weight_bytes(dtype, quant), tiling_of(framework, kernel, name))
        source, found, constants = self._corrections.resolve(gpu, framework, name, kernel=kernel)
        measured = self._corrections.device(source, variant(dtype))
        return self._corrected(
            source, booster_of(found), gpu, dtype,
            lambda device: core_time(shapes, device, on_board(constants, shapes.itemsize, measured, device)),
            lambda device, core: features(shapes, device, core, FRAMEWORKS[framework], found == BLOCKED),
        )  # fmt: skip
