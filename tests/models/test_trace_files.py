"""Models in files: ONNX by shape inference, archives of torch.export; beside the same model traced."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import predictor
from predictor.errors import RequestError
from predictor.models.built import Step
from predictor.models.forms import model_of
from predictor.ops import Convolution, Embedding, Gemm, Norm, Softmax

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
from onnx import TensorProto, helper  # noqa: E402


def model(path: Path, batch: int | str = 2) -> Path:
    """Tokens, their embeddings, a norm, a linear layer with a bias, scores of all pairs, their softmax."""
    weights = {"table": (50, 16), "scale": (16,), "shift": (16,), "w": (16, 24), "b": (24,)}
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["x"], name="/embed/Gather"),
        helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["y"], name="/norm/LayerNormalization"),
        helper.make_node("MatMul", ["y", "w"], ["m"], name="/fc/MatMul"),
        helper.make_node("Add", ["m", "b"], ["h"], name="/fc/Add"),
        helper.make_node("Transpose", ["h"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["h", "t"], ["s"], name="/scores/MatMul"),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes, "small", [helper.make_tensor_value_info("tokens", TensorProto.INT64, [batch, 8])],
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, [batch, 8, 8])],
        [helper.make_tensor(n, TensorProto.FLOAT, s, [0.0] * _count(s)) for n, s in weights.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(made, str(path))
    return path


def _count(shape: tuple[int, ...]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


def ops_of(path: Path, words: str | None = None) -> list[Any]:
    source = model_of(path, words).source  # type: ignore[attr-defined]
    return [node.op for node, _ in source.record(Step(act_dtype="bf16"), None).graph.nodes()]


def test_an_onnx_model_by_hand(tmp_path: Path) -> None:
    ops = ops_of(model(tmp_path / "small.onnx"))
    assert [op for op in ops if isinstance(op, Gemm)] == [
        Gemm("bf16", 16, 24, 16, 1, "linear", False, "nn"),
        Gemm("bf16", 8, 8, 24, 2, "bmm", False, "nn"),
    ]
    assert Embedding("bf16", 16, 16, 50) in ops and Norm("bf16", 16, 16, "layer") in ops
    assert Softmax("bf16", 16, 8) in ops and len(ops) == 7
    answer = predictor.predict(tmp_path / "small.onnx", "h100")
    assert answer.parameters == 50 * 16 + 2 * 16 + 16 * 24 + 24
    assert not answer.unknown and answer.workload.batch == 2


def test_open_sizes_are_given_by_input(tmp_path: Path) -> None:
    path = model(tmp_path / "open.onnx", "batch")
    with pytest.raises(RequestError, match=r"open sizes tokens\['batch', 8\]; expected --input"):
        model_of(path)
    assert ops_of(path, "tokens:int64[4,8]")[0] == Embedding("bf16", 32, 16, 50)
    for wrong in ("tokens:int64[4,9]", "nothing:int64[4,8]", "tokens:int64[4]"):
        with pytest.raises(RequestError, match=r"--input .*: open\.onnx takes"):
            model_of(path, wrong)


def test_files_that_are_none_are_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model at all")
    for name, said in ((broken, "cannot be read as an ONNX model"), (tmp_path / "gone.onnx", "no such file")):
        with pytest.raises(RequestError, match=said):
            model_of(name)
    with pytest.raises(RequestError, match="--mode train: small has mode forward alone"):
        predictor.predict(model(tmp_path / "small.onnx"), "h100", mode="train")


def test_an_exported_program_is_the_module(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the extra torch is not installed")
    nn = torch.nn
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 4))
    module = nn.Sequential(*layers).eval()
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(module, (torch.randn(2, 3, 16, 16),)), path)
    ours, theirs = predictor.trace(module, "float[2,3,16,16]"), model_of(path)
    assert any(isinstance(op, Convolution) for op in ops_of(path))
    first, second = (predictor.predict(m, "h100") for m in (ours, theirs))
    assert (first.flops, first.parameters) == (second.flops, second.parameters)
    assert second.gpu_busy_s == pytest.approx(first.gpu_busy_s, rel=0.01)
    (tmp_path / "bad.pt2").write_bytes(b"no archive")
    with pytest.raises(RequestError, match=r"cannot be read as an archive of torch\.export"):
        model_of(tmp_path / "bad.pt2")


def test_a_product_with_a_matrix_to_add_copies_it_first(tmp_path: Path) -> None:
    """Each node but the last of a call has a result, which the next one reads; a compiler fuses no copy of another."""
    path = model(tmp_path / "small.onnx")
    made = onnx.load_model_from_string(path.read_bytes())
    del made.graph.node[4:]
    made.graph.node.append(helper.make_node("Reshape", ["h", "rows"], ["flat"]))
    made.graph.initializer.append(helper.make_tensor("rows", TensorProto.INT64, (2,), [16, 24]))
    made.graph.initializer.append(helper.make_tensor("wide", TensorProto.FLOAT, (24, 24), [0.0] * 576))
    made.graph.initializer.append(helper.make_tensor("grid", TensorProto.FLOAT, (16, 24), [0.0] * 384))
    for name in ("p", "q"):
        made.graph.node.append(helper.make_node("Gemm", ["flat", "wide", "grid"], [name]))
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("p", TensorProto.FLOAT, [16, 24]))
    path.write_bytes(made.SerializeToString())
    nodes = [node for node, _ in model_of(path).source.record(Step(act_dtype="bf16"), None).graph.nodes()]  # type: ignore[attr-defined]
    copies = [node for node in nodes if node.name == "Gemm" and not isinstance(node.op, Gemm)]
    products = [node for node in nodes if node.name == "Gemm" and isinstance(node.op, Gemm)]
    assert len(copies) == len(products) == 2
    assert all(copy.outputs[0] in product.inputs for copy, product in zip(copies, products, strict=True))
    assert predictor.predict(path, "h100", execution="compile").latency_s > 0


def test_what_no_onnx_graph_says_is_one_line(tmp_path: Path) -> None:
    """An axis that is not there, sizes below 0, a circle, a node short of inputs, half a file, a pipe."""
    path = model(tmp_path / "small.onnx")
    whole = path.read_bytes()

    def changed(change: Callable[[Any], Any]) -> None:
        made = onnx.load_model_from_string(whole)
        change(made.graph)
        path.write_bytes(made.SerializeToString())

    def circle(graph: Any) -> None:
        graph.node[2].input[0] = "s"

    def axis(graph: Any, node: int, value: int) -> None:
        del graph.node[node].attribute[:]
        graph.node[node].attribute.append(helper.make_attribute("axis", value))

    def weight(graph: Any) -> None:
        graph.initializer[0].dims[0] = -50

    changes: list[Callable[[Any], Any]] = [
        circle, weight, lambda graph: axis(graph, 6, 99), lambda graph: axis(graph, 1, 99),
        lambda graph: axis(graph, 0, -99), lambda graph: graph.node[2].input.pop(),
        lambda graph: graph.node.reverse(), lambda graph: graph.node[2].input.__setitem__(1, "gone"),
        lambda graph: graph.node.add().CopyFrom(graph.node[2]), lambda graph: graph.node[2].output.__setitem__(0, "b"),
    ]  # fmt: skip
    for change in changes:
        changed(change)
        with pytest.raises(RequestError) as caught:
            predictor.predict(path, "h100")
        assert "\n" not in str(caught.value)
    for data in (b"", whole[: len(whole) // 2], whole[:40]):
        path.write_bytes(data)
        with pytest.raises(RequestError) as caught:
            predictor.predict(path, "h100")
        assert "\n" not in str(caught.value)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RequestError, match="is a pipe"):
        model_of(path)
