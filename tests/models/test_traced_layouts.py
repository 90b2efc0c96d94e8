"""Layouts of traced convolutions: channels stay last, as cuDNN leaves them."""

from __future__ import annotations

import pytest

import predictor
from predictor.models.step import Step
from predictor.ops import Convolution

torch = pytest.importorskip("torch", reason="the extra torch is not installed")


def convolutions(last: bool, mode: str = "forward") -> list[Convolution]:
    class Two(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Conv2d(3, 16, 3, 2, 1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 1)
            )

        def forward(self, x: object) -> object:
            return self.layers(x.to(memory_format=torch.channels_last) if last else x)  # type: ignore[attr-defined]

    source = predictor.trace(Two, "x:fp32[2,3,16,16]").source
    graph = source.record(Step(mode, 2, 1, act_dtype="fp32", training=mode == "train"), None).graph
    return [node.op for block in graph.blocks for node in block.nodes if isinstance(node.op, Convolution)]


def test_channels_stay_where_they_are() -> None:
    for last in (True, False):
        assert [op.channels_last for op in convolutions(last)] == [last, last]
        step = convolutions(last, "train")
        assert len(step) == 5, "no gradient of the image"
        assert all(op.channels_last == last for op in step)


def test_planes_that_lie_unlike_the_weights_are_copied_first() -> None:
    """A group norm leaves pixels side by side; the convolution behind it, whose weights have channels last, turns them
    round, of one tap too. One behind a convolution has nothing to copy."""

    class Grouped(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Conv2d(8, 16, 3, 1, 1), torch.nn.GroupNorm(4, 16), torch.nn.Conv2d(16, 8, 1),
                torch.nn.Conv2d(8, 8, 3, 1, 1)
            ).to(memory_format=torch.channels_last)  # fmt: skip

        def forward(self, x: object) -> object:
            return self.layers(x)

    source = predictor.trace(Grouped, "x:fp32[2,8,16,16]").source
    graph = source.record(Step("forward", 2, 1, act_dtype="fp32"), None).graph
    ops = [node.op for block in graph.blocks for node in block.nodes]
    assert all(op.channels_last for op in ops if isinstance(op, Convolution))
    kinds = ["convolution" if isinstance(op, Convolution) else getattr(op, "fn", "") for op in ops]
    assert kinds == ["copy", "convolution", "copy", "channel_norm", "copy", "convolution", "convolution"]
    turned = [op for op in ops if getattr(op, "fn", "") == "copy"]
    assert all(op.stride_bytes > 4.0 for op in turned)


def test_what_autocast_narrows_stays_narrow_in_a_run_of_fp32() -> None:
    class Narrow(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(512, 512)

        def forward(self, x: object) -> object:
            with torch.autocast("cuda", dtype=torch.float16):
                return self.layer(x)

    answer = predictor.predict(predictor.trace(Narrow, "x:fp32[64,512]"), "rtx-3090", dtype="fp32", top=9)
    assert [node.shape for node in answer.nodes if node.op == "linear"] == ["64 x 512 x 512 fp16"]
