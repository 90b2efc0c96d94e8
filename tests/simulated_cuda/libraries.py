"""Serving libraries as modules that take the arguments of the real ones, and no others.

Signatures are those of `tests/golden/library_signatures.yaml`, read in the real releases by
`tools/library_signatures.py`; DeepGEMM's functions are compiled, and theirs are as the launcher recalls them. A call
is one kernel of the board, its values computed from what it was given: operands' places, types, strides and scales have
to be what the real kernel asks.
"""

from __future__ import annotations

import importlib.machinery
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace as Given
from typing import Any

import torch
import yaml
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from simulated_cuda.board import Kernel
from simulated_cuda.tensors import mark, on_board

SIGNATURES: dict[str, dict[str, str]] = yaml.safe_load(
    (Path(__file__).resolve().parents[1] / "golden" / "library_signatures.yaml").read_text()
)
#: Compiled functions, by the launcher's memory.
RECALLED = {
    "deep_gemm": {
        "fp8_gemm_nt": "a, b, d, c=..., recipe=..., compiled_dims=..., disable_ue8m0_cast=...",
        "m_grouped_fp8_gemm_nt_contiguous": "a, b, d, m_indices, recipe=..., compiled_dims=..., disable_ue8m0_cast=...",
    }
}
#: Module here <- module where its functions are written, where that is another.
_PLACES = {
    "flashinfer": ("flashinfer.prefill", "flashinfer.decode", "flashinfer.mla._batch_mla._wrapper", "flashinfer.page",
                   "flashinfer.quantization.fp4_quantization", "flashinfer.gemm.gemm_base", "flashinfer.norm"),
    "flashinfer.fused_moe": ("flashinfer.fused_moe.core",),
    "sgl_kernel": ("sgl_kernel.gemm", "sgl_kernel.elementwise", "sgl_kernel.moe"),
    "flash_attn": ("flash_attn.flash_attn_interface",), "flash_attn_interface": ("hopper.flash_attn_interface",),
    "flash_mla": ("vllm.third_party.flashmla.flash_mla_interface",), "deep_gemm": (),
}  # fmt: skip
_HALF = (torch.bfloat16, torch.float16)


def strict(told: str) -> inspect.Signature:
    """The signature of "a, b=...": defaults are Ellipsis."""
    return inspect.signature(eval(f"lambda {told}: None"))


# -------------------------------------------------------------------------------------------------- what calls compute


def _attend(q: Any, k: Any, v: Any, a: Any, lengths: Any = None) -> Any:
    """One sequence: q (n, heads, d), k and v (m, kv_heads, d), bottom right corner of the mask."""
    group = q.shape[1] // k.shape[1]
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float().repeat_interleave(group, 1)) * a.softmax_scale
    n, m = q.shape[0], k.shape[0]
    place, keys = torch.arange(n).view(-1, 1) + m - n, torch.arange(m).view(1, -1)
    left, _ = tuple(a.window_size or (-1, -1))
    hidden = (keys > place) if a.causal else torch.zeros(n, m, dtype=torch.bool)
    hidden = hidden | ((keys < place - left) if left >= 0 else False)
    out = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1),
                       v.float().repeat_interleave(group, 1))  # fmt: skip
    return out.to(q.dtype)


def _ragged(a: Any) -> Any:
    assert a.q.dtype in _HALF and a.cu_seqlens_q.dtype == a.cu_seqlens_k.dtype == torch.int32
    spans = [list(zip(s[:-1].tolist(), s[1:].tolist(), strict=True)) for s in (a.cu_seqlens_q, a.cu_seqlens_k)]
    assert a.max_seqlen_q == max(y - x for x, y in spans[0]) and a.max_seqlen_k == max(y - x for x, y in spans[1])
    return torch.cat([_attend(a.q[i:j], a.k[m:n], a.v[m:n], a) for (i, j), (m, n) in zip(*spans, strict=True)])


def _pages(cache: Any, table: Any, lengths: Any) -> list[Any]:
    assert table.dtype == lengths.dtype == torch.int32 and cache.dim() == 4
    rows = zip(table.long(), lengths.tolist(), strict=True)
    return [cache[pages].flatten(0, 1)[:length] for pages, length in rows]


def _paged(a: Any, q: Any, k: Any, v: Any, table: Any, lengths: Any, starts: Any) -> Any:
    edges = starts.tolist()
    keys, values = _pages(k, table, lengths), _pages(v, table, lengths)
    parts = zip(edges[:-1], edges[1:], keys, values, strict=True)
    return torch.cat([_attend(q[i:j], one, other, a) for i, j, one, other in parts])


def _vllm_flash(a: Any) -> Any:
    assert a.fa_version in (2, 3, 4) and (a.cu_seqlens_k is None) != (a.seqused_k is None)
    assert a.window_size is None or isinstance(a.window_size, list)
    if a.block_table is None:
        return _ragged(a)
    return _paged(a, a.q, a.k, a.v, a.block_table, a.seqused_k, a.cu_seqlens_q)


def _rows_to_fp8(x: Any, group: int = 0, whole: bool = False) -> tuple[Any, Any]:
    blocks = x.float().unflatten(-1, (-1, group or x.shape[-1]))
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 448.0
    scale = scale.log2().ceil().exp2() if whole else scale
    return (blocks / scale).to(torch.float8_e4m3fn).flatten(-2, -1), scale.squeeze(-1)


def _scaled(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    """a (m, k) by b (k, n), scales spread over their blocks."""
    assert a.dtype == b.dtype == torch.float8_e4m3fn and scale_a.dtype == scale_b.dtype == torch.float32
    wide = []
    for x, scale in ((a, scale_a), (b, scale_b)):
        for axis in (0, 1):
            scale = scale.repeat_interleave(-(-x.shape[axis] // scale.shape[axis]), axis).narrow(axis, 0, x.shape[axis])
        wide.append(x.float() * scale)
    return (wide[0] @ wide[1]).to(torch.bfloat16)


def _cutlass(a: Any) -> Any:
    assert a.a.is_contiguous() and a.b.t().is_contiguous(), "A row-major, B column-major"
    if a.scale_a.shape[1] > 1:
        assert a.scale_a.stride(0) == 1 and a.scale_b.shape == (a.b.shape[0] // 128, a.b.shape[1] // 128)
    else:
        assert a.scale_a.shape == (a.a.shape[0], 1) and a.scale_b.shape == (1, a.b.shape[1])
    return _scaled(a.a, a.b, a.scale_a, a.scale_b)


def _group_quant(a: Any) -> Any:
    rows, scales = _rows_to_fp8(a.x, a.group_size, bool(a.use_ue8m0))
    return rows, scales.t().contiguous().t() if a.column_major_scales else scales


def _triton_block(a: Any) -> Any:
    assert a.block_size == [128, 128] and a.B.is_contiguous() and a.As.is_contiguous()
    return _scaled(a.A, a.B.t(), a.As, a.Bs.t())


_LEVELS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def _to_fp4(x: Any, largest: Any) -> tuple[Any, Any]:
    """Two values a byte, low nibble first, and a scale in E4M3 for 16; rows of scales padded to 128."""
    assert x.dtype in _HALF and x.shape[1] % 16 == 0 and largest.numel() == 1 and largest.dtype == torch.float32
    blocks = x.float().unflatten(1, (-1, 16))
    scale = (blocks.abs().amax(-1, keepdim=True) / 6.0 * largest).to(torch.float8_e4m3fn)
    units = blocks * largest / scale.float().clamp(min=1e-6)
    code = (units.abs().unsqueeze(-1) - _LEVELS).abs().argmin(-1) + 8 * (units < 0)
    code = code.flatten(1).to(torch.uint8)
    padded = torch.zeros(-(-x.shape[0] // 128) * 128, x.shape[1] // 16, dtype=torch.float8_e4m3fn)
    padded[: x.shape[0]] = scale.squeeze(-1)
    return code[:, 0::2] | code[:, 1::2] << 4, padded


def _from_fp4(code: Any, scale: Any) -> Any:
    both = torch.stack([code & 15, code >> 4], -1).flatten(1).long()
    return _LEVELS[both & 7] * (1 - 2 * (both >> 3)) * scale[: code.shape[0]].float().repeat_interleave(16, 1)


def _mm_fp4(a: Any, b: Any, sa: Any, sb: Any, alpha: Any) -> Any:
    assert a.dtype == b.dtype == torch.uint8 and sa.dtype == sb.dtype == torch.float8_e4m3fn
    assert alpha.dtype == torch.float32
    return (alpha * (_from_fp4(a, sa) @ _from_fp4(b, sb).t())).to(torch.bfloat16)


def _flashinfer_mm_fp4(a: Any) -> Any:
    assert a.b.t().is_contiguous() and a.b_descale.t().is_contiguous(), "B and its scales column-major"
    return _mm_fp4(a.a, a.b.t(), a.a_descale, a.b_descale.t(), a.alpha)


def _rms(x: Any, weight: Any, eps: float) -> Any:
    wide = x.double()
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()).to(x.dtype)


def _add_rms(x: Any, residual: Any, weight: Any, eps: float) -> None:
    residual.add_(x)
    x.copy_(_rms(residual, weight, eps))


def _topk_softmax(a: Any) -> None:
    assert a.topk_weights.dtype == torch.float32 and a.topk_ids.dtype == torch.int32
    best = a.gating_output.float().softmax(-1).topk(a.topk_weights.shape[1])
    a.topk_weights.copy_(best.values)
    a.topk_ids.copy_(best.indices)


def _reshape_and_cache(a: Any) -> None:
    assert a.kv_cache_dtype == "auto" and a.slot_mapping.dtype == torch.int64
    for rows, cache in ((a.key, a.key_cache), (a.value, a.value_cache)):
        cache.flatten(0, 1)[a.slot_mapping] = rows


def _cache_mla(a: Any) -> None:
    assert a.kv_cache_dtype == "auto" and a.slot_mapping.dtype == torch.int64
    a.kv_cache.flatten(0, 1)[a.slot_mapping] = torch.cat([a.kv_c, a.k_pe], -1)


def _moe(x: Any, w1: Any, w2: Any, weights: Any, ids: Any, gate_first: bool = True) -> Any:
    assert ids.dtype == torch.int32 and weights.dtype == torch.float32
    out = torch.zeros_like(x, dtype=torch.float64)
    for t in range(x.shape[0]):
        for expert, weight in zip(ids[t].tolist(), weights[t].tolist(), strict=True):
            gate, value = (w1[expert].double() @ x[t].double()).chunk(2)[:: 1 if gate_first else -1]
            out[t] += weight * (w2[expert].double() @ (torch.nn.functional.silu(gate) * value))
    return out.to(x.dtype)


def _unblocked(w: Any, scale: Any) -> Any:
    return w.double() * scale.double().repeat_interleave(128, -1).repeat_interleave(128, -2)


def _fused_experts(a: Any) -> Any:
    w1, w2 = a.w1, a.w2
    if a.quant_config is not None:
        assert a.quant_config.block_shape == [128, 128] and w1.dtype == torch.float8_e4m3fn
        w1, w2 = _unblocked(w1, a.quant_config.w1_scale), _unblocked(w2, a.quant_config.w2_scale)
    return _moe(a.hidden_states, w1, w2, a.topk_weights, a.topk_ids)


def _top(logits: Any, k: Any, p: Any) -> Any:
    """Logits that are left: k, then p, by a loop over rows."""
    out = torch.full_like(logits, -torch.inf)
    for row in range(logits.shape[0]):
        many = int(k if isinstance(k, int) else k[row])
        share = float(p if isinstance(p, float) else p[row])
        best, order = logits[row].double().sort(descending=True)
        likely = best[:many].softmax(-1)
        inside = order[:many][likely.cumsum(-1) - likely < share]
        out[row, inside] = logits[row, inside]
    return out


def _marlin_quantize(a: Any) -> Any:
    assert a.group_size == 128 and a.quant_type == "uint4b8" and a.w.shape[0] % 128 == 0
    groups = a.w.float().unflatten(0, (-1, 128))
    scale = groups.abs().amax(1, keepdim=True) / 7.0
    whole = (groups / scale).round().clamp(-8, 7)
    return [(whole * scale).flatten(0, 1).to(a.w.dtype), whole.flatten(0, 1).to(torch.int8), scale.squeeze(1)]


def _marlin(a: Any) -> Any:
    assert (a.size_m, a.size_k) == a.a.shape and a.size_n == a.b_q_weight.shape[1] and a.b_q_type == "uint4b8"
    return (a.a.double() @ (a.b_q_weight.double() * a.b_scales.double().repeat_interleave(128, 0))).to(a.a.dtype)


def _flash_mla(a: Any) -> Any:
    assert a.k_cache.shape[1] == 64 and a.k_cache.shape[2] == 1 and a.q.dim() == 4 and a.head_dim_v == 512
    assert a.tile_scheduler_metadata == "planned" and a.num_splits is None
    a.window_size, starts = None, torch.arange(a.q.shape[0] + 1) * a.q.shape[1]
    out = _paged(a, a.q.flatten(0, 1), a.k_cache, a.k_cache[..., :512], a.block_table, a.cache_seqlens, starts)
    return out.view(*a.q.shape[:3], 512), None


def _held(scales: Any) -> Any:
    """Scales as the board holds them: from compute capability 10.0 on the exponent alone."""
    return scales.log2().floor().exp2() if torch.cuda.get_device_capability() >= (10, 0) else scales


def _deep_gemm(a: Any) -> None:
    (rows, own), (b, scales) = a.a, a.b
    assert own.stride(0) == 1 and a.d.dtype == torch.bfloat16, "scales of A column-major, aligned for TMA"
    a.d.copy_(_scaled(rows, b.t(), _held(own), _held(scales).t()))


def _deep_gemm_grouped(a: Any) -> None:
    assert a.m_indices.dtype == torch.int32 and a.m_indices.shape[0] % 128 == 0
    (rows, own), (b, scales) = a.a, a.b
    for expert in range(b.shape[0]):
        mine = a.m_indices == expert
        a.d[mine] = _scaled(rows[mine], b[expert].t(), _held(own[mine]), _held(scales[expert]).t())


def _static(x: Any, rows: Any, scales: Any, group: int = 0, whole: Any = False) -> None:
    for place, value in zip((rows, scales), _rows_to_fp8(x, group, bool(whole)), strict=True):
        place.copy_(value)


def _append(a: Any) -> None:
    assert a.kv_layout == "NHD" and a.batch_indices.dtype == a.positions.dtype == torch.int32
    for cache, rows in zip(a.paged_kv_cache, (a.append_key, a.append_value), strict=True):
        pages = a.kv_indices[a.kv_indptr[a.batch_indices] + a.positions // cache.shape[1]]
        cache[pages.long(), a.positions.long() % cache.shape[1]] = rows


def _out(a: Any, value: Any) -> Any:
    return value if a.out is None else a.out.copy_(value)


CALLS: dict[str, Callable[[Any], Any]] = {
    "vllm.vllm_flash_attn.flash_attn_interface.flash_attn_varlen_func": _vllm_flash,
    "sgl_kernel.flash_attn.flash_attn_varlen_func": _ragged,
    "sgl_kernel.flash_attn.flash_attn_with_kvcache": lambda a: _paged(
        a, a.q, a.k_cache, a.v_cache, a.page_table, a.cache_seqlens, a.cu_seqlens_q
    ),
    "flash_attn.flash_attn_varlen_func": _ragged, "flash_attn_interface.flash_attn_varlen_func": _ragged,
    "rms_norm": lambda a: a.out.copy_(_rms(a.input, a.weight, a.epsilon)),
    "fused_add_rms_norm": lambda a: _add_rms(a.input, a.residual, a.weight, a.epsilon),
    "rmsnorm": lambda a: _out(a, _rms(a.input, a.weight, a.eps)),
    "fused_add_rmsnorm": lambda a: _add_rms(a.input, a.residual, a.weight, a.eps),
    "scaled_fp8_quant": lambda a: _rows_to_fp8(a.input) if a.use_per_token_if_dynamic else 1 / 0,
    "cutlass_scaled_mm": _cutlass, "per_token_group_quant_fp8": _group_quant,
    "w8a8_triton_block_scaled_mm": _triton_block, "scaled_fp4_quant": lambda a: _to_fp4(a.input, a.input_global_scale),
    "cutlass_scaled_fp4_mm": lambda a: _mm_fp4(a.a, a.b, a.block_scale_a, a.block_scale_b, a.alpha),
    "nvfp4_quantize": lambda a: _to_fp4(a.a, a.a_global_sf), "mm_fp4": _flashinfer_mm_fp4,
    "topk_softmax": _topk_softmax, "reshape_and_cache_flash": _reshape_and_cache, "concat_and_cache_mla": _cache_mla,
    "fused_experts": _fused_experts, "fp8_w8a8_moe_quant_config": lambda a: a,
    "cutlass_fused_moe": lambda a: [
        _moe(a.input, a.fc1_expert_weights, a.fc2_expert_weights, a.token_final_scales, a.token_selected_experts, False)
    ],
    "apply_top_k_top_p": lambda a: a.logits.copy_(_top(a.logits, a.k, a.p)),
    "top_k_top_p_sampling_from_logits": lambda a: _top(a.logits, a.top_k, a.top_p).softmax(-1).argmax(-1).int(),
    "marlin_quantize": _marlin_quantize, "marlin_make_workspace_new": lambda a: torch.zeros(132, dtype=torch.int32),
    "marlin_gemm": _marlin, "get_mla_metadata": lambda a: ("planned", None), "flash_mla_with_kvcache": _flash_mla,
    "fp8_gemm_nt": _deep_gemm, "m_grouped_fp8_gemm_nt_contiguous": _deep_gemm_grouped,
    "fp8_scaled_mm": lambda a: _scaled(a.mat_a, a.mat_b, a.scales_a, a.scales_b.t()),
    "sgl_per_token_quant_fp8": lambda a: _static(a.input, a.output_q, a.output_s),
    "sgl_per_token_group_quant_8bit": lambda a: _static(a.input, a.output_q, a.output_s, a.group_size, a.scale_ue8m0),
    "append_paged_kv_cache": _append,
}  # fmt: skip


class Wrapper:
    """FlashInfer's wrappers: what was planned is what runs."""

    def __init__(self, name: str, told: dict[str, str], run: Callable[..., Any], given: Any) -> None:
        assert given.float_workspace_buffer.dtype == torch.uint8
        self.name, self.told, self._run, self.planned = name, told, run, None

    def plan(self, *args: Any, **kwargs: Any) -> None:
        self.planned = _bound(strict(self.told[f"{self.name}.plan"]), args, kwargs)
        given = [v for k, v in vars(self.planned).items() if k.endswith(("indptr", "indices")) and v is not None]
        assert given and all(one.dtype == torch.int32 for one in given)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        given = _bound(strict(self.told[f"{self.name}.run"]), args, kwargs)
        assert self.planned is not None, "run before plan"
        return self._run(lambda: _flashinfer(self.name, self.planned, given), given)


def _flashinfer(name: str, p: Any, a: Any) -> Any:
    p.softmax_scale = p.sm_scale
    p.window_size = (p.window_left, -1) if getattr(p, "window_left", None) is not None else None
    if "Ragged" in name:
        p.q, p.k, p.v, p.cu_seqlens_q, p.cu_seqlens_k = a.q, a.k, a.v, p.qo_indptr, p.kv_indptr
        p.max_seqlen_q, p.max_seqlen_k = (int(s.diff().max()) for s in (p.qo_indptr, p.kv_indptr))
        return _ragged(p)
    if "MLA" in name:
        assert p.head_dim_ckv == a.ckv_cache.shape[-1] and p.page_size == a.ckv_cache.shape[1]
        q = torch.cat([a.q_nope, a.q_pe], -1)
        k = torch.cat([a.ckv_cache, a.kpe_cache], -1).unsqueeze(2)
        table = p.kv_indices.view(p.kv_len_arr.shape[0], -1)
        return _paged(p, q, k, k[..., : p.head_dim_ckv], table, p.kv_len_arr, p.qo_indptr)
    decode = "Decode" in name
    starts = p.indptr if decode else p.paged_kv_indptr
    indices, last = (p.indices, p.last_page_len) if decode else (p.paged_kv_indices, p.paged_kv_last_page_len)
    keys, values = a.paged_kv_cache
    assert keys.shape[1] == p.page_size and keys.shape[2] == p.num_kv_heads and p.q_data_type == a.q.dtype
    p.causal = True if decode else p.causal
    lengths = (starts.diff() - 1) * p.page_size + last
    queries = torch.arange(a.q.shape[0] + 1) if decode else p.qo_indptr
    return _paged(p, a.q, keys, values, indices.view(lengths.shape[0], -1), lengths.int(), queries)


# ------------------------------------------------------------------------------------------------------------- modules


def _bound(signature: inspect.Signature, args: Any, kwargs: Any) -> Any:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return Given(**{name: None if value is ... else value for name, value in bound.arguments.items()})


@contextmanager
def present(installed: Any, *without: str) -> Iterator[list[str]]:
    """The libraries importable, but for those of ``without``; yields the names of what was called, in order."""
    called: list[str] = []
    before = dict(sys.modules)
    known: dict[Any, Any] = {}

    def kernel(name: str, compute: Callable[[], Any], given: Any = None) -> Any:
        tensors = [x for x in tree_leaves(vars(given) if given else {}) if isinstance(x, torch.Tensor)]
        assert all(on_board(x) for x in tensors), f"{name}: an operand on the host"
        with torch._C.DisableTorchFunction(), _disable_current_modes():  # as a library's own code, unseen
            words = [repr(x) for x in tree_leaves(vars(given) if given else {}) if not isinstance(x, torch.Tensor)]
            same = (name, *words, *((x.data_ptr(), x._version) for x in tensors))
            if same not in known or not tensors:  # the same operands, untouched, are worked out once
                out = compute()
                same = (name, *words, *((x.data_ptr(), x._version) for x in tensors))
                known[same] = out, tensors  # which keeps their memory from being another's
            out = known[same][0]
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                mark(x)
        touched = tuple((x.untyped_storage()._cdata, x.numel() * x.element_size()) for x in tensors)
        installed.runtime.launch(Kernel(name, touched=touched, fixed_s=1e-3))  # a batch is one call
        return out

    def function(module: str, name: str, told: str) -> Any:
        signature, compute = strict(told), CALLS.get(f"{module}.{name}") or CALLS[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            called.append(f"{module}.{name}")
            given = _bound(signature, args, kwargs)
            return kernel(name, lambda: compute(given), given)

        return call

    def wrapper(name: str, told: dict[str, str]) -> Any:
        def made(*args: Any, **kwargs: Any) -> Wrapper:
            called.append(f"flashinfer.{name}")
            given = _bound(strict(told[f"{name}.__init__"]), args, kwargs)
            own = f"{name} {len(called)}"  # each has a plan of its own
            return Wrapper(name, told, lambda compute, run: kernel(own, compute, run), given)

        return made

    try:
        for module, functions in _tables().items():
            if module.split(".")[0] in without:
                continue
            own = _module(module)
            for name, told in functions.items():
                cls = name.partition(".")[0]
                setattr(own, cls, wrapper(cls, functions) if "." in name else function(module, name, told))
        if "vllm" not in without:
            _module("vllm.scalar_type").__dict__.update(scalar_types=Given(uint4b8="uint4b8"))
        yield called
    finally:
        for name in set(sys.modules) - set(before):
            if name.split(".")[0] in {module.split(".")[0] for module in _tables()}:
                sys.modules.pop(name)


def _tables() -> dict[str, dict[str, str]]:
    """Module as the launchers import it -> its functions."""
    moved = {source for sources in _PLACES.values() for source in sources}
    found = {module: dict(names) for module, names in SIGNATURES.items() if module not in moved}
    for module, sources in _PLACES.items():
        found[module] = {name: told for source in sources for name, told in SIGNATURES[source].items()}
    return found | RECALLED


def _module(name: str) -> types.ModuleType:
    """A module of that name and the packages above it, importable."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        whole = ".".join(parts[:depth])
        if whole not in sys.modules:
            made = types.ModuleType(whole)
            made.__spec__ = importlib.machinery.ModuleSpec(whole, None, is_package=True)
            made.__path__ = []
            sys.modules[whole] = made
            if depth > 1:
                setattr(sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], made)
    return sys.modules[name]
