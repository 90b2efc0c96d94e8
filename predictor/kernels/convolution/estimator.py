"""Convolutions, the indexer and recurrent layers, answered from what a set knows of products and of streams.

No set has an estimator of its own for them: the gemm core and the board's bandwidth are those that the set was fitted
or calibrated with, the core's constants those below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from predictor.hardware.gpu import GPUSpec
from predictor.kernels.base import Batch, Estimator, make_batch
from predictor.kernels.convolution import core
from predictor.kernels.device import POWER_NEED, loop_share, sustained_share
from predictor.kernels.gemm import core as gemm
from predictor.kernels.named import NORM, p_norm
from predictor.ops.base import Op
from predictor.ops.convolution import Convolution
from predictor.ops.elementwise import Elementwise
from predictor.ops.gemm import Gemm
from predictor.ops.recurrent import Recurrence
from predictor.ops.roofline import FloatArray

#: Those of fp32: fitted by `benchmarks/convolutions.py --fit` on NeuSight's five boards (600 rows each).
_FP32 = {
    "implicit": 0.54, "prologue": 3.4, "winograd": 1.21, "transform": 1.48, "fused": 0.56, "fused_step": 9.7,
}  # fmt: skip
#: A call's fixed time, and instructions for a tap: two bounds, an address, two loads and a multiply-add in PyTorch's
#: DepthwiseConv2d.cu; its weight's gradient adds a reduction. Chosen by hand, not from data.
_REST = {"call_s": 4e-6, "tap_issue": 8.0, "tap_issue_wgrad": 10.0}
CONSTANTS = core.Constants(**_FP32, **_REST)


def _held(gpu: GPUSpec) -> float:
    """Share of the clock that power leaves where registers feed two lanes of three. What it leaves elsewhere is in the
    shares of the peak, which were fitted on such boards."""
    loop = loop_share(gpu)
    return sustained_share(gpu, POWER_NEED) / loop if loop < 1.0 else 1.0


class Products(Protocol):
    """An estimator of products that answers for a core's shapes."""

    name: str

    def seconds(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        """Kernel time, shape (n,)."""
        ...

    def core_seconds(
        self, shapes: gemm.Shapes, gpu: GPUSpec, dtype: str, kernels: str, prologue: float | None = None
    ) -> FloatArray:
        """Seconds of the core alone, shape (n,)."""
        ...


class Gathered:
    """The estimator of operators that are products with operands gathered on the way."""

    def __init__(self, products: Products, streams: Estimator, constants: core.Constants = CONSTANTS) -> None:
        self.name = products.name
        self._products = products
        self._streams = streams
        self.constants = constants

    def with_constants(self, constants: core.Constants) -> Gathered:
        """This estimator with other constants."""
        return Gathered(self._products, self._streams, constants)

    def seconds(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        """Kernel time, shape (n,)."""
        result = np.empty(len(batch.ops))
        for dtype in dict.fromkeys(batch.dtypes):
            rows = np.array([i for i, name in enumerate(batch.dtypes) if name == dtype])
            ops: Any = [batch.ops[i] for i in rows]
            result[rows] = self._of_dtype(ops, gpu, dtype, batch.kernels)
        return result

    def _of_dtype(self, ops: Sequence[Op], gpu: GPUSpec, dtype: str, kernels: str) -> FloatArray:
        recurrent = [op for op in ops if isinstance(op, Recurrence)]
        if recurrent:
            return np.array([self._recurrent(op, gpu, dtype, kernels) for op in recurrent])
        convolutions = [op for op in ops if isinstance(op, Convolution)]
        if len(convolutions) < len(ops):  # the indexer: keys are the operand that is kept
            table = [(*op.product, op.activation_bytes(), op.weight_bytes) for op in ops]  # type: ignore[attr-defined]
            shapes = core.gathered(np.array(table, dtype=np.float64), ops[0].itemsize)
            return self._products.core_seconds(shapes, gpu, dtype, kernels)
        depthwise = np.array([op.is_depthwise for op in convolutions])
        result = np.empty(len(ops))
        for rows, answer in ((np.flatnonzero(depthwise), self._direct), (np.flatnonzero(~depthwise), self._dense)):
            if rows.size:
                result[rows] = answer([convolutions[i] for i in rows], gpu, dtype, kernels)
        return result + self.constants.call_s

    def _recurrent(self, op: Recurrence, gpu: GPUSpec, dtype: str, kernels: str) -> float:
        """Steps one after the other, each a product and a kernel of its gates, behind the products of all of them. A
        persistent kernel's step is its gates' work, at the CUDA cores' rate, and a barrier as long as a kernel."""
        sizes = (*op.inputs_products, op.step_product)
        products = [Gemm(dtype, m, n, k) for m, n, k in sizes]
        *before, step = self._products.seconds(make_batch("gemm", products, kernels), gpu).tolist()
        if op.is_persistent:
            step = products[-1].flops() / (gpu.peak_flops(core.LANES) * self.constants.implicit)
        gates = float(self._streamed([Elementwise(dtype, "fused", 1, 0, op.step_bytes)], gpu, kernels)[0])
        return op.directions * (float(sum(before)) + op.steps * (float(step) + gates))

    def _direct(self, ops: Sequence[Convolution], gpu: GPUSpec, dtype: str, kernels: str) -> FloatArray:
        """Depthwise."""
        return p_norm(self._passed(ops, gpu, kernels), core.direct_seconds(ops, gpu, self.constants), NORM)

    def _dense(self, ops: Sequence[Convolution], gpu: GPUSpec, dtype: str, kernels: str) -> FloatArray:
        """The fastest algorithm."""
        lanes = np.array([core.on_lanes(op) for op in ops])
        best = np.empty(len(ops))
        for rows, answer in ((np.flatnonzero(lanes), self._on_lanes), (np.flatnonzero(~lanes), self._implicit)):
            if rows.size:
                best[rows] = answer([ops[i] for i in rows.tolist()], gpu, dtype, kernels)
        return best

    def _on_lanes(self, ops: Sequence[Convolution], gpu: GPUSpec, dtype: str, kernels: str) -> FloatArray:
        """Of CUDA cores: tiles, or one of Winograd's forms."""
        peak = gpu.peak_flops(core.LANES) * _held(gpu)
        best = self._tiled(ops, gpu, peak, kernels)
        rows = np.array([i for i, op in enumerate(ops) if core.is_winograd(op)], dtype=np.int64)
        if rows.size:
            some = [ops[i] for i in rows]
            if dtype == core.LANES:
                best[rows] = np.minimum(best[rows], self._winograd(some, gpu, dtype, kernels))
            fused = core.fused_seconds(some, peak, gpu.sm_count, self.constants)
            best[rows] = np.minimum(best[rows], np.maximum(fused, self._passed(some, gpu, kernels)))
        return best

    def _passed(self, ops: Sequence[Convolution], gpu: GPUSpec, kernels: str) -> FloatArray:
        """Seconds of the bytes of ``ops``, each once."""
        streams = [Elementwise(op.dtype, "fused", 1, 0, op.bytes_moved(), chain_flops=1.0) for op in ops]
        return self._streamed(streams, gpu, kernels)

    def _tiled(self, ops: Sequence[Convolution], gpu: GPUSpec, peak: float, kernels: str) -> FloatArray:
        """Of fp32: tiles of the lanes, or the bytes."""
        tiles = core.tiled_seconds(ops, peak, gpu.sm_count, self.constants)
        return p_norm(tiles, self._passed(ops, gpu, kernels), NORM)

    def _implicit(self, ops: Sequence[Convolution], gpu: GPUSpec, dtype: str, kernels: str) -> FloatArray:
        widths = core.PACKED if any(op.groups > 1 for op in ops) else core.PACKED[:1]
        packed = (core.implicit_shapes(ops, ops[0].itemsize, width) for width in widths)
        filling = self.constants.prologue / gemm.STEP
        every = [self._products.core_seconds(shapes, gpu, dtype, kernels, filling) for shapes in packed]
        result: FloatArray = np.min(every, axis=0)
        moves = [(i, move) for i, op in enumerate(ops) for move in core.transposes(op)]
        if moves:
            index = np.array([i for i, _ in moves])
            np.add.at(result, index, self._streamed([move for _, move in moves], gpu, kernels))
        return result

    def _winograd(self, ops: Sequence[Convolution], gpu: GPUSpec, dtype: str, kernels: str) -> FloatArray:
        batch, m, n, k = np.array([core.winograd_product(op) for op in ops], dtype=np.float64).T
        shapes = gemm.Shapes(batch, m, n, k, ops[0].itemsize, ops[0].itemsize)
        result = self.constants.winograd * self._products.core_seconds(shapes, gpu, dtype, kernels)
        transforms = [move for op in ops for move in core.winograd_transforms(op)]
        streamed: FloatArray = self._streamed(transforms, gpu, kernels).reshape(len(ops), -1).sum(axis=1)
        return result + self.constants.transform * streamed

    def _streamed(self, ops: Sequence[Op], gpu: GPUSpec, kernels: str) -> FloatArray:
        return self._streams.seconds(make_batch("elementwise", ops, kernels), gpu)
