"""Counts by hand of what a small mistake in the product would change and no other test would notice.

Where a forecast shows it, a forecast is asked: with the set "roofline" an operator's seconds are its bytes over the
GPU's bandwidth or its FLOP over its peak, so both can be counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import predictor
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import load_system
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import make_batch, predict_kernels
from predictor.kernels.collective.core import Constants
from predictor.kernels.collective.estimator import Collectives
from predictor.kernels.interval import DISTANCES, Intervals
from predictor.models.built import load_config
from predictor.ops import Attention, Dropout, Elementwise, Gemm, MoE, Norm, OptimizerStep
from predictor.ops.collective import over
from predictor.ops.roofline import bound_name, roofline

H100 = load_gpu("h100")
LLAMA = load_config("llama-3.1-8b")


def seconds_of(name: str, model: Any = "llama-3.1-8b", **words: Any) -> float:
    """Seconds of all nodes called ``name`` in a forecast by the roofline alone."""
    answer = predictor.predict(model, H100, artifacts="roofline", dtype="bf16", top=10_000, **words)
    found = [node.latency_s for node in answer.nodes if node.name == name]
    assert found, f"no {name} among {sorted({node.name for node in answer.nodes})}"
    return sum(found)


# ------------------------------------------------------------------------------------------------------------ operators


def test_the_gradients_of_a_batched_product_have_the_shapes_of_its_operands() -> None:
    a, b = Gemm("bf16", 3, 5, 7, batch=2, kind="bmm").backward()
    assert isinstance(a, Gemm) and isinstance(b, Gemm)
    assert (a.m, a.n, a.k) == (3, 7, 5)  # dA (3, 7) = dC (3, 5) B^T (5, 7)
    assert (b.m, b.n, b.k) == (7, 5, 3)  # dB (7, 5) = A^T (7, 3) dC (3, 5)
    assert (a.batch, b.batch, a.kind, b.kind) == (2, 2, "bmm", "bmm")


def test_the_gradients_of_a_linear_layer_are_those_of_input_and_weight() -> None:
    x, w = Gemm("bf16", 3, 5, 7).backward()
    assert isinstance(x, Gemm) and isinstance(w, Gemm)
    assert (x.m, x.n, x.k) == (3, 7, 5)
    assert (w.m, w.n, w.k) == (5, 7, 3)  # a weight lies as (n, k)


def test_attention_backward_has_three_products_of_keys_and_two_of_values() -> None:
    (back,) = Attention("bf16", 1, 4, 4, 128, 128, 192, 128, causal=False).backward()
    assert back.flops() == 2 * 4 * 128 * 128 * (3 * 192 + 2 * 128)  # S again, dQ, dK; dV, dP


def test_a_window_is_seen_by_every_query_of_a_prompt() -> None:
    op = Attention("bf16", 1, 8, 2, 16, 1000, 64, window=100)
    assert op.bytes_read() == (8 * 16 * 64 + 2 * (100 + 16 - 1) * 128) * 2


def test_experts_of_a_gpu_are_its_part_of_their_width() -> None:
    whole, part = (MoE("bf16", 64, 1024, 2048, 8, 2, tp=tp) for tp in (1, 4))
    assert whole.flops() == 2 * 64 * 2 * 3 * 1024 * 2048
    assert part.flops() == whole.flops() / 4
    assert MoE("bf16", 64, 1024, 2048, 8, 2, gated=False).flops() == whole.flops() * 2 / 3


def test_dropout_writes_a_mask_of_a_byte_an_element() -> None:
    op = Dropout("bf16", 1000)
    assert (op.bytes_read(), op.bytes_written()) == (2000, 3000)


def test_attention_backward_reads_output_and_gradient_and_writes_three_gradients() -> None:
    (back,) = Attention("bf16", 2, 8, 4, 128, 128, 64).backward()
    query, keys = 2 * 8 * 128 * 64 * 2, 2 * 4 * 128 * 128 * 2
    assert (back.bytes_read(), back.bytes_written()) == (query + keys + 2 * query, query + keys)


def test_norm_backward_reads_input_gradient_and_statistics() -> None:
    (back,) = Norm("bf16", 100, 64).backward()
    assert back.bytes_read() == (2 * 100 * 64 + 64) * 2 + 2 * 100 * 4
    assert back.bytes_written() == (100 * 64 + 2 * 64) * 2


def test_bytes_between_nodes() -> None:
    size, system = 1 << 20, load_system("dgx-h100")
    assert over(system, "all_reduce", "bf16", size, 32).net_bytes() == 2 * size * 3 / 4
    assert over(system, "all_gather", "bf16", size, 32).net_bytes() == size * 3 / 4
    assert over(system, "all_reduce", "bf16", size, 8).net_bytes() == 0


# ------------------------------------------------------------------------------------------------------------- roofline


def test_every_byte_passes_the_ports_of_l2() -> None:
    op = Elementwise("fp32", "add", H100.l2_bytes // 16)  # 3/4 of L2
    assert roofline([op], H100).lower_bound_s[0] == pytest.approx(op.bytes_moved() / H100.l2_bandwidth)


def test_only_what_l2_cannot_have_held_waits_for_dram() -> None:
    op = Elementwise("fp32", "add", 1 << 28)
    beyond = (3 * 4 * (1 << 28) - H100.l2_bytes) / H100.memory_bandwidth
    assert roofline([op], H100).lower_bound_s[0] == pytest.approx(max(beyond, op.bytes_moved() / H100.l2_bandwidth))
    assert beyond > op.bytes_moved() / H100.l2_bandwidth


@pytest.mark.parametrize(
    ("compute", "dram", "latency", "link", "said"),
    [
        (3e-6, 1e-6, 11e-6, 0.0, "compute"), (3e-6, 1e-6, 13e-6, 0.0, "latency"), (6e-6, 1e-6, 25e-6, 0.0, "compute"),
        (1e-6, 3e-6, 4e-6, 0.0, "memory"), (0.0, 1e-6, 60e-6, 10e-6, "latency"), (0.0, 1e-6, 30e-6, 10e-6, "link"),
        (0.0, 1e-6, 120e-6, 10e-6, "link"), (1e-6, 1e-6, 2e-6, 0.0, "compute"),
    ],
)  # fmt: skip
def test_what_bounds_an_operator(compute: float, dram: float, latency: float, link: float, said: str) -> None:
    assert bound_name(compute, dram, latency, link) == said


# ------------------------------------------------------------------------------------------------------------ forecasts


def test_keys_and_values_both_go_into_the_cache() -> None:
    tokens = 4 * 512
    moved = tokens * 2 * LLAMA.kv_heads * LLAMA.head_dim * (2 + 2)  # read and written, keys and values
    found = seconds_of("cache append", mode="prefill", execution="compile", batch=4, seq_len=512)
    assert found == pytest.approx(LLAMA.layers * moved / H100.memory_bandwidth)


def test_eager_decode_copies_the_whole_cache_of_keys_and_of_values() -> None:
    moved = 4 * 513 * 2 * LLAMA.kv_heads * LLAMA.head_dim * (2 + 2)
    found = seconds_of("cache append", mode="decode", execution="eager", batch=4, context_len=512)
    assert found == pytest.approx(LLAMA.layers * moved / H100.memory_bandwidth)


def test_a_ragged_batch_is_launched_like_a_plain_one() -> None:
    words: dict[str, Any] = {"mode": "prefill", "execution": "eager", "attention": "flash"}
    ragged = predictor.predict(LLAMA, H100, prompt_lens=(100, 200, 300), **words)
    plain = predictor.predict(LLAMA, H100, batch=3, seq_len=300, **words)
    assert ragged.cpu_busy_s == pytest.approx(plain.cpu_busy_s)


def test_only_the_last_position_of_a_prompt_goes_through_the_head() -> None:
    moved = (4 * 4096 + 4096 * 128256 + 4 * 128256) * 2
    found = seconds_of("lm head", mode="prefill", execution="compile", batch=4, seq_len=512)
    assert found == pytest.approx(moved / H100.memory_bandwidth)
    every = seconds_of("lm head", mode="forward", execution="compile", batch=4, seq_len=512)
    assert every == pytest.approx(2 * 4 * 512 * 4096 * 128256 / H100.peak_flops("bf16"))


def test_bytes_of_the_kv_cache_are_keys_and_values_of_the_kv_heads() -> None:
    answer = predictor.predict(LLAMA, H100, mode="decode", batch=3, context_len=1000, dtype="bf16")
    assert answer.memory.kv_cache == 3 * 1001 * 32 * 2 * 8 * 128 * 2
    latent = predictor.predict("deepseek-v3", H100, mode="decode", batch=3, context_len=1000, dtype="bf16")
    assert latent.memory.kv_cache == 3 * 1001 * 61 * (512 + 64) * 2


def test_a_layer_with_a_window_keeps_only_the_window() -> None:
    config = load_config("gemma-3-1b")
    windows = [window for _, window, count in config.layer_groups() for _ in range(count)]
    assert {512, 0} <= set(windows)
    kept = sum(min(5001, window) if window else 5001 for window in windows)
    answer = predictor.predict(config, H100, mode="decode", context_len=5000, dtype="bf16")
    assert answer.memory.kv_cache == kept * 2 * config.kv_heads * config.head_dim * 2


def test_adam_keeps_two_fp32_moments_and_gradients_are_as_wide_as_the_weights() -> None:
    count = predictor.predict("gpt2", H100, mode="train").parameters
    for dtype, gradient in (("fp32", 4), ("bf16", 2)):
        memory = predictor.predict("gpt2", H100, mode="train", dtype=dtype, batch=2, seq_len=64).memory
        assert (memory.optimizer, memory.gradients) == (8 * count, gradient * count)
    plain = predictor.predict("gpt2", H100, mode="train", dtype="fp32", optimizer="sgd", batch=2, seq_len=64).memory
    assert (plain.optimizer, plain.weights) == (0, 4 * count)


def test_decode_steps_of_a_generation_are_those_at_their_contexts() -> None:
    """Nine steps after the prompt's token: the sum over every context, to what a line between four of them leaves."""
    words: dict[str, Any] = {"execution": "cuda_graph", "dtype": "bf16", "batch": 8}
    whole = predictor.predict(LLAMA, H100, mode="generate", seq_len=600, output_len=10, **words)
    steps = [predictor.predict(LLAMA, H100, mode="decode", context_len=600 + i, **words).latency_s for i in range(9)]
    assert whole.phases_s["decode"] == pytest.approx(sum(steps), rel=1e-3)
    assert whole.phases_s["tpot"] == pytest.approx(sum(steps) / 9, rel=1e-3)
    assert whole.tokens == 8 * 10


def test_defaults_of_a_request() -> None:
    asked = predictor.predict(LLAMA, H100).workload
    assert (asked.seq_len, asked.batch, asked.launch_overhead_s) == (2048, 1, 6e-6)
    decode = predictor.predict(LLAMA, H100, mode="decode").workload
    assert decode.serving is not None and decode.serving.context_len == 2047
    assert predictor.predict("gpt2", H100, mode="generate", output_len=24).workload.seq_len == 1024 - 23


def test_a_step_of_training_is_its_micro_batches_and_one_update() -> None:
    words: dict[str, Any] = {"mode": "train", "dtype": "bf16", "seq_len": 128, "execution": "cuda_graph"}
    four = predictor.predict("gpt2", H100, batch=8, micro_batch=2, **words)
    assert four.latency_s == pytest.approx(sum(four.phases_s.values()))
    assert four.flops == pytest.approx(4 * predictor.predict("gpt2", H100, batch=2, **words).flops, rel=1e-2)
    assert four.phases_s["optimizer"] == predictor.predict("gpt2", H100, batch=2, **words).phases_s["optimizer"]


def test_totals_of_a_forecast() -> None:
    words: dict[str, Any] = {"dtype": "bf16", "execution": "cuda_graph", "attention": "flash"}
    decode = predictor.predict(LLAMA, H100, mode="decode", batch=16, context_len=512, **words)
    assert (decode.tokens, decode.sequences) == (16, 16)
    assert decode.tokens_per_s == pytest.approx(16 / decode.latency_s)
    assert decode.mfu == pytest.approx(decode.flops / decode.latency_s / H100.peak_flops("bf16"))
    shared = predictor.predict(LLAMA, H100, mode="decode", batch=16, context_len=512, tp=2, **words)
    assert shared.mfu == pytest.approx(shared.flops / 2 / shared.latency_s / H100.peak_flops("bf16"))
    whole = predictor.predict(LLAMA, H100, mode="generate", seq_len=512, output_len=8, batch=4, **words)
    assert whole.memory.kv_cache == 4 * (512 + 7) * 32 * 2 * 8 * 128 * 2  # the last token is not fed back
    assert whole.phases_s["ttft"] == whole.phases_s["prefill"]
    slow = predictor.predict(LLAMA, H100, mode="decode", batch=16, context_len=512, step_overhead="3ms", **words)
    assert slow.latency_s == pytest.approx(decode.latency_s + 3e-3)


# ----------------------------------------------------------------------------------------------------------- estimators


def test_every_kernel_of_an_operator_has_its_fixed_time() -> None:
    """Foreach Adam runs seven kernels where fused Adam runs one; of a thousand parameters that is all that counts."""
    ops = [OptimizerStep("fp32", 1000, kind) for kind in ("adam_fused", "adam")]
    fused, foreach = predict_kernels(ops, H100, load_artifacts()).latency_s
    assert 6.0 < foreach / fused < 7.1


START = Constants()


def collective_seconds(kind: str, size: int, ranks: int, kernels: str = "pytorch", **change: Any) -> float:
    """Seconds of one collective on A100s by the round numbers that a fit starts from."""
    op = replace(over(load_system("dgx-a100"), kind, "bf16", size, ranks), **change)
    known = Collectives("collective", START, {}, {})
    gpu = load_gpu("a100-sxm-80gb")
    return float(known.seconds(make_batch("collective", [op], kernels), gpu)[0])


@pytest.mark.parametrize(("kind", "rounds"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_hops_of_a_ring(kind: str, rounds: int) -> None:
    """16 bytes over n GPUs: a launch and `rounds` x (n - 1) hops, each the link's latency and LL's trips to memory,
    of 466.3 clocks at 1.41 GHz.
    """
    link, trip = load_system("dgx-a100").within(8), 466.3 / 1.41e9
    for ranks in (2, 4, 8):
        hops = rounds * (ranks - 1) * (link.latency_s + START.hop_trips_ll * trip)
        launch = START.launch_trips * trip
        assert collective_seconds(kind, 16, ranks) == pytest.approx(launch + hops, rel=1e-3)


#: So large that what a ring waits for at the start of it no longer counts.
HUGE = 1 << 45


def test_bytes_of_a_ring() -> None:
    """A large buffer passes every link 2 (n - 1) / n times; half as often where it is only gathered."""
    speed = load_system("dgx-a100").within(8).bandwidth * START.efficiency_nvswitch
    local = START.local * HUGE / 8 / load_gpu("a100-sxm-80gb").memory_bandwidth
    for kind, rounds in (("all_reduce", 2), ("all_gather", 1)):
        assert collective_seconds(kind, HUGE, 8) == pytest.approx(rounds * HUGE * 7 / 8 / speed + local, rel=5e-3)


def test_the_switch_sums_a_vector_and_a_shard_of_it() -> None:
    speed = load_system("dgx-a100").within(8).bandwidth * START.efficiency_nvswitch * START.share_nvls
    assert collective_seconds("all_reduce", HUGE, 8, in_switch=True) == pytest.approx(HUGE * 9 / 8 / speed, rel=5e-3)


def test_sizes_just_beyond_twice_what_was_measured_are_outside() -> None:
    widths = {name: [-0.1 * (i + 1), 0.1 * (i + 1)] for i, name in enumerate(DISTANCES)}
    linear = {"widths": widths, "gpus": {}, "sizes": {"m": [64, 1024]}, "dtypes": ["fp32"], "variants": {}}
    data = {"gpus": {"h100-sxm": ["hopper 9", "nvidia"]}, "classes": {"linear": linear}}
    ops = [Gemm("fp32", m, 64, 64) for m in (31, 32, 64, 1024, 2048, 2049)]
    found = Intervals.from_dict(data).width(ops, make_batch("gemm", ops).columns, H100)
    assert found.inside.tolist() == [False, True, True, True, True, False]
    assert found.high.tolist() == pytest.approx([0.2, 0.1, 0.1, 0.1, 0.1, 0.2])


# -------------------------------------------------------------------------------------------------- judging, measuring


def test_errors_by_hand() -> None:
    from predictor.fit.scores import summarise

    found = summarise(np.array([1.0, 1.0, 2.0, 4.0, 5.0]), np.array([2.0, 1.1, 1.0, 4.0, np.nan]))
    assert (found["n"], found["unpredicted"]) == (4, 1)
    assert found["mean_signed_pct"] == pytest.approx((100 + 10 - 50 + 0) / 4)  # above zero: forecasts are too long
    assert found["mean_ape_pct"] == pytest.approx(160 / 4)
    assert found["median_ape_pct"] == pytest.approx((10 + 50) / 2)
    assert found["p90_ape_pct"] == pytest.approx(50 + 0.7 * 50)  # of 0, 10, 50, 100: rank 2.7
    low = summarise(np.array([2.0]), np.array([1.0]))
    assert (low["mean_signed_pct"], low["mean_ape_pct"]) == (-50.0, 50.0)


def test_an_interval_covers_what_lies_between_its_ends() -> None:
    pandas = pytest.importorskip("pandas", reason="extra 'train'")
    from predictor.fit.scores import coverage

    measured = [0.9, 1.0, 1.5, 2.0, 2.1]
    rows = pandas.DataFrame({"measured_ms": measured, "predicted_ms": 1.6, "low_ms": 1.0, "high_ms": 2.0})
    found = coverage(rows)
    assert found["interval_coverage_pct"] == pytest.approx(60.0)  # the ends belong to it
    assert found["interval_width_pct"] == pytest.approx(100 / 1.6)
