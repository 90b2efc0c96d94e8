"""vLLM by release: what was read in its packages 0.2.7, 0.6.6.post1, 0.12.0, 0.14.1, 0.19.1 and 0.24.0 (after vllm/).

Releases before 0.2.7, 0.3 and 0.8 were not read: what sets them apart is said to be unverified.
"""

from __future__ import annotations

from predictor.engines.base import CALLS, CAPTURED, LAUNCHES
from predictor.engines.reductions import MULTIMEM, SYMMETRIC, AllReduceRules, FusedNorm, Reduction, custom_shots
from predictor.engines.vintage import (
    CHECKPOINT,
    DECODES_FIRST,
    LAST_ARRIVED,
    OUTPUTS,
    OVERLAPS,
    PROMPTS_FIRST,
    RUNNING_FIRST,
    CacheRules,
    Graphs,
    Host,
    HostTime,
    Scheduler,
    Setting,
    Vintage,
    Wait,
    sizes_up_to,
)
from predictor.engines.vllm.kernels import (
    KERNELS_0_2,
    KERNELS_0_6,
    KERNELS_0_14,
    KERNELS_0_19,
    KERNELS_0_24,
    QUANTIZING,
    SAMPLER_0_14,
    SAMPLER_0_24,
)
from predictor.files.records import replace

#: Bytes of a MiB, by definition.
MIB = 2**20
#: Compute capability of the A100, which 0.14 and later know by its name and take for a small GPU; its kin are small.
_A100 = "8.0"
#: GiB from which a GPU is a large one. Source: engine/arg_utils.py:1845-1895,1975-2031 of vLLM 0.14.1.
_LARGE_GIB = 70


def _large(setting: Setting) -> bool:
    return setting.memory_gib >= _LARGE_GIB and setting.gpu.compute_capability != _A100


# -------------------------------------------------------------------------------------------------------- scheduler


def _scheduler_0_2(setting: Setting) -> Scheduler:
    tokens = max(setting.context_len, 2048)
    return Scheduler(
        PROMPTS_FIRST, mixes=False, chunks=False, tokens=tokens, sequences=256, prefill_tokens=tokens, padding=256,
        watermark=0.01,
        source="vLLM 0.2.7 core/scheduler.py:124-285, core/block_manager.py:79,113; engine/arg_utils.py:27-43",
    )  # fmt: skip


def _scheduler_0_6(setting: Setting) -> Scheduler:
    """Chunked by itself for models of more than 32,768 tokens."""
    chunked = setting.context_len > 32768
    return Scheduler(
        DECODES_FIRST if chunked else PROMPTS_FIRST, mixes=chunked, chunks=chunked,
        tokens=2048 if chunked else max(setting.context_len, 2048), sequences=256, watermark=0.01,
        source="vLLM 0.6.6.post1 engine/arg_utils.py:1081-1111, 211-213; config.py:1426-1442; "
        "core/scheduler.py:1046,1151",
    )  # fmt: skip


def _scheduler_0_14(setting: Setting) -> Scheduler:
    """8,192 tokens behind a server on a large GPU and 2,048 on others; 16,384 and 8,192 from Python."""
    large = _large(setting)
    sequences = 1024 if large else 256
    tokens = (8192 if large else 2048) if setting.online else (16384 if large else 8192)
    tokens = min(tokens, sequences * setting.context_len)
    return Scheduler(
        RUNNING_FIRST, mixes=True, chunks=True, tokens=tokens, sequences=min(sequences, tokens),
        preemption=LAST_ARRIVED,
        source="vLLM 0.14.1 engine/arg_utils.py:1845-1895,1975-2031; v1/core/sched/scheduler.py:250-400,800-812",
    )  # fmt: skip


def _scheduler_0_12(setting: Setting) -> Scheduler:
    source = "vLLM 0.12.0 engine/arg_utils.py:1800-1880,1966-2020; the order of a step from 0.14.1"
    return replace(_scheduler_0_14(setting), source=source)


def _scheduler_0_8(setting: Setting) -> Scheduler:
    return replace(_scheduler_0_12(setting), unverified="all, taken from 0.12")


def _scheduler_0_19(setting: Setting) -> Scheduler:
    before = _scheduler_0_14(setting)
    source = "vLLM 0.19.1 engine/arg_utils.py:2053; config/scheduler.py:139 (scheduler_reserve_full_isl)"
    return replace(before, whole_prompt=True, source=source)


def _scheduler_0_24(setting: Setting) -> Scheduler:
    source = "vLLM 0.24.0 engine/arg_utils.py:2404,2600-2605; config/scheduler.py:140-153"
    return replace(_scheduler_0_19(setting), source=source)


# --------------------------------------------------------------------------------------------------------- KV cache

#: Tokens of a page by attention backend. Source: platforms/cuda.py of `_CACHE_0_14`.
_MLA_PAGES = {"flash_mla": 64, "cutlass_mla": 128, "flashinfer_mla": 64}
_CACHE_0_2 = CacheRules(
    16, prefixes=False, eight_bit=False, follows=False,
    source="vLLM 0.2.7 worker/worker.py:107, worker/model_runner.py:505",
)  # fmt: skip
_CACHE_0_6 = CacheRules(
    16, prefixes=False, follows=False, source="vLLM 0.6.6.post1 worker/worker.py:208; engine/arg_utils.py:206-209"
)
_CACHE_0_14 = CacheRules(
    16, prefixes=True, pages=_MLA_PAGES,
    source="vLLM 0.14.1 platforms/cuda.py:160-231, v1/worker/utils.py:259, config/cache.py:60-67, "
    "utils/torch_utils.py:301",
    unverified="FlashInfer's MLA takes pages of 32, too",
)  # fmt: skip
_CACHE_0_24 = replace(
    _CACHE_0_14,
    integers=True,
    source="vLLM 0.24.0 config/cache.py:67-75",
    unverified="pages: each attention backend prefers a size",
)

# ------------------------------------------------------------------------------------------------------ CUDA graphs


def _graphs_before_0_2_6(setting: Setting) -> Graphs:
    return Graphs((), "none before December 2023", unverified="all")


def _graphs_0_2(setting: Setting) -> Graphs:
    """1, 2, 4, 8, 16 ... 256; logits and sampler are outside."""
    return Graphs(sizes_up_to(256), "vLLM 0.2.7 worker/model_runner.py:21-23,193-208", longest=8192)


def _graphs_0_6(setting: Setting) -> Graphs:
    source = "vLLM 0.6.6.post1 config.py:3193-3220; worker/model_runner.py:754-762"
    return replace(_graphs_0_2(setting), source=source)


def _graphs_0_14(setting: Setting) -> Graphs:
    """1, 2, 4, in steps of 8 to 256, of 16 to twice the sequences of a step with their drafts, 512 at most."""
    largest = min(2 * _scheduler_0_14(setting).sequences * (1 + setting.drafts), 512)
    return Graphs(
        sizes_up_to(largest), prompt_tokens=largest, of_tokens=True,
        source="vLLM 0.14.1 config/vllm.py:1068-1160,135-150; config/compilation.py:60-66 (FULL_AND_PIECEWISE)",
    )  # fmt: skip


def _graphs_0_12(setting: Setting) -> Graphs:
    source = "vLLM 0.12.0 config/vllm.py:109-135,1033-1080 (FULL_AND_PIECEWISE)"
    return replace(_graphs_0_14(setting), source=source)


def _graphs_0_8(setting: Setting) -> Graphs:
    return replace(_graphs_0_12(setting), unverified="all, taken from 0.12")


# ------------------------------------------------------------------------------------------------------------- host

_TIMES_0_2 = (
    HostTime(
        "detokenizer, over all of the output so far", "vLLM of September 2023, 300 tokens of output, a 13B model",
        "vLLM issue 1099", sequence_s=(2e-3, 2e-3),
    ),
)  # fmt: skip
_TIMES_0_3 = (
    HostTime(
        "detokenizer", "vLLM 0.3, Qwen1.5-0.5B", "vLLM issue 5206 (detokenize_incrementally)",
        sequence_s=(19e-6, 44e-6),
    ),
    HostTime(
        "all that the GPU waits for in a decode step", "vLLM 0.5 of July 2024", "vLLM issue 6854", step_s=(4e-3, 13e-3)
    ),
    HostTime(
        "outputs of a step", "vLLM 0.5, Llama-3-70B in fp8 on 4 H100: 0.2 ms at batch 1, 3.4 ms at 32",
        "vLLM issue 6913 (_process_model_outputs)", step_s=(0.1e-3, 0.1e-3), sequence_s=(3.2e-3 / 31, 3.2e-3 / 31),
    ),
)  # fmt: skip
#: What a step of the first engine core (0.2 to 0.5) leaves the GPU waiting for.
_WAITS_0_2 = (
    Wait(
        "scheduler, inputs and outputs", "vLLM issue 6854 (0.5, July 2024: 4 ms in the trace shown, 5 to 13 ms said); "
        "vLLM blog 2024-09-05-perf-update.md (0.5.3: 29 % of 13 ms a token for scheduling, inputs and outputs); "
        "vLLM issue 6913 (_process_model_outputs, 0.5: 0.2 ms at batch 1, 3.4 ms at 32)",
        step_s=4e-3, sequence_s=3.2e-3 / 31, range_s=(4e-3, 13e-3), unverified="releases before 0.5",
    ),
)  # fmt: skip
_WAITS_0_6 = (
    replace(
        _WAITS_0_2[0], name="scheduler and inputs", sequence_s=0.0, unverified="taken from 0.5, but for the outputs"
    ),
)
#: What a step of the second engine core leaves the GPU waiting for where nothing overlaps.
_WAITS_0_8 = (
    Wait(
        "scheduler, inputs and outputs",
        "openfabric-systems/simllm pull 204 (engine loop of 0.27.1 without a GPU, 541 us a step over 258 steps of 128 "
        "requests, and 12.7 us a request at the cap, which drift by 30 %); vLLM pull 17866 (_prepare_inputs: 0.27 ms "
        "less of it, May 2025); vLLM pull 46112 (update_from_output: 1.1 us a request)",
        step_s=541e-6, sequence_s=12.7e-6 + 1.1e-6, range_s=(0.27e-3, 1.3 * 541e-6), unverified="on the hosts of 2025",
    ),
)  # fmt: skip
#: Seconds of a framework call: the 33.3 ms a token of LLaMA-7B, eager, of vLLM issue 914 (August 2023) over the 2,912
#: calls of such a step (`predict --model llama-2-7b --gpu a100 --mode decode --context-len 100 --attention math`:
#: cpu_busy_ms over launch_overhead_us). Least and most: "5-25 us an op in all", jiahuanglin.xyz, lesson 18, "PyTorch to
#: kernel".
_CALL_2023_S, _CALL_2023_RANGE_S = 33.3e-3 / 2912, (5e-6, 25e-6)
_TIMES_0_24 = (
    HostTime(
        "outputs of a step", "vLLM of June 2026: 0.142 ms at batch 128, 0.287 ms at 256",
        "vLLM pull 46112 (update_from_output)", sequence_s=(1.1e-6, 1.1e-6),
    ),
    HostTime(
        "CPU span of a verification cycle, two drafts", "vLLM of July 2026, DeepSeek-V4-Flash on 2 RTX PRO 6000",
        "SGLang issue 29960", step_s=(5.07e-3, 5.07e-3),
    ),
)  # fmt: skip

_HOST_BEFORE_0_2_6 = Host(
    CALLS, CALLS, overlaps=(), source="nothing is captured and nothing overlaps", times=_TIMES_0_2,
    waits=_WAITS_0_2, call_s=_CALL_2023_S, call_range_s=_CALL_2023_RANGE_S, unverified="all",
)  # fmt: skip
_HOST_0_2 = Host(
    CALLS, CAPTURED, overlaps=(), source="vLLM 0.2.7 worker/model_runner.py:193-208", times=_TIMES_0_2,
    waits=_WAITS_0_2, call_s=_CALL_2023_S, call_range_s=_CALL_2023_RANGE_S,
)  # fmt: skip
_HOST_0_6 = replace(
    _HOST_0_2, overlaps=(OUTPUTS,), source="vLLM 0.6.6.post1 config.py:218 (async output processing)", times=(),
    waits=_WAITS_0_6, call_s=None, call_range_s=None,
)  # fmt: skip
_HOST_0_12 = Host(
    LAUNCHES, CAPTURED, overlaps=(), waits=_WAITS_0_8,
    source="vLLM 0.12.0 config/scheduler.py:131, config/vllm.py:530-580 (async_scheduling False)",
)  # fmt: skip
_HOST_0_8 = replace(_HOST_0_12, unverified="all, taken from 0.12")
_HOST_0_14 = Host(
    LAUNCHES, CAPTURED, overlaps=OVERLAPS, overlaps_stages=False,
    source="vLLM 0.14.1 config/vllm.py:555-628 (async_scheduling; not with drafts other than EAGLE's)",
)  # fmt: skip
_HOST_0_24 = Host(
    LAUNCHES, CAPTURED, overlaps=OVERLAPS,
    source="vLLM 0.24.0 config/vllm.py:938-1004 (async_scheduling), :68-77,522-560 (model runner V2)",
    times=_TIMES_0_24,
    unverified="overlap over pipeline stages",
)  # fmt: skip

# ------------------------------------------------------------------------------------------------------ collectives

#: Source: custom_all_reduce.py of `_COLLECTIVES_0_6`, its limit by GPUs.
_UP_TO_8_MIB = custom_shots(dict.fromkeys((2, 4, 6, 8), 8.0 * MIB))
_COLLECTIVES_0_2 = AllReduceRules(
    "vLLM 0.2.7 model_executor/parallel_utils/communication_op.py:10-19 (torch.distributed)"
)
_COLLECTIVES_0_6 = AllReduceRules(
    "vLLM csrc/custom_all_reduce.cuh@036bb685; 0.6.6.post1 custom_all_reduce.py:50-56",
    {"": _UP_TO_8_MIB}, linked_from=3,
)  # fmt: skip
_COLLECTIVES_0_14 = replace(
    _COLLECTIVES_0_6,
    source="vLLM 0.14.1 all_reduce_utils.py:30-66, cuda_communicator.py, symm_mem.py:28-31",
    reductions={
        "9.0": (
            *custom_shots({2: 8 * MIB, 4: 8 * MIB, 6: MIB / 2, 8: MIB / 4}),
            Reduction(MULTIMEM, {4: 32 * MIB, 6: 64 * MIB, 8: 64 * MIB}),
            Reduction(SYMMETRIC, {2: 64 * MIB}),
        ),
        "10.0": (
            *custom_shots({2: 2 * MIB, 4: 2 * MIB, 6: MIB, 8: MIB}),
            Reduction(MULTIMEM, {6: 128 * MIB, 8: 128 * MIB}),
            Reduction(SYMMETRIC, {2: 8 * MIB, 4: 32 * MIB}),
        ),
        "": _UP_TO_8_MIB,
    },
)  # fmt: skip
_FUSED = "vLLM 0.19.1 config/vllm.py:116-135,208; 0.14.1 compilation/collective_fusion.py:456-485 (FlashInfer, at O2)"
_COLLECTIVES_0_19 = replace(
    _COLLECTIVES_0_14,
    fused={
        "9.0": FusedNorm(
            {2: 64 * MIB, 4: 2 * MIB, 8: MIB / 2}, {2: 32 * MIB, 4: 2 * MIB, 8: MIB / 2}, _FUSED,
        ),
        "10": FusedNorm({2: 64 * MIB, 4: 32 * MIB, 8: MIB}, {2: 32 * MIB, 4: 4 * MIB, 8: MIB}, _FUSED),
    },
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------- releases
# Months: the newest release before a date, by `uv pip compile --exclude-newer DATE` on 2026-11-22.

_FIRST = Vintage(
    "0.2", "0.2.7", _HOST_BEFORE_0_2_6, _scheduler_0_2, _CACHE_0_2, _graphs_before_0_2_6, KERNELS_0_2,
    collectives=_COLLECTIVES_0_2, since="2023-09",
)  # fmt: skip
_CAPTURING = replace(
    _FIRST, version="0.2.6", host=replace(_HOST_0_2, unverified="that 0.2.6 is the first to capture"),
    graphs=_graphs_0_2, since="2023-12",
)  # fmt: skip
_REDUCING = replace(
    _CAPTURING, version="0.3", host=replace(_HOST_0_2, times=_TIMES_0_3),
    collectives=replace(_COLLECTIVES_0_6, unverified="the custom all_reduce comes with 0.3"), since="2024-01",
)  # fmt: skip
_V0 = replace(
    _REDUCING, version="0.6", read="0.6.6.post1", host=_HOST_0_6, scheduler=_scheduler_0_6, cache=_CACHE_0_6,
    graphs=_graphs_0_6, kernels=KERNELS_0_6, collectives=_COLLECTIVES_0_6, since="2024-09",
)  # fmt: skip
# Requests without a temperature: 0.12.0 config/model.py:1500-1552 (generation_config "auto"), unverified before it.

_CORE = Vintage(
    "0.8", "0.12.0", _HOST_0_8, _scheduler_0_8, _CACHE_0_14, _graphs_0_8, KERNELS_0_14, QUANTIZING,
    _COLLECTIVES_0_6, SAMPLER_0_14, since="2025-03",  # unverified: that 0.8 is the first with the second core
    unasked=CHECKPOINT,
)  # fmt: skip
_COLLECTIVES_0_12 = replace(
    _COLLECTIVES_0_14, source="vLLM 0.12.0 device_communicators/all_reduce_utils.py:29-58, cuda_communicator.py"
)
_SYMMETRIC = replace(
    _CORE, version="0.12", host=_HOST_0_12, scheduler=_scheduler_0_12, graphs=_graphs_0_12,
    collectives=_COLLECTIVES_0_12, since="2025-12",
)  # fmt: skip
_V1 = Vintage(
    "0.14", "0.14.1", _HOST_0_14, _scheduler_0_14, _CACHE_0_14, _graphs_0_14, KERNELS_0_14, QUANTIZING,
    _COLLECTIVES_0_14, SAMPLER_0_14, since="2026-01", unasked=CHECKPOINT,
)  # fmt: skip
_FUSING = replace(
    _V1, version="0.19", read="0.19.1", scheduler=_scheduler_0_19, kernels=KERNELS_0_19,
    collectives=_COLLECTIVES_0_19, since="2026-04",
)  # fmt: skip
_NEWEST = replace(
    _FUSING, version="0.24", read="0.24.0", host=_HOST_0_24, scheduler=_scheduler_0_24, cache=_CACHE_0_24,
    kernels=KERNELS_0_24, sampler=SAMPLER_0_24, since="2026-06",
)  # fmt: skip

VINTAGES = (_FIRST, _CAPTURING, _REDUCING, _V0, _CORE, _SYMMETRIC, _V1, _FUSING, _NEWEST)
