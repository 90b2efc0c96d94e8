"""Quantization of activations, causal convolutions and the gated delta rule: its core times boosted trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

import numpy as np

from predictor import engines
from predictor.engines.library import Library
from predictor.hardware.generation import generation
from predictor.hardware.gpu import GPUSpec
from predictor.kernels.base import Batch
from predictor.kernels.blocks import core as blocks
from predictor.kernels.blocks.core import CHUNKS, STAND_INS, Constants, kind_of
from predictor.kernels.residual import Corrections, ServingEstimator
from predictor.ops.base import Op
from predictor.ops.roofline import FloatArray

#: What all rows count as: kernels of 16-bit activations, whatever they are narrowed to.
DTYPE = "bf16"
#: Before the generation, in the name of whose constants GPUs share of a delta rule in which a block has an SM for
#: itself, whatever library it is of: such kernels are written for one.
ALONE = "alone "


def runner(library: Library, kind: str, gpu: GPUSpec) -> str:
    """Under which name GPUs share constants of a kernel: its library's, or `ALONE` and the generation."""
    return ALONE + generation(gpu) if kind == CHUNKS and library.chunks_alone(gpu) else library.name


class ServingBlocks(ServingEstimator):
    """Seconds of the kernels with serving frameworks."""

    forms: ClassVar = (Constants,)

    def __init__(self, name: str, corrections: Corrections) -> None:
        super().__init__(name, corrections)
        self._kinds = {key.split("|")[2] for key in corrections.cores}
        self._runners = sorted({key.split("|")[1] for key in corrections.cores})

    def _answer(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        library = engines.answering(batch.kernels)
        calls: dict[str, list[tuple[int, Op]]] = {}
        for i, op in enumerate(batch.ops):
            for call in blocks.calls_of(op):
                calls.setdefault(self._nearest(kind_of(call)), []).append((i, call))
        result = np.zeros(len(batch.ops))
        for kind, members in calls.items():
            rows, ops = zip(*members, strict=True)
            np.add.at(result, np.array(rows), self._seconds(ops, kind, library, gpu))
        return result

    def _nearest(self, kind: str) -> str:
        """The kind whose rows answer: another one of the same operator in a set without rows of this one."""
        return next((name for name in (kind, *STAND_INS[kind]) if name in self._kinds), kind)

    def _seconds(self, ops: Sequence[Op], kind: str, library: Library, gpu: GPUSpec) -> FloatArray:
        name = runner(library, kind, gpu)
        if name not in self._runners and name.startswith(ALONE):  # another generation's comes nearest
            name = next((other for other in self._runners if other.startswith(ALONE)), name)
        source, _, resolved = self._corrections.resolve(gpu, library.name, kind, DTYPE, kernel=name)
        constants = cast(Constants, resolved)
        shapes = blocks.shapes_of(ops, library, gpu)
        return self._corrected(
            source, kind, gpu, DTYPE, shapes, lambda shapes, device: blocks.core_time(shapes, device, constants),
            lambda shapes, device, core: blocks.features(shapes, device, core, library.code),
        )  # fmt: skip
