"""What engines do by release: published values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import predictor
from predictor import engines
from predictor.engines import CALLS, CAPTURED, DECODE, PREFILL, Engine, registry
from predictor.engines import defaults as d
from predictor.engines.reductions import EITHER_SHOT, MULTIMEM, NCCL, ONE_SHOT, SYMMETRIC, TWO_SHOT
from predictor.engines.vintage import (
    FEWEST_OUTPUTS,
    LAST_ARRIVED,
    NOBODY,
    OUTPUTS,
    PROMPTS_FIRST,
    RUNNING_FIRST,
    SCHEDULING,
    Setting,
)
from predictor.hardware.gpu import list_gpus, load_gpu

KIB, MIB = 2**10, 2**20
H100 = Setting(load_gpu("h100"))


def of(name: str, version: str = "") -> Engine:
    return engines.engine(name).as_of(version)


@pytest.mark.parametrize(
    ("name", "version", "gpu", "batch", "size"),
    [
        ("vllm", "0.2", "a100", 1, None),  # nothing is captured
        ("vllm", "0.2.7", "a100", 3, 4),
        ("vllm", "0.2.7", "a100", 9, 16),
        ("vllm", "0.6.6", "h100", 256, 256),
        ("vllm", "0.6.6", "h100", 257, None),
        ("vllm", "0.14.1", "h100", 249, 256),
        ("vllm", "0.14.1", "h100", 257, 272),
        ("vllm", "0.14.1", "a100", 512, 512),  # twice its 256 sequences
        ("vllm", "", "h100", 513, None),
        ("sglang", "0.4", "h100", 153, 160),
        ("sglang", "0.4", "h100", 161, None),
        ("sglang", "0.4", "t4", 9, None),  # 8 under 25 GB
        ("sglang", "0.5.9", "h100", 9, 12),
        ("sglang", "0.5.9", "h100", 257, None),  # one GPU: 256
        ("sglang", "0.5.9", "l40s", 32, 32),
        ("sglang", "", "l40s", 33, None),
        ("tensorrt_llm", "1.0", "h100", 31, 31),  # no padding
        ("tensorrt_llm", "1.0", "h100", 33, None),
        ("tensorrt_llm", "", "h100", 64, 64),
        ("fastertransformer", "", "a100", 1, None),
    ],
)
def test_graph_sizes(name: str, version: str, gpu: str, batch: int, size: int | None) -> None:
    assert d.captured_batch(of(name, version), batch, Setting(load_gpu(gpu))) == size


def test_a_step_that_no_graph_holds_is_launched() -> None:
    """TensorRT-LLM captures batches of 1 to 32, 64 and 128; vLLM 0.6 sequences of up to 8,192 tokens."""

    def step(
        execution: str, batch: int, context: int = 64, software: str = "", gpu: str = "b200"
    ) -> predictor.Prediction:
        words = {"mode": "decode", "batch": batch, "context_len": context, "execution": execution}
        return predictor.predict("llama-3.1-8b", gpu, dtype="bf16", software=software, **words)  # type: ignore[arg-type]

    held, launched, larger = (step("tensorrt_llm", batch) for batch in (32, 33, 64))
    assert max(held.latency_s, larger.latency_s) < launched.latency_s  # the GPU alone would rise from one to the next
    assert held.between_s["launches"] == 0.0 < launched.between_s["launches"]
    (note,) = [note for note in launched.notes if "captures no CUDA graph" in note]
    assert note == "tensorrt_llm captures no CUDA graph of 33 sequences by default: the CPU launches every kernel."
    assert not any("captures no" in note for note in (*held.notes, *larger.notes, *step("cuda_graph", 33).notes))
    short, long = step("vllm", 8, 8000, "0.6", "h200"), step("vllm", 8, 9000, "0.6", "h200")
    assert short.between_s["launches"] == 0.0 < long.between_s["launches"]


def test_graphs_by_length_degree_and_drafts() -> None:
    assert d.captured_batch(of("vllm", "0.2.7"), 1, H100, longest=8192) == 1
    assert d.captured_batch(of("vllm", "0.2.7"), 1, H100, longest=8193) is None
    assert d.captured_batch(of("vllm"), 1, H100, longest=100_000) == 1
    assert d.captured_batch(of("sglang"), 400, replace(H100, tp=4)) == 400
    assert d.captured_batch(of("sglang"), 33, replace(H100, drafts=2)) == 40
    assert d.captured_batch(of("sglang"), 7, replace(H100, drafts=2)) == 7
    assert [d.captured_tokens(of("vllm", version), 512, H100) for version in ("0.6", "0.14", "")] == [None, 512, 512]
    assert d.captured_tokens(of("vllm"), 513, H100) is None
    assert [d.captured_tokens(of("sglang", version), 8192, H100) for version in ("0.5.9", "0.5.15")] == [None, 8192]
    assert d.captured_tokens(of("sglang"), 2049, replace(H100, latent=True)) is None


@pytest.mark.parametrize(
    ("name", "version", "setting", "tokens", "sequences"),
    [
        ("vllm", "0.2", H100, 8192, 256),
        ("vllm", "0.2", replace(H100, context_len=1024), 2048, 256),
        ("vllm", "0.6", replace(H100, context_len=32768), 32768, 256),
        ("vllm", "0.6", replace(H100, context_len=32769), 2048, 256),  # chunked by itself
        ("vllm", "0.14", H100, 8192, 1024),
        ("vllm", "0.14", replace(H100, online=False), 16384, 1024),
        ("vllm", "0.24", Setting(load_gpu("a100")), 2048, 256),  # whatever its memory
        ("vllm", "0.24", Setting(load_gpu("l40s"), online=False), 8192, 256),
        ("sglang", "0.4", Setting(load_gpu("t4")), 2048, 2048),
        ("sglang", "0.4", H100, 8192, 2048),
        ("sglang", "0.4.10", Setting(load_gpu("b200")), 16384, 2048),
        ("sglang", "0.5.9", Setting(load_gpu("l40s")), 4096, 2048),
        ("sglang", "0.5.9", replace(H100, cache_tokens=8192 * 6), 8192, 3072),
        ("sglang", "0.5.15", replace(H100, cache_tokens=10**7), 8192, 4096),
        ("tensorrt_llm", "1.0", H100, 8192, 2048),
    ],
)
def test_token_budgets(name: str, version: str, setting: Setting, tokens: int, sequences: int) -> None:
    plan = d.scheduler(of(name, version), setting)
    assert plan is not None
    assert (plan.tokens, plan.sequences) == (tokens, sequences)


def test_schedulers_differ_as_published() -> None:
    plans = {
        (name, version): d.scheduler(of(name, version), H100)
        for name, version in (("vllm", "0.2"), ("vllm", "0.14"), ("vllm", "0.19"), ("sglang", ""), ("tensorrt_llm", ""))
    }
    early, chunked, whole, by_turns, sure = plans.values()
    assert early and chunked and whole and by_turns and sure
    assert (early.order, early.mixes, early.chunks, early.padding, early.watermark) == (
        PROMPTS_FIRST, False, False, 256, 0.01,
    )  # fmt: skip
    assert (chunked.order, chunked.mixes, chunked.chunks, chunked.preemption) == (
        RUNNING_FIRST, True, True, LAST_ARRIVED,
    )  # fmt: skip
    assert not chunked.whole_prompt and whole.whole_prompt
    assert (by_turns.order, by_turns.mixes, by_turns.preemption) == (PROMPTS_FIRST, False, FEWEST_OUTPUTS)
    assert by_turns.prefill_tokens == 16384
    assert (sure.mixes, sure.chunks, sure.preemption) == (True, False, NOBODY)
    assert sure.reserve.share(0) == sure.reserve.share(10**6) == 1.0
    shares = [by_turns.reserve.share(steps) for steps in (0, 300, 600, 6000)]
    assert shares == pytest.approx([0.7, 0.399, 0.098, 0.098])
    assert d.scheduler(of("fastertransformer"), H100) is d.scheduler(of("cuda_graph"), H100) is None


def test_hosts_and_overlap() -> None:
    assert [of("vllm", version).decode_host for version in ("0.1", "0.2.5", "0.2.6", "0.6", "")] == [
        CALLS, CALLS, CAPTURED, CAPTURED, CAPTURED,
    ]  # fmt: skip
    assert (of("eager").host, of("compile").host) == (CALLS, CAPTURED)

    def who(name: str, what: str, version: str = "", pp: int = 1) -> bool:
        return d.overlaps(of(name, version), what, replace(H100, pp=pp))

    assert [who("vllm", SCHEDULING, version) for version in ("0.2", "0.6", "0.14", "")] == [False, False, True, True]
    assert [who("vllm", OUTPUTS, version) for version in ("0.2", "0.6", "0.14", "")] == [False, True, True, True]
    assert not who("vllm", SCHEDULING, "0.14", pp=2)
    assert all(who(name, SCHEDULING, version) for name, version in (("sglang", "0.4"), ("tensorrt_llm", "1.0")))
    assert not who("cuda_graph", SCHEDULING)


def test_the_kv_cache() -> None:
    """ "auto" follows a quantized checkpoint from vLLM 0.14 on."""
    follows = [d.follows_checkpoint(of("vllm", version)) for version in ("0.2", "0.6", "0.14", "")]
    assert follows == [False, False, True, True]
    assert all(d.follows_checkpoint(of(name)) for name in engines.names())
    assert [d.page_tokens(of(name)) for name in ("vllm", "sglang", "tensorrt_llm", "eager")] == [16, 1, 32, None]
    assert d.page_tokens(of("sglang"), "trtllm_mha") == d.page_tokens(of("vllm"), "flash_mla") == 64
    assert not of("vllm", "0.2").fp8_cache and of("vllm", "0.6").fp8_cache
    assert [of("vllm", version).memory[-1].fraction for version in ("0.2", "0.19", "0.24")] == [0.90, 0.90, 0.92]


@pytest.mark.parametrize(
    ("name", "version", "gpu", "prefill", "decode", "latent"),
    [
        ("vllm", "0.2", "a100", "xformers", "paged_attention", None),
        ("vllm", "0.6", "h100", "flash_attention_2", "flash_attention_2", None),
        ("vllm", "0.6", "t4", "xformers", "paged_attention", None),
        ("vllm", "0.14", "a100", "flash_attention_2", "flash_attention_2", None),
        ("vllm", "0.14", "h100", "flash_attention_3", "flash_attention_3", "flash_attention_mla"),
        ("vllm", "0.14", "b200", "trtllm_gen", "trtllm_gen", "cutlass_mla"),
        ("vllm", "0.19", "b200", "trtllm_gen", "trtllm_gen", "flashinfer_mla"),
        ("vllm", "0.24", "rtx-pro-6000-server", "flash_attention_2", "flash_attention_2", "triton_mla"),
        ("sglang", "0.4", "h100", "flashinfer", "flashinfer", "flashinfer"),
        ("sglang", "0.5.9", "h100", "flash_attention_3", "flash_attention_3", "flash_attention_3"),
        ("sglang", "0.5.9", "b200", "trtllm_mha", "trtllm_mha", "flashinfer"),
        ("sglang", "", "a100", "flashinfer", "flashinfer", "triton"),
        ("tensorrt_llm", "", "h100", "fmha", "xqa", None),
        ("eager", "", "h100", None, None, None),
    ],
)
def test_attention_kernels(
    name: str, version: str, gpu: str, prefill: str | None, decode: str | None, latent: str | None
) -> None:
    engine, board = of(name, version), load_gpu(gpu)
    assert d.attention_kernel(engine, PREFILL, board) == prefill
    assert d.attention_kernel(engine, DECODE, board) == decode
    assert d.attention_kernel(engine, DECODE, board, latent=True) == latent


def test_kernels_by_call() -> None:
    vllm, b200 = of("vllm"), load_gpu("b200")
    assert [d.attention_kernel(vllm, DECODE, b200, tokens=batch) for batch in (256, 257)] == [
        "trtllm_gen",
        "flashinfer",
    ]
    assert d.attention_kernel(vllm, PREFILL, b200, tokens=8192, auto_cache=False) == "flashinfer"
    for gpu in map(load_gpu, list_gpus()):
        known = d.attention_kernel(vllm, DECODE, gpu) is not None
        assert known == (gpu.vendor == "nvidia"), gpu.id


@pytest.mark.parametrize(
    ("name", "version", "capability", "ranks", "size", "algorithm"),
    [
        ("vllm", "0.2", "8.0", 8, KIB, NCCL),
        ("vllm", "0.6", "8.0", 2, 8 * MIB - 1, ONE_SHOT),
        ("vllm", "0.6", "8.0", 2, 8 * MIB, NCCL),
        ("vllm", "0.6", "9.0", 4, 512 * KIB - 1, ONE_SHOT),
        ("vllm", "0.6", "9.0", 4, 512 * KIB, TWO_SHOT),
        ("vllm", "0.6", "9.0", 8, 256 * KIB, TWO_SHOT),
        ("vllm", "0.6", "9.0", 3, KIB, NCCL),
        ("vllm", "0.14", "9.0", 8, 256 * KIB - 1, ONE_SHOT),
        ("vllm", "0.14", "9.0", 8, 256 * KIB, MULTIMEM),
        ("vllm", "0.14", "9.0", 2, 8 * MIB, SYMMETRIC),
        ("vllm", "0.14", "9.0", 2, 64 * MIB, NCCL),
        ("vllm", "0.14", "10.0", 4, 2 * MIB, SYMMETRIC),
        ("vllm", "", "10.0", 8, 512 * KIB, TWO_SHOT),
        ("vllm", "", "10.0", 8, MIB, MULTIMEM),
        ("vllm", "", "8.9", 8, 8 * MIB - 1, TWO_SHOT),
        ("sglang", "0.5.9", "9.0", 8, 8 * MIB - 1, TWO_SHOT),
        ("sglang", "0.5.9", "9.0", 8, 8 * MIB, NCCL),
        ("tensorrt_llm", "1.0", "9.0", 2, 16 * MIB - 2, ONE_SHOT),
        ("tensorrt_llm", "1.0", "9.0", 8, 2 * 262_144 - 2, ONE_SHOT),
        ("tensorrt_llm", "1.0", "9.0", 8, 2 * 262_144, TWO_SHOT),
        ("tensorrt_llm", "1.0", "10.0", 4, 4 * MIB - 2, ONE_SHOT),
        ("tensorrt_llm", "1.0", "8.0", 4, MIB, EITHER_SHOT),
        ("tensorrt_llm", "1.0", "9.0", 8, 8 * MIB, NCCL),
        ("fastertransformer", "", "8.0", 8, KIB, NCCL),
        ("eager", "", "9.0", 2, KIB, NCCL),
        ("cuda_graph", "", "9.0", 2, KIB, None),
    ],
)
def test_all_reduce(name: str, version: str, capability: str, ranks: int, size: int, algorithm: str | None) -> None:
    assert d.all_reduce_algorithm(of(name, version), size, ranks, capability) == algorithm


def test_all_reduce_without_nvlink() -> None:
    """vLLM reduces over two GPUs on PCIe by itself; TensorRT-LLM does not."""
    found = [
        d.all_reduce_algorithm(of(name), KIB, ranks, "8.9", linked=False)
        for name, ranks in (("vllm", 2), ("vllm", 4), ("sglang", 2), ("tensorrt_llm", 2))
    ]
    assert found == [ONE_SHOT, NCCL, ONE_SHOT, NCCL]


def test_norms_in_the_all_reduce() -> None:
    def fused(version: str, size: float, ranks: int, capability: str) -> str | None:
        return d.fused_norm(of("vllm", version), size, 1, ranks, capability)

    assert [fused(version, MIB / 2, 8, "9.0") for version in ("0.6", "0.14", "0.19", "")] == [
        None, None, ONE_SHOT, ONE_SHOT,
    ]  # fmt: skip
    assert fused("", MIB / 2 + 1, 8, "9.0") is fused("", KIB, 8, "8.0") is fused("", KIB, 3, "9.0") is None
    assert [fused("", size * MIB, 2, "9.0") for size in (32, 33, 64, 65)] == [ONE_SHOT, TWO_SHOT, TWO_SHOT, None]
    assert [fused("", size * MIB, 4, "10.3") for size in (4, 5, 33)] == [ONE_SHOT, TWO_SHOT, None]
    theirs = [
        d.fused_norm(of("sglang", version), MIB, tokens, 4, capability, model)
        for version, tokens, capability, model in (
            ("0.5.9", 2048, "9.0", "qwen3_moe"), ("0.5.9", 2049, "9.0", "qwen3_moe"), ("0.5.9", 1, "9.0", "llama"),
            ("0.5.9", 1, "8.0", "qwen3_moe"), ("0.4", 1, "9.0", "qwen3_moe"),
        )
    ]  # fmt: skip
    assert theirs == [EITHER_SHOT, None, None, None, None]
    assert d.fused_norm(of("tensorrt_llm"), MIB, 1, 8, "9.0") == EITHER_SHOT


def test_quantizing_and_sampling() -> None:
    """vLLM's compiler fuses what narrows activations into the kernel before; TensorRT-LLM runs one of its own."""
    newest = {name: of(name).vintage() for name in ("vllm", "tensorrt_llm")}
    ways = {
        name: (one.quantizing.norms, one.quantizing.attention) for name, one in newest.items() if one and one.quantizing
    }
    assert ways == {"vllm": ("fused", "kernel"), "tensorrt_llm": ("kernel", "kernel")}
    samplers = [one.sampler for version in ("0.6", "0.14", "0.24") if (one := of("vllm", version).vintage())]
    assert [one.truncates if one else None for one in samplers] == [None, "a sort in PyTorch", "FlashInfer"]


def test_an_early_release_in_a_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decode step that nobody captured waits for its launches; kernels are the same."""
    monkeypatch.setattr(registry, "_registered", {})
    engines.register(replace(of("vllm", "0.2"), name="early"))
    asked = {"mode": "decode", "batch": 1, "context_len": 512, "artifacts": "roofline"}
    early, newest = (predictor.predict("gpt2", "h100", execution=name, **asked) for name in ("early", "vllm"))
    assert early.gpu_busy_s == newest.gpu_busy_s
    assert early.cpu_busy_s > newest.cpu_busy_s == 0.0
    assert early.latency_s > newest.latency_s


def test_the_limit_of_the_kernels_times() -> None:
    """What the library of vLLM's kernels takes for its own is what its newest release does on boards before Hopper."""
    own = engines.library("vllm").all_reduce()
    assert own is not None
    limit = own.limit(np.array([2.0, 8.0]))
    for size, ranks in zip(limit, (2, 8), strict=True):
        assert d.all_reduce_algorithm(of("vllm"), size, ranks, "8.0") != NCCL
        assert d.all_reduce_algorithm(of("vllm"), size + 1, ranks, "8.0") == NCCL
