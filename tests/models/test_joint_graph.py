"""The backward pass as nodes with tensors: what each reads was made before it, and is what its gradient needs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import pytest

from predictor.graph import Block, Graph, Node, Tensor
from predictor.graph.tensor import GRADIENT, WEIGHT
from predictor.models.built import Step, build, config_from_dict, load_config
from predictor.models.built.load import CONFIGS
from predictor.ops import (
    Attention,
    CrossEntropy,
    Dropout,
    Elementwise,
    Embedding,
    Gemm,
    Norm,
    Reduce,
    Rotary,
    Softmax,
)  # fmt: skip
from predictor.ops.base import Op
from predictor.ops.elementwise import FUNCTIONS
from predictor.passes.autograd import joint

MODELS = [
    "gpt2", "llama-3.1-8b", "bert-base", "opt-350m", "phi-3-mini", "gemma-2-2b", "bloom-560m", "qwen3-0.6b",
    "mixtral-8x7b", "deepseek-v2-lite", "t5-small", "switch-base-8",
]  # fmt: skip
FORMS = ("math", "flash")


def forward(model: str, attention: str = "math", batch: int = 2) -> Graph:
    step = Step("train", batch, 16, act_dtype="bf16", attention=attention, training=True)
    return build(load_config(model), step)


def handed_on(block: Block) -> list[tuple[Tensor, Tensor]]:
    return [*([block.carried] if block.carried else []), *block.running]


@pytest.mark.parametrize("attention", FORMS)
@pytest.mark.parametrize("model", MODELS)
def test_what_a_node_reads_was_made_before_it(model: str, attention: str) -> None:
    """But for the gradient of the loss, of a result that nothing reads, and zeros that sums over layers begin with."""
    made: set[int] = set()
    for block in joint(forward(model, attention)).blocks:
        made |= {id(start.storage) for start, _ in handed_on(block)}
        for node in block.nodes:
            for t in node.inputs:
                outside = t.name == "loss" or t.name.endswith("bias mask")
                if t.role == "activation" or (t.role == GRADIENT and not outside):
                    assert id(t.storage) in made, f"{block.name}: {node.name} reads {t}"
            made |= {id(t.storage) for t in node.outputs}


@pytest.mark.parametrize("attention", FORMS)
@pytest.mark.parametrize("model", MODELS)
def test_a_gradient_of_an_activation_is_used(model: str, attention: str) -> None:
    blocks = joint(forward(model, attention)).blocks
    read = {id(t.storage) for b in blocks for n in b.nodes for t in n.inputs}
    read |= {id(end.storage) for b in blocks for _, end in handed_on(b)}
    weights = {t.name for b in blocks for n in b.nodes for t in n.inputs if t.role == WEIGHT}
    for block in blocks:
        for node in block.nodes:
            for t in node.outputs:
                # Bloom's class writes a gradient by hand, of which one kernel stands for what it makes beside.
                if t.role == GRADIENT and t.name not in weights and model != "bloom-560m":
                    assert id(t.storage) in read, f"{block.name}: {node.name} makes {t}"


@pytest.mark.parametrize("model", MODELS)
def test_every_weight_gets_a_gradient_of_its_axes(model: str) -> None:
    graph = joint(forward(model))
    made = {(t.name, t.axes, t.shape) for b in graph.blocks for n in b.nodes for t in n.outputs if t.role == GRADIENT}
    for weight, _ in graph.weights():
        assert (weight.name, weight.axes, weight.shape) in made, weight


@pytest.mark.parametrize(
    "model", [name for name in MODELS if name != "switch-base-8"]
)  # whose experts write into one gradient
def test_sums_of_gradients_add_two_of_one_tensor(model: str) -> None:
    for block in joint(forward(model)).blocks:
        for node in block.nodes if block.backward_of is not None else ():
            if isinstance(node.op, Elementwise) and node.op.fn == "add":
                sizes = [t.elements for t in node.inputs]
                assert sum(sizes) == 2 * node.op.elements, f"{node.name}: {node.inputs}"
                assert all(t.role == GRADIENT for t in (*node.inputs, *node.outputs))


@pytest.mark.parametrize("model", MODELS)
def test_a_backward_block_knows_its_forward_block(model: str) -> None:
    graph = joint(forward(model))
    of = [b.backward_of for b in graph.blocks if b.backward_of is not None]
    assert of == sorted(of, reverse=True)
    for block in graph.blocks:
        if block.backward_of is not None:
            ahead = graph.blocks[block.backward_of]
            assert (block.name, block.repeat) == (f"{ahead.name} backward", ahead.repeat)


@pytest.mark.parametrize(
    "model", ["gpt2", "tinyllama-1.1b", "gemma-2-2b", "bert-base", "qwen3-0.6b", "phi-3-mini", "opt-350m"]
)
def test_unrolling_the_joint_graph_is_the_joint_graph_of_the_unrolled(model: str) -> None:
    def ops(graph: Graph) -> Counter[tuple[Op, str]]:
        return Counter((n.op, n.phase) for b in graph.blocks for n in b.nodes for _ in range(n.count * b.repeat))

    graph = forward(model)
    whole, written_out = joint(graph), joint(graph).unrolled()
    assert ops(whole) == ops(written_out) == ops(joint(graph.unrolled()))
    made: set[int] = set()
    for block in written_out.blocks:
        for node in block.nodes:
            assert all(id(t.storage) in made for t in node.inputs if t.role == "activation"), (block.name, node.name)
            made |= {id(t.storage) for t in node.outputs}


def test_a_run_of_a_backward_block_reads_its_own_forward_run() -> None:
    blocks = joint(forward("gpt2")).unrolled().blocks
    maker = {id(t): b for b, block in enumerate(blocks) for n in block.nodes for t in n.outputs}
    layers = [b for b in blocks if b.name.startswith("layer backward")]
    assert [blocks[b.backward_of].name for b in layers if b.backward_of is not None] == [
        f"layer.{i}" for i in range(11, -1, -1)
    ]
    for block in layers:
        at = block.backward_of
        assert at is not None
        read = {maker[id(t.storage)] for n in block.nodes for t in n.inputs if t.role == "activation"}
        assert read == {at - 1, at}, "its own run, and the input that the run before made"


def test_layers_alone_hand_their_gradient_on() -> None:
    """Two residuals a layer, and x twice more in tanh-gelu; the first layer's input needs none when it stands apart."""
    data = json.loads((CONFIGS / "gpt2.json").read_text())
    config = config_from_dict({**data, "architectures": ["GPT2Block"]}, "gpt2")
    graph = joint(build(config, Step("train", 2, 16, training=True)))
    (layer,) = (b for b in graph.blocks if b.backward_of is not None)
    assert layer.carried is not None
    assert [(t.shape, t.role) for t in layer.carried] == [((2, 16, config.hidden), GRADIENT)] * 2
    assert sum(isinstance(n.op, Elementwise) and n.op.fn == "add" for n in layer.nodes) == 4


def tensors(*sizes: int, role: str = "activation") -> tuple[Tensor, ...]:
    return tuple(Tensor(f"t{i}", ("tokens",), (n,), "fp32", role) for i, n in enumerate(sizes))


def reads_of(op: Op, inputs: int, weights: tuple[int, ...] = ()) -> list[tuple[str, ...]]:
    """What each backward node of one operator reads: "dy", "input 0", "output", what it keeps, "temporary"."""
    first = Node(Elementwise("fp32", "fill", 8), "first", (), tensors(8, role="weight"))
    made = [Tensor(f"input {i}", ("tokens",), (8,), "fp32", WEIGHT if i in weights else "activation")
            for i in range(inputs)]  # fmt: skip
    start = Tensor("w", ("tokens",), (8,), "fp32", WEIGHT)
    sources = [Node(Elementwise("fp32", "add", 8), "source", (start,), (t,)) for t in made if t.role != WEIGHT]
    out = Tensor("output", ("tokens",), (8,), "fp32")
    graph = joint(Graph((Block("block", (first, *sources, Node(op, "node", tuple(made), (out,)))),)))
    found = []
    names: dict[int, str] = {}
    for block in graph.blocks:
        for node in block.nodes:
            if block.backward_of is not None and node.name == "node":
                row = []
                for t in node.inputs:
                    row.append("dy" if t.role == GRADIENT and id(t) not in names else names.get(id(t), t.name))
                found.append(tuple(row))
                names.update({id(t): "temporary" for t in node.outputs})
            elif node.name == "node":
                names.update({id(t): t.name.removeprefix("node ") for t in node.outputs[1:]})
    return found


@pytest.mark.parametrize(("op", "inputs", "weights", "expected"), [
    (Gemm("fp32", 2, 2, 2, bias=True), 3, (1, 2), [("dy", "input 1"), ("dy", "input 0"), ("dy",)]),
    (Gemm("fp32", 2, 2, 2, 1, "bmm"), 2, (), [("dy", "input 1"), ("dy", "input 0")]),
    (Elementwise("fp32", "relu", 8), 1, (), [("dy", "output")]),
    (Elementwise("fp32", "tanh", 8), 1, (), [("dy", "output")]),
    (Elementwise("fp32", "sigmoid", 8), 1, (), [("dy", "output")]),
    (Elementwise("fp32", "rsqrt", 8), 1, (), [("output",), ("temporary",), ("dy", "temporary")]),
    (Elementwise("fp32", "gelu", 8), 1, (), [("dy", "input 0")]),
    (Elementwise("fp32", "silu", 8), 1, (), [("dy", "input 0")]),
    (Elementwise("fp32", "mul", 8), 2, (), [("dy", "input 1"), ("dy", "input 0")]),
    (Elementwise("fp32", "swiglu", 8), 2, (), [("dy", "input 0", "input 1")]),
    (Elementwise("fp32", "pow_scalar", 8), 1, (), [("input 0",), ("temporary",), ("dy", "temporary")]),
    (Elementwise("fp32", "div", 8), 2, (), [("dy", "input 1"), ("dy", "input 0"), ("temporary", "input 1")]),
    (Elementwise("fp32", "mul_scalar", 8), 1, (), [("dy",)]),
    (Elementwise("fp32", "cast", 8), 1, (), [("dy",)]),
    (Elementwise("fp32", "add", 8), 2, (), []),
    (Elementwise("fp32", "fused", 8, 1), 1, (), [("dy", "input 0")]),
    (Dropout("fp32", 8), 1, (), [("dy", "mask")]),
    (Softmax("fp32", 2, 4), 1, (), [("dy", "output"), ("temporary", "output")]),
    (Norm("fp32", 2, 4), 3, (1, 2), [("dy", "input 0", "input 1", "statistics")]),
    (Norm("fp32", 2, 4, residual=True), 3, (2,), [("dy", "input 2", "output", "statistics")]),
    (Norm("fp32", 2, 4, residual=True, sum_kept=False), 3, (2,), [("dy", "input 2", "statistics", "sum")]),
    (Reduce("fp32", 2, 4, 1), 1, (), [("dy",)]),
    (Rotary("fp32", 2, 1, 4), 2, (), [("dy",)]),
    (Embedding("fp32", 2, 4, 2), 1, (0,), [("dy",)]),
    (CrossEntropy("fp32", 2, 4), 1, (), [("dy", "log-softmax")]),
    (Attention("fp32", 1, 1, 1, 2, 2, 4), 3, (), [("dy", "input 0", "input 1", "input 2", "output", "log-sum-exp")]),
])  # fmt: skip
def test_what_a_gradient_needs(op: Op, inputs: int, weights: tuple[int, ...], expected: list[tuple[str, ...]]) -> None:
    assert reads_of(op, inputs, weights) == expected


@pytest.mark.parametrize("fn", sorted(FUNCTIONS))
def test_every_backward_operator_is_told_of(fn: str) -> None:
    op = Elementwise("fp32", fn, 8)
    assert len(op.gradients() or ()) == len(op.backward()) or not op.backward()


@dataclass(frozen=True, slots=True)
class Squared(Op):
    """An operator that does not say what its gradient reads."""

    def flops(self) -> float:
        return 1.0

    def bytes_read(self) -> float:
        return 1.0

    def bytes_written(self) -> float:
        return 1.0

    def backward(self) -> tuple[Op, ...]:
        return (Elementwise("fp32", "mul_scalar", 8), Elementwise("fp32", "mul", 8))


def test_an_operator_that_does_not_say_has_its_inputs_saved() -> None:
    assert reads_of(Squared("fp32"), 2) == [("dy", "input 0", "input 1"), ("temporary",)]


def test_a_dropout_mask_is_a_byte_an_element_of_the_result() -> None:
    graph = joint(forward("gpt2"))
    node = next(n for b in graph.blocks for n in b.nodes if n.name == "attention dropout")
    out, mask = node.outputs
    assert (mask.axes, mask.shape, mask.dtype, mask.nbytes) == (out.axes, out.shape, "bool", out.elements)


def test_slices_of_a_projection_get_parts_of_its_gradient() -> None:
    """Where no kernel joins them: flash attention writes all three into one tensor."""
    layer = next(b for b in joint(forward("gpt2", attention="flash")).blocks if b.name == "layer backward")
    core = next(n for n in layer.nodes if n.name == "attention core")
    product = next(n for n in layer.nodes if n.name == "attention qkv")
    (whole,) = {t.storage for t in core.outputs}
    assert product.inputs[0] is whole
    assert whole.axes[-1] == "heads | kv_heads | kv_heads"
