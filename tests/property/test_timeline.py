"""The two timelines against a simulation kernel by kernel."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.files.records import replace
from predictor.forecast.forecast import forecast
from predictor.request.request import Request
from predictor.simulate.timeline import Segment, eager, in_a_row

times = st.floats(min_value=0.0, max_value=5.0, allow_nan=False)
node = st.tuples(times, times)
block = st.tuples(st.lists(node, min_size=1, max_size=5), st.integers(1, 6))


def simulate(blocks: list[tuple[list[tuple[float, float]], int]]) -> float:
    issued = finished = 0.0
    for nodes, repeat in blocks:
        for _ in range(repeat):
            for gpu, cpu in nodes:
                issued += cpu
                finished = max(finished, issued) + gpu
    return max(finished, issued)


def segments(blocks: list[tuple[list[tuple[float, float]], int]]) -> list[Segment]:
    return [Segment(np.array([g for g, _ in nodes]), np.array([c for _, c in nodes]), r) for nodes, r in blocks]


@settings(max_examples=200, deadline=None)
@given(st.lists(block, min_size=1, max_size=4))
def test_eager_equals_a_simulation_of_every_kernel(blocks: list[tuple[list[tuple[float, float]], int]]) -> None:
    line = eager(segments(blocks))
    assert np.isclose(line.total_s, simulate(blocks), rtol=1e-9, atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.lists(block, min_size=1, max_size=4))
def test_bounds_of_the_eager_timeline(blocks: list[tuple[list[tuple[float, float]], int]]) -> None:
    line = eager(segments(blocks))
    assert line.total_s >= max(line.gpu_s, line.cpu_s) - 1e-9
    assert line.total_s <= line.gpu_s + line.cpu_s + 1e-9
    assert np.isclose(in_a_row((s.gpu_s.sum(), s.repeat) for s in segments(blocks)).total_s, line.gpu_s)


def test_a_free_cpu_leaves_the_gpu_time() -> None:
    line = eager([Segment(np.array([1.0, 2.0]), np.zeros(2), 3)])
    assert line.total_s == 9.0


def test_a_slow_cpu_decides() -> None:
    line = eager([Segment(np.array([1.0]), np.array([10.0]), 4)])
    assert line.total_s == 41.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(node, min_size=1, max_size=4), min_size=2, max_size=3), st.lists(st.integers(0, 2)))
def test_kinds_of_layers_run_in_turns(kinds: list[list[tuple[float, float]]], pattern: list[int]) -> None:
    pattern = [place % len(kinds) for place in (*pattern, *range(len(kinds)), 0)]
    turns = [tuple(turn for turn, place in enumerate(pattern) if place == kind) for kind in range(len(kinds))]
    ends = [([(1.0, 2.0)], 1), ([(4.0, 1.0)], 2)]
    layers = [
        replace(segment, turns=own)
        for segment, own in zip(
            segments([(n, len(own)) for n, own in zip(kinds, turns, strict=True)]), turns, strict=True
        )
    ]
    line = eager([*segments(ends[:1]), *layers, *segments(ends[1:])])
    steps = [*ends[:1], *((kinds[place], 1) for place in pattern), *ends[1:]]
    assert np.isclose(line.total_s, simulate(steps), rtol=1e-9, atol=1e-9)


def test_a_backward_pass_takes_layers_from_the_last() -> None:
    """Gemma 2 has windows in every other layer: the layer that ends the forward pass begins the backward pass."""
    run = Request("gemma-2-9b", "h100", mode="train", batch=1, seq_len=64, optimizer="none").run()
    timed = forecast(run).stages[0]
    assert [segment.turns[:2] for segment in timed.segments if segment.turns][:2] == [(0, 2), (1, 3)]
    runs = timed.timelines.order
    assert runs is not None
    names = [timed.blocks[place].block.name for place in runs[0]]
    layers = [name for name in names if "layer" in name]
    assert layers[:3] == ["layer window", "layer", "layer window"]
    assert layers[-2:] == ["layer backward", "layer window backward"]
