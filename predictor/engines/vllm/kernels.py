"""vLLM's kernels by release: whose attention, experts and sampler run (paths after vllm/)."""

from __future__ import annotations

from predictor.engines.vintage import (
    DECODES,
    FLASHINFER_BYTES,
    LATENT,
    PROMPTS,
    KernelRule,
    Quantizing,
    SamplingSteps,
)
from predictor.files.records import replace

# ---------------------------------------------------------------------------------------------------------- kernels

_BOTH = (PROMPTS, DECODES)
_SINCE_AMPERE = ("8", "9", "10", "11", "12")
_V0_2 = "vLLM 0.2.7 model_executor/layers/attention.py:146,239,266"
#: xFormers takes 1.71, 1.85, 1.89, 1.99, 2.0 and 2.05 times as long as FlashAttention-2, which the tables hold: 512 to
#: 16K tokens, causal, heads of 128, an A100. Source: assets/flash2_a100_fwd_bwd_benchmark.png of
#: Dao-AILab/flash-attention, forward and backward together; the median.
_XFORMERS = 1.94
KERNELS_0_2 = (
    KernelRule((PROMPTS,), ("xformers",), _V0_2, slower=_XFORMERS),
    KernelRule((DECODES,), ("paged_attention",), _V0_2),
)
_V0_6 = "vLLM 0.6.6.post1 attention/selector.py:182,214-252"
KERNELS_0_6 = (
    KernelRule(_BOTH, ("flash_attention_2",), _V0_6, _SINCE_AMPERE),
    KernelRule((PROMPTS,), ("xformers",), _V0_6),
    KernelRule((DECODES,), ("paged_attention",), _V0_6, unverified="decode under the xFormers backend"),
)
_V0_14 = "vLLM 0.14.1 platforms/cuda.py:68-82, utils/flashinfer.py:345-390; v1/attention/backends/fa_utils.py"
_V0_14_MLA = "vLLM 0.14.1 platforms/cuda.py:50-67"
_ATTENTION = (
    KernelRule(_BOTH, ("flash_attention_3", "flashinfer", "triton"), _V0_14, ("9",)),
    KernelRule(_BOTH, ("flash_attention_2", "flashinfer", "triton"), _V0_14, ("8", "11", "12")),
    KernelRule(_BOTH, ("flashinfer", "triton"), _V0_14, unverified="boards before Ampere"),
)
_ATTENTION_0_14 = (
    KernelRule((PROMPTS,), ("trtllm_gen", "flashinfer", "flash_attention_2"), _V0_14, ("10",), auto_cache=True),
    KernelRule(
        (DECODES,), ("trtllm_gen", "flashinfer", "flash_attention_2"), _V0_14, ("10",), tokens=256, auto_cache=True
    ),
    KernelRule(_BOTH, ("flashinfer", "flash_attention_2"), _V0_14, ("10",)),
    *_ATTENTION,
)
_MLA_HOPPER = KernelRule((LATENT,), ("flash_attention_mla", "flash_mla"), _V0_14_MLA, ("9",))
KERNELS_0_14 = (
    *_ATTENTION_0_14,
    KernelRule((LATENT,), ("cutlass_mla", "flashinfer_mla"), _V0_14_MLA, ("10",)),
    _MLA_HOPPER,
)
_V0_19_MLA = "vLLM 0.19.1 platforms/cuda.py:58-98"
KERNELS_0_19 = (
    *_ATTENTION_0_14,
    KernelRule((LATENT,), ("flashinfer_mla", "cutlass_mla"), _V0_19_MLA, ("10",)),
    _MLA_HOPPER,
)
_V0_24 = "vLLM 0.24.0 platforms/cuda.py:143-160, v1/attention/backends/fa_utils.py"
KERNELS_0_24 = (
    KernelRule((PROMPTS,), ("trtllm_gen", "flashinfer", "flash_attention_4"), _V0_24, ("10",), auto_cache=True),
    KernelRule(
        (DECODES,), ("trtllm_gen", "flashinfer", "flash_attention_4"), _V0_24, ("10",), tokens=256, auto_cache=True
    ),
    KernelRule(_BOTH, ("flashinfer", "flash_attention_4"), _V0_24, ("10",)),
    *_ATTENTION,
    KernelRule((LATENT,), ("flashinfer_mla", "cutlass_mla"), _V0_19_MLA, ("10",)),
    _MLA_HOPPER,
    KernelRule((LATENT,), ("triton_mla",), "vLLM 0.24.0 platforms/cuda.py:130", ("12",)),
)  # fmt: skip
QUANTIZING = Quantizing(
    norms="fused", activations="fused", attention="kernel",
    source="vLLM 0.14.1 config/vllm.py:85-165 (Inductor fuses what is adjacent; fuse_attn_quant False)",
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------- sampler

SAMPLER_0_14 = SamplingSteps(
    ("allowed and bad words", "bias", "penalties", "argmax", "temperature", "min-p", "top-k and top-p", "draw"),
    "a sort in PyTorch", "vLLM 0.14.1 v1/sample/sampler.py:21-60; envs.py:51",
)  # fmt: skip
SAMPLER_0_24 = replace(
    SAMPLER_0_14, truncates="FlashInfer", source="vLLM 0.24.0 envs.py:49; steps as 0.14.1 v1/sample/sampler.py:21-60",
    truncation_bytes=FLASHINFER_BYTES,
)  # fmt: skip
