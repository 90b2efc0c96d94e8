"""TensorRT-LLM by release: its PyTorch backend, as two copies of tensorrt_llm/llmapi/llm_args.py have it.

One is of the time of 1.0, the other, with a second KV cache manager, of that of 1.3; neither names its commit.
"""

from __future__ import annotations

from collections.abc import Mapping

from predictor.engines.base import CALLS, CAPTURED
from predictor.engines.reductions import EITHER_SHOT, AllReduceRules, FusedNorm, Reduction, shots
from predictor.engines.vintage import (
    DECODES,
    DECODES_FIRST,
    NOBODY,
    OVERLAPS,
    PROMPTS,
    CacheRules,
    Graphs,
    Host,
    HostTime,
    KernelRule,
    Quantizing,
    Reserve,
    Scheduler,
    Setting,
    Vintage,
    Wait,
)
from predictor.files.records import replace

#: Bytes of a MiB, by definition.
MIB = 2**20
_ARGS = "TensorRT-LLM tensorrt_llm/llmapi/llm_args.py of the time of 1.0"
_NEW_ARGS = "TensorRT-LLM tensorrt_llm/llmapi/llm_args.py of the time of 1.3"


def _scheduler(setting: Setting) -> Scheduler:
    """Decodes, then whole prompts of those whose tokens all fit (GUARANTEED_NO_EVICT)."""
    return Scheduler(
        DECODES_FIRST, mixes=True, chunks=False, tokens=8192, sequences=2048, preemption=NOBODY,
        reserve=Reserve(1.0, 1.0), whole_prompt=True,
        source="TensorRT-LLM docs/source/features/paged-attention-ifb-scheduler.md@0c6a62a1; LLM API reference, "
        "TorchLlmArgs",
        unverified="2,048 sequences (the page of trtllm-serve says 256)",
    )  # fmt: skip


_CACHE = CacheRules(
    32, prefixes=True, source=f"{_ARGS}, KvCacheConfig", unverified="the page, which 1.0 has in its plugin's config"
)
_NEW_CACHE = CacheRules(32, prefixes=True, source=f"{_NEW_ARGS}, KvCacheConfig (tokens_per_block)")


def _graphs(setting: Setting) -> Graphs:
    """Batches of decodes as they are, 1 to 31, 32, 64 and 128."""
    return Graphs((*range(1, 32), 32, 64, 128), f"{_ARGS}, CudaGraphConfig (enable_padding False)", padded=False)


def _new_graphs(setting: Setting) -> Graphs:
    return replace(_graphs(setting), source=f"{_NEW_ARGS}, CudaGraphConfig (enable_padding False)")


#: What a decode step leaves the GPU waiting for although the loop overlaps.
_WAITS = (
    Wait(
        "overlap loop",
        "TensorRT-LLM issue 13957 (about 580 us an iteration, Llama-3.1-8B in fp8, B200, batch 64, May 2026)",
        step_s=580e-6, range_s=(0.0, 580e-6), unverified="other models, batches and releases",
    ),
)  # fmt: skip
_HOST = Host(
    CALLS, CAPTURED, overlaps=OVERLAPS, waits=_WAITS,
    source=f"{_ARGS} (disable_overlap_scheduler False; torch_compile_config None: prompts run PyTorch's modules)",
    unverified="over pipeline stages",
)  # fmt: skip
_NEW_HOST = replace(
    _HOST, source=f"{_NEW_ARGS} (disable_overlap_scheduler False, torch_compile_config None)",
    times=(
        HostTime(
            "all that the GPU waits for in a step", "TensorRT-LLM of May 2026, Llama-3.1-8B in fp8 on a B200, batch 64",
            "TensorRT-LLM issue 13957", step_s=(580e-6, 580e-6),
        ),
        HostTime(
            "preparing inputs", "TensorRT-LLM of July 2026, DeepSeek-V4, a decode worker",
            "TensorRT-LLM pull 17257 (_prepare_inputs)", step_s=(8.96e-3, 12.5e-3),
        ),
    ),
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------- kernels

_ATTENTION = (
    KernelRule((PROMPTS, DECODES), ("trtllm_gen",), f"{_ARGS} (attn_backend TRTLLM)", ("10",), unverified="all"),
    KernelRule((PROMPTS,), ("fmha",), f"{_ARGS} (attn_backend TRTLLM)"),
    KernelRule((DECODES,), ("xqa",), f"{_ARGS} (attn_backend TRTLLM)"),
)
_LINEAR = "TensorRT-LLM linear.py (PyTorch backend, commit unknown)"

_QUANTIZING = Quantizing(
    norms="kernel", activations="kernel", attention="kernel",
    source=f"{_LINEAR}: static_quantize_e4m3_per_tensor, quantize_e4m3_per_tensor before every Linear in fp8, but "
    "after an all_reduce that is fused with its norm",
)  # fmt: skip

# ------------------------------------------------------------------------------------------------------ collectives

#: Bytes of the workspace by GPUs. Source: customAllReduceUtils.h of `_COLLECTIVES`.
_WORKSPACE = {2: 16.0 * MIB, **dict.fromkeys(range(3, 9), 8.0 * MIB)}


def _within(in_one: Mapping[int, float]) -> tuple[Reduction, ...]:
    """One shot below so many 16-bit elements, two shots up to the workspace's end."""
    return shots({ranks: 2 * elements for ranks, elements in in_one.items()}, _WORKSPACE)


_COLLECTIVES = AllReduceRules(
    "TensorRT-LLM customAllReduceUtils.h, allreduceOp.cpp (commits unknown)",
    {
        "9.0": _within({2: 2.0**24, 4: 2.0**20, 8: 2.0**18}),
        "10.0": _within({2: 2.0**24, 4: 2.0**21, 8: 2.0**20}),
        "": (Reduction(EITHER_SHOT, _WORKSPACE),),
    },
    fused={"": FusedNorm(_WORKSPACE, None, _LINEAR, unverified="its limits; models fuse it in their own files")},
    unverified="the default strategy reads a measured table; here its rule of element counts, in 16 bit",
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------- releases

_FIRST = Vintage(
    "1.0", "1.0", _HOST, _scheduler, _CACHE, _graphs, _ATTENTION, _QUANTIZING, _COLLECTIVES,
    since="2025-09",
)  # fmt: skip
_NEWEST = replace(
    _FIRST, version="1.3", read="1.3", host=_NEW_HOST, cache=_NEW_CACHE, graphs=_new_graphs,
    since="2026-06",  # unverified: only pre-releases of it were out
)  # fmt: skip

VINTAGES = (_FIRST, _NEWEST)
