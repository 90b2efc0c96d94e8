"""What callers ask of a model is the same whatever it was made from: a config.json, a module, a file, a pipeline."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import predictor
from predictor.engines import EAGER, engine
from predictor.errors import RequestError, UnsupportedError
from predictor.formats.parts import Formats
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.recording import Recording
from predictor.graph.tensor import WEIGHT, Tensor
from predictor.models.base import Feature, Local, Model, whole
from predictor.models.built import ModelConfig, load_config
from predictor.models.forms import model_of
from predictor.models.step import Step
from predictor.models.traced.model import LayerStack, TracedModel
from predictor.ops.gemm import Gemm
from predictor.passes.autograd import joint, with_backward
from predictor.simulate.lower import PASSES, Lowering, lower

PACKAGE = Path(predictor.__file__).parent
#: Classes of models and of what they are traced from.
ORIGINS = {"ModelConfig", "TracedModel", "Pipeline", "Saved", "HuggingFace", "Listed", "Onnx", "Alone", "Module"}
#: Sizes of a transformer, which a network of convolutions has none of.
SIZES = ("hidden", "heads", "kv_heads", "head_dim", "layers", "intermediate", "vocab", "encoder_layers", "windows")
FORWARD = Step("forward", 2, 64, act_dtype="bf16", attention="flash")
TRAIN = Step("train", 2, 64, act_dtype="bf16", attention="flash", training=True)


def forks(path: Path) -> list[str]:
    """Places of a file that ask which kind of model they have."""
    places = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = {n.id for argument in node.args[1:] for n in ast.walk(argument) if isinstance(n, ast.Name)}
            if node.func.id == "recorded" or (node.func.id == "isinstance" and names & ORIGINS):
                places.append(f"{path}:{node.lineno}")
    return places


def test_nothing_outside_of_models_asks_where_a_model_came_from() -> None:
    outside = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "models" not in path.parents]
    assert len(outside) > 300
    assert not [fork for path in outside for fork in forks(path)]


def test_one_pass_alone_asks_how_a_graph_is_written() -> None:
    """Its kernels fuse by the rules of builders, or by those of a compiler; other passes are the same for both."""
    outside = (path for path in PACKAGE.rglob("*.py") if not {"models", "graph"} & {p.name for p in path.parents})
    readers = {
        path.relative_to(PACKAGE).as_posix()
        for path in outside
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "recorded"
    }
    assert readers == {"passes/fuse.py"}


def test_a_fork_would_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "caller.py"
    file.write_text("def f(m):\n    return isinstance(m, (int, TracedModel)) or recorded(m) is None\n")
    assert len(forks(file)) == 2


def traced(mode: str = "forward") -> TracedModel:
    """Two convolutions and a normalization."""
    torch = pytest.importorskip("torch")

    def net() -> Any:
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.GroupNorm(4, 16), torch.nn.Conv2d(16, 3, 3, padding=1)
        )

    return predictor.trace(net, "float[2,3,32,32]")


def test_a_network_of_convolutions_has_no_sizes_of_a_transformer() -> None:
    model = traced()
    assert isinstance(model, Model) and not isinstance(model, ModelConfig)
    assert not [name for name in SIZES if hasattr(model, name)]
    assert all(hasattr(load_config("gpt2"), name) for name in SIZES)
    assert predictor.predict(model, "h100").latency_s > 0.0


@pytest.mark.parametrize("feature", list(Feature))
def test_a_feature_is_refused_with_a_reason_or_there(feature: Feature) -> None:
    built, module = load_config("gpt2"), traced()
    passes = (Feature.CONTEXT_OF_A_PASS, Feature.REPLICAS_OF_A_PASS)
    assert built.supports(feature) == (feature not in (*passes, Feature.PLAN))
    assert module.supports(feature) == (feature in (Feature.PLAN, Feature.LENGTH))
    for model in (built, module):
        assert bool(model.refusal(feature)) != model.supports(feature)


def test_a_pipeline_has_parts_and_its_batch_is_that_of_all_gpus(tmp_path: Path) -> None:
    file = tmp_path / "ranker.yaml"
    file.write_text(
        "sizes: {batch: 8}\nparts:\n  bottom: {ops: [{mlp: [64, 32], rows: batch/gpus}]}\n"
        "  top: {ops: [{mlp: [32, 1], rows: batch/gpus}], times: 2}\n"
    )
    model = model_of(str(file))
    assert [(part.name, part.times) for part in model.parts()] == [("bottom", 1), ("top", 2)]
    assert model.with_sizes(gpus=4).parts()[0].model.graph(FORWARD).blocks[0].nodes[0].op.flops() == 2 * 2 * 64 * 32
    assert [feature for feature in Feature if model.supports(feature)] == [
        Feature.REPLICAS_OF_A_PASS, Feature.PLAN, Feature.LENGTH,
    ]  # fmt: skip
    assert not load_config("gpt2").parts()


def shown(graph: Graph) -> list[object]:
    return [(b.name, b.repeat, n.name, n.op, n.count, n.phase, n.share) for b in graph.blocks for n in b.nodes]


@pytest.mark.parametrize("execution", ["eager", "compile"])
@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize("kind", ["built", "traced"])
def test_every_model_goes_through_the_same_list(kind: str, mode: str, execution: str) -> None:
    model = load_config("gpt2") if kind == "built" else traced()
    step, accumulate = (TRAIN, False) if mode == "train" else (FORWARD, None)
    how = Lowering(model, step, engine=engine(execution), accumulate=accumulate)
    graph = model.graph(step, accumulate)
    for each in PASSES:
        graph = each(graph, how)
    assert shown(graph) == shown(lower(how))


@pytest.mark.parametrize("each", PASSES)
def test_a_pass_with_nothing_to_do_gives_the_very_same_graph(each: Any) -> None:
    model = load_config("gpt2")
    graph = model.graph(FORWARD)
    assert each(graph, Lowering(model, FORWARD)) is graph


def test_a_backward_pass_that_was_recorded_is_the_one_that_runs() -> None:
    forward = load_config("gpt2").graph(TRAIN)
    both = with_backward(forward, accumulate=False)
    assert shown(both) == shown(joint(forward)) != shown(forward)
    assert with_backward(both, accumulate=False) is both and with_backward(forward, None) is forward


@dataclass(frozen=True, slots=True)
class Square(Model):
    """A model that somebody else brings: one product of ``width`` x ``width``, of nothing that this package knows."""

    name: str = "square"
    model_type: str = "square"
    max_positions: int = 4096
    width: int = 1024
    checkpoint: None = None
    assumed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def refusal(self, feature: Feature) -> str:
        return "" if feature is Feature.LENGTH else "not built for squares; leave it out"

    def check_tensor(self, tp: int, spread: bool = False) -> None:
        if tp > 1:
            raise RequestError(f"--tp {tp}: a square is not cut; expected 1")

    def graph(self, step: Step, accumulate: bool | None = None, tp: int = 1) -> Graph:
        n, dtype = self.width, step.act_dtype
        x, w, y = (
            Tensor("x", ("d0", "d1"), (step.tokens, n), dtype), Tensor("w", ("d0", "d1"), (n, n), dtype, WEIGHT),
            Tensor("y", ("d0", "d1"), (step.tokens, n), dtype),
        )  # fmt: skip
        return Graph((Block("square", (Node(Gemm(dtype, step.tokens, n, n), "square", (x, w), (y,)),)),))

    def recording(self, step: Step, accumulate: bool | None, tp: int, dtype: str) -> Recording:
        return Recording(self.name, step.mode, dtype, self.graph(step), self.parameters(), 0, 0.0)

    def logits(self, graph: Graph, step: Step) -> int:
        return 0

    def stack(self, graph: Graph | None = None) -> LayerStack:
        return LayerStack(self.name)

    def parameters(self, tp: int = 1) -> int:
        return self.width**2

    def weight_bytes(self, formats: Formats, local: Local = whole, tp: int = 1) -> float:
        return self.width**2 * formats.high.weight_bytes

    def kv_bytes(self, batch: int, tokens: int, kv_dtype: str, local: Local = whole, tp: int = 1) -> float:
        return 0.0


def test_a_model_from_outside_is_forecast_like_any_other() -> None:
    answer = predictor.predict(Square(), "h100", batch=4, seq_len=256, dtype="bf16", execution=EAGER.name)
    assert answer.parameters == 1024**2 and answer.flops == 2 * 4 * 256 * 1024**2
    assert answer.memory.weights == 2 * 1024**2
    with pytest.raises(UnsupportedError, match="--sp: not built for squares"):
        predictor.predict(Square(), "h100", sp=True, tp=2)
