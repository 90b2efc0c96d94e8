"""FLOPs and bytes against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.ops import (
    OPERATORS,
    Aggregate,
    Attention,
    CausalConv1d,
    ChannelNorm,
    Collective,
    Convolution,
    Copy,
    CrossEntropy,
    DeltaRule,
    Dropout,
    Elementwise,
    Embedding,
    EmbeddingBag,
    Gemm,
    Index,
    Indexer,
    Interpolate,
    MoE,
    Norm,
    OptimizerStep,
    Pool,
    Quantize,
    Reduce,
    Rotary,
    Routing,
    Scan,
    Softmax,
    Sort,
    StateSpace,
)  # fmt: skip
from predictor.ops.attention import attended_pairs
from predictor.ops.base import Op
from predictor.ops.elementwise import FUNCTIONS


def test_gemm_by_hand() -> None:
    op = Gemm("fp32", m=3, n=5, k=7)
    assert op.flops() == 2 * 3 * 5 * 7
    assert op.bytes_read() == (3 * 7 + 7 * 5) * 4
    assert op.bytes_written() == 3 * 5 * 4


def test_gemm_batched_with_bias() -> None:
    op = Gemm("bf16", m=4, n=6, k=8, batch=10, kind="bmm")
    assert op.flops() == 10 * 2 * 4 * 6 * 8
    assert op.bytes_read() == 10 * (4 * 8 + 8 * 6) * 2
    assert Gemm("bf16", 4, 6, 8, bias=True).bytes_read() == (4 * 8 + 8 * 6 + 6) * 2


def test_fp8_gemm_writes_16_bit() -> None:
    op = Gemm("fp8", 16, 32, 64)
    assert op.bytes_read() == 16 * 64 + 64 * 32
    assert op.bytes_written() == 16 * 32 * 2


def test_gemm_backward_is_twice_the_forward() -> None:
    op = Gemm("fp32", 64, 128, 256, bias=True)
    grads = op.backward()
    products = [g for g in grads if isinstance(g, Gemm)]
    assert [(g.m, g.n, g.k) for g in products] == [(64, 256, 128), (128, 256, 64)]
    assert sum(g.flops() for g in products) == 2 * op.flops()
    assert isinstance(grads[-1], Reduce)
    assert len(Gemm("fp32", 64, 128, 256).backward()) == 2


@pytest.mark.parametrize(
    ("q", "kv", "causal", "window"),
    [
        (5, 5, True, 0),
        (5, 9, True, 0),
        (1, 9, True, 0),
        (6, 6, True, 3),
        (6, 10, True, 3),
        (4, 6, False, 0),
        (8, 8, True, 20),
    ],
)
def test_attended_pairs_by_counting(q: int, kv: int, causal: bool, window: int) -> None:
    count = 0
    for i in range(q):
        position = kv - q + i
        seen = range(kv) if not causal else range(position + 1)
        count += sum(1 for j in seen if not causal or window == 0 or j > position - window)
    assert attended_pairs(q, kv, causal, window) == count


def test_attention_by_hand() -> None:
    op = Attention("bf16", batch=2, heads=8, kv_heads=2, q_len=16, kv_len=16, head_dim=64)
    pairs = 16 * 17 / 2
    assert op.flops() == 2 * 8 * pairs * 2 * (64 + 64)
    assert op.bytes_read() == (2 * 8 * 16 * 64 + 2 * 2 * 16 * 128) * 2
    assert op.bytes_written() == 2 * 8 * 16 * 64 * 2
    full = Attention("bf16", 2, 8, 2, 16, 16, 64, causal=False)
    assert full.flops() == 2 * 2 * 8 * 16 * 16 * 128


def test_decode_reads_the_cache_once_for_each_kv_head() -> None:
    op = Attention("bf16", 4, 32, 8, 1, 1000, 128, kv_dtype="fp8")
    assert op.is_decode
    assert op.bytes_read() == 4 * 32 * 128 * 2 + 4 * 8 * 1000 * 256 * 1
    windowed = Attention("bf16", 4, 32, 8, 1, 1000, 128, window=100)
    assert windowed.bytes_read() == 4 * 32 * 128 * 2 + 4 * 8 * 100 * 256 * 2


def test_latent_attention_reads_one_latent_a_token() -> None:
    op = Attention("bf16", 1, 128, 1, 1, 512, 576, 512, shared_kv=True)
    assert op.bytes_read() == (128 * 576 + 512 * 576) * 2
    assert op.flops() == 2 * 128 * 512 * (576 + 512)


def test_attention_backward_is_two_and_a_half_forwards() -> None:
    op = Attention("fp16", 1, 4, 4, 128, 128, 64)
    (back,) = op.backward()
    assert back.flops() == 2.5 * op.flops()
    assert back.backward() == ()


@pytest.mark.parametrize("fn", sorted(FUNCTIONS))
def test_elementwise_bytes(fn: str) -> None:
    op = Elementwise("fp32", fn, 1000)
    assert op.bytes_read() == FUNCTIONS[fn][0] * 4000
    assert op.bytes_written() == 4000


@pytest.mark.parametrize(
    ("fn", "expected"),
    [("add", 0), ("div_scalar", 8), ("mul_scalar", 8), ("tanh", 12), ("relu", 12), ("gelu", 12), ("mul", 24)],
)
def test_bytes_that_autograd_moves_for_each_element(fn: str, expected: int) -> None:
    assert sum(g.bytes_moved() for g in Elementwise("fp32", fn, 1000).backward()) == expected * 1000


def test_the_gradient_of_a_broadcast_factor_is_not_made_with_the_other() -> None:
    """The gradient and the small factor are read, one of the full size is written."""
    weighted = Elementwise("fp32", "mul", 1000, 1, 40.0)
    assert sum(g.bytes_moved() for g in weighted.backward()) == 8 * 1000 + 40


def test_how_an_operand_lies_in_memory_adds_no_compulsory_bytes() -> None:
    plain = Elementwise("fp32", "add", 1000)
    awkward = replace(plain, again_bytes=7000.0, reuse_bytes=1e6, stride_bytes=128.0)
    assert awkward.bytes_moved() == plain.bytes_moved() == 12000
    assert awkward.flops() == plain.flops()


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (Gemm("fp32", 64, 128, 256, bias=True), 128 * 256 + 128),
        (Gemm("fp32", 64, 128, 256), 128 * 256),
        (Gemm("fp32", 64, 128, 256, 8, "bmm"), 0),
        (Norm("fp32", 10, 100), 200),
        (Norm("fp32", 10, 100, "rms"), 100),
        (Embedding("fp32", 10, 64, 5000), 5000 * 64),
        (MoE("bf16", 10, 64, 128, 8, 2, ep=2), 4 * 3 * 64 * 128),
        (Softmax("fp32", 10, 100), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_parameters_that_an_operator_owns(op: Op, expected: int) -> None:
    assert op.weights() == expected


def test_softmax_and_dropout_backward_move_24_and_9_bytes_an_element() -> None:
    assert sum(g.bytes_moved() for g in Softmax("fp32", 10, 100).backward()) == 24 * 1000
    assert sum(g.bytes_moved() for g in Dropout("fp32", 1000).backward()) == 9 * 1000


def test_norms_by_hand() -> None:
    layer = Norm("fp32", 10, 100)
    assert layer.bytes_read() == (1000 + 200) * 4
    assert layer.bytes_written() == 1000 * 4 + 2 * 10 * 4
    rms = Norm("bf16", 10, 100, "rms", residual=True)
    assert rms.bytes_read() == (2000 + 100) * 2
    assert rms.bytes_written() == 2000 * 2 + 10 * 4
    (back,) = layer.backward()
    assert back.bytes_read() == (2000 + 100) * 4 + 2 * 10 * 4
    assert back.kernels() == 2


def test_embedding_by_hand() -> None:
    op = Embedding("fp32", 100, 64, 5000)
    assert op.bytes_read() == 100 * 64 * 4 + 100 * 8
    assert op.bytes_written() == 100 * 64 * 4
    (back,) = op.backward()
    assert back.bytes_written() == 5000 * 64 * 4


def test_cross_entropy_by_hand() -> None:
    op = CrossEntropy("fp32", 10, 1000)
    assert op.bytes_moved() == 10 * 1000 * 8 + 80
    assert op.backward()[0].bytes_moved() == 10 * 1000 * 12


def test_optimizer_bytes() -> None:
    assert OptimizerStep("fp32", 10, "adam_fused").bytes_moved() == 10 * 28  # p, g, m, v read; p, m, v written
    assert OptimizerStep("fp32", 10, "sgd").bytes_moved() == 10 * 12
    assert OptimizerStep("fp32", 10, "adam").bytes_moved() == 10 * 18 * 4  # seven kernels, 11 reads and 7 writes


def test_copy_rotary_routing_by_hand() -> None:
    assert Copy("bf16", 1024).bytes_moved() == 2048
    assert Rotary("bf16", 10, 12, 64).bytes_moved() == (10 * 13 * 64 + 10 * 12 * 64) * 2
    assert Routing("fp32", 10, 8, 2).bytes_moved() == 10 * 8 * 4 + 10 * 2 * 8


def test_moe_by_hand() -> None:
    op = MoE("bf16", tokens=100, hidden=64, intermediate=32, experts=8, top_k=2)
    assert op.flops() == 100 * 2 * 3 * 2 * 64 * 32
    assert op.bytes_read() == (8 * 3 * 64 * 32 + 100 * 64) * 2
    one = MoE("bf16", 1, 64, 32, 8, 2)
    assert one.active_experts == 2
    split = MoE("bf16", 100, 64, 32, 8, 2, ep=4)
    assert split.flops() == op.flops() / 4
    assert split.local_experts == 2


def test_every_operator_of_the_registry_has_the_columns_that_it_names() -> None:
    examples = [
        Gemm("bf16", 1, 2, 3), Attention("bf16", 1, 1, 1, 1, 1, 8), Elementwise("bf16", "add", 4), Dropout("bf16", 4),
        Reduce("bf16", 2, 2), Rotary("bf16", 1, 1, 8), Copy("bf16", 8), Norm("bf16", 2, 2), Softmax("bf16", 2, 2),
        Embedding("bf16", 1, 2, 3), CrossEntropy("bf16", 1, 2), OptimizerStep("fp32", 3), MoE("bf16", 1, 2, 3, 4, 1),
        Routing("bf16", 1, 2, 1), Collective("bf16", "all_reduce", 64, 2), Quantize("fp8", 2, 3),
        CausalConv1d("bf16", 1, 2, 3), DeltaRule("bf16", 1, 2, 1, 2, 3, 4), StateSpace("bf16", 1, 2, 1, 2, 3, 4),
        Convolution("bf16", 1, 2, 3, 1, 4, 4, 1, 4, 4), ChannelNorm("bf16", 2, 3, 4), Pool("bf16", 2, 4, 2, 2),
        Interpolate("bf16", 2, 4, 8), Index("bf16", 2, 3, 4), Scan("bf16", 2, 3), Sort("bf16", 2, 3),
        EmbeddingBag("bf16", 2, 3, 4, 5), Aggregate("bf16", 2, 3, 4, 5), Indexer("bf16", 1, 2, 3, 4, 5),
    ]  # fmt: skip
    assert {type(op) for op in examples} == set(OPERATORS.values())
    for op in examples:
        for column in op.columns:
            assert float(getattr(op, column)) >= 0
        assert op.flops() >= 0
        assert op.bytes_moved() > 0
        assert op.kernels() >= 1
        assert hash(op) == hash(replace(op))
