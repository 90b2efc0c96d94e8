"""Built graphs against NeuSight's traces: the operators of whole models as torch.fx saw them, one layer written out.

A trace holds the model with its first layer only; its rows name the module or function, the input shapes and the output
shape. The copies that torch.matmul makes of strided operands happen inside one row of a trace; they are nodes of their
own in a graph and are left out of the comparison.
"""

from __future__ import annotations

import ast
import csv
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import data_folder

from predictor.files.read import read_json
from predictor.graph import Graph
from predictor.models.built import ModelConfig, Step, build, config_from_dict
from predictor.models.built.load import CONFIGS as PACKAGE_CONFIGS
from predictor.ops import Attention, Dropout, Elementwise, Embedding, Gemm, Norm, Softmax

DATA = data_folder() or Path("absent")
LABELS = DATA / "neusight/scripts/asplos/label"
CONFIGS = DATA / "ground_truth/configs"
CONFIG_OF = {
    ("bert_large", "inf"): "neusight-bert-large-classifier", ("bert_large", "train"): "neusight-bert-large-pretraining",
    ("gpt2_large", "inf"): "gpt2-large", ("gpt2_large", "train"): "gpt2-large", ("gpt3_xl", "inf"): "neusight-gpt3-xl",
    ("gpt3_27", "inf"): "neusight-gpt3-2.7b", ("opt_13", "inf"): "opt-1.3b",
}  # fmt: skip
_TRACES = sorted({p.name: p for p in LABELS.glob("*/*.csv")}.values())

pytestmark = pytest.mark.skipif(not _TRACES, reason="no NeuSight labels: set TILECAST_DATA to the data folder")

Key = tuple[str, int]
_MATMUL_COPIES = (" q copy", " k copy", " v copy")


def trace_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def gemms_of_trace(rows: list[dict[str, str]]) -> Counter[tuple[int, int, int, int]]:
    """(batch, m, n, k) of every product."""
    found: Counter[tuple[int, int, int, int]] = Counter()
    for row in rows:
        inputs, output = ast.literal_eval(row["input_shapes"]), ast.literal_eval(row["output_shape"])
        name, target = row["Name"], row["target"]
        if "method addmm" in target:
            found[1, inputs[1][0], inputs[2][1], inputs[1][1]] += 1
        elif "method matmul" in target or "method bmm" in target:
            found[math.prod(output[:-2]), output[-2], output[-1], inputs[0][-1]] += 1
        elif row["op"] == "call_module" and is_linear(name):
            found[1, math.prod(output[:-1]), output[-1], inputs[0][-1]] += 1
    return found


def is_linear(name: str) -> bool:
    ends = ("query", "key", "value", "dense", "proj", "fc1", "fc2", "lm_head", "classifier", "decoder", "relationship")
    t5 = ("attention_q", "attention_k", "attention_v", "attention_o", "_wi", "_wo")
    return name.endswith((*ends, *t5))


def kernels_of_trace(rows: list[dict[str, str]], train: bool) -> Iterator[tuple[str, int, float]]:
    """(kind, output elements, bytes moved) of every memory-bound kernel of the layer."""
    for row in rows:
        output = ast.literal_eval(row["output_shape"])
        inputs = [s for s in ast.literal_eval(row["input_shapes"]) if s != [1]]
        name, target, n = row["Name"], row["target"], math.prod(output)
        kind = kind_of_row(name, target, len(inputs), row["input_contiguous"], train)
        if kind is None:
            continue
        read = sum(math.prod(shape) * 4 for shape in inputs)
        if kind == "where":
            read -= math.prod(inputs[0]) * 3  # the mask is of bytes
        if kind == "norm":
            read += 2 * output[-1] * 4
        written = n * (5 if kind == "dropout" else 4)
        if kind == "norm":
            written += 2 * n // output[-1] * 4
        yield kind, n, read + written


def kind_of_row(name: str, target: str, inputs: int, contiguous: str, train: bool) -> str | None:
    if "layer_norm" in name or name.endswith(("ln_1", "ln_2")):
        return "norm"
    if "dropout" in name:
        return "dropout" if train else None
    if name.startswith(("contiguous", "reshape")):
        return "copy" if ast.literal_eval(contiguous)[0] is False else None
    if name.endswith("activation_fn"):
        return "relu"
    table = {
        "function softmax": "softmax", "function gelu": "gelu", "function truediv": "div_scalar", "method tanh": "tanh",
        "method pow": "pow_scalar", "method where": "where", "method max": "max_scalar",
        "function add>": "add" if inputs == 2 else "add_scalar",
        "function mul>": "mul" if inputs == 2 else "mul_scalar", "built-in function gelu": "gelu",
    }  # fmt: skip
    return next((kind for word, kind in table.items() if word in target), None)


def layer_rows(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Rows of the layer: from its first norm or projection on, up to what follows it."""
    names = [row["Name"] for row in rows]
    first = next(i for i, x in enumerate(names) if "layer_0" in x or "h_0_" in x or "layers_0" in x)
    ends = ("transformer_ln_f", "model_decoder_final_layer_norm", "bert_pooler_dense")
    last = next(i for i, x in enumerate(names) if x in ends)
    tensors = [r for r in rows[first:last] if r["output_shape"] not in ("(1,)", "") and r["dtype"] == "torch.float32"]
    return [r for r in tensors if len(ast.literal_eval(r["output_shape"])) > 1]


@pytest.mark.parametrize("path", [p for p in _TRACES if "switch" not in p.name], ids=lambda p: p.stem)
def test_graph_equals_the_trace(path: Path) -> None:
    model, mode, seq_len, batch = path.stem.split("-")[:4]
    train = mode == "train"
    config = config_from_dict(read_json(CONFIGS / f"{CONFIG_OF[model, mode]}.json"))
    step = Step("train" if train else "forward", int(batch), int(seq_len), training=train)
    graph = build(config, step)
    rows = trace_rows(path)

    nodes = [node for block in graph.blocks if block.name != "loss" for node in block.nodes]
    built: Counter[tuple[int, int, int, int]] = Counter()
    for node in nodes:
        if isinstance(node.op, Gemm):
            built[node.op.batch, node.op.m, node.op.n, node.op.k] += node.count
    assert built == gemms_of_trace(rows)
    assert not any(isinstance(node.op, Attention) for node in nodes)

    layer = next(block for block in graph.blocks if block.name == "layer")
    assert layer.repeat == config.layers
    kernels: Counter[Key] = Counter()
    moved: dict[Key, float] = {}
    for node in layer.nodes:
        if node.name.endswith(_MATMUL_COPIES) or isinstance(node.op, (Gemm, Embedding)):
            continue
        key = _key(node.op)
        if key[1] == 1:
            continue
        kernels[key] += node.count
        moved[key] = moved.get(key, 0.0) + node.op.bytes_moved() * node.count
    expected: Counter[Key] = Counter()
    expected_bytes: dict[Key, float] = {}
    for kind, n, size in kernels_of_trace(layer_rows(rows), train):
        expected[kind, n] += 1
        expected_bytes[kind, n] = expected_bytes.get((kind, n), 0.0) + size
    assert kernels == expected
    assert moved == pytest.approx(expected_bytes, rel=1e-9)


def switch_config() -> ModelConfig:
    """What the one Switch trace shows: switch-base with 4 experts, each on a block padded to its capacity."""
    data = json.loads((PACKAGE_CONFIGS / "switch-base-8.json").read_text())
    return config_from_dict({**data, "num_experts": 4, "_note": "padded to capacity"}, "switch4")


@pytest.mark.parametrize("path", [p for p in _TRACES if p.name.startswith("switch4")], ids=lambda p: p.stem)
def test_switch_graph_equals_the_trace(path: Path) -> None:
    _, _, seq_len, batch = path.stem.split("-")[:4]
    config = switch_config()
    graph = build(config, Step("forward", int(batch), int(seq_len)))
    rows = trace_rows(path)
    built: Counter[tuple[int, int, int, int]] = Counter()
    kernels: Counter[Key] = Counter()
    for node, times in graph.nodes():
        if isinstance(node.op, Gemm):
            built[node.op.batch, node.op.m, node.op.n, node.op.k] += times
        elif isinstance(node.op, (Elementwise, Softmax)) and not node.name.startswith(("encoder rel", "decoder rel")):
            kernels[_key(node.op)] += times
    assert built == gemms_of_trace(rows)
    n, h, scores = config_tokens(path), config.hidden, config.heads * int(batch) * int(seq_len) ** 2
    block = int(batch) * config.expert_capacity
    float_rows = [r for r in rows if r["dtype"] == "torch.float32"]
    seen = Counter(r["Name"].rstrip("0123456789").rstrip("_") for r in float_rows)
    assert kernels["pow_scalar", n * h] == seen["pow"] - 2  # two of the router's losses
    activations = sum(r["Name"].endswith("act") for r in rows)
    assert kernels["relu", block * config.intermediate] == activations - dense_layers(config)
    assert kernels["softmax", scores] == 36
    assert kernels["add_", scores] == 36
    assert biases_of(graph, scores) == biases_of_trace(rows, scores)
    blocks = sum(r["Name"].startswith("zeros") and r["output_shape"] == f"({block}, {h})" for r in rows)
    assert kernels["fill", block * h] == blocks


def biases_of(graph: Graph, scores: int) -> tuple[int, int]:
    """Sums of scores and position bias: those whose bias lies in another layout, and the others."""
    strides = [(n.op.stride_bytes, times) for n, times in graph.nodes()
               if isinstance(n.op, Elementwise) and n.op.fn == "add_" and n.op.elements == scores]  # fmt: skip
    return sum(times for s, times in strides if s > 0), sum(times for s, times in strides if s == 0)


def biases_of_trace(rows: list[dict[str, str]], scores: int) -> tuple[int, int]:
    """The same from the trace, which says of every input whether it is contiguous."""
    found: Counter[bool] = Counter()
    for row in rows:
        shapes = ast.literal_eval(row["input_shapes"])
        if "function add>" in row["target"] and [math.prod(s) for s in shapes] == [scores, scores]:
            found[ast.literal_eval(row["input_contiguous"])[1]] += 1
    return found[False], found[True]


def config_tokens(path: Path) -> int:
    return int(path.stem.split("-")[2]) * int(path.stem.split("-")[3])


def dense_layers(config: ModelConfig) -> int:
    sides = ((config.encoder_layers, True), (config.layers, False))
    return sum(not config.is_sparse(i, encoder) for count, encoder in sides for i in range(count))


def _key(op: object) -> Key:
    if isinstance(op, Norm):
        return "norm", op.rows * op.cols
    if isinstance(op, Softmax):
        return "softmax", op.rows * op.cols
    if isinstance(op, (Elementwise, Dropout)):
        return op.fn, op.elements
    raise AssertionError(f"a {type(op).__name__} in an eager layer")
