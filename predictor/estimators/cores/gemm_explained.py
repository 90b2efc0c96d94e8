"""The GEMM core of one product in words: which tile, how many waves, what a tile takes, what bounds it."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import numpy as np

from predictor.estimators.cores.gemm import (
    HELD,
    STEP,
    Constants,
    Shapes,
    core_time,
    loops,
    quantize_time,
    traffic,
)
from predictor.estimators.device import Device
from predictor.estimators.explanation import COUNT, SHARE, WORD, Term, terms
from predictor.estimators.named import NORM
from predictor.roofline import FloatArray

#: Unit and meaning of every constant.
CONSTANT_WORDS = {
    "compute_efficiency": (SHARE, "of the peak, for an endless tile"),
    "dram_efficiency": (SHARE, "of DRAM's bandwidth"),
    "l2_bytes_per_s_per_sm": ("bytes/s", "rate at which an SM is fed from L2"),
    "overhead_cycles": ("cycles", "launch, first loads and write-out"),
    "tile_penalty": (COUNT, "elements: a tile runs at 1 / (1 + this x (1/tm + 1/tn)) of the efficiency"),
    "step_cycles": ("cycles", "shortest turn of the K loop"),
    "resident_share": (SHARE, "of L2: weights below it are found there"),
    "split_cycles": ("cycles", "cost of each doubling of split-K"),
    "smallest_tile": (COUNT, "elements of C: a smaller tile takes as long"),
    "quantize_cycles": ("cycles", "launch of the kernel that quantizes activations"),
    "quantize_row_cycles": ("cycles", "of an SM, for each row that is quantized"),
    "quantize_passes": (COUNT, "over the bytes of the activations"),
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tile and split of K that the core takes for one product: the fastest, or the one that ran."""

    tile_m: float
    tile_n: float
    splits: float
    rows: float
    columns: float
    blocks: float
    waves: float
    whole_waves: float
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
    found = loops(shapes, device, constants)
    times = found.times(shapes.k)[0]
    split = int(times.argmin())
    tile = int((found.waves * found.step)[0, split].argmin())

    def of_tile(values: FloatArray | float) -> float:
        flat = np.ravel(values)
        return float(flat[tile] if flat.size > 1 else flat[0])

    splits = float(found.splits[split])
    return Chosen(
        of_tile(found.tile_m), of_tile(found.tile_n), splits, of_tile(found.grid.rows), of_tile(found.grid.columns),
        of_tile(found.grid.blocks) * splits, of_tile(found.grid.waves(device.sms, splits)),
        float(found.waves[0, split, tile]), of_tile(found.step), of_tile(found.floor), float(found.loop[0, split]),
        float(times[split]),
    )  # fmt: skip


def core_terms(shapes: Shapes, device: Device, constants: Constants) -> tuple[list[Term], str]:
    """(terms of the core, what takes most of its time) for the only product of ``shapes``."""
    c, moved = chosen(shapes, device, constants), traffic(shapes, device, constants)
    core = core_time(shapes, device, constants)
    compute_s, memory_s, overhead_s = c.compute_s, float(moved.seconds[0]), constants.overhead_cycles / device.clock_hz
    weights, others = float(shapes.weights[0]), float(shapes.activations[0])
    resident = float(moved.resident[0])
    from_dram = weights + others > HELD * device.l2_bytes or weights * (1 - resident) / moved.dram > 0.5 * memory_s
    quantize_s = 0.0
    if shapes.quantizes:
        quantize_s = float(quantize_time(shapes, device, constants, moved.l2, moved.dram)[0])
    parts = {
        "compute": compute_s, "DRAM" if from_dram else "L2": memory_s, "launch": overhead_s,
        "quantizing activations": quantize_s,
    }  # fmt: skip
    tail = c.blocks - (c.whole_waves - 1.0) * device.sms
    felt = "a turn of the loop, which cannot be shorter" if c.step_s <= c.floor_s else "the tensor cores"
    k, m, n = float(shapes.k[0]), float(shapes.m[0]), float(shapes.n[0])
    found = terms("tile grid", [
        ("tile", f"{c.tile_m:.0f} x {c.tile_n:.0f}", WORD, "rows x columns of C"),
        ("splits of K", c.splits, COUNT, ""),
        ("grid", f"{c.rows:.0f} x {c.columns:.0f}", WORD, "tiles down x across"),
        ("blocks", c.blocks, COUNT, f"tiles x splits x {float(shapes.batch[0]):.0f} products"),
        ("waves", c.waves, COUNT, f"blocks / {device.sms:.0f} SMs"),
        ("waves that run", c.whole_waves, COUNT, ""),
        ("tail", tail / device.sms, SHARE, f"of the SMs have one of the {tail:.0f} blocks of the last wave"),
    ])  # fmt: skip
    found += terms("one tile", [
        ("step", c.step_s, "s", f"{STEP:.0f} elements of K, set by {felt}"),
        ("steps", k / STEP / c.splits, COUNT, f"K {k:.0f} / {STEP:.0f} / splits"),
        ("prologue", device.prologue, COUNT, "steps that fill the pipeline and drain it"),
        ("tile latency", c.tile_s, "s", "(steps + prologue) x step: one wave"),
    ])  # fmt: skip
    found += terms("core", [
        ("compute", compute_s, "s", f"{c.whole_waves:.0f} waves x tile latency + {log2(c.splits):.0f} x split cost"),
        ("memory", memory_s, "s", f"{'DRAM' if from_dram else 'L2'}; {resident:.0%} of the weights are in L2"),
        ("weights", weights, "bytes", ""),
        ("activations", others, "bytes", "A and C"),
        ("joined", float((compute_s**NORM + memory_s**NORM) ** (1 / NORM)), "s", f"p-norm, p = {NORM:g}"),
        ("overhead", overhead_s, "s", "launch, first loads and write-out"),
        *([("quantizing", quantize_s, "s", "a kernel before the product")] if quantize_s else []),
        ("core", float(core.total[0]), "s", "their sum"),
    ])  # fmt: skip
    lost = 1.0 - c.waves / c.whole_waves
    found += terms("padding", [
        ("m", 1.0 - m / (c.rows * c.tile_m), SHARE, f"of the tiles' rows are beyond m {m:.0f}"),
        ("n", 1.0 - n / (c.columns * c.tile_n), SHARE, f"of the tiles' columns are beyond n {n:.0f}"),
        ("idle SMs", lost, SHARE, "of all waves' places are empty"),
        ("padding and idle", compute_s * (1.0 - (1.0 - lost) * m * n / (c.rows * c.tile_m * c.columns * c.tile_n)), "s",
         "of compute"),
    ])  # fmt: skip
    return found, max(parts, key=lambda name: parts[name])


def constant_terms(constants: Constants, quantizes: bool) -> list[Term]:
    """The constants by name; those of quantizing activations where the product does."""
    kept = [name for name in CONSTANT_WORDS if quantizes or not name.startswith("quantize")]
    return terms("constants", [(name, getattr(constants, name), *CONSTANT_WORDS[name]) for name in kept])
