"""Mixture-of-experts layers of serving frameworks: a core (`predictor.kernels.moe.core`), then boosted trees.

Four kinds of kernels run under all frameworks (`predictor.engines.Library.moe_kernel`). What GPUs that nobody measured
take from the others is kept by kernel, not by framework: which rows a kernel touches is the kernel's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, cast

import numpy as np

from predictor import engines
from predictor.engines.library import CUTLASS, GENERATED, MARLIN, Library
from predictor.files.records import replace
from predictor.formats.quantization import stand_ins, variant, weight_bytes
from predictor.hardware.gpu import GPUSpec
from predictor.hardware.what_if import as_filed
from predictor.kernels.base import Batch
from predictor.kernels.device import Device
from predictor.kernels.moe.core import Constants, CoreTime, Shapes, core_time, features
from predictor.kernels.residual import SHARED, Corrections, ServingEstimator, by_variant
from predictor.ops.moe import MoE
from predictor.ops.roofline import FloatArray
from predictor.ops.routing import POWER_LAW, Loads, drawn, expert_loads, exponent_of

#: The kernel that answers for one that nobody measured, and the launches of such a one over those of that one: two of
#: routing, two products, the first with its activation, and the sum, against routing, three that sort, one that
#: gathers, two products, the activation and the sum. Source: FlashInfer, trtllm_fused_moe and cutlass_fused_moe, as
#: recalled (unverified). Chosen by looking at B200 left out: 4/9, from another count of the same launches, stood here
#: before its errors were seen (benchmarks/results/accuracy-2026-11-23.md has both).
_NEAREST = {GENERATED: (CUTLASS, 5.0 / 9.0)}

BLOCKED = "fp8_block"  # answered by the trees of "fp8", told apart by a feature
_WAITS = 0.5  # chosen by looking at H100 and H200, each forecast from the other (see `on_board`)
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
#: The variant in 16 bit, and where in a layer its matrices stand.
_WIDE, _MATRICES = "bf16", _LAYER.index("matrices")
#: Token counts at which a layer is asked: those of the tables that MoE layers are fitted on. Learned corrections know
#: them, and step between them and up and down at them as noise and changes of kernel have it. So the answers become a
#: curve that never falls, as more tokens are never less work, and what lies between two counts is a line in the
#: logarithms. Source: AIConfigurator's moe_perf tables, all that they hold.
KNOTS = np.array([
    1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384, 20480, 32768, 65536,
], dtype=np.float64)  # fmt: skip
_LOG_KNOTS = np.log(KNOTS)


class _Kernels(NamedTuple):
    """Whose kernels run some layers, in which numbers, whether the layers' experts have a gate, and whether their
    tokens are gathered from data-parallel attention."""

    library: str
    dtype: str
    quant: str
    gated: bool
    gathered: bool

    @property
    def variant(self) -> str:
        return variant(self.dtype, self.quant)


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
        self._curves: dict[tuple[GPUSpec, _Kernels], dict[Layer, FloatArray]] = {}

    def _with(self, corrections: Corrections) -> Self:
        result = super()._with(corrections)
        result._curves = {}
        return result

    def _answer(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        seconds = np.empty(len(batch.dtypes))
        sizes = np.stack([batch.columns[name] for name in _LAYER], axis=1).tolist()
        tokens = batch.columns["tokens"].copy()
        for dtype, quant, rows in by_variant(batch):
            layers: dict[tuple[bool, bool], dict[Layer, list[int]]] = {}
            for i in rows.tolist():
                op = batch.ops[i]
                if isinstance(op, MoE) and op.dispatched:
                    op = op.received()
                    sizes[i], tokens[i] = [float(getattr(op, name)) for name in _LAYER], op.tokens
                kind = sizes[i][_MATRICES] == 3.0, getattr(op, "gathered", False)
                alike = layers.setdefault(kind, {})
                alike.setdefault((*sizes[i], getattr(op, "distribution", "")), []).append(i)
            for kind, group in layers.items():
                curves = self._curves_of(tuple(group), gpu, _Kernels(batch.kernels, dtype, quant, *kind))
                for layer, members in group.items():
                    seconds[members] = between(curves[layer], tokens[members])
        return seconds

    def _curves_of(self, layers: Sequence[Layer], gpu: GPUSpec, run: _Kernels) -> Mapping[Layer, FloatArray]:
        """Logarithms of the seconds of each layer at `KNOTS`, rising."""
        known = self._curves.setdefault((gpu, run), {})
        new = [layer for layer in layers if layer not in known]
        if len(known) + len(new) > _CURVES:
            known.clear()
            new = list(layers)
        if new:
            filed = as_filed(gpu)
            seconds = self._of_routings(new, filed, run)
            if filed is not gpu:  # trees, and where a routing lies, are the board's; what was varied is the core's
                alone = self.core_alone()
                ways = [alone._of_routings(new, board, run) for board in (gpu, filed)]
                seconds = seconds * (ways[0] / ways[1])
            known.update(zip(new, never_falling(np.log(seconds).reshape(len(new), len(KNOTS))), strict=True))
        return known

    def _of_routings(self, layers: Sequence[Layer], gpu: GPUSpec, run: _Kernels) -> FloatArray:
        """Seconds of each layer at each of `KNOTS`, (layers * knots,).

        No drawn routing was measured: a layer with one is forecast from itself with the measured routings at both ends
        (`ENDS`), by a line in the logarithms over the core's seconds, and in proportion to these beyond the ends. Trees
        are asked about nothing but what they have seen, and the core knows the loads of every routing.
        """
        exact = [i for i, layer in enumerate(layers) if not drawn(layer[-1])]
        others = [i for i, layer in enumerate(layers) if drawn(layer[-1])]
        ends = [[(*layers[i][:-1], end) for i in others] for end in ENDS]
        asked = [*(layers[i] for i in exact), *ends[0], *ends[1], *(layers[i] for i in others)]
        count = len(KNOTS)
        answered = (len(exact) + 2 * len(others)) * count
        seconds, cores = self._seconds(asked, answered, gpu, run)
        answers = np.empty((len(layers), count))
        answers[exact] = seconds[: len(exact) * count].reshape(-1, count)
        first, second = seconds[len(exact) * count :].reshape(2, -1)
        core = cores[len(exact) * count :].reshape(3, -1)
        answers[others] = _over_core(first, second, *core).reshape(-1, count)
        return answers.reshape(-1)

    def _seconds(
        self, layers: Sequence[Layer], answered: int, gpu: GPUSpec, run: _Kernels
    ) -> tuple[FloatArray, FloatArray]:
        """Seconds as core and trees have it at the first ``answered`` of the layers' knots, and the core's at all.

        Where several answer, the fastest does: an engine that times its kernels takes that.
        """
        library = engines.library(run.library)
        kernel = library.moe_kernel(run.variant, gpu, run.gathered)
        shapes = _at_knots(layers, weight_bytes(run.dtype, run.quant), library.moe_tiling(kernel, run.variant))
        answers = [
            self._as_measured(known, like, shapes, answered, kernel, gpu, run)
            for known, like in self._alike(gpu, kernel, run)
        ]
        fastest = np.minimum.reduce([seconds for seconds, _ in answers])
        return fastest, answers[0][1]

    def _as_measured(
        self, known: Library, like: str, shapes: Shapes, answered: int, kernel: str, gpu: GPUSpec, run: _Kernels
    ) -> tuple[FloatArray, FloatArray]:
        """`_seconds`, as the rows of ``known`` with the variant ``like`` have them."""
        asked = shapes.first(answered)
        as_of, launches = (kernel, 1.0) if self._corrections.knows(kernel) else _NEAREST.get(kernel, (kernel, 1.0))
        source, scheme, named = self._corrections.resolve(gpu, known.name, like, kernel=as_of)
        constants = cast(Constants, named)
        if source in SHARED:
            constants = replace(constants, overhead_cycles=constants.overhead_cycles * launches)
        measured = self._corrections.device(source, variant(run.dtype))

        def core_of(layers: Shapes, device: Device) -> CoreTime:
            return core_time(layers, device, on_board(constants, shapes.itemsize, measured, device))

        seconds = self._corrected(
            source, booster_of(scheme), gpu, run.dtype, asked, core_of,
            lambda asked, device, core: features(asked, device, core, known.code, scheme == BLOCKED),
        )  # fmt: skip
        return seconds, core_of(shapes, self._corrections.device_as(source, gpu, run.dtype)).total

    def _alike(self, gpu: GPUSpec, kernel: str, run: _Kernels) -> tuple[tuple[Library, str], ...]:
        """(whose constants, of which variant) answer on a measured board: Marlin's for Marlin, others for others.

        Marlin's are of another core: stripes of work, at the rate of mma.sync on every board. A library without rows of
        a narrow variant takes those of the same kind of kernel first, be they of another library or of the nearest
        variant. Rows of kernels that an engine would have tuned, or does not run, answer for nobody; in place of those
        that it would have tuned, a library takes those of its nearest variant, too.
        """
        known = engines.answering(run.library)
        libraries = (known, *(each for each in engines.measured() if each is not known))
        measured = [
            (library, like)
            for like in stand_ins(run.variant)
            for library in libraries
            if (library.moe_kernel(like, gpu) == MARLIN) == (kernel == MARLIN)
            and not library.untuned_experts(like, run.gated, gpu)
            and not library.other_experts(like, run.gated, run.gathered, gpu)
            and self._corrections.measures(gpu, library.name, like)
        ]
        if not measured:
            return ((known, run.variant),)
        if measured[0] == (known, run.variant):
            return (measured[0],)
        alike = [
            (library, like)
            for library, like in measured
            if library.moe_kernel(like, gpu, run.gathered) == kernel and (like == run.variant or like != _WIDE)
        ]
        first = alike[0] if alike else measured[0]
        nearest = next(((library, like) for library, like in measured if library is known and like != _WIDE), first)
        untuned = known.untuned_experts(run.variant, run.gated, gpu)
        return (first,) if not untuned or nearest == first else (first, nearest)


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


def never_falling(values: FloatArray) -> FloatArray:
    """The middle of the two tightest curves that never fall around ``values`` (m, k): none below them, none above.

    Values that never fall stay as they are.
    """
    above = np.maximum.accumulate(values, axis=1)
    below = np.minimum.accumulate(values[:, ::-1], axis=1)[:, ::-1]
    middle: FloatArray = 0.5 * (above + below)
    return middle


def between(log_seconds: FloatArray, tokens: FloatArray) -> FloatArray:
    """Seconds at ``tokens`` (n,) of the curve through ``log_seconds`` (k,); in proportion beyond the last knot."""
    logs = np.log(tokens)
    log_curve = np.interp(logs, _LOG_KNOTS, log_seconds) + np.maximum(logs - _LOG_KNOTS[-1], 0.0)
    seconds: FloatArray = np.exp(log_curve)
    return seconds
