"""Fusion: what an engine's fields say is joined, nothing else is; work is conserved and edges stay whole."""

from __future__ import annotations

import ast
import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import predictor
from predictor.engines import DECODE, EAGER, PREFILL, Engine, engine, names
from predictor.engines.pytorch.engine import COMPILE
from predictor.errors import TilecastError
from predictor.formats.parts import Format, Formats
from predictor.graph import Graph, Node
from predictor.graph.saved import saved_tensors
from predictor.graph.saved_graph import load_recording
from predictor.graph.tensor import ACTIVATION, GRADIENT
from predictor.models.built import Step, build, load_config
from predictor.ops import Attention, Gemm, MoE, Norm
from predictor.ops.base import Op
from predictor.passes.autograd import joint
from predictor.passes.fuse import fuse
from predictor.passes.fuse_kinds import HOLDS
from predictor.passes.quantize import quantize
from predictor.passes.recompute import recompute
from tests.catalogue import MODELS as EVERY

CORPUS = Path(__file__).parents[1] / "fuzzing" / "corpus"
STEPS = {
    "forward": Step("forward", 2, 16, act_dtype="bf16"),
    "prefill": Step("prefill", 1, 16, act_dtype="fp32", attention="flash", logits="last"),
    "ragged": Step("prefill", 3, 16, act_dtype="bf16", attention="flash", logits="last", lens=(16, 3, 3)),
    "decode": Step("decode", 2, 1, 40, act_dtype="fp16", attention="flash", logits="last"),
    "math decode": Step("decode", 2, 1, 40, act_dtype="fp16", logits="last"),
    "train": Step("train", 2, 16, act_dtype="bf16", training=True),
}
#: One of each architecture, and of each way to lay out its layers.
MODELS = (
    "gpt2", "bert-base", "opt-1.3b", "opt-350m", "bloom-560m", "mpt-7b", "llama-3.2-1b", "gemma-2-2b", "gemma-3-4b",
    "phi-3-mini", "qwen3-0.6b", "mixtral-8x7b", "deepseek-v2-lite", "deepseek-v3", "t5-small", "switch-base-8",
)  # fmt: skip


def graphs(model: str, layers: int = 0) -> list[Graph]:
    """The eager graphs of a model in every mode that it has; with no more than so many layers."""
    config = load_config(model)
    if layers:
        config = replace(
            config, layers=layers, encoder_layers=min(layers, config.encoder_layers), windows=config.windows[:layers]
        )
    return [build(config, step) for mode, step in STEPS.items() if config.causal or step.mode in ("forward", "train")]


def nodes_of(graph: Graph) -> list[Node]:
    return [node for block in graph.blocks for node in block.nodes]


def ops_of(graph: Graph) -> Counter[Op]:
    """How often each operator runs; a kernel that nodes share counts by their shares."""
    found: Counter[Op] = Counter()
    for node, times in graph.nodes():
        found[node.op] += round(times * 1e9)
    return found


def products(graph: Graph) -> float:
    return sum(n.op.flops() * times for n, times in graph.nodes() if isinstance(n.op, (Gemm, Attention, MoE)))


def moved(graph: Graph) -> float:
    return sum(n.op.bytes_moved() * times for n, times in graph.nodes())


def layer(graph: Graph) -> dict[str, Node]:
    return {node.name: node for block in graph.blocks if "layer" in block.name for node in block.nodes}


def test_an_engine_that_fuses_nothing_gets_the_very_same_graph() -> None:
    for graph in graphs("llama-3.2-1b"):
        assert fuse(graph, EAGER) is graph
        assert fuse(graph, Engine("toy", fuses=False, serves=True, rotates=True)) is graph


@pytest.mark.parametrize("of", names())
@pytest.mark.parametrize("model", EVERY)
def test_work_is_conserved_and_nothing_is_added(model: str, of: str) -> None:
    config = load_config(model)
    step = STEPS["forward"]
    graph = build(config, step)
    fused = fuse(graph, engine(of))
    assert products(fused) == pytest.approx(products(graph), rel=1e-12)
    assert fused.parameters() == graph.parameters()
    assert sum(t for _, t in fused.nodes()) <= sum(t for _, t in graph.nodes())
    assert moved(fused) <= moved(graph)


@pytest.mark.parametrize("of", [name for name in names() if engine(name).fuses])
@pytest.mark.parametrize("model", MODELS)
def test_every_mode_keeps_its_products_and_its_edges(model: str, of: str) -> None:
    for graph in graphs(model):
        fused = fuse(graph, engine(of))
        assert products(fused) == pytest.approx(products(graph), rel=1e-12)
        assert fused.parameters() == graph.parameters()
        assert len(nodes_of(fused)) < len(nodes_of(graph))
        more = engine(of).adds_qkv_bias or engine(of).trains  # in a kernel of its own; a loss of several kernels
        assert moved(fused) < moved(graph) or more
        assert unmade(graph) == [] and unmade(fused) == []


def unmade(graph: Graph) -> list[str]:
    """Nodes that read an activation which no node before them makes, and that no run before them hands on."""
    made: set[int] = set()
    found = []
    for block in graph.blocks:
        handed = {id(pair[0].storage) for pair in (block.carried, block.branch) if pair}
        for node in block.nodes:
            read = {id(t.storage) for t in node.inputs if t.role == ACTIVATION}
            if not read <= made | handed:
                found.append(f"{block.name}: {node.name}")
            made |= {id(t) for t in node.outputs}
        for pair in (block.carried, block.branch):
            if pair and id(pair[1].storage) not in made:
                found.append(f"{block.name}: {pair[1]} is not made")
    return found


@pytest.mark.parametrize("of", ["compile", "vllm", "fastertransformer"])
@pytest.mark.parametrize("model", MODELS)
def test_fusion_commutes_with_unrolling(model: str, of: str) -> None:
    for graph in graphs(model, layers=4):
        first, second = fuse(graph, engine(of)).unrolled(), fuse(graph.unrolled(), engine(of))
        assert ops_of(first) == ops_of(second)
        assert [n.name for n in nodes_of(first)] == [n.name for n in nodes_of(second)]
        assert unmade(first) == [] and unmade(second) == []


def test_a_sum_is_done_by_the_norm_that_reads_it() -> None:
    """n elements, 2 bytes: two terms and the weight in, the sum and its norm out, in fp32 what the rows' norms are."""
    nodes = layer(fuse(build(load_config("llama-3.2-1b"), STEPS["forward"]), COMPILE))
    n, h = 2 * 16 * 2048, 2048
    for name in ("attention norm", "mlp norm"):
        node = nodes[name]
        assert node.op.bytes_moved() == 2 * (2 * n + h + 2 * n) + 4 * n / h
        assert [t.elements for t in node.inputs] == [n, n, h] and [t.elements for t in node.outputs] == [n, n]
    assert nodes["attention out"].outputs[0] in nodes["mlp norm"].inputs
    assert nodes["mlp norm"].outputs[0] is not nodes["mlp gate_up"].inputs[0]  # which reads the normed one
    assert nodes["mlp norm"].outputs[1] is nodes["mlp gate_up"].inputs[0]


def test_the_last_sum_of_a_layer_is_done_by_the_next_one() -> None:
    blocks = fuse(build(load_config("llama-3.2-1b"), STEPS["forward"]), COMPILE).blocks
    one = next(b for b in blocks if b.name == "layer")
    norm, down = one.nodes[0], one.nodes[-1]
    assert one.carried and one.branch
    assert (one.carried[0], one.branch[0]) == norm.inputs[:2]
    assert one.branch[1] is down.outputs[0]
    final = blocks[blocks.index(one) + 1].nodes[0]
    assert {one.carried[1], one.branch[1]} <= set(final.inputs)


def test_slices_of_a_merged_product_are_its_parts() -> None:
    nodes = layer(fuse(build(load_config("llama-3.2-1b"), STEPS["forward"]), COMPILE))
    merged = nodes["attention qkv"]
    assert merged.outputs[0].axes[-1] == merged.inputs[1].axes[0] == "heads | kv_heads | kv_heads"
    gate, up = nodes["mlp activation"].inputs
    assert gate.base is up.base is nodes["mlp gate_up"].outputs[0] and gate.part and up.part


def test_products_of_other_formats_stay_apart() -> None:
    def layer_of(kv_a: str) -> set[str]:
        formats = Formats(Format("bf16"), Format("fp8"), (("attention.kv_a", Format(kv_a)),))
        return set(layer(fuse(quantize(build(load_config("deepseek-v3"), STEPS["forward"]), formats), COMPILE)))

    assert "attention q_a kv_a" in layer_of("fp8")
    assert {"attention q_a", "attention kv_a"} <= layer_of("bf16")


def test_engines_quantize_in_the_kernel_before_the_product() -> None:
    formats = Formats(Format("bf16"), Format("fp8"))
    for model in ("llama-3.2-1b", "gpt2", "deepseek-v2-lite"):
        plain = build(load_config(model), STEPS["forward"])
        fused = fuse(quantize(plain, formats), COMPILE)
        assert [n.name for n in nodes_of(fused)] == [n.name for n in nodes_of(fuse(plain, COMPILE))]
        assert [n.op.dtype for n in nodes_of(fused) if n.name == "mlp down"] == ["fp8"]
        assert unmade(fused) == []


#: A toy engine's field, the model and pass that show it, and what it adds to and takes from a layer.
FIELDS: list[tuple[dict[str, object], str, str, set[str], set[str]]] = [
    ({"appends": ()}, "llama-3.2-1b", "prefill", {"cache append"}, set()),
    ({"appends": (PREFILL,)}, "llama-3.2-1b", "decode", {"cache append"}, set()),
    ({"appends": (DECODE,)}, "llama-3.2-1b", "decode", set(), set()),
    ({"rotates": True}, "llama-3.2-1b", "prefill", set(), {"rotary"}),
    ({"rotates": True}, "llama-3.2-1b", "math decode", set(), set()),
    ({"ends_in_sum": True}, "gpt2", "prefill", {"mlp residual"}, set()),
    ({"ends_in_sum": True}, "bert-base", "forward", set(), set()),
    ({"ends_in_sum": True}, "t5-small", "forward", set(), set()),
    ({"adds_qkv_bias": True}, "gpt2", "prefill", {"attention qkv bias"}, set()),
    ({"adds_qkv_bias": True}, "gpt2", "decode", set(), set()),
    ({"adds_qkv_bias": True}, "llama-3.2-1b", "prefill", set(), set()),
    ({"serves": False}, "gpt2", "prefill", {"cache append"}, set()),
]


@pytest.mark.parametrize(("fields", "model", "mode", "more", "less"), FIELDS)
def test_a_toy_engine_gets_what_its_fields_say(
    fields: dict[str, object], model: str, mode: str, more: set[str], less: set[str]
) -> None:
    toy = Engine("toy", serves=True)
    graph = build(load_config(model), STEPS[mode])
    plain, other = fuse(graph, toy), fuse(graph, replace(toy, **fields))  # type: ignore[arg-type]
    before, after = set(layer(plain)), set(layer(other))
    assert (after - before, before - after) == (more, less)
    assert unmade(other) == []


def test_a_norm_writes_its_sum_where_that_is_read_again() -> None:
    graph = build(load_config("bert-base"), STEPS["forward"])
    for serves in (False, True):
        ops = [n.op for n in nodes_of(fuse(graph, Engine("toy", serves=serves))) if isinstance(n.op, Norm)]
        sums = [op for op in ops if op.residual]
        assert len(sums) == 2 and all(op.sum_kept is not serves for op in sums)


def test_scopes_are_whole() -> None:
    """A module's nodes lie side by side, but for the parts of a product that engines merge."""
    for model in MODELS:
        for graph in graphs(model):
            for block in graph.blocks:
                runs = [scope for scope, _ in itertools.groupby(block.nodes, lambda n: n.scope)]
                again = {scope for scope, times in Counter(runs).items() if times > 1}
                assert again <= {"attention qkv", "attention q_a kv_a", "token embedding"}, (model, block.name)
                assert all(runs), (model, block.name)


def test_builders_know_of_no_engine() -> None:
    folder = Path(predictor.__file__).parent / "models" / "built"
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            words = [getattr(node, field, None) for field in ("id", "attr", "arg", "module", "name")]
            said = [word for word in words if isinstance(word, str)]
            assert not [w for w in said if w in ("fused", "engine") or "engines" in w.split(".")], f"{path}: {said}"


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("attention", ["math", "flash"])
@pytest.mark.parametrize("model", MODELS)
def test_fusion_after_autograd_is_autograd_after_fusion(model: str, attention: str, accumulate: bool) -> None:
    """A module that is one kernel has that kernel's gradients, wherever the backward pass was written."""
    forward = build(load_config(model), Step("train", 2, 16, act_dtype="bf16", attention=attention, training=True))
    eager = joint(forward, accumulate)
    first, second = fuse(eager, COMPILE), joint(fuse(forward, COMPILE), accumulate)
    assert [(n.op, n.name, n.scope) for n in nodes_of(first) if n.phase == "forward"] == [
        (n.op, n.name, n.scope) for n in nodes_of(second) if n.phase == "forward"
    ]
    assert ops_of(first) == ops_of(second)
    assert Counter(n.name for n in nodes_of(first)) == Counter(n.name for n in nodes_of(second))
    assert len(nodes_of(first)) < len(nodes_of(eager)) and moved(first) < moved(eager)
    kept = [sum(entry.nbytes for entry in saved_tensors(graph)) for graph in (first, second)]
    assert kept[0] == pytest.approx(kept[1], rel=1e-12)
    assert unmade(first) == [] and set(lost(first)) <= set(lost(eager))  # what the backward pass starts from


def lost(graph: Graph) -> list[str]:
    """What backward nodes read and no node makes: the gradients that the backward pass starts from."""
    made = {id(t.storage) for node in nodes_of(graph) for t in node.outputs}
    handed = {id(p[0].storage) for b in graph.blocks for p in (b.carried, b.branch) if p}
    found = []
    for block in graph.blocks:
        for node in block.nodes if block.backward_of is not None else ():
            for t in node.inputs:
                if t.role in (ACTIVATION, GRADIENT) and id(t.storage) not in made | handed:
                    found.append(repr(t))
    return found


@pytest.mark.parametrize("attention", ["math", "flash"])
@pytest.mark.parametrize("kind", ["full", "selective"])
@pytest.mark.parametrize("model", ["gpt2", "llama-3.2-1b", "bert-base", "t5-small", "deepseek-v3"])
def test_what_runs_again_is_fused_as_it_was(model: str, kind: str, attention: str) -> None:
    forward = build(load_config(model), Step("train", 2, 16, act_dtype="bf16", attention=attention, training=True))
    eager = recompute(joint(forward), kind)
    first, second = fuse(eager, COMPILE), recompute(joint(fuse(forward, COMPILE)), kind)
    if kind == "full":
        assert Counter(n.name for n in nodes_of(first)) == Counter(n.name for n in nodes_of(second))
        assert ops_of(first) == ops_of(second)
    assert first.flops() <= eager.flops()
    ahead = fuse(joint(forward), COMPILE)
    more = first.flops() - ahead.flops()
    if kind == "full" or attention == "math":
        assert 0 < more < sum(n.op.flops() * t for n, t in ahead.nodes() if n.phase == "forward")
    kept = [sum(entry.nbytes for entry in saved_tensors(graph)) for graph in (first, second, ahead)]
    assert kept[0] == pytest.approx(kept[1], rel=1e-12) and kept[0] <= kept[2]
    assert set(lost(first)) <= set(lost(eager))


@pytest.mark.parametrize("kind", sorted(HOLDS))
def test_nodes_of_a_saved_graph_that_are_not_what_their_module_says_run_as_they_are(kind: str, tmp_path: Path) -> None:
    """Each scope of a graph in turn is called by the word: an answer, and products are as many."""
    graph = json.loads((CORPUS / "graph-forward.json").read_text(encoding="utf-8"))
    scopes = sorted({node[-1] for block in graph["blocks"] for node in block[-1]})
    assert len(scopes) > 10
    saved = tmp_path / "graph.json"
    for execution in ("compile", "tensorrt_llm"):
        products = []
        for scope in (None, *scopes):
            words = [f"x {kind}" if place == scope else word for place, word in enumerate(graph["words"])]
            saved.write_text(json.dumps(graph | {"words": words}), encoding="utf-8")
            answer = predictor.predict(str(saved), "h100", artifacts="roofline", execution=execution, top=40)
            products.append(sum(node.count for node in answer.nodes if node.op == "linear"))
        assert set(products) == {products[0]} != {0}, products


def test_recorded_nodes_that_make_nothing_are_not_one_kernel() -> None:
    """Two copies whose results the file does not name stay two: nothing says what a kernel of both would write."""
    graph = load_recording(CORPUS / "graph-recorded.json").graph
    before = [node for node, _ in graph.nodes()]
    assert sum(not node.outputs for node in before) == 2
    after = [node for node, _ in fuse(graph, COMPILE, "math").nodes()]
    assert [node.op for node in after if not node.outputs] == [node.op for node in before if not node.outputs]


def test_a_saved_node_without_its_tensors_is_one_line(tmp_path: Path) -> None:
    """Every node in turn loses what it reads, then what it makes: an answer, or a line."""
    saved, text = tmp_path / "graph.json", (CORPUS / "graph-forward.json").read_text(encoding="utf-8")
    refused = 0
    for place in range(sum(len(block[-1]) for block in json.loads(text)["blocks"])):
        for column in (2, 3):
            graph = json.loads(text)
            node = [each for block in graph["blocks"] for each in block[-1]][place]
            node[column] = []
            saved.write_text(json.dumps(graph), encoding="utf-8")
            said = ""
            try:
                assert predictor.predict(str(saved), "h100", artifacts="roofline", execution="compile").latency_s > 0
            except TilecastError as error:
                said = str(error)
            assert "\n" not in said
            refused += "makes no tensor" in said or "expected two tensors" in said
    assert refused > 20
