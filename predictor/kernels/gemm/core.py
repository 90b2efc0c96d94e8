"""The physics of a matrix product that tensor cores work through in tiles: waves x K loop against bytes moved.

    tile_s    = (K / 64 / splits + prologue) x step_s            a tile's K loop, its pipeline's filling included
    step_s    = max(128 tm tn (1 + penalty (1/tm + 1/tn)) / (efficiency x peak / SMs), step_cycles / clock)
    compute_s = waves x tile_s + split_cycles / clock x log2(splits)
    memory_s  = bytes through DRAM and L2, each at its own rate
    core_s    = (compute_s^3 + memory_s^3)^(1/3) + overhead_cycles / clock

One core, whoever asks: a tile probe says which tile ran, so that its row tells what a step and a wave of this tile take
(`Tiles`); a library does not, and then the fastest of its candidate tiles and splits of K is taken. What 64 elements of
K take is called a step throughout; "penalty" is what a tile's operands cost, which grow with its edge and not its area.
"""

from __future__ import annotations

import numpy as np

from predictor.files.records import dataclass
from predictor.kernels.device import Device
from predictor.kernels.named import NORM, Named, constant
from predictor.ops.roofline import FloatArray
from predictor.ops.tiling import TileGrid, filled

#: Candidate tiles of the core, rows x columns of C, each with 1, 2, 4 or 8 splits of K, of which every one keeps some
#: of K to itself: the sizes that libraries have kernels for. Chosen by hand, not from data.
_TILES = np.array(
    [[256, 128], [128, 256], [128, 128], [128, 64], [64, 128], [64, 64], [64, 256], [32, 64], [64, 32], [16, 64],
     [16, 128]], dtype=np.float64,
)  # fmt: skip
#: Those of products grouped by expert with a scale for every block, whose two sets of accumulators, of a block and of
#: all before it, stand in registers. Source: deepseek-ai/DeepGEMM@a6d97a1c, jit_kernels/gemm.py, as recalled
#: (unverified): at most 128 rows and columns.
_TILES_OF_GROUPS = _TILES[_TILES.max(axis=1) <= 128]
_SPLITS = np.array([1.0, 2.0, 4.0, 8.0])
_ONE_SPLIT = np.array([1.0])
_LEAST_K = 256.0
#: Elements of K that are called a step, by definition: 128 bytes in 16 bit.
STEP = 64.0
#: Share of L2 that a call finds as the call before left it: what passed through it since has taken the rest. A tile
#: probe, which is run again and again on the same operands, finds as much of its weights there. Chosen by hand, not
#: from data.
HELD = 0.5


@dataclass(frozen=True, slots=True)
class Constants(Named):
    """Constants of the core."""

    compute_efficiency: float = constant("share", "of the peak, for an endless tile")  # beyond 1 counts as 1
    dram_efficiency: float = constant("share", "of what DRAM gives to copies")
    l2_bytes_per_s_per_sm: float = constant("bytes/s", "rate at which an SM is fed from L2")
    overhead_cycles: float = constant("cycles", "launch, first loads and write-out")
    tile_penalty: float = constant("", "elements: a tile runs at 1 / (1 + this x (1/tm + 1/tn)) of the efficiency")
    step_cycles: float = constant("cycles", "shortest turn of the K loop")
    resident_share: float = constant("share", "of L2: weights below it are found there")
    split_cycles: float = constant("cycles", "cost of each doubling of split-K")
    smallest_tile: float = constant("", "elements of C: a smaller tile takes as long")
    quantize_cycles: float = constant("cycles", "launch of the kernel that quantizes activations")
    quantize_row_cycles: float = constant("cycles", "of an SM, for each row that is quantized")
    quantize_passes: float = constant("", "over the bytes of the activations, read in 16 bit and written narrower")


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tile that ran each of n products, where it is known: rows and columns of C, and K of one turn of the loop.

    ``rate`` and ``call_cycles`` are of the kernel that ran them: its rate over the library's, and the cycles that a
    turn of its loop takes beyond the arithmetic (a processor calls its library for every turn).
    """

    m: FloatArray  # (n,)
    n: FloatArray  # (n,)
    k: FloatArray  # (n,)
    rate: float = 1.0
    call_cycles: float = 0.0


@dataclass(frozen=True, slots=True)
class Shapes:
    """n products: ``batch``, ``m``, ``n``, ``k`` of shape (n,), and the bytes of an element of A and of B.

    ``blocked``: sums leave the tensor cores after every 128 elements of K, to be scaled. ``tiles``: those that ran;
    None for candidates, which is to ask a library. A row that says its tile is of a kernel that was run again and again
    on the same operands. ``quantized``: A is given in its narrow format, so that nothing quantizes it in this time.
    ``grouped``: by expert, ``m`` rows each.
    """

    batch: FloatArray
    m: FloatArray
    n: FloatArray
    k: FloatArray
    itemsize: float
    weight_itemsize: float
    blocked: bool = False
    tiles: Tiles | None = None
    quantized: bool = False
    grouped: bool = False

    @property
    def step(self) -> float:
        """Of the time of a turn of the K loop, what 64 elements of K take: tiles are 128 bytes of K deep.

        Scaling the sums of a block takes as long as a turn again.
        """
        return 1.0 if self.blocked else min(1.0, self.itemsize / 2.0)

    @property
    def quantizes(self) -> bool:
        """Whether the time holds a kernel that quantizes A."""
        return self.itemsize < 2 and not self.quantized

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


@dataclass(frozen=True, slots=True)
class Loops:
    """Every candidate of n products: s split factors, c tiles (one of each where the tile is known).

    ``waves`` (n, s, c), ``step`` (seconds of 64 elements of K; (c,), or (n, 1, 1) where the tile is known), ``floor``
    (the shortest ``step``), ``loop`` (n, s): steps of a tile; ``split_s`` (s,); ``allowed`` (n, s).
    """

    tile_m: FloatArray
    tile_n: FloatArray
    splits: FloatArray
    grid: TileGrid
    waves: FloatArray
    step: FloatArray
    floor: FloatArray | float
    loop: FloatArray
    split_s: FloatArray

    def times(self, k: FloatArray) -> FloatArray:
        """Seconds of the K loops over all waves with each split, (n, s), of the best tile; ``k`` (n,)."""
        times: FloatArray = (self.waves * self.step).min(axis=2) * self.loop + self.split_s
        times[:, 1:][k[:, None] < _LEAST_K * self.splits[1:]] = np.inf
        return times


def loops(shapes: Shapes, device: Device, constants: Constants) -> Loops:
    """What each tile, or the one that ran, makes of every product."""
    tiles, efficiency, cycle = shapes.tiles, min(constants.compute_efficiency, 1.0), 1.0 / device.clock_hz
    turns: FloatArray | float
    if tiles is None:
        candidates = _TILES_OF_GROUPS if shapes.grouped and shapes.blocked else _TILES
        tm, tn, splits = candidates[:, 0], candidates[:, 1], _SPLITS
        turns, smallest = shapes.step, constants.smallest_tile
    else:
        tm, tn, splits = tiles.m[:, None], tiles.n[:, None], _ONE_SPLIT
        turns, smallest = (STEP / tiles.k)[:, None], 0.0
        efficiency = efficiency * tiles.rate
    slowed = device.slowed((1 + constants.tile_penalty * (1 / tm + 1 / tn)) / efficiency)
    elements = np.maximum(tm * tn * slowed, smallest)
    step = 2.0 * STEP * elements * (device.sms / device.peak_flops)
    floor = turns * constants.step_cycles / device.clock_hz
    step = np.maximum(step, floor)
    if tiles is not None:
        step = (step + turns * (tiles.call_cycles * cycle))[:, None, :]
    grid = TileGrid.cover(shapes.m[:, None], shapes.n[:, None], tm, tn, shapes.batch[:, None])
    waves = np.ceil(np.asarray(grid.blocks)[:, None, :] * (splits[:, None] / device.sms))
    loop = shapes.k[:, None] / (STEP * splits) + device.prologue
    return Loops(
        tm, tn, splits, grid, waves, step, floor, loop, constants.split_cycles / device.clock_hz * np.log2(splits)
    )


@dataclass(frozen=True, slots=True)
class GemmTraffic:
    """Seconds (n,) of the bytes, the share of the weights that L2 holds, and the rates of DRAM and L2 in bytes/s."""

    seconds: FloatArray
    resident: FloatArray
    dram: float
    l2: float


def traffic(shapes: Shapes, device: Device, constants: Constants) -> GemmTraffic:
    """Time of the bytes: of weights from L2 or DRAM, of activations from L2, of all that L2 cannot hold from DRAM."""
    weights, activations = shapes.weights, shapes.activations
    dram = device.bandwidth * device.fed * constants.dram_efficiency
    l2 = max(device.sms * constants.l2_bytes_per_s_per_sm, dram)
    share = constants.resident_share if shapes.tiles is None else HELD
    resident = device.resident(weights, share)
    memory = weights * (1 - resident) / dram + (weights * resident + activations) / l2
    memory = np.maximum(memory, np.maximum(weights + activations - HELD * device.l2_bytes, 0.0) / dram)
    return GemmTraffic(memory, resident, dram, l2)


def core_time(shapes: Shapes, device: Device, constants: Constants) -> CoreTime:
    """The physical core."""
    compute = loops(shapes, device, constants).times(shapes.k).min(axis=1)
    moved = traffic(shapes, device, constants)
    total = (compute**NORM + moved.seconds**NORM) ** (1 / NORM) + constants.overhead_cycles / device.clock_hz
    if shapes.quantizes:
        total += quantize_time(shapes, device, constants, moved.l2, moved.dram)
    return CoreTime(total, compute, moved.seconds)


def quantize_time(shapes: Shapes, device: Device, constants: Constants, l2: float, dram: float) -> FloatArray:
    """Seconds, (n,), of the kernel that quantizes A; ``l2`` and ``dram`` in bytes/s.

    Such kernels give each row to a block, whose own cost an SM pays one row after the other: some 1,800 cycles in
    vLLM's (dynamic scales a token) on H100, L40S and RTX PRO 6000 alike, a tenth of it in others. Long rows take as
    long as their bytes, a little more often than once. What was written last is still in L2.
    """
    rows = shapes.batch * shapes.m
    moved = rows * shapes.k * (2.0 + shapes.itemsize) * constants.quantize_passes
    of_bytes = np.maximum(moved / l2, np.maximum(moved - HELD * device.l2_bytes, 0.0) / dram)
    of_rows = rows * (constants.quantize_row_cycles / (device.sms * device.clock_hz))
    seconds: FloatArray = np.hypot(of_bytes, of_rows) + constants.quantize_cycles / device.clock_hz
    return seconds


#: Tiles whose waves and wave efficiency are features, and those of them that are large enough to reach the peak. Chosen
#: by hand, not from data.
_SHOWN_M = np.array([64.0, 128, 128, 256, 256, 192, 16, 32, 64, 128])
_SHOWN_N = np.array([64.0, 64, 128, 128, 256, 128, 128, 128, 256, 256])
_LARGE = [2, 3, 4, 9]

FEATURES = (
    "log2_m", "log2_n", "log2_k", "log2_compute_s", "log2_memory_s", "log2_longer_s", "log2_compute_over_memory",
    "log2_intensity", "log2_weights_over_l2", "log2_bytes_over_l2", "log2_activations_over_l2", "pad_m_8", "pad_m_64",
    "pad_m_128", "pad_n_64", "pad_n_256", "gcd_m", "gcd_n", "gcd_k", "best_tile", "log2_tiles_128",
    *(f"log2_waves_{int(m)}x{int(n)}" for m, n in zip(_SHOWN_M, _SHOWN_N, strict=True)),
    *(f"wave_efficiency_{int(m)}x{int(n)}" for m, n in zip(_SHOWN_M, _SHOWN_N, strict=True)),
    "framework",
)  # fmt: skip


def features(shapes: Shapes, device: Device, core: CoreTime, framework: int) -> FloatArray:
    """The boosters' inputs of shape (n, len(FEATURES)): no unit of a GPU stands in them but as a ratio or a time."""
    m, n, k, batch = shapes.m, shapes.n, shapes.k, shapes.batch
    weights, activations = shapes.weights, shapes.activations
    moved = weights + activations
    tiles = TileGrid.cover(m[:, None], n[:, None], _SHOWN_M, _SHOWN_N, batch[:, None]).blocks
    waves = tiles / device.sms
    efficiency = filled(waves)
    useful = efficiency * (batch * m * n)[:, None] / (tiles * (_SHOWN_M * _SHOWN_N))
    logs = np.log2(np.array([
        m, n, k, core.compute, core.memory, np.maximum(core.compute, core.memory), core.compute / core.memory,
        2.0 * batch * m * n * k / moved, weights / device.l2_bytes, moved / device.l2_bytes,
        activations / device.l2_bytes, batch * m * n / (16384.0 * device.sms), *np.asarray(waves).T,
    ]))  # fmt: skip
    shape = np.array([
        *(filled(size, tile) for size, tile in ((m, 8.0), (m, 64.0), (m, 128.0), (n, 64.0), (n, 256.0))),
        *np.gcd(np.array((m, n, k), dtype=np.int64), 256), useful[:, _LARGE].max(axis=1),
    ])  # fmt: skip
    last = np.full((1, m.size), float(framework))
    return np.concatenate((logs[:11], shape, logs[11:], efficiency.T, last)).T
