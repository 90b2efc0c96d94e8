"""SGLang by release: what was read in its packages 0.4.0, 0.4.10, 0.5.1.post1, 0.5.8.post1, 0.5.9 and 0.5.15 (paths
after sglang/srt/)."""

from __future__ import annotations

from predictor.engines.base import CAPTURED, LAUNCHES
from predictor.engines.reductions import AllReduceRules, FusedNorm, custom_shots
from predictor.engines.sglang.memory import largest_graph, prefill_chunk
from predictor.engines.vintage import (
    CHECKPOINT,
    DECODES,
    FEWEST_OUTPUTS,
    LATENT,
    NO_LIMIT,
    OVERLAPS,
    PROMPTS,
    PROMPTS_FIRST,
    CacheRules,
    Graphs,
    Host,
    HostTime,
    KernelRule,
    Reserve,
    Scheduler,
    Setting,
    Vintage,
    Wait,
    sizes_up_to,
)
from predictor.files.records import replace

#: Bytes of a MiB, by definition.
MIB = 2**20

# -------------------------------------------------------------------------------------------------------- scheduler

#: new_token_ratio: 0.7 of what may still be written, falling to 0.14 of that in 600 decode steps; at most
#: 4,096 tokens a sequence. Source: environ.py and schedule_policy.py of `_MANAGERS`.
_RESERVE = Reserve(0.7, 0.7 * 0.14, 600, 4096)
_MANAGERS = (
    "0.5.9 managers/scheduler.py:1875-1945, schedule_policy.py:439-447, environ.py:225-229, "
    "managers/schedule_batch.py:1847; model_executor/model_runner_kv_cache_mixin.py:340-352"
)


def _scheduler(setting: Setting, chunk: int, source: str, unverified: str = "") -> Scheduler:
    """Prompts in steps of their own, a chunk at a time, over all ranks where attention is data-parallel (0.4.0
    server_args.py:200-206, 0.5.9 server_args.py:2115-2117); 2,048 to 4,096 sequences by the cache's size."""
    sequences = 512 * setting.cache_tokens // max(setting.context_len, 1)
    each = max(1, chunk // setting.dp)
    return Scheduler(
        PROMPTS_FIRST, mixes=False, chunks=True, tokens=each, sequences=min(max(sequences, 2048), 4096),
        prefill_tokens=16384, preemption=FEWEST_OUTPUTS, reserve=_RESERVE, source=f"SGLang {source}",
        unverified=unverified,
    )  # fmt: skip


def _scheduler_0_4(setting: Setting) -> Scheduler:
    chunk = 2048 if setting.memory_gib < 25 else 8192
    return _scheduler(setting, chunk, "0.4.0 server_args.py:158-206", "all but the chunk, from 0.5.9")


def _scheduler_0_4_10(setting: Setting) -> Scheduler:
    chunk = 2048 if setting.memory_gib < 35 else 8192 if setting.memory_gib < 160 else 16384
    return _scheduler(setting, chunk, "0.4.10 server_args.py", "all but the chunk, from 0.5.9")


def _scheduler_0_5(setting: Setting) -> Scheduler:
    source = "0.5.1.post1 server_args.py:406-415; managers/schedule_policy.py:39, model_executor/model_runner.py:1189"
    return replace(_scheduler_0_4_10(setting), source=f"SGLang {source}", unverified="the order of a step, from 0.5.9")


def _scheduler_0_5_9(setting: Setting) -> Scheduler:
    chunk = prefill_chunk(setting.memory_gib)
    return _scheduler(setting, chunk, f"0.5.9 server_args.py:935-1000,328-338; {_MANAGERS}")


def _scheduler_0_5_15(setting: Setting) -> Scheduler:
    chunk = prefill_chunk(setting.memory_gib)
    return _scheduler(setting, chunk, f"0.5.15 server_args.py; {_MANAGERS}", "all but the chunk, from 0.5.9")


# --------------------------------------------------------------------------------------------------------- KV cache

#: Tokens of a page by attention backend. Source: that of `_CACHE_0_5_9`.
_PAGES = {"trtllm_mha": 64, "trtllm_mla": 64, "flash_mla": 64, "cutlass_mla": 128}
_CACHE_0_5_9 = CacheRules(
    1, prefixes=True, pages=_PAGES,
    source="SGLang 0.5.9 server_args.py:1020-1066,1863-1908,2055, model_runner.py:1670-1696",
)  # fmt: skip
_CACHE_0_4 = CacheRules(1, prefixes=True, source="SGLang 0.5.9 server_args.py", unverified="all, taken from 0.5.9")

# ------------------------------------------------------------------------------------------------------ CUDA graphs


def _graphs_0_4(setting: Setting) -> Graphs:
    largest = 8 if setting.memory_gib < 25 else 160
    return Graphs(sizes_up_to(largest), "SGLang 0.4.0 cuda_graph_runner.py:128-137")


def _graphs_0_4_10(setting: Setting) -> Graphs:
    return replace(_graphs_0_4(setting), unverified="all, taken from 0.4.0")


def _graphs_0_5(setting: Setting) -> Graphs:
    """1, 2, 4, in steps of 8 to 160, above 90 GiB to 256, above 160 to 512 in steps of 16; with drafts fewer."""
    largest = 512 if setting.memory_gib > 156 else 256 if setting.memory_gib > 90 else 160
    if setting.memory_gib < 35:
        largest = 8 if setting.tp < 4 else 80
    sizes = sizes_up_to(largest)
    if setting.drafts:
        few = (*range(1, 9), *range(10, 33, 2), *range(40, 64, 8), *range(80, 161, 16))
        sizes = sizes_up_to(min(largest, 256), few)
    return Graphs(
        sizes, "SGLang 0.5.1.post1 model_executor/cuda_graph_runner.py:165-190, server_args.py:418-424",
    )  # fmt: skip


def _graphs_0_5_9(setting: Setting) -> Graphs:
    """1, 2, 4, 8, 12, in steps of 8 to 256, of 16 to 512; with drafts 1 to 8, of 2 to 32, from 40 of 4 to 64."""
    largest = largest_graph(setting.memory_gib, setting.tp)
    few = (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4)) if setting.drafts else (1, 2, 4, 8, 12)
    return Graphs(
        sizes_up_to(largest, few), "SGLang 0.5.9 server_args.py:935-992,1079-1107,604",
        unverified="with drafts, sizes above 64" if setting.drafts else "",
    )  # fmt: skip


def _graphs_0_5_15(setting: Setting) -> Graphs:
    """Prompts, too, in graphs that break at the attention: up to a chunk, 2,048 tokens with latent attention."""
    source = "SGLang 0.5.15 model_executor/cuda_graph_config.py:91-113; server_args.py:3586-3615"
    tokens = 2048 if setting.latent else prefill_chunk(setting.memory_gib)
    return replace(_graphs_0_5_9(setting), source=source, prompt_tokens=tokens)


# ------------------------------------------------------------------------------------------------------------- host

_HOST_0_4 = Host(
    LAUNCHES, CAPTURED, overlaps=OVERLAPS,
    source="SGLang blog 2024-12-04 (v0.4), lm-sys.github.io@44576d5b; 0.5.9 server_args.py:596",
    times=(
        HostTime(
            "preparing a decode graph", "SGLang of April 2025, Qwen2.5-32B in fp8, tp 4, batch 64, 4,400 tokens in",
            "SGLang issue 5593 (replay_prepare)", step_s=(2e-3, 2e-3),
        ),
    ),
    waits=(
        Wait(
            "preparing a decode graph", "SGLang issue 5593 (replay_prepare), 64 sequences of 4,400 tokens",
            range_s=(0.0, 2e-3), unverified="other models and batches, so that a forecast has none of it",
        ),
    ),
    unverified="over pipeline stages",
)  # fmt: skip
_HOST_0_5_9 = replace(_HOST_0_4, source="SGLang 0.5.9 server_args.py:596", times=(), waits=())
_HOST_0_5_15 = replace(
    _HOST_0_5_9,
    times=(
        HostTime(
            "CPU span of a verification cycle, two drafts",
            "SGLang of July 2026, DeepSeek-V4-Flash on 2 RTX PRO 6000", "SGLang issue 29960", step_s=(7.29e-3, 7.29e-3),
        ),
    ),
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------- kernels

_BOTH = (PROMPTS, DECODES)
_V0_4 = "SGLang 0.4.0 server_args.py"
_KERNELS_0_4 = (KernelRule((*_BOTH, LATENT), ("flashinfer",), _V0_4, unverified="latent attention"),)
_V0_5_9 = "SGLang 0.5.9 server_args.py:1785-1833"
_KERNELS_0_5_9 = (
    KernelRule(_BOTH, ("flash_attention_3",), _V0_5_9, ("9",)),
    KernelRule(_BOTH, ("trtllm_mha",), _V0_5_9, ("10",)),
    KernelRule(_BOTH, ("flashinfer", "triton"), _V0_5_9),
    KernelRule((LATENT,), ("flash_attention_3",), _V0_5_9, ("9",)),
    KernelRule((LATENT,), ("flashinfer",), _V0_5_9, ("10",)),
    KernelRule((LATENT,), ("triton",), _V0_5_9),
)
_KERNELS_0_4_10 = (
    KernelRule(_BOTH, ("flash_attention_3",), _V0_5_9, ("9",), unverified="taken from 0.5.9"),
    KernelRule(_BOTH, ("flashinfer", "triton"), _V0_5_9, ("7", "8", "12"), unverified="taken from 0.5.9"),
)

# ------------------------------------------------------------------------------------------------------ collectives

#: Up to 8 MiB. Source: all_reduce_utils.py of `_COLLECTIVES_0_5_9` (16 on ROCm, which is what
#: `predictor.engines.sglang.engine` has for the times of its kernel).
_CUSTOM = custom_shots(dict.fromkeys((2, 4, 6, 8), 8.0 * MIB))
_FUSED_MODELS = ("deepseek_v3", "gpt_oss", "glm4_moe", "qwen3_moe", "kimi_k2")
_FUSED = FusedNorm(
    dict.fromkeys((2, 4, 8), NO_LIMIT), None, "SGLang 0.5.9 server_args.py:1671-1697; layers/communicator.py:88",
    tokens=2048, models=_FUSED_MODELS,
    unverified="the model types and the numbers of GPUs; not with data parallelism in the attention",
)  # fmt: skip
_COLLECTIVES_0_5_9 = AllReduceRules(
    "SGLang 0.5.9 server_args.py:1671-1697,595; all_reduce_utils.py", {"": _CUSTOM}, linked_from=3,
    fused={"9": _FUSED, "10": _FUSED}, unverified="one shot or two: as in the kernel that it copies",
)  # fmt: skip
_COLLECTIVES_0_4 = replace(
    _COLLECTIVES_0_5_9, source="SGLang 0.5.9 all_reduce_utils.py", fused={}, unverified="all, taken from 0.5.9"
)

# --------------------------------------------------------------------------------------------------------- releases

_FIRST = Vintage(
    "0.4", "0.4.0", _HOST_0_4, _scheduler_0_4, _CACHE_0_4, _graphs_0_4, _KERNELS_0_4, collectives=_COLLECTIVES_0_4,
    since="2024-12",
)  # fmt: skip
_LAST_OF_0_4 = replace(
    _FIRST, version="0.4.10", read="0.4.10", scheduler=_scheduler_0_4_10, graphs=_graphs_0_4_10,
    kernels=_KERNELS_0_4_10, since="2025-07",
)  # fmt: skip
# Requests without a temperature: 0.5.1.post1 entrypoints/openai/protocol.py (0.7), 0.5.8.post1 server_args.py:401
# (sampling_defaults "model").
_FIFTH = replace(
    _FIRST, version="0.5", read="0.5.1.post1", host=_HOST_0_5_9, scheduler=_scheduler_0_5, cache=_CACHE_0_5_9,
    graphs=_graphs_0_5, kernels=_KERNELS_0_5_9, collectives=_COLLECTIVES_0_5_9, since="2025-08", unasked="random",
)  # fmt: skip
_MIDDLE = replace(
    _FIFTH, version="0.5.8", read="0.5.9", scheduler=_scheduler_0_5_9, graphs=_graphs_0_5_9, since="2026-01",
    unasked=CHECKPOINT,
)  # fmt: skip
_NEWEST = replace(
    _MIDDLE, version="0.5.15", read="0.5.15", host=_HOST_0_5_15, scheduler=_scheduler_0_5_15, graphs=_graphs_0_5_15,
    since="2026-07",  # unverified: the index that was asked ends with 0.5.10 for the Python that it was asked for
)  # fmt: skip

VINTAGES = (_FIRST, _LAST_OF_0_4, _FIFTH, _MIDDLE, _NEWEST)
