"""GEMM of serving frameworks, whose tiles nobody recorded: waves of candidate tiles, then boosted trees.

The core (`predictor.estimators.gemm_core`) is a minimum over tile shapes and split-K: waves on the SMs x K loop of a
tile, against the bytes through DRAM or L2, plus a fixed number of clock cycles. Weights that fit in L2 several times
over are read from it, because the measurements rotate a few copies of them; others come from DRAM. Where activations
are narrower than 16 bit, the framework quantizes them in a kernel of its own first, and the measured time holds both:
see `quantize_time` there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt

from predictor import engines
from predictor.estimators.base import Batch
from predictor.estimators.explanation import COUNT, WORD, Explanation, terms
from predictor.estimators.gemm_core import Constants, CoreTime, Shapes, core_time
from predictor.estimators.residual import (
    Device,
    FloatArray,
    ServingEstimator,
    by_variant,
)
from predictor.hardware.gpu import GPUSpec
from predictor.quantization import activation_bytes, variant, weight_bytes
from predictor.tiling import TileGrid

__all__ = ["BLOCKED", "FEATURES", "Constants", "CoreTime", "ServingGemm", "Shapes", "core_time", "features"]

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


BLOCKED = "fp8_block"


def features(shapes: Shapes, device: Device, core: CoreTime, framework: int) -> FloatArray:
    """The boosters' inputs of shape (n, len(FEATURES)): no unit of a GPU stands in them but as a ratio or a time."""
    m, n, k = shapes.m, shapes.n, shapes.k
    weights, activations = shapes.weights, shapes.activations
    moved = weights + activations
    flops = 2.0 * shapes.batch * m * n * k
    tiles = TileGrid.cover(m[:, None], n[:, None], _SHOWN_M, _SHOWN_N, shapes.batch[:, None]).blocks
    waves = tiles / device.sms
    efficiency = waves / np.ceil(waves)
    filled = efficiency * (shapes.batch * m * n)[:, None] / (tiles * (_SHOWN_M * _SHOWN_N))
    shown = _SHOWN_M.size
    out = np.empty((m.size, len(FEATURES)))
    logs = out[:, :11]
    logs[:, 0], logs[:, 1], logs[:, 2] = m, n, k
    logs[:, 3], logs[:, 4] = core.compute, core.memory
    logs[:, 5] = np.maximum(core.compute, core.memory)
    logs[:, 6] = core.compute / core.memory
    logs[:, 7] = flops / moved
    logs[:, 8] = weights / device.l2_bytes
    logs[:, 9] = moved / device.l2_bytes
    logs[:, 10] = activations / device.l2_bytes
    np.log2(logs, out=logs)
    for column, (size, tile) in enumerate(((m, 8.0), (m, 64.0), (m, 128.0), (n, 64.0), (n, 256.0)), start=11):
        out[:, column] = size / (np.ceil(size / tile) * tile)
    table = np.array((m, n, k), dtype=np.int64).T
    out[:, 16:19] = np.gcd(table, 256)
    out[:, 19] = filled[:, _LARGE].max(axis=1)
    out[:, 20] = np.log2(shapes.batch * m * n / (16384.0 * device.sms))
    out[:, 21 : 21 + shown] = np.log2(waves)
    out[:, 21 + shown : 21 + 2 * shown] = efficiency
    out[:, -1] = framework
    return out


def _whole(size: float, multiple: float) -> float:
    """``size`` rounded up to a multiple."""
    return float(np.ceil(size / multiple) * multiple)


class ServingGemm(ServingEstimator):
    """Seconds of GEMMs with serving kernels; fp16 is answered as bf16, eager PyTorch as vLLM's linear layer."""

    forms: ClassVar = (Constants,)

    def seconds(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        """Kernel time, shape (n,)."""
        seconds = np.empty(len(batch.dtypes))
        for dtype, quant, rows in by_variant(batch):
            seconds[rows] = self._seconds(batch, gpu, dtype, quant, rows)
        return seconds

    def explain(self, batch: Batch, gpu: GPUSpec) -> Explanation:
        """The core's grid and times for the only product of ``batch``, its constants, and what the trees make of it."""
        from predictor.estimators.gemm_explained import constant_terms, core_terms  # a forecast starts without it

        op, columns = batch.ops[0], batch.columns
        dtype, quant = op.dtype, getattr(op, "quant", "")
        source, kind, constants = self._constants(batch, gpu, dtype, quant)
        shapes, device = self._shapes(batch, dtype, quant, np.array([0])), Device.of(gpu, dtype)
        found, bound = core_terms(shapes, device, constants)
        seconds, core = float(self.seconds(batch, gpu)[0]), float(core_time(shapes, device, constants).total[0])
        found += terms("residual", [
            ("factor", seconds / core, COUNT, "exp(r): what the trees, or a calibration, say of this shape"),
            ("kernel", seconds, "s", "core x factor"),
        ])  # fmt: skip
        m, n, k = (float(columns[name][0]) for name in ("m", "n", "k"))
        m, n, k = _whole(m, 8.0 if m < 64 else 64.0), _whole(n, 64.0), _whole(k, 64.0)
        aligned = {**columns, "m": np.array([m]), "n": np.array([n]), "k": np.array([k])}
        at = float(self.seconds(replace(batch, columns=aligned), gpu)[0])
        found += terms("alignment", [
            ("aligned", f"{m:.0f} x {n:.0f} x {k:.0f}", WORD, "the next multiples of 64, of 8 for few rows"),
            ("aligned kernel", at, "s", "what the larger, aligned product takes"),
        ])  # fmt: skip
        found += constant_terms(constants, shapes.quantizes)
        rests = self._corrections.rests_on(source, gpu, engines.answering(batch.kernels).name, kind)
        return Explanation(tuple(found), bound, rests)

    def _constants(self, batch: Batch, gpu: GPUSpec, dtype: str, quant: str) -> tuple[str, str, Constants]:
        """(whose, of which variant, constants)."""
        library = engines.answering(batch.kernels)
        source, kind, constants = self._corrections.resolve(gpu, library.name, variant(dtype, quant))
        return source, kind, cast(Constants, constants)

    def _shapes(self, batch: Batch, dtype: str, quant: str, rows: npt.NDArray[np.int64]) -> Shapes:
        count, m, n, k = (batch.columns[name][rows] for name in ("batch", "m", "n", "k"))
        sizes = activation_bytes(dtype, quant), weight_bytes(dtype, quant)
        given = not engines.answering(batch.kernels).quantizes
        return Shapes(count, m, n, k, *sizes, blocked=quant == BLOCKED, quantized=given)

    def _seconds(self, batch: Batch, gpu: GPUSpec, dtype: str, quant: str, rows: npt.NDArray[np.int64]) -> FloatArray:
        shapes, library = self._shapes(batch, dtype, quant, rows), engines.answering(batch.kernels)
        source, kind, constants = self._constants(batch, gpu, dtype, quant)
        return self._corrected(
            source, kind, gpu, dtype, lambda device: core_time(shapes, device, constants),
            lambda device, core: features(shapes, device, core, library.code),
        )  # fmt: skip
