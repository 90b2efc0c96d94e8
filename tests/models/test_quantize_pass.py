"""The pass that quantizes the inputs of narrow linear layers in eager execution."""

from __future__ import annotations

from predictor.files.records import replace
from predictor.formats.parts import Format, Formats
from predictor.graph import Graph, Node
from predictor.models.built import Step, build, load_config
from predictor.ops import Elementwise, Gemm
from predictor.ops.base import BACKWARD
from predictor.passes.quantize import quantize


def built(model: str) -> Graph:
    return build(load_config(model), Step("forward", 2, 16, act_dtype="bf16"))


def formats(dtype: str) -> Formats:
    return Formats(Format("bf16"), Format(dtype))


def nodes_of(graph: Graph) -> list[Node]:
    return [node for block in graph.blocks for node in block.nodes]


def test_a_narrow_product_reads_what_was_quantized_for_it() -> None:
    before = built("qwen2.5-0.5b")
    after = nodes_of(quantize(before, formats("fp8")))
    narrow = [i for i, node in enumerate(after) if isinstance(node.op, Gemm) and node.op.dtype == "fp8"]
    assert len(after) == len(nodes_of(before)) + len(narrow) and len(narrow) == 7
    for i in narrow:
        made, product = after[i - 1], after[i]
        assert product.inputs[0] is made.outputs[0] and made.outputs[0].dtype == "fp8"
        assert isinstance(made.op, Elementwise) and isinstance(product.op, Gemm)
        assert (made.op.fn, made.op.elements) == ("quantize", product.op.m * product.op.k)
    queries = [node.inputs[0] for node in after if node.name in ("attention q quantize", "attention k quantize")]
    assert queries[0] is queries[1]  # one tensor, quantized for each of its readers


def test_where_nothing_is_narrow_the_graph_stays() -> None:
    graph = built("qwen2.5-0.5b")
    assert quantize(graph, formats("bf16")) is graph


def test_experts_take_their_tokens_as_they_come() -> None:
    names = [n.name for n in nodes_of(quantize(built("switch-base-8"), formats("fp8"))) if n.name.endswith("quantize")]
    assert names and not [name for name in names if "expert" in name]


def test_products_of_a_recorded_backward_pass_quantize_what_they_read() -> None:
    """As those that autograd's pass writes do: a kernel of its own would be charged for what their law holds."""
    (block,) = [b for b in built("qwen2.5-0.5b").blocks if b.name == "layer"]
    (ahead,) = [node for node in block.nodes if node.name == "attention out"]
    recorded = replace(block, nodes=(replace(ahead, phase=BACKWARD),))
    (product,) = nodes_of(quantize(Graph((recorded,)), formats("fp8")))
    assert isinstance(product.op, Gemm) and product.op.dtype == "fp8" and not product.op.quantized
