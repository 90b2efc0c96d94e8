"""Between the kernels: an engine's age, its sampler, gaps of a stream, and what its host adds; and none of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import predictor
from predictor import engines
from predictor.engines import CALLS, CAPTURED
from predictor.engines import defaults as d
from predictor.errors import RequestError
from predictor.fit.suite import predict_case
from predictor.forecast.forecast import forecast
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import load_system
from predictor.ops.collective import over
from predictor.report.json_report import to_dict
from predictor.report.trace import to_trace
from predictor.request.request import Request
from predictor.simulate.timeline import GRAPH_GAP_S, STREAM_GAP_S

DECODE: dict[str, Any] = {"mode": "decode", "context_len": 512, "artifacts": "roofline"}


def step(execution: str = "vllm", **words: Any) -> predictor.Prediction:
    return predictor.predict("llama-3.1-8b", "h100", execution=execution, **(DECODE | words))


# ------------------------------------------------------------------------------------------------------------ software


@pytest.mark.parametrize(
    ("execution", "software", "release"),
    [
        ("vllm", "", "0.24"), ("vllm", "0.24", "0.24"), ("vllm", "vllm 0.19.1", "0.19"), ("vllm", "vllm", "0.24"),
        ("eager", "vllm 0.6.6.post1", "0.6"), ("vllm", "vllm 2023", "0.2"), ("vllm", "2024", "0.3"),
        ("vllm", "vllm 2020", "0.2"), ("sglang", "sglang 2025", "0.4"), ("tensorrt_llm", "trtllm 1.0.0rc3", "1.0"),
        ("eager", "torch fsdp 2023", "1.13"), ("compile", "torch 2.1", "1.13"), ("fastertransformer", "2022", ""),
    ],
)  # fmt: skip
def test_words_find_a_release(execution: str, software: str, release: str) -> None:
    found = engines.running(execution, software).vintage()
    assert found is not None and found.version == release


@pytest.mark.parametrize(
    ("execution", "software", "said"),
    [
        ("sglang", "vllm 0.24", "--execution is sglang; expected --execution vllm"),
        ("vllm", "vlm 0.24", "expected an engine and its version or a year, such as 'vllm 2024'"),
        ("vllm", "vllm new", "expected an engine and its version or a year"),
        ("eager", "vllm-like", "such as 'vllm 2024'"),
    ],
)
def test_other_words_are_one_line(execution: str, software: str, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        predictor.predict("gpt2", "h100", execution=execution, software=software)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_months_come_in_order() -> None:
    for name in engines.names():
        months = [release.since for release in engines.engine(name).vintages()]
        assert months == sorted(months) and (len(months) < 2 or all(months))


def test_early_releases_launch_from_python_and_reduce_by_nccl() -> None:
    gpu, size = load_gpu("a100"), 2**16
    reduce = over(load_system("dgx-a100"), "all_reduce", "fp16", size, 8)
    libraries = {year: d.library_of(engines.running("vllm", year), gpu) for year in ("2023", "2024")}
    assert {year: of(reduce) for year, of in libraries.items() if of} == {"2023": "nccl", "2024": "vllm 0.3"}
    hopper = {size: over(load_system("dgx-h100"), "all_reduce", "bf16", size, 8) for size in (2**17, 2**19, 2**27)}
    newest = d.library_of(engines.running("vllm"), load_gpu("h100"))
    assert newest and [newest(op) for op in hopper.values()] == ["vllm", "vllm", "nccl"]
    sglang = d.library_of(engines.running("sglang"), load_gpu("h100"))
    assert sglang and [sglang(op) for op in hopper.values()] == ["sglang", "sglang", "nccl"]
    # its kernels changed at 0.5.14, between the releases 0.5.8 and 0.5.15 that are told apart otherwise
    for version, pushes in (("0.5.13", False), ("0.5.14", True)):
        of = d.library_of(engines.running("sglang", version), load_gpu("h100"))
        own = engines.library(of(hopper[2**17])).all_reduce() if of else None
        assert own and own.pushes is pushes
    old, new = step(software="2023"), step()
    assert (old.workload.engine.decode_host, new.workload.engine.decode_host) == (CALLS, CAPTURED)
    assert old.between_s["launches"] > 0.0 == new.between_s["launches"]
    assert old.gpu_busy_s == pytest.approx(new.gpu_busy_s)


def test_the_host_of_an_early_step_grows_with_the_batch() -> None:
    """vLLM issue 6913: 0.2 ms of outputs at batch 1, 3.4 ms at 32."""
    waits = [sum(step(software="0.5", batch=batch).workload.waits_s.values()) for batch in (1, 32)]
    assert waits[1] - waits[0] == pytest.approx(3.2e-3)
    span = step(software="0.5").workload.waits_range_s
    assert span is not None and span[0] <= waits[0] <= span[1]


def test_a_suite_names_its_software(tmp_path: Path) -> None:
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_head": 12, "n_layer": 12,
        "vocab_size": 50257,
    }  # fmt: skip
    (tmp_path / "gpt2.json").write_text(json.dumps(config), encoding="utf-8")
    row = {
        "case": "a", "config": "gpt2", "gpu": "a100", "mode": "decode", "context_len": 100, "execution": "vllm",
        "measured_ms": 1.0,
    }  # fmt: skip
    old, new = (predict_case(row | {"software": text}, tmp_path, "roofline") for text in ("vllm 2023", ""))
    assert old["predicted_ms"] > new["predicted_ms"] + 4.0, "the scheduler's 4 ms, and launches"
    bare = predict_case(row | {"software": "0.2.0"}, tmp_path, "roofline")
    assert bare["predicted_ms"] == old["predicted_ms"]
    assert predict_case(row | {"software": "vllm 2023", "step_overhead_ms": 0.0}, tmp_path, "roofline")[
        "predicted_ms"
    ] == pytest.approx(old["predicted_ms"] - 4.103, abs=1e-3)


# ----------------------------------------------------------------------------------------------------- between kernels


@pytest.mark.parametrize(
    ("execution", "words"),
    [
        ("eager", {}), ("compile", {}), ("cuda_graph", {}), ("vllm", {}), ("vllm", {"software": "2023", "batch": 9}),
        ("tensorrt_llm", {"mode": "prefill", "context_len": None, "seq_len": 300}), ("fastertransformer", {}),
        ("vllm", {"mode": "generate", "context_len": None, "output_len": 40, "software": "0.3"}),
        ("eager", {"mode": "train", "context_len": None, "seq_len": 128, "dtype": "bf16"}),
    ],
)  # fmt: skip
def test_kernels_and_what_is_between_them_are_the_whole(execution: str, words: dict[str, Any]) -> None:
    answer = step(execution, **words)
    assert answer.gpu_busy_s + answer.between_kernels_s == pytest.approx(answer.latency_s, rel=1e-12)
    assert all(seconds >= 0.0 for seconds in answer.between_s.values())
    shown = to_dict(answer)["between_kernels_ms"]
    assert shown["total"] == pytest.approx(sum(shown["parts"].values()))


def test_nothing_between_the_kernels_can_be_asked_for() -> None:
    bare = step(software="0.6", step_overhead=0, kernel_gap="0")
    assert bare.between_kernels_s == 0.0
    assert bare.latency_s == bare.gpu_busy_s


def test_gaps_by_hand() -> None:
    """A layer of Llama has two norms, an activation and a rotary kernel; the embedding and the last norm beside."""
    alone = 32 * 4 + 2
    assert step("cuda_graph").between_s["gaps between kernels"] == pytest.approx(alone * GRAPH_GAP_S)
    assert step("cuda_graph", kernel_gap="2us").between_s["gaps between kernels"] == pytest.approx(alone * 2e-6)
    launched = step("fastertransformer")
    kernels = sum(row.count for row in launched.breakdown)
    at_least = kernels * (STREAM_GAP_S - GRAPH_GAP_S)
    assert at_least < launched.between_s["gaps between kernels"] < kernels * STREAM_GAP_S


def test_an_override_takes_the_place_of_the_hosts_own() -> None:
    own, given = step(software="0.3"), step(software="0.3", step_overhead="5ms")
    assert given.latency_s == pytest.approx(own.latency_s - sum(own.workload.waits_s.values()) + 5e-3)
    assert given.workload.waits_range_s is None


def test_a_trace_ends_when_the_forecast_does() -> None:
    words = DECODE | {"execution": "vllm", "software": "0.3", "batch": 4}
    found = forecast(Request("llama-3.1-8b", "h100", **words).run())
    events = [event for event in json.loads(to_trace(found))["traceEvents"] if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(found.latency_s * 1e6, abs=0.01)
    host = [event for event in events if event["cat"] == "host"]
    assert [event["name"] for event in host] == ["scheduler, inputs and outputs"]


# ------------------------------------------------------------------------------------------------------------- sampler


def sampler(**words: Any) -> dict[str, float]:
    """Seconds of the sampler's kernels by name."""
    nodes = step(top=99, **words).nodes
    return {row.name: row.latency_s for row in nodes if row.name.startswith("sampler")}


def test_a_greedy_step_widens_its_logits_and_takes_the_largest() -> None:
    """Llama's 128,256 logits a sequence: 2 bytes read and 4 written, 4 read; at the H100's 3.35 TB/s."""
    found = sampler(batch=512)
    assert set(found) == {"sampler cast", "sampler argmax"}
    size = 512 * 128256
    assert found["sampler cast"] == pytest.approx(6 * size / 3.35e12, rel=0.01)
    assert found["sampler argmax"] == pytest.approx(4 * size / 3.35e12, rel=0.01)


def test_chance_costs_more_and_a_sort_most() -> None:
    greedy, random, few = (sum(sampler(batch=64, sampling=how).values()) for how in ("greedy", "random", "top-p"))
    sorted_ = sum(sampler(batch=64, sampling="top-p", software="0.14").values())
    assert greedy < random < few < sorted_


def test_both_truncations_cost_more_than_one_and_penalties_come_first() -> None:
    for software in ("", "0.14"):
        words = {"batch": 64, "software": software}
        few, likely, both = (sum(sampler(sampling=how, **words).values()) for how in ("top-k", "top-p", "top-k+top-p"))
        assert max(few, likely) < both < few + likely
    plain, fined = (sampler(batch=512, sampling=how) for how in ("greedy", "greedy+penalties"))
    assert {name: fined[name] for name in plain} == plain
    assert len(fined) == len(plain) + 9
    assert sum(fined.values()) - sum(plain.values()) == pytest.approx(85 * 512 * 128256 / 3.35e12, rel=0.02)


def test_ranks_sample_the_whole_vocabulary() -> None:
    alone, shared = (sampler(batch=8, tp=tp) for tp in (1, 2))
    assert alone == pytest.approx(shared)


def test_only_engines_sample() -> None:
    for execution in ("eager", "cuda_graph"):
        assert not any(row.name.startswith("sampler") for row in step(execution, top=99).nodes)


def test_older_attention_takes_longer_in_prefill_alone() -> None:
    """xFormers' forward pass, 1.94 times FlashAttention-2's; its interval with it. Other kernels are the same."""
    words = {"mode": "prefill", "context_len": None, "seq_len": 2048, "top": 99, "artifacts": None}
    old, new = (
        {row.name: row.latency_s for row in step(software=version, **words).nodes} for version in ("0.3", "0.6")
    )
    assert old.pop("attention core") == pytest.approx(1.94 * new.pop("attention core"))
    assert old == pytest.approx(new)
