"""SGLang: decode steps are captured, prompts are launched one kernel at a time.

Its backends write new keys and values before the attention kernel, in the same call (`set_kv_buffer`).

It picks an attention backend by GPU (`server_args.py`, 0.4 to 0.5): FlashAttention-3 on Hopper, FlashInfer on Ampere
and Ada. The measured tables have FlashInfer under its name on L40S and RTX PRO 6000, but on A100 "flash_attention",
that is FlashAttention-3 built for sm80, which no default takes there. It decodes at 0.5 to 1.2 TB/s, where vLLM's
FlashAttention-2, which splits the cache as FlashInfer does, reaches 0.8 to 1.6. On the boards that have rows of both,
decode calls above 50 us take vLLM's kernels 1.12 (L40S) and 1.05 (RTX PRO 6000) times as long as FlashInfer (medians
over grouped queries, heads of 128). So vLLM's rows come nearer. In prefill the two tables differ on A100 as vLLM and
FlashInfer do elsewhere (1.17, 1.12 and 1.23): what was measured stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.engines.base import CAPTURED, LAUNCHES, EightBit, Engine, later
from predictor.engines.boards import Boards
from predictor.engines.library import (
    CUSTOM_ONE_SHOT,
    AllReduce,
    AttentionCalls,
    Library,
    Sharing,
    TritonExperts,
    packed_groups,
    runs_generated,
)
from predictor.engines.sglang.memory import MEMORY
from predictor.engines.tensorrt_llm.engine import TRTLLM, generated_attention
from predictor.files.records import replace

if TYPE_CHECKING:
    from predictor.engines.scheduling import Batching
    from predictor.engines.vintage import Scheduler
    from predictor.hardware.gpu import GPUSpec

#: Triton's default tiles are two in all releases. Those up to 0.5.10 multiply the rows of other GPUs' experts, too.
EXPERTS = (
    TritonExperts(
        "0.5.10", two_tiles=("bf16",), foreign_products=True, gate_costs=True,
        source="get_default_config of fused_moe_triton (unverified here); tables of SGLang 0.5.10 on A100",
    ),
    TritonExperts("0.5.14", two_tiles=("bf16",), source="tables of SGLang 0.5.14 on H100, H200, L40S, RTX PRO 6000"),
)  # fmt: skip

#: A copy of vLLM's, and from 0.5.14 on, over NVLink, kernels of its own: one shot pushes, two shots pull.
ALL_REDUCES = (
    AllReduce(8 * 2**20, one_shot=CUSTOM_ONE_SHOT, source="SGLang 0.5.9 all_reduce_utils.py (16 MiB on ROCm)"),
    AllReduce(
        16 * 2**20, pushes=True, version="0.5.14",
        source="SGLang 0.5.14 custom_all_reduce_v2.py, custom_all_reduce_push.cuh; nobody read 0.5.11 to 0.5.13",
    ),
)  # fmt: skip

#: Kernels that a decode step with a cache of 8 bits has before its own. Its tables take so much longer than with one of
#: 16 bits where caches are short: 3.6 to 4.1 us in FlashAttention-3 and FlashInfer (H100, L40S, RTX PRO 6000), two
#: times what it is in Triton's kernels (2.0 to 2.1 on four boards).
_CASTS = 2.0


def share_attention(calls: AttentionCalls, gpu: GPUSpec) -> Sharing:
    """FlashInfer and FlashAttention-3; queries, keys and values are cast for a cache of 8 bits, but for latent ones."""
    casts = _CASTS * ((calls.kv_itemsize < 2) & (calls.shared == 0))
    return replace(packed_groups(calls, gpu), beside=casts)


def products_by(library: str, variant: str, gpu: GPUSpec) -> str:
    """fp8 in blocks on compute capability 10: DeepGEMM's kernel, as TensorRT-LLM's tables have it.

    There its scales are powers of two, packed. SGLang writes those of weights so when it loads them, and those of
    activations in the kernel that quantizes (requant_weight_ue8m0 and scale_ue8m0 of layers/quantization/fp8_utils.py;
    as recalled, unverified). Its table of 0.5.14 gives the kernel float scales, it seems: a product takes 9 to 12 us
    more than in TensorRT-LLM's table of the same kernel (16 x 7168 x 2048 on B200: 17.9 and 7.9 us; on GB200 alike),
    while both agree on Hopper (8.9 and 8.9 us), whose scales are floats.
    """
    return TRTLLM.name if variant == "fp8_block" and runs_generated(gpu) else library


#: As the tables of SGLang 0.5.14 on B200 name their kernels.
GENERATED_EXPERTS = ("bf16", "fp8_block", "nvfp4", "int4_wo", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8")


def untuned_experts(variant: str, gated: bool, gpu: GPUSpec) -> bool:
    """FlashInfer's CUTLASS kernels for bf16 experts without a gate on Hopper, as vLLM's for fp8: in the table of 0.5.14
    they read weights at 0.13 (H200) to 0.19 (H100) of the bandwidth, in TensorRT-LLM's at 0.78 to 0.83. That the
    engine tunes them when it starts (flashinfer_autotune of its model_runner.py) is as recalled, unverified."""
    return variant == "bf16" and not gated and gpu.compute_capability == "9.0"


#: Norms: FlashInfer's norm.cuh.
LIBRARIES = (
    Library(
        "sglang", code=1, turn=2, norms=("rms",), all_reduces=ALL_REDUCES, experts=EXPERTS,
        decodes_by=generated_attention, generated_experts=GENERATED_EXPERTS, share_attention=share_attention,
        untuned_experts=untuned_experts, products_by=products_by,
    ),
)  # fmt: skip


#: Source: the packages. srt/model_executor/model_runner.py of 0.4.0 to 0.5.9 ("SGLang only supports sm75 and above");
#: the extra [blackwell] of pyproject.toml in 0.4.6, not in 0.4.5; README.md of 0.5.9 ("AMD GPUs (MI355/MI300)", as
#: sgl-kernel's setup_rocm.py, which is recalled, has gfx942 and gfx950 alone), is_gfx1250_supported of 0.5.23, which
#: 0.5.9 has not; pyproject_xpu.toml of 0.5.9 (sgl-kernel-xpu).
BOARDS = (
    Boards("nvidia", "SGLang srt/model_executor/model_runner.py", least="7.5", since={"0.4.6": ("10.0",)}),
    Boards("amd", "SGLang README.md", only=("cdna3", "cdna4", "cdna5"), since={"0.5.23": ("cdna5",)}),
    Boards("intel", "SGLang pyproject_xpu.toml"),
)


def batching(rules: Scheduler) -> type[Batching]:
    """Its scheduler."""
    from predictor.engines.sglang.scheduler import PrefillFirst

    return PrefillFirst


#: Of 16-bit weights as it loads them.
FP8 = EightBit(
    "fp8", "fp8_dynamic", "", "weights one scale a column, activations one a token",
    "SGLang docs, quantization.md (online quantization); the scales, and experts one a tensor, as recalled of"
    " layers/quantization/fp8.py, unverified",
)  # fmt: skip

ENGINES = (
    Engine(
        "sglang", "sglang", LAUNCHES, CAPTURED, serves=True, fp8_cache=True, memory=MEMORY,
        decode_attention_of={"8.0": "vllm"}, samples=True, vintages=later("sglang.releases", "VINTAGES"),
        batching=batching, kernels_changed=ALL_REDUCES, boards=BOARDS, fp8=FP8,
        receives_apart=True,  # source: --scheduler-recv-interval, 0.5.9 managers/scheduler_recv_skipper.py
        decoders_alone=True,  # source: docs/supported_models of 0.5 (unverified): generative models are decoders
    ),
)  # fmt: skip
