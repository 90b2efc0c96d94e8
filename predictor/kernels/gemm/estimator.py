"""GEMM of serving frameworks, whose tiles nobody recorded: waves of candidate tiles, then boosted trees.

The core (`predictor.kernels.gemm.core`) is a minimum over tile shapes and split-K: waves on the SMs x K loop of a
tile, against the bytes through DRAM or L2, plus a fixed number of clock cycles. Weights that fit in L2 several times
over are read from it, because the measurements rotate a few copies of them; others come from DRAM. Where activations
are narrower than 16 bit, the framework quantizes them in a kernel of its own first, and the measured time holds both:
see `quantize_time` there.

Trees have learned of single products alone. For those grouped by expert the core answers without them: the luck of a
tile in one product of as many rows is not theirs (InferSim's groups on H800: decode 18 % off with trees, 13 without,
prefill 10 and 6; SimuMax's on A100 PCIe: 21 and 15).
"""

from __future__ import annotations

from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt

from predictor import engines
from predictor.engines.library import Library
from predictor.files.records import replace
from predictor.formats.quantization import activation_bytes, variant, weight_bytes
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.base import Batch
from predictor.kernels.explanation import COUNT, WORD, Explanation, constant_terms, terms
from predictor.kernels.gemm.core import Constants, Shapes, core_time, features
from predictor.kernels.knots import Corners, Grid
from predictor.kernels.residual import ServingEstimator, by_variant
from predictor.ops.roofline import FloatArray

BLOCKED = "fp8_block"
GROUPED = "grouped"  # `predictor.ops.gemm.Gemm.kind` of experts


def sizes_of(shapes: Shapes, kind: str) -> dict[str, FloatArray]:
    """The columns that tables have on a grid, (n,) each."""
    return {"m": shapes.m}


def corners_of(shapes: Shapes, kind: str, knots: Grid) -> Corners | None:
    """The measured sizes around ``shapes``; None without any."""
    return Corners.around({"m": (shapes.m, knots["m"])}) if knots else None


def _whole(size: float, multiple: float) -> float:
    """``size`` rounded up to a multiple."""
    return float(np.ceil(size / multiple) * multiple)


class TensorCoreGemm(ServingEstimator):
    """Seconds of GEMMs with serving kernels; fp16 is answered as bf16, eager PyTorch as vLLM's linear layer."""

    forms: ClassVar = (Constants,)

    def _answer(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        seconds = np.empty(len(batch.dtypes))
        for dtype, quant, rows in by_variant(batch):
            groups = np.array([getattr(batch.ops[i], "kind", "") == GROUPED for i in rows.tolist()], dtype=bool)
            for grouped in (False, True):
                if (of := rows[groups == grouped]).size:
                    libraries = self._answering(batch, dtype, quant, gpu)
                    ways = [self._seconds(batch, gpu, dtype, quant, of, grouped, each) for each in libraries]
                    seconds[of] = np.minimum.reduce(ways)
        return seconds

    def _answering(self, batch: Batch, dtype: str, quant: str, gpu: GPUSpec) -> tuple[Library, ...]:
        """The libraries whose rows tell of the products of a batch, of which the fastest answers; the first is the one
        that it runs."""
        runs, name = engines.library(batch.kernels), variant(dtype, quant)
        first = engines.answering(runs.products_by(batch.kernels, name, gpu))
        if not runs.tunes_products(name, gpu):
            return (first,)
        others = (each for each in engines.measured() if each.name != first.name)
        return first, *(each for each in others if self._corrections.measures(gpu, each.name, name))

    def _fastest(self, batch: Batch, dtype: str, quant: str, gpu: GPUSpec) -> tuple[Library, str]:
        """The library whose seconds answer for the only product of ``batch``, and which were asked, in words: "" of
        one alone."""
        asked = self._answering(batch, dtype, quant, gpu)
        if len(asked) == 1:
            return asked[0], ""
        lone, grouped = np.array([0]), getattr(batch.ops[0], "kind", "") == GROUPED
        ways = [float(self._seconds(batch, gpu, dtype, quant, lone, grouped, each)[0]) for each in asked]
        return asked[int(np.argmin(ways))], f"the fastest of {', '.join(each.name for each in asked)}"

    def core_seconds(
        self, shapes: Shapes, gpu: GPUSpec, dtype: str, kernels: str, prologue: float | None = None
    ) -> FloatArray:
        """Seconds of the core alone for products of a dtype, (n,), for operators that are products in disguise."""
        library = engines.answering(kernels)
        source, _, constants = self._corrections.resolve(gpu, library.name, variant(dtype, ""))
        device = self._corrections.device_as(source, gpu, dtype)
        if prologue is not None:  # of kernels that fill a tile's pipeline in less than a library's do
            device = replace(device, prologue=min(prologue, device.prologue))
        return core_time(shapes, device, cast(Constants, constants)).total

    def explain(self, batch: Batch, gpu: GPUSpec) -> Explanation:
        """The core's grid and times for the only product of ``batch``, its constants, and what the trees make of it."""
        from predictor.kernels.gemm.explain import core_terms  # a forecast starts without it

        op, columns = batch.ops[0], batch.columns
        dtype, quant = op.dtype, getattr(op, "quant", "")
        library, told = self._fastest(batch, dtype, quant, gpu)
        source, kind, constants = self._constants(gpu, dtype, quant, library)
        shapes = self._shapes(batch, dtype, quant, np.array([0]))
        device = self._corrections.device_as(source, gpu, dtype)
        parts, bound = core_terms(shapes, device, constants)
        seconds, core = float(self.seconds(batch, gpu)[0]), float(core_time(shapes, device, constants).total[0])
        parts += terms("residual", [
            *([("library", library.name, WORD, told)] if told else []),
            ("factor", seconds / core, COUNT, self._asked(f"{source}|{kind}", shapes)),
            ("kernel", seconds, "s", "core x factor"),
        ])  # fmt: skip
        m, n, k = (float(columns[name][0]) for name in ("m", "n", "k"))
        m, n, k = _whole(m, 8.0 if m < 64 else 64.0), _whole(n, 64.0), _whole(k, 64.0)
        aligned = {**columns, "m": np.array([m]), "n": np.array([n]), "k": np.array([k])}
        at = float(self.seconds(replace(batch, columns=aligned), gpu)[0])
        parts += terms("alignment", [
            ("aligned", f"{m:.0f} x {n:.0f} x {k:.0f}", WORD, "rounded up to multiples of 64 (8 for few rows)"),
            ("aligned kernel", at, "s", "time of the aligned product"),
        ])  # fmt: skip
        parts += constant_terms(constants, without="nothing" if shapes.quantizes else "quantize")
        rests = self._corrections.rests_on(source, gpu, library.name, kind)
        return Explanation(tuple(parts), bound, rests)

    def _asked(self, key: str, shapes: Shapes) -> str:
        """Which rows of A the trees under ``key`` are asked about, in words."""
        corners = corners_of(shapes, "", self._corrections.knots(key))
        if corners is None:
            return "exp(r): from the trees, or a calibration, for this shape"
        rows = sorted(corners.sizes["m"].tolist())
        at = " and ".join(f"{m:.0f}" for m in rows)
        if len(rows) == 1:
            return f"exp(r): from the trees, or a calibration, at {at} rows, a measured size"
        return f"kernel / core: from the trees, interpolated between the measured {at} rows"

    def _constants(self, gpu: GPUSpec, dtype: str, quant: str, library: Library) -> tuple[str, str, Constants]:
        """(whose, of which variant, constants)."""
        source, kind, constants = self._corrections.resolve(gpu, library.name, variant(dtype, quant))
        return source, kind, cast(Constants, constants)

    def _shapes(self, batch: Batch, dtype: str, quant: str, rows: npt.NDArray[np.int64]) -> Shapes:
        count, m, n, k = (batch.columns[name][rows] for name in ("batch", "m", "n", "k"))
        sizes = activation_bytes(dtype, quant), weight_bytes(dtype, quant)
        given = not engines.answering(batch.kernels).quantizes
        return Shapes(count, m, n, k, *sizes, blocked=quant == BLOCKED, quantized=given)

    def _seconds(
        self, batch: Batch, gpu: GPUSpec, dtype: str, quant: str, rows: npt.NDArray[np.int64], grouped: bool,
        library: Library,
    ) -> FloatArray:  # fmt: skip
        shapes = self._shapes(batch, dtype, quant, rows)
        source, kind, constants = self._constants(gpu, dtype, quant, library)
        if grouped:
            return core_time(replace(shapes, grouped=True), self._device(source, gpu, dtype), constants).total
        return self._corrected(
            source, kind, gpu, dtype, shapes, lambda shapes, device: core_time(shapes, device, constants),
            lambda shapes, device, core: features(shapes, device, core, library.code),
            corners_of(shapes, kind, self._corrections.knots(f"{source}|{kind}")), others=(library.name, quant),
        )  # fmt: skip
