"""SGLang's kernels (`sgl_kernel`): FlashAttention-3, fp8 products, norms, routing.

Read in the wheels of sglang-kernel 0.4.10 (since 2026 the name of the distribution) and sgl-kernel 0.3.21; both take
the same arguments here. SGLang's Triton experts are in sglang itself and want a server's settings: not built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from microbench.libraries.base import BenchLibrary, Kernel, LibraryCall
from microbench.libraries.vllm import norms

if TYPE_CHECKING:
    from predictor.ops import Attention, Gemm, Norm, Routing


def _flash(op: Attention, device: Any) -> LibraryCall:
    from microbench.libraries import operands
    from microbench.libraries.flash_attn import varlen

    flash = LIBRARY.load("flash_attn")
    if op.q_len == op.kv_len:
        return varlen(flash.flash_attn_varlen_func, op, device)
    x = operands.Paged.of(op, device)

    def launch(k: Any = x.k, v: Any = x.v) -> Any:
        return flash.flash_attn_with_kvcache(
            x.q, k, v, cache_seqlens=x.lengths, page_table=x.table, cu_seqlens_q=x.q_starts, max_seqlen_q=op.q_len,
            softmax_scale=op.head_dim**-0.5, causal=op.causal, window_size=operands.window(op),
        )  # fmt: skip

    return LibraryCall(launch, lambda: (launch(), x.reference(op)), (x.k, x.v))


def _fp8(op: Gemm, device: Any) -> LibraryCall:
    import torch

    from microbench.libraries import operands

    ops = LIBRARY.load()
    a, w = operands.product(op, device)
    b, scales = operands.fp8_rows(w)
    rows = torch.empty_like(a, dtype=torch.float8_e4m3fn)
    row_scales = torch.empty(op.m, 1, dtype=torch.float32, device=a.device)

    def launch(b: Any = b, scales: Any = scales) -> Any:
        ops.sgl_per_token_quant_fp8(a, rows, row_scales)
        return ops.fp8_scaled_mm(rows, b.t(), row_scales, scales, torch.bfloat16)

    return LibraryCall(launch, lambda: (launch(), a.double() @ (b.double() * scales.double()).t()), (b, scales))


def _norm(op: Norm, device: Any) -> LibraryCall:
    return norms(LIBRARY.load(), op, device)


def _routing(op: Routing, device: Any) -> LibraryCall:
    import torch

    ops = LIBRARY.load()
    scores = device.randn(op.tokens, op.experts, dtype="fp32")
    weights = torch.empty(op.tokens, op.top_k, dtype=torch.float32, device=scores.device)
    ids = torch.empty_like(weights, dtype=torch.int32)

    def launch() -> Any:
        ops.topk_softmax(weights, ids, scores)
        return weights

    return LibraryCall(launch, lambda: (launch(), scores.double().softmax(-1).topk(op.top_k).values))


#: Compute capabilities. Source: the sources read, see above; what they leave open is the instructions' own.
LIBRARY = BenchLibrary(
    "sgl_kernel", ("sgl_kernel",), ("sglang",), ("sglang-kernel", "sgl-kernel"), "pip install sglang-kernel", "0.4.10",
    kernels={
        "fa3": Kernel(_flash, "fa3", (9, 0), (10, 0)),
        "fp8": Kernel(_fp8, "sglang_sgl_kernel_fp8_scaled_mm", (8, 9)),
        "norm": Kernel(_norm, "sglang_rmsnorm"),
        "routing": Kernel(_routing, "sglang_topk_softmax"),
    },
)  # fmt: skip
