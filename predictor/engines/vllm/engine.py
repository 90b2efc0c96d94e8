"""vLLM: decode steps are captured, prompts are launched one kernel at a time.

Its backends write new keys and values before the attention kernel, in the same call (`reshape_and_cache_flash` in
vllm/v1/attention/backends/flash_attn.py, 0.14): the measured call holds both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from predictor.engines.base import CAPTURED, LAUNCHES, EightBit, Engine, later
from predictor.engines.boards import Boards
from predictor.engines.library import (
    CUSTOM_ONE_SHOT,
    CUTLASS,
    TRITON,
    AllReduce,
    AttentionCalls,
    JointCall,
    Library,
    Sharing,
    TritonExperts,
    packed_groups,
    runs_generated,
)
from predictor.engines.memory import MemoryRule
from predictor.engines.tensorrt_llm.engine import generated_attention
from predictor.files.records import replace
from predictor.hardware.generation import runs_mma
from predictor.hardware.gpu import GPUSpec

if TYPE_CHECKING:
    from predictor.engines.scheduling import Batching
    from predictor.engines.vintage import Scheduler

#: The memory of CUDA graphs counts within the fraction from 0.24 on, before that it came on top.
MEMORY = (
    MemoryRule("vLLM", "0.2", "gpu_memory_utilization", "total", 0.90, "vLLM 0.2.7 worker/worker.py:107"),
    MemoryRule(
        "vLLM", "0.24", "gpu_memory_utilization", "total", 0.92,
        "vLLM 0.24.0 config/cache.py:67-75, v1/worker/gpu_worker.py:447-492",
    ),
)  # fmt: skip

#: Two default tiles in early releases, long steps in those that were measured later. "0.20" is the first of these.
EXPERTS = (
    TritonExperts(
        "0.14", two_tiles=("bf16",), gate_costs=True,
        source="get_default_config of fused_moe.py (unverified here); tables of vLLM 0.14.0 on A100",
    ),
    TritonExperts("0.20", source="tables of vLLM 0.24.0 on H100, H200, L40S and RTX PRO 6000"),
)  # fmt: skip

#: What FlashInfer's TensorRT-LLM kernels come first for. Source: vLLM 0.24 fused_moe/oracle (fp8.py:75-115,
#: nvfp4.py:165, unquantized.py:62-80, mxfp4.py:304-345).
GENERATED_EXPERTS = ("bf16", "fp8", "fp8_block", "nvfp4", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8")


def share_attention(calls: AttentionCalls, gpu: GPUSpec) -> Sharing:
    """FlashAttention-3 or FlashInfer, and FlashAttention-2 on boards with mma.sync.

    FlashAttention-2 does not pack the query heads of a KV head in prefill. In decode it does not group them either
    where a window is set: every query head reads the cache.
    """
    packed = packed_groups(calls, gpu)
    if not runs_mma(gpu):
        return packed
    alone = (calls.shared == 0) & (calls.kv_itemsize >= 2) & (calls.window > 0)
    return replace(packed, packed=np.ones(calls.group.size), copies=np.where(alone, calls.group, 1.0))


#: FlashAttention-3's call. Source: its tile is FlashAttention-2's of 128 queries (flash_fwd_launch_template.h, both).
HANDED_OUT = JointCall(128)
#: FlashAttention-2's over a paged cache: kBlockM 64; kBlockN 256, 128 and 64 for heads of 64, 128 and 256 (32 KiB of
#: keys). Source: run_mha_fwd_splitkv_dispatch there (recalled). A tile's start and an empty tile: measured in
#: LLMServingSim's calls of prompts beside decodes, medians of six fits (RTX 4090: 0.27 steps and 0.37 us; RTX PRO 6000:
#: 0.34 and 0.35). Splits: num_splits_heuristic(tiles, 2 x SMs) gives one from 0.8 of that on (flash_api.cpp there).
#: A lone tile: measured in LLMServingSim's decodes of two lengths, which a list of tiles gives with 1.22 on RTX 4090
#: and 1.20 on RTX PRO 6000.
OF_A_GRID = JointCall(64, split_bytes=32768, start_steps=0.35, empty_cycles=870.0, unsplit=1.6, lone=1.2)


def joins(gpu: GPUSpec) -> JointCall | None:
    """One call of FlashAttention for all of a step (v1/attention/backends/flash_attn.py, 0.14), but two of FlashInfer's
    where that runs (flashinfer.py there, on compute capability 10)."""
    if runs_generated(gpu):
        return None
    return OF_A_GRID if runs_mma(gpu) else HANDED_OUT


def expert_kernel(variant: str, gpu: GPUSpec) -> str:
    """FlashInfer's CUTLASS kernels for bf16 on Blackwell, for narrower variants from Hopper on; Triton's elsewhere."""
    major = float((gpu.compute_capability or "0").split(".")[0])
    return CUTLASS if major >= (10 if variant == "bf16" else 9) else TRITON


def untuned_experts(variant: str, gated: bool, gpu: GPUSpec) -> bool:
    """FlashInfer's CUTLASS kernels for fp8 with a scale a tensor on Hopper.

    The engine times their tiles when it starts (model_executor/warmup/kernel_warmup.py, flashinfer_autotune from
    capability 9.0 on; as recalled, unverified); the table's layer ran alone, with a default. Seen in the table of 0.24:
    they read weights at 0.12 (H200) to 0.18 (H100) of the bandwidth, the same kernels in TensorRT-LLM, which times
    them, at 0.69 to 0.77, and both alike on Blackwell.
    """
    return variant == "fp8" and gpu.compute_capability == "9.0"


def chunks_alone(gpu: GPUSpec) -> bool:
    """FlashInfer's delta rule on Hopper and B200, Triton's elsewhere, as the measured tables name them (0.24.0)."""
    return gpu.compute_capability in ("9.0", "10.0", "10.3")


#: Norms: layernorm_kernels.cu. all_reduce: custom_all_reduce.py (0.6.6), less than 8 MiB.
VLLM = Library(
    "vllm", code=2, turn=0, norms=("rms",), all_reduces=(AllReduce(8 * 2**20 - 1, one_shot=CUSTOM_ONE_SHOT),),
    share_attention=share_attention, expert_kernel=expert_kernel, experts=EXPERTS, chunks_alone=chunks_alone,
    untuned_experts=untuned_experts, decodes_by=generated_attention, joins=joins, generated_experts=GENERATED_EXPERTS,
)  # fmt: skip


def batching(rules: Scheduler) -> type[Batching]:
    """Its scheduler: that of the first engine core, which mixes nothing, or of the second."""
    from predictor.engines.vllm.scheduler import PromptsFirst, RunningFirst

    return RunningFirst if rules.mixes else PromptsFirst


#: Source: docs/getting_started/installation/gpu.{cuda,rocm,xpu}.inc.md and CMakeLists.txt (CUDA_SUPPORTED_ARCHS and
#: HIP_SUPPORTED_ARCHS) of the source packages. NVIDIA: capability 7.0 on to 0.19.1, 7.5 on from 0.20.0; Blackwell in
#: 0.8.0, not in 0.7.3; Rubin runs its code (0.33.0). AMD: MI200, MI300 and Radeon RX 7900 in every page, MI100 in
#: none; gfx950 and gfx120x in 0.9.0, not in 0.8.0; gfx115x in 0.12.0, not in 0.11.0; gfx1250 in 0.33.0, not in 0.24.0.
#: Intel: in 0.5.1 (vllm/worker/xpu_worker.py), not in 0.5.0.
BOARDS = (
    Boards(
        "nvidia", "vLLM docs, installation/gpu.cuda.inc.md", least="7.0", since={"0.8": ("10.0",)},
        until={"0.20": "7.5"},
    ),
    Boards(
        "amd", "vLLM docs, installation/gpu.rocm.inc.md",
        only=("cdna2", "cdna3", "cdna4", "cdna5", "rdna3", "rdna3.5", "rdna4"),
        since={"0.9": ("cdna4", "rdna4"), "0.12": ("rdna3.5",), "0.33": ("cdna5",)},
    ),
    Boards("intel", "vLLM docs, installation/gpu.xpu.inc.md", since={"0.5.1": ("intel",)}),
)  # fmt: skip

#: Of 16-bit weights as it loads them.
FP8 = EightBit(
    "fp8", "fp8_dynamic", "", "weights one scale a tensor, activations one a token",
    "vLLM docs/features/quantization/fp8.md (online dynamic quantization); a scale a token where CUTLASS's kernels run,"
    " and experts one a tensor, as recalled of quantization/fp8.py, unverified",
)  # fmt: skip

LIBRARIES = (VLLM,)
ENGINES = (
    Engine(
        "vllm", "vllm", LAUNCHES, CAPTURED, serves=True, fp8_cache=True, memory=MEMORY, samples=True,
        vintages=later("vllm.releases", "VINTAGES"), batching=batching, boards=BOARDS, fp8=FP8,
        decoders_alone=True,  # source: docs/models/supported_models.md of 0.14 (unverified): Whisper alone, of speech
    ),
)  # fmt: skip
