"""Adapters on a frozen base of 4 bits: bytes by hand, kernels that unpack it, and what is refused in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from predictor.errors import UnsupportedError
from predictor.forecast.forecast import Forecast, forecast
from predictor.formats.quantization import weight_bytes
from predictor.graph.graph import Node
from predictor.ops.gemm import Gemm
from predictor.passes.freeze import is_trained
from predictor.request.request import Request

BASE: dict[str, Any] = {"mode": "train", "seq_len": 1024, "batch": 4, "lora": 16, "execution": "eager"}
#: Weights of linear layers of Llama-3.1-8B's layers, by hand.
LINEAR = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)


def ask(**words: Any) -> Forecast:
    return forecast(Request("llama-3.1-8b", "h100", **(BASE | words)).run(), intervals=False)


def unpacking(found: Forecast, phase: str) -> list[Node]:
    blocks = found.plan.stages[0].graph.blocks
    return [
        n
        for b in blocks
        for n in b.nodes
        if n.name.endswith("dequantize") and n.phase == phase
        for _ in range(b.repeat)
    ]


@pytest.mark.parametrize("words", [{}, {"execution": "compile"}, {"recompute": "full"}])
def test_every_frozen_weight_is_unpacked_each_way_and_no_other(words: dict[str, Any]) -> None:
    found = ask(dtype="nf4", **words)
    again = 2 if "recompute" in words else 1
    for phase, times in (("forward", 1), ("backward", again)):
        nodes = unpacking(found, phase)
        assert sum(n.inputs[0].elements for n in nodes) == times * LINEAR
        assert sum(n.op.bytes_read() for n in nodes) == pytest.approx(times * LINEAR * (4 + 8 / 64 + 32 / 16384) / 8)
        assert sum(n.op.bytes_written() for n in nodes) == times * LINEAR * 2
        assert not any(is_trained(n.inputs[0]) for n in nodes)
    products = [n.op for b in found.plan.stages[0].graph.blocks for n in b.nodes if isinstance(n.op, Gemm)]
    assert {op.quant for op in products} == {""}


def test_the_base_takes_its_bytes_and_costs_time() -> None:
    plain, packed = ask(dtype="bf16"), ask(dtype="nf4")
    assert plain.memory.weights - packed.memory.weights == pytest.approx(LINEAR * (2 - weight_bytes("bf16", "nf4")))
    assert (plain.memory.gradients, plain.memory.optimizer) == (packed.memory.gradients, packed.memory.optimizer)
    assert packed.memory.activations == plain.memory.activations
    assert packed.latency_s > plain.latency_s
    assert packed.flops == plain.flops
    assert ask(dtype="int4_wo_g64").memory.weights > packed.memory.weights  # a scale of 16 bits in place of 8


@pytest.mark.parametrize("shard", ["none", "zero2", "zero3"])
def test_replicas_gather_the_base_as_it_is_stored_and_reduce_what_is_trained(shard: str) -> None:
    plain, packed = (ask(dtype=dtype, dp=4, shard=shard) for dtype in ("bf16", "nf4"))
    assert packed.memory.weights < plain.memory.weights
    exposed = [found.step.exposed_s.get("weights", 0.0) for found in (plain, packed) if found.step]
    assert exposed[1] <= exposed[0]
    assert plain.plan.parallel is not None
    if shard == "zero3":
        units = next(iter(plain.plan.parallel.units.values()))
        reduced = sum(n.op.bytes_read() * b.repeat for b in plain.plan.stages[units.reduce].graph.blocks
                      for n in b.nodes if n.op.family == "collective")  # fmt: skip
        assert reduced == pytest.approx(plain.plan.parallel.kinds[0].trained * 2)


@pytest.mark.parametrize("words", [
    ({"dtype": "nf4", "lora": 0}, "--dtype nf4 is for inference: training runs in fp32"),
    ({"dtype": "nf4", "execution": "megatron"}, "--dtype nf4: --execution megatron has no base in it"),
    ({"dtype": "nf4", "mode": "forward", "lora": 0}, "--dtype nf4 is for a frozen base: expected --mode train"),
    ({"dtype": "int8"}, "and under --lora in nf4"),
])  # fmt: skip
def test_what_cannot_be_is_one_line(words: tuple[dict[str, Any], str]) -> None:
    with pytest.raises(UnsupportedError) as error:
        ask(**words[0])
    assert words[1] in str(error.value)
    assert "\n" not in str(error.value)


def test_a_graph_without_a_packed_base_stays_the_very_same() -> None:
    from predictor.passes.unpack import spared_bytes, unpack

    graph = ask(dtype="bf16").plan.stages[0].graph
    assert unpack(graph) is graph
    assert spared_bytes(replace(graph), 2.0) == 0.0
