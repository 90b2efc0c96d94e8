"""Mixture-of-experts layers: two or three grouped GEMMs over the experts that got a token.

The core: rows padded to a tile for every active expert, the weights of the active experts through DRAM (or L2 where
they fit), and a fixed number of clock cycles for the kernels around them. How many experts are active, with how many
rows, is the routing's (`predictor.ops.routing`).

    tiles_s   = max(tiles / SMs, 1) x step_s x (K / 64 + 2)
    step_s    = hypot(128 x 128 x t x slowed x SMs / peak, 64 x (128 + t) x itemsize / supply)
    compute_s = tiles_s of up and gate + tiles_s of down, of the t whose sum is least
    memory_s  = weights x ((1 - resident) / dram + resident / l2)
    core_s    = (compute_s^3 + memory_s^3)^(1/3) + activations x token_s_per_byte / bandwidth + overhead_cycles / clock

A tile has t = 16, 32, 64 or 128 rows and 128 columns; tiles = (tiles of t rows of all experts) x ceil(columns / 128). K
is hidden for up and gate, and width = intermediate / tp for down. slowed = (t + tile_penalty) / (t x efficiency) at the
full tensor rate (`Device.slowed`); supply is in bytes/s of an SM. In bytes: weights = active x matrices x hidden x
width x itemsize; activations = rows x (2 hidden + matrices x width) x 2. Marlin's kernels, which share out stripes of
the weights, may leave SMs without a tile's worth (no max), and those with two tiles take t by the number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from predictor.engines.library import FASTEST, STRIPES, TWO_TILES
from predictor.files.records import dataclass, replace
from predictor.kernels.device import MMA_ROWS, Device
from predictor.kernels.named import NORM, Named
from predictor.ops.roofline import FloatArray
from predictor.ops.routing import BLOCKS, Loads
from predictor.ops.tiling import filled


@dataclass(frozen=True, slots=True)
class Constants(Named):
    """Constants of the core."""

    compute_efficiency: float
    dram_efficiency: float
    l2_bytes_per_s_per_sm: float
    overhead_cycles: float
    tile_penalty: float  # in rows: a tile of t rows runs at t / (t + penalty) of the efficiency
    resident_share: float  # weights below this share of L2 stay there
    token_s_per_byte: float  # permuting, weighing and adding up: seconds a byte of routed rows, over bandwidth
    supply_bytes: float  # a clock and SM with mma.sync: operands on their way, partly hidden behind arithmetic
    foreign_traffic: float  # share of that traffic, and
    foreign_rows: float  # of the products, that rows of other GPUs' experts cause here as well
    half_lines: float  # share of the DRAM rate that a kernel gets which reads weights 64 bytes at a time


#: Constants of the kernel's code, alike for all variants of it.
OF_KERNEL = ("supply_bytes", "foreign_traffic", "foreign_rows", "half_lines")

#: How the supply of operands grows with the rows that one instruction takes (mma.sync 16, wgmma 64, tcgen05 128): as
#: the edge of a tile of so many more products. Chosen by looking at B200 and Hopper left out
#: (benchmarks/results/accuracy-2026-11-23.md).
_EDGE = 0.5
_COLUMNS = 128.0  # of a tile: chosen by hand, not from data
#: FLOPs a clock and SM that mma.sync does in 16 bit at most, on Hopper and B200 too, whose tensor cores do more by
#: other instructions: A100's peak. Chosen by looking at Marlin's best products, 890 to 960 a clock and SM on A100,
#: H100, H200, B200 and GB200 alike.
_MMA_FLOPS = 2048.0

FEATURES = (
    "log2_tokens", "log2_hidden", "log2_width", "log2_local_experts", "log2_top_k", "log2_rows_an_expert",
    "log2_active", "log2_compute_s", "log2_memory_s", "log2_compute_over_memory", "log2_weights_over_l2",
    "log2_activations_over_l2", "log2_tiles_16", "log2_tiles_32", "log2_tiles_64", "log2_tiles_128", "log2_experts",
    "log2_rows", "efficiency_16", "efficiency_32", "efficiency_64", "efficiency_128", "fill_16", "fill_32", "fill_64",
    "fill_128", "pad_width_128", "pad_width_256", "exponent", "gated", "tp", "ep", "blocked", "framework",
    "log2_tokens_a_local_expert",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shapes:
    """n layers; arrays of shape (n,), bytes of a weight. ``matrices`` is 2 or 3.

    What the router makes of them (`predictor.ops.routing.Loads`): ``rows`` of this GPU's experts, ``active`` experts
    with a row, and ``blocks`` of rows (n, 4). ``exponent`` is that of a measured power law, else 0.
    """

    tokens: FloatArray
    hidden: FloatArray
    intermediate: FloatArray
    experts: FloatArray
    top_k: FloatArray
    matrices: FloatArray
    tp: FloatArray
    ep: FloatArray
    rows: FloatArray
    active: FloatArray
    blocks: FloatArray
    exponent: FloatArray
    itemsize: float
    tiling: str = FASTEST

    @classmethod
    def of(
        cls, columns: Sequence[FloatArray], loads: Loads, exponent: FloatArray, itemsize: float, tiling: str = FASTEST
    ) -> Shapes:
        """From the first eight arrays in the order of the fields, and what the router makes of them."""
        tokens, hidden, intermediate, experts, top_k, matrices, tp, ep = columns
        routed = loads.rows, loads.active, loads.blocks
        return cls(tokens, hidden, intermediate, experts, top_k, matrices, tp, ep, *routed, exponent, itemsize, tiling)

    def first(self, count: int) -> Shapes:
        """The first ``count`` of the layers."""
        every = {name: getattr(self, name) for name in self.__slots__}
        kept: dict[str, Any] = {name: v[:count] for name, v in every.items() if isinstance(v, np.ndarray)}
        return replace(self, **kept)


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


def core_time(shapes: Shapes, device: Device, constants: Constants) -> CoreTime:
    """The physical core.

    With experts spread over GPUs (ep), a kernel that sorts tokens by expert first touches its own rows alone; Triton's
    moves, activates and adds up all tokens x top_k of them, and the more so the larger ep.
    """
    ec, ed = min(constants.compute_efficiency, 1.0), min(constants.dram_efficiency, 1.0)
    traffic, products = min(constants.foreign_traffic, 1.0), min(constants.foreign_rows, 1.0)
    width = shapes.intermediate / shapes.tp
    rows, active = shapes.rows, shapes.active
    foreign = np.maximum(shapes.tokens * shapes.top_k - rows, 0.0)
    blocks = shapes.blocks + products * foreign[:, None] / BLOCKS
    # Columns of the up and gate products and of the down product, and the K loops behind them.
    up = np.ceil((shapes.matrices - 1) * width / _COLUMNS)
    down = np.ceil(shapes.hidden / _COLUMNS)
    slowed = device.slowed((BLOCKS + constants.tile_penalty) / (BLOCKS * ec))
    peak = device.peak_flops
    if shapes.tiling == STRIPES:  # Marlin's
        peak = min(peak, _MMA_FLOPS * device.sms * device.clock_hz)
    step = 128.0 * _COLUMNS * BLOCKS * slowed * device.sms / peak
    supply = constants.supply_bytes * (device.tile_rows / MMA_ROWS) ** _EDGE * device.clock_hz
    supplied = 64.0 * (_COLUMNS + BLOCKS) * shapes.itemsize / supply
    step = np.hypot(step, supplied)
    tiles = blocks * up[:, None]
    least = 0.0 if shapes.tiling == STRIPES else 1.0  # tiles on the busiest SM
    first = np.maximum(tiles / device.sms, least) * step * (shapes.hidden[:, None] / 64.0 + 2.0)
    second = np.maximum(blocks * down[:, None] / device.sms, least) * step * (width[:, None] / 64.0 + 2.0)
    compute, dram = _by_tile(shapes, first + second, device.bandwidth * ed, constants.half_lines)
    weights = active * shapes.matrices * shapes.hidden * width * shapes.itemsize
    activations = (rows + traffic * foreign) * (2.0 * shapes.hidden + shapes.matrices * width) * 2.0
    l2 = np.maximum(device.sms * constants.l2_bytes_per_s_per_sm, dram)
    resident = device.resident(weights, constants.resident_share)
    memory = weights * ((1 - resident) / dram + resident / l2)
    total = (compute**NORM + memory**NORM) ** (1 / NORM)
    total = total + activations * constants.token_s_per_byte / device.bandwidth
    total = total + constants.overhead_cycles / device.clock_hz
    return CoreTime(total, compute, memory, rows, active, weights, activations, tiles / device.sms)


def _by_tile(shapes: Shapes, compute: FloatArray, rate: float, half: float) -> tuple[FloatArray, FloatArray | float]:
    """(seconds of the products (n,), bytes/s from DRAM) of the tiles that run; ``compute`` (n, blocks) is of each."""
    if shapes.tiling != TWO_TILES:
        return compute.min(axis=1), rate
    many = shapes.tokens > shapes.experts / shapes.ep
    return np.where(many, compute[:, 2], compute[:, 0]), np.where(many, min(half, 1.0) * rate, rate)


def features(shapes: Shapes, device: Device, core: CoreTime, framework: int, blocked: bool) -> FloatArray:
    """The boosters' inputs, of shape (n, len(FEATURES)); ``blocked`` marks fp8 with a scale for every block."""
    s, ones = shapes, np.ones(shapes.tokens.size)
    width, local = s.intermediate / s.tp, s.experts / s.ep
    logs = np.log2(np.array([
        s.tokens, s.hidden, width, local, s.top_k, core.rows / local, core.active, core.compute, core.memory,
        core.compute / core.memory, core.weights / device.l2_bytes, core.activations / device.l2_bytes, *core.tiles.T,
        s.experts, core.rows, s.tokens / local,  # the last: what Triton's default tiles go by
    ]))  # fmt: skip
    rest = np.array([
        *filled(core.tiles).T, *filled((core.rows / core.active)[:, None], BLOCKS).T,
        filled(width, 128.0), filled(width, 256.0), s.exponent, s.matrices, s.tp, s.ep, ones * blocked,
        ones * framework,
    ])  # fmt: skip
    return np.concatenate((logs[:-1], rest, logs[-1:])).T
