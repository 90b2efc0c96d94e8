"""What fits: context and workspaces, each engine's share of memory, and how many GPUs it really takes."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

import predictor
from predictor.cli.predict import add_arguments
from predictor.engines import engine, names
from predictor.engines.memory import WHOLE, rule_of
from predictor.errors import RequestError
from predictor.files.arguments import Parser
from predictor.files.terminal import screen
from predictor.fit.suite import predict_case
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import default_system
from predictor.report.html import Asked, command
from predictor.report.html_sections import memory_section
from predictor.report.json_report import to_dict
from predictor.report.terminal import print_prediction

GIB, MIB = 2**30, 2**20
H100_MIB = 81559  # nvidia-smi


def ask(model: str = "llama-3.1-8b", gpu: str = "h100", **words: Any) -> Any:
    words = {"mode": "decode", "context_len": 1000, "artifacts": "roofline", **words}
    return predictor.predict(model, gpu, **words)


def test_context_and_workspaces_count() -> None:
    """A weight of 2 bytes each, KV of 32 layers x 8 heads x 128 x (K, V) x 2 bytes a token, and what CUDA takes."""
    memory = ask().memory
    assert memory.kv_cache == 1001 * 32 * 8 * 128 * 2 * 2
    assert memory.context == 551 * MIB
    assert memory.workspaces == 32 * MIB  # cuBLAS on Hopper
    assert ask(gpu="a100").memory.workspaces == 8.125 * MIB
    parts = memory.weights + memory.activations + memory.kv_cache + memory.context + memory.workspaces
    assert memory.total == pytest.approx(parts)
    assert to_dict(ask())["memory_gib"] == pytest.approx(parts / GIB)
    assert [ask(tp=n, execution="vllm").memory.workspaces / MIB for n in (1, 2, 4, 8)] == [32, 374, 424, 424]


def test_what_leaves_no_room_for_the_context_does_not_fit() -> None:
    """A batch whose tensors alone fill the GPU to the last hundred MiB ran out of memory and was said to fit."""
    memory = ask().memory
    each = (memory.kv_cache + memory.activations) / 1
    batch = int((memory.capacity - memory.weights - 100 * MIB) / each)
    full = ask(batch=batch).memory
    assert full.total - full.context - full.workspaces < full.capacity < full.total
    assert not full.fits
    assert full.largest_batch is not None
    assert 0 < full.largest_batch < batch


@pytest.mark.parametrize(
    ("execution", "version", "gpu", "tp", "base", "fraction"),
    [
        ("vllm", "", "h100", 1, "total", 0.92),  # vLLM 0.24.0 config/cache.py
        ("vllm", "0.24.0", "l4", 4, "total", 0.92),
        ("vllm", "0.19.1", "h100", 1, "total", 0.90),
        ("vllm", "0.6.6.post1", "h100", 8, "total", 0.90),
        ("vllm", "0.1", "h100", 1, "total", 0.90),
        ("sglang", "0.4.0", "h100", 1, "static", 0.88),  # SGLang 0.4.0 server_args.py
        ("sglang", "0.4.0", "h100", 2, "static", 0.87),
        ("sglang", "0.4.0", "h100", 4, "static", 0.85),
        ("sglang", "0.4.0", "h100", 8, "static", 0.81),
        ("sglang", "0.4.0", "h100", 16, "static", 0.79),
        # SGLang 0.5.9: 1 - (512 + 1.5 chunk + 2 graph + 128 tp) / MiB, chunk and graph by the GPU's memory
        ("sglang", "", "h100", 1, "static", 1 - (512 + 1.5 * 8192 + 2 * 256 + 128) / 81559),
        ("sglang", "0.5.9", "h100", 8, "static", 1 - (512 + 1.5 * 8192 + 2 * 512 + 1024) / 81559),
        ("sglang", "", "l4", 1, "static", 1 - (512 + 1.5 * 2048 + 2 * 24 + 128) / 23034),
        ("sglang", "", "l40s", 1, "static", 1 - (512 + 1.5 * 4096 + 2 * 32 + 128) / 46068),
        ("sglang", "", "b200-sxm", 1, "static", 1 - (512 + 1.5 * 16384 + 2 * 256 + 128) / 183359),
        ("tensorrt_llm", "", "h100", 1, "free", 0.90),
        ("eager", "", "h100", 1, "total", 1.0),
        ("fastertransformer", "", "h100", 1, "total", 1.0),
    ],
)
def test_defaults_by_engine_and_version(
    execution: str, version: str, gpu: str, tp: int, base: str, fraction: float
) -> None:
    rule = rule_of(engine(execution).memory, version)
    assert rule.base == base
    assert rule.default(load_gpu(gpu).memory_capacity, tp) == pytest.approx(fraction, abs=5.1e-4)


def test_every_rule_has_a_source_and_rules_are_in_order() -> None:
    for name in names():
        rules = engine(name).memory
        assert all(rule.source and (rule.option or rules == (WHOLE,)) for rule in rules), name
        assert list(rules) == sorted(rules, key=lambda rule: [int(n) for n in rule.version.split(".") if n]), name
    with pytest.raises(RequestError, match="version 'new'"):
        rule_of(engine("vllm").memory, "new")


def test_what_each_base_leaves_for_the_kv_cache() -> None:
    """By hand: vLLM's share holds everything, SGLang's the weights and the cache, TensorRT-LLM's is of what is free."""
    capacity = H100_MIB * MIB
    for execution, words in (("vllm", {}), ("sglang", {}), ("tensorrt_llm", {}), ("eager", {}), ("vllm", {"f": 0.5})):
        answer = ask(execution=execution, memory_fraction=words.get("f"))
        m = answer.memory
        rest = m.weights + m.activations + m.context + m.workspaces
        pool = {
            "vllm": words.get("f", 0.92) * capacity - rest,
            "sglang": 0.835 * capacity - m.weights,  # 1 - 13,440 / 81,559
            "tensorrt_llm": 0.90 * (capacity - rest),
            "eager": capacity - rest,
        }[execution]
        assert m.kv_cache_capacity == pytest.approx(pool), execution
        assert to_dict(answer)["memory"]["kv_cache_capacity_gib"] == pytest.approx(pool / GIB)
        assert m.usable <= capacity


@pytest.mark.parametrize("execution", ["eager", "vllm", "sglang", "tensorrt_llm", "fastertransformer"])
@pytest.mark.parametrize("fraction", [None, 0.35, 0.6, 1.0])
def test_fits_is_judged_against_the_share(execution: str, fraction: float | None) -> None:
    """The largest batch fills what the run may use, and one sequence more does not fit."""
    words: dict[str, Any] = {"execution": execution, "memory_fraction": fraction, "context_len": 4000}
    most = ask(batch=7, **words).memory.largest_batch
    assert most
    at, beyond = ask(batch=most, **words).memory, ask(batch=most + 1, **words).memory
    assert at.fits
    assert at.missing == 0.0
    assert at.largest_batch == most
    assert not beyond.fits
    assert beyond.missing > 0.0
    assert at.kv_cache <= at.kv_cache_capacity
    assert beyond.kv_cache > beyond.kv_cache_capacity


def test_activations_count_in_the_largest_batch_of_every_engine() -> None:
    """Prefills, whose activations are as large as their KV cache."""
    for execution in ("eager", "vllm", "sglang", "tensorrt_llm"):
        for fraction in (0.3, 0.9):
            words = {"mode": "prefill", "context_len": None, "seq_len": 2048, "execution": execution,
                     "memory_fraction": fraction}  # fmt: skip
            most = ask(batch=3, **words).memory.largest_batch
            assert most, execution
            assert ask(batch=most, **words).memory.fits, f"{execution} {fraction}: {most}"
            assert not ask(batch=most + 1, **words).memory.fits, f"{execution} {fraction}: {most}"


def test_static_leaves_the_rest_of_the_gpu_to_activations() -> None:
    """Weights and cache may take a share of 1, and then activations and context have no room."""
    memory = ask(execution="sglang", memory_fraction=1.0, batch=7).memory
    assert memory.usable == memory.capacity
    small = ask(execution="sglang", memory_fraction=0.2, batch=1).memory
    assert small.usable == pytest.approx(0.2 * small.capacity + small.activations + small.context + small.workspaces)
    assert small.weights + small.kv_cache < 0.2 * small.capacity
    assert small.fits


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (-0.5, "-0.5"), (1.01, "nearest: 1"), (90, "nearest: 0.9"), (float("nan"), "nan"), (True, "True"),
     ("0.9", "'0.9'"), (float("inf"), "inf")],
)  # fmt: skip
def test_a_fraction_that_is_none_is_one_line(value: Any, said: str) -> None:
    with pytest.raises(RequestError, match="above 0 and at most 1, such as") as caught:
        ask(memory_fraction=value)
    assert f"--memory-fraction {said}" in str(caught.value) or said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_flag_and_the_column(tmp_path: Any) -> None:
    parser = Parser(prog="predict")
    add_arguments(parser)
    parsed = parser.parse_args(["--model", "m", "--gpu", "g", "--memory-fraction", "0.85"])
    assert parsed.memory_fraction == 0.85
    (tmp_path / "m.json").write_text(
        '{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,'
        ' "intermediate_size": 512, "vocab_size": 1000}', encoding="utf-8")  # fmt: skip
    row = {"case": "x", "config": "m", "mode": "prefill", "gpu": "h100", "dtype": "bf16", "measured_ms": 1.0,
           "execution": "vllm", "seq_len": 100, "memory_fraction": 1.5}  # fmt: skip
    assert "--memory-fraction 1.5" in predict_case(row, tmp_path, None)["note"]
    assert predict_case({**row, "memory_fraction": 0.5}, tmp_path, None)["note"] == ""
    assert predict_case({**row, "memory_fraction": float("nan")}, tmp_path, None)["note"] == ""


# ------------------------------------------------------------------------------------------------------- how many GPUs


def test_the_number_of_gpus_is_a_degree_that_runs_and_fits() -> None:
    """The advised degree is built and fits; every smaller one does not divide the model, or does not fit."""
    cases = (("llama-3.1-70b", "l40s", "vllm"), ("llama-3.1-70b", "h100", "sglang"), ("gpt3", "h100", "eager"),
             ("llama-3.1-8b", "t4", "eager"), ("deepseek-v2-lite", "l4", "vllm"))  # fmt: skip
    for model, gpu, execution in cases:
        words = {"execution": execution, "dtype": "fp16" if gpu == "t4" else "bf16", "context_len": 500}
        memory = ask(model, gpu, **words).memory
        held = memory.smallest_gpu_count
        assert held is not None, model
        assert held > 1, model
        assert not memory.fits
        assert f"--tp {held}" in memory.advice
        assert ask(model, gpu, tp=held, **words).memory.fits, f"{model} on {held} {gpu}"
        for fewer in range(2, held):
            with suppress(RequestError):  # it does not divide the model
                assert not ask(model, gpu, tp=fewer, **words).memory.fits, f"{model} fits on {fewer} {gpu}"
        assert ask(model, gpu, tp=held, **words).memory.smallest_gpu_count == held


def test_where_no_degree_holds_it_that_is_said() -> None:
    """DeepSeek-V3 in bf16 is 1.3 TB: a node of eight H100 has 0.64."""
    memory = ask("deepseek-v3", "h100", execution="vllm", dtype="bf16").memory
    assert memory.smallest_gpu_count is None
    assert "No --tp makes it fit" in memory.advice
    assert f"a node of {default_system(load_gpu('h100')).id}" in memory.advice
    assert f"split evenly, it would need {memory.even_gpu_count} of these GPUs" in memory.advice
    assert 17 <= memory.even_gpu_count <= 21
    train = ask("llama-3.1-8b", "h100", mode="train", context_len=None, seq_len=512).memory
    assert train.smallest_gpu_count is None
    assert "No single change makes it fit" in train.advice and "split evenly, it would need 2" in train.advice
    more = ask("llama-3.1-8b", "h100", mode="train", context_len=None, seq_len=512, batch=8).memory
    assert more.advice.startswith("It fits with --dp 2 --shard zero3")


def test_what_fits_needs_one_gpu_or_fewer_than_it_has() -> None:
    assert ask().memory.smallest_gpu_count == 1
    assert ask().memory.advice == ""
    many = ask(tp=8, execution="vllm").memory
    assert many.smallest_gpu_count == 1
    assert many.advice == ""


# ------------------------------------------------------------------------------------------------------------ reports


def test_reports_show_the_rows_and_the_share(capsys: Any) -> None:
    answer = ask("llama-3.1-70b", execution="vllm")
    print_prediction(answer, screen())
    text = capsys.readouterr().out
    assert "CUDA context 551.0 MiB, workspaces 32.0 MiB" in text
    assert "may use     73.3 GiB: 0.92 of the GPU's memory" in text
    assert "default of vLLM 0.24 gpu_memory_utilization" in text
    assert "It fits on 2 of these GPUs (--tp 2)." in text
    page = str(memory_section(answer))
    for words in ("CUDA context", "workspaces", "0.92 of the GPU"):
        assert words in page
    document = json.loads(json.dumps(to_dict(answer)))
    memory = document["memory"]
    assert memory["memory_fraction"] == 0.92
    assert memory["memory_fraction_base"] == "total"
    assert memory["smallest_gpu_count"] == 2
    assert memory["usable_gib"] == pytest.approx(0.92 * H100_MIB / 1024)
    assert document["fits"] is False
    asked = to_dict(ask(execution="vllm", memory_fraction=0.5))["memory"]
    assert asked["memory_fraction_default_of"] is None


def test_the_page_asks_again_with_the_same_share() -> None:
    for words, shown in (
        ({"execution": "vllm"}, "--memory-fraction 0.92"), ({"execution": "eager"}, ""),
        ({"execution": "sglang", "memory_fraction": 1.0}, "--memory-fraction 1.0"),
    ):  # fmt: skip
        typed = command(ask(**words), Asked("llama-3.1-8b", "h100"))
        assert shown in typed
        assert ("--memory-fraction" in typed) == bool(shown)
