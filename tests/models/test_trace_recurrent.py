"""Recurrent layers of torch.nn are a kernel family a layer, not an operator a step."""

from __future__ import annotations

from pathlib import Path

import pytest

import predictor
from predictor.graph.saved_graph import load_recording, save_recording, to_json
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import RooflineOnly, load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.models.step import Step
from predictor.ops import BACKWARD, FORWARD, Op
from predictor.ops.recurrent import Recurrence

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

STEPS, BATCH = 7, 2


def recording(make, mode: str = "forward", first: bool = False):  # type: ignore[no-untyped-def]
    """What runs for a module on (steps, batch, 24), or (batch, steps, 24) with the batch first."""
    shape = f"{BATCH},{STEPS},24" if first else f"{STEPS},{BATCH},24"
    source = predictor.trace(make, f"x:fp32[{shape}]").source
    return source.record(Step(mode, BATCH, 1, act_dtype="fp32", training=mode == "train"), None)


def operators(make, mode: str = "forward", first: bool = False) -> list[Op]:  # type: ignore[no-untyped-def]
    return [node.op for block in recording(make, mode, first).graph.blocks for node in block.nodes]


class Last(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A stack's result."""

    def __init__(self, stack) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.stack = stack

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.stack(x)[0]


@pytest.mark.parametrize(("kind", "gates"), [(torch.nn.LSTM, 4), (torch.nn.GRU, 3), (torch.nn.RNN, 1)])
def test_a_layer_is_one_operator_of_all_steps(kind, gates: int) -> None:  # type: ignore[no-untyped-def]
    *states, first, second = operators(lambda: Last(kind(24, 32, 2, bidirectional=True)))
    assert all(getattr(op, "fn", "") == "fill" for op in states)
    assert [first, second] == [
        Recurrence("fp32", STEPS, BATCH, 24, 32, gates, 2), Recurrence("fp32", STEPS, BATCH, 64, 32, gates, 2)
    ]  # fmt: skip


def test_a_batch_in_front_is_copied_and_dropout_runs_between_layers() -> None:
    def kinds(make, mode: str = "forward", first: bool = False) -> list[str]:  # type: ignore[no-untyped-def]
        names = [getattr(op, "fn", op.label) for op in operators(make, mode, first)]
        return [kind for kind in names if kind != "fill"]

    layers = ["recurrent layer"] * 2
    assert kinds(lambda: Last(torch.nn.LSTM(24, 32, 2, batch_first=True)), first=True) == ["copy", *layers]
    trained = kinds(lambda: Last(torch.nn.GRU(24, 32, 2, dropout=0.5)), "train")
    assert trained[:3] == ["recurrent layer", "dropout", "recurrent layer"]


def test_training_walks_the_layers_back() -> None:
    layers = [op for op in operators(lambda: Last(torch.nn.LSTM(24, 32, 2)), "train") if isinstance(op, Recurrence)]
    assert [(op.inputs, op.phase) for op in layers] == [(24, FORWARD), (32, FORWARD), (32, BACKWARD), (24, BACKWARD)]
    assert layers[2].flops() == 2 * layers[1].flops()


def test_states_that_are_projected_run_step_by_step() -> None:
    ops = operators(lambda: Last(torch.nn.LSTM(24, 32, proj_size=8)))
    assert len(ops) > STEPS
    assert not any(isinstance(op, Recurrence) for op in ops)


def test_a_saved_graph_keeps_them(tmp_path: Path) -> None:
    whole = recording(lambda: Last(torch.nn.GRU(24, 32)))
    save_recording(whole, tmp_path / "gru.json")
    assert to_json(load_recording(tmp_path / "gru.json")) == to_json(whole)
    assert any(isinstance(node.op, Recurrence) for block in whole.graph.blocks for node in block.nodes)


def seconds(op: Op, gpu: str = "a100", roofline: bool = False) -> float:
    table = predict_kernels([op], load_gpu(gpu), RooflineOnly() if roofline else load_artifacts())
    return float(table.latency_s[0])


def test_steps_follow_each_other_and_directions_too() -> None:
    one = Recurrence("fp32", 512, 10, 256, 256, 4)
    step = 2e-6  # a kernel at least, of two
    assert seconds(one) > 512 * 2 * step
    longer, both = Recurrence("fp32", 1024, 10, 256, 256, 4), Recurrence("fp32", 512, 10, 256, 256, 4, 2)
    assert seconds(longer) == pytest.approx(2 * seconds(one), rel=0.1)
    assert seconds(both) == pytest.approx(2 * seconds(one))
    assert seconds(one, roofline=True) < seconds(one) / 10


def test_narrow_layers_keep_their_weights_on_the_chip() -> None:
    narrow, wider = Recurrence("fp32", 512, 10, 192, 192, 4), Recurrence("fp32", 512, 10, 192, 193, 4)
    assert narrow.is_persistent
    assert not wider.is_persistent
    assert narrow.kernels() == 2
    assert seconds(narrow) < 0.6 * seconds(wider)
    assert Recurrence("fp32", 8, 1, 8, 384, 1).is_persistent
    assert not Recurrence("fp32", 8, 1, 8, 192, 4, phase=BACKWARD).is_persistent
