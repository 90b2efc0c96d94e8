"""DeepGEMM: fp8 products with a scale for every 128 x 128 weights, alone and grouped; vLLM's wheel has a copy.

Names are those of vllm/third_party/deep_gemm/__init__.py 2.8.1 in vLLM 0.33.0; the functions are compiled, and their
arguments are from memory of DeepGEMM's README. Activations are quantized first, by vLLM's kernel or SGLang's, as the
engines do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from microbench.libraries.base import BenchLibrary, Kernel, LibraryCall

if TYPE_CHECKING:
    from predictor.ops import Gemm


def _whole_scales() -> bool:
    """Whether scales are cut to powers of two (UE8M0): from compute capability 10.0 on. Source: DeepGEMM's README."""
    import torch

    return torch.cuda.get_device_capability() >= (10, 0)


def _quantizer(a: Any) -> Any:
    """What gives (rows in E4M3, scales of every 128 of a row) of ``a``. Raises ImportError."""
    import torch

    from microbench.libraries import operands, sgl_kernel, vllm

    whole = _whole_scales()
    if vllm.LIBRARY.module():
        utils = vllm.LIBRARY.load("model_executor.layers.quantization.utils.fp8_utils")
        return lambda: utils.per_token_group_quant_fp8(
            a, operands.BLOCK, column_major_scales=True, tma_aligned_scales=True, use_ue8m0=whole
        )
    if not sgl_kernel.LIBRARY.module():
        raise ImportError("DeepGEMM takes activations that vLLM or sgl_kernel has quantized: neither is installed")
    ops = sgl_kernel.LIBRARY.load()
    rows = torch.empty_like(a, dtype=torch.float8_e4m3fn)
    padded = -(-a.shape[0] // 4) * 4  # columns of scales lie 16 bytes apart
    scales = torch.empty(a.shape[1] // operands.BLOCK, padded, dtype=torch.float32, device=a.device).t()[: a.shape[0]]

    def quantized() -> tuple[Any, Any]:
        largest = operands.FP8_LARGEST
        ops.sgl_per_token_group_quant_8bit(a, rows, scales, operands.BLOCK, 1e-10, -largest, largest, scale_ue8m0=whole)
        return rows, scales

    return quantized


def _linear(op: Gemm, device: Any) -> LibraryCall:
    import torch

    from microbench.libraries import operands

    deep_gemm = LIBRARY.load()
    a, w = operands.product(op, device)
    (b, scales), quantized = operands.fp8_blocks(w, _whole_scales()), _quantizer(a)
    out = torch.empty(op.m, op.n, dtype=torch.bfloat16, device=a.device)

    def launch(b: Any = b, scales: Any = scales) -> Any:
        deep_gemm.fp8_gemm_nt(quantized(), (b, scales), out)
        return out

    return LibraryCall(launch, lambda: (launch(), a.double() @ w.double().t()), (b, scales))


def _grouped(op: Gemm, device: Any) -> LibraryCall:
    """``batch`` experts of m rows each, one behind the other; m is a multiple of 128, to which rows are aligned."""
    import torch

    from microbench.libraries import operands

    deep_gemm = LIBRARY.load()
    a = operands.bf16(device, op.batch * op.m, op.k)
    w = operands.bf16(device, op.batch, op.n, op.k, scale=op.k**-0.5)
    (b, scales), quantized = operands.fp8_blocks(w, _whole_scales()), _quantizer(a)
    groups = operands.ints(device, torch.arange(op.batch).repeat_interleave(op.m))
    out = torch.empty(op.batch * op.m, op.n, dtype=torch.bfloat16, device=a.device)

    def launch(b: Any = b, scales: Any = scales) -> Any:
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(quantized(), (b, scales), out, groups)
        return out

    def pair() -> tuple[Any, Any]:
        return launch(), (a.double().view(op.batch, op.m, op.k) @ w.double().mT).flatten(0, 1)

    return LibraryCall(launch, pair, (b, scales))


_SOURCES = {"vllm": "DeepGemmFp8BlockScaledMMKernel", "sglang": "sglang_deepgemm_gemm_nt_f8f8bf16"}
#: Compute capabilities. Source: the sources read, see above; what they leave open is the instructions' own.
LIBRARY = BenchLibrary(
    "deep_gemm", ("deep_gemm", "vllm.third_party.deep_gemm"), ("vllm", "sglang"), ("deep_gemm", "deep-gemm", "vllm"),
    "build github.com/deepseek-ai/DeepGEMM, or pip install vllm", "2.8.1 (names)", recalled="arguments of its products",
    built_by=lambda op: (op.n, op.k, op.batch, op.m <= 64),
    kernels={
        "fp8_block": Kernel(_linear, _SOURCES, (9, 0), (12, 0)),
        "grouped_fp8_block": Kernel(_grouped, {engine: f"{name}_grouped" for engine, name in _SOURCES.items()},
                                    (9, 0), (12, 0)),
    },
)  # fmt: skip
