"""One plan and one way to time it: what a forecast holds is read and never worked out again, in every mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from backward import backward_blocks
from report_runs import RUNS, forecast, of

import predictor
from predictor.engines import CALLS, CAPTURED, LAUNCHES, PIECES
from predictor.forecast import forecast as forecasting
from predictor.forecast.sensitivity import sensitivities
from predictor.ops.collective import Collective
from predictor.report.html import to_html
from predictor.report.trace import to_trace
from predictor.request.request import Request
from predictor.request.run import Run
from predictor.simulate import capacity, times
from predictor.simulate.plan import plan_of
from predictor.simulate.stage import Plan


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that are planned, and timed, from now on."""
    found: list[Run] = []

    def counted(run: Run) -> Plan:
        found.append(run)
        return plan_of(run)

    monkeypatch.setattr(forecasting, "plan_of", counted)
    monkeypatch.setattr(capacity, "plan_of", counted)
    return found


def test_reports_plan_and_time_nothing_again(planned: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []
    time = times.Operators.time

    def counted(self: times.Operators, plans: Sequence[Plan]) -> Any:
        timed.append(len(plans))
        return time(self, plans)

    monkeypatch.setattr(times.Operators, "time", counted)
    for name, (model, gpu, words) in RUNS.items():
        changes = len(sensitivities(forecast(name)))
        planned.clear(), timed.clear()
        found = of(model, gpu, **words)
        assert len(planned) == sum(timed) == 1, name
        assert found.prediction is found.prediction
        shared = len(planned)  # with other degrees, for the number of GPUs that hold a run
        to_trace(found)
        assert len(planned) == shared and sum(timed) == 1, name
        to_html(found)
        assert sum(timed) == 1 + changes, name
        assert found.run not in planned[1:], name


def test_the_degree_of_the_run_is_not_planned_again(planned: list[Run]) -> None:
    """A run that does not fit is looked at with 1, 3 and 4 GPUs; what it keeps on its own 2 is known."""
    found = of("llama-3.1-70b", "l40s", mode="prefill", seq_len=128, execution="vllm", tp=2)
    memory = found.prediction.memory
    assert (memory.fits, memory.smallest_gpu_count) == (False, 4)
    assert [run.work.parallelism.tp for run in planned] == [2, 1, 3, 4]


def test_every_mode_is_stages() -> None:
    def stages(**words: Any) -> list[tuple[str, float, str, float]]:
        return [
            (s.phase, s.weight, s.host, s.overhead_s) for s in plan_of(Request("gpt2", "h100", **words).run()).stages
        ]

    assert stages(seq_len=8) == [("forward", 1.0, CALLS, 0.0)]
    served: dict[str, Any] = {"execution": "vllm", "step_overhead": 0.002, "dtype": "bf16"}
    assert stages(mode="prefill", seq_len=8, **served) == [("prefill", 1.0, PIECES, 0.002)]
    assert stages(mode="prefill", seq_len=1024, **served) == [("prefill", 1.0, LAUNCHES, 0.002)]
    assert stages(mode="decode", context_len=8, **served) == [("decode", 1.0, CAPTURED, 0.002)]
    generated = stages(mode="generate", seq_len=8, output_len=21, **served)
    assert generated[0] == ("prefill", 1.0, PIECES, 0.002)
    assert {(phase, host, overhead) for phase, _, host, overhead in generated[1:]} == {("decode", CAPTURED, 0.002)}
    assert sum(weight for _, weight, _, _ in generated[1:]) == 20
    trained = stages(mode="train", seq_len=8, batch=6, micro_batch=2)
    assert trained == [("train", 3.0, CALLS, 0.0), ("optimizer", 1.0, CALLS, 0.0)]
    assert [host for _, _, host, _ in stages(mode="train", seq_len=8, execution="compile")] == [CAPTURED, CAPTURED]


def test_a_pass_of_training_is_forward_then_backward() -> None:
    plan = plan_of(Request("gpt2", "h100", mode="train", seq_len=16, batch=4, micro_batch=2).run())
    both, update = plan.stages
    forward = plan.first
    assert {node.phase for node, _ in forward.nodes()} == {"forward"}
    assert both.forward == len(forward.blocks)
    backward = both.graph.blocks[both.forward :]
    again = backward_blocks(forward, accumulate=True)
    assert [[n.op for n in b.nodes] for b in backward] == [[n.op for n in b.nodes] for b in again]
    assert [b.name for b in reversed(backward)] == [
        f"{b.name} backward" for b in forward.blocks if "mask" not in b.name
    ]
    assert [node.op.family for node, _ in update.graph.nodes()] == ["optimizer"]


def test_phases_of_training_are_those_of_its_stages() -> None:
    found = forecast("train")
    both, update = found.stages
    phases = found.phases_s
    assert phases["forward"] == 2 * both.up_to(both.stage.forward).total_s < both.total_s
    assert phases["forward"] + phases["backward"] == pytest.approx(both.total_s)
    assert phases["optimizer"] == update.total_s > 0
    model = sum(node.op.flops() * times for node, times in both.stage.graph.nodes())
    assert found.flops == pytest.approx(2 * model), "the update is no work of the model"


def test_chunks_of_many_runs_are_the_same_forecasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, whichever GPU and engine they are of, and whatever is remembered of those before."""
    requests: list[dict[str, Any]] = [
        {"model": "gpt2", "gpu": gpu, "mode": mode, "execution": execution, "seq_len": 32, "batch": batch}
        for batch in (1, 2)
        for mode in ("train", "forward", "prefill")
        for gpu in ("h100", "a100")
        for execution in ("eager", "compile")
    ]
    whole = predictor.predict_many(requests)
    assert [answer.gpu for answer in whole[:4]] == ["h100-sxm", "h100-sxm", "a100-sxm-80gb", "a100-sxm-80gb"]
    for chunk, remembered in ((5, 200_000), (5, 0), (1, 200_000)):
        monkeypatch.setattr(forecasting, "CHUNK", chunk)
        monkeypatch.setattr(forecasting, "REMEMBERED", remembered)
        again = predictor.predict_many(requests)
        for one, other in zip(whole, again, strict=True):  # sums of vectors of other lengths may round otherwise
            times = {name: pytest.approx(getattr(one, name), rel=1e-12) for name in ("latency_s", "gpu_busy_s", "mfu")}
            assert {name: getattr(other, name) for name in times} == times
            assert other.phases_s == pytest.approx(one.phases_s, rel=1e-12)
            assert (other.model, other.gpu, other.workload, other.memory) == (
                one.model,
                one.gpu,
                one.workload,
                one.memory,
            )
    for one, words in zip(whole, requests, strict=True):
        assert one.latency_s == pytest.approx(predictor.predict(**words).latency_s, rel=1e-12)


def test_a_network_has_a_stream_of_its_own() -> None:
    """Which waits for compute, and compute for it: busy times add up to the GPU's."""
    shared = forecast("ragged, shared")
    assert set(shared.busy_s) == {"compute", "nvswitch"}
    said = sum(row.latency_s for row in shared.prediction.breakdown if row.op in ("all_reduce", "all_gather"))
    assert shared.busy_s["nvswitch"] == pytest.approx(said)
    for name in RUNS:
        found = forecast(name)
        assert sum(found.busy_s.values()) == pytest.approx(found.prediction.gpu_busy_s)
        assert found.run.work.parallelism.tp > 1 or set(found.busy_s) == {"compute"}
    for ranks_per_node, stream in ((0, "nvswitch"), (8, "nvswitch"), (4, "network")):
        op = Collective("bf16", "all_reduce", 4096, 8, ranks_per_node, "nvswitch")
        assert op.stream == stream
