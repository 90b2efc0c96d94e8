"""The interval's term of kernels that an engine's host launches one by one."""

from __future__ import annotations

import math

import pytest

import predictor
from predictor.engines import CALLS, CAPTURED, LAUNCHES, PIECES
from predictor.forecast.forecast import forecast
from predictor.kernels.collective.core import late_rank_s
from predictor.request.request import Request
from predictor.simulate.interval import LATE_S, RunSpread, run_spread


def spread(**words: object) -> RunSpread:
    found = forecast(Request("gpt2", "a100", batch=2, seq_len=128, **words).run())  # type: ignore[arg-type]
    (stage,) = found.stages
    hosts = {"eager": CALLS, "cuda_graph": CAPTURED, "sglang": PIECES}
    assert stage.stage.host == hosts.get(str(words["execution"]), LAUNCHES)
    result = run_spread(found.latency_s, found.stages, found.run.work)
    assert result is not None
    return result


def test_late_kernels_widen_a_run_above_alone() -> None:
    run = RunSpread(1.0, 1000.0, (0.1, 0.2), (0.05, 0.1))
    low, high = run.interval(1e-3)
    assert low == pytest.approx(1.0 - math.hypot(0.1, 0.05))
    assert high == pytest.approx(1.0 + math.sqrt(0.2**2 + 0.1**2 + 1.0**2))
    assert run.interval(0.0)[1] == pytest.approx(1.0 + math.hypot(0.2, 0.1))


def test_an_interval_never_reaches_below_nothing() -> None:
    assert RunSpread(1.0, 0.0, (3.0, 0.0), (0.0, 0.0)).interval() == (0.0, 1.0)


def test_only_an_engines_own_launches_are_late() -> None:
    """Eager calls have a range of their own, and a captured graph no host."""
    assert spread(mode="prefill", execution="fastertransformer").launched > 12 * 5  # what a layer runs at least
    launched = spread(mode="prefill", execution="sglang")
    assert launched.launched == 2 * 12 + 1  # attention of every layer, and the captured pieces around it
    assert spread(mode="prefill", execution="cuda_graph").launched == 0.0
    assert spread(mode="forward", execution="eager").launched == 0.0
    answer = predictor.predict("gpt2", "a100", mode="prefill", batch=2, seq_len=128, execution="sglang")
    assert answer.interval_s == pytest.approx(launched.interval(LATE_S))
    assert answer.interval_s[1] - answer.latency_s > 0.9 * launched.launched * LATE_S


@pytest.mark.parametrize(("execution", "waits"), [("sglang", True), ("cuda_graph", False)])
def test_collectives_may_wait_for_the_last_rank_where_every_rank_has_a_host(
    execution: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Llama-3.1-8B has two all_reduces a layer, and at most a few at its ends."""
    asked = Request("llama-3.1-8b", "h100", mode="prefill", batch=1, seq_len=128, tp=4, execution=execution)
    found = forecast(asked.run())

    def above() -> float:
        spread = run_spread(found.latency_s, found.stages, found.run.work)
        assert spread is not None
        return spread.host[1]

    late = above()
    monkeypatch.setattr("predictor.kernels.collective.core.late_rank_s", lambda ranks: 0.0)
    times = (late - above()) / late_rank_s(4)
    assert times == pytest.approx(66, abs=2) if waits else times == 0.0


def test_a_step_on_many_gpus_may_be_off_by_a_share_beyond_its_kernels_and_no_other_run() -> None:
    """The share's own width, learned from whole steps, joins the others as independent."""
    words = {"mode": "train", "batch": 8, "seq_len": 128, "micro_batch": 2}
    many, one = (forecast(Request("gpt2", "a100", **words, dp=dp).run()) for dp in (2, 1))  # type: ignore[arg-type]
    found, alone = (run_spread(each.latency_s, each.stages, each.run.work) for each in (many, one))
    assert found is not None and alone is not None
    assert (found.step_s, alone.step_s) == (many.latency_s, 0.0)
    narrow, wide = found.interval(step_share=0.0), found.interval(step_share=0.1)
    for a, b in zip(narrow, wide, strict=True):
        assert abs(b - found.total_s) == pytest.approx(math.hypot(a - found.total_s, 0.1 * found.total_s))
    assert alone.interval(step_share=0.0) == alone.interval(step_share=0.1)
    assert many.prediction.interval_s == found.interval()
