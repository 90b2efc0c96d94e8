"""Tracing: what PyTorch dispatches for a module becomes a graph: forward, backward and the optimizer's step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import predictor
from predictor.errors import RequestError
from predictor.graph.saved import saved_tensors
from predictor.graph.saved_graph import from_json, load_recording, save_recording, to_json
from predictor.graph.tensor import ACTIVATION
from predictor.models.built import Step
from predictor.models.traced.inputs import inputs_of
from predictor.ops import Attention, Convolution, Elementwise, Gemm, Norm
from predictor.ops.base import BACKWARD

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
nn = torch.nn


class Layer(nn.Module):  # type: ignore[misc]
    """A transformer layer of plain PyTorch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.second = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        b, s, h = x.shape
        q, k, v = (t.view(b, s, 4, h // 4).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, h))
        return x + self.mlp(self.second(x))


class Stack(nn.Module):  # type: ignore[misc]
    """Embedding, layers, a head."""

    def __init__(self, layers: int = 6, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 100, bias=False)

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def traced(module: Any, words: str, mode: str = "forward", dtype: str = "bf16", **more: Any) -> Any:
    """The recording of one pass."""
    step = Step(mode, act_dtype=dtype, attention=more.pop("attention", "flash"), training=mode == "train")
    source = predictor.trace(module, words, **more).source  # type: ignore[attr-defined]
    return source.record(step, False if mode == "train" else None)


def flat(recording: Any) -> list[Any]:
    """Every node with its count in all, as (op, times)."""
    return [(node.op, times) for node, times in recording.graph.nodes()]


def test_a_layer_counts_what_a_hand_counts() -> None:
    found = traced(Stack, "tokens:int64[2,16]")
    b, s, h, v, layers = 2, 16, 64, 100, 6
    products = 2 * b * s * (h * 3 * h + h * h + 2 * h * 4 * h) * layers + 2 * b * s * h * v
    assert sum(op.flops() * n for op, n in flat(found) if isinstance(op, Gemm)) == products
    (attention,) = {op for op, _ in flat(found) if isinstance(op, Attention)}
    assert attention == Attention("bf16", b, 4, 4, s, s, h // 4, causal=True)
    assert found.parameters == sum(p.numel() for p in Stack().parameters())
    assert found.unknown == ()


def test_layers_that_are_alike_are_one_block() -> None:
    """Whatever the depth, a forward graph has one of them, and costs what the layers cost one by one."""
    shallow, deep = (traced(lambda n=n: Stack(n), "tokens:int64[2,16]") for n in (3, 9))
    assert [block.repeat for block in shallow.graph.blocks] == [1, 3, 1]
    assert [block.repeat for block in deep.graph.blocks] == [1, 9, 1]
    layer = deep.graph.blocks[1]
    assert layer.carried is not None and layer.carried[0].shape == layer.carried[1].shape == (2, 16, 64)
    each_flops = sum(node.op.flops() for node in layer.nodes)
    assert deep.graph.flops() - shallow.graph.flops() == pytest.approx(6 * each_flops)


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_the_table_is_asked_once_for_calls_that_are_alike(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third layer and those after it make the calls of the second."""
    from predictor.models.traced import aten

    asked: list[str] = []
    operators = aten.operators
    monkeypatch.setattr(aten, "operators", lambda call: asked.append(call.name) or operators(call))
    counts = []
    for layers in (3, 9):
        asked.clear()
        traced(lambda n=layers: Stack(n), "tokens:int64[2,16]", mode)
        counts.append(len(asked))
    assert counts[0] == counts[1] >= 10


def test_an_operand_that_is_read_twice_is_not_another() -> None:
    """x + x reads one tensor, x + y two, of the same shapes."""

    class Sums(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, y: Any) -> Any:
            return (x + x) * (x + y)

    added = [op for op, _ in flat(traced(Sums, ["x:float[8,8]", "y:float[8,8]"])) if op.fn.startswith("add")]
    assert [op.inputs for op in added] == [1, 2]


def test_a_training_pass_is_the_real_backward_pass() -> None:
    """Two products for each of the forward pass but for the first layer's input; attention's own backward kernel."""
    found = traced(Stack, "tokens:int64[2,16]", "train")
    forward = sum(n for node, n in found.graph.nodes() if isinstance(node.op, Gemm) and node.phase != BACKWARD)
    backward = sum(n for node, n in found.graph.nodes() if isinstance(node.op, Gemm) and node.phase == BACKWARD)
    assert (forward, backward) == (6 * 4 + 1, 2 * (6 * 4 + 1))
    assert sum(n for op, n in flat(found) if isinstance(op, Attention) and op.is_backward) == 6
    backs = [block for block in found.graph.blocks if block.backward_of is not None]
    assert max(block.repeat for block in backs) >= 5
    assert all(found.graph.blocks[b.backward_of].repeat == b.repeat for b in backs)


def test_what_autograd_saves_is_what_its_hooks_see() -> None:
    """Bytes that the backward pass reads of the forward pass, against PyTorch's own hooks on real tensors."""
    model, tokens = Stack(4), torch.zeros(2, 16, dtype=torch.long)
    storages: dict[int, Any] = {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(t: Any) -> Any:
        if t.untyped_storage().data_ptr() not in weights and t.is_floating_point():
            storages[t.untyped_storage().data_ptr()] = t.untyped_storage()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = model(tokens)
    real = sum(s.nbytes() for s in storages.values())
    assert out.requires_grad
    found = traced(lambda: Stack(4), "tokens:int64[2,16]", "train", "fp32")
    ours = sum(entry.nbytes for entry in saved_tensors(found.graph))
    assert ours == pytest.approx(real, rel=0.06)  # the CPU's attention saves a little more than CUDA's


def test_views_are_free_and_copies_cost_what_they_move() -> None:
    class Moves(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            y = x.transpose(0, 1)[1:].unsqueeze(0).expand(3, -1, -1)
            return y.contiguous().add_(1.0)

    found = traced(Moves(), "x:fp32[8,5]", dtype="fp32")
    assert [(op.fn, op.elements) for op, _ in flat(found)] == [("copy", 96), ("add_scalar", 96)]
    copy = flat(found)[0][0]
    assert copy.read_bytes == 4 * 8 * 4  # the expanded axis is read once, the row that was cut off never
    assert found.graph.blocks[0].nodes[0].host_calls == 5  # four views come before it


def test_autocast_casts_as_cuda_does() -> None:
    class Cast(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.LayerNorm(8)

        def forward(self, x: Any) -> Any:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return self.a(self.b(self.a(x)))

    ops = [op for op, _ in flat(traced(Cast(), "x:fp32[4,8]", dtype="fp32"))]
    assert [op.dtype for op in ops if isinstance(op, Gemm)] == ["bf16", "bf16"]
    assert [op.dtype for op in ops if isinstance(op, Norm)] == ["fp32"]
    casts = [op.elements for op in ops if isinstance(op, Elementwise) and op.fn == "cast"]
    assert sorted(casts) == [8, 32, 32, 32, 64]  # weight and bias once, x, into the norm and out of it


def test_checkpointing_runs_the_forward_pass_again() -> None:
    class Again(Layer):
        def forward(self, x: Any) -> Any:
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    plain, again = (traced(cls(64), "x:float[2,16,64]", "train") for cls in (Layer, Again))
    products = [sum(n for op, n in flat(found) if isinstance(op, Gemm)) for found in (plain, again)]
    assert products[1] - products[0] == 4 - 1  # PyTorch stops before the last product, whose result nobody saved
    saved = [sum(entry.nbytes for entry in saved_tensors(found.graph)) for found in (plain, again)]
    assert saved[1] < saved[0] / 4
    nodes = [
        [n for block in found.graph.blocks for n in block.nodes if n.phase == BACKWARD] for found in (plain, again)
    ]
    kept = [sum(t.role == ACTIVATION for n in own for t in n.outputs) for own in nodes]
    assert kept[0] == 0 and kept[1] >= 10  # what runs again makes activations, no gradients
    assert sum(n.host_calls for n in nodes[1]) > 2 * sum(n.host_calls for n in nodes[0])  # framework calls, as forward


def test_a_custom_function_runs_its_own_backward_pass() -> None:
    class Twice(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2.0

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g.exp() * 2.0

    class Uses(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.empty(8))

        def forward(self, x: Any) -> Any:
            return Twice.apply(x * self.w)

    nodes = [node for node, _ in traced(Uses(), "x:float[4,8]", "train").graph.nodes()]
    assert [n.op.fn for n in nodes if n.phase == BACKWARD][:2] == ["exp", "mul_scalar"]


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_a_saved_graph_is_read_again_to_the_bit(mode: str, tmp_path: Path) -> None:
    found = traced(Stack, "tokens:int64[2,16]", mode)
    path = tmp_path / f"{mode}.json"
    save_recording(found, path)
    again = load_recording(path)
    assert to_json(again) == to_json(found) == json.loads(path.read_text())
    model = predictor.trace(Stack, "tokens:int64[2,16]")
    ours, theirs = (predictor.predict(m, "h100", mode=mode) for m in (model, path))
    assert ours.latency_s == theirs.latency_s
    assert ours.memory == theirs.memory and ours.flops == theirs.flops


def test_a_damaged_graph_is_one_line(tmp_path: Path) -> None:
    data = to_json(traced(nn.Linear(4, 4), "input:float[2,4]"))
    for change in ({"version": 9}, {"blocks": [[1]]}, {"mode": "fly"}, {"ops": [["nothing", {}]]}, {"tensors": 3}):
        with pytest.raises(RequestError) as error:
            from_json({**data, **change}, "g.json")
        assert str(error.value).startswith("g.json: ") and "\n" not in str(error.value)


def test_an_operator_without_an_entry_is_listed_and_strict_refuses_it() -> None:
    class Odd(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.linalg.qr(x)[0] + 1.0

    model = predictor.trace(Odd(), "x:fp32[64,64]")
    answer = predictor.predict(model, "h100", dtype="fp32")
    assert list(answer.unknown) == ["linalg_qr"] and 0.0 < answer.unknown["linalg_qr"] < 1.0
    assert any("does not know: linalg_qr" in note for note in answer.notes)
    with pytest.raises(RequestError, match="--strict: Odd runs operators that Tilecast does not know: linalg_qr"):
        predictor.predict(model, "h100", dtype="fp32", strict=True)


def test_gradients_of_picked_rows_go_into_zeros_in_place() -> None:
    """Autograd copies those zeros only under a dispatch mode, such as the one that records."""

    class Picked(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.empty(64, 32))

        def forward(self, rows: Any) -> Any:
            return self.table[rows] * 2.0

    source = predictor.trace(Picked, "int64[8]").source
    nodes = source.record(Step("train", act_dtype="fp32", training=True), False).graph.nodes()
    back = [(n.op.label, getattr(n.op, "fn", "")) for n, _ in nodes if n.phase == BACKWARD]
    assert ("scatter add", "scatter") in back and ("element-wise", "copy") not in back


@pytest.mark.parametrize("words", [{"foreach": True}, {}])
def test_an_optimizer_that_is_recorded_costs_what_the_house_says_of_it(words: dict[str, bool]) -> None:
    """Adam in its foreach form, which it takes by itself on a GPU: seven multi-tensor kernels, eleven reads and seven
    writes of four bytes a parameter."""
    found = traced(Stack, "tokens:int64[2,16]", "train", "fp32", optimizer=lambda p: torch.optim.Adam(p, **words))
    kernels = [(op, n) for op, n in ((node.op, n) for node, n in found.update.nodes()) if op.elements > 1000]
    assert len(kernels) == 7
    read, written = (sum(getattr(op, of)() for op, _ in kernels) for of in ("bytes_read", "bytes_written"))
    assert (read, written) == (44.0 * found.parameters, 28.0 * found.parameters)


def test_convolutions_take_their_gradients_from_the_table() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    found = traced(net, "float[2,3,16,16]", "train", "fp32")
    kinds = [op.phase for op, _ in flat(found) if isinstance(op, Convolution)]
    assert kinds == ["forward", "wgrad"]  # the image needs no gradient
    assert found.unknown == ()


def test_inputs_in_words() -> None:
    assert [str(one) for one in inputs_of("tokens:int64[8,1024] mask:bool[8]")] == [
        "tokens:int64[8,1024]",
        "mask:bool[8]",
    ]
    assert inputs_of(["float32[8,3,224,224]"])[0].shape == (8, 3, 224, 224)
    for wrong in ("tokens", "tokens:int99[8]", "x:fp32[8,,2]", "x:fp32[-1]", "x:fp32[0]", "a:fp32[1] a:fp32[1]"):
        with pytest.raises(RequestError, match="--input"):
            inputs_of(wrong)
