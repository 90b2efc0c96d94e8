"""The pass that sets number formats: what gets which, what stays, and layers that have formats of their own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from predictor.formats.parts import HIGH_PARTS, LAYER_PARTS, PARTS, Format, Formats, plain
from predictor.graph import Graph, Node
from predictor.graph.tensor import WEIGHT
from predictor.models.built import Step, build, load_config, weight_bytes
from predictor.ops import Gemm, MoE
from predictor.ops.base import Op
from predictor.passes.quantize import quantize
from tests.catalogue import MODELS

STEPS = (
    Step("forward", 2, 16, act_dtype="bf16"),
    Step("prefill", 2, 16, act_dtype="bf16", attention="flash", experts="whole"),
    Step("decode", 2, 1, 16, act_dtype="bf16", attention="flash"),
)
#: A format for every part that tells it from the others: by the scheme, or by the dtype.
APART = ("fp8_block", "sq", "int8_wo", "int4_wo", "int4_wo_g64", "int4_wo_g32", "fp8_wo", "nvfp4_wo", "w4a16_mxfp4", "")


def graphs(model: str, dtype: str = "bf16") -> list[Graph]:
    config = load_config(model)
    steps = [replace(step, act_dtype=dtype) for step in STEPS if config.causal or step.mode == "forward"]
    return [build(config, step) for step in steps]


def nodes_of(graph: Graph) -> list[Node]:
    return [node for block in graph.blocks for node in block.nodes]


def signature(graph: Graph) -> Counter[tuple[str, Op]]:
    """How often each operator runs, by the name of its node."""
    found: Counter[tuple[str, Op]] = Counter()
    for node, times in graph.nodes():
        found[node.name, node.op] += round(times)
    return found


@pytest.mark.parametrize("model", MODELS)
def test_formats_that_a_graph_has_change_nothing(model: str) -> None:
    for graph in graphs(model):
        assert quantize(graph, plain("bf16")) is graph


@pytest.mark.parametrize("model", MODELS)
def test_every_product_with_a_weight_names_its_part(model: str) -> None:
    for graph in graphs(model):
        for node in nodes_of(graph):
            reads = isinstance(node.op, (Gemm, MoE)) and any(t.role == WEIGHT for t in node.inputs)
            assert not reads or node.part in PARTS, node.name


@pytest.mark.parametrize("model", MODELS)
def test_parts_get_their_formats_and_nothing_else_changes(model: str) -> None:
    own = tuple((part, Format("bf16", quant)) for part, quant in zip(LAYER_PARTS, APART, strict=True))
    formats = Formats(Format("bf16"), Format("fp8"), own)
    for graph in graphs(model):
        for before, after in zip(nodes_of(graph), nodes_of(quantize(graph, formats)), strict=True):
            assert (before.name, before.count) == (after.name, after.count)
            assert after.op.dtype == before.op.dtype and after.op.flops() == before.op.flops()
            if isinstance(after.op, (Gemm, MoE)) and after.op.label != "bmm":
                assert (after.op.dtype, after.op.quant) == formats.of(after.part) or after.part in HIGH_PARTS
                after = replace(after, op=replace(after.op, quant=""))
            assert after.op == before.op


@pytest.mark.parametrize("model", MODELS)
def test_products_and_their_weights_compute_in_the_high_format(model: str) -> None:
    """TF32 in a run of 32 bit; what a graph has narrower than the run's numbers stays (autocast)."""
    for graph in graphs(model):
        for before, after in zip(nodes_of(graph), nodes_of(quantize(graph, plain("tf32"))), strict=True):
            assert before.op.dtype != "bf16" or after is before
    for graph in graphs(model, "fp32"):
        if graph.fused:
            continue
        for node in nodes_of(quantize(graph, plain("tf32"))):
            if isinstance(node.op, (Gemm, MoE)):
                assert node.op.dtype == "tf32"
                matrices = [t for t in node.inputs if t.role == WEIGHT and len(t.axes) > 1]
                assert all(t.dtype == "tf32" for t in matrices) or node.name == "lm head"


def test_quantizing_twice_is_quantizing_once() -> None:
    formats = Formats(Format("bf16"), Format("fp8"))
    for graph in graphs("llama-3.1-8b"):
        once = quantize(graph, formats)
        assert quantize(once, formats) is once


def test_a_router_in_fp32_stays_so() -> None:
    step = Step("forward", 2, 16, act_dtype="bf16")
    graph = quantize(build(load_config("switch-base-8"), step), Formats(Format("bf16"), Format("fp8")))
    router = next(node for node in nodes_of(graph) if node.name == "router")
    assert router.op == Gemm("fp32", 32, 8, 768) and router.inputs[1].dtype == "fp32"
    experts = [n for n in nodes_of(graph) if n.part == "experts"]
    assert {n.op.dtype for n in experts} == {n.inputs[1].dtype for n in experts} == {"fp8"}
    graph = quantize(build(load_config("switch-base-8"), Step("forward", 2, 16)), plain("tf32"))
    assert next(n.op.dtype for n in nodes_of(graph) if n.name == "router") == "tf32"


def test_a_tied_table_stays_one_tensor() -> None:
    config = load_config("gpt2")
    graph = build(config, Step("forward", 2, 16, act_dtype="bf16"))
    formats = Formats(Format("bf16"), Format("fp8"), (("head", Format("bf16", "int4_wo")),))
    after = quantize(graph, formats)
    nodes = {node.name: node for node in nodes_of(after)}
    head = nodes["lm head"]
    assert isinstance(head.op, Gemm) and head.op.quant == "int4_wo"
    assert head.inputs[1] is nodes["token embedding"].inputs[0]
    assert after.parameters() == graph.parameters()


def layered(dtype: str, *layers: int) -> Formats:
    """Every part in fp8, but for ``layers`` in ``dtype``."""
    named = tuple((part, Format(dtype)) for part in LAYER_PARTS)
    return Formats(Format("bf16"), Format("fp8"), (), tuple((layer, named) for layer in layers))


@pytest.mark.parametrize(
    ("model", "layers"),
    [("llama-3.1-8b", (0, 31)), ("gemma-2-9b", (0, 1, 7)), ("deepseek-v3", (0, 3, 60)), ("mixtral-8x7b", (5,))],
)
def test_layers_in_other_formats_are_split_off_and_chained(model: str, layers: tuple[int, ...]) -> None:
    config, formats = load_config(model), layered("bf16", *layers)
    for graph in graphs(model):
        after = quantize(graph, formats)
        numbers = [block.layers for block in after.blocks if block.layers]
        assert sorted(n for alike in numbers for n in alike) == list(range(config.layers))
        assert [alike[0] for alike in numbers] == sorted(alike[0] for alike in numbers)  # by first appearance
        for block in after.blocks:
            assert block.repeat == (len(block.layers) or 1)
            assert ("in other formats" in block.name) == (block.name.startswith(("layer", "moe")) and
                                                          block.layers[0] in layers)  # fmt: skip
            dtypes = {n.op.dtype for n in block.nodes if isinstance(n.op, (Gemm, MoE)) and n.part in LAYER_PARTS
                      and n.op.label != "bmm"}  # fmt: skip
            assert dtypes <= ({"bf16"} if "in other" in block.name else {"fp8"})
        assert after.parameters() == graph.parameters()
        handed = [block.carried for block in after.blocks if block.layers and block.carried]
        assert all(one[1] is following[0] for one, following in pairwise(handed))
        last = after.blocks[-1].carried
        assert last is None or last[0].storage is handed[-1][1].storage


def test_the_bytes_of_weights_follow_the_layers() -> None:
    config = load_config("deepseek-v3")
    whole, part = weight_bytes(config, layered("bf16")), weight_bytes(config, layered("bf16", 0, 60))
    split = layered("bf16", *range(config.layers))
    every = weight_bytes(config, split)
    dense, sparse = (
        sum(weight_bytes(config, layered("bf16", layer)) - whole for layer in layers)
        for layers in (range(3), range(3, 61))
    )
    assert every - whole == dense + sparse and part - whole == dense / 3 + sparse / 58


@pytest.mark.parametrize(
    "model", ["gemma-2-9b", "llama-3.1-8b", "deepseek-v3", "t5-small", "switch-base-8", "bert-base"]
)
def test_quantizing_commutes_with_writing_repeats_out(model: str) -> None:
    for formats in (plain("bf16"), layered("bf16"), layered("bf16", 0, 2, 5)):
        for graph in graphs(model):
            inside, outside = quantize(graph, formats).unrolled(), quantize(graph.unrolled(), formats)
            assert signature(inside) == signature(outside)
            assert sorted(block.layers for block in inside.blocks) == sorted(block.layers for block in outside.blocks)
