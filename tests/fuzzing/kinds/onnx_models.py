"""ONNX models: nodes, shapes and attributes of a small one changed, or its bytes damaged."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.fuzzing.case import Case, seed
from tests.fuzzing.changes import damaged_bytes
from tests.fuzzing.targets import ask_words

NEEDS = ("onnx",)
MORE = ("", "", "--input x:float[4,16]", "--mode train", "--batch 4", "--execution compile")
_SIZES = st.sampled_from((-1, 0, 1, 3, 16, 2**31, 2**62))
_TYPES = ("Gemm", "MatMul", "Add", "Reshape", "Conv", "Softmax", "Gather", "Attention", "If", "Loop", "Nope", "",
          "LSTM",
          "Transpose", "Concat", "Split", "Einsum", "LayerNormalization", "Slice", "Expand", "Squeeze")  # fmt: skip


def _change(draw: st.DrawFn, model: Any) -> None:
    graph = model.graph
    what = draw(st.sampled_from(("type", "input", "shape", "weight", "drop", "attribute", "opset", "swap", "double")))
    node = draw(st.sampled_from(list(graph.node)))
    if what == "type":
        node.op_type = draw(st.sampled_from(_TYPES))
    elif what == "input" and node.input:
        names = [name for each in graph.node for name in (*each.input, *each.output)]
        node.input[draw(st.integers(0, len(node.input) - 1))] = draw(st.sampled_from((*names, "", "nobody")))
    elif what == "shape":
        kind = draw(st.sampled_from([*graph.input, *graph.output])).type.tensor_type
        if kind.shape.dim:
            kind.shape.dim[draw(st.integers(0, len(kind.shape.dim) - 1))].dim_value = draw(_SIZES)
        else:
            kind.elem_type = draw(st.integers(0, 30))
    elif what == "weight" and graph.initializer:
        tensor = draw(st.sampled_from(list(graph.initializer)))
        if tensor.dims and draw(st.booleans()):
            tensor.dims[0] = draw(_SIZES)
        else:
            tensor.data_type = draw(st.integers(0, 30))
    elif what == "attribute" and node.attribute:
        attribute = draw(st.sampled_from(list(node.attribute)))
        attribute.i = draw(_SIZES)
        for at in range(len(attribute.ints)):
            attribute.ints[at] = draw(_SIZES)
    elif what == "opset":
        model.opset_import[0].version = draw(st.integers(-1, 40))
    elif what == "drop":
        graph.node.remove(node)
    elif what == "swap":
        nodes = list(graph.node)[::-1]
        del graph.node[:]
        graph.node.extend(nodes)
    else:
        graph.node.add().CopyFrom(node)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    import onnx

    data = seed("net.onnx")
    if draw(st.integers(0, 4)):
        model = onnx.load_model_from_string(data)
        for _ in range(draw(st.integers(1, 2))):
            if model.graph.node:
                _change(draw, model)
        data = model.SerializeToString()
    else:
        data = draw(damaged_bytes(data))
    words = f"predict --model net.onnx --gpu h100 --artifacts roofline --json {draw(st.sampled_from(MORE))}"
    return Case("onnx_models", {"net.onnx": data}, words.split())


ask = ask_words
