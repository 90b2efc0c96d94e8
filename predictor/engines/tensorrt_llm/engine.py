"""TensorRT-LLM from 1.0 on: PyTorch's modules call the kernels of a prompt, decode steps are captured.

Its attention operator rotates queries and keys and writes the cache while it takes the heads apart.

The word of ``--execution`` is ``tensorrt_llm``; the measured tables name its kernels ``trtllm``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from predictor.engines.base import CALLS, CAPTURED, EightBit, Engine, later
from predictor.engines.boards import Boards
from predictor.engines.library import (
    CUTLASS,
    TRITON,
    AllReduce,
    AttentionCalls,
    Library,
    Sharing,
    runs_generated,
)
from predictor.engines.memory import MemoryRule
from predictor.hardware.generation import runs_mma
from predictor.hardware.gpu import GPUSpec

if TYPE_CHECKING:
    from predictor.engines.scheduling import Batching
    from predictor.engines.vintage import Scheduler

#: CPU time of one launch from C++: NVIDIA's "Getting Started with CUDA Graphs" (2019) shows 2 to 4 microseconds a
#: kernel (unverified here).
NATIVE_LAUNCH_OVERHEAD_S, NATIVE_LAUNCH_RANGE_S = 3e-6, (2e-6, 4e-6)
#: Query heads a KV head that the XQA kernel takes at most; more run the older masked kernel. Taken for that by
#: hand, not from data.
_XQA_GROUP = 32
MEMORY = (
    MemoryRule(
        "TensorRT-LLM", "1.0", "free_gpu_memory_fraction", "free", 0.90,
        "TensorRT-LLM tensorrt_llm/llmapi/llm_args.py, KvCacheConfig",
    ),
)  # fmt: skip


def share_attention(calls: AttentionCalls, gpu: GPUSpec) -> Sharing:
    """FMHA, which packs no query heads in prefill, and XQA.

    XQA takes groups of up to 32; wider ones run a block a query head, except on the GPUs whose kernels are generated
    (compute capability 10). On boards with mma.sync a sequence's cache stays whole, to one block, in latent attention
    and in decode over a grouped cache of 8 bits. On Hopper and later it splits both.
    """
    group, mma, ones = calls.group, runs_mma(gpu), np.ones(calls.group.size)
    plain, narrow = calls.shared == 0, calls.kv_itemsize < 2
    older = mma or (gpu.compute_capability or "").startswith("9.")
    copies = np.where(plain & (group > _XQA_GROUP), group, 1.0) if older else ones
    whole = ~plain | (narrow & (group > 1) & (group <= _XQA_GROUP)) if mma else ones == 0
    return Sharing(ones, copies, whole.astype(np.float64), np.zeros(ones.size))


def generated_attention(library: str, gpu: GPUSpec) -> str:
    """The library whose decode attention runs: on compute capability 10 engines take this one's generated kernels.

    Source: vLLM 0.24 utils/flashinfer.py:345-390, SGLang 0.5.9 server_args.py:1785-1833 (trtllm_mha, trtllm_mla).
    """
    return TRTLLM.name if runs_generated(gpu) else library


def expert_kernel(variant: str, gpu: GPUSpec) -> str:
    """CUTLASS, but Triton for block-scaled fp8 where there is no wgmma."""
    return TRITON if variant == "fp8_block" and runs_mma(gpu) else CUTLASS


#: Variants of experts that its TRTLLM backend takes on compute capability 10, and those that it takes where attention
#: is data-parallel. AUTO takes it for gpt-oss (_torch/model_config.py, resolve_moe_backend); for fp8 in blocks there
#: are TRTLLM and DEEPGEMM alone (fused_moe/MOE_DEVELOPER_GUIDE.md@04c2347b). For DeepSeek the published recipes take
#: TRTLLM, but for nvfp4 with data-parallel attention CUTLASS (InferenceX@843c6254, dsr1_fp{4,8}_b200_trt.sh), and
#: NVIDIA's deployment guide DEEPGEMM for fp8 there (recalled, unverified). AUTO alone would run nvfp4 in CUTLASS.
GENERATED_EXPERTS, GATHERED_EXPERTS = ("fp8_block", "nvfp4", "w4a8_mxfp4_mxfp8"), ("w4a8_mxfp4_mxfp8",)


def other_experts(variant: str, gated: bool, gathered: bool, gpu: GPUSpec) -> bool:
    """The table of 1.3.0rc20 has DeepGEMM's kernels for fp8 in blocks and CUTLASS's for nvfp4 on compute capability 10,
    which are those that run with data-parallel attention."""
    return runs_generated(gpu) and gated and not gathered and variant in ("fp8_block", "nvfp4")


def tunes_products(variant: str, gpu: GPUSpec) -> bool:
    """nvfp4 on compute capability 10: the engine times cuBLASLt's, CUTLASS's and other kernels for each product when it
    starts (enable_autotuner, on by default; nvfp4_gemm of _torch/custom_ops; as recalled, unverified).

    The rows of 1.3.0rc20 are of a tile that nothing chose: with 1 to 128 rows they take as long as K is wide, 8192 x
    8192 22.7 us and 8192 x 16384 39.4 us at 0.24 of the bandwidth (B200; GB200 alike), where the tables of vLLM and
    SGLang have 13 and 20 us; from 256 rows on all agree.
    """
    return variant == "nvfp4" and runs_generated(gpu)


def runs_as(word: str, gpu: GPUSpec) -> str:
    """Weights in mxfp4 have activations in mxfp8 from compute capability 10.0 on (_torch/model_config.py,
    get_mxfp4_quant_algo: W4A8_MXFP4_MXFP8), in 16 bit before."""
    return "mxfp4_mxfp8" if word == "mxfp4" and float(gpu.compute_capability or 0.0) >= 10.0 else word


#: One shot always, as far as its kernels go: its choice is a measured table (customAllReduceUtils.h), which nobody read
#: whole; chosen by looking at H100's and B200's rows, which grow with the bytes of one shot up to 1 MiB on 8 GPUs.
ONE_SHOT = ((8, math.inf),)
#: Needs NVLink or NCCL answers (allreduceOp.cpp). Up to 8 MiB over the GPUs (unverified; its workspaces hold 8 MB);
#: that its one shot pushes is recalled of customAllReduceKernels.cu, and what its times say.
ALL_REDUCES = (AllReduce(8 * 2**20, over_ranks=True, pushes=True, linked_from=2, one_shot=ONE_SHOT),)
#: Convolutions: causalConv1d.cu, grid (batch, dim), after Dao's causal_conv1d; its table says so, too: flat up to 1,024
#: tokens of a channel, and in proportion to sequences times channels.
TRTLLM = Library(
    "trtllm", code=0, turn=1, norms=("rms", "layer"), all_reduces=ALL_REDUCES,
    share_attention=share_attention, unpacks_experts=False, expert_kernel=expert_kernel,
    generated_experts=GENERATED_EXPERTS, gathered_experts=GATHERED_EXPERTS, other_experts=other_experts,
    tunes_products=tunes_products,
    merges=False, channel_blocks=True, quantizes=("scale", "cast"),
)  # fmt: skip


def batching(rules: Scheduler) -> type[Batching]:
    """Its scheduler."""
    from predictor.engines.tensorrt_llm.scheduler import InFlight

    return InFlight


#: The library whose tables hold cuBLASLt's products of 8-bit operands with a scale a tensor (cublas_scaled_mm), which
#: PyTorch's own (torch._scaled_mm) and Transformer Engine's (common/gemm/cublaslt_gemm.cu) are, too.
CUBLASLT = TRTLLM.name

#: Source: the package of 1.2.1 ("efficiently on NVIDIA GPUs"). As recalled, unverified: 1.0's support-matrix.md
#: (Ampere, Ada, Hopper, Blackwell).
BOARDS = (Boards("nvidia", "TensorRT-LLM 1.0 support-matrix.md", least="8.0"),)

#: It quantizes nothing as it loads: fp8 is that of NVIDIA's published checkpoints, made by ModelOpt.
FP8 = EightBit(
    "fp8_static", "fp8_dynamic", "fp8", "one scale a tensor, of the checkpoint",
    "hf_quant_config.json of nvidia/Llama-3.1-70B-Instruct-FP8 (quant_algo FP8, kv_cache_quant_algo FP8); the same"
    " of Qwen3-32B-FP8-Static-PerTensor, made by ModelOpt 0.31, in AIConfigurator's model_configs (@095f58a); its rows"
    " of TensorRT-LLM say fp8 of it and fp8_block of Qwen/Qwen3-235B-A22B-FP8. Other sizes of Qwen3 under nvidia/: as"
    " recalled, unverified",
    before=("qwen3", "qwen3_moe"),
)  # fmt: skip

LIBRARIES = (TRTLLM,)
ENGINES = (
    Engine(
        "tensorrt_llm", "trtllm", CALLS, CAPTURED, serves=True,
        rotates=True, fp8_cache=True, unpacks=False, runs_as=runs_as, memory=MEMORY,
        called=("trtllm", "tensorrt-llm"), samples=True,
        vintages=later("tensorrt_llm.releases", "VINTAGES"),
        batching=batching, boards=BOARDS, fp8=FP8,
    ),
)  # fmt: skip
