"""Serving: ragged batches, engines, the host's time, latency of tokens, KV cache and the batch that fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import predictor
from predictor.engines import EAGER, Engine, engine
from predictor.engines.pytorch.engine import COMPILE
from predictor.errors import RequestError, UnsupportedError
from predictor.fit.suite import predict_case
from predictor.graph import Block, Graph, Node
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import cold_weights_s, predict_kernels
from predictor.models.built import Step, build, kv_bytes_per_token, load_config
from predictor.ops.attention import Attention
from predictor.ops.base import Op
from predictor.ops.gemm import Gemm
from predictor.ops.moe import MoE
from predictor.passes.fuse import fuse
from predictor.report.json_report import to_dict
from predictor.request.parse import ragged_lengths
from predictor.simulate.answer import Prediction
from predictor.simulate.plan import sample_contexts
from predictor.simulate.stage import Plan, Stage
from predictor.simulate.times import Operators, TimedStage

ENGINES = ("cuda_graph", "vllm", "sglang", "tensorrt_llm", "fastertransformer")
LENS = (12, 400, 3000)


def ask(model: str = "llama-3.1-8b", gpu: str = "h100", execution: str = "vllm", **words: Any) -> Prediction:
    return predictor.predict(model, gpu, execution=execution, **words)


# ---------------------------------------------------------------------------------------------------- ragged batches


@settings(max_examples=40, deadline=None)
@given(lens=st.lists(st.integers(1, 9000), min_size=1, max_size=30), mode=st.sampled_from(["prefill", "decode"]))
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-2-9b", "deepseek-v2-lite", "mixtral-8x7b"])
def test_flops_of_a_ragged_batch_are_those_of_its_sequences(model: str, lens: list[int], mode: str) -> None:
    config = load_config(model)
    base = {"mode": mode, "act_dtype": "bf16", "attention": "flash", "logits": "last"}

    def flops(sequences: list[int], ragged: bool) -> float:
        decode = mode == "decode"
        sizes = (1, max(sequences)) if decode else (max(sequences), 0)
        step = Step(batch=len(sequences), seq_len=sizes[0], context_len=sizes[1],
                    lens=tuple(sequences) if ragged else (), **base)  # type: ignore[arg-type]  # fmt: skip
        return fuse(build(config, step), COMPILE).flops()

    assert flops(lens, True) == pytest.approx(sum(flops([n], False) for n in lens), rel=1e-9)


@pytest.mark.parametrize("mode", ["prefill", "decode", "generate"])
@pytest.mark.parametrize("execution", [*ENGINES, "eager"])
@pytest.mark.parametrize("attention", ["flash", "math"])
def test_equal_lengths_are_a_plain_batch(mode: str, execution: str, attention: str) -> None:
    words = {"mode": mode, "output_len": 9 if mode == "generate" else 0, "attention": attention}
    ragged = ask(prompt_lens=(640,) * 6, execution=execution, **words)
    length = {"context_len": 640} if mode == "decode" else {"seq_len": 640}
    plain = ask(batch=6, execution=execution, **length, **words)
    assert ragged.latency_s == pytest.approx(plain.latency_s, rel=1e-9)
    assert ragged.flops == pytest.approx(plain.flops)
    assert ragged.memory.kv_cache == pytest.approx(plain.memory.kv_cache)
    assert ragged.tokens == plain.tokens


@pytest.mark.parametrize("mode", ["prefill", "decode"])
@pytest.mark.parametrize("lens", [LENS, (1000, 999), (7, 8000, 8000, 5), tuple(range(100, 1000, 17))])
def test_a_ragged_batch_lies_between_its_parts_and_their_sum(mode: str, lens: tuple[int, ...]) -> None:
    def alone(n: int) -> float:
        return ask(mode=mode, **({"context_len": n} if mode == "decode" else {"seq_len": n})).latency_s

    together = ask(mode=mode, prompt_lens=lens).latency_s
    # Where a prompt fills the GPU by itself, products of twice the rows take 2.05 times as long in the tables. And
    # power holds the run of both, not the one of 20 ms (`predictor.simulate.sustained`).
    assert max(alone(n) for n in lens) * 0.98 < together < 1.03 * sum(alone(n) for n in lens)


def test_ragged_attention_is_one_kernel_a_layer() -> None:
    rows = {row.op: row for row in ask(mode="generate", prompt_lens=LENS, output_len=3).breakdown}
    layers = load_config("llama-3.1-8b").layers
    assert rows["attention"].count == pytest.approx(layers, rel=0.05)
    assert rows["attention decode"].count == pytest.approx(2 * layers, rel=0.05)


def test_ragged_memory_and_tokens() -> None:
    answer = ask(mode="generate", prompt_lens=LENS, output_len=5)
    each = kv_bytes_per_token(load_config("llama-3.1-8b"), "bf16")
    assert answer.memory.kv_cache == pytest.approx(each * (sum(LENS) + 3 * 4))
    assert answer.workload.batch == 3
    assert answer.tokens == 15
    assert ask(mode="prefill", prompt_lens="12 400 3000").tokens == sum(LENS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"prompt_lens": "1,a"}, "'a'"),
        ({"prompt_lens": "5,-6"}, "'-6'"),
        ({"prompt_lens": "0,0"}, "--prompt-lens 0,0: every sequence is empty"),
        ({"prompt_lens": ""}, "12,400,3000"),
        ({"prompt_lens": (5, True)}, "'True'"),
        ({"prompt_lens": "5," + "9" * 30}, "--prompt-lens"),
        ({"prompt_lens": "5,6", "batch": 3}, "--batch 3"),
        ({"prompt_lens": "5,6", "batch": 1}, "--batch 1"),
        ({"prompt_lens": "5,6", "seq_len": 6}, "--seq-len 6"),
        ({"prompt_lens": "5,6", "mode": "decode", "context_len": 6}, "--context-len 6"),
        ({"prompt_lens": "5,6", "mode": "train", "execution": "eager"}, "train"),
        ({"prompt_lens": "5,6", "model": "t5-large"}, "encoder-decoder"),
        ({"prompt_lens": "5,1100", "model": "gpt2"}, "1024"),
        ({"prompt_lens": "1," * 10_001}, "at most 10,000"),
        ({"mode": "forward", "step_overhead": "5ms"}, "--step-overhead"),
        ({"step_overhead": "5"}, "has no unit"),
        ({"step_overhead": -1.0}, "--step-overhead"),
        ({"step_overhead": "1h"}, "--step-overhead"),
    ],
)
def test_bad_requests_end_in_one_line(words: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        ask(**({"mode": "prefill"} | words))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lengths_from_text_and_numbers() -> None:
    assert ragged_lengths("12, 400,3000") == ragged_lengths("12 400 3000") == ragged_lengths([12, 400, 3000]) == LENS


# ---------------------------------------------------------------------------------------------------- engines and hosts


@pytest.mark.parametrize("execution", ENGINES)
def test_engines_capture_decode_and_launch_prefill(execution: str) -> None:
    prefill = ask(mode="prefill", seq_len=256, execution=execution)
    decode = ask(mode="decode", context_len=256, execution=execution, step_overhead=0)
    assert (prefill.cpu_busy_s > 0) == (execution != "cuda_graph")
    assert (decode.cpu_busy_s > 0) == (execution == "fastertransformer")
    slow = ask(mode="prefill", seq_len=16, execution=execution, launch_overhead="500us")
    assert (slow.latency_s > 3 * slow.gpu_busy_s) == (execution != "cuda_graph")


DECODE: dict[str, Any] = {"mode": "decode", "context_len": 4096, "batch": 32}


def test_engines_run_their_own_kernels() -> None:
    kernels = {name: ask(**DECODE, execution=name) for name in ENGINES}
    assert {name: run.workload.engine.kernels for name, run in kernels.items()} == {
        "cuda_graph": "vllm", "vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm",
        "fastertransformer": "trtllm",
    }  # fmt: skip
    sampled = sum(
        row.latency_s for row in ask(**DECODE, execution="vllm", top=99).nodes if row.name.startswith("sampler")
    )
    assert kernels["cuda_graph"].latency_s + sampled == pytest.approx(kernels["vllm"].latency_s) and sampled > 0
    assert len({kernels[name].latency_s for name in ("vllm", "sglang", "tensorrt_llm")}) == 3


def test_sglang_decodes_on_an_a100_with_the_kernels_nearest_to_flashinfers() -> None:
    """The A100's table under SGLang's name holds FlashAttention-3, which it runs by default on Hopper alone."""

    def attention(gpu: str, execution: str, mode: str) -> float:
        words = {"context_len": 4096} if mode == "decode" else {"seq_len": 4096}
        answer = ask(gpu=gpu, execution=execution, mode=mode, batch=8, **words)
        return next(row.latency_s for row in answer.breakdown if row.op.startswith("attention"))

    assert attention("a100", "sglang", "decode") == attention("a100", "vllm", "decode")
    assert attention("a100", "sglang", "prefill") != attention("a100", "vllm", "prefill")
    assert attention("h100", "sglang", "decode") != attention("h100", "vllm", "decode")


def timed(graph: Graph, gpu: GPUSpec, runs: Engine) -> TimedStage:
    """A captured pass on an engine."""
    ((found,),) = Operators(gpu, runs, load_artifacts()).time([Plan((Stage(graph, "forward"),))])
    return found


def test_weights_of_a_pass_come_from_memory() -> None:
    """8 MiB fit an L40S' L2 twelve times, and are timed from there; in a model every layer has others."""
    gpu, op = load_gpu("l40s"), Gemm("bf16", 1, 2048, 2048)
    graph = Graph((Block("layer", (Node(op, "linear"),), 40),))
    alone = predict_kernels([op], gpu, load_artifacts(), "vllm").latency_s[0]
    needed = 2.0 * op.n * op.k / gpu.memory_bandwidth
    served, eager = timed(graph, gpu, engine("vllm")), timed(graph, gpu, EAGER)
    assert alone < needed
    assert served.timeline.total_s == pytest.approx(40 * needed)
    assert eager.timeline.total_s == pytest.approx(40 * alone)
    large = Gemm("bf16", 1, 8192, 8192)
    assert cold_weights_s([large], gpu)[0] < predict_kernels([large], gpu, load_artifacts(), "vllm").latency_s[0]
    assert cold_weights_s([Gemm("bf16", 1, 2048, 2048, 8, "bmm")], gpu).tolist() == [0.0]
    half = Gemm("bf16", 1, 2048, 2048, quant="int8_wo")
    assert 0.5 * needed <= cold_weights_s([half], gpu)[0] < 0.6 * needed


@pytest.mark.parametrize(
    "op",
    [
        Attention("bf16", 16, 20, 20, 1, 1000, 64),  # 82 MB of KV cache
        MoE("bf16", 1, 2048, 768, 128, 8),  # 8 of 128 experts, 75 MB
    ],
)
@pytest.mark.parametrize("gpu", ["l40s", "rtx-pro-6000", "rtx-4090", "b200", "h100"])
def test_kv_cache_and_experts_of_a_pass_come_from_memory(op: Op, gpu: str) -> None:
    """A kernel that reads the same bytes again finds them in a large L2; a pass has all other layers between."""
    board = load_gpu(gpu)
    graph = Graph((Block("layer", (Node(op, "layer"),), 40),))
    served = timed(graph, board, engine("vllm"))
    assert served.timeline.total_s >= 39.99 * op.bytes_read() / board.memory_bandwidth


def test_step_overhead_is_added_to_every_step() -> None:
    words: dict[str, Any] = {"mode": "generate", "seq_len": 128, "output_len": 20}
    without, slow = ask(**words), ask(step_overhead="5 ms", **words)
    assert slow.latency_s - without.latency_s == pytest.approx(20 * 5e-3)
    assert slow.ttft_s is not None and without.ttft_s is not None
    assert slow.ttft_s - without.ttft_s == pytest.approx(5e-3)
    assert slow.cpu_busy_s - without.cpu_busy_s == pytest.approx(20 * 5e-3)


# ---------------------------------------------------------------------------------------------------- tokens and memory


def test_latency_of_tokens() -> None:
    prefill = ask(mode="prefill", seq_len=256, batch=2)
    decode = ask(mode="decode", context_len=256, batch=2)
    whole = ask(mode="generate", seq_len=256, output_len=2, batch=2)
    assert (prefill.ttft_s, prefill.tpot_s) == (prefill.latency_s, None)
    assert (decode.ttft_s, decode.tpot_s) == (None, decode.latency_s)
    assert whole.ttft_s == pytest.approx(prefill.latency_s)
    assert whole.tpot_s == pytest.approx(decode.latency_s)
    assert ask(mode="generate", seq_len=256, output_len=1).tpot_s is None
    drafts = predictor.predict(
        "deepseek-v3",
        "h200",
        mode="generate",
        execution="vllm",
        tp=8,
        seq_len=256,
        output_len=1,
        drafts=1,
        acceptance=0.8,
    )
    assert drafts.tpot_s is None and drafts.phases_s["decode"] == 0.0
    data = to_dict(whole)
    assert data["ttft_ms"] == pytest.approx(prefill.latency_ms)
    assert data["tokens_per_s_per_gpu"] == data["tokens_per_s"]


@settings(deadline=None)
@given(steps=st.integers(0, 5000))
def test_sampled_steps_stand_for_every_step(steps: int) -> None:
    """Weights sum to the steps, and a line through the context comes out exactly."""
    grown, weights = sample_contexts(steps)
    assert sum(weights) == pytest.approx(steps)
    assert sum(w * g for w, g in zip(weights, grown, strict=True)) == pytest.approx(sum(range(steps)))


def test_a_growing_cache_is_close_to_every_single_step() -> None:
    steps = 60
    whole = ask(mode="generate", seq_len=900, output_len=steps + 1, batch=16)
    single = [ask(mode="decode", context_len=900 + i, batch=16).latency_s for i in range(steps)]
    assert whole.phases_s["decode"] == pytest.approx(sum(single), rel=0.01)


@pytest.mark.parametrize("words", [
    {"mode": "decode", "context_len": 3000}, {"mode": "generate", "seq_len": 2000, "output_len": 100},
    {"mode": "prefill", "seq_len": 4000}, {"mode": "generate", "seq_len": 2000, "output_len": 100, "tp": 2},
])  # fmt: skip
def test_the_largest_batch_is_the_largest_that_fits(words: dict[str, Any]) -> None:
    most = ask(batch=3, **words).memory.largest_batch
    assert most
    assert ask(batch=most, **words).memory.fits
    beyond = ask(batch=most + 1, **words).memory
    assert not beyond.fits
    assert beyond.largest_batch == most
    assert f"{most} would fit" in beyond.reason


def test_why_it_does_not_fit() -> None:
    memory = ask("llama-3.1-70b", mode="decode", context_len=10).memory
    assert memory.largest_batch == 0
    assert "the weights alone" in memory.reason
    assert "a GPU's weights" in ask("gpt3", mode="decode", context_len=10, tp=2).memory.reason
    assert ask(mode="decode", context_len=10).memory.reason == ""
    assert "KV cache of 4000 sequences does not; " in ask(mode="decode", context_len=2000, batch=4000).memory.reason


# ---------------------------------------------------------------------------------------------------- suites


def test_a_ragged_row_of_a_suite(tmp_path: Any) -> None:
    """Decode finds the prompts and what was generated so far, so that the mean is the row's context_len."""
    (tmp_path / "m.json").write_text(
        '{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,'
        ' "intermediate_size": 512, "vocab_size": 1000}', encoding="utf-8")  # fmt: skip
    row = {
        "case": "x", "config": "m", "mode": "decode", "gpu": "h100", "dtype": "bf16", "measured_ms": 1.0,
        "execution": "sglang", "attention": "flash", "prompt_lens": "100 300", "context_len": 250, "global_batch": 2,
        "tp": 2, "num_gpus": 2, "seq_len": 300, "output_len": 101,
    }  # fmt: skip
    found = predict_case(row, tmp_path, None)
    assert found["note"] == ""
    config = load_config(tmp_path / "m.json")
    same = predictor.predict(config, "h100", mode="decode", prompt_lens=(150, 350), execution="sglang", tp=2)
    assert found["predicted_ms"] == pytest.approx(same.latency_ms)
    slower = predict_case(row | {"step_overhead_ms": 3.0}, tmp_path, None)
    assert slower["predicted_ms"] == pytest.approx(same.latency_ms + 3.0)
    assert "--batch 3" in predict_case(row | {"global_batch": 3}, tmp_path, None)["note"]
    over_nodes = predict_case(row | {"gpus_per_node": 1}, tmp_path, None)
    assert over_nodes["note"] == "" and over_nodes["predicted_ms"] > found["predicted_ms"]


# ---------------------------------------------------------------------------------------------------- many at once


def test_many_at_once_are_the_same_forecasts() -> None:
    requests: list[dict[str, Any]] = [
        {"model": model, "gpu": gpu, "execution": execution, "tp": tp, **words}
        for model in ("llama-3.1-8b", "mixtral-8x7b", "gpt2")
        for gpu in ("h100", "a100")
        for execution in ("vllm", "eager", "fastertransformer")
        for tp in (1, 2)
        for words in (
            {"mode": "generate", "seq_len": 200, "output_len": 300, "batch": 4},
            {"mode": "prefill", "prompt_lens": (30, 70, 200)},
            {"mode": "decode", "context_len": 999, "batch": 7},
            {"mode": "forward", "seq_len": 128},
        )
    ]
    requests += [
        {"model": model, "gpu": "h100", "mode": "train", "batch": 8, "seq_len": 64, "execution": execution, **words}
        for model in ("gpt2", "switch-base-16")
        for execution in ("eager", "compile", "cuda_graph")
        for words in ({}, {"micro_batch": 2}, {"optimizer": "none"}, {"optimizer": "sgd", "dtype": "fp32"})
    ]
    for one, words in zip(predictor.predict_many(requests), requests, strict=True):
        same = predictor.predict(**words)
        for field in ("latency_s", "gpu_busy_s", "cpu_busy_s", "flops", "mfu", "tokens"):
            assert getattr(one, field) == pytest.approx(getattr(same, field), rel=1e-9), (words, field)
        assert one.memory == same.memory
        assert one.phases_s == pytest.approx(same.phases_s)


def test_many_refuse_what_one_refuses() -> None:
    with pytest.raises(RequestError, match="--batch 0"):
        predictor.predict_many([{"model": "gpt2", "gpu": "h100", "batch": 0}])
    with pytest.raises(UnsupportedError, match="--cp 2: not built yet for --mode prefill"):
        predictor.predict_many([{"model": "gpt2", "gpu": "h100", "mode": "prefill", "cp": 2}])
    assert predictor.predict_many([]) == []


def test_fastertransformer_decodes_with_attention_in_one_kernel() -> None:
    answer = ask(mode="generate", seq_len=64, output_len=3, execution="fastertransformer", attention="math")
    rows = {row.op: row.count for row in answer.breakdown}
    layers = load_config("llama-3.1-8b").layers
    assert (rows["attention decode"], rows["bmm"]) == (2 * layers, 2 * layers)


def test_what_bounds_a_run_counts_operators_not_classes() -> None:
    """In generate a class holds the compute-bound prefill and the memory-bound decode: both must show."""
    answer = predictor.predict(
        model="llama-3.1-8b", gpu="h100", mode="generate", batch=8, seq_len=2048, output_len=64, execution="vllm"
    )
    parts = answer.bound_shares
    assert sum(parts.values()) == pytest.approx(1.0)
    assert list(parts.values()) == sorted(parts.values(), reverse=True)
    assert parts["compute"] > 0.1 < parts["memory"]
    for row in answer.breakdown:
        assert sum(row.bounds.values()) == pytest.approx(row.latency_s)
        assert row.bounds[row.bound] == max(row.bounds.values())


def test_the_cache_of_a_decode_step_comes_from_memory() -> None:
    """A table reads one cache again and again: what fits L2 comes from there, in a pass it does not.

    LLMServingSim's layers of vLLM on RTX PRO 6000, whose L2 has 128 MiB: 64 sequences of 512 tokens take 127 us.
    """
    gpu = load_gpu("rtx-pro-6000-server")
    fits, large = (Attention("bf16", 64, 32, 8, 1, kv, 128) for kv in (512, 16384))
    for op, most in ((fits, 3.0), (large, 1.03)):
        alone, served = (
            predict_kernels([op], gpu, load_artifacts(), "vllm", cold=c).latency_s[0] for c in (False, True)
        )
        assert cold_weights_s([op], gpu)[0] <= served
        assert alone <= served <= most * alone
    alone, served = (predict_kernels([fits], gpu, load_artifacts(), "vllm", cold=c).latency_s[0] for c in (False, True))
    assert abs(np.log(served / 127.4e-6)) < 0.15 * abs(np.log(alone / 127.4e-6))
    prompt = Attention("bf16", 1, 32, 8, 512, 512, 128)  # was written a moment ago
    one, other = (predict_kernels([prompt], gpu, load_artifacts(), "vllm", cold=c).latency_s[0] for c in (False, True))
    assert one == other


@pytest.mark.parametrize("gpu", ["h100-sxm", "a100-sxm-80gb", "l40s", "l4", "mi300x"])
def test_a_cold_cache_never_hurries(gpu: str) -> None:
    ops = [Attention("bf16", b, 32, 8, 1, kv, 128) for b in (1, 8, 64, 256) for kv in (128, 1024, 8192)]
    warm, cold = (
        predict_kernels(ops, load_gpu(gpu), load_artifacts(), "vllm", cold=c).latency_s for c in (False, True)
    )
    assert (cold >= warm * (1 - 1e-12)).all()
    assert (cold > 1.3 * warm).any() == (gpu in ("l40s", "l4"))  # whose L2 is much faster than their memory
