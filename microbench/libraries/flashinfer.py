"""FlashInfer: ragged, paged and latent attention, KV cache, nvfp4 products, norms, CUTLASS experts, the sampler.

Read in the wheel of 0.7.2.post1: prefill.py, decode.py, mla/, page.py, gemm/, quantization/, norm/, fused_moe/core.py,
sampling.py. `plan` is made once, outside of the time, as engines make it once for all layers of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from microbench.libraries.base import BenchLibrary, Kernel, LibraryCall
from microbench.libraries.vllm import kept, norms

if TYPE_CHECKING:
    from microbench.own_ops import KvWrite, Sampler
    from predictor.ops import Attention, Gemm, MoE, Norm

#: Bytes of the buffer that attention splits its work in. Source: FlashInfer's docstrings, 128 MB recommended.
_WORKSPACE = 128 * 2**20
#: Query heads a KV head from which SGLang decodes on the tensor cores. Source: its flashinfer_backend.py, recalled.
_TENSOR_CORES = 4


def _tuned(launch: Any) -> None:
    """Runs ``launch`` once as engines do before they serve: FlashInfer times its tactics and keeps the best."""
    autotune = getattr(LIBRARY.load(), "autotune", None)
    if autotune is not None:
        with autotune(True):
            launch()


def _build(op: Any) -> tuple[Any, ...]:
    """What of attention another build is for: widths of heads, decode, their group, a window."""
    heads, kv_heads = getattr(op, "heads", 0), getattr(op, "kv_heads", 0)
    widths = (getattr(op, "head_dim", 0), getattr(op, "v_head_dim", 0))
    return (*widths, getattr(op, "q_len", 0) == 1, heads // max(1, kv_heads), bool(getattr(op, "window", 0)))


def _room(device: Any) -> Any:
    import torch

    return torch.zeros(_WORKSPACE, dtype=torch.uint8, device=device.torch_device)


def _ragged(op: Attention, device: Any) -> LibraryCall:
    from microbench.libraries import operands

    x = operands.Ragged.of(op, device)
    wrapper = LIBRARY.load().BatchPrefillWithRaggedKVCacheWrapper(_room(device), kv_layout="NHD")
    wrapper.plan(
        x.q_starts, x.k_starts, op.heads, op.kv_heads, op.head_dim, head_dim_vo=op.value_dim, causal=op.causal,
        window_left=operands.window(op)[0], sm_scale=op.head_dim**-0.5, q_data_type=x.q.dtype, kv_data_type=x.k.dtype,
    )  # fmt: skip
    return LibraryCall(lambda: wrapper.run(x.q, x.k, x.v), lambda: (wrapper.run(x.q, x.k, x.v), x.reference(op)))


def _paged(op: Attention, device: Any) -> LibraryCall:
    """Decode where every sequence has one query, else prefill behind a cache."""
    from microbench.libraries import operands

    flashinfer = LIBRARY.load()
    x = operands.Paged.of(op, device)
    sizes = (op.heads, op.kv_heads, op.head_dim, x.page)
    options: dict[str, Any] = {
        "window_left": operands.window(op)[0], "sm_scale": op.head_dim**-0.5, "q_data_type": x.q.dtype,
        "kv_data_type": x.k.dtype,
    }  # fmt: skip
    pages = (x.page_starts, x.table.flatten(), x.last_page(op))
    if op.q_len == 1:
        tensor_cores = op.heads // op.kv_heads >= _TENSOR_CORES
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            _room(device), kv_layout="NHD", use_tensor_cores=tensor_cores
        )
        wrapper.plan(*pages, *sizes, **options)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(_room(device), kv_layout="NHD")
        wrapper.plan(x.q_starts, *pages, *sizes, causal=op.causal, **options)

    def launch(k: Any = x.k, v: Any = x.v) -> Any:
        return wrapper.run(x.q, (k, v))

    return LibraryCall(launch, lambda: (launch(), x.reference(op)), (x.k, x.v))


def _latent(op: Attention, device: Any) -> LibraryCall:
    from microbench.libraries import operands

    x = operands.Paged.of(op, device, page=64)
    width, rope = op.value_dim, op.head_dim - op.value_dim
    wrapper = LIBRARY.load().BatchMLAPagedAttentionWrapper(_room(device), backend="auto")
    wrapper.plan(
        x.q_starts, x.page_starts, x.table.flatten(), x.lengths, op.heads, width, rope, x.page, op.causal,
        op.head_dim**-0.5, x.q.dtype, x.k.dtype,
    )  # fmt: skip
    query = [part.contiguous() for part in x.q.split([width, rope], -1)]
    cache = [part.contiguous() for part in x.k[:, :, 0].split([width, rope], -1)]

    def launch(latent: Any = cache[0], rotary: Any = cache[1]) -> Any:
        return wrapper.run(*query, latent, rotary)

    return LibraryCall(launch, lambda: (launch(), x.reference(op)), tuple(cache))


def _kv_write(op: KvWrite, device: Any) -> LibraryCall:
    """Each token the last one of a sequence of its own, in a page of its own."""
    import torch

    from microbench.libraries import operands

    flashinfer = LIBRARY.load()
    key, value = (operands.bf16(device, op.tokens, op.kv_heads, op.head_dim) for _ in range(2))
    cache = tuple(operands.bf16(device, op.tokens, operands.PAGE, op.kv_heads, op.head_dim) for _ in range(2))
    order = torch.randperm(op.tokens)
    pages, at = operands.ints(device, order), operands.ints(device, torch.arange(op.tokens))
    last = operands.ints(device, torch.full((op.tokens,), operands.PAGE))
    given = (at, last - 1, cache, pages, operands.starts(device, op.tokens, 1), last)

    def pair() -> tuple[Any, Any]:
        flashinfer.append_paged_kv_cache(key, value, *given, kv_layout="NHD")
        return torch.stack([x[pages.long(), operands.PAGE - 1] for x in cache]), torch.stack([key, value])

    return LibraryCall(lambda: flashinfer.append_paged_kv_cache(key, value, *given, kv_layout="NHD"), pair)


def _nvfp4(op: Gemm, device: Any) -> LibraryCall:
    import torch

    from microbench.libraries import operands

    flashinfer = LIBRARY.load()
    a, w = operands.product(op, device)
    ours, theirs = operands.fp4_scale(a), operands.fp4_scale(w)
    b, scales = flashinfer.nvfp4_quantize(w, theirs)
    alpha = 1.0 / (ours * theirs)

    def launch(b: Any = b, scales: Any = scales) -> Any:
        rows, row_scales = flashinfer.nvfp4_quantize(a, ours)
        return flashinfer.mm_fp4(rows, b.t(), row_scales, scales.t(), alpha, torch.bfloat16, backend="cutlass")

    _tuned(launch)
    return LibraryCall(launch, lambda: (launch(), a.double() @ w.double().t()), (b, scales))


def _norm(op: Norm, device: Any) -> LibraryCall:
    return norms(LIBRARY.load(), op, device)


def _experts(op: MoE, device: Any) -> LibraryCall:
    """CUTLASS's experts; of the first matrix the rows that the gate multiplies come first, as vLLM lays them for it."""
    import torch

    from microbench.libraries import operands

    flashinfer = LIBRARY.load("fused_moe")
    x = operands.bf16(device, op.tokens, op.hidden)
    up = operands.bf16(device, op.experts, 2 * op.intermediate, op.hidden, scale=op.hidden**-0.5)
    down = operands.bf16(device, op.experts, op.hidden, op.intermediate, scale=op.intermediate**-0.5)
    ids, weights = operands.picked(op, device)
    swapped = torch.cat(up.chunk(2, 1)[::-1], 1).contiguous()

    def launch(up: Any = swapped, down: Any = down) -> Any:
        out = flashinfer.cutlass_fused_moe(x, ids, weights, up, down, torch.bfloat16, quant_scales=[])
        return out[0] if isinstance(out, list) else out

    _tuned(launch)
    return LibraryCall(launch, lambda: (launch(), operands.experts(x, up, down, ids, weights)), (swapped, down))


def _sampler(op: Sampler, device: Any) -> LibraryCall:
    import torch

    sampling = LIBRARY.load("sampling")
    logits = device.randn(op.rows, op.vocab, dtype="fp32", scale=4.0)

    def launch() -> Any:
        return sampling.top_k_top_p_sampling_from_logits(logits, op.top_k, op.top_p, filter_apply_order="top_k_first")

    def pair() -> tuple[Any, Any]:
        drawn = kept(logits, op).gather(-1, launch().long().unsqueeze(-1))
        return drawn.float(), torch.ones_like(drawn, dtype=torch.float32)

    return LibraryCall(launch, pair)


#: Compute capabilities. Source: the sources read, see above; what they leave open is the instructions' own.
LIBRARY = BenchLibrary(
    "flashinfer", ("flashinfer",), ("sglang", "vllm"), ("flashinfer-python", "flashinfer"),
    "pip install flashinfer-python", "0.7.2.post1", recalled="from how many heads on SGLang decodes on tensor cores",
    built_by=_build,
    kernels={
        "ragged": Kernel(_ragged, {"sglang": "flashinfer", "vllm": "vllm_flashinfer_fiprefill"}),
        "paged": Kernel(_paged, {"sglang": "flashinfer", "vllm": "vllm_flashinfer_fidecode"}),
        "latent": Kernel(_latent, {"sglang": "flashinfer", "vllm": "vllm_flashinfer_mla"}, (9, 0)),
        "kv_write": Kernel(_kv_write, "flashinfer_append_paged_kv_cache"),
        "nvfp4": Kernel(
            _nvfp4, {"sglang": "sglang_flashinfer_cutlass_nvfp4", "vllm": "FlashInferCutlassNvFp4LinearKernel"}, (10, 0)
        ),
        "norm": Kernel(_norm, "flashinfer_rmsnorm"),
        "experts": Kernel(
            _experts,
            {
                "sglang": "sglang_flashinfer_cutlass_moe",
                "vllm": "vllm_unquantizedfusedmoe_flashinfer_cutlass_flashinferexperts",
            },
            (9, 0),
        ),
        "sampler": Kernel(_sampler, "flashinfer_top_k_top_p_sampling"),
    },
)  # fmt: skip
