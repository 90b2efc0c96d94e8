"""Quantization of activations, causal convolutions and the gated delta rule: `block_core` times boosted trees."""

from __future__ import annotations

from typing import ClassVar, cast

import numpy as np

from predictor import engines
from predictor.engines.library import Library
from predictor.estimators import block_core
from predictor.estimators.base import Batch
from predictor.estimators.block_core import CHUNKS, Constants, kind_of
from predictor.estimators.residual import FloatArray, ServingEstimator
from predictor.hardware.gpu import GPUSpec

#: What all rows count as: kernels of 16-bit activations, whatever they are narrowed to.
DTYPE = "bf16"
#: Whose constants GPUs share of a delta rule in which a block has an SM for itself, whatever library it is of.
ALONE = "alone"


def runner(library: Library, kind: str, gpu: GPUSpec) -> str:
    """Under which name GPUs share constants of a kernel: its library's, or `ALONE`."""
    return ALONE if kind == CHUNKS and library.chunks_alone(gpu) else library.name


class ServingBlocks(ServingEstimator):
    """Seconds of the kernels with serving frameworks."""

    forms: ClassVar = (Constants,)

    def seconds(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        """Kernel time, shape (n,)."""
        result = np.empty(len(batch.ops))
        kinds = np.array([kind_of(op) for op in batch.ops], dtype=object)
        library = engines.answering(batch.kernels)
        for kind in dict.fromkeys(kinds.tolist()):
            rows = np.flatnonzero(kinds == kind)
            result[rows] = self._seconds(Batch(batch.family, tuple(batch.ops[i] for i in rows), {}, ()), kind, library, gpu)
        return result

    def _seconds(self, batch: Batch, kind: str, library: Library, gpu: GPUSpec) -> FloatArray:
        source, _, found = self._corrections.resolve(
            gpu, library.name, kind, DTYPE, kernel=runner(library, kind, gpu)
        )  # fmt: skip
        constants = cast(Constants, found)
        shapes = block_core.shapes_of(batch.ops, library, gpu)
        return self._corrected(
            source, kind, gpu, DTYPE, lambda device: block_core.core_time(shapes, device, constants),
            lambda device, core: block_core.features(shapes, device, core, library.code),
        )  # fmt: skip
