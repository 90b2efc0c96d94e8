"""vLLM: FlashAttention as it ships it, CUTLASS and Triton products, norms, KV cache, Triton experts, the sampler.

Read in the wheel of 0.33.0: vllm_flash_attn/flash_attn_interface.py, _custom_ops.py,
model_executor/layers/quantization/utils/fp8_utils.py, model_executor/layers/fused_moe, v1/sample/ops. An engine's
linear layer quantizes its activations first, so does the launch, as the measured tables do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from microbench.libraries.base import BenchLibrary, Kernel, LibraryCall

if TYPE_CHECKING:
    from microbench.own_ops import KvWrite, Sampler
    from predictor.ops import Attention, Gemm, MoE, Norm, Quantize, Routing

_EPS = 1e-6  # of norms, chosen by hand, not from data: it moves no time
_FP8_UTILS = "model_executor.layers.quantization.utils.fp8_utils"


def _flash(version: int) -> Callable[[Attention, Any], LibraryCall]:
    def make(op: Attention, device: Any) -> LibraryCall:
        from microbench.libraries import operands

        call = LIBRARY.load("vllm_flash_attn.flash_attn_interface").flash_attn_varlen_func
        shared: dict[str, Any] = {
            "max_seqlen_q": op.q_len, "max_seqlen_k": op.kv_len, "softmax_scale": op.head_dim**-0.5,
            "causal": op.causal, "window_size": list(operands.window(op)), "fa_version": version,
        }  # fmt: skip
        x: Any
        if op.q_len == op.kv_len:
            x = operands.Ragged.of(op, device)
            shared |= {"cu_seqlens_k": x.k_starts}
        else:
            x = operands.Paged.of(op, device)
            shared |= {"seqused_k": x.lengths, "block_table": x.table}

        def launch(k: Any = x.k, v: Any = x.v) -> Any:
            return call(x.q, k, v, cu_seqlens_q=x.q_starts, **shared)

        return LibraryCall(launch, lambda: (launch(), x.reference(op)), (x.k, x.v))

    return make


def _fp8(op: Gemm, device: Any) -> LibraryCall:
    import torch

    from microbench.libraries import operands

    ops = LIBRARY.load("_custom_ops")
    a, w = operands.product(op, device)
    b, scale = operands.fp8_rows(w)
    columns, scales = b.t(), scale.t().contiguous()

    def launch(columns: Any = columns, scales: Any = scales) -> Any:
        rows, row_scales = ops.scaled_fp8_quant(a, use_per_token_if_dynamic=True)
        return ops.cutlass_scaled_mm(rows, columns, row_scales, scales, torch.bfloat16)

    return LibraryCall(launch, lambda: (launch(), a.double() @ (b.double() * scale.double()).t()), (columns, scales))


def _fp8_block(cutlass: bool) -> Callable[[Gemm, Any], LibraryCall]:
    def make(op: Gemm, device: Any) -> LibraryCall:
        import torch

        from microbench.libraries import operands

        ops, utils = LIBRARY.load("_custom_ops"), LIBRARY.load(_FP8_UTILS)
        a, w = operands.product(op, device)
        b, scales = operands.fp8_blocks(w)

        def launch(b: Any = b, scales: Any = scales) -> Any:
            rows, row_scales = utils.per_token_group_quant_fp8(a, operands.BLOCK, column_major_scales=cutlass)
            if cutlass:
                return ops.cutlass_scaled_mm(rows, b.t(), row_scales, scales.t(), torch.bfloat16)
            sides = [operands.BLOCK, operands.BLOCK]
            return utils.w8a8_triton_block_scaled_mm(rows, b, row_scales, scales, sides, output_dtype=torch.bfloat16)

        return LibraryCall(launch, lambda: (launch(), a.double() @ w.double().t()), (b, scales))

    return make


def _nvfp4(op: Gemm, device: Any) -> LibraryCall:
    import torch

    from microbench.libraries import operands

    ops = LIBRARY.load("_custom_ops")
    a, w = operands.product(op, device)
    ours, theirs = operands.fp4_scale(a), operands.fp4_scale(w)
    b, scales = ops.scaled_fp4_quant(w, theirs)
    alpha = 1.0 / (ours * theirs)

    def launch(b: Any = b, scales: Any = scales) -> Any:
        rows, row_scales = ops.scaled_fp4_quant(a, ours)
        return ops.cutlass_scaled_fp4_mm(rows, b, row_scales, scales, alpha, torch.bfloat16)

    return LibraryCall(launch, lambda: (launch(), a.double() @ w.double().t()), (b, scales))


def _norm(op: Norm, device: Any) -> LibraryCall:
    import torch

    ops = LIBRARY.load("_custom_ops")
    x, weight = device.randn(op.rows, op.cols, dtype=op.dtype), device.uniform(op.cols, low=0.5, dtype=op.dtype)
    if not op.residual:
        out = torch.empty_like(x)

        def launch() -> Any:
            ops.rms_norm(out, x, weight, _EPS)
            return out

        return LibraryCall(launch, lambda: (launch(), rms(x, weight)))
    return fused_add(x, weight, lambda left, right: ops.fused_add_rms_norm(left, right, weight, _EPS))


def rms(x: Any, weight: Any) -> Any:
    """RMS norm of rows in float64."""
    wide = x.double()
    return wide * (wide.square().mean(-1, keepdim=True) + _EPS).rsqrt() * weight.double()


def fused_add(x: Any, weight: Any, call: Callable[[Any, Any], object]) -> LibraryCall:
    """A kernel that adds ``x`` to a residual and norms the sum, both in place."""
    import torch

    residual = torch.randn_like(x)

    def pair() -> tuple[Any, Any]:
        left, right = x.clone(), residual.clone()
        call(left, right)
        total = x.double() + residual.double()
        return torch.stack([left, right]), torch.stack([rms(total, weight), total])

    return LibraryCall(lambda: call(x, residual), pair)


def norms(module: Any, op: Norm, device: Any) -> LibraryCall:
    """RMS norm as FlashInfer's module has it, whose names sgl-kernel took over."""
    import torch

    x, weight = device.randn(op.rows, op.cols, dtype=op.dtype), device.uniform(op.cols, low=0.5, dtype=op.dtype)
    if op.residual:
        return fused_add(x, weight, lambda left, right: module.fused_add_rmsnorm(left, right, weight, 1e-6))
    out = torch.empty_like(x)
    return LibraryCall(
        lambda: module.rmsnorm(x, weight, 1e-6, out), lambda: (module.rmsnorm(x, weight, 1e-6), rms(x, weight))
    )


def _quantize(op: Quantize, device: Any) -> LibraryCall:
    import torch

    ops = LIBRARY.load("_custom_ops")
    x = device.randn(op.rows, op.cols, dtype="bf16")

    def pair() -> tuple[Any, Any]:
        rows, scale = ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True)
        return rows.to(torch.float32) * scale, x

    return LibraryCall(lambda: ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True), pair)


def _kv_write(op: KvWrite, device: Any) -> LibraryCall:
    import torch

    from microbench.libraries import operands

    ops = LIBRARY.load("_custom_ops")
    slots = operands.ints(device, torch.randperm(2 * op.tokens)[: op.tokens], torch.int64)
    pages = -(-2 * op.tokens // operands.PAGE)
    unit_scale = torch.ones((), dtype=torch.float32, device=slots.device)
    if op.latent:
        latent, rope = operands.bf16(device, op.tokens, op.head_dim - 64), operands.bf16(device, op.tokens, 64)
        cache = operands.bf16(device, pages, operands.PAGE, op.head_dim)

        def launch_latent() -> None:
            ops.concat_and_cache_mla(latent, rope, cache, slots, "auto", unit_scale)

        def pair_latent() -> tuple[Any, Any]:
            launch_latent()
            return cache.flatten(0, 1)[slots], torch.cat([latent, rope], -1)

        return LibraryCall(launch_latent, pair_latent)
    key, value = (operands.bf16(device, op.tokens, op.kv_heads, op.head_dim) for _ in range(2))
    keys, values = (operands.bf16(device, pages, operands.PAGE, op.kv_heads, op.head_dim) for _ in range(2))

    def launch() -> None:
        ops.reshape_and_cache_flash(key, value, keys, values, slots, "auto", unit_scale, unit_scale)

    def pair() -> tuple[Any, Any]:
        launch()
        return torch.stack([x.flatten(0, 1)[slots] for x in (keys, values)]), torch.stack([key, value])

    return LibraryCall(launch, pair)


def _experts(op: MoE, device: Any) -> LibraryCall:
    from microbench.libraries import operands

    moe = LIBRARY.load("model_executor.layers.fused_moe.fused_moe")
    x = operands.bf16(device, op.tokens, op.hidden)
    up = operands.bf16(device, op.experts, 2 * op.intermediate, op.hidden, scale=op.hidden**-0.5)
    down = operands.bf16(device, op.experts, op.hidden, op.intermediate, scale=op.intermediate**-0.5)
    ids, weights = operands.picked(op, device)
    given: dict[str, Any] = {}
    w1, w2 = up, down
    if op.quant == "fp8_block":
        (w1, scale1), (w2, scale2) = operands.fp8_blocks(up), operands.fp8_blocks(down)
        config = LIBRARY.load("model_executor.layers.fused_moe.config")
        sides = [operands.BLOCK, operands.BLOCK]
        given = {"quant_config": config.fp8_w8a8_moe_quant_config(scale1, scale2, block_shape=sides)}

    def launch(w1: Any = w1, w2: Any = w2) -> Any:
        return moe.fused_experts(x, w1, w2, weights, ids, **given)

    return LibraryCall(launch, lambda: (launch(), operands.experts(x, up, down, ids, weights)), (w1, w2))


def _routing(op: Routing, device: Any) -> LibraryCall:
    import torch

    ops = LIBRARY.load("_custom_ops")
    scores = device.randn(op.tokens, op.experts, dtype="fp32")
    weights = torch.empty(op.tokens, op.top_k, dtype=torch.float32, device=scores.device)
    ids, rows = (torch.empty_like(weights, dtype=torch.int32) for _ in range(2))

    def launch() -> Any:
        ops.topk_softmax(weights, ids, rows, scores)
        return weights

    return LibraryCall(launch, lambda: (launch(), scores.double().softmax(-1).topk(op.top_k).values))


def _sampler(op: Sampler, device: Any) -> LibraryCall:
    """What is kept of the logits; a copy of them is in the time, since the call may write where it reads."""
    import torch

    sampler = LIBRARY.load("v1.sample.ops.topk_topp_sampler")
    logits = device.randn(op.rows, op.vocab, dtype="fp32", scale=4.0)
    top_k = torch.full((op.rows,), op.top_k, dtype=torch.int32, device=logits.device)
    top_p = torch.full((op.rows,), op.top_p, dtype=torch.float32, device=logits.device)
    copied = torch.empty_like(logits)

    def launch() -> Any:
        return sampler.apply_top_k_top_p(copied.copy_(logits), top_k, top_p)

    def pair() -> tuple[Any, Any]:
        return launch().isfinite().float(), kept(logits, op).float()

    return LibraryCall(launch, pair)


def kept(logits: Any, op: Sampler) -> Any:
    """True for tokens that top-k, then top-p leave: the likeliest whose probability before them is below top_p."""
    best, order = logits.double().topk(op.top_k, dim=-1)
    likely = best.softmax(-1)
    inside = likely.cumsum(-1) - likely < op.top_p
    import torch

    return torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, order, inside)


#: Compute capabilities. Source: the sources read, see above; what they leave open is the instructions' own.
LIBRARY = BenchLibrary(
    "vllm", ("vllm",), ("vllm",), ("vllm",), "pip install vllm", "0.33.0",
    kernels={
        "fa2": Kernel(_flash(2), "vllm_flash_attn_fa2"),
        "fa3": Kernel(_flash(3), "vllm_flash_attn_fa3", (9, 0), (10, 0)),
        "fa4": Kernel(_flash(4), "vllm_flash_attn_fa4", (10, 0), (12, 0)),
        "fp8": Kernel(_fp8, "CutlassFP8ScaledMMLinearKernel", (8, 9)),
        "fp8_block_cutlass": Kernel(_fp8_block(True), "CutlassFp8BlockScaledMMKernel", (9, 0)),
        "fp8_block_triton": Kernel(_fp8_block(False), "TritonFp8BlockScaledMMKernel", (8, 9)),
        "nvfp4": Kernel(_nvfp4, "CutlassNvFp4LinearKernel", (10, 0)),
        "norm": Kernel(_norm, "vllm_rms_norm"),
        "quantize": Kernel(_quantize, "dynamic_per_token_scaled_fp8_quant", (8, 9)),
        "kv_write": Kernel(_kv_write, "vllm_reshape_and_cache"),
        "experts": Kernel(_experts, "vllm_unquantizedfusedmoe_triton_tritonexperts"),
        "experts_fp8_block": Kernel(_experts, "vllm_fp8moe_triton_tritonexperts", (8, 9)),
        "routing": Kernel(_routing, "vllm_topk_softmax"),
        "sampler": Kernel(_sampler, "vllm_apply_top_k_top_p"),
    },
)  # fmt: skip
