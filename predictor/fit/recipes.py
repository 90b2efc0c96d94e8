"""The estimators of a set: which rows each is fitted on, by which function, and what it answers for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from predictor.data.frame import Frame
from predictor.files.records import dataclass

FEW_ROWS = "predictor.kernels.efficiency.fit:fit_efficiency"
#: Of products that have tile probes, and no or few other rows.
TILE_ROWS = "predictor.kernels.gemm.fit_tiles:fit_tiles"
SERVING = "predictor.kernels.fitting.serving"
GEMM_FIT = f"{SERVING}:fit_gemm"
BLOCKS_FIT = "predictor.kernels.blocks.fit:fit_blocks"
LINEAR = ("causal_conv1d", "delta_rule")
MEMORY_BOUND = (
    "elementwise", "norm", "softmax", "embedding", "cross_entropy", "rotary", "optimizer", "copy", "routing",
)  # fmt: skip
SIXTEEN_BIT = ("bf16", "fp16", "fp8", "tf32")
QUANTIZED = ("int8", "mxfp8", "nvfp4")
QUANTIZED_ROWS = ("bf16", "fp8", *QUANTIZED)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One estimator of a set: the rows it is fitted on, and what it answers for. ``fit`` is "module:function".

    It takes ``least`` rows on a GPU, with ``needs`` filled in; fewer are fitted as `Efficiency`, two numbers a family.
    """

    folder: str
    fit: str
    families: tuple[str, ...]
    dtypes: tuple[str, ...]
    ops: tuple[str, ...]
    row_dtypes: tuple[str, ...]  # dtypes of the rows; () = all
    least: int = 200  # rows that tell more than two numbers a family: chosen by hand, not from data
    needs: tuple[str, ...] = ()

    def rows(self, frame: Frame) -> npt.NDArray[np.bool_]:
        """Which rows of the frame the recipe fits."""
        keep = frame["op"].astype(str).isin(self.ops)
        if self.row_dtypes:
            keep &= frame["dtype"].astype(str).isin(self.row_dtypes)
        return np.asarray(keep, dtype=bool)


#: How many rows of a GPU a form needs was chosen by hand, not from data.
RECIPES = (
    Recipe(
        "fp32-gemm", "predictor.kernels.gemm_fp32.fit:fit_tile_gemm", ("gemm",), ("fp32",), ("gemm",), ("fp32",), 1000,
        ("kernel_name", "grid_x"),
    ),
    Recipe(
        "memory-bound", "predictor.kernels.memory_bound.fit:fit_memory_bound", MEMORY_BOUND, ("*",),
        (
            "elementwise", "dropout", "reduce", "norm", "softmax", "embedding", "rotary", "copy", "cross_entropy",
            "optimizer", "routing",
        ),
        (), 1000,
    ),
    Recipe("gemm", GEMM_FIT, ("gemm",), (*SIXTEEN_BIT, *QUANTIZED), ("gemm",), QUANTIZED_ROWS),
    Recipe(
        "attention", f"{SERVING}:fit_attention", ("attention",), ("bf16", "fp16", "fp8"), ("attention",),
        ("bf16", "fp8"),
    ),
    Recipe("moe", f"{SERVING}:fit_moe", ("moe",), ("bf16", "fp16", "fp8", *QUANTIZED), ("moe",), QUANTIZED_ROWS),
    Recipe("quantize", BLOCKS_FIT, ("quantize",), ("*",), ("quantize",), ()),
    Recipe("linear-attention", BLOCKS_FIT, LINEAR, ("bf16", "fp16"), LINEAR, ("bf16",)),
    Recipe(
        "collective", "predictor.kernels.collective.fit:fit_collective", ("collective",), ("*",), ("collective",), (),
        40,
    ),
)  # fmt: skip
