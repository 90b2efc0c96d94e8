"""Mixture-of-experts layers of serving frameworks: two or three grouped GEMMs over the experts that got a token.

The core: rows padded to a tile for every active expert, the weights of the active experts through DRAM (or L2 where
they fit), and a fixed number of clock cycles for the kernels around them. Boosted trees correct it. How many experts
are active, with how many rows, is the routing's (`predictor.ops.routing`).

Three kinds of kernels run under all frameworks (`predictor.engines.Library.moe_kernel`). What GPUs that nobody measured
take from the others is kept by kernel, not by framework: which rows a kernel touches is the kernel's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import numpy as np

from predictor import engines
from predictor.engines.library import FASTEST, STRIPES, TWO_TILES
from predictor.estimators.base import Batch, by_variant
from predictor.estimators.named import NORM, Named
from predictor.estimators.residual import (
    Corrections,
    Device,
    FloatArray,
    ServingEstimator,
)
from predictor.estimators.token_curve import KNOTS, between, never_falling
from predictor.hardware.gpu import GPUSpec
from predictor.ops.routing import BLOCKS, POWER_LAW, Loads, drawn, expert_loads, exponent_of
from predictor.quantization import variant, weight_bytes


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
    supply_bytes: float  # a clock and SM: operands on their way to the tensor cores, partly hidden behind arithmetic
    foreign_traffic: float  # share of that traffic, and
    foreign_rows: float  # of the products, that rows of other GPUs' experts cause here as well
    half_lines: float  # share of the DRAM rate that a kernel gets which reads weights 64 bytes at a time


#: Constants of the kernel's code, alike for all variants of it.
OF_KERNEL = ("supply_bytes", "foreign_traffic", "foreign_rows", "half_lines")

BLOCKED = "fp8_block"  # answered by the trees of "fp8", told apart by a feature
_COLUMNS = 128.0  # of a tile: chosen by hand, not from data
_WAITS = 0.5  # chosen by looking at H100 and H200, each forecast from the other (see `on_board`)

FEATURES = (
    "log2_tokens", "log2_hidden", "log2_width", "log2_local_experts", "log2_top_k", "log2_rows_an_expert",
    "log2_active", "log2_compute_s", "log2_memory_s", "log2_compute_over_memory", "log2_weights_over_l2",
    "log2_activations_over_l2", "log2_tiles_16", "log2_tiles_32", "log2_tiles_64", "log2_tiles_128", "log2_experts",
    "log2_rows", "efficiency_16", "efficiency_32", "efficiency_64", "efficiency_128", "fill_16", "fill_32", "fill_64",
    "fill_128", "pad_width_128", "pad_width_256", "exponent", "gated", "tp", "ep", "blocked", "framework",
    "log2_tokens_a_local_expert",
)  # fmt: skip
_LOGS = 18  # by definition: how many of `FEATURES` are logarithms, the last one apart
#: Columns that make a layer, its tokens apart; with the name of its routing.
_LAYER = ("hidden", "intermediate", "experts", "top_k", "matrices", "tp", "ep")
Layer = tuple[Any, ...]
#: The measured routings at both ends: the most and the fewest experts with few tokens, even and uneven rows with many.
ENDS = ("balanced", f"{POWER_LAW}1.2")
#: Cores at the ends closer than this (in the logarithm) do not tell where between them a routing lies. Chosen by hand,
#: not from data.
_SAME_CORE = 1e-3
#: Curves that are kept for a GPU, library and variant: guards against memory without end, chosen by hand, not from
#: data.
_CURVES = 4096


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
    step = 128.0 * _COLUMNS * BLOCKS * slowed * device.sms / device.peak_flops
    supplied = 64.0 * (_COLUMNS + BLOCKS) * shapes.itemsize / (constants.supply_bytes * device.clock_hz)
    step = np.hypot(step, supplied)
    tiles = blocks * up[:, None]
    least = 0.0 if shapes.tiling == STRIPES else 1.0  # tiles on the busiest SM
    first = np.maximum(tiles / device.sms, least) * step * (shapes.hidden[:, None] / 64.0 + 2.0)
    second = np.maximum(blocks * down[:, None] / device.sms, least) * step * (width[:, None] / 64.0 + 2.0)
    compute, dram = _by_tile(shapes, first + second, device.bandwidth * ed, constants.half_lines)
    weights = active * shapes.matrices * shapes.hidden * width * shapes.itemsize
    activations = (rows + traffic * foreign) * (2.0 * shapes.hidden + shapes.matrices * width) * 2.0
    l2 = np.maximum(device.sms * constants.l2_bytes_per_s_per_sm, dram)
    resident = 1.0 / (1.0 + (weights / (constants.resident_share * device.l2_bytes)) ** 4)
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
    out[:, 22:26] = loaded / (np.ceil(loaded / BLOCKS) * BLOCKS)
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


def on_board(constants: Constants, itemsize: float, measured: Device | None, device: Device) -> Constants:
    """A sibling's constants for ``device``: weights that do not wait for DRAM come no faster from a faster one.

    That is so where they come at less than `_WAITS` of the bandwidth, even if counted as 16 bit (some kernels write
    them out so). vLLM's fp8 experts take as long on H200 as on H100 (0.98 in the median), with 1.4 of the bandwidth.
    """
    if measured is None or constants.dram_efficiency * 2.0 / itemsize >= _WAITS:
        return constants
    return replace(constants, dram_efficiency=constants.dram_efficiency * (measured.bandwidth / device.bandwidth))


def booster_of(name: str) -> str:
    """The booster that corrects a variant: its own, but fp8's for fp8 with block scales."""
    return "fp8" if name == BLOCKED else name


class ServingMoE(ServingEstimator):
    """Seconds of MoE layers with serving kernels, in 16 bit (fp16 as bf16) and quantized.

    A layer is forecast at all of `KNOTS` at once and kept, whatever its tokens: a sweep over batches asks once.
    """

    forms: ClassVar = (Constants,)

    def __init__(self, name: str, corrections: Corrections) -> None:
        super().__init__(name, corrections)
        self._curves: dict[tuple[GPUSpec, str, str, str], dict[Layer, FloatArray]] = {}

    def core_alone(self) -> Self:
        """The estimator without its trees, and without the curves that they made."""
        result = super().core_alone()
        result._curves = {}
        return result

    def seconds(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        """Kernel time, shape (n,)."""
        seconds = np.empty(len(batch.dtypes))
        sizes = np.stack([batch.columns[name] for name in _LAYER], axis=1).tolist()
        for dtype, quant, rows in by_variant(batch):
            layers: dict[Layer, list[int]] = {}
            for i in rows.tolist():
                op = batch.ops[i]
                layers.setdefault((*sizes[i], getattr(op, "distribution", "")), []).append(i)
            curves = self._curves_of(tuple(layers), gpu, batch.kernels, dtype, quant)
            for layer, members in layers.items():
                seconds[members] = between(curves[layer], batch.columns["tokens"][members])
        return seconds

    def _curves_of(
        self, layers: Sequence[Layer], gpu: GPUSpec, kernels: str, dtype: str, quant: str
    ) -> Mapping[Layer, FloatArray]:
        """Logarithms of the seconds of each layer at `KNOTS`, rising."""
        known = self._curves.setdefault((gpu, kernels, dtype, quant), {})
        new = [layer for layer in layers if layer not in known]
        if len(known) + len(new) > _CURVES:
            known.clear()
            new = list(layers)
        if new:
            seconds = self._of_routings(new, gpu, kernels, dtype, quant).reshape(len(new), len(KNOTS))
            known.update(zip(new, never_falling(np.log(seconds)), strict=True))
        return known

    def _of_routings(self, layers: Sequence[Layer], gpu: GPUSpec, kernels: str, dtype: str, quant: str) -> FloatArray:
        """Seconds of each layer at each of `KNOTS`, (layers * knots,).

        No drawn routing was measured: a layer with one is forecast from itself with the measured routings at both ends
        (`ENDS`), by a line in the logarithms over the core's seconds, and in proportion to these beyond the ends. Trees
        are asked about nothing but what they have seen, and the core knows the loads of every routing.
        """
        own = [i for i, layer in enumerate(layers) if not drawn(layer[-1])]
        others = [i for i, layer in enumerate(layers) if drawn(layer[-1])]
        ends = [[(*layers[i][:-1], end) for i in others] for end in ENDS]
        asked = [*(layers[i] for i in own), *ends[0], *ends[1], *(layers[i] for i in others)]
        count = len(KNOTS)
        answered = (len(own) + 2 * len(others)) * count
        seconds, cores = self._seconds(asked, answered, gpu, kernels, dtype, quant)
        found = np.empty((len(layers), count))
        found[own] = seconds[: len(own) * count].reshape(-1, count)
        first, second = seconds[len(own) * count :].reshape(2, -1)
        core = cores[len(own) * count :].reshape(3, -1)
        found[others] = _over_core(first, second, *core).reshape(-1, count)
        return found.reshape(-1)

    def _seconds(
        self, layers: Sequence[Layer], answered: int, gpu: GPUSpec, kernels: str, dtype: str, quant: str
    ) -> tuple[FloatArray, FloatArray]:
        """Seconds as core and trees have it at the first ``answered`` of the layers' knots, and the core's at all."""
        name = variant(dtype, quant)
        known, library = engines.answering(kernels), engines.library(kernels)
        kernel = library.moe_kernel(name, gpu)
        shapes = _at_knots(layers, weight_bytes(dtype, quant), library.moe_tiling(kernel, name))
        asked = shapes.first(answered)
        source, found, named = self._corrections.resolve(gpu, known.name, name, kernel=kernel)
        constants = cast(Constants, named)
        measured = self._corrections.device(source, variant(dtype))

        def core_of(layers: Shapes, device: Device) -> CoreTime:
            return core_time(layers, device, on_board(constants, shapes.itemsize, measured, device))

        seconds = self._corrected(
            source, booster_of(found), gpu, dtype, asked, core_of,
            lambda asked, device, core: features(asked, device, core, known.code, found == BLOCKED),
        )  # fmt: skip
        return seconds, core_of(shapes, Device.of(gpu, dtype)).total


def _over_core(
    first: FloatArray, second: FloatArray, core_first: FloatArray, core_second: FloatArray, core: FloatArray
) -> FloatArray:
    """Seconds where the core takes ``core``, from those at two ends; all (n,)."""
    span = np.log(core_first / core_second)
    share = np.where(np.abs(span) < _SAME_CORE, 0.5, np.log(core / core_second) / np.where(span, span, 1.0))
    share = np.clip(share, 0.0, 1.0)
    least, most = np.minimum(core_first, core_second), np.maximum(core_first, core_second)
    beyond: FloatArray = core / np.clip(core, least, most)
    return np.exp(share * np.log(first) + (1.0 - share) * np.log(second)) * beyond


def _at_knots(layers: Sequence[Layer], itemsize: float, tiling: str) -> Shapes:
    """The layers at each of `KNOTS`, each under its own routing."""
    count = len(KNOTS)
    tokens = np.tile(KNOTS, len(layers))
    columns = [tokens, *np.repeat(np.array([layer[:-1] for layer in layers], dtype=np.float64), count, axis=0).T]
    _, _, _, experts, top_k, _, _, ep = columns
    routings: dict[str, list[int]] = {}
    for i, layer in enumerate(layers):
        routings.setdefault(layer[-1], []).append(i)
    parts = []
    for distribution, members in routings.items():
        at = (np.array(members)[:, None] * count + np.arange(count)).reshape(-1)
        parts.append((at, expert_loads(distribution, tokens[at], experts[at], top_k[at], ep[at])))
    exponents = np.repeat([exponent_of(layer[-1]) for layer in layers], count)
    return Shapes.of(columns, Loads.joined(parts), exponents, itemsize, tiling)
