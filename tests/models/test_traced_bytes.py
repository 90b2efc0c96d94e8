"""Bytes of traced operators whose operands are broadcast, and of fused kernels that pick rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import predictor
from predictor.engines import engine
from predictor.graph import Graph
from predictor.models.built import Step
from predictor.ops import Attention, Gemm
from predictor.passes.fuse import fuse

torch = pytest.importorskip("torch", reason="the extra torch is not installed")


def recorded(
    forward: Callable[..., Any], inputs: list[str], weight: tuple[int, ...] = (), mode: str = "forward"
) -> Graph:
    """The graph of a function of a module's weight and its inputs, in bf16."""

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(weight or (1,)))

        def forward(self, *args: Any) -> Any:
            return forward(self.weight, *args)

    source = predictor.trace(Net, inputs).source
    return source.record(
        Step(mode, act_dtype="bf16", attention="flash", training=mode == "train"), False if mode == "train" else None
    ).graph


def ops_of(graph: Graph, kind: type) -> list[Any]:
    return [node.op for node, _ in graph.nodes() if isinstance(node.op, kind)]


def test_a_weight_that_all_products_of_a_batch_share_is_read_once() -> None:
    """512 x (8 x 32) times one (32 x 16) weight: A and C have 512 matrices, B is one."""
    graph = recorded(lambda w, x: torch.bmm(x, w.expand(512, 32, 16)), ["float[512,8,32]"], (32, 16))
    (op,) = ops_of(graph, Gemm)
    assert (op.kind, op.flops()) == ("linear", 2 * 512 * 8 * 32 * 16)
    assert op.bytes_moved() == 2 * (512 * 8 * 32 + 32 * 16 + 512 * 8 * 16)


def test_a_matmul_under_no_grad_expands_its_weight() -> None:
    """A transposed input cannot be folded into rows: PyTorch expands the weight and calls bmm."""
    graph = recorded(lambda w, x: x.transpose(1, 2) @ w.detach(), ["float[512,32,8]"], (32, 16))
    (op,) = ops_of(graph, Gemm)
    assert op.bytes_moved() == 2 * (512 * 8 * 32 + 32 * 16 + 512 * 8 * 16)


def test_a_left_operand_that_is_shared_is_read_once() -> None:
    graph = recorded(lambda w, x: torch.bmm(w.expand(64, 8, 32), x), ["float[64,32,16]"], (8, 32))
    (op,) = ops_of(graph, Gemm)
    assert op.bytes_moved() == 2 * (8 * 32 + 64 * 32 * 16 + 64 * 8 * 16)


def test_products_that_share_nothing_stay_a_batch() -> None:
    (op,) = ops_of(recorded(lambda w, x: torch.bmm(x, x.transpose(1, 2)), ["float[4,8,32]"]), Gemm)
    assert (op.kind, op.batch, op.m, op.n, op.k) == ("bmm", 4, 8, 8, 32)


def test_broadcast_operands_of_a_join_and_of_a_sum_are_read_once() -> None:
    joined = recorded(lambda w, x: torch.cat((x, w.expand(512, 64)), 1), ["float[512,64]"], (1, 64))
    (node,) = [node for node, _ in joined.nodes()]
    assert node.op.bytes_moved() == 2 * (512 * 64 + 64 + 512 * 128)
    summed = recorded(lambda w, x: w.expand(512, 64).sum(0) + x, ["float[64]"], (1, 64))
    first = next(node.op for node, _ in summed.nodes())
    assert (first.flops(), first.bytes_moved()) == (512 * 64, 2 * (64 + 64))


def test_one_kv_head_that_is_expanded_is_one() -> None:
    def attend(w: Any, q: Any, k: Any) -> Any:
        k = k.expand(-1, 8, -1, -1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, k)

    (op,) = ops_of(recorded(attend, ["float[2,8,16,32]", "float[2,1,16,32]"]), Attention)
    assert (op.heads, op.kv_heads) == (8, 1)


def test_a_fused_look_up_reads_the_rows_that_are_picked() -> None:
    """Four tokens of a table of a million rows, scaled in the same kernel; and of an index that picks rows."""
    for pick in (lambda w, i: torch.nn.functional.embedding(i, w) * 2.0, lambda w, i: w[i] * 2.0):
        eager = recorded(pick, ["int64[4]"], (1_000_000, 64))
        (node,) = [node for node, _ in fuse(eager, engine("compile")).nodes()]
        assert node.op.bytes_read() == 4 * 64 * 2 + 4 * 8
        assert node.op.bytes_written() == 4 * 64 * 2


def test_a_fused_kernel_reads_both_halves_of_a_tensor() -> None:
    eager = recorded(lambda w, x: torch.nn.functional.silu(x[:, :64]) * x[:, 64:], ["float[32,128]"])
    (node,) = [node for node, _ in fuse(eager, engine("compile")).nodes()]
    assert node.op.bytes_moved() == 2 * (32 * 128 + 32 * 64)
