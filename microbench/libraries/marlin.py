"""Marlin: 16-bit activations by weights of 4 bits, as vLLM ships it (`vllm._custom_ops.marlin_gemm`).

Read in the wheel of vLLM 0.33.0: _custom_ops.py and marlin_utils.py, marlin_utils_test.py of
model_executor/layers/quantization/utils, whose `marlin_quantize` also gives the weights that the kernel has to see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from microbench.libraries.base import BenchLibrary, Kernel, LibraryCall

if TYPE_CHECKING:
    from predictor.ops import Gemm

_UTILS = "model_executor.layers.quantization.utils"
_GROUP = 128  # weights that share a scale, by definition of int4_wo in predictor.formats.quantization


def _int4(op: Gemm, device: Any) -> LibraryCall:
    from microbench.libraries import operands

    ops, scalars = LIBRARY.load("_custom_ops"), LIBRARY.load("scalar_type").scalar_types
    a, w = operands.product(op, device)
    quantize = LIBRARY.load(f"{_UTILS}.marlin_utils_test").marlin_quantize
    seen, packed, scales = quantize(w.t().contiguous(), scalars.uint4b8, _GROUP)
    workspace = LIBRARY.load(f"{_UTILS}.marlin_utils").marlin_make_workspace_new(a.device)

    def launch(packed: Any = packed, scales: Any = scales) -> Any:
        return ops.marlin_gemm(
            a, None, packed, None, scales, None, None, None, workspace, scalars.uint4b8, op.m, op.n, op.k,
            use_fp32_reduce=True,
        )  # fmt: skip

    return LibraryCall(launch, lambda: (launch(), a.double() @ seen.double()), (packed, scales))


#: Compute capabilities. Source: the sources read, see above; what they leave open is the instructions' own.
LIBRARY = BenchLibrary(
    "marlin", ("vllm",), ("vllm",), ("vllm",), "pip install vllm", "vLLM 0.33.0",
    kernels={"int4": Kernel(_int4, "MarlinLinearKernel")},
)  # fmt: skip
