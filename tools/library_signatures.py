#!/usr/bin/env python3
"""Signatures of the functions that `microbench.libraries` calls, read in the unpacked wheels of their releases.

    pip download --no-deps vllm flashinfer-python sglang-kernel; unzip each into FOLDER/NAME
    tools/library_signatures.py FOLDER > tests/golden/library_signatures.yaml

Nothing is imported. Defaults are left out ("..."): the tests' fake libraries take what the real ones take.
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

#: File below FOLDER -> module, and the names wanted of it.
WANTED = {
    "vllm/vllm/vllm_flash_attn/flash_attn_interface.py": "flash_attn_varlen_func",
    "vllm/vllm/_custom_ops.py": "scaled_fp8_quant cutlass_scaled_mm scaled_fp4_quant cutlass_scaled_fp4_mm rms_norm"
    " fused_add_rms_norm concat_and_cache_mla reshape_and_cache_flash topk_softmax marlin_gemm",
    "vllm/vllm/model_executor/layers/quantization/utils/fp8_utils.py": "per_token_group_quant_fp8"
    " w8a8_triton_block_scaled_mm",
    "vllm/vllm/model_executor/layers/quantization/utils/marlin_utils_test.py": "marlin_quantize",
    "vllm/vllm/model_executor/layers/quantization/utils/marlin_utils.py": "marlin_make_workspace_new",
    "vllm/vllm/model_executor/layers/fused_moe/fused_moe.py": "fused_experts",
    "vllm/vllm/model_executor/layers/fused_moe/config.py": "fp8_w8a8_moe_quant_config",
    "vllm/vllm/v1/sample/ops/topk_topp_sampler.py": "apply_top_k_top_p",
    "vllm/vllm/third_party/flashmla/flash_mla_interface.py": "get_mla_metadata flash_mla_with_kvcache",
    "flashinfer/flashinfer/prefill.py": "BatchPrefillWithRaggedKVCacheWrapper BatchPrefillWithPagedKVCacheWrapper",
    "flashinfer/flashinfer/decode.py": "BatchDecodeWithPagedKVCacheWrapper",
    "flashinfer/flashinfer/mla/_batch_mla/_wrapper.py": "BatchMLAPagedAttentionWrapper",
    "flashinfer/flashinfer/page.py": "append_paged_kv_cache",
    "flashinfer/flashinfer/quantization/fp4_quantization.py": "nvfp4_quantize",
    "flashinfer/flashinfer/gemm/gemm_base.py": "mm_fp4",
    "flashinfer/flashinfer/norm/__init__.py": "rmsnorm fused_add_rmsnorm",
    "flashinfer/flashinfer/fused_moe/core.py": "cutlass_fused_moe",
    "flashinfer/flashinfer/sampling.py": "top_k_top_p_sampling_from_logits",
    "sgl_kernel/sgl_kernel/flash_attn.py": "flash_attn_varlen_func flash_attn_with_kvcache",
    "sgl_kernel/sgl_kernel/gemm.py": "sgl_per_token_quant_fp8 fp8_scaled_mm sgl_per_token_group_quant_8bit",
    "sgl_kernel/sgl_kernel/elementwise.py": "rmsnorm fused_add_rmsnorm",
    "sgl_kernel/sgl_kernel/moe.py": "topk_softmax",
    "flash_attn/flash_attn/flash_attn_interface.py": "flash_attn_varlen_func",
    "flash_attn/hopper/flash_attn_interface.py": "flash_attn_varlen_func",
}
#: What stands behind an argument list that is passed on: FlashInfer's decode wrapper.
_BEHIND = {"plan": "_plan_impl"}


def signature(function: ast.FunctionDef) -> str:
    """ "a, b=..., *, c=...": without self, types and values."""
    a = function.args
    plain = [*a.posonlyargs, *a.args]
    told = [f"{x.arg}=..." if i >= len(plain) - len(a.defaults) else x.arg for i, x in enumerate(plain)]
    if a.vararg or a.kwonlyargs:
        told.append(f"*{a.vararg.arg}" if a.vararg else "*")
    told += [f"{x.arg}=..." if default else x.arg for x, default in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    return ", ".join(name for name in told if name != "self")


def found(path: Path, names: set[str]) -> dict[str, str]:
    """Name -> signature: the last of a file's definitions at its top, and the methods of its classes."""
    out: dict[str, str] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            out[node.name] = signature(node)
        if isinstance(node, ast.ClassDef) and node.name in names:
            methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
            for name in ("__init__", "plan", "run"):
                behind = _BEHIND.get(name, "")
                whole = methods[behind] if methods[name].args.kwarg and behind in methods else methods[name]
                out[f"{node.name}.{name}"] = signature(whole)
    return out


def main(root: Path) -> None:
    """Print the YAML of all that is wanted; a name that is absent ends it."""
    for name, names in WANTED.items():
        known = found(root / name, set(names.split()))
        lacking = [one for one in names.split() if not any(key.split(".")[0] == one for key in known)]
        if lacking:
            raise SystemExit(f"{name}: no {lacking[0]}")
        print(f"{name.partition('/')[2].removesuffix('.py').removesuffix('/__init__').replace('/', '.')}:")
        for key, told in known.items():
            print(f'  {key}: "{told}"')


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of the unpacked wheels")
    main(parser.parse_args().folder)
