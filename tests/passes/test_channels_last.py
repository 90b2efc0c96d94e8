"""Layouts of convolutions that a compiler chooses: Inductor's rule, and the copies that come with it."""

from __future__ import annotations

from typing import Any

import pytest

import predictor
from predictor.engines import engine
from predictor.graph import Graph
from predictor.models.built import Step
from predictor.ops import Convolution, Elementwise
from predictor.passes.fuse import fuse

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
nn = torch.nn


def compiled(module: Any, shape: str = "2,32,16,16", mode: str = "forward") -> Graph:
    """What runs of a module on planes."""
    step = Step(mode, act_dtype="fp32", training=mode == "train")
    source = predictor.trace(module, f"fp32[{shape}]").source
    return fuse(source.record(step, False if mode == "train" else None).graph, engine("compile"))


def layouts(graph: Graph) -> list[bool]:
    return [node.op.channels_last for node, _ in graph.nodes() if isinstance(node.op, Convolution)]


def copies(graph: Graph) -> list[int]:
    return [n.op.elements for n, _ in graph.nodes() if isinstance(n.op, Elementwise) and n.name.endswith("layout")]


def test_what_no_loop_makes_is_copied() -> None:
    lone = compiled(lambda: nn.Conv2d(32, 64, 3, 1, 1))
    assert layouts(lone) == [True]
    assert copies(lone) == [2 * 32 * 256, 64 * 32 * 9, 2 * 64 * 256], "input, weight, result"
    chain = compiled(lambda: nn.Sequential(nn.Conv2d(32, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU()))
    assert layouts(chain) == [True, True]
    assert copies(chain) == [2 * 32 * 256, 64 * 64 * 9], "loops make the rest as it is wanted"


def test_groups_of_several_channels_leave_the_layout() -> None:
    grouped = compiled(lambda: nn.Conv2d(32, 64, 3, 1, 1, groups=4))
    assert layouts(grouped) == [False]
    assert copies(grouped) == []
    assert layouts(compiled(lambda: nn.Conv2d(32, 32, 3, 1, 1, groups=32))) == [True], "one channel a group"
    few = lambda: nn.Sequential(nn.Conv2d(32, 32, 3, 1, 1, groups=2), nn.Conv2d(32, 512, 3, 1, 1))  # noqa: E731
    assert layouts(compiled(few)) == [True, True], "few of the FLOPs"
    assert not any(layouts(compiled(few, mode="train"))), "in training none may have them"


def test_training_leaves_what_narrows_or_is_small() -> None:
    assert not any(layouts(compiled(lambda: nn.Conv2d(32, 64, 3, 1, 1), mode="train")))
    assert all(layouts(compiled(lambda: nn.Conv2d(32, 128, 3, 1, 1), mode="train")))
    narrowing = nn.Conv2d(256, 128, 3, 1, 1)
    assert not any(layouts(compiled(lambda: narrowing, "2,256,8,8", "train")))
    assert layouts(compiled(lambda: narrowing, "2,256,8,8")) == [True]
    ends_small = lambda: nn.Sequential(nn.Conv2d(128, 128, 3), nn.Conv2d(128, 64, 1), nn.Conv2d(64, 16, 3))  # noqa: E731
    assert not any(layouts(compiled(ends_small, "1,128,16,16", "train"))), "narrow is asked of small ones, too"
    assert all(layouts(compiled(ends_small, "1,128,16,16")))


def test_every_run_of_a_repeated_block_counts() -> None:
    """Inductor, on the graph of 2,007 nodes, leaves the layout of the first; it turns the second."""

    class Layer(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return x + self.inner(x)

    mlp = lambda: Layer(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)))  # noqa: E731
    deep = lambda: nn.Sequential(nn.Conv2d(3, 128, 3), *(mlp() for _ in range(100)))  # noqa: E731
    shallow = lambda: nn.Sequential(nn.Conv2d(3, 128, 3), *(mlp() for _ in range(10)))  # noqa: E731
    for mode in ("forward", "train"):
        assert layouts(compiled(deep, "1,3,10,10", mode)).count(True) == 0
        assert all(layouts(compiled(shallow, "1,3,10,10", mode)))
    grouped = nn.Conv2d(256, 256, 5, 1, 2, groups=2)
    plain = (Layer(nn.Sequential(nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU())) for _ in range(50))
    mixed = nn.Sequential(grouped, *plain)
    assert all(layouts(compiled(lambda: mixed, "1,256,8,8"))), "few of the FLOPs are grouped"


def test_only_planes_are_turned() -> None:
    assert layouts(compiled(lambda: nn.Conv3d(32, 64, 3), "2,32,6,6,6")) == [False]
    assert layouts(compiled(lambda: nn.Conv1d(32, 64, 3), "2,32,64")) == [False]


def test_eager_takes_layouts_as_they_are() -> None:
    step = Step("forward", act_dtype="fp32")
    graph = predictor.trace(lambda: nn.Conv2d(32, 64, 3), "fp32[2,32,16,16]").source.record(step, None).graph
    assert layouts(fuse(graph, engine("eager"))) == [False]
