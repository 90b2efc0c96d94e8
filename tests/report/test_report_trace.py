"""A forecast taken apart, and its trace: parts add up, slices nest, what is not written out is counted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import RUNS, forecast, of, slices

from predictor.forecast.forecast import Forecast
from predictor.graph import Block, Node
from predictor.ops import Elementwise
from predictor.report.detail import layers, points
from predictor.report.trace import MAX_KERNELS, to_trace
from predictor.simulate.kernel_times import BlockSchedule, schedule
from predictor.simulate.timeline import Segment, eager


@pytest.fixture(params=RUNS)
def found(request: pytest.FixtureRequest) -> Forecast:
    return forecast(request.param)


# ------------------------------------------------------------------------------------------- a forecast taken apart


def test_stages_add_up_to_the_forecast(found: Forecast) -> None:
    answer, asked = found.prediction, found.run
    assert sum(timed.total_s for timed in found.stages) == pytest.approx(answer.latency_s, rel=1e-9)
    assert sum(point.total_s for point in points(found)) == pytest.approx(answer.gpu_busy_s, rel=1e-9)
    assert sum(point.share for point in points(found)) == pytest.approx(1.0)
    assert sum(layer.total_s for layer in layers(found)) == pytest.approx(answer.gpu_busy_s, rel=1e-9)
    flops = sum(p.flops * p.count for p in points(found) if p.op != "optimizer")  # MFU leaves the step out
    more = flops * asked.work.parallelism.num_gpus / answer.flops
    padded = 320 / 309  # 9 and 300 tokens run in a captured graph of 320, whose FLOPs the model has no use for
    is_padded = asked.work.lens_a_pass == (9, 300)
    assert 1.01 < more <= padded if is_padded else more == pytest.approx(1.0, rel=1e-9)
    assert sum(answer.provenance.values()) == len(points(found))


def test_points_lie_under_the_roof(found: Forecast) -> None:
    """No operator is above its peak; none but those that the L2 cache can hold is above the bandwidth."""
    asked = found.run
    for point in points(found):
        assert point.achieved_flops <= point.peak_flops * (1 + 1e-9)
        if point.bytes > 2 * asked.gpu.l2_bytes:
            assert point.bytes / point.latency_s <= 2 * asked.gpu.memory_bandwidth


def test_schedule_ends_when_the_forecast_does(found: Forecast) -> None:
    for timed in found.ran:
        blocks = schedule(timed)
        last = blocks[-1]
        assert max(last.state(last.segment.repeat)) == pytest.approx(timed.timeline.total_s, rel=1e-9)


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=4), st.integers(1, 5)
        ),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_any_repetition_is_as_if_all_before_it_were_simulated(
    blocks: list[tuple[list[tuple[float, float]], int]],
) -> None:
    """Against the definition, kernel by kernel: a kernel starts when it is issued and the one before it is done."""
    issued = done = 0.0
    issue, finish = 0.0, 0.0  # of the closed form, at the start of a block
    segments = []
    for pairs, repeat in blocks:
        gpu, cpu = np.array([g for g, _ in pairs]), np.array([c for _, c in pairs])
        segments.append(Segment(gpu, cpu, repeat))
        nodes = tuple(Node(Elementwise("fp32", "add", 1)) for _ in pairs)
        entry = BlockSchedule(Block("b", nodes, repeat), segments[-1], tuple(range(len(pairs))), (), issue, finish)
        for repetition in range(repeat):
            found = entry.kernels(repetition)
            for j, (g, c) in enumerate(pairs):
                assert found.issue_s[j] == pytest.approx(issued, abs=1e-9)
                issued += c
                start = max(issued, done)
                done = start + g
                assert found.issued_s[j] == pytest.approx(issued, abs=1e-9)
                assert found.start_s[j] == pytest.approx(start, abs=1e-9)
                assert found.end_s[j] == pytest.approx(done, abs=1e-9)
        issue, finish = entry.state(repeat)
    assert max(issued, done) == pytest.approx(eager(segments).total_s, abs=1e-9)


def test_stages_know_what_they_stand_for() -> None:
    found = forecast("generate")
    whole = [timed.stage for timed in found.stages]
    assert [stage.phase for stage in whole] == ["prefill", *["decode"] * (len(whole) - 1)]
    assert sum(stage.weight for stage in whole) == found.run.work.serving.output_len
    assert not whole[0].captured
    assert whole[1].captured
    assert [stage.label for stage in whole[:2]] == ["prefill", "decode step, 64 tokens in the cache"]


def test_an_update_without_operators_is_in_no_report() -> None:
    assert [timed.stage.label for timed in forecast("train").ran] == ["forward and backward", "optimizer step"]
    none = forecast("no optimizer")
    assert [timed.stage.label for timed in none.ran] == ["forward and backward"]
    assert none.prediction.phases_s["optimizer"] == 0.0


# --------------------------------------------------------------------------------------------------------- the trace


def check_nesting(events: list[dict[str, object]]) -> None:
    """Slices of a thread follow each other or lie inside each other, as the format asks for."""
    for thread in {event["pid"] for event in events}:
        around: list[int] = []
        for event in (e for e in events if e["pid"] == thread):
            start = round(event["ts"] * 1e3)  # type: ignore[operator]
            end = start + round(event["dur"] * 1e3)  # type: ignore[operator]
            while around and around[-1] <= start:
                around.pop()
            assert not around or end <= around[-1], event
            around.append(end)


def test_trace_is_the_whole_run(found: Forecast) -> None:
    answer = found.prediction
    document = json.loads(to_trace(found))
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in events) / 1e3 == pytest.approx(answer.latency_ms, abs=1e-5)
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    assert all(e["dur"] >= 0 and isinstance(e["name"], str) and e["name"] for e in events)
    check_nesting(events)
    named = {(e["pid"], e["name"]) for e in document["traceEvents"] if e["ph"] == "M"}
    assert {(e["pid"], "process_name") for e in events} <= named
    assert {(e["pid"], "thread_name") for e in events} <= named
    launches = [e for e in events if e["cat"] == "launch"]
    assert bool(launches) == bool(answer.cpu_busy_s)


def test_every_kernel_is_in_the_trace() -> None:
    """A forward pass in eager: every kernel of every layer, its time, and its launch before it."""
    found = forecast("forward")
    answer, events = found.prediction, slices(to_trace(found))
    (timed,) = found.stages
    kernels = [e for e in events if e["pid"] == 2 and "shape" in e["args"]]  # type: ignore[operator]
    assert len(kernels) == sum(n.count * b.repeat for b in timed.stage.graph.blocks for n in b.nodes)
    assert sum(e["dur"] for e in kernels) / 1e6 == pytest.approx(answer.gpu_busy_s, rel=1e-3)  # type: ignore[misc]
    launches = [e for e in events if e["cat"] == "launch"]
    assert sum(e["dur"] for e in launches) / 1e6 == pytest.approx(answer.cpu_busy_s, rel=1e-3)  # type: ignore[misc]
    layers_written = {e["name"] for e in events if e["cat"] == "block" and e["pid"] == 2}
    assert {f"layer {i}" for i in range(12)} <= layers_written


@pytest.mark.parametrize("most", [1, 60, 200, 1000])
@pytest.mark.parametrize("name", ["forward", "train", "generate", "experts"])
def test_a_trace_is_cut_by_its_rule(name: str, most: int) -> None:
    found = forecast(name)
    answer, trace = found.prediction, to_trace(found, most)
    document = json.loads(trace)
    events = slices(trace)
    written = [e for e in events if e["pid"] == 2 and "shape" in e["args"]]  # type: ignore[operator]
    assert len(written) == document["otherData"]["kernels_written"] <= most < MAX_KERNELS
    assert max(e["ts"] + e["dur"] for e in events) / 1e3 == pytest.approx(answer.latency_ms, abs=1e-5)  # type: ignore[operator]
    check_nesting(events)
    more = [e for e in events if e["cat"] == "more" and "kernels" in e["args"] and e["pid"] == 2]  # type: ignore[operator]
    left_out = sum(e["args"]["kernels"] for e in more)  # type: ignore[index]
    total = sum(n.count * b.repeat for s in found.plan.stages for b in s.graph.blocks for n in b.nodes)
    assert len(written) + left_out == total, "what is not written is counted"


def test_a_deep_model_is_written_from_both_ends() -> None:
    events = slices(to_trace(of("gpt3", "h100", seq_len=128), 300))
    names = [str(e["name"]) for e in events if e["cat"] == "block" and e["pid"] == 2]
    assert "layer 0" in names
    assert "layer 95" in names
    assert "layer 50" not in names
