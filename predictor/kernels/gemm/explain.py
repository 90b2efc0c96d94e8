"""The GEMM core of one product in words: which tile, how many waves, what a tile takes, what bounds it."""

from __future__ import annotations

from math import log2

import numpy as np

from predictor.files.records import dataclass
from predictor.kernels.device import Device
from predictor.kernels.explanation import COUNT, SHARE, WORD, Term, terms
from predictor.kernels.gemm.core import HELD, STEP, Constants, Shapes, core_time, loops, quantize_time, traffic
from predictor.kernels.named import NORM
from predictor.ops.roofline import FloatArray
from predictor.ops.tiling import TileGrid


@dataclass(frozen=True, slots=True)
class Tiled:
    """One product, cut into tiles, whichever core did: sizes, tile, splits of K and the SMs that work."""

    m: float
    n: float
    tile_m: float
    tile_n: float
    splits: float
    grid: TileGrid
    sms: float

    @classmethod
    def cut(cls, shapes: Shapes, tile_m: float, tile_n: float, splits: float, sms: float) -> Tiled:
        """The only product of ``shapes``."""
        batch, m, n = (float(np.ravel(size)[0]) for size in (shapes.batch, shapes.m, shapes.n))
        return cls(m, n, tile_m, tile_n, splits, TileGrid.cover(m, n, tile_m, tile_n, batch), sms)

    @property
    def blocks(self) -> float:
        """Tiles of all products, times the splits."""
        return float(self.grid.blocks * self.splits)

    @property
    def whole_waves(self) -> float:
        """Waves that run, the tail wave included."""
        return float(self.grid.whole_waves(self.sms, self.splits))

    @property
    def filled(self) -> float:
        """Share of the tiles' elements, and of all waves' places, that hold a part of the product."""
        padded = float(self.grid.rows * self.tile_m) * float(self.grid.columns * self.tile_n)
        return self.m * self.n / padded * float(self.grid.wave_efficiency(self.sms, self.splits))

    def grid_terms(self, felt: str = "") -> list[Term]:
        """Tile, grid and waves; ``felt``: what of the last wave the core counts."""
        tail = float(self.grid.tail_blocks(self.sms, self.splits))
        return terms("tile grid", [
            ("tile", f"{self.tile_m:.0f} x {self.tile_n:.0f}", WORD, "rows x columns of C"),
            ("splits of K", self.splits, COUNT, ""),
            ("grid", f"{self.grid.rows:.0f} x {self.grid.columns:.0f}", WORD, "tiles down x across"),
            ("blocks", self.blocks, COUNT, f"tiles x splits x {float(self.grid.batch):.0f} products"),
            ("waves", float(self.grid.waves(self.sms, self.splits)), COUNT, f"blocks / {self.sms:.0f} SMs"),
            ("waves that run", self.whole_waves, COUNT, felt),
            ("tail", tail / self.sms, SHARE, f"of the SMs run one of the {tail:.0f} blocks of the last wave"),
        ])  # fmt: skip

    def padding_terms(self) -> list[Term]:
        """What of the tiles is beyond the product."""
        return terms("padding", [
            ("m", 1.0 - self.m / float(self.grid.rows * self.tile_m), SHARE,
             f"of the tiles' rows are beyond m {self.m:.0f}"),
            ("n", 1.0 - self.n / float(self.grid.columns * self.tile_n), SHARE,
             f"of the tiles' columns are beyond n {self.n:.0f}"),
        ])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tile and split of K that the core takes for one product, the fastest or the one that ran, and its times."""

    tiled: Tiled
    step_s: float
    floor_s: float
    loop: float
    compute_s: float

    @property
    def tile_s(self) -> float:
        """Seconds of one tile, and so of one wave."""
        return self.loop * self.step_s


def chosen(shapes: Shapes, device: Device, constants: Constants) -> Chosen:
    """What `gemm.core_time` takes for the only product of ``shapes``."""
    loop = loops(shapes, device, constants)
    times = loop.times(shapes.k)[0]
    split = int(times.argmin())
    tile = int((loop.waves * loop.step)[0, split].argmin())

    def of_tile(values: FloatArray | float) -> float:
        flat = np.ravel(values)
        return float(flat[tile] if flat.size > 1 else flat[0])

    sizes = of_tile(loop.tile_m), of_tile(loop.tile_n), float(loop.splits[split])
    counts = of_tile(loop.step), of_tile(loop.floor), float(loop.loop[0, split]), float(times[split])
    return Chosen(Tiled.cut(shapes, *sizes, device.sms), *counts)


def core_terms(shapes: Shapes, device: Device, constants: Constants) -> tuple[list[Term], str]:
    """(terms of the core, what takes most of its time) for the only product of ``shapes``."""
    c, moved = chosen(shapes, device, constants), traffic(shapes, device, constants)
    compute_s, memory_s, overhead_s = c.compute_s, float(moved.seconds[0]), constants.overhead_cycles / device.clock_hz
    weights, others, splits = float(shapes.weights[0]), float(shapes.activations[0]), c.tiled.splits
    resident, k, quantize_s = float(moved.resident[0]), float(shapes.k[0]), 0.0
    from_dram = weights + others > HELD * device.l2_bytes or weights * (1 - resident) / moved.dram > 0.5 * memory_s
    if shapes.quantizes:
        quantize_s = float(quantize_time(shapes, device, constants, moved.l2, moved.dram)[0])
    cache = "DRAM" if from_dram else "L2"
    parts = {"compute": compute_s, cache: memory_s, "launch": overhead_s, "quantizing activations": quantize_s}
    waves, idle = c.tiled.whole_waves, 1.0 - float(c.tiled.grid.wave_efficiency(device.sms, splits))
    felt = "the shortest iteration of the loop" if c.step_s <= c.floor_s else "the tensor cores"
    parts_of_time = c.tiled.grid_terms() + terms("one tile", [
        ("step", c.step_s, "s", f"{STEP:.0f} elements of K, set by {felt}"),
        ("steps", k / STEP / splits, COUNT, f"K {k:.0f} / {STEP:.0f} / splits"),
        ("prologue", device.prologue, COUNT, "steps that fill and drain the pipeline"),
        ("tile latency", c.tile_s, "s", "(steps + prologue) x step: one wave"),
    ]) + terms("core", [
        ("compute", compute_s, "s", f"{waves:.0f} waves x tile latency + {log2(splits):.0f} x split cost"),
        ("memory", memory_s, "s", f"{cache}; {resident:.0%} of the weights are in L2"),
        ("weights", weights, "bytes", ""),
        ("activations", others, "bytes", "A and C"),
        ("joined", float((compute_s**NORM + memory_s**NORM) ** (1 / NORM)), "s", f"p-norm, p = {NORM:g}"),
        ("overhead", overhead_s, "s", "launch, first loads and write-out"),
        *([("quantizing", quantize_s, "s", "a kernel before the product")] if quantize_s else []),
        ("core", float(core_time(shapes, device, constants).total[0]), "s", "their sum"),
    ]) + c.tiled.padding_terms() + terms("padding", [
        ("idle SMs", idle, SHARE, "of the slots of all waves are idle"),
        ("padding and idle", compute_s * (1.0 - c.tiled.filled), "s", "of compute"),
    ])  # fmt: skip
    return parts_of_time, max(parts, key=lambda name: parts[name])
